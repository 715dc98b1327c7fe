"""Every file of a folder is read or named, whatever it is called, and tables are no text."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from bert_job.preparation import CorpusSpec
from bert_trainer.dataset.__main__ import main
from bert_trainer.dataset.corpus.corpora import open_corpora
from bert_trainer.dataset.corpus.languages import ALLOWED
from bert_trainer.errors import InputError

GLUE = "gj04\t1\t\tOur friends won't buy this analysis.\ngj04\t0\t*\tThe more we study verbs.\n" * 20


def sentences(path: Path, **options: object) -> list[tuple[str, ...]]:
    corpora = open_corpora([CorpusSpec(path=str(path), **options)])  # type: ignore[arg-type]
    return [document.sentences for document in corpora.documents()]


def write(folder: Path, name: bytes | str, text: str = "one here.\n") -> None:
    Path(os.fsdecode(os.path.join(os.fsencode(folder), os.fsencode(name)))).write_text(text)


def test_a_name_may_hold_a_line_break_or_bytes_that_are_no_utf_8(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, "a\nb.txt", "one here.\n")
    write(tmp_path, b"caf\xe9.txt", "two here.\n")
    write(tmp_path, "c\nd.jsonl", '{"text": "three here."}\n')
    write(tmp_path, b"\xff\xfe", "four here.\n")
    assert sentences(tmp_path) == [("one here.",), ("three here.",), ("two here.",)]
    assert main(["read", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "a\\nb.txt#1" in shown
    assert "caf\\udce9.txt#1" in shown
    assert "skipped 1 file(s) whose names stand for no format that is read: \\udcff\\udcfe" in caplog.text


@pytest.mark.parametrize("name", ["a\nb.txt", b"caf\xe9.txt"])
def test_a_dataset_is_built_from_such_names(tmp_path: Path, name: bytes | str) -> None:
    (tmp_path / "text").mkdir()
    documents = "\n\n".join(f"document {number} says {number * 7} words.\nit ends here." for number in range(40))
    write(tmp_path / "text", name, documents)
    command = ["build", "--text", str(tmp_path / "text"), "--output", str(tmp_path / "data"), "--length", "32:5"]
    assert main([*command, "--vocabulary-size", "64", "--processes", "1"]) == 0
    # The same names are the same text.
    assert main([*command, "--vocabulary-size", "64", "--processes", "1"]) == 0


def test_what_is_not_read_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("a.txt", "b.md", "c.text", "d.png", "e.tsv", ".hidden.txt", "f.json"):
        write(tmp_path, name)
    (tmp_path / "gone.txt").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "pipe.txt")
    (tmp_path / "empty.txt").write_text("\n")
    with caplog.at_level(logging.INFO, logger="bert_trainer.dataset"):
        assert len(sentences(tmp_path)) == 2
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert warnings == [
        f"{tmp_path}: skipped 2 file(s) that are broken links or not regular files: gone.txt, pipe.txt",
        f"{tmp_path}: skipped 4 file(s) whose names stand for no format that is read: b.md, d.png, e.tsv, f.json",
        f"{tmp_path}: skipped 1 files without text (empty.txt)",
    ]
    for path in sorted(tmp_path.iterdir()):
        assert str(path) in caplog.text, path


def test_of_many_files_the_first_are_named_and_every_one_to_whoever_reads(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, "a.txt")
    for number in range(25):
        write(tmp_path, f"page{number:02d}.md")
    assert main(["read", str(tmp_path)]) == 0
    told = caplog.text
    assert "skipped 25 file(s) whose names stand for no format that is read: page00.md" in told
    assert "page09.md and 15 more" in told
    assert f"{tmp_path}/page24.md: skipped" in told


def test_a_folder_without_text_says_what_is_there(tmp_path: Path) -> None:
    write(tmp_path, "notes.md")
    with pytest.raises(InputError, match=r"no \.txt, \.jsonl or \.xml file in it; expected: .*; there are notes\.md"):
        sentences(tmp_path)


@pytest.mark.parametrize("options", [{}, {"format": "text"}], ids=["auto", "as text"])
def test_a_table_of_glue_is_refused(tmp_path: Path, options: dict[str, object]) -> None:
    write(tmp_path, "train.tsv", GLUE)
    with pytest.raises(InputError, match=r"train\.tsv: .*(table|4 columns)[\s\S]*cut -f 4"):
        sentences(tmp_path / "train.tsv", **options)


def test_a_table_is_told_by_its_columns_whatever_it_is_called(tmp_path: Path) -> None:
    write(tmp_path, "train.txt", GLUE)
    with pytest.raises(InputError, match=r"train\.txt: 40 of its first 40 lines have 4 columns, parted by tabs"):
        sentences(tmp_path)
    assert len(sentences(tmp_path, lines="sentences")[0]) == 40


def test_text_with_tabs_is_text(tmp_path: Path) -> None:
    # Indented paragraphs, and a table of contents in front of prose.
    write(tmp_path, "a.txt", "\tOne here.\n" * 20)
    write(tmp_path, "b.txt", "Chapter\t1\n" * 15 + "A sentence follows here.\n" * 20)
    assert [len(document) for document in sentences(tmp_path)] == [20, 35]


@pytest.mark.parametrize("name", ["a.json", "a.csv", "a.html"])
def test_a_file_that_is_no_prose_is_not_taken_for_it(tmp_path: Path, name: str) -> None:
    write(tmp_path, name, "[\n1,2\n]\n")
    with pytest.raises(InputError, match=rf"{name}: .*; expected: "):
        sentences(tmp_path / name)
    assert sentences(tmp_path / name, format="text")


@pytest.mark.parametrize("code", ["xx", "deu", "x-klingon", "english"])
def test_an_unknown_language_is_refused_with_those_that_are_allowed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], code: str
) -> None:
    write(tmp_path, "a.txt")
    with pytest.raises(SystemExit):
        main(["read", f"{tmp_path},language={code}"])
    assert f"got '{code}'; allowed" in capsys.readouterr().err
    if len(code) < 4:
        with pytest.raises(InputError, match=rf"language: got '{code}'; allowed, .*aa ab .* zh zu abs .* zza"):
            sentences(tmp_path, language=code)


def test_all_languages_are_written_once_and_regions_are_allowed(tmp_path: Path) -> None:
    assert len(set(ALLOWED)) == len(ALLOWED) > 350
    write(tmp_path, "a.txt")
    for code in ("en", "de", "zh-Hant", "pt-BR", "yue"):
        assert sentences(tmp_path, language=code) == [("one here.",)]
