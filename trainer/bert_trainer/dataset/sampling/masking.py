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
_BLOCK_TOKENS = 1 << 17
"""Tokens of the rows that are masked at a time, padding counted: their arrays stay near a core. With a quarter of it
the calls themselves take a quarter of the time at 512 tokens."""


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
class _Words:
    """The words of B rows."""

    first_U: NDArray[np.int64]
    """The place of each word's first token among the tokens of the rows, ascending."""
    counts_B: NDArray[np.int64]
    """Words of each row."""
    edges: NDArray[np.int64]
    """Places of all tokens but those that go on with a word, ascending, and the end of the last row."""
    edges_U: NDArray[np.int64]
    """Which of them is each word's first token."""

    def sizes(self, words_V: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return how many tokens some words have, (V,)."""
        # Of few words: of all of them it would take as long as finding where they begin.
        sizes_V: NDArray[np.int64] = self.edges[self.edges_U[words_V] + 1] - self.first_U[words_V]
        return sizes_V


def count_predictions(num_tokens: int, rule: MaskingRule) -> int:
    """Return how many of ``num_tokens`` tokens ([CLS] and [SEP] counted) are predicted.

    As ``create_pretraining_data`` has it: ``min(max_predictions, max(1, int(round(...))))``; .5 rounds to even.
    """
    return int(_count_wanted(np.array([num_tokens]), rule)[0])


def _count_wanted(token_counts_B: NDArray[np.int64], rule: MaskingRule) -> NDArray[np.int64]:
    """Return ``count_predictions`` of every row, (B,)."""
    wanted_B: NDArray[np.int64] = np.clip(np.rint(token_counts_B * rule.probability), 1, rule.max_predictions).astype(
        np.int64
    )
    return wanted_B


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
    choose_in_block = _choose_tokens if rule.continuations is None else _choose_whole_words
    parts = [np.zeros(0, np.int64)]
    rows_at_once = max(1, _BLOCK_TOKENS // int(samples.token_counts.max(initial=1)))
    for first in range(0, len(samples), rows_at_once):
        rows = slice(first, first + rows_at_once)
        found = choose_in_block(samples.take(rows), keys_N[rows], rule)
        parts.append(found + samples.token_starts[first])
    return np.concatenate(parts)


def _choose_tokens(samples: RaggedSamples, keys_B: NDArray[np.uint64], rule: MaskingRule) -> NDArray[np.int64]:
    """Return the places of single tokens, (C,), ascending."""
    first_U = np.flatnonzero(_find_candidates(samples.tokens, rule))
    counts_B = _count_by_row(first_U, samples.token_starts)
    draws_U = _draw(samples, keys_B, first_U, counts_B)
    return first_U[choose_smallest(draws_U, counts_B, _count_wanted(samples.token_counts, rule))]


def _choose_whole_words(samples: RaggedSamples, keys_B: NDArray[np.uint64], rule: MaskingRule) -> NDArray[np.int64]:
    """Return the places of all tokens of some words, (C,), ascending."""
    words = _find_words(samples, rule)
    draws_U = _draw(samples, keys_B, words.first_U, words.counts_B)
    chosen = _choose_words(draws_U, words, _count_wanted(samples.token_counts, rule))
    # Only a word that is alone in its row can have more.
    return ragged_indexes(words.first_U[chosen], np.minimum(words.sizes(chosen), rule.max_predictions))


def _draw(
    samples: RaggedSamples, keys_B: NDArray[np.uint64], first_U: NDArray[np.int64], counts_B: NDArray[np.int64]
) -> NDArray[np.uint64]:
    """Return a random number for each unit, (U,). first_U: places of first tokens, counts_B of them in each row."""
    # The sum of a row's key and twice the position, from places: what they differ by is the row's alone.
    return mix64(np.repeat(keys_B - _doubled(samples.token_starts), counts_B) + _doubled(first_U))


def _find_candidates(tokens: NDArray[np.integer], rule: MaskingRule) -> NDArray[np.bool_]:
    """Return which tokens are none of [CLS], [SEP] and [UNK], the shape of ``tokens``."""
    candidates: NDArray[np.bool_] = (tokens != rule.cls_id) & (tokens != rule.sep_id)
    if rule.unk_id is not None:
        candidates &= tokens != rule.unk_id
    return candidates


def _find_words(samples: RaggedSamples, rule: MaskingRule) -> _Words:
    assert rule.continuations is not None, "words are told apart by their continuations"
    tokens, starts_B = samples.tokens, samples.token_starts
    candidates = _find_candidates(tokens, rule)
    # A word goes on with a continuation that follows another candidate of its row.
    goes_on = rule.continuations.take(tokens)
    goes_on &= candidates
    goes_on[1:] &= candidates[:-1]
    # Files of other programs may hold rows without tokens, of which the last would begin behind the end.
    goes_on[starts_B[samples.token_counts > 0]] = False
    edges = np.flatnonzero(~goes_on)
    edges_U = np.flatnonzero(candidates[edges])
    first_U = edges[edges_U]
    return _Words(first_U, _count_by_row(first_U, starts_B), np.append(edges, len(tokens)), edges_U)


def choose_smallest(
    draws_U: NDArray[np.uint64], counts_B: NDArray[np.int64], wanted_B: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the ``wanted`` units of each row with the smallest draws, all if there are fewer, ascending.

    No two draws of a row are equal: the hash maps different numbers to different ones.
    """
    wanted_B = np.minimum(wanted_B, counts_B)
    # Half of the bits decide nearly always, and sorting them takes a tenth of the time at 512 tokens.
    halves_U = (draws_U >> _HALF).astype(np.uint32)
    sorted_BW = np.sort(_padded(halves_U, counts_B), axis=1)
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


def _padded(values_U: NDArray[Any], counts_B: NDArray[np.int64]) -> NDArray[Any]:
    """Return the values of each row side by side, (B, W), and behind them the largest value; W is at least 1."""
    real_BW = np.arange(max(1, int(counts_B.max()))) < counts_B[:, None]
    values_BW = np.full(real_BW.shape, np.iinfo(values_U.dtype).max, values_U.dtype)
    values_BW[real_BW] = values_U
    return values_BW


def _choose_words(draws_U: NDArray[np.uint64], words: _Words, wanted_B: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the words to predict, ascending: words of ``wanted`` tokens of each row, or fewer.

    They are taken in random order. One that would exceed the number wanted is skipped, as in
    ``create_pretraining_data``, so there may be fewer. A row whose words all exceed it gets one all the same.
    """
    counts_B = words.counts_B
    starts_B = np.cumsum(counts_B) - counts_B
    # The lowest bits of each key hold the word's number in its row. Of the others 22 are random at 512 tokens. How many
    # that is follows from the row alone, as its masks do.
    low_B = (1 << np.frexp(counts_B)[1].astype(np.uint64)) - np.uint64(1)
    is_chosen_U = np.zeros(len(draws_U), np.bool_)
    rows_R, words_V = np.arange(len(counts_B)), _find_near(draws_U, words, wanted_B)
    counts_R = _count_by_row(words_V, starts_B)
    while len(rows_R):
        starts_R, low_R = starts_B[rows_R], low_B[rows_R]
        numbers_V = (words_V - np.repeat(starts_R, counts_R)).astype(np.uint64)
        keys_V = (draws_U[words_V] >> _HALF) & ~np.repeat(low_R, counts_R) | numbers_V
        # Sorting the keys sorts numbers and sizes along. Padding comes last, with a size that fits nowhere.
        sorted_RW = np.sort(_padded(keys_V << _HALF | words.sizes(words_V).astype(np.uint64), counts_R), axis=1)
        taken_RW, left_R = _take_what_fits((sorted_RW & _LOW).view(np.int64), counts_R, wanted_B[rows_R])
        unfinished_R = (left_R != 0) & (counts_R < counts_B[rows_R])
        taken_RW[unfinished_R] = False
        taken_R = np.count_nonzero(taken_RW, axis=1)
        numbers = sorted_RW[taken_RW] >> _HALF & np.repeat(low_R, taken_R)
        is_chosen_U[np.repeat(starts_R, taken_R) + numbers.astype(np.int64)] = True
        # Of the few rows where the words with the smallest draws do not suffice, all words.
        rows_R = rows_R[unfinished_R]
        counts_R = counts_B[rows_R]
        words_V = ragged_indexes(starts_B[rows_R], counts_R)
    return np.flatnonzero(is_chosen_U)


def _find_near(draws_U: NDArray[np.uint64], words: _Words, wanted_B: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the words of each row with the smallest draws, ascending: nearly always enough for the tokens wanted."""
    # What is sorted and walked over costs the most, and one word in seven is wanted. As many as are wanted on average,
    # and three standard deviations more.
    num_words_B = wanted_B * (len(draws_U) / max(1, int(words.edges[-1])))
    share_B = np.minimum(1, (num_words_B + 3 * np.sqrt(num_words_B) + 3) / np.maximum(words.counts_B, 1))
    limits_B = (share_B * (2**32 - 1)).astype(np.uint64) << _HALF | _LOW
    return np.flatnonzero(draws_U <= np.repeat(limits_B, words.counts_B))


def _take_what_fits(
    sizes_BW: NDArray[np.int64], counts_B: NDArray[np.int64], wanted_B: NDArray[np.int64]
) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """Take words from left to right while they fit into the number wanted, and skip the others; one at least.

    sizes_BW: (B, W) of the words; padding is larger than any number wanted. Returns which words are taken, and how many
    of the tokens wanted are left, (B,); negative where the only word is larger.
    """
    sums_BW = np.cumsum(sizes_BW, axis=1)
    taken_BW = sums_BW <= wanted_B[:, None]
    next_B = np.count_nonzero(taken_BW, axis=1)
    every = np.arange(len(counts_B))
    left_B = wanted_B - np.where(next_B > 0, sums_BW[every, next_B - 1], 0)
    # Behind the first that does not fit: the next one that does, in all rows at once. Few have room for more than one.
    rows = np.flatnonzero((left_B > 0) & (next_B < counts_B))
    at_W = np.arange(sizes_BW.shape[1])
    while len(rows):
        fits = (sizes_BW[rows] <= left_B[rows, None]) & (at_W >= next_B[rows, None])
        goes_on = fits.any(axis=1)
        # A row without predictions would not train anything: if no word fits, its first one is taken.
        taken = goes_on | (next_B[rows] == 0)
        taken_rows, places = rows[taken], fits.argmax(axis=1)[taken]
        taken_BW[taken_rows, places] = True
        left_B[taken_rows] -= sizes_BW[taken_rows, places]
        next_B[taken_rows] = places + 1
        rows = rows[goes_on]
        rows = rows[left_B[rows] > 0]
    return taken_BW, left_B
