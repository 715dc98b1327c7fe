"""Rows of unequal length with a planted rule, as micro-batches here and as padded rows for Hugging Face.

Classes follow the second token, ratings the share of even tokens, and an answer stands between two marks: what a small
model learns within a few steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bert_trainer.dataset.shards.ragged import RaggedSamples
from bert_trainer.model.batch import Batch, make_batch
from bert_trainer.model.task_model import Head, TaskModel
from random_rows import FIRST_WORD, make_all_count, random_samples

MARKS = (FIRST_WORD, FIRST_WORD + 1)
"""Tokens before and behind an answer."""
CLASSES = 3


@dataclass(frozen=True)
class Rows:
    """Rows of one task."""

    samples: RaggedSamples
    targets: NDArray[Any]
    """int64 (R,), float32 (R,) or int64 (R, 2)."""

    def batch(self, rows: Sequence[int]) -> tuple[Batch, Tensor]:
        """Return the micro-batch of some rows, and their targets."""
        numbers = np.array(rows, dtype=np.int64)
        return make_batch(self.samples.take(numbers), numbers), torch.from_numpy(self.targets[numbers])

    def padded(self, rows: Sequence[int], *, segments: bool) -> dict[str, Tensor]:
        """Return the same rows padded to the longest of them, as Hugging Face's models take them."""
        taken = self.samples.take(np.array(rows, dtype=np.int64))
        padded = taken.to_padded(int(taken.token_counts.max()), 0)
        arrays = {"input_ids": padded.input_ids, "attention_mask": padded.input_mask}
        if segments:
            arrays["token_type_ids"] = padded.segment_ids
        return {name: torch.from_numpy(array).long() for name, array in arrays.items()}


def task_rows(kind: str, lengths: Sequence[int], *, vocabulary_size: int, seed: int) -> Rows:
    """Return rows of the given lengths, at least 8 tokens each."""
    rng = np.random.default_rng(seed)
    padded = random_samples(
        lengths, sequence_length=max(lengths), predictions=1, vocabulary_size=vocabulary_size, seed=seed
    )
    samples = RaggedSamples.from_padded(padded).unmasked()
    tokens, starts = samples.tokens.copy(), samples.token_starts
    if kind == "classification":
        return Rows(samples, tokens[starts + 1].astype(np.int64) % CLASSES)
    if kind == "regression":
        pieces = np.split(tokens, starts[1:])
        return Rows(samples, np.array([5 * np.mean(piece % 2 == 0) for piece in pieces], dtype=np.float32))
    targets = np.zeros((len(lengths), 2), dtype=np.int64)
    tokens[np.isin(tokens, MARKS)] = MARKS[1] + 1
    for row, length in enumerate(lengths):
        first, last = np.sort(rng.integers(2, length - 1, size=2))
        targets[row] = first, last
        tokens[starts[row] + first - 1], tokens[starts[row] + last + 1] = MARKS
    return Rows(RaggedSamples(**{**vars_of(samples), "tokens": tokens}), targets)


def vars_of(samples: RaggedSamples) -> dict[str, Any]:
    """Return a data class's fields."""
    return {name: getattr(samples, name) for name in samples.__dataclass_fields__}


def random_task_model(
    config: Any,
    kind: Any,
    vocabulary_size: int,
    *,
    seed: int = 5,
    dtype: torch.dtype = torch.float32,
    pooling: Any = "cls",
) -> TaskModel:
    """Return a model in which every parameter counts, as ``random_rows.random_model`` makes them."""
    outputs = {"classification": CLASSES, "spans": 2}.get(kind, 1)
    model = TaskModel(config, vocabulary_size, Head.of(kind, outputs, config, pooling=pooling))
    return make_all_count(model, seed=seed, dtype=dtype)
