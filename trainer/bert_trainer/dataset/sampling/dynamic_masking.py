"""Dynamic masking: masks drawn by the data loader as a function of (seed, epoch, sample number) alone.

So they are the same for any number of ranks. The rule is that of ``masking``: a share of the tokens, at least one, at
most P of a row; of those 80 % become [MASK], 10 % stay and 10 % become any entry of the vocabulary. Random bits are
hashes (SplitMix64) of the position where they are used: no stream has to be saved or fast-forwarded on resume.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from bert_trainer.dataset.sampling.masking import KEEP_SHARE, MASK_SHARE, MaskingRule
from bert_trainer.dataset.shards import ShardFolder
from bert_trainer.dataset.shards.ragged import RaggedSamples, smallest_ids
from bert_trainer.dataset.tokens.wordpiece import Vocabulary
from bert_trainer.errors import InputError
from bert_trainer.system.random_bits import mix64

# Share of [MASK] up to which rows count as unmasked: a text about BERT may hold some, masked rows have 0.12.
_MAX_MASK_SHARE = 0.01
_FIRST_ROWS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class DynamicMasking:
    """The masking of one stage."""

    seed: int
    rule: MaskingRule

    @classmethod
    def of(
        cls, vocabulary: Vocabulary, *, seed: int, probability: float, max_predictions: int, whole_words: bool
    ) -> DynamicMasking:
        """Return the masking with the ids of a vocabulary."""
        rule = MaskingRule.of(
            vocabulary, probability=probability, max_predictions=max_predictions, whole_words=whole_words
        )
        return cls(seed=seed, rule=rule)

    def check(self, folder: ShardFolder) -> None:
        """Check before training that the original tokens of the folder's rows are known.

        Reads the first rows of the first shard that has any.

        Raises:
            InputError: as ``read_unmasked``.
        """
        first = next(number for number, rows in enumerate(folder.rows) if rows)
        self.read_unmasked(folder, first, slice(0, _FIRST_ROWS))

    def read_unmasked(self, folder: ShardFolder, shard: int, rows: slice) -> RaggedSamples:
        """Read rows of one shard with their original tokens.

        Raises:
            InputError: as ``ShardFolder.read_ragged``, or the file does not hold the original tokens.
        """
        unmasked = folder.read_ragged(shard, rows).unmasked()
        left = int((unmasked.tokens == self.rule.mask_id).sum())
        if left > _MAX_MASK_SHARE * len(unmasked.tokens):
            raise InputError(
                f"{folder.paths[shard]}: {left} of {len(unmasked.tokens)} tokens are [MASK] and their originals "
                f"are not in the file; allowed with dynamic masking: at most {_MAX_MASK_SHARE:.0%}",
                hint="set the stage's masking to static, or build the shards again with their originals or unmasked",
            )
        return unmasked

    def mask(self, samples: RaggedSamples, epoch: int, sample_numbers: NDArray[np.int64]) -> RaggedSamples:
        """Mask N rows that hold no predictions. sample_numbers: (N,), numbers of the rows in the data set."""
        # Two hashes per token, of the numbers 2 x position (which tokens are predicted) and 2 x position + 1 (what is
        # shown instead), below a key of seed, epoch and sample: no two uses share their bits.
        row_of = np.repeat(np.arange(len(samples)), samples.token_counts)
        position = np.arange(len(samples.tokens)) - samples.token_starts[row_of]
        keys = mix64(mix64(np.array([self.seed], np.uint64)) + np.uint64(epoch))
        keys = mix64(keys + sample_numbers.astype(np.uint64))[row_of]
        chosen = self._choose(samples, row_of, position, keys)
        originals = samples.tokens[chosen]
        bits = mix64(keys[chosen] + (position[chosen].astype(np.uint64) << np.uint64(1)) + np.uint64(1))
        # The upper half decides what is shown, the lower half which entry: multiply and shift, no modulo.
        share = (bits >> np.uint64(32)).astype(np.float64) / 2**32
        entry = (((bits & np.uint64(0xFFFFFFFF)) * np.uint64(self.rule.vocabulary_size)) >> np.uint64(32)).astype(
            np.int32
        )
        shown = np.where(share < MASK_SHARE, self.rule.mask_id, np.where(share < 1 - KEEP_SHARE, entry, originals))
        # A replacement may need the wider type: an id above 65535 in a row of smaller ones.
        dtype = np.promote_types(samples.tokens.dtype, smallest_ids(shown).dtype)
        tokens = samples.tokens.astype(dtype)
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
        """Return the indexes of the tokens to predict, ascending.

        row_of, position: (S,), row and position of every token. keys: (S,), the key of its row.
        """
        candidate = (samples.tokens != self.rule.cls_id) & (samples.tokens != self.rule.sep_id)
        if self.rule.unk_id is not None:
            candidate &= samples.tokens != self.rule.unk_id
        # [CLS] and [SEP] count here, as in create_pretraining_data; .5 rounds to even, as in ``masking``.
        wanted = np.rint(samples.token_counts * self.rule.probability).astype(np.int64)
        wanted = np.minimum(np.maximum(wanted, 1), self.rule.max_predictions)
        if self.rule.continuations is None:
            starts_at = np.flatnonzero(candidate)
            sizes = np.ones(len(starts_at), np.int64)
        else:
            # A word begins at a candidate that does not continue the candidate before it in the same row. Behind a
            # special token or [UNK] a continuation begins a word of its own.
            follows = np.zeros(len(candidate), np.bool_)
            follows[1:] = candidate[:-1] & candidate[1:] & (row_of[1:] == row_of[:-1])
            starts = candidate & ~(follows & self.rule.continuations[samples.tokens])
            starts_at = np.flatnonzero(starts)
            sizes = np.bincount(np.cumsum(starts)[candidate] - 1, minlength=len(starts_at))
        draws = mix64(keys[starts_at] + (position[starts_at].astype(np.uint64) << np.uint64(1)))
        # Words that no row can take come last, so that they never block the first place.
        draws[sizes > self.rule.max_predictions] = np.iinfo(np.uint64).max
        rows = row_of[starts_at]
        # Rows in order, the words of each in random order.
        order = np.lexsort((draws, rows)) if len(starts_at) else starts_at
        ordered = sizes[order]
        before = np.cumsum(ordered) - ordered
        first_of_row = np.searchsorted(rows, np.arange(len(samples)))
        base = before[np.minimum(first_of_row, max(len(before) - 1, 0))] if len(before) else np.zeros(len(samples))
        # ``before - base``: tokens of the earlier words of the same row. Words are taken while they fit in the number
        # wanted; the first may be longer, so that every row with a word of at most P tokens has a prediction.
        offset, limit = before - base[rows[order]], wanted[rows[order]]
        taken = order[(offset + ordered <= limit) | ((offset == 0) & (ordered <= self.rule.max_predictions))]
        if self.rule.continuations is None:
            return np.sort(starts_at[taken])
        picked = np.zeros(len(starts_at), np.bool_)
        picked[taken] = True
        # A candidate belongs to the last word that began at or before it; what precedes the first word is no candidate.
        word_of = np.cumsum(starts) - 1
        return np.flatnonzero(candidate & picked[np.maximum(word_of, 0)])
