"""Tables of one's own are read by the names of their columns."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from bert_job.finetuning import TableColumnsSpec
from bert_job.run_stages import TaskData
from bert_job.tasks import TaskName
from bert_trainer.errors import InputError
from bert_trainer.tasks.examples import SpanExample, TaskExamples, TextExample
from bert_trainer.tasks.reading import read_examples

TEXT = TableColumnsSpec(text="text", label="label")
SPANS = TableColumnsSpec(question="question", context="context", answer="answer")


def read(
    folder: Path,
    task: TaskName,
    train: str,
    validation: str | None = None,
    *,
    test: str | None = None,
    columns: TableColumnsSpec = TEXT,
    suffix: str = ".tsv",
    labels: tuple[str, ...] = (),
) -> TaskExamples:
    contents = {"train": train, "validation": train if validation is None else validation, "test": test}
    paths = {}
    for name, content in contents.items():
        if content is not None:
            paths[name] = folder / f"{name}{suffix}"
            paths[name].write_bytes(content.encode())
    named = {name: str(path) for name, path in paths.items()}
    return read_examples(task, TaskData(**named, columns=columns, labels=labels))  # type: ignore[arg-type]


def test_classes_are_numbered_in_the_order_of_their_names(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        "classification",
        'id\tlabel\ttext\nx\tship\tIt "floats\ny\tboat\tIt rows\n',
        "text\tlabel\tid\nIt sails\tship\tz\n",
        test="text\nIt sinks\nIt swims\n",
    )
    assert found.task.labels == ("boat", "ship")
    assert found.train.examples == (TextExample("0", 'It "floats', None, 1), TextExample("1", "It rows", None, 0))
    assert found.validations[0].examples == (TextExample("0", "It sails", None, 1),)
    assert found.tests[0].examples == (
        TextExample("0", "It sinks", None, None),
        TextExample("1", "It swims", None, None),
    )


def test_classes_that_are_numbers_are_ordered_as_numbers(tmp_path: Path) -> None:
    found = read(tmp_path, "classification", "text\tlabel\na\t10\nb\t9\nc\t-1\n")
    assert found.task.labels == ("-1", "9", "10")


def test_classes_are_numbered_as_they_are_named(tmp_path: Path) -> None:
    found = read(tmp_path, "classification", "text\tlabel\na\tlow\nb\thigh\n", labels=("low", "middle", "high"))
    assert found.task.labels == ("low", "middle", "high")
    assert [row.label for row in found.train.examples if isinstance(row, TextExample)] == [0, 2]


def test_pairs_of_csv_may_hold_commas_quotation_marks_and_line_breaks(tmp_path: Path) -> None:
    columns = TableColumnsSpec(text="first", text_pair="second", label="same", id="key")
    found = read(
        tmp_path,
        "classification",
        '\ufefffirst,second,same,key\r\n"One, ""two""","three\r\nfour",yes,a\r\n,five,no,b\r\n',
        columns=columns,
        suffix=".csv",
    )
    assert found.train.examples == (
        TextExample("a", 'One, "two"', "three\nfour", 1),
        TextExample("b", "", "five", 0),
    )


def test_json_lines_may_have_numbers_for_labels_and_identifiers(tmp_path: Path) -> None:
    columns = TableColumnsSpec(text="text", label="label", id="id")
    lines = [
        {"text": "up\tand\nup", "label": 3, "id": 70, "more": [1]},
        {"text": "down \ud83d", "label": "2", "id": "b"},
    ]
    content = "".join(json.dumps(line) + "\n" for line in lines) + "\n"
    found = read(tmp_path, "classification", content, columns=columns, suffix=".jsonl")
    assert found.task.labels == ("2", "3")
    assert found.train.examples == (
        TextExample("70", "up\tand\nup", None, 1),
        TextExample("b", "down �", None, 0),
    )


def test_labels_of_json_may_be_true_and_false(tmp_path: Path) -> None:
    content = '{"text": "a", "label": true}\n{"text": "b", "label": false}\n'
    assert read(tmp_path, "classification", content, suffix=".jsonl").task.labels == ("false", "true")


def test_an_empty_text_is_one(tmp_path: Path) -> None:
    columns = TableColumnsSpec(text="text", text_pair="second", label="label")
    found = read(tmp_path, "classification", "text\tsecond\tlabel\n\t\tx\na\tb\ty\n", columns=columns)
    assert found.train.examples[0] == TextExample("0", "", "", 0)
    found = read(
        tmp_path,
        "classification",
        "text\tsecond\tlabel\na\tb\tx\nc\td\ty\n",
        columns=columns,
        test="text\tsecond\n\t\n",
    )
    assert found.tests[0].examples == (TextExample("0", "", "", None),)


def test_ratings_are_numbers(tmp_path: Path) -> None:
    found = read(tmp_path, "regression", "text\tlabel\na\t-1.5\nb\t2e1\n")
    assert [row.label for row in found.train.examples if isinstance(row, TextExample)] == [-1.5, 20.0]


def test_compressed_tables_are_read_and_a_format_may_be_named(tmp_path: Path) -> None:
    train, validation = tmp_path / "train.csv.gz", tmp_path / "validation.txt"
    train.write_bytes(gzip.compress(b"text,label\na,x\nb,y\n"))
    validation.write_text("text,label\nc,x\n")
    data = TaskData(train=str(train), validation=str(validation), columns=TEXT)
    with pytest.raises(InputError, match=r"validation\.txt: its suffix names no format; allowed: \.tsv"):
        read_examples("classification", data)
    found = read_examples("classification", data.model_copy(update={"format": "csv"}))
    assert len(found.train.examples) == 2


def test_an_answer_without_a_start_is_its_first_occurrence(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        "spans",
        "question\tcontext\tanswer\nWho?\tAnn met Ann.\tAnn\n",
        test="context\tquestion\nEve left.\tWho left?\n",
        columns=SPANS,
    )
    assert found.train.examples == (SpanExample("0", "Who?", "Ann met Ann.", (("Ann", 0),)),)
    assert found.tests[0].examples == (SpanExample("0", "Who left?", "Eve left.", ()),)


def test_a_start_chooses_among_occurrences(tmp_path: Path) -> None:
    columns = SPANS.model_copy(update={"answer_start": "start"})
    content = "question\tcontext\tanswer\tstart\nWho?\tAnn met Ann.\tAnn\t8\n"
    found = read(tmp_path, "spans", content, columns=columns)
    assert found.train.examples == (SpanExample("0", "Who?", "Ann met Ann.", (("Ann", 8),)),)
    assert found.notes[1:] == ()


@pytest.mark.parametrize(("start", "found_at"), [(1, 1), (-1, 0), (-2, 0), (5, 4), (6, 4)])
def test_the_occurrence_nearest_to_a_start_is_taken(tmp_path: Path, start: int, found_at: int) -> None:
    columns = SPANS.model_copy(update={"answer_start": "start"})
    content = json.dumps({"question": "Who?", "context": "nnn n", "answer": "n", "start": start}) + "\n"
    found = read(tmp_path, "spans", content, columns=columns, suffix=".jsonl")
    assert found.train.examples == (SpanExample("0", "Who?", "nnn n", (("n", found_at),)),)


@pytest.mark.parametrize(
    "answer",
    [
        {"answer": ["Ann", "Ann met"], "start": [8, 0]},
        {"answer": {"text": ["Ann", "Ann met"], "answer_start": [8, 0]}},
    ],
    ids=["lists", "as converted SQuAD has it"],
)
def test_json_lines_may_have_several_answers(tmp_path: Path, answer: dict[str, object]) -> None:
    columns = SPANS.model_copy(update={"answer_start": "start"} if "start" in answer else {})
    content = json.dumps({"question": "Who?", "context": "Ann met Ann.", **answer}) + "\n"
    found = read(tmp_path, "spans", content, columns=columns, suffix=".jsonl")
    assert found.train.examples == (SpanExample("0", "Who?", "Ann met Ann.", (("Ann", 8), ("Ann met", 0))),)


def test_what_a_person_should_know_is_noted(tmp_path: Path) -> None:
    content = 'text\tlabel\n\n"He said ""no"""\tx\nb\ty\n\n'
    found = read(tmp_path, "classification", content, "text\tlabel\nc\tx\n")
    path = tmp_path / "train.tsv"
    assert found.notes == (
        f"{path}: empty lines skipped: 2",
        f"{path}: lines with quoted fields: 1; in TSV the marks are part of the text",
    )
    data = TaskData(train=str(path), validation=str(path), columns=TEXT)
    assert read_examples("classification", data).notes[0] == (
        f"{path}: is trained on and evaluated on: its metrics say nothing about other texts"
    )
