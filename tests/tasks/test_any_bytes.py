"""Whatever bytes a task's file has: examples, or our error; and what csv and json write comes back as it was."""

from __future__ import annotations

import csv
import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_job.finetuning import TableColumnsSpec
from bert_job.run_stages import TaskData
from bert_job.tasks import TaskName
from bert_trainer.errors import InputError
from bert_trainer.tasks.examples import TextExample
from bert_trainer.tasks.reading import read_examples

_PIECES = st.sampled_from(
    [b"text", b"label", b"\t", b",", b"\n", b"\r\n", b'"', b"\0", b"\xff", b"0", b"1", b"-", b"{", b"}", b"[", b":"]
    + [b"sentence", b'"data"', b'"text"', b'"label"', b"\xef\xbb\xbf", b"\x1f\x8b", b"BZh9", b"\xfd7zXZ\x00", b" "]
)
CONTENT = st.lists(_PIECES, max_size=30).map(b"".join)


@pytest.mark.parametrize("suffix", ["tsv", "csv", "jsonl"])
@given(content=st.one_of(CONTENT, CONTENT.map(lambda rest: b"text\tlabel\n" + rest)))
@settings(max_examples=60)
def test_any_bytes_are_a_table_or_refused(suffix: str, content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f"a.{suffix}")
        path.write_bytes(content)
        data = TaskData(train=str(path), validation=str(path), columns=TableColumnsSpec(text="text", label="label"))
        _read_or_refuse("classification", data)


@pytest.mark.parametrize("task", ["cola", "sst-2", "squad"])
@given(content=st.one_of(CONTENT, CONTENT.map(lambda rest: b"a\t1\t\tb\n" + rest)))
@settings(max_examples=40)
def test_any_bytes_are_an_official_file_or_refused(task: TaskName, content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name in ("train.tsv", "dev.tsv", "train-v1.1.json", "dev-v1.1.json"):
            Path(folder, name).write_bytes(content)
        _read_or_refuse(task, TaskData(folder=folder))


def _read_or_refuse(task: TaskName, data: TaskData) -> None:
    try:
        found = read_examples(task, data)
    except InputError:
        return
    assert found.train.examples
    assert found.validations


# As a spreadsheet may hold it: any characters but NUL and a carriage return that stands alone.
_CELL = st.text(st.characters(blacklist_characters="\0\r", blacklist_categories=["Cs"]), max_size=12)


@given(texts=st.lists(_CELL, min_size=2, max_size=6))
@settings(max_examples=60)
def test_texts_come_back_as_csv_and_json_wrote_them(texts: list[str]) -> None:
    rows = [(text, str(number % 2)) for number, text in enumerate(texts)]
    with tempfile.TemporaryDirectory() as folder:
        table, lines = Path(folder, "a.csv"), Path(folder, "a.jsonl")
        with table.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([("text", "label"), *rows])
        lines.write_text("".join(json.dumps({"text": text, "label": label}) + "\n" for text, label in rows))
        for path in (table, lines):
            data = TaskData(train=str(path), validation=str(path), columns=TableColumnsSpec(text="text", label="label"))
            found = read_examples("classification", data).train.examples
            assert [row.first for row in found if isinstance(row, TextExample)] == texts
