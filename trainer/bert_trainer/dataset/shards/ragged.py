"""Padding-free (varlen) samples: the tokens of all rows end to end, and a few numbers per row.

Any selection of rows is one vectorized gather. ``Samples`` is the padded form of the same rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bert_trainer.dataset.shards.samples import Samples
from bert_trainer.dataset.tokens.word_cache import ragged_indexes

_PER_ROW = ("token_counts", "first_segment_counts", "next_sentence_labels", "prediction_counts")


class UnorderedSegmentsError(ValueError):
    """A row's segment ids are not 0 ... 0 1 ... 1."""


@dataclass(frozen=True)
class RaggedSamples:
    """N rows of S tokens and M predictions together."""

    tokens: NDArray[np.integer]
    """(S,) uint16 or int32: [CLS] A [SEP] B [SEP] of every row, masked unless there are no predictions; in rows of
    documents [CLS] piece [SEP] of each, all of segment 0."""
    token_counts: NDArray[np.int64]
    """(N,): tokens of every row."""
    first_segment_counts: NDArray[np.int64]
    """(N,): tokens of [CLS] A [SEP], which are of segment 0; the others are of segment 1."""
    next_sentence_labels: NDArray[np.int8]
    """(N,): 1 where B is a random span, 0 where it follows A."""
    prediction_counts: NDArray[np.int64]
    """(N,): predictions of every row."""
    masked_lm_positions: NDArray[np.integer]
    """(M,) positions in the row, from 0."""
    masked_lm_ids: NDArray[np.integer]
    """(M,) original tokens at those positions."""

    def __len__(self) -> int:
        """Return N."""
        return len(self.token_counts)

    @cached_property
    def token_starts(self) -> NDArray[np.int64]:
        """(N,): offset of every row's first token (an exclusive prefix sum)."""
        return np.cumsum(self.token_counts) - self.token_counts

    @cached_property
    def prediction_starts(self) -> NDArray[np.int64]:
        """(N,): offset of every row's first prediction."""
        return np.cumsum(self.prediction_counts) - self.prediction_counts

    def take(self, rows: NDArray[np.int64] | slice) -> RaggedSamples:
        """Return the given rows in the given order; copies, or views for a slice of step 1."""
        per_row = {name: getattr(self, name)[rows] for name in _PER_ROW}
        if isinstance(rows, slice):
            first, stop, _ = rows.indices(len(self))
            tokens = _span(self.token_starts, len(self.tokens), first, stop)
            predictions = _span(self.prediction_starts, len(self.masked_lm_ids), first, stop)
            return RaggedSamples(
                tokens=self.tokens[tokens],
                masked_lm_positions=self.masked_lm_positions[predictions],
                masked_lm_ids=self.masked_lm_ids[predictions],
                **per_row,
            )
        from_predictions = ragged_indexes(self.prediction_starts[rows], per_row["prediction_counts"])
        return RaggedSamples(
            tokens=_take_runs(self.tokens, self.token_starts[rows], per_row["token_counts"]),
            masked_lm_positions=self.masked_lm_positions[from_predictions],
            masked_lm_ids=self.masked_lm_ids[from_predictions],
            **per_row,
        )

    @classmethod
    def empty(cls) -> RaggedSamples:
        """Return no rows."""
        counts, ids = np.zeros(0, np.int64), np.zeros(0, np.uint16)
        return cls(ids, counts, counts, np.zeros(0, np.int8), counts, ids, ids)

    @classmethod
    def without_tokens(cls, num_rows: int) -> RaggedSamples:
        """Return rows that hold nothing: in the places of those that are not read, and never taken."""
        counts, ids = np.zeros(num_rows, np.int64), np.zeros(0, np.uint16)
        return cls(ids, counts, counts, np.zeros(num_rows, np.int8), counts, ids, ids)

    @classmethod
    def concatenate(cls, parts: Sequence[RaggedSamples]) -> RaggedSamples:
        """Join at least one part, end to end; a single part is returned as it is."""
        if len(parts) == 1:
            return parts[0]
        names = [field.name for field in fields(cls)]
        return cls(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in names})

    @classmethod
    def from_padded(cls, samples: Samples) -> RaggedSamples:
        """Drop the padding of rows whose real tokens come first.

        Raises:
            UnorderedSegmentsError: a row has other segment ids than 0 ... 0 1 ... 1.
        """
        real = samples.input_mask == 1
        counts = real.sum(axis=1, dtype=np.int64)
        second = samples.segment_ids == 1
        # A row without padding stores its segments as one number, so a second fall from 1 to 0 cannot be kept.
        bad = ((second[:, :-1] > second[:, 1:]) & real[:, 1:]).any(axis=1)
        if bad.any():
            raise UnorderedSegmentsError(f"row {int(bad.argmax())} has segments other than 0 ... 0 1 ... 1")
        # Position 0 is [CLS], which is never predicted: in padded samples it marks an unused prediction.
        predicted = samples.masked_lm_positions > 0
        return cls(
            tokens=smallest_ids(samples.input_ids[real]),
            token_counts=counts,
            first_segment_counts=counts - (second & real).sum(axis=1, dtype=np.int64),
            next_sentence_labels=samples.next_sentence_labels,
            prediction_counts=predicted.sum(axis=1, dtype=np.int64),
            masked_lm_positions=samples.masked_lm_positions[predicted].astype(np.uint16),
            masked_lm_ids=smallest_ids(samples.masked_lm_ids[predicted]),
        )

    def to_padded(self, sequence_length: int, max_predictions: int) -> Samples:
        """Return the rows padded with 0; no row may be longer than the given shape."""
        at_token = np.arange(sequence_length)
        real = at_token < self.token_counts[:, None]
        predicted = np.arange(max_predictions) < self.prediction_counts[:, None]
        ids = np.zeros(real.shape, np.int32)
        ids[real] = self.tokens
        positions, labels = (np.zeros(predicted.shape, np.int32) for _ in range(2))
        positions[predicted], labels[predicted] = self.masked_lm_positions, self.masked_lm_ids
        second = real & (at_token >= self.first_segment_counts[:, None])
        return Samples(ids, real.astype(np.int8), second.astype(np.int8), positions, labels, self.next_sentence_labels)

    def prediction_places(self) -> NDArray[np.int64]:
        """(M,): index of every prediction among the S tokens."""
        starts: NDArray[np.int64] = np.repeat(self.token_starts, self.prediction_counts)
        # Positions are uint16 or int16: they would overflow without the conversion.
        indexes: NDArray[np.int64] = starts + self.masked_lm_positions.astype(np.int64)
        return indexes

    def piece_starts(self) -> NDArray[np.int64]:
        """Return where the pieces of rows of documents begin among the S tokens, ascending: each at its [CLS]."""
        is_start: NDArray[np.bool_] = self.tokens == self.tokens[:1]
        # A replacement may be any entry, [CLS] included.
        is_start[self.prediction_places()] = False
        return np.flatnonzero(is_start)

    def special_places(self, *, documents: bool) -> NDArray[np.int64]:
        """Return where [CLS] and [SEP] are among the S tokens, of rows of documents or of pairs; in any order."""
        if documents:
            starts = self.piece_starts()
            return np.concatenate([starts, starts[1:] - 1, [len(self.tokens) - 1]])
        starts = self.token_starts
        ends = (starts + counts - 1 for counts in (self.first_segment_counts, self.token_counts))
        return np.concatenate([starts, *ends])

    def unmasked(self) -> RaggedSamples:
        """Return the rows with their original tokens and without predictions."""
        # The labels may need the wider type: an original id above 65535 under a row of smaller ones.
        tokens = self.tokens.astype(np.promote_types(self.tokens.dtype, self.masked_lm_ids.dtype))
        tokens[self.prediction_places()] = self.masked_lm_ids
        return RaggedSamples(
            tokens=tokens,
            token_counts=self.token_counts,
            first_segment_counts=self.first_segment_counts,
            next_sentence_labels=self.next_sentence_labels,
            prediction_counts=np.zeros(len(self), np.int64),
            masked_lm_positions=np.zeros(0, np.uint16),
            masked_lm_ids=np.zeros(0, np.uint16),
        )


def smallest_ids(ids: NDArray[np.integer]) -> NDArray[np.integer]:
    """Return token ids as uint16 where all of them fit, else as int32."""
    fits = not ids.size or int(ids.max()) < 1 << 16
    smallest: NDArray[np.integer] = ids.astype(np.uint16 if fits else np.int32, copy=False)
    return smallest


def _take_runs(
    values: NDArray[np.integer], starts: NDArray[np.int64], counts: NDArray[np.int64]
) -> NDArray[np.integer]:
    """Return runs of the values end to end, (sum of counts,); what ``values[ragged_indexes(starts, counts)]`` is."""
    # Whole runs are copied: an index of eight bytes for every token of two takes twice the time at 128 tokens, three
    # times at 512. Of runs as short as predictions the index is faster.
    view = np.ascontiguousarray(values).data
    runs = [view[start:stop] for start, stop in zip(starts.tolist(), (starts + counts).tolist(), strict=True)]
    return np.frombuffer(bytearray().join(runs), values.dtype)


def _span(starts: NDArray[np.int64], total: int, first: int, stop: int) -> slice:
    """Return the slice of elements that belong to the rows from ``first`` to before ``stop``."""

    def offset(row: int) -> int:
        return int(starts[row]) if row < len(starts) else total

    return slice(offset(first), offset(max(first, stop)))


def ragged_sums(values: NDArray[Any], counts: NDArray[np.int64], dtype: type[np.integer] = np.int64) -> NDArray[Any]:
    """Return the sum of the first ``counts[0]`` values, then of the next ``counts[1]``, and so on, (n,).

    values: (sum of counts,). counts: may be 0. dtype: of the sums; those of uint64 wrap around modulo 2**64.
    """
    # Differences of one prefix sum, not np.add.reduceat: that returns a value for an empty run, where a sum is 0.
    # In modular arithmetic a difference is exact even after the prefix sum has wrapped around.
    totals = np.zeros(len(values) + 1, dtype=dtype)
    np.cumsum(values, dtype=dtype, out=totals[1:])
    ends = np.cumsum(counts)
    sums: NDArray[Any] = totals[ends] - totals[ends - counts]
    return sums
