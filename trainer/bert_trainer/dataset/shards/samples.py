"""Padded rows of one shard as arrays: from the generator to the files, and from the files to their readers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Samples:
    """Rows of one shard. N samples, T tokens (the sequence length), P predictions at most."""

    input_ids: NDArray[np.int32]
    """(N, T): [CLS] A [SEP] B [SEP], masked, then 0."""
    input_mask: NDArray[np.int8]
    """(N, T): 1 on real tokens, 0 on padding."""
    segment_ids: NDArray[np.int8]
    """(N, T): 0 for [CLS] A [SEP], 1 for B [SEP], then 0."""
    masked_lm_positions: NDArray[np.int32]
    """(N, P): ascending positions in the row, then 0, which is never predicted."""
    masked_lm_ids: NDArray[np.int32]
    """(N, P): original tokens at the positions, then 0."""
    next_sentence_labels: NDArray[np.int8]
    """(N,): 1 where B is a random span, 0 where it follows A."""

    def __len__(self) -> int:
        """Return N."""
        return len(self.input_ids)

    def take(self, rows: NDArray[np.int64] | slice) -> Samples:
        """Return the given rows in the given order; copies, or views for a slice."""
        return Samples(*(getattr(self, field.name)[rows] for field in fields(self)))

    @classmethod
    def concatenate(cls, parts: Sequence[Samples]) -> Samples:
        """Join samples of one shape, end to end; a single part is returned as it is."""
        if len(parts) == 1:
            return parts[0]
        return cls(*(np.concatenate([getattr(part, field.name) for part in parts]) for field in fields(cls)))


# Names and types in memory; the names are those of NVIDIA's files and of every layout with padding.
DATASETS = {field.name: np.dtype(kind) for field, kind in zip(
    fields(Samples), ("int32", "int8", "int8", "int32", "int32", "int8"), strict=True
)}  # fmt: skip
