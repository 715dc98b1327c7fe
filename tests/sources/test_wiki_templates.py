"""Templates inside sentences show what a reader sees, and a sentence that misses one is dropped and counted."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from bert_job.preparation import CorpusSpec
from bert_trainer.dataset.corpus.corpora import open_corpora
from bert_trainer.dataset.corpus.formats.wikitext import HOLE, extract_paragraphs
from small_dumps import dump, page


@pytest.mark.parametrize(
    ("template", "shown"),
    [
        ("convert|5|to|7|km|mi", "5 to 7 km"),
        ("convert|5|-|7|km", "5\u20137 km"),
        ("cvt|5|x|7|m|ft|abbr=on", "5 \u00d7 7 m"),
        ("convert|5|by|7|by|9|in", "5 by 7 by 9 in"),
        ("convert|5|ft|6|in|m", "5 ft 6 in"),
        ("convert|1,234.5|km2|sqmi", "1,234.5 km\u00b2"),
        ("convert|20|C|F", "20 \u00b0C"),
        ("convert|5+1/2|in", "5 1/2 in"),
        ("Convert|3|m", "3 m"),
        ("nowrap|very old", "very old"),
        ("nowrap|{{convert|5|to|7|km}}", "5 to 7 km"),
        ("lang|fr|chat", "chat"),
        ("lang-fr|chat", "chat"),
        ("langx|fr|chat", "chat"),
        ("abbr|BBC|British Broadcasting Corporation", "BBC"),
        ("val|5.1|0.2|u=kg", "5.1\u00b10.2 kg"),
        ("val|5|e=3|u=m", "5 \u00d7 10^3 m"),
        ("circa|1500", "c. 1500"),
        ("circa|1500|1510", "c. 1500 \u2013 c. 1510"),
        ("frac|1|2", "1/2"),
        ("frac|3|1|2", "3 1/2"),
        ("formatnum:12345", "12345"),
        ("as of|2010|5|lc=y", "as of May 2010"),
        ("\u00a3|5", "\u00a35"),
        ("USS|Nimitz|CVN-68", "USS Nimitz"),
        ("chem|H|2|O", "H2O"),
        ("ill|A Name|de", "A Name"),
        ("transl|ar|kitab", "kitab"),
        ("transliteration|ar|ALA|kitab", "kitab"),
        ("font color|red|yellow|bright", "bright"),
        ("script|Hebr|shalom", "shalom"),
        ("rtl-lang|ar|salam", "salam"),
    ],
)
def test_a_template_shows_its_text(template: str, shown: str) -> None:
    assert extract_paragraphs(f"It is {{{{{template}}}}} wide.", frozenset()) == [f"It is {shown} wide."]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("One {{cn|date=May 2020}} here. Two.{{odd note}} Three. {{odd box}} Four.", "One here. Two. Three. Four."),
        ("The word{{odd}} ({{IPA|x}}; {{odd}}) is short ({{odd}}).", "The word is short."),
        ("{{Odd box}} The river is long.", "The river is long."),
        ("{{Odd box}}\nThe river is long.\n{{Odd}}", "The river is long."),
        ("It is{{sfn|Smith|2000}} here.{{r|a}}", "It is here."),
        ('The "word"{{odd}} and 5%{{odd}} are here.', 'The "word" and 5% are here.'),
    ],
)
def test_notes_and_boxes_leave_no_hole(text: str, wanted: str) -> None:
    assert extract_paragraphs(text, frozenset()) == [wanted]


@pytest.mark.parametrize(
    "text",
    [
        "It is {{odd|5}} wide.",
        "It is {{convert|about five|km}} wide.",
        "{{Odd name}} is a river.",
        "It is {{odd}}.",
        "It is {{nowrap|{{odd}} m}} wide.",
        "It cost ${{odd|100|1950}} then.",
        'The word "{{odd|x}}" is old.',
        "The word \u201c{{odd|x}}\u201d is old.",
        "It has 5\u2013{{odd|6}} rooms.",
    ],
)
def test_what_is_not_known_leaves_a_hole(text: str) -> None:
    (found,) = extract_paragraphs(text, frozenset())
    assert HOLE in found


def test_a_sentence_with_a_hole_is_dropped_and_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "wiki.xml"
    path.write_bytes(dump(page("A", "The river is long. It is {{odd|5}} wide. It is {{convert|5|to|7|km|mi}} deep.")))
    with caplog.at_level(logging.INFO):
        (document,) = open_corpora([CorpusSpec(path=str(path))]).documents()
    assert document.sentences == ("The river is long.", "It is 5 to 7 km deep.")
    assert "skipped 1 sentences with a template that is not known" in caplog.text


@pytest.mark.parametrize("num_processes", [1, 2])
def test_rendered_templates_are_counted_beside_dropped_sentences(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, num_processes: int
) -> None:
    path = tmp_path / "wiki.xml"
    kept = "It is {{convert|5|km}} wide. It has {{formatnum:7}} {{nowrap|{{val|5}}}} towns.{{cn}} It is {{odd|5}} long."
    path.write_bytes(dump(page("A", kept), page("B", "It is {{convert|5|km}} wide."), page("C", "* {{val|5}}")))
    caplog.set_level(logging.INFO)
    assert len(list(open_corpora([CorpusSpec(path=str(path))], num_processes=num_processes).documents())) == 2
    assert (
        f"{path}: skipped 1 articles without prose, 1 sentences with a template that is not known; 5 templates rendered"
        in caplog.messages
    )
