"""A table without a file to evaluate on is split: always the same rows, of every class, and no text on both sides.

Inputs: tables with planted repetitions. Observed: the rows of both splits, and the note.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from bert_job.finetuning import TableColumnsSpec
from bert_job.run_stages import TaskData
from bert_job.tasks import TaskName
from bert_trainer.errors import InputError
from bert_trainer.tasks.examples import SpanExample, TaskExamples, TextExample, span_examples, text_examples
from bert_trainer.tasks.reading import read_examples

TEXT = TableColumnsSpec(text="text", label="label")
SPANS = TableColumnsSpec(question="question", context="context", answer="answer")


def read(path: Path, lines: list[str], task: TaskName = "classification") -> TaskExamples:
    path.write_text("\n".join(lines) + "\n")
    columns = SPANS if task == "spans" else TEXT
    return read_examples(task, TaskData(train=str(path), columns=columns))


def rows_of(count: int) -> list[str]:
    """Return rows of two classes, one of which is rare, each text twice."""
    texts = [f"text {number}\t{'rare' if number % 20 == 0 else 'usual'}" for number in range(count)]
    return [row for text in texts for row in (text, text)]


def texts_of(examples: list[TextExample]) -> list[tuple[str, object]]:
    return [(example.first, example.label) for example in examples]


def test_a_tenth_of_every_class_is_held_out_and_no_text_is_on_both_sides(tmp_path: Path) -> None:
    rows = rows_of(400)
    found = read(tmp_path / "a.tsv", ["text\tlabel", *rows])
    train, held = texts_of(text_examples(found.train)), texts_of(text_examples(found.validations[0]))
    assert not {text for text, _ in train} & {text for text, _ in held}
    everything = [(row.split("\t")[0], int(row.endswith("usual"))) for row in rows]
    assert sorted(train + held) == sorted(everything)
    # Of 20 rare texts and 380 usual ones, each twice.
    labels = [label for _, label in held]
    assert (labels.count(0), labels.count(1)) == (2 * 2, 2 * 38)
    (note,) = found.notes
    assert note.endswith(
        "no validation file is named: 80 of 800 rows are held out to evaluate on, the same in every run"
    )


def test_which_rows_follows_from_their_texts_and_not_from_their_order(tmp_path: Path) -> None:
    rows = rows_of(100)
    first = read(tmp_path / "a.tsv", ["text\tlabel", *rows])
    random.Random(1).shuffle(rows)
    second = read(tmp_path / "b.tsv", ["text\tlabel", *rows])
    held = [sorted(texts_of(text_examples(found.validations[0]))) for found in (first, second)]
    assert held[0] == held[1] != []


def test_small_classes_give_one_text_and_the_only_text_of_a_class_is_learnt_from(tmp_path: Path) -> None:
    rows = [f"text {number}\t{number % 3}" for number in range(27)] + ["alone\t3"]
    found = read(tmp_path / "a.tsv", ["text\tlabel", *rows])
    assert sorted(label for _, label in texts_of(text_examples(found.validations[0]))) == [0, 1, 2]
    assert ("alone", 3) in texts_of(text_examples(found.train))


def test_numbers_to_predict_are_no_classes(tmp_path: Path) -> None:
    found = read(tmp_path / "a.tsv", ["text\tlabel", *(f"text {n}\t{n / 7}" for n in range(50))], "regression")
    assert (len(found.train.examples), len(found.validations[0].examples)) == (45, 5)


def test_questions_about_one_context_stay_together(tmp_path: Path) -> None:
    rows = [
        json.dumps({"question": f"q{n}", "context": f"the answer is {n // 5}", "answer": "answer"}) for n in range(200)
    ]
    found = read(tmp_path / "a.jsonl", rows, "spans")
    train, held = span_examples(found.train), span_examples(found.validations[0])
    assert (len(train), len(held)) == (180, 20)
    assert not {row.context for row in train} & {row.context for row in held}
    assert all(isinstance(row, SpanExample) for row in train)


def test_two_texts_are_enough_and_one_is_not(tmp_path: Path) -> None:
    found = read(tmp_path / "a.tsv", ["text\tlabel", "one\tx", "two\ty"])
    assert (len(found.train.examples), len(found.validations[0].examples)) == (1, 1)
    assert any("labels without a row to learn from" in note for note in found.notes)
    with pytest.raises(InputError, match="got one text; allowed: two or more where no validation file is named"):
        read(tmp_path / "b.tsv", ["text\tlabel", "one\tx", "one\ty"])
