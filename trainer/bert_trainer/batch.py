"""A micro-batch as the model takes it: rows concatenated to their real tokens.

Letters: N real tokens, B rows, T longest row, M masked positions.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bert_trainer.dataset.ragged import RaggedSamples
from bert_trainer.dataset.samples import Samples
from bert_trainer.dropout import DropoutKeys, row_keys


@dataclass(frozen=True, slots=True)
class Batch:
    """Index tensors are int64, which is what torch indexes with."""

    tokens_N: Tensor
    positions_N: Tensor
    segments_N: Tensor
    token_row_N: Tensor
    """The row of every token."""
    padded_index_N: Tensor
    """The place of every token in rows padded to T and laid end to end."""
    row_mask_BT: Tensor
    """bool: where a padded row has a token."""
    row_starts_B: Tensor
    """The place of every row's first token among the N."""
    masked_index_M: Tensor
    """The place of every masked position among the N."""
    masked_labels_M: Tensor
    next_sentence_B: Tensor
    sample_numbers_B: NDArray[np.int64]

    @property
    def num_rows(self) -> int:
        """Sequences."""
        return self.row_starts_B.shape[0]

    @property
    def num_tokens(self) -> int:
        """Real tokens."""
        return self.tokens_N.shape[0]

    @property
    def num_masked(self) -> int:
        """Predictions."""
        return self.masked_index_M.shape[0]

    def to(self, device: torch.device) -> Batch:
        """Return the batch with its tensors on a device."""
        if device.type == "cpu":
            return self
        moved: dict[str, Any] = {
            field.name: value.to(device, non_blocking=True) if isinstance(value, Tensor) else value
            for field in fields(self)
            for value in [getattr(self, field.name)]
        }
        return Batch(**moved)

    def dropout_keys(self, seed: int, step: int) -> DropoutKeys:
        """Fix the random bits of this micro-batch at one step of one stage."""
        keys_B = row_keys(seed, step, self.sample_numbers_B).to(self.tokens_N.device)
        return DropoutKeys(keys_B, self.token_row_N, self.positions_N)


def make_batch(samples: Samples | RaggedSamples, sample_numbers_B: NDArray[np.int64]) -> Batch:
    """Lay rows end to end as the model takes them.

    samples: B rows; padded ones whose real tokens come first, as every reader of shards checks.
    sample_numbers_B: their numbers in the data set. A prediction ends a padded row's list where its position
    is 0: [CLS] is never masked.
    """
    ragged = RaggedSamples.from_padded(samples) if isinstance(samples, Samples) else samples
    lengths_B, starts_B = ragged.token_counts, ragged.token_starts
    longest = int(lengths_B.max())
    row_N = np.repeat(np.arange(len(ragged)), lengths_B)
    place_N = np.arange(len(ragged.tokens))
    position_N = place_N - np.repeat(starts_B, lengths_B)
    # From place among the real tokens to place among the padded ones: a shift that is the row's alone.
    shift_B = np.arange(len(ragged)) * longest - starts_B
    return Batch(
        tokens_N=_index(ragged.tokens),
        positions_N=_index(position_N),
        segments_N=_index(position_N >= np.repeat(ragged.first_segment_counts, lengths_B)),
        token_row_N=_index(row_N),
        padded_index_N=_index(place_N + np.repeat(shift_B, lengths_B)),
        row_mask_BT=torch.from_numpy(np.arange(longest) < lengths_B[:, None]),
        row_starts_B=_index(starts_B),
        masked_index_M=_index(ragged.prediction_places()),
        masked_labels_M=_index(ragged.masked_lm_ids),
        next_sentence_B=_index(ragged.next_sentence_labels),
        sample_numbers_B=sample_numbers_B,
    )


def _index(values: NDArray[np.generic]) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values, dtype=np.int64))
