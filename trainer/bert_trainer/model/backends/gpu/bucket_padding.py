"""Bucket padding: token counts of micro-batches are padded to buckets to reuse shapes.

The allocator then finds blocks of the right size again, and matrix products have sizes that suit tensor cores. Padding
is added as rows of its own, to which no other row attends; labels of padding are ignored, so that its gradients are 0
and it changes no result.

Letters: N tokens, B rows, T longest row, P tokens of padding.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from bert_trainer.model.batch import IGNORED_LABEL, Batch

_TILE = 64
"""Tokens and masked positions are multiples of it."""
_MAX_BUCKETS = 64
"""Token counts that a micro-batch can have: a full one is cut into so many buckets, or into fewer of ``_TILE``."""


@dataclass(frozen=True, slots=True)
class MicroBatchShape:
    """What all micro-batches of a stage have in common once they are padded."""

    sequence_length: int
    """Tokens; no row is longer."""
    rows: int
    """Of a full micro-batch, without padding."""

    @property
    def token_multiple(self) -> int:
        """Tokens are a multiple of this."""
        return max(_TILE, self.rows * self.sequence_length // _MAX_BUCKETS // _TILE * _TILE)

    @property
    def padded_rows(self) -> int:
        """Rows of every padded micro-batch whose samples are rows."""
        # Every row of padding has one token at least, so that each takes T - 1 more of the up to
        # ``token_multiple - 1`` tokens that a full micro-batch may lack.
        return self.rows + -(-(self.token_multiple - 1) // max(self.sequence_length - 1, 1))


def pad_to_bucket(batch: Batch, shape: MicroBatchShape) -> Batch:
    """Return a micro-batch, on a CPU, with padding behind its rows; ``num_tokens`` and the like count real ones only.

    Raises:
        ValueError: it has more rows, or longer ones, than the shape.
    """
    if batch.num_rows > shape.rows or batch.longest > shape.sequence_length:
        raise ValueError(f"batch: got {batch.num_rows} rows of up to {batch.longest} tokens; allowed: {shape}")
    num_real = len(batch.row_starts_B)
    # Pieces of documents may be more rows than a full micro-batch has: as many of padding then as that would get.
    num_rows = shape.padded_rows - min(num_real, shape.rows)
    # A token for each row of padding, and what is missing to the next multiple.
    num_tokens = -(batch.num_tokens + num_rows) % shape.token_multiple + num_rows
    # At least one tile, so that the head never computes with empty tensors.
    num_masked = -(-max(batch.num_masked, 1) // _TILE) * _TILE - batch.num_masked
    # Tokens are spread evenly over the rows: lengths differ by one at most, and none exceeds T.
    row_P = torch.arange(num_tokens) * num_rows // num_tokens
    lengths = torch.bincount(row_P, minlength=num_rows)
    starts = lengths.cumsum(0) - lengths
    position_P = torch.arange(num_tokens) - starts[row_P]
    starts += batch.num_tokens
    rows_N = torch.cat([batch.token_row_N, row_P + num_real])
    positions_N = torch.cat([batch.positions_N, position_P])
    ends = torch.cat([batch.row_bounds, (starts + lengths).int()])
    return Batch(
        tokens_N=_extend(batch.tokens_N, num_tokens, 0),
        positions_N=positions_N,
        segments_N=_extend(batch.segments_N, num_tokens, 0),
        token_row_N=rows_N,
        row_starts_B=torch.cat([batch.row_starts_B, starts]),
        row_bounds=ends,
        # The place of the first padding token: ignored predictions belong to no real row.
        masked_index_M=_extend(batch.masked_index_M, num_masked, batch.num_tokens),
        masked_labels_M=_extend(batch.masked_labels_M, num_masked, IGNORED_LABEL),
        next_sentence_B=_extend(batch.next_sentence_B, num_rows, IGNORED_LABEL),
        # What is dropped in rows of padding makes no difference.
        sample_numbers_B=np.append(batch.sample_numbers_B, np.zeros(num_rows, np.int64)),
        # The stage's, not this micro-batch's: layers would be compiled anew for every other value.
        longest=shape.sequence_length,
        num_rows=batch.num_rows,
        num_tokens=batch.num_tokens,
        num_pairs=batch.num_pairs,
        num_masked=batch.num_masked,
        targets=None if batch.targets is None else _extend_targets(batch.targets, num_rows),
    )


def _extend(values: Tensor, count: int, value: int) -> Tensor:
    return torch.cat([values, torch.full((count,), value, dtype=values.dtype)])


def _extend_targets(targets: Tensor, count: int) -> Tensor:
    """Append targets that count for nothing in any task's loss."""
    ignored = torch.nan if targets.is_floating_point() else IGNORED_LABEL
    return torch.cat([targets, targets.new_full((count, *targets.shape[1:]), ignored)])
