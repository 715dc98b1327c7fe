"""Files of tasks that would fill memory, hang or reach a terminal are refused by name, and little of them is read."""

from __future__ import annotations

import gzip
import os
import re
import tracemalloc
from pathlib import Path

import pytest

from bert_job.run_stages import TaskData
from bert_trainer.errors import InputError
from bert_trainer.tasks import delimited
from bert_trainer.tasks import squad as squad_files
from bert_trainer.tasks.reading import read_examples
from task_refusals import TABLE, TEXT, glue, one_question, refusal, squad, table_refusal


@pytest.mark.parametrize(
    ("suffix", "head", "tail", "said"),
    [
        (".tsv", b"text\tlabel\none\tx\n", b"\ty\n", "train.tsv:3: got a line of 8 MiB or more, from byte 17 on"),
        (".csv", b'text,label\none,x\n"', b'",y\n', "train.csv:3: got a line of 8 MiB or more, from byte 17 on"),
        (".jsonl", b'{"text": "', b'", "label": "y"}\n', "train.jsonl:1: got a line of 8 MiB or more, from byte 0 on"),
    ],
)
def test_a_field_of_100_mb_is_named_in_little_memory(
    tmp_path: Path, suffix: str, head: bytes, tail: bytes, said: str
) -> None:
    path = tmp_path / f"train{suffix}"
    with path.open("wb") as file:
        file.write(head)
        for _ in range(100):
            file.write(b"a" * 1_000_000)
        file.write(tail)
    tracemalloc.start()
    with pytest.raises(InputError, match=re.escape(said)):
        read_examples("classification", TaskData(train=str(path), validation=str(path), columns=TEXT))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 40 << 20


def test_a_quotation_mark_that_is_not_closed_takes_no_more_than_a_row(tmp_path: Path) -> None:
    content = b'text,label\none,x\n"two,y\n' + (b"three," + b"a" * 10_000 + b"\n") * 2_000
    message = table_refusal(tmp_path, content, suffix=".csv")
    assert message.startswith("train.csv:3: got a row of 8 MiB or more, which goes on in line 84")
    assert message.endswith("hint: a quoted field that begins in this row is perhaps not closed")


def test_a_small_file_that_decompresses_to_much_is_read_no_further_than_that(tmp_path: Path) -> None:
    content = gzip.compress(b"text\tlabel\n" + b"a" * 50_000_000)
    assert len(content) < 100_000
    assert "train.tsv.gz:2: got a line of 8 MiB or more" in table_refusal(tmp_path, content, suffix=".tsv.gz")


@pytest.mark.parametrize(("limit", "value"), [("MAX_ROWS", 2), ("MAX_TEXT_BYTES", 20)])
def test_more_than_memory_should_hold_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, value: int
) -> None:
    monkeypatch.setattr(delimited, limit, value)
    assert table_refusal(tmp_path, TABLE).startswith("train.tsv:3: got more than ")


def test_a_text_that_no_model_reads_is_named(tmp_path: Path) -> None:
    long = "a" * (1 << 20)
    said = "got a text of 1,048,577 characters; allowed: 1,048,576"
    assert f"train.tsv:3: {said}" in table_refusal(tmp_path, f"text\tlabel\n{long}\tx\n{long}a\ty\n".encode())
    folder = glue(tmp_path / "glue", "SST-2", dev_tsv=f"sentence\tlabel\n{long}a\t1\n")
    assert f"dev.tsv:2: {said}" in refusal("sst-2", folder)
    document = one_question()
    document["data"][0]["paragraphs"][0]["context"] = f"{long}a"
    message = refusal("squad", squad(tmp_path / "squad", document))
    assert f"train-v1.1.json: data[0].paragraphs[0].context: {said}" in message


def test_a_document_of_squad_is_read_up_to_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(squad_files, "_MAX_BYTES", 1 << 20)
    folder = squad(tmp_path, " " * (1 << 21))
    assert refusal("squad", folder).startswith("train-v1.1.json: got more than 1 MiB; allowed: files of SQuAD 1.1")


def test_pipes_devices_and_folders_are_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.tsv")
    (tmp_path / "folder.tsv").mkdir()
    for path in (str(tmp_path / "pipe.tsv"), str(tmp_path / "folder.tsv"), "/dev/zero"):
        assert table_refusal(tmp_path, TABLE, validation=TABLE, train=path).startswith(
            f"{Path(path).name if path != '/dev/zero' else path}: got a folder, a pipe or a device; allowed: a file"
        )
    assert table_refusal(tmp_path, TABLE, train="/none.tsv").startswith("/none.tsv: no such file; allowed: a file that")
    folder = glue(tmp_path / "glue", "SST-2")
    (folder / "test.tsv").unlink()
    os.mkfifo(folder / "test.tsv")
    assert refusal("sst-2", folder).startswith("test.tsv: got a folder, a pipe or a device")


def test_what_a_terminal_would_obey_is_escaped(tmp_path: Path) -> None:
    message = table_refusal(
        tmp_path, b"text\tlabel\none\tx\n", validation=b"text\tlabel\none\t\xe2\x80\xae\n", labels=("x", "y")
    )
    assert "got the label '\\u202e'" in message
    assert "\u202e" not in message
