"""Exact match and F1 of answers by the rules of SQuAD 1.1 (Rajpurkar et al. 2016).

Those of its official ``evaluate-v1.1.py``: lower case, then no ASCII punctuation, then no English articles, then single
spaces. F1 is that of the bags of words. An answer counts by the right one that it fits best. Two empty answers are an
exact match without a common word: F1 0, other than by the rules of SQuAD 2.0.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Iterable

_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")


def normalize_answer(text: str) -> str:
    """Return what of an answer is compared."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_WITHOUT_PUNCTUATION)).split())


def exact_match(prediction: str, answers: Iterable[str]) -> float:
    """Return 1 if an answer is the same after normalization, else 0."""
    normalized = normalize_answer(prediction)
    return float(any(normalize_answer(answer) == normalized for answer in answers))


def best_f1(prediction: str, answers: Iterable[str]) -> float:
    """Return the highest F1 of the words that the prediction shares with an answer, 0 to 1."""
    words = normalize_answer(prediction).split()
    return max((_f1(words, normalize_answer(answer).split()) for answer in answers), default=0.0)


def _f1(predicted: list[str], right: list[str]) -> float:
    shared = (Counter(predicted) & Counter(right)).total()
    # The harmonic mean of shared / len(predicted) and shared / len(right).
    return 2 * shared / (len(predicted) + len(right)) if shared else 0.0
