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

from bert_trainer.dataset.shards import Samples
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


def make_batch(samples: Samples, sample_numbers_B: NDArray[np.int64]) -> Batch:
    """Concatenate padded rows to their real tokens.

    samples: B rows whose real tokens come first, as every reader of shards checks. sample_numbers_B: their
    numbers in the data set. A prediction ends a row's list where its position is 0: [CLS] is never masked.
    """
    lengths_B = samples.input_mask.sum(axis=1, dtype=np.int64)
    longest = int(lengths_B.max())
    mask_BT = np.arange(longest) < lengths_B[:, None]
    row_N, position_N = np.nonzero(mask_BT)
    starts_B = np.cumsum(lengths_B) - lengths_B
    is_prediction_BP = samples.masked_lm_positions > 0
    masked_row_M = np.nonzero(is_prediction_BP)[0]
    masked_index_M = starts_B[masked_row_M] + samples.masked_lm_positions[is_prediction_BP]
    return Batch(
        tokens_N=_index(samples.input_ids[:, :longest][mask_BT]),
        positions_N=_index(position_N),
        segments_N=_index(samples.segment_ids[:, :longest][mask_BT]),
        token_row_N=_index(row_N),
        padded_index_N=_index(row_N * longest + position_N),
        row_mask_BT=torch.from_numpy(mask_BT),
        row_starts_B=_index(starts_B),
        masked_index_M=_index(masked_index_M),
        masked_labels_M=_index(samples.masked_lm_ids[is_prediction_BP]),
        next_sentence_B=_index(samples.next_sentence_labels),
        sample_numbers_B=sample_numbers_B,
    )


def _index(values: NDArray[np.integer]) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values, dtype=np.int64))
