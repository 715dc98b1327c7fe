"""Masks drawn by the loader: a function of (seed, epoch, sample number) alone, so the same for any number of ranks.

The rule is that of ``masking``: a share of the tokens, at least one, at most P of a row; of those 80 % become
[MASK], 10 % stay and 10 % become any entry of the vocabulary. Random bits are hashes (SplitMix64) of where they
are used, so no stream has to be kept or fast-forwarded.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from bert_trainer.dataset.shards import ShardFolder
from bert_trainer.dataset.shards.ragged import RaggedSamples, smallest_ids
from bert_trainer.dataset.tokens.wordpiece import Vocabulary
from bert_trainer.errors import InputError

_MASK_SHARE = 0.8
_KEEP_SHARE = 0.1
_MOST_LEFT = 0.01
"""Share of [MASK] among tokens that count as unmasked; a text about BERT may have some, masked rows have 0.12."""
_FIRST_ROWS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class DynamicMasking:
    """What is the same for every row of a stage."""

    seed: int
    probability: float
    """Share of a row's tokens to predict, [CLS] and [SEP] counted; in (0, 1)."""
    max_predictions: int
    vocabulary_size: int
    cls_id: int
    sep_id: int
    mask_id: int
    unk_id: int | None = None
    """Never predicted: it stands for whatever word. Empty: it may be."""
    continuations: NDArray[np.bool_] | None = None
    """By token id, whether it goes on a word ("##ing"); given where whole words are masked together."""

    @classmethod
    def of(
        cls, vocabulary: Vocabulary, *, seed: int, probability: float, max_predictions: int, whole_words: bool
    ) -> DynamicMasking:
        """Make the rule for a vocabulary."""
        return cls(
            seed=seed,
            probability=probability,
            max_predictions=max_predictions,
            vocabulary_size=vocabulary.size,
            cls_id=vocabulary.cls_id,
            sep_id=vocabulary.sep_id,
            mask_id=vocabulary.mask_id,
            unk_id=vocabulary.unk_id,
            continuations=vocabulary.continuations if whole_words else None,
        )

    def check(self, folder: ShardFolder) -> None:
        """Make sure, before anything is trained, that the folder's rows can be had without their masks.

        Looks at the first rows of the first shard that has any. Raises InputError as ``read_bare``.
        """
        first = next(number for number, rows in enumerate(folder.rows) if rows)
        self.read_bare(folder, first, slice(0, _FIRST_ROWS))

    def read_bare(self, folder: ShardFolder, shard: int, rows: slice) -> RaggedSamples:
        """Read rows of one shard as they were before they were masked, if they were.

        Raises:
            InputError: as ``ShardFolder.read_ragged``, or the originals of masked tokens are not in the file.
        """
        bare = folder.read_ragged(shard, rows).unmasked()
        left = int((bare.tokens == self.mask_id).sum())
        if left > _MOST_LEFT * len(bare.tokens):
            raise InputError(
                f"{folder.paths[shard]}: {left} of {len(bare.tokens)} tokens are [MASK] and their originals are not in "
                f"the file; allowed with dynamic masking: at most {_MOST_LEFT:.0%}",
                hint="set the stage's masking to static, or build the shards again with their originals or unmasked",
            )
        return bare

    def mask(self, samples: RaggedSamples, epoch: int, sample_numbers: NDArray[np.int64]) -> RaggedSamples:
        """Return rows that hold no predictions masked; sample_numbers: (N,) numbers of the rows in the data set."""
        row_of = np.repeat(np.arange(len(samples)), samples.token_counts)
        position = np.arange(len(samples.tokens)) - samples.token_starts[row_of]
        keys = _hash(_hash(np.array([self.seed], np.uint64)) + np.uint64(epoch))
        keys = _hash(keys + sample_numbers.astype(np.uint64))[row_of]
        chosen = self._choose(samples, row_of, position, keys)
        originals = samples.tokens[chosen]
        fate = _hash(keys[chosen] + (position[chosen].astype(np.uint64) << np.uint64(1)) + np.uint64(1))
        share = (fate >> np.uint64(32)).astype(np.float64) / 2**32
        entry = (((fate & np.uint64(0xFFFFFFFF)) * np.uint64(self.vocabulary_size)) >> np.uint64(32)).astype(np.int32)
        shown = np.where(share < _MASK_SHARE, self.mask_id, np.where(share < 1 - _KEEP_SHARE, entry, originals))
        kind = np.promote_types(samples.tokens.dtype, smallest_ids(shown).dtype)
        tokens = samples.tokens.astype(kind)
        tokens[chosen] = shown
        return replace(
            samples,
            tokens=tokens,
            prediction_counts=np.bincount(row_of[chosen], minlength=len(samples)).astype(np.int64),
            masked_lm_positions=position[chosen].astype(np.uint16),
            masked_lm_ids=originals,
        )

    def _choose(
        self,
        samples: RaggedSamples,
        row_of: NDArray[np.int64],
        position: NDArray[np.int64],
        keys: NDArray[np.uint64],
    ) -> NDArray[np.int64]:
        """Return the ascending places of the tokens to predict."""
        candidate = (samples.tokens != self.cls_id) & (samples.tokens != self.sep_id)
        if self.unk_id is not None:
            candidate &= samples.tokens != self.unk_id
        wanted = np.rint(samples.token_counts * self.probability).astype(np.int64)
        wanted = np.minimum(np.maximum(wanted, 1), self.max_predictions)
        if self.continuations is None:
            places = np.flatnonzero(candidate)
            sizes = np.ones(len(places), np.int64)
        else:
            # A word begins at a candidate that does not go on one; what precedes it in the row decides.
            after = np.zeros(len(candidate), np.bool_)
            after[1:] = candidate[:-1] & candidate[1:] & (row_of[1:] == row_of[:-1])
            starts = candidate & ~(after & self.continuations[samples.tokens])
            places = np.flatnonzero(starts)
            sizes = np.bincount(np.cumsum(starts)[candidate] - 1, minlength=len(places))
        draws = _hash(keys[places] + (position[places].astype(np.uint64) << np.uint64(1)))
        # Last of all come words that no row can take.
        draws[sizes > self.max_predictions] = np.iinfo(np.uint64).max
        rows = row_of[places]
        # Rows in order, each one's words in random order.
        order = np.lexsort((draws, rows)) if len(places) else places
        ordered = sizes[order]
        before = np.cumsum(ordered) - ordered
        first_of_row = np.searchsorted(rows, np.arange(len(samples)))
        base = before[np.minimum(first_of_row, max(len(before) - 1, 0))] if len(before) else np.zeros(len(samples))
        # Words are taken while they fit in the number wanted; the first of them may be longer, so that every
        # row with a word of at most P pieces has a prediction.
        offset, limit = before - base[rows[order]], wanted[rows[order]]
        taken = order[(offset + ordered <= limit) | ((offset == 0) & (ordered <= self.max_predictions))]
        if self.continuations is None:
            return np.sort(places[taken])
        picked = np.zeros(len(places), np.bool_)
        picked[taken] = True
        word_of = np.cumsum(starts) - 1
        return np.flatnonzero(candidate & picked[np.maximum(word_of, 0)])


def _hash(state: NDArray[np.uint64]) -> NDArray[np.uint64]:
    # Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014, figure 13.
    with np.errstate(over="ignore"):
        state = state + np.uint64(0x9E3779B97F4A7C15)
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return state ^ (state >> np.uint64(31))
