"""Static masks for the masked language model, as a pure function of tokens and a random stream.

The rule is BERT's (Devlin et al. 2019, section 3.1, and ``create_pretraining_data``): 15 % of the positions
are predicted; of those 80 % become [MASK], 10 % stay and 10 % become any entry of the vocabulary, special
ones included. Whole words are not kept together.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

_MASK_SHARE = 0.8
_KEEP_SHARE_OF_REST = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskingRule:
    """What is the same for every sequence of a shard."""

    probability: float
    """Share of a sequence's tokens to predict, [CLS] and [SEP] counted; in (0, 1)."""
    max_predictions: int
    """Predictions per sequence at most."""
    vocabulary_size: int
    cls_id: int
    sep_id: int
    mask_id: int


@dataclass(frozen=True, slots=True)
class MaskedTokens:
    """A sequence with some tokens replaced, and what stood there."""

    tokens: list[int]
    positions: list[int]
    """Ascending; never that of a [CLS] or [SEP]."""
    labels: list[int]
    """The original tokens at ``positions``."""


def count_predictions(num_tokens: int, rule: MaskingRule) -> int:
    """Return how many of ``num_tokens`` tokens ([CLS], [SEP] counted) are predicted; .5 rounds to even."""
    return min(rule.max_predictions, max(1, round(num_tokens * rule.probability)))


def mask_tokens(tokens: Sequence[int], rule: MaskingRule, rng: random.Random) -> MaskedTokens:
    """Return a masked copy of ``tokens`` and its labels; the input is not changed.

    Draws from ``rng``: the positions, then for each of them, in random order, one number, a second one
    if it is not to be [MASK], a third one if it is not to stay.
    """
    candidates = [index for index, token in enumerate(tokens) if token not in (rule.cls_id, rule.sep_id)]
    count = min(count_predictions(len(tokens), rule), len(candidates))
    masked = list(tokens)
    chosen = rng.sample(candidates, count)
    for position in chosen:
        if rng.random() < _MASK_SHARE:
            masked[position] = rule.mask_id
        elif rng.random() >= _KEEP_SHARE_OF_REST:
            masked[position] = rng.randrange(rule.vocabulary_size)
    positions = sorted(chosen)
    return MaskedTokens(masked, positions, [tokens[position] for position in positions])
