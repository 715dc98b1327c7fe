"""A dump's articles become documents; redirects, other namespaces and damage do not pass for text."""

from __future__ import annotations

import bz2
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_trainer.dataset.corpus.corpora import open_corpus
from bert_trainer.dataset.corpus.document import Document
from bert_trainer.dataset.corpus.formats import wikipedia
from bert_trainer.dataset.corpus.formats.wikipedia import read_wikipedia
from bert_trainer.errors import InputError
from small_dumps import HEADER, dump, multistream, page

PAGES = [page(f"Page {number}", f"Text of page {number}. It has two sentences.") for number in range(40)]

DUMP = dump(*PAGES[:8])


def read(path: Path, *, num_processes: int = 1) -> tuple[list[Document], Counter[str]]:
    skipped: Counter[str] = Counter()
    documents = read_wikipedia(path, language="en", num_processes=num_processes, check=lambda: None, skipped=skipped)
    return list(documents), skipped


def test_every_article_is_a_document_with_its_sentences(tmp_path: Path) -> None:
    path = tmp_path / "wiki.xml"
    path.write_bytes(dump(page("Cats & dogs", "Cats sleep. Dr. Bell has [[dog]]s.\n\nThey bark."), PAGES[0]))
    documents, skipped = read(path)
    assert [document.sentences for document in documents] == [
        ("Cats sleep.", "Dr. Bell has dogs.", "They bark."),
        ("Text of page 0.", "It has two sentences."),
    ]
    assert documents[0].name == f"{path}#Cats & dogs"
    assert not skipped


def test_what_is_no_article_is_skipped_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "wiki.xml"
    pages = [
        page("Old name", "#REDIRECT [[New]]", redirect=True),
        page("Diskussion:X", "Talk about it.", namespace=1),
        page("Vorlage:X", "A template.", namespace=10),
        page("X.js", "alert(1)", model="javascript"),
        page("List", "* only\n* a list"),
        page("Empty", ""),
        page("Broken", "{{x|" * 500),
        PAGES[0],
    ]
    path.write_bytes(dump(*pages))
    documents, skipped = read(path)
    assert [document.name for document in documents] == [f"{path}#Page 0"]
    assert skipped == {
        "redirects": 1,
        "pages of other namespaces": 2,
        "pages without wikitext": 1,
        "articles without prose": 2,
        "pages whose markup cannot be parsed": 1,
    }


def test_names_of_namespaces_are_those_of_the_dump(tmp_path: Path) -> None:
    path = tmp_path / "wiki.xml"
    path.write_bytes(dump(page("A", "Ein Text. [[Datei:x.jpg|mini|Bild]][[Kategorie:Alt]] [[Medium:x|Ton]] Schluss.")))
    assert read(path)[0][0].sentences == ("Ein Text.", "Ton Schluss.")


@pytest.mark.parametrize("name", ["wiki.xml.bz2", "wiki-multistream.xml.bz2", "wiki-p1p99.xml"])
def test_all_forms_of_a_dump_give_the_same_documents(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wikipedia, "_PIECE_BYTES", 777)  # ends of pages lie across pieces
    content = {
        "wiki.xml.bz2": bz2.compress(dump(*PAGES)),
        "wiki-multistream.xml.bz2": multistream(PAGES[:15], PAGES[15:30], PAGES[30:]),
        "wiki-p1p99.xml": dump(*PAGES),
    }
    path = tmp_path / name
    path.write_bytes(content[name])
    documents, _ = read(path)
    assert [document.name for document in documents] == [f"{path}#Page {number}" for number in range(40)]


def test_streams_that_are_cut_inside_pages_are_read_as_one(tmp_path: Path) -> None:
    content = dump(*PAGES)
    path = tmp_path / "wiki.xml.bz2"
    path.write_bytes(b"".join(bz2.compress(content[start : start + 500]) for start in range(0, len(content), 500)))
    assert len(read(path)[0]) == len(PAGES)


@pytest.mark.slow
def test_the_number_of_processes_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wikipedia, "_PIECE_BYTES", 2000)
    for name, content in (("a.xml", dump(*PAGES)), ("b.xml.bz2", multistream(PAGES[:9], PAGES[9:10], PAGES[10:]))):
        path = tmp_path / name
        path.write_bytes(content)
        assert read(path, num_processes=3) == read(path)


def test_a_dump_that_is_cut_off_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "wiki.xml"
    path.write_bytes(dump(*PAGES)[:-500])
    with pytest.raises(InputError, match=r"wiki\.xml: the dump is cut off after \d+ bytes"):
        read(path)


@pytest.mark.parametrize("compress", [lambda: bz2.compress(dump(*PAGES)), lambda: multistream(PAGES[:20], PAGES[20:])])
def test_compressed_dumps_that_are_cut_off_or_damaged_are_refused_by_name(tmp_path: Path, compress: object) -> None:
    content = compress()  # type: ignore[operator]
    path = tmp_path / "wiki.xml.bz2"
    path.write_bytes(content[:-40])
    with pytest.raises(InputError, match=r"wiki\.xml\.bz2: .*cut off"):
        read(path)
    middle = len(content) * 2 // 3
    path.write_bytes(
        content[:middle] + bytes(byte ^ 0x5A for byte in content[middle : middle + 9]) + content[middle + 9 :]
    )
    with pytest.raises(InputError, match=r"wiki\.xml\.bz2: .*(damaged|cut off)"):
        read(path)


def test_xml_that_is_not_well_formed_is_refused_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "wiki.xml"
    path.write_bytes(dump(PAGES[0], PAGES[1].replace("</title>", "</caption>")))
    with pytest.raises(InputError, match=r"wiki\.xml: not well-formed XML near byte offset \d+"):
        read(path)


def test_bytes_that_are_not_utf8_are_refused_with_the_file(tmp_path: Path) -> None:
    path = tmp_path / "wiki.xml"
    path.write_bytes(dump(PAGES[0]).replace(b"Text of", b"T\xe9xt of"))
    with pytest.raises(InputError, match=r"wiki\.xml: not well-formed XML near byte offset"):
        read(path)


def test_other_xml_is_no_dump(tmp_path: Path) -> None:
    path = tmp_path / "feed.xml"
    path.write_text("<rss><channel/></rss>")
    with pytest.raises(InputError, match=r"feed\.xml: not a MediaWiki dump"):
        list(open_corpus(str(path)).documents())


@settings(max_examples=150)
@given(data=st.data())
def test_no_damage_passes_for_another_error_than_ours(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    whole = data.draw(st.sampled_from([DUMP, bz2.compress(DUMP), multistream(PAGES[:5], PAGES[5:])]))
    start = data.draw(st.integers(0, len(whole) - 1))
    length = data.draw(st.integers(0, 60))
    damaged = whole[:start] + data.draw(st.binary(max_size=60)) + whole[start + length :]
    path = tmp_path_factory.getbasetemp() / "damaged.xml.bz2"
    path.write_bytes(damaged)
    try:
        documents, refusal = read(path)[0], str(path)
    except InputError as error:
        documents, refusal = [], str(error)
    assert refusal.startswith(str(path))
    assert all(document.sentences for document in documents)


@given(st.lists(st.text(alphabet="abc .\n[]{}'<>&=*|", max_size=80), max_size=8))
def test_any_markup_survives_the_xml(tmp_path_factory: pytest.TempPathFactory, texts: list[str]) -> None:
    path = tmp_path_factory.getbasetemp() / "any.xml"
    path.write_bytes(dump(*(page(f"{number} & <co>", text) for number, text in enumerate(texts))))
    documents, skipped = read(path)
    assert len(documents) + sum(skipped.values()) == len(texts)
    assert all(sentence == " ".join(sentence.split()) for document in documents for sentence in document.sentences)


def test_a_header_alone_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "wiki.xml"
    path.write_text(HEADER)
    with pytest.raises(InputError, match="cut off"):
        read(path)
