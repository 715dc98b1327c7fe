"""Totals over samples: what decides the size and the types of a file."""

from __future__ import annotations

from dataclasses import dataclass

from bert_trainer.dataset.shards.ragged import RaggedSamples


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums and maxima over samples."""

    rows: int = 0
    tokens: int = 0
    predictions: int = 0
    largest_token: int = 0
    """Largest id among the tokens."""
    largest_label: int = 0
    """Largest id among the original tokens."""
    longest_row: int = 0
    """Tokens of the longest row."""
    most_predictions: int = 0
    """Of a row."""

    @classmethod
    def of(cls, samples: RaggedSamples) -> Totals:
        """Count some samples."""
        return cls(
            rows=len(samples),
            tokens=len(samples.tokens),
            predictions=len(samples.masked_lm_ids),
            largest_token=int(samples.tokens.max(initial=0)),
            largest_label=int(samples.masked_lm_ids.max(initial=0)),
            longest_row=int(samples.token_counts.max(initial=0)),
            most_predictions=int(samples.prediction_counts.max(initial=0)),
        )

    def __add__(self, other: Totals) -> Totals:
        """Return the totals of both together."""
        return Totals(
            rows=self.rows + other.rows,
            tokens=self.tokens + other.tokens,
            predictions=self.predictions + other.predictions,
            largest_token=max(self.largest_token, other.largest_token),
            largest_label=max(self.largest_label, other.largest_label),
            longest_row=max(self.longest_row, other.longest_row),
            most_predictions=max(self.most_predictions, other.most_predictions),
        )
