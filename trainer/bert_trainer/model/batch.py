"""A micro-batch as the model takes it: rows concatenated to their real tokens.

A row is what attention stays inside: a sample, or where attention stays inside documents one piece of a sample's.

Letters: N real tokens, B rows, T longest row, M masked positions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bert_trainer.dataset.shards.ragged import RaggedSamples
from bert_trainer.dataset.shards.samples import Samples
from bert_trainer.model.dropout import DropoutKeys, generator_seed, row_keys

IGNORED_LABEL = -100
"""Of padding: what ``torch.nn.functional.cross_entropy`` ignores."""
_PLACE_SHIFT = 40
"""Of a piece's place in its sample, above the sample's number. Both fit: samples have at most 2**15 tokens."""


@dataclass(frozen=True)
class Batch:
    """Index tensors are int64, which is what torch indexes with.

    Behind the real rows there may be padding (``gpu.bucket_padding``): rows, tokens and masked positions with ignored
    labels and targets, and with any sample numbers. Counts are of what is real.
    """

    tokens_N: Tensor
    positions_N: Tensor
    segments_N: Tensor
    token_row_N: Tensor
    """The row of every token."""
    row_starts_B: Tensor
    """The place of every row's first token among the N."""
    row_bounds: Tensor
    """int32 (B + 1,): the same, and the end."""
    masked_index_M: Tensor
    """The place of every masked position among the N."""
    masked_labels_M: Tensor
    next_sentence_B: Tensor
    sample_numbers_B: NDArray[np.int64]
    """What dropout knows rows by: the sample's number in the data set, and above it a piece's place in the sample."""
    longest: int
    """Tokens; no row has more."""
    num_rows: int
    """Sequences: samples, however many rows they make."""
    num_tokens: int
    num_pairs: int
    """Pairs of tokens that attend to each other."""
    num_masked: int
    """Predictions."""
    targets: Tensor | None = None
    """Of a fine-tuning task, whose rows have no masked positions: as ``TaskModel.forward`` takes them."""

    # Made when they are first asked for, on the batch's device: most backends never see a padded row.
    @cached_property
    def padded_index_N(self) -> Tensor:  # noqa: N802 - as the fields
        """The place of every token in rows padded to T and laid end to end."""
        return self.token_row_N * self.longest + self.positions_N

    @cached_property
    def row_mask_BT(self) -> Tensor:  # noqa: N802 - as the fields
        """bool: where a padded row has a token."""
        return torch.arange(self.longest, device=self.row_bounds.device) < self.row_bounds.diff()[:, None]

    def to(self, device: torch.device) -> Batch:
        """Return the batch with its tensors on a device; what is pinned is copied while the host goes on."""
        if device.type == "cpu":
            return self
        return self._map(lambda tensor: tensor.to(device, non_blocking=True))

    def pinned(self) -> Batch:
        """Return the batch in memory that a GPU can read by itself."""
        return self._map(Tensor.pin_memory)

    def _map(self, change: Callable[[Tensor], Tensor]) -> Batch:
        values = ((field.name, getattr(self, field.name)) for field in fields(self))
        changed: dict[str, Any] = {
            name: change(value) if isinstance(value, Tensor) else value for name, value in values
        }
        return Batch(**changed)

    def dropout_keys(self, seed: int, step: int) -> DropoutKeys:
        """Fix the random bits of this micro-batch at one step of one stage."""
        numbers_B, device = self.sample_numbers_B, self.tokens_N.device
        keys_B = row_keys(seed, step, numbers_B)
        if device.type == "cuda":
            keys_B = keys_B.pin_memory()
        keys_B = keys_B.to(device, non_blocking=True)
        return DropoutKeys(keys_B, self.token_row_N, self.positions_N, generator_seed(seed, step, int(numbers_B[0])))


def make_batch(
    samples: Samples | RaggedSamples, sample_numbers: NDArray[np.int64], *, splits_documents: bool = False
) -> Batch:
    """Lay samples end to end as the model takes them.

    Args:
        samples: Padded ones whose real tokens come first, as every reader of shards checks. A prediction ends a padded
            row's list where its position is 0: [CLS] is never masked.
        sample_numbers: Their numbers in the data set.
        splits_documents: Whether each piece of documents becomes a row of its own, with positions from 0 on.
    """
    ragged = RaggedSamples.from_padded(samples) if isinstance(samples, Samples) else samples
    starts_B, numbers_B, labels_B = ragged.token_starts, sample_numbers, ragged.next_sentence_labels
    if splits_documents:
        starts_B = ragged.piece_starts()
        sample_B = np.searchsorted(ragged.token_starts, starts_B, side="right") - 1
        places_B = starts_B - ragged.token_starts[sample_B]
        numbers_B, labels_B = sample_numbers[sample_B] + (places_B << _PLACE_SHIFT), labels_B[sample_B]
    lengths_B = np.diff(starts_B, append=len(ragged.tokens))
    row_N = np.repeat(np.arange(len(starts_B)), lengths_B)
    position_N = np.arange(len(ragged.tokens)) - np.repeat(starts_B, lengths_B)
    return Batch(
        tokens_N=_index(ragged.tokens),
        positions_N=_index(position_N),
        segments_N=_index(position_N >= np.repeat(ragged.first_segment_counts, ragged.token_counts)),
        token_row_N=_index(row_N),
        row_starts_B=_index(starts_B),
        # int32 is what the operators of variable-length attention take for bounds (gpu.attention).
        row_bounds=torch.from_numpy(np.append(starts_B, len(ragged.tokens)).astype(np.int32)),
        masked_index_M=_index(ragged.prediction_places()),
        masked_labels_M=_index(ragged.masked_lm_ids),
        next_sentence_B=_index(labels_B),
        sample_numbers_B=numbers_B,
        longest=int(lengths_B.max()),
        num_rows=len(ragged),
        num_tokens=len(ragged.tokens),
        num_pairs=int((lengths_B**2).sum()),
        num_masked=len(ragged.masked_lm_ids),
    )


def _index(values: NDArray[np.generic]) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values, dtype=np.int64))
