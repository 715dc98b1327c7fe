"""Static masking for the masked language model, for many sequences at once.

The rule is BERT's (Devlin et al. 2019, section 3.1, and ``create_pretraining_data``): 15 % of the positions are
predicted; of those 80 % become [MASK], 10 % stay and 10 % become any entry of the vocabulary, special ones included.
Single WordPieces are chosen, or whole words (Google's ``do_whole_word_mask``).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bert_trainer.dataset.tokens.wordpiece import Vocabulary
from bert_trainer.system.random_bits import RandomBits, scaled

MASK_SHARE = 0.8
KEEP_SHARE = 0.1
_LOW = np.uint64(0xFFFFFFFF)
# Key of what cannot be chosen: sorts last.
_NOT_CHOSEN = np.uint32(0xFFFFFFFF)


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskingRule:
    """What is masked: in the shards of a build, or by the data loader of a stage."""

    probability: float
    """Share of a sequence's tokens to predict, [CLS] and [SEP] counted; in (0, 1)."""
    max_predictions: int
    """Most predictions per sequence."""
    vocabulary_size: int
    cls_id: int
    sep_id: int
    mask_id: int
    unk_id: int | None = None
    """Never predicted, since it stands for any word; None: it may be."""
    continuations: NDArray[np.bool_] | None = None
    """(vocabulary,): entries that continue a word ("##ing"), for whole-word masking; None: tokens are masked singly."""

    @classmethod
    def of(cls, vocabulary: Vocabulary, *, probability: float, max_predictions: int, whole_words: bool) -> MaskingRule:
        """Return the rule with the ids of a vocabulary."""
        return cls(
            probability=probability,
            max_predictions=max_predictions,
            vocabulary_size=vocabulary.size,
            cls_id=vocabulary.cls_id,
            sep_id=vocabulary.sep_id,
            mask_id=vocabulary.mask_id,
            unk_id=vocabulary.unk_id,
            continuations=vocabulary.continuations if whole_words else None,
        )


@dataclass(frozen=True, slots=True)
class MaskedTokens:
    """N masked sequences of T tokens and their labels; at most P predictions each."""

    tokens: NDArray[np.int32]
    """(N, T)."""
    positions: NDArray[np.int32]
    """(N, P): ascending, then 0; never of [CLS] or [SEP]."""
    labels: NDArray[np.int32]
    """(N, P): the original tokens at ``positions``, then 0."""


def count_predictions(num_tokens: int, rule: MaskingRule) -> int:
    """Return how many of ``num_tokens`` tokens ([CLS] and [SEP] counted) are predicted.

    As ``create_pretraining_data`` has it: ``min(max_predictions, max(1, int(round(...))))``; .5 rounds to even.
    """
    return min(rule.max_predictions, max(1, round(num_tokens * rule.probability)))


def mask_tokens(
    tokens: NDArray[np.int32], candidates: NDArray[np.bool_], rule: MaskingRule, bits: RandomBits
) -> MaskedTokens:
    """Return masked copies and their labels. A row of nothing but [UNK] gets no prediction.

    Args:
        tokens: (N, T).
        candidates: (N, T), everything but [CLS], [SEP] and padding; at least one per row.
        rule: the masking.
        bits: the shard's random stream. The number of words taken depends on the shapes alone.
    """
    # One entry per possible length. A row is its candidates, [CLS] and two [SEP].
    table = np.array([count_predictions(length, rule) for length in range(tokens.shape[1] + 4)])
    wanted = table[candidates.sum(axis=1) + 3]
    if rule.unk_id is not None:
        candidates = candidates & (tokens != rule.unk_id)
    wanted = np.minimum(wanted, candidates.sum(axis=1))
    if rule.continuations is None:
        positions, counts = _choose_tokens(candidates, wanted, rule.max_predictions, bits), wanted
    else:
        positions, counts = _choose_words(tokens, candidates, wanted, rule, bits)
    chosen = np.arange(positions.shape[1]) < counts[:, None]
    positions = np.where(chosen, positions, 0)
    rows = np.arange(len(tokens))[:, None]
    labels = np.where(chosen, tokens[rows, positions], 0)
    shown = np.where(chosen, _replace(labels, rule, bits), tokens[rows, positions])
    masked = tokens.copy()
    # Unused predictions all point to position 0, [CLS], and write back what is there.
    masked[rows, positions] = shown
    return MaskedTokens(masked, positions.astype(np.int32), labels.astype(np.int32))


def _choose_tokens(
    candidates: NDArray[np.bool_], wanted: NDArray[np.int64], max_predictions: int, bits: RandomBits
) -> NDArray[np.int64]:
    """Return the chosen positions of each row, ascending, (N, P); those behind ``wanted`` are meaningless.

    The ``wanted`` smallest of T random keys are a uniform choice without replacement. The lowest bits of each key hold
    its column, so sorting the keys sorts the columns along: no argsort.
    """
    keys, position_bits = _random_keys(candidates.shape, bits)
    keys[~candidates] = _NOT_CHOSEN
    num_columns = candidates.shape[1]
    most = min(max_predictions, num_columns)
    # A partial selection first: only P of T keys are needed, about a sixth at the published lengths.
    if most < num_columns:
        keys.partition(most - 1, axis=1)
    keys = np.sort(keys[:, :most], axis=1)
    positions = (keys & np.uint32((1 << position_bits) - 1)).astype(np.int64)
    positions[np.arange(most) >= wanted[:, None]] = num_columns
    positions.sort(axis=1)
    padded = np.zeros((len(keys), max_predictions), dtype=np.int64)
    padded[:, :most] = positions
    return padded


def _choose_words(
    tokens: NDArray[np.int32],
    candidates: NDArray[np.bool_],
    wanted: NDArray[np.int64],
    rule: MaskingRule,
    bits: RandomBits,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return chosen positions as ``_choose_tokens`` does, and their number, (N,).

    Words are taken in random order. One that would exceed the number wanted is skipped, as in
    ``create_pretraining_data``, so there may be fewer. If every word exceeds it, one is taken, truncated to P tokens.
    """
    assert rule.continuations is not None
    num_rows, num_columns = tokens.shape
    # A word begins at a candidate that is no continuation, or that follows no candidate.
    begins = candidates & ~rule.continuations[tokens]
    begins[:, 1:] |= candidates[:, 1:] & ~candidates[:, :-1]
    # (N, T): the number of each token's word within its row, from 1; 0 for tokens of no word.
    words = np.where(candidates, np.cumsum(begins, axis=1), 0)
    rows = np.arange(num_rows)
    sizes = np.bincount((rows[:, None] * (num_columns + 1) + words).ravel(), minlength=num_rows * (num_columns + 1))
    sizes = sizes.reshape(num_rows, num_columns + 1)
    keys, position_bits = _random_keys((num_rows, num_columns), bits)
    keys[sizes[:, 1:] == 0] = _NOT_CHOSEN
    keys.sort(axis=1)
    order = (keys & np.uint32((1 << position_bits) - 1)).astype(np.int64) + 1
    counts = np.zeros(num_rows, dtype=np.int64)
    is_taken = np.zeros((num_rows, num_columns + 2), dtype=np.bool_)
    # One step for all rows: each looks at its next word. As many steps as the row with most words has words.
    for rank in range(int((sizes[:, 1:] > 0).sum(axis=1).max(initial=0))):
        is_word = keys[:, rank] != _NOT_CHOSEN
        word = np.where(is_word, order[:, rank], 0)
        fits = is_word & (counts + sizes[rows, word] <= wanted)
        counts += np.where(fits, sizes[rows, word], 0)
        is_taken[rows[fits], word[fits]] = True
    # Short rows of long words: a row without predictions would not train anything, so one word is taken anyway.
    empty = np.flatnonzero((counts == 0) & candidates.any(axis=1))
    is_taken[empty, order[empty, 0]] = True
    counts[empty] = np.minimum(sizes[empty, order[empty, 0]], rule.max_predictions)
    is_taken[:, 0] = False
    chosen = is_taken[rows[:, None], words]
    positions = np.sort(np.where(chosen, np.arange(num_columns), num_columns), axis=1)
    padded = np.zeros((num_rows, rule.max_predictions), dtype=np.int64)
    most = min(rule.max_predictions, num_columns)
    padded[:, :most] = positions[:, :most]
    return padded, counts


def _random_keys(shape: tuple[int, ...], bits: RandomBits) -> tuple[NDArray[np.uint32], int]:
    """Return random keys, (N, T), and the number of their lowest bits that hold their column.

    The column breaks ties: no two keys of a row are equal. None is ``_NOT_CHOSEN``, since no column has all bits set.
    """
    num_rows, num_columns = shape
    position_bits = max(1, (num_columns).bit_length())
    # Two keys per 64-bit word; 32 bits less those of the column are random, 22 of them at 512 columns.
    num_words = (num_rows * num_columns + 1) // 2
    keys = bits.words(num_words).view(np.uint32)[: num_rows * num_columns].reshape(num_rows, num_columns)
    keys = (keys >> np.uint32(position_bits)) << np.uint32(position_bits)
    keys |= np.arange(num_columns, dtype=np.uint32)
    return keys, position_bits


def _replace(labels: NDArray[np.int64], rule: MaskingRule, bits: RandomBits) -> NDArray[np.int64]:
    """Return the token that is shown for each label, same shape: one word of the stream per prediction."""
    words = bits.words(labels.size).reshape(labels.shape)
    chance, entry = words >> np.uint64(32), words & _LOW
    shown = scaled(entry, rule.vocabulary_size)
    shown = np.where(chance < np.uint64(round((MASK_SHARE + KEEP_SHARE) * 2**32)), labels, shown)
    return np.where(chance < np.uint64(round(MASK_SHARE * 2**32)), rule.mask_id, shown)
