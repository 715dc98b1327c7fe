"""Text files become documents, one by one, and what cannot be read is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from bert_trainer.dataset.corpus.corpora import digest_corpus, open_corpus
from bert_trainer.errors import InputError


def test_blank_lines_and_ends_of_files_separate_documents(tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_text("five.\n\n\n\n  six  seven. \n")
    (tmp_path / "a.txt").write_text("one.\ntwo.\n\nthree.\nfour.")
    documents = list(open_corpus(str(tmp_path)).documents())
    assert [document.sentences for document in documents] == [
        ("one.", "two."),
        ("three.", "four."),
        ("five.",),
        ("six seven.",),
    ]
    assert documents[1].name == f"{tmp_path / 'a.txt'}#2"


def test_files_come_sorted_by_path_at_any_depth(tmp_path: Path) -> None:
    for name in ("z.txt", "a/b.txt", "a/a.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    sentences = [document.sentences[0] for document in open_corpus(str(tmp_path)).documents()]
    assert sentences == ["a/a.txt", "a/b.txt", "z.txt"]


def test_a_mounted_config_map_is_read_once(tmp_path: Path) -> None:
    (tmp_path / "..2026_01_31").mkdir()
    (tmp_path / "..2026_01_31" / "a.txt").write_text("one.")
    (tmp_path / "..data").symlink_to("..2026_01_31")
    (tmp_path / "a.txt").symlink_to("..data/a.txt")
    assert len(list(open_corpus(str(tmp_path)).documents())) == 1


def test_a_single_file_is_a_corpus(tmp_path: Path) -> None:
    (tmp_path / "only.txt").write_text("one.\n\ntwo.\n")
    (tmp_path / "other.txt").write_text("three.\n")
    assert len(list(open_corpus(str(tmp_path / "only.txt")).documents())) == 2


def test_a_byte_order_mark_is_not_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfone.\n")
    assert next(open_corpus(str(tmp_path)).documents()).sentences == ("one.",)


def test_another_encoding_is_refused_with_file_and_byte_offset(tmp_path: Path) -> None:
    (tmp_path / "latin.txt").write_bytes(b"one.\ncaf\xe9.\n")
    with pytest.raises(InputError, match=r"latin\.txt: not UTF-8 at byte offset 8 \(byte 0xe9\)"):
        list(open_corpus(str(tmp_path)).documents())


def test_a_folder_without_text_files_says_what_was_expected(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("one.")
    with pytest.raises(InputError, match=r"no \.txt, \.jsonl or \.xml file in it; expected"):
        open_corpus(str(tmp_path))


def test_empty_files_are_no_corpus(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("\n  \n")
    with pytest.raises(InputError, match="holds no text .skipped 1 files without text.; expected"):
        list(open_corpus(str(tmp_path)).documents())


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nowhere: no such folder or file"):
        open_corpus(str(tmp_path / "nowhere"))


def test_an_unknown_builtin_is_refused() -> None:
    with pytest.raises(InputError, match="allowed: a folder, a file or 'builtin:python-docs'"):
        open_corpus("builtin:wikipedia")


def test_the_digest_follows_the_text_and_not_the_files(tmp_path: Path) -> None:
    for name, parts in (("one", ["a.\n\nb.\n"]), ("two", ["a.\n", "b.\n"]), ("three", ["a.\n", "c.\n"])):
        (tmp_path / name).mkdir()
        for number, text in enumerate(parts):
            (tmp_path / name / f"{number}.txt").write_text(text)
    one, two, three = (digest_corpus(open_corpus(str(tmp_path / name))) for name in ("one", "two", "three"))
    assert one == two != three
