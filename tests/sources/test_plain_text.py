"""Text files of every layout become the same documents, and files that are no text are named."""

from __future__ import annotations

import bz2
import gzip
import logging
import lzma
import textwrap
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_job.preparation import CorpusSpec
from bert_trainer.dataset.corpus.corpora import open_corpora, open_corpus
from bert_trainer.errors import InputError

ONE = ("The mill stands by the river.", "It grinds corn for Mr. Bell all year.", "Nobody lives there.")
TWO = ("Rain fell at night.", "The road was closed at 5.30 p.m. on Friday.", "They waited for an hour or more.")


def sentences(path: Path, **options: object) -> list[tuple[str, ...]]:
    corpora = open_corpora([CorpusSpec(path=str(path), **options)])  # type: ignore[arg-type]
    return [document.sentences for document in corpora.documents()]


@pytest.mark.parametrize("layout", ["sentences", "paragraphs", "wrapped"])
def test_each_layout_is_told_by_the_lines(tmp_path: Path, layout: str) -> None:
    path = tmp_path / "a.txt"
    separator = {"sentences": "\n", "paragraphs": " ", "wrapped": " "}[layout]
    documents = [separator.join(document) for document in (ONE, TWO)]
    if layout == "wrapped":
        documents = [textwrap.fill(document, 40) for document in documents]
    path.write_text("\n\n".join(documents))
    assert sentences(path) == [ONE, TWO]
    assert sentences(path, lines=layout) == [ONE, TWO]


def test_lines_without_full_stops_are_sentences(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("w1 w2 w3\nw4 w5\n\nw6\nw7 w8\n")
    assert sentences(path) == [("w1 w2 w3", "w4 w5"), ("w6", "w7 w8")]


def test_a_file_may_be_one_document_with_paragraphs(tmp_path: Path) -> None:
    path = tmp_path / "book.txt"
    path.write_text(" ".join(ONE) + "\n\n" + " ".join(TWO) + "\n")
    assert sentences(path, documents="files") == [ONE + TWO]


@pytest.mark.parametrize(
    ("suffix", "compress"), [(".gz", gzip.compress), (".bz2", bz2.compress), (".xz", lzma.compress)]
)
def test_compressed_text_is_read_and_damage_is_named(tmp_path: Path, suffix: str, compress: object) -> None:
    path = tmp_path / f"a.txt{suffix}"
    content = compress(("\n".join(ONE) + "\n").encode() * 50)  # type: ignore[operator]
    path.write_bytes(content)
    assert sentences(tmp_path) == [ONE * 50]
    path.write_bytes(content[:-9])
    with pytest.raises(InputError, match=rf"a\.txt\{suffix}: the compressed file is cut off"):
        sentences(tmp_path)
    path.write_bytes(content[:20] + b"\0\xff\0\xff" + content[24:])
    with pytest.raises(InputError, match=rf"a\.txt\{suffix}: the compressed (data is damaged|file is cut off)"):
        sentences(tmp_path)


def test_the_language_decides_where_sentences_end(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("Am 3. Mai kam er z.B. nach Berlin. Dann ging er.\n")
    assert sentences(path, language="de") == [("Am 3. Mai kam er z.B. nach Berlin.", "Dann ging er.")]
    path.write_text("今天天气很好。我们走吧!\n")
    assert sentences(path, language="zh") == [("今天天气很好。", "我们走吧!")]


def test_control_characters_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("one\x00 two\x07.\x1b \u2028three\ufeff.\n")
    assert sentences(path, lines="sentences") == [("one two. three.",)]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32"])
def test_other_encodings_with_a_mark_are_told_by_name(tmp_path: Path, encoding: str) -> None:
    (tmp_path / "a.txt").write_text("one.\n", encoding=encoding)
    with pytest.raises(
        InputError, match=r"a\.txt: got text in UTF-\d\d, by its first bytes[\s\S]*iconv -f UTF-\d\d -t"
    ):
        sentences(tmp_path)


def test_a_wrong_byte_is_counted_in_what_is_decompressed(tmp_path: Path) -> None:
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"one.\ncaf\xe9.\n"))
    with pytest.raises(InputError, match=r"a\.txt\.gz: not UTF-8 at byte offset 8 \(byte 0xe9\)"):
        sentences(tmp_path)


def test_files_without_text_are_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text(" \n\n")
    (tmp_path / "c.txt").write_text("one.\n")
    with caplog.at_level(logging.WARNING):
        assert sentences(tmp_path) == [("one.",)]
    assert "skipped 2 files without text" in caplog.text
    (tmp_path / "c.txt").unlink()
    with pytest.raises(InputError, match="holds no text .skipped 2 files without text"):
        sentences(tmp_path)


def test_the_name_decides_before_the_content(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text('{"text": "one."}\n')
    (tmp_path / "b").write_text('{"text": "two."}\n')
    assert sentences(tmp_path / "a.txt") == [('{"text": "one."}',)]
    assert sentences(tmp_path / "b") == [("two.",)]


def test_an_index_of_a_dump_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "enwiki-20260101-pages-articles-multistream-index.txt").write_text("597:10:AccessibleComputing\n")
    with pytest.raises(InputError, match=r"no \.txt, \.jsonl or \.xml file"):
        sentences(tmp_path)


LINES = st.lists(st.text(max_size=60), max_size=30)


@settings(max_examples=150)
@given(lines=LINES, layout=st.sampled_from(["auto", "sentences", "paragraphs", "wrapped"]))
def test_any_text_gives_whole_sentences_and_loses_no_character_that_shows(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], layout: str
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.txt"
    path.write_bytes("\n".join(lines).encode("utf-8", "replace"))
    try:
        documents = sentences(path, lines=layout)
        refusal = "holds no text"
    except InputError as error:
        documents, refusal = [], str(error)
    # Zeros in every other byte are what UTF-16 without a mark looks like.
    assert "holds no text" in refusal or ("text in UTF-16" in refusal and "\0" in "".join(lines))
    if "UTF-16" in refusal:
        return
    for document in documents:
        assert document
        for sentence in document:
            assert sentence == " ".join(sentence.split())
            assert sentence
            sentence.encode()
    shown = "".join("".join(document) for document in documents).replace(" ", "")
    expected = "".join(character for character in "".join(lines) if character.isprintable() and character != " ")
    assert (
        "".join(character for character in shown if character.isprintable())
        == expected.encode("utf-8", "replace").decode()
    )


@settings(max_examples=100)
@given(st.binary(max_size=300))
def test_any_bytes_are_text_or_refused_by_name(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "bytes.txt"
    path.write_bytes(content)
    try:
        list(open_corpus(str(path)).documents())
        refusal = str(path)
    except InputError as error:
        refusal = str(error)
    assert refusal.startswith(str(path))
