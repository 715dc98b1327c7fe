"""The markup of a page is cut away, and its prose stays."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert_trainer.dataset.corpus.formats.wikitext import BrokenMarkupError, extract_paragraphs

DROPPED = frozenset({"file", "category", "datei"})


def paragraphs(text: str) -> list[str]:
    return extract_paragraphs(text, DROPPED)


@pytest.mark.parametrize(
    ("markup", "text"),
    [
        ("A [[river|long river]] of [[silt]]s.", "A long river of silts."),
        ("'''Bold''' and ''slanted'' and '''''both'''''.", "Bold and slanted and both."),
        ("One.<ref>{{cite book|title=T}}</ref> Two.<ref name=x /> Three.", "One. Two. Three."),
        ('One.<ref name="a>b">A [[link]].</ref> Two.', "One. Two."),
        ("Salt &amp; pepper&nbsp;mills &#8212; two.", "Salt & pepper mills \u2014 two."),
        ("See [https://example.org the page] or https://example.org now.", "See the page or now."),
        ("It weighs {{convert|5|kg|lb}} and is {{nowrap|very old}}.", "It weighs 5 kg and is very old."),
        ("The word {{lang|fr|''chat''}} ({{IPA|x}}) is short.", "The word chat is short."),
        ("It is{{efn|A note with {{nested|one}}.}} here{{citation needed|date=May 2020}}.", "It is here."),
        ("Before.<!-- {{ [[ never seen --> After.", "Before. After."),
        ("A [[File:a.png|thumb|A [[caption]] here.]] picture.", "A picture."),
        ("A [[Datei:a.png|mini|Ein Bild.]] picture.", "A picture."),
        ("Text.[[Category:Things]][[de:Ding]]", "Text."),
        ("See [[:Category:Things]] for more.", "See Category:Things for more."),
        ("The ring <math>\\{a}{b}</math> is small.", "The ring is small."),
        ("__NOTOC__Text here.", "Text here."),
        ("Type <nowiki>[[x]] {{y}}</nowiki> to link.", "Type x y to link."),
        ("There are {{formatnum:12345}} of them.", "There are 12345 of them."),
    ],
)
def test_what_readers_see_stays(markup: str, text: str) -> None:
    assert paragraphs(markup) == [text]


def test_infoboxes_tables_lists_headings_and_galleries_go() -> None:
    markup = """{{Infobox thing
| name = [[Thing]]
| size = {{convert|3|m}}
}}
The thing is large.

== History ==
* a list of [[things]]
** more of it
# numbered
; term : meaning
: indented
{| class="wikitable"
! head
|-
| cell {| a nested
| table
|}
| more
|}
<gallery>
File:a.png|A caption.
</gallery>
It fell over."""
    assert paragraphs(markup) == ["The thing is large.", "It fell over."]


def test_what_announces_a_list_goes_with_it() -> None:
    assert paragraphs("There are three:\n* one\n* two\nAll are old.") == ["All are old."]


def test_paragraphs_with_markup_left_over_go() -> None:
    assert paragraphs("Whole text.\n\nBroken {{template without end\n\nAnd [[a link without end.") == ["Whole text."]


def test_a_table_without_end_takes_its_section_only() -> None:
    assert paragraphs("First.\n{| class=x\n| cell\n== Next ==\nSecond.") == ["First.", "Second."]


@pytest.mark.parametrize(
    "piece", ["<b>", "<a ", "<ref>", "<!--", "{|\n", "\n*", "'''''", "&#", "<div>", "x <ref name=a ", "\n== a == b"]
)
def test_what_is_opened_and_never_closed_costs_no_more_than_its_length(piece: str) -> None:
    # The time limit of the tests is the judge: what is quadratic takes minutes here.
    paragraphs(piece * 20_000)


@pytest.mark.parametrize("piece", ["{{a|", "[[a|", "[http://a "])
def test_a_page_that_leaves_a_hundred_things_open_is_broken(piece: str) -> None:
    assert paragraphs("Text here.\n\n" + piece * 90)[0] == "Text here."
    with pytest.raises(BrokenMarkupError):
        paragraphs(piece * 20_000)


def test_html_of_a_page_is_cut_as_its_wiki_markup_is() -> None:
    markup = "One <b>bold</b> word.<br />Two<ul><li>an item</li></ul>Three<table><tr><td>cell</td></tr></table>."
    assert paragraphs(markup) == ["One bold word.", "Two", "Three."]
    assert paragraphs("If a < b, then b > a.") == ["If a < b, then b > a."]


@given(st.text(alphabet="ab .\n'[]{}|=<>/!-*#:;&ref", max_size=200))
def test_no_markup_breaks_the_extraction(markup: str) -> None:
    for text in paragraphs(markup):
        assert text == " ".join(text.split())
        assert text
        assert "\x02" not in text
        for mark in ("[[", "]]", "{{", "}}", "{|", "''"):
            assert mark not in text
