"""``bert-data read`` shows what a build would read, and writes it so that it reads the same again."""

from __future__ import annotations

from pathlib import Path

import pytest

from bert_job.preparation import CorpusSpec
from bert_trainer.dataset.__main__ import main
from bert_trainer.dataset.corpus.corpora import open_corpora
from small_dumps import dump, page


def read_all(path: Path) -> list[tuple[str, ...]]:
    return [document.sentences for document in open_corpora([CorpusSpec(path=str(path))]).documents()]


@pytest.fixture
def wiki(tmp_path: Path) -> Path:
    path = tmp_path / "wiki.xml"
    path.write_bytes(
        dump(page("A", "One here. Two here. Three here."), page("B", "Four here.\n\nFive here. Six here."))
    )
    return path


def test_documents_are_shown_and_counted(wiki: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["read", str(wiki), "--documents", "1", "--sentences", "2", "--processes", "1"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"{wiki}#A\n    One here.\n    Two here.\n    (1 more sentences)\n")
    assert "Four" not in shown
    assert f"{wiki}: 2 documents, 6 sentences, 0.0 MB of text in " in shown


def test_what_is_written_reads_the_same_again(wiki: Path, tmp_path: Path) -> None:
    written = tmp_path / "text.txt"
    assert main(["read", str(wiki), "--output", str(written), "--processes", "1"]) == 0
    assert read_all(written) == read_all(wiki)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["text.txt", "wiki.xml"]


def test_a_failure_leaves_no_text_behind(wiki: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wiki.write_bytes(wiki.read_bytes()[:-200])
    written = tmp_path / "text.txt"
    assert main(["read", str(wiki), "--output", str(written), "--processes", "1"]) == 2
    assert "cut off" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["wiki.xml"]


def test_a_file_that_is_there_is_not_written_over(
    wiki: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written = tmp_path / "text.txt"
    written.write_text("mine")
    assert main(["read", str(wiki), "--output", str(written)]) == 2
    assert "text.txt: exists" in capsys.readouterr().err
    assert written.read_text() == "mine"


def test_fields_of_a_corpus_may_be_given(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"body": "One here. Two here."}\n')
    assert main(["read", f"{path},text_field=body"]) == 0
    assert "1 documents, 2 sentences" in capsys.readouterr().out
