"""Filler: rows of nothing that bring a micro-batch to one of a few shapes.

Token counts differ from micro-batch to micro-batch. Rounded up to a multiple they come back, so that the allocator
finds blocks of the right size again and matrix products have sizes that tensor cores like. Filler is rows of its own,
which no other row sees; no loss looks at it, so that its gradients are 0 and it changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from bert_trainer.model.batch import IGNORED_LABEL, Batch

_TILE = 64
"""Tokens and masked positions are multiples of it."""
_SIZES = 64
"""Numbers of tokens that a micro-batch can have: a full one is cut into so many, or into fewer of ``_TILE``."""


@dataclass(frozen=True, slots=True)
class MicroBatchShape:
    """What all micro-batches of a stage have in common once they are filled."""

    sequence_length: int
    """Tokens; no row is longer."""
    rows: int
    """Of a full micro-batch, without filler."""

    @property
    def token_multiple(self) -> int:
        """Tokens are a multiple of this."""
        return max(_TILE, self.rows * self.sequence_length // _SIZES // _TILE * _TILE)

    @property
    def rows_with_filler(self) -> int:
        """Rows of every micro-batch; enough for the filler that a full one may need, at a token each or more."""
        return self.rows + -(-(self.token_multiple - 1) // max(self.sequence_length - 1, 1))


def fill(batch: Batch, shape: MicroBatchShape) -> Batch:
    """Return a micro-batch, on a CPU, with filler behind its rows; ``num_tokens`` and the like count real ones only.

    Raises:
        ValueError: it has more rows, or longer ones, than the shape.
    """
    if batch.num_rows > shape.rows or batch.longest > shape.sequence_length:
        raise ValueError(f"batch: got {batch.num_rows} rows of up to {batch.longest} tokens; allowed: {shape}")
    filler_rows = shape.rows_with_filler - batch.num_rows
    filler = -(batch.num_tokens + filler_rows) % shape.token_multiple + filler_rows
    unused = -(-max(batch.num_masked, 1) // _TILE) * _TILE - batch.num_masked
    row_F = torch.arange(filler) * filler_rows // filler
    lengths = torch.bincount(row_F, minlength=filler_rows)
    starts = lengths.cumsum(0) - lengths
    position_F = torch.arange(filler) - starts[row_F]
    starts += batch.num_tokens
    length, rows = shape.sequence_length, shape.rows_with_filler
    rows_N = torch.cat([batch.token_row_N, row_F + batch.num_rows])
    positions_N = torch.cat([batch.positions_N, position_F])
    ends = torch.cat([batch.row_bounds, (starts + lengths).int()])
    return Batch(
        tokens_N=_extend(batch.tokens_N, filler, 0),
        positions_N=positions_N,
        segments_N=_extend(batch.segments_N, filler, 0),
        token_row_N=rows_N,
        padded_index_N=rows_N * length + positions_N,
        row_mask_BT=torch.arange(length) < ends.diff()[:, None],
        row_starts_B=torch.cat([batch.row_starts_B, starts]),
        row_bounds=ends,
        masked_index_M=_extend(batch.masked_index_M, unused, batch.num_tokens),
        masked_labels_M=_extend(batch.masked_labels_M, unused, IGNORED_LABEL),
        next_sentence_B=_extend(batch.next_sentence_B, rows - batch.num_rows, IGNORED_LABEL),
        sample_numbers_B=batch.sample_numbers_B,
        longest=length,
        num_tokens=batch.num_tokens,
        num_masked=batch.num_masked,
    )


def _extend(values: Tensor, count: int, value: int) -> Tensor:
    return torch.cat([values, torch.full((count,), value, dtype=values.dtype)])


@dataclass(frozen=True, slots=True)
class Staging:
    """What is done to a micro-batch, by the thread that reads it, before it is copied to a GPU."""

    device: torch.device
    shape: MicroBatchShape

    def __call__(self, batch: Batch) -> Batch:
        """Fill it, and copy it to memory that the GPU can read while the host goes on."""
        filled = fill(batch, self.shape)
        # A thread's current device is 0 at first; pinning there would start CUDA on a GPU that is another rank's.
        with torch.cuda.device(self.device):
            return filled.pinned()


def stage_for(device: torch.device, sequence_length: int, micro_batch_size: int) -> Callable[[Batch], Batch] | None:
    """Return what readers do to the micro-batches of a stage; None on CPUs, which want them as they are."""
    if device.type != "cuda":
        return None
    return Staging(device, MicroBatchShape(sequence_length, micro_batch_size))
