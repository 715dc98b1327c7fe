"""The benchmark's text is compared with what was published before a line of it is used."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from bert_job.preparation import CorpusSpec
from bert_trainer.dataset.corpus.corpora import open_corpora
from bert_trainer.dataset.corpus.formats.mlperf_text import LIST_NAME, PUBLISHED, read_checksums
from bert_trainer.errors import InputError

PARTS = [f"part-{number:05d}-of-00500" for number in range(3)]


@pytest.fixture
def results4(tmp_path: Path) -> Path:
    folder = tmp_path / "results4"
    folder.mkdir()
    lines = []
    for name in (*PARTS, "eval.txt"):
        content = f"First of {name}. Still first.\nSecond of {name}.\n\nOther article in {name}.\n".encode()
        (folder / name).write_bytes(content)
        lines.append(f"{hashlib.md5(content).hexdigest()}  ./{name}\n")
    (tmp_path / LIST_NAME).write_text("".join(lines))
    return folder


def read(folder: Path, **options: object) -> list[tuple[str, ...]]:
    corpora = open_corpora([CorpusSpec(path=str(folder), **options)])  # type: ignore[arg-type]
    return [document.sentences for document in corpora.documents()]


def test_parts_are_recognised_in_order_without_the_evaluation_text(results4: Path) -> None:
    documents = read(results4)
    assert len(documents) == 6
    assert documents[0] == ("First of part-00000-of-00500. Still first.", "Second of part-00000-of-00500.")
    assert not any("eval" in sentence for document in documents for sentence in document)


def test_the_list_may_be_named_or_lie_in_the_folder(results4: Path, tmp_path: Path) -> None:
    (tmp_path / LIST_NAME).rename(tmp_path / "other.txt")
    assert len(read(results4, checksums=str(tmp_path / "other.txt"))) == 6
    (tmp_path / "other.txt").rename(results4 / LIST_NAME)
    assert len(read(results4)) == 6


def test_every_file_that_differs_is_named(results4: Path) -> None:
    (results4 / PARTS[0]).unlink()
    (results4 / PARTS[1]).write_text("Another text.\n")
    (results4 / "part-00007-of-00500").write_text("One too many.\n")
    (results4 / "eval.txt").write_text("Another evaluation.\n")
    with pytest.raises(InputError) as caught:
        read(results4)
    message = str(caught.value)
    assert "4 file(s) differ from" in message
    assert PARTS[2] not in message
    assert f"{PARTS[0]}: missing" in message
    assert "part-00007-of-00500: found; published: no such part" in message
    assert f"{PARTS[1]}: MD5 {hashlib.md5(b'Another text.' + bytes([10])).hexdigest()}; published: " in message
    assert "eval.txt: " in message


def test_whoever_waits_is_told_how_much_was_compared(results4: Path) -> None:
    told: list[tuple[int, int]] = []
    corpora = open_corpora([CorpusSpec(path=str(results4))], compared=lambda done, total: told.append((done, total)))
    assert len(list(corpora.documents())) == 6
    total = sum(path.stat().st_size for path in results4.iterdir())
    assert [done for done, _ in told] == sorted({done for done, _ in told})
    assert told[-1] == (total, total)
    assert len(told) == len(PARTS) + 1


def test_without_the_list_the_readme_s_files_are_compared(results4: Path, tmp_path: Path) -> None:
    (tmp_path / LIST_NAME).unlink()
    with pytest.raises(InputError) as caught:
        read(results4)
    message = str(caught.value)
    # 497 parts are missing, three and the evaluation text have other lengths.
    assert "501 file(s) differ from the benchmark's README" in message
    assert "part-00003-of-00500: missing; published: a part of the text" in message
    assert "and 491 more" in message


def test_the_same_files_can_be_read_as_text(results4: Path) -> None:
    (results4 / PARTS[1]).write_text("Another text.\n")
    documents = read(results4, format="text", lines="sentences")
    assert ("Another text.",) in documents
    # Not even then is the evaluation text among them.
    assert len(documents) == 5


def test_a_list_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_text("d41d8cd98f00b204e9800998ecf8427e  part-00000-of-00500\nnonsense\n")
    with pytest.raises(InputError, match=r"list\.txt:2: got 'nonsense'; allowed: an MD5, two spaces"):
        read_checksums(tmp_path / "list.txt")


def test_a_folder_without_parts_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one.\n")
    with pytest.raises(InputError, match="no file part-00000-of-00500 here"):
        read(tmp_path, format="mlperf")


def test_what_is_known_without_a_list_is_what_was_published() -> None:
    assert len(PUBLISHED) == 7
    assert all(len(md5) == 32 and size > 20_000_000 for size, md5 in PUBLISHED.values())
