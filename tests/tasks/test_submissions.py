"""Predictions are written as GLUE's server and SQuAD's script take them, and as tables for one's own."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from bert_job.tasks import TaskName
from bert_trainer.errors import InputError
from bert_trainer.tasks.catalog import TASKS
from bert_trainer.tasks.examples import Split, TextExample
from bert_trainer.tasks.scoring import Predictions
from bert_trainer.tasks.submissions import write_predictions
from small_tasks import spans, texts

THREE = texts(("a", None, None), ("b", None, None), ("c", None, None), name="test")


def classes(*values: int, labels: int = 2) -> Predictions:
    shares = np.full((len(values), labels), 1 / labels)
    return Predictions(np.array(values), shares)


def named(split: Split, name: str) -> Split:
    return Split(name, split.examples)


@pytest.mark.parametrize(
    ("task", "split", "file", "content"),
    [
        ("cola", "test", "CoLA.tsv", "0\t0\n1\t1\n2\t0\n"),
        ("sst-2", "test", "SST-2.tsv", "0\t0\n1\t1\n2\t0\n"),
        ("mrpc", "validation", "MRPC-validation.tsv", "0\t0\n1\t1\n2\t0\n"),
        ("qqp", "test", "QQP.tsv", "0\t0\n1\t1\n2\t0\n"),
        ("qnli", "test", "QNLI.tsv", "0\tentailment\n1\tnot_entailment\n2\tentailment\n"),
        ("rte", "test", "RTE.tsv", "0\tentailment\n1\tnot_entailment\n2\tentailment\n"),
        ("wnli", "test", "WNLI.tsv", "0\t0\n1\t1\n2\t0\n"),
        ("mnli", "test", "MNLI-m.tsv", "0\tcontradiction\n1\tentailment\n2\tcontradiction\n"),
        ("mnli", "test-mismatched", "MNLI-mm.tsv", "0\tcontradiction\n1\tentailment\n2\tcontradiction\n"),
        ("mnli", "validation", "MNLI-m-validation.tsv", "0\tcontradiction\n1\tentailment\n2\tcontradiction\n"),
        (
            "mnli",
            "validation-mismatched",
            "MNLI-mm-validation.tsv",
            "0\tcontradiction\n1\tentailment\n2\tcontradiction\n",
        ),
    ],
)
def test_files_of_glue(tmp_path: Path, task: TaskName, split: str, file: str, content: str) -> None:
    path = write_predictions(classes(0, 1, 0), named(THREE, split), TASKS[task], tmp_path / "new" / "folder")
    assert path == tmp_path / "new" / "folder" / file
    assert path.read_bytes().decode() == "index\tprediction\n" + content
    assert [each.name for each in path.parent.iterdir()] == [file]


def test_similarities_stay_between_0_and_5(tmp_path: Path) -> None:
    predictions = Predictions(np.array([5.25, -0.125, 10 / 3]), np.zeros((3, 0)))
    path = write_predictions(predictions, THREE, TASKS["sts-b"], tmp_path)
    assert path.name == "STS-B.tsv"
    assert path.read_text() == "index\tprediction\n0\t5\n1\t0\n2\t3.33333\n"
    nothing = Predictions(np.array([np.nan, np.inf, -np.inf]), np.zeros((3, 0)))
    assert write_predictions(nothing, THREE, TASKS["sts-b"], tmp_path).read_text().split() == [
        *("index", "prediction", "0", "0", "1", "5", "2", "0"),
    ]


def test_the_file_of_squad_is_an_object_of_answers_by_id(tmp_path: Path) -> None:
    split = spans(("?", "a \u20ac", []), ("?", "b", []))
    predictions = Predictions(np.array([[2, 3], [0, 0]]), np.zeros((2, 0)), ("\u20ac \ud83d", ""))
    path = write_predictions(predictions, split, TASKS["squad"], tmp_path)
    assert path.name == "predictions-validation.json"
    # Whatever encoding the reader takes.
    assert json.loads(path.read_text(encoding="ascii")) == {"q0": "\u20ac \ud83d", "q1": ""}
    assert write_predictions(predictions, named(split, "test"), TASKS["squad"], tmp_path).name == "predictions.json"


def test_ones_own_classes_have_their_probabilities_beside_them(tmp_path: Path) -> None:
    examples = (TextExample('x "1"', "a", None, None), TextExample("y\r\n2", "a", None, None))
    task = TASKS["classification"].with_labels(("bad", "good, or so"))
    predictions = Predictions(np.array([1, 0]), np.array([[0.125, 0.875], [2 / 3, 1 / 3]]))
    path = write_predictions(predictions, Split("test", examples), task, tmp_path)
    assert path.name == "predictions.csv"
    assert path.read_bytes().decode() == (
        '"id","prediction","probability_bad","probability_good, or so"\n'
        '"x ""1""","good, or so",0.125,0.875\n'
        '"y\r\n2","bad",0.666667,0.333333\n'
    )


def test_ones_own_ratings_and_answers(tmp_path: Path) -> None:
    ratings = Predictions(np.array([-1.5, np.nan, 1e-7]), np.zeros((3, 0)))
    path = write_predictions(ratings, named(THREE, "validation"), TASKS["regression"], tmp_path)
    assert path.name == "predictions-validation.csv"
    assert path.read_text() == '"id","prediction"\n"0",-1.5\n"1",nan\n"2",1e-07\n'
    split = spans(("?", "a\r\u4e2d, \ud83d", []), ("?", "b", []), name="test")
    answers = Predictions(np.array([[1, 6], [0, 0]]), np.zeros((2, 0)), ("\r\u4e2d, \ud83d", ""))
    path = write_predictions(answers, split, TASKS["spans"], tmp_path)
    with path.open(encoding="utf-8", newline="") as file:
        assert list(csv.reader(file)) == [
            ["id", "prediction", "start", "end"],
            ["q0", "\r\u4e2d, ?", "1", "6"],
            ["q1", "", "0", "0"],
        ]


def test_a_file_of_before_is_replaced_and_a_folder_that_is_a_file_is_named(tmp_path: Path) -> None:
    write_predictions(classes(0, 0, 0), THREE, TASKS["cola"], tmp_path)
    path = write_predictions(classes(1, 1, 1), THREE, TASKS["cola"], tmp_path)
    assert path.read_text().endswith("2\t1\n")
    with pytest.raises(InputError, match=r"CoLA\.tsv"):
        write_predictions(classes(1, 1, 1), THREE, TASKS["cola"], path)
