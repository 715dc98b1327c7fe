"""Files of fine-tuning tasks: GLUE's tables, SQuAD's JSON, tables of one's own in each format."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

from fuzz_reader import Reader
from mutations import mutate_json

from bert_trainer.config.finetuning import TaskData
from bert_trainer.tasks.reading import read_examples

_FIXTURES = Path(__file__).parents[2] / "tests/fixtures/tasks"


def _glue(path: Path) -> object:
    """Read both files of a task, of which one is the input, named by its first line: the task."""
    task, _, content = path.read_bytes().partition(b"\n")
    name = task.decode(errors="replace")
    folder = path.parent / "glue"
    folder.mkdir(exist_ok=True)
    for file in ("train.tsv", "dev.tsv", "dev_matched.tsv"):
        (folder / file).write_bytes(content)
    return read_examples(name if name in _GLUE else "sst-2", TaskData(folder=str(folder)))  # type: ignore[arg-type]


_GLUE = ("cola", "mnli", "mrpc", "qnli", "qqp", "rte", "sst-2", "sts-b", "wnli")


def _glue_seeds(_: Path) -> Iterator[bytes]:
    for folder in sorted((_FIXTURES / "glue").iterdir()):
        for file in sorted(folder.glob("*.tsv")):
            name = folder.name.lower()
            yield f"{name if name in _GLUE else 'sst-2'}\n".encode() + file.read_bytes()[:3000]


def _squad(path: Path) -> object:
    folder = path.parent / "squad"
    folder.mkdir(exist_ok=True)
    for file in ("train-v1.1.json", "dev-v1.1.json"):
        (folder / file).write_bytes(path.read_bytes())
    return read_examples("squad", TaskData(folder=str(folder)))


def _squad_seeds(_: Path) -> Iterator[bytes]:
    question = {"id": "q", "question": "Who?", "answers": [{"text": "Ada", "answer_start": 0}]}
    paragraphs = [{"context": "Ada wrote it.", "qas": [question]}]
    yield json.dumps({"version": "1.1", "data": [{"title": "t", "paragraphs": paragraphs}]}).encode()


def _table(task: str, columns: dict[str, str]) -> Callable[[Path], object]:
    def read(path: Path) -> object:
        other = path.with_name(f"other{path.suffix}")
        other.write_bytes(path.read_bytes())
        data = TaskData.model_validate({"train": str(path), "validation": str(other), "columns": columns})
        return read_examples(task, data)  # type: ignore[arg-type]

    return read


_TEXTS = {"text": "a", "text_pair": "b", "label": "c", "id": "d"}
_SPANS = {"question": "q", "context": "x", "answer": "y", "id": "d"}
_ROWS = b'{"a": "one", "b": "two", "c": "yes", "d": "1"}\n{"a": "three", "b": "four", "c": "no", "d": "2"}\n'
_ANSWERS = b'{"q": "Who?", "x": "Ada did.", "y": {"text": ["Ada"], "answer_start": [0]}, "d": "1"}\n'
_COMMON = ("bert_trainer.tasks.delimited", "bert_trainer.tasks.records")
READERS = (
    Reader(
        name="glue-tables",
        read=_glue,
        seeds=_glue_seeds,
        modules=("bert_trainer.tasks.glue", "bert_trainer.tasks.delimited"),
        leaves_out=("read_csv", "lines", "read_objects", "has_pairs", "_read_original_mrpc", "whole_characters"),
    ),
    Reader(
        name="squad",
        read=_squad,
        seeds=_squad_seeds,
        modules=("bert_trainer.tasks.squad", "bert_trainer.tasks.answers"),
        mutate=mutate_json,
    ),
    Reader(
        name="tables-json-lines",
        read=_table("classification", _TEXTS),
        seeds=lambda _: iter([_ROWS]),
        modules=("bert_trainer.tasks.records",),
        leaves_out=("_is_quoted", "_read_header"),
        mutate=mutate_json,
        file_name="table.jsonl",
    ),
    Reader(
        name="tables-csv",
        read=_table("classification", _TEXTS),
        seeds=lambda _: iter([b'a,b,c,d\none,"two, 2",yes,1\n"three ""3""\n",four,no,2\n']),
        modules=_COMMON,
        leaves_out=("read_objects",),
        file_name="table.csv",
    ),
    Reader(
        name="tables-tsv",
        read=_table("regression", _TEXTS),
        seeds=lambda _: iter([b"a\tb\tc\td\none\ttwo\t1.5\t1\nthree\tfour\t-2\t2\n"]),
        modules=("bert_trainer.tasks.records",),
        leaves_out=("_objects",),
        file_name="table.tsv",
    ),
    Reader(
        name="tables-of-spans",
        read=_table("spans", _SPANS),
        seeds=lambda _: iter([_ANSWERS]),
        modules=("bert_trainer.tasks.answers",),
        mutate=mutate_json,
        file_name="table.jsonl",
    ),
)
