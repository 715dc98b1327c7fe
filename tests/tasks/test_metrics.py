"""Metrics of every task on predictions worked out by hand, and the baseline of always giving the same."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from bert_trainer.tasks.catalog import TASKS, Task
from bert_trainer.tasks.examples import Split, TaskExamples
from bert_trainer.tasks.rows import make_rows
from bert_trainer.tasks.scoring import Predictions, majority_scores, note_on_predictions, predict, score
from small_tasks import finetune_stage, spans, texts, vocabulary_of

WORDS = vocabulary_of("a", "b")
OWN = TASKS["classification"].with_labels(("bad", "fair", "good"))


def labelled(*labels: float, name: str = "validation") -> Split:
    return texts(*(("a", None, label) for label in labels), name=name)


def scores_of(task: Task, labels: list[Any], outputs: list[list[float]]) -> dict[str, float]:
    split, stage = labelled(*labels), finetune_stage(task=task.name)
    rows = make_rows(split, task, stage, WORDS, lower_case=True)
    return score(predict(rows, split, task, np.array(outputs, dtype=np.float32), stage), split, task)


def logits(*classes: int, of: int = 2) -> list[list[float]]:
    return [[3.0 if number == chosen else -1.0 for number in range(of)] for chosen in classes]


def test_accuracy_and_f1_of_paraphrases() -> None:
    # Right 3 of 5. Of class 1: 2 found, 1 too many, 1 missed: F1 = 2 * 2 / (2 * 2 + 1 + 1).
    found = scores_of(TASKS["mrpc"], [1, 1, 1, 0, 0], logits(1, 1, 0, 1, 0))
    assert found == {"f1": pytest.approx(2 / 3), "accuracy": pytest.approx(0.6)}
    assert list(found) == ["f1", "accuracy"]
    assert list(scores_of(TASKS["qqp"], [1, 0], logits(1, 0))) == ["accuracy", "f1"]


def test_matthews_correlation_of_acceptability() -> None:
    # TP 2, TN 1, FP 1, FN 1: (2 * 1 - 1 * 1) / sqrt(3 * 3 * 2 * 2).
    found = scores_of(TASKS["cola"], [1, 1, 1, 0, 0], logits(1, 1, 0, 1, 0))
    assert found == {"matthews_correlation": pytest.approx(1 / 6), "accuracy": pytest.approx(0.6)}


def test_three_classes_and_the_mean_f1_of_ones_own() -> None:
    assert scores_of(TASKS["mnli"], [0, 1, 2, 2], logits(0, 1, 2, 1, of=3)) == {"accuracy": 0.75}
    # bad: 1 of 1, F1 1; fair: 1 right, 1 too many, 2/3; good: 1 right, 1 missed, 2/3.
    own = scores_of(OWN, [0, 1, 2, 2], logits(0, 1, 2, 1, of=3))
    assert own == {"accuracy": 0.75, "f1": pytest.approx((1 + 2 / 3 + 2 / 3) / 3)}
    # A class that neither occurs nor is predicted has no F1.
    assert scores_of(OWN, [0, 0], logits(0, 0, of=3)) == {"accuracy": 1, "f1": 1}


def test_correlations_of_ratings() -> None:
    # Deviations (-1.5, -0.5, 0.5, 1.5) and (-2, -1, 3, 0): 5 / sqrt(5 * 14); ranks 1 2 3 4 and 1 2 4 3: 1 - 6 * 2 / 60.
    found = scores_of(TASKS["sts-b"], [1, 2, 3, 4], [[-2], [-1], [3], [0]])
    assert found == {"spearman": pytest.approx(0.8), "pearson": pytest.approx(5 / 70**0.5)}


@pytest.mark.parametrize("outputs", [[[2.0], [2.0]], [[np.nan], [1.0]], [[np.inf], [1.0]]])
def test_a_correlation_that_does_not_exist_is_0_without_a_warning(outputs: list[list[float]]) -> None:
    assert scores_of(TASKS["sts-b"], [1, 2], outputs) == {"spearman": 0, "pearson": 0}
    assert scores_of(TASKS["sts-b"], [1], [[4.0]]) == {"spearman": 0, "pearson": 0}
    assert scores_of(TASKS["sts-b"], [2, 2], [[4.0], [3.0]]) == {"spearman": 0, "pearson": 0}


def test_predictions_without_a_correlation_are_noted() -> None:
    def note(task: Task, *values: float) -> str | None:
        return note_on_predictions(Predictions(np.array(values), np.zeros((len(values), 0))), labelled(0, 1), task)

    assert note(TASKS["sts-b"], 2.5, 2.5) == (
        "all predictions of validation are 2.5: spearman and pearson do not exist and are given as 0"
    )
    assert note(TASKS["cola"], 1, 1) == (
        "all predictions of validation are 1: matthews_correlation does not exist and is given as 0"
    )
    assert note(TASKS["sts-b"], 2.5, 2.0) is None
    assert note(TASKS["mrpc"], 1, 1) is None


def test_ratings_that_differ_in_their_last_bit_cause_no_warning() -> None:
    found = scores_of(TASKS["sts-b"], [1.0, 2.0, 3.0], [[1.0], [1.0], [1.0000001]])
    assert found["spearman"] == pytest.approx(0.866, abs=1e-3)


@pytest.mark.parametrize("label", [0, 1])
def test_constant_predictions_of_classes_cause_no_warning(label: int) -> None:
    assert scores_of(TASKS["cola"], [label, label], logits(label, label)) == {"matthews_correlation": 0, "accuracy": 1}
    assert scores_of(TASKS["mrpc"], [label], logits(label)) == {"f1": label, "accuracy": 1}
    assert scores_of(TASKS["mrpc"], [0, 1], logits(0, 0)) == {"f1": 0, "accuracy": 0.5}


def test_probabilities_are_shares_and_no_number_is_never_the_best() -> None:
    split, stage = labelled(0, 0, 0), finetune_stage()
    rows = make_rows(split, OWN, stage, WORDS, lower_case=True)
    outputs = np.array([[0, np.log(2), 0], [np.nan, 1, 0], [1e4, -1e4, 0]], dtype=np.float32)
    predictions = predict(rows, split, OWN, outputs, stage)
    assert predictions.values.tolist() == [1, 1, 0]
    assert predictions.probabilities[0].tolist() == pytest.approx([0.25, 0.5, 0.25])
    assert np.isnan(predictions.probabilities[1]).all()
    assert predictions.probabilities[2].tolist() == [1, 0, 0]


def baseline(task: Task, train: Split, validation: Split) -> dict[str, float]:
    return majority_scores(TaskExamples(task, train, (validation,), ()), validation)


def test_the_majority_is_the_training_sets() -> None:
    validation = labelled(1, 1, 0, 1)
    assert baseline(TASKS["mrpc"], labelled(1, 1, 0, name="train"), validation) == {
        "f1": pytest.approx(6 / 7),
        "accuracy": 0.75,
    }
    assert baseline(TASKS["mrpc"], labelled(0, 0, 1, name="train"), validation) == {"f1": 0, "accuracy": 0.25}
    assert baseline(TASKS["cola"], labelled(1, 1, 0), validation) == {"matthews_correlation": 0, "accuracy": 0.75}
    # Of equally frequent classes the first.
    assert baseline(OWN, labelled(2, 1, 2, 1), labelled(1, 2, 2))["accuracy"] == pytest.approx(1 / 3)


def test_the_baseline_of_ratings_is_their_mean() -> None:
    assert baseline(TASKS["sts-b"], labelled(1, 4), labelled(1, 2)) == {"spearman": 0, "pearson": 0}


def test_the_baseline_of_spans_is_the_first_words_of_the_context() -> None:
    train = spans(("q", "x y z", [("x y z", 0)]), ("q", "x", [("x", 0)]), ("q", "x y", [("x y", 0)]), name="train")
    validation = spans(
        ("q", " Grey  cats sleep", [("Grey  cats", 1)]), ("q", "All cats sleep", [("cats", 4)]), ("q", " ", [(" ", 0)])
    )
    # Two words: right; one of two (F1 2/3); an empty answer to an empty answer (an exact match, F1 0).
    assert baseline(TASKS["squad"], train, validation) == {
        "f1": pytest.approx((1 + 2 / 3) / 3),
        "exact_match": pytest.approx(2 / 3),
    }


def test_the_trainers_start_does_not_wait_for_scikit_learn() -> None:
    program = "import sys, bert_trainer.tasks.scoring; print({'sklearn', 'scipy', 'torch'} & set(sys.modules))"
    environment = {"PYTHONPATH": ":".join(sys.path)}
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment)
    assert run.stdout.strip() == "set()", run.stderr


def test_predictions_of_another_split_are_a_bug() -> None:
    predictions = Predictions(np.zeros(3, dtype=np.int64), np.zeros((3, 2)))
    with pytest.raises(AssertionError, match="3 predictions of 2 labels"):
        score(predictions, labelled(0, 1), TASKS["cola"])
