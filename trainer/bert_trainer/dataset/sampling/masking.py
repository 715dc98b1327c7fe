"""Masks for the masked language model, for many rows at once: of shards when they are built, and of a stage's batches.

The rule is BERT's (Devlin et al. 2019, section 3.1, and ``create_pretraining_data``): 15 % of the positions are
predicted; of those 80 % become [MASK], 10 % stay and 10 % become any entry of the vocabulary, special ones included.
Single WordPieces are chosen, or whole words (Google's ``do_whole_word_mask``).

A row's masks follow from the row and a key of 64 bits, and from nothing else: not from the rows beside it or their
order. Random bits are hashes (SplitMix64) of the key and the place where they are used. Which keys rows get is not
decided here.

Letters: N rows; B of them at a time; U units (tokens, or words of several) of which each is predicted as a whole or
not at all; W of the row with most units; C chosen tokens.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bert_trainer.dataset.shards.ragged import RaggedSamples, smallest_ids
from bert_trainer.dataset.tokens.word_cache import ragged_indexes
from bert_trainer.dataset.tokens.wordpiece import Vocabulary
from bert_trainer.system.random_bits import mix64, scaled

MASK_SHARE = 0.8
KEEP_SHARE = 0.1
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
# Of padding: sorts last.
_LAST = np.iinfo(np.uint32).max
_BLOCK_TOKENS = 1 << 15
"""Tokens of the rows that are masked at a time, padding counted: eight bytes each stay in a core's cache."""


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
class _Units:
    """What can be predicted in B rows."""

    first_U: NDArray[np.int64]
    """The place of each unit's first token among the tokens of the rows, ascending."""
    sizes_U: NDArray[np.int64] | None
    """Tokens of each unit; None: one."""
    counts_B: NDArray[np.int64]
    """Units of each row."""


def count_predictions(num_tokens: int, rule: MaskingRule) -> int:
    """Return how many of ``num_tokens`` tokens ([CLS] and [SEP] counted) are predicted.

    As ``create_pretraining_data`` has it: ``min(max_predictions, max(1, int(round(...))))``; .5 rounds to even.
    """
    return min(rule.max_predictions, max(1, round(num_tokens * rule.probability)))


def mask_rows(samples: RaggedSamples, keys_N: NDArray[np.uint64], rule: MaskingRule) -> RaggedSamples:
    """Mask N rows that hold no predictions; a row of nothing but [UNK] gets none.

    keys_N: random numbers; rows with the same one get the same draws.
    """
    places = _choose(samples, keys_N, rule)
    counts_N = _count_by_row(places, samples.token_starts)
    rows = np.repeat(np.arange(len(samples)), counts_N)
    positions = places - samples.token_starts[rows]
    originals = samples.tokens[places]
    # Two hashes per token: of 2 x position which tokens are predicted, of 2 x position + 1 what is shown instead.
    bits = mix64(keys_N[rows] + _doubled(positions) + np.uint64(1))
    shown = _replace(originals, bits, rule)
    # A replacement may need the wider type: an id above 65535 in rows of smaller ones.
    tokens = samples.tokens.astype(np.promote_types(samples.tokens.dtype, smallest_ids(shown).dtype))
    tokens[places] = shown
    return replace(
        samples,
        tokens=tokens,
        prediction_counts=counts_N,
        masked_lm_positions=positions.astype(np.uint16),
        masked_lm_ids=originals,
    )


def _doubled(positions: NDArray[np.int64]) -> NDArray[np.uint64]:
    return positions.astype(np.uint64) << np.uint64(1)


def _count_by_row(places: NDArray[np.int64], starts_B: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return how many of some places are in each row. places: ascending, none before the first row."""
    return np.diff(np.searchsorted(places, starts_B), append=len(places))


def _replace(originals: NDArray[np.integer], bits: NDArray[np.uint64], rule: MaskingRule) -> NDArray[np.int64]:
    """Return the token that is shown for each original, (C,). bits: (C,)."""
    # The upper half decides what is shown, the lower half which entry.
    chance, entry = bits >> _HALF, scaled(bits & _LOW, rule.vocabulary_size)
    shown = np.where(chance < np.uint64(math.ceil((1 - KEEP_SHARE) * 2**32)), entry, originals)
    return np.where(chance < np.uint64(math.ceil(MASK_SHARE * 2**32)), rule.mask_id, shown)


def _choose(samples: RaggedSamples, keys_N: NDArray[np.uint64], rule: MaskingRule) -> NDArray[np.int64]:
    """Return the places of the tokens to predict among all tokens, (C,), ascending."""
    # [CLS] and [SEP] count here, as in create_pretraining_data.
    longest = int(samples.token_counts.max(initial=1))
    table = np.array([count_predictions(length, rule) for length in range(longest + 1)])
    parts = [np.zeros(0, np.int64)]
    rows_at_once = max(1, _BLOCK_TOKENS // longest)
    for first in range(0, len(samples), rows_at_once):
        rows = slice(first, first + rows_at_once)
        block = samples.take(rows)
        units = _find_units(block, rule)
        # The sum of a row's key and twice the position, from places: what they differ by is the row's alone.
        bases_B = keys_N[rows] - _doubled(block.token_starts)
        draws_U = mix64(np.repeat(bases_B, units.counts_B) + _doubled(units.first_U))
        wanted_B = table[block.token_counts]
        if units.sizes_U is None:
            found = units.first_U[choose_smallest(draws_U, units.counts_B, wanted_B)]
        else:
            chosen = _choose_words(draws_U, units.sizes_U, units.counts_B, wanted_B)
            # Only a word that is alone in its row can have more.
            found = ragged_indexes(units.first_U[chosen], np.minimum(units.sizes_U[chosen], rule.max_predictions))
        parts.append(found + samples.token_starts[first])
    return np.concatenate(parts)


def _find_units(samples: RaggedSamples, rule: MaskingRule) -> _Units:
    """Return all words, or all tokens, but [CLS], [SEP] and [UNK]."""
    tokens, starts_B = samples.tokens, samples.token_starts
    candidates = (tokens != rule.cls_id) & (tokens != rule.sep_id)
    if rule.unk_id is not None:
        candidates &= tokens != rule.unk_id
    if rule.continuations is None:
        first_U = np.flatnonzero(candidates)
        return _Units(first_U, None, _count_by_row(first_U, starts_B))
    # A word begins at a candidate that is no continuation, or that follows no candidate of its row.
    goes_on = rule.continuations[tokens]
    goes_on[1:] &= candidates[:-1]
    # Files of other programs may hold rows without tokens, of which the last would begin behind the end.
    goes_on[starts_B[samples.token_counts > 0]] = False
    # It ends before the next word, or the next token of no word.
    edges = np.flatnonzero(~(goes_on & candidates))
    is_word = candidates[edges]
    first_U = edges[is_word]
    sizes_U = np.diff(edges, append=len(tokens))[is_word]
    return _Units(first_U, sizes_U, _count_by_row(first_U, starts_B))


def choose_smallest(
    draws_U: NDArray[np.uint64], counts_B: NDArray[np.int64], wanted_B: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the ``wanted`` units of each row with the smallest draws, all if there are fewer, ascending.

    No two draws of a row are equal: the hash maps different numbers to different ones.
    """
    wanted_B = np.minimum(wanted_B, counts_B)
    # Half of the bits decide nearly always, and sorting them takes a tenth of the time at 512 tokens.
    halves_U = (draws_U >> _HALF).astype(np.uint32)
    sorted_BW = np.sort(_padded(halves_U, counts_B, _LAST), axis=1)
    limits_B = sorted_BW[np.arange(len(counts_B)), np.maximum(wanted_B, 1) - 1]
    chosen = np.flatnonzero(halves_U <= np.repeat(limits_B, counts_B))
    starts_B = np.cumsum(counts_B) - counts_B
    tied = np.flatnonzero(_count_by_row(chosen, starts_B) != wanted_B)
    if not len(tied):
        return chosen
    rows = np.repeat(np.arange(len(counts_B)), counts_B)
    parts = [chosen[~np.isin(rows[chosen], tied)]]
    for row in tied.tolist():
        order = np.argsort(draws_U[starts_B[row] : starts_B[row] + counts_B[row]])
        parts.append(starts_B[row] + order[: wanted_B[row]])
    return np.sort(np.concatenate(parts))


def _padded(values_U: NDArray[Any], counts_B: NDArray[np.int64], padding: int) -> NDArray[Any]:
    """Return the values of each row side by side, (B, W), with padding behind them; W is at least 1."""
    real_BW = np.arange(max(1, int(counts_B.max()))) < counts_B[:, None]
    values_BW = np.full(real_BW.shape, padding, values_U.dtype)
    values_BW[real_BW] = values_U
    return values_BW


def _choose_words(
    draws_U: NDArray[np.uint64], sizes_U: NDArray[np.int64], counts_B: NDArray[np.int64], wanted_B: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the words to predict, ascending: words of ``wanted`` tokens of each row, or fewer.

    They are taken in random order. One that would exceed the number wanted is skipped, as in
    ``create_pretraining_data``, so there may be fewer. A row whose words all exceed it gets one all the same.
    """
    # The lowest bits of each key hold the word's number in its row: sorting the keys sorts the numbers along. Of the
    # others 22 are random at 512 tokens. How many that is follows from the row alone, as its masks do.
    starts_B = np.cumsum(counts_B) - counts_B
    low_B = ((1 << np.frexp(counts_B)[1]) - 1).astype(np.uint32)
    numbers_U = (np.arange(len(draws_U)) - np.repeat(starts_B, counts_B)).astype(np.uint32)
    keys_U = (draws_U >> _HALF).astype(np.uint32) & ~np.repeat(low_B, counts_B) | numbers_U
    order_BW = (np.sort(_padded(keys_U, counts_B, _LAST), axis=1) & low_B[:, None]).astype(np.int64)
    # Behind a row's last word there is padding, whose size fits nowhere.
    sizes_BW = np.append(sizes_U, np.iinfo(np.int32).max)[
        np.where(np.arange(order_BW.shape[1]) < counts_B[:, None], order_BW + starts_B[:, None], len(sizes_U))
    ]
    rows, places = _take_what_fits(sizes_BW, counts_B, wanted_B)
    return np.sort(starts_B[rows] + order_BW[rows, places])


def _take_what_fits(
    sizes_BW: NDArray[np.int64], counts_B: NDArray[np.int64], wanted_B: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Take words from left to right while they fit into the number wanted, and skip the others; one at least.

    sizes_BW: (B, W) of the words; padding is larger than any number wanted. Returns row and place of every word taken.
    """
    # As no word is empty, no more than that many can be taken before the first that does not fit.
    sizes = sizes_BW[:, : int(wanted_B.max())]
    taken = np.cumsum(sizes, axis=1) <= wanted_B[:, None]
    left_B, next_B = wanted_B - (sizes * taken).sum(axis=1), taken.sum(axis=1)
    found = [np.nonzero(taken)]
    # Behind it: the next one that does, in all rows at once. Few have room for more than one.
    rows = np.flatnonzero((left_B > 0) & (next_B < counts_B))
    at_W = np.arange(sizes_BW.shape[1])
    while len(rows):
        fits = (sizes_BW[rows] <= left_B[rows, None]) & (at_W >= next_B[rows, None])
        goes_on = fits.any(axis=1)
        # A row without predictions would not train anything: if no word fits, its first one is taken.
        taken = goes_on | (next_B[rows] == 0)
        taken_rows, places = rows[taken], fits.argmax(axis=1)[taken]
        found.append((taken_rows, places))
        left_B[taken_rows] -= sizes_BW[taken_rows, places]
        next_B[taken_rows] = places + 1
        rows = rows[goes_on]
        rows = rows[left_B[rows] > 0]
    rows, places = (np.concatenate(parts) for parts in zip(*found, strict=True))
    return rows, places
