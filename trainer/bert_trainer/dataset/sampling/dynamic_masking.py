"""Dynamic masking: masks drawn by the data loader as a function of (seed, epoch, sample number) alone.

So they are the same for any number of ranks, and no stream has to be saved or fast-forwarded on resume. The masks
themselves are those of ``masking``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bert_trainer.dataset.sampling.masking import MaskingRule, mask_rows
from bert_trainer.dataset.shards import ShardFolder
from bert_trainer.dataset.shards.ragged import RaggedSamples
from bert_trainer.dataset.tokens.wordpiece import Vocabulary
from bert_trainer.errors import InputError
from bert_trainer.system.random_bits import mix64

WORD_MASKS_VERSION = 2
"""Of whole words' masks, which checkpoints record. Before it, words behind one that did not fit were never masked."""
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
        key = mix64(mix64(np.array([self.seed], np.uint64)) + np.uint64(epoch))
        return mask_rows(samples, mix64(key + sample_numbers.astype(np.uint64)), self.rule)
