"""SQuAD's exact match and F1, worked out by hand by the rules of its version 1.1."""

from __future__ import annotations

import numpy as np
import pytest

from bert_trainer.tasks.catalog import TASKS
from bert_trainer.tasks.scoring import Predictions, score
from bert_trainer.tasks.squad_scores import best_f1, exact_match, normalize_answer
from small_tasks import spans


@pytest.mark.parametrize(
    ("text", "normalized"),
    [
        ("The Denver  Broncos!", "denver broncos"),
        ("a\tcat\nand an owl", "cat and owl"),
        ("U.S.", "us"),
        # Punctuation goes first: what it joins is no article any more, and what it leaves may be one.
        ("A.", ""),
        ("the-atre", "theatre"),
        ("anthem", "anthem"),
        ("\u201cThe\u201d 5\u20136 \u20ac", "\u201c \u201d 5\u20136 \u20ac"),
        ("\u00c9TUDE\u00a0a", "\u00e9tude"),
        ("", ""),
        ("$5.00 (approx.)", "500 approx"),
    ],
)
def test_case_punctuation_articles_and_white_space_do_not_count(text: str, normalized: str) -> None:
    assert normalize_answer(text) == normalized


@pytest.mark.parametrize(
    ("prediction", "answers", "exact", "f1"),
    [
        ("the Broncos", ["Broncos."], 1, 1),
        # Shared: denver. Precision 1/2, recall 1.
        ("Denver Colts", ["Denver"], 0, 2 / 3),
        # Two of three words each.
        ("big red dog", ["red dog barks"], 0, 2 / 3),
        # Words count as often as they stand: shared 1 of 3 and of 1.
        ("no no no", ["no"], 0, 0.5),
        ("no no no", ["no no"], 0, 0.8),
        # The best of several answers.
        ("gold", ["silver", "gold and silver", "Gold"], 1, 1),
        ("gold", ["silver", "gold and silver", "white gold"], 0, 2 / 3),
        ("", ["gold"], 0, 0),
        ("gold", [""], 0, 0),
        # No common word, though the same.
        ("", ["the"], 1, 0),
        ("A.", ["the"], 1, 0),
        # Order does not count.
        ("dog red", ["red dog"], 0, 1),
    ],
)
def test_scores_of_one_answer(prediction: str, answers: list[str], exact: float, f1: float) -> None:
    assert exact_match(prediction, answers) == exact
    assert best_f1(prediction, answers) == pytest.approx(f1)


def test_scores_of_a_split_are_means_over_its_questions() -> None:
    split = spans(
        ("Who won?", "Denver Broncos won gold.", [("Denver Broncos", 0), ("Broncos", 7)]),
        ("What?", "Denver Broncos won gold.", [("gold", 19), ("won gold", 15)]),
        ("When?", "Denver Broncos won gold.", [("Denver", 0)]),
    )
    predictions = Predictions(np.zeros((3, 2), np.int64), np.zeros((3, 0)), ("the broncos", "Broncos won gold", ""))
    # 1 and 1; 0 and 2 * 2 / (3 + 2); 0 and 0.
    assert score(predictions, split, TASKS["squad"]) == {
        "f1": pytest.approx((1 + 0.8) / 3),
        "exact_match": pytest.approx(1 / 3),
    }
    assert list(score(predictions, split, TASKS["spans"])) == ["f1", "exact_match"]
