"""Files of fine-tuning tasks: GLUE's tables, SQuAD's JSON, tables of one's own in each format."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bert_job.run_stages import TaskData
from bert_trainer.tasks.reading import read_examples
from fuzz_reader import Reader
from mutations import each_changed, mutate_json

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
    cola = b"gj04\t1\t\tOur friends won't buy this.\ngj04\t0\t*\tThey drank the pub.\n"
    yield b"cola\n" + cola.replace(b"\t1\t", b"\t7\t")
    yield b"cola\n" + cola + b"gj04\t1\n\n"
    yield b"cola\n" + cola * 9 + b"gj04\n"
    rated = b"index\tgenre\tsentence1\tsentence2\tscore\n0\ta\tOne.\tTwo.\t2.5\n"
    yield from (
        b"sts-b\n" + rated.replace(b"2.5", score) for score in (b"2.5", b"7", b"nan", b"\xd9\xa3", b"1_0", b"x")
    )
    paired = b"index\tquestion\tsentence\tlabel\n0\tWho?\tHe.\tentailment\n"
    yield b"qnli\n" + paired
    yield b"qnli\n" + paired.replace(b"entailment", b"neutral")
    yield b"qnli\n" + paired + b"1\tW\n" + b"2\ta\tb\tc\td\n"
    yield b"rte\n" + paired
    yield b"sst-2\n" + cola
    yield b"sst-2\nsentence\tlabel\n"
    yield b"wnli\n"
    yield b"sst-2\nsentence\tlabel\na\0b\t1\n"
    yield b"sst-2\nsentence\tlabel\n" + b"x" * 12_000 + b"\t1\n"


def _squad(path: Path) -> object:
    folder = path.parent / "squad"
    folder.mkdir(exist_ok=True)
    for file in ("train-v1.1.json", "dev-v1.1.json"):
        (folder / file).write_bytes(path.read_bytes())
    return read_examples("squad", TaskData(folder=str(folder)))


def _squad_seeds(_: Path) -> Iterator[bytes]:
    question = {"id": "q", "question": "Who?", "answers": [{"text": "Ada", "answer_start": 0}]}
    paragraphs = [{"context": "Ada wrote it.", "qas": [question]}]
    document: dict[str, Any] = {"version": "1.1", "data": [{"title": "t", "paragraphs": paragraphs}]}
    yield json.dumps(document).encode()
    yield from each_changed(document, {"version": "v2.0", "version\x1b": 1, "data": [], "data/0/paragraphs": {}})
    asked = "data/0/paragraphs/0/qas"
    yield from each_changed(document, {asked: [question, question], f"{asked}/0/is_impossible": True})
    yield from each_changed(document, {f"{asked}/0/id": ..., f"{asked}/0/answers": [], f"{asked}/0/question": 1})
    yield from each_changed(
        document, {f"{asked}/0": [], **{f"{asked}/0/{key}": value for key, value in _ANSWERED.items()}}
    )
    lost = [{**question, "id": f"{number}", "answers": [{"text": "Eve", "answer_start": 0}]} for number in range(9)]
    yield from each_changed(document, {asked: lost})
    yield from (b"", b"{", b"[]", b"[" * 5000)


_ANSWERED = {
    "answers/0/answer_start": 1,
    "answers/0/answer_start ": 2,
    "answers/0/text": "",
    "answers/0/text ": 2,
    "answers/0": {"text": "wrote", "answer_start": 5},
    "answers": [{"text": "wrote", "answer_start": 99}],
}
"""Answers beside where they should be, and none."""


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
_SPAN = {"q": "Who?", "x": "Ada did.", "y": {"text": ["Ada"], "answer_start": [0]}, "d": "1"}
_SPOILED_ROWS = (
    b"",
    b"{",
    b"[1]\n",
    b'{"a": 1}\n',
    b"\n\n",
    _ROWS.replace(b'"yes"', b"null"),
    _ROWS.replace(b'"one"', b"[]"),
)
_SPOILED_ROWS += (_ROWS.replace(b'"yes"', b'"%b"' % (b"y" * 300)), _ROWS.replace(b'"yes"', b'"\\u009b"'), _ROWS + _ROWS)
_SPOILED_ROWS += (_ROWS.replace(b'"yes"', b"1").replace(b'"no"', b'"-2"'), _ROWS.replace(b'"yes"', b'"no"'))
_SPOILED_ROWS += (
    _ROWS.replace(b'"1"', b"true"),
    _ROWS.replace(b'"1"', b'"%b"' % (b"1" * 1100)),
    _ROWS.replace(b"yes", b" "),
)
_SPOILED_ROWS += (_ROWS.replace(b'"yes"', b"2"), _ROWS.replace(b'"1"', b'"2"'), _ROWS.replace(b'"one"', b'"\\ud800"'))


def _spans(_: Path) -> Iterator[bytes]:
    yield _ANSWERS
    answers = (
        {"text": ["did"], "answer_start": [0]},
        {"text": ["Eve"], "answer_start": [0]},
        {"text": [""]},
        "Ada",
        "Eve",
    )
    answers += ({"text": ["did"], "answer_start": [5]}, {"text": ["did"], "answer_start": [-1]}, {"text": []}, None, "")
    for answer in answers:
        yield json.dumps({**_SPAN, "y": answer}).encode()
    yield b"\n".join(json.dumps({**_SPAN, "y": "Eve", "d": number}).encode() for number in range(9))


_CSV = b'a,b,c,d\none,"two, 2",yes,1\n"three ""3""\n",four,no,2\n'
_SPOILED_CSV = (
    b"",
    b"a,b,c,d\n1,2,3\n",
    b"a,b,c\n1,2,3\n",
    b"a,a,b,c,d\n",
    b'a,b,c,d\n"x',
    b"a\rb\r",
    b"a,b,c,d\n\n\n",
)
_SPOILED_CSV += (
    b"a,b,c,d\n1,2,\xff,4\n",
    b"a,b,c,d\n1,2,\0,4\n",
    b"z" * 100 + b",y" * 40 + b"\n1",
    b'a,b,c,d\n1,2,"3" 4,5\n',
)
_SPOILED_CSV += (b"a,b,c,d\n" + b"x" * 11_000 + b",2,yes,4\n", _CSV + b"\n" + _CSV)
# A few bytes, and a line or a text longer than is read.
_SPOILED_CSV += tuple(gzip.compress(_CSV.replace(b"one", b"x" * size), mtime=0) for size in (1 << 20, 9 << 20))
_TSV = b"a\tb\tc\td\none\ttwo\t1.5\t1\nthree\tfour\t-2\t2\n"
_SPOILED_TSV = tuple(part.replace(b",", b"\t") for part in _SPOILED_CSV)
_SPOILED_TSV += (
    _TSV.replace(b"\t2\n", b"\t1\n"),
    _TSV.replace(b"\t2\n", b"\t\n"),
    _TSV.replace(b"\t2\n", b"\t%b\n" % (b"2" * 1100)),
)
_SPOILED_TSV += (
    _TSV.replace(b"\t2\n", b"\t\xc2\x9b\n"),
    b"a\tb\tc\td\n",
    gzip.compress(_TSV.replace(b"one", b"x" * (9 << 20)), mtime=0),
)
_SPOILED_TSV += (
    _TSV.replace(b"one", b'"o ""n"" e"') + b"\n\n",
    _TSV.replace(b"1.5", b"nan"),
    _TSV.replace(b"1.5", b"1e999"),
)
_COMMON = ("bert_trainer.tasks.delimited", "bert_trainer.tasks.records")
_TABLES = "bert_trainer.tasks.tables"
_OF_LINES = ("read_tsv", "read_csv", "lines", "_read_header", "_is_quoted")
_OF_SPANS = ("_spans", "_answers", "_start")
_TO_PREDICT = ("read_unlabelled", "read_lines_as_texts")
_OF_CLASSES = ("_labels_in", "_in_order", "_given_labels", "label", "_class")
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
        seeds=lambda _: iter([_ROWS, *_SPOILED_ROWS]),
        modules=(*_COMMON, _TABLES),
        leaves_out=(*_OF_LINES, *_OF_SPANS, *_TO_PREDICT, "_rating", "_given_labels"),
        mutate=mutate_json,
        file_name="table.jsonl",
    ),
    Reader(
        name="tables-csv",
        read=_table("classification", _TEXTS),
        seeds=lambda _: iter([_CSV, *_SPOILED_CSV]),
        modules=_COMMON,
        leaves_out=("read_objects", "read_tsv", "_is_quoted"),
        file_name="table.csv",
    ),
    Reader(
        name="tables-tsv",
        read=_table("regression", _TEXTS),
        seeds=lambda _: iter([_TSV, *_SPOILED_TSV]),
        modules=(*_COMMON, _TABLES),
        leaves_out=("read_objects", "read_csv", "lines", *_OF_CLASSES, *_OF_SPANS, *_TO_PREDICT),
        file_name="table.tsv",
    ),
    Reader(
        name="tables-of-spans",
        read=_table("spans", _SPANS),
        seeds=_spans,
        modules=("bert_trainer.tasks.answers", _TABLES),
        leaves_out=(*_OF_CLASSES, *_TO_PREDICT, "_rating", "_texts"),
        mutate=mutate_json,
        file_name="table.jsonl",
    ),
)
