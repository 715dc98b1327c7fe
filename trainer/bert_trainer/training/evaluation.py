"""Accuracy on samples that were not trained on, against a unigram baseline that any trained model must beat.

Accuracies are weighted by token (or pair) over the whole set: counts are summed over ranks and divided once,
never averaged over batches, whose sizes differ.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from bert_job.evaluation import DataRangeSpec
from bert_trainer.dataset.shards import ShardFolder
from bert_trainer.dataset.shards.ragged import RaggedSamples
from bert_trainer.errors import DataUnreadable, InputError
from bert_trainer.model.batch import Batch, make_batch
from bert_trainer.model.bert import Bert
from bert_trainer.parallel.row_balancing import rank_slice
from bert_trainer.parallel.world import World
from bert_trainer.system.atomic_files import is_storage_error
from bert_trainer.system.heartbeat import watched

# Enough to find the most frequent token of any corpus; bounds the scan of a large dataset.
_BASELINE_SHARDS = 8


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Shares in [0, 1] and mean losses in nats."""

    masked_lm: float
    next_sentence: float | None
    """None without that objective."""
    next_sentence_baseline: float | None
    """Accuracy of always giving the more frequent answer; None without that objective."""
    masked_lm_loss: float
    samples: int
    masked_tokens: int


@dataclass(frozen=True, slots=True)
class EvaluationSet:
    """The samples that a model is measured on. Holds no open file."""

    folder: ShardFolder
    first: int
    """Of the samples in shard order."""
    last: int
    """Exclusive."""
    micro_batch_size: int
    splits_documents: bool = False
    """As for ``make_batch``."""

    @classmethod
    def of(
        cls,
        folder: ShardFolder,
        *,
        micro_batch_size: int,
        max_samples: int | None = None,
        data_range: DataRangeSpec | None = None,
    ) -> EvaluationSet:
        """Take the first samples of a folder, or of a part of it.

        Raises:
            InputError: the part holds no sample.
        """
        total = folder.num_samples
        first, last = 0, total
        if data_range is not None:
            # Rounded as in SampleOrder: what a stage trains on up to 0.9 ends where this begins.
            first, last = round(data_range.start * total), round(data_range.end * total)
        if first >= last:
            assert data_range is not None, "a folder of shards holds samples"
            raise InputError(
                f"data_range: {data_range.start} to {data_range.end} of {total} samples to evaluate on holds none",
                hint="widen the range",
            )
        return cls(folder, first, min(last, first + (max_samples or total)), micro_batch_size)

    @property
    def paths(self) -> list[Path]:
        """Return the files that hold them."""
        return [self.folder.paths[shard] for shard, *_ in _parts(self.folder, self.first, self.last)]

    def read_row(self, number: int) -> RaggedSamples:
        """Return one sample. number: in shard order, from ``first`` to before ``last``."""
        ((shard, first, last, _),) = _parts(self.folder, number, number + 1)
        return self.folder.read_ragged(shard, slice(first, last))


@torch.no_grad()
def evaluate(model: Bert, data: EvaluationSet, world: World, device: torch.device) -> Accuracy:
    """Evaluate the model, without dropout, on samples that are split over the ranks. Collective."""
    model.eval()
    length, size = data.folder.sequence_length, data.micro_batch_size
    # Accumulated on the device, with one synchronization at the end; in fp64, which counts exactly.
    counts = torch.zeros(3, dtype=torch.float64, device=device)
    masked = rows = random_pairs = 0
    start, stop = rank_slice(data.last - data.first, world.rank, world.size)
    backend = model.backend
    with backend.step_context():
        for read in _batches(data, data.first + start, data.first + stop):
            random_pairs += int(read.next_sentence_B.sum())
            batch = backend.stage_batch(read, sequence_length=length, micro_batch_size=size).to(device)
            found = model(batch)
            counts += torch.stack(
                [part.double() for part in (found.masked_lm_correct, found.masked_lm, found.next_sentence_correct)]
            )
            masked, rows = masked + batch.num_masked, rows + batch.num_rows
            watched().alive()
    # Every rank reaches this, with or without samples of its own: the sum is collective.
    model.train()
    sums = world.sum_numbers([*counts.tolist(), masked, rows, random_pairs])
    correct, loss, pairs_correct, masked_tokens, samples, random_next = sums
    return Accuracy(
        masked_lm=correct / max(masked_tokens, 1),
        next_sentence=pairs_correct / samples if model.nsp is not None else None,
        next_sentence_baseline=max(random_next, samples - random_next) / samples if model.nsp is not None else None,
        masked_lm_loss=loss / max(masked_tokens, 1),
        samples=int(samples),
        masked_tokens=int(masked_tokens),
    )


def _batches(data: EvaluationSet, start: int, stop: int) -> Iterator[Batch]:
    """Yield samples [start, stop) in shard order."""
    size = data.micro_batch_size
    for shard, first, last, number in _parts(data.folder, start, stop):
        samples = data.folder.read_ragged(shard, slice(first, last))
        for at in range(0, last - first, size):
            part = slice(at, min(at + size, last - first))
            numbers = np.arange(part.start, part.stop) + number
            yield make_batch(samples.take(part), numbers, splits_documents=data.splits_documents)


def _parts(folder: ShardFolder, start: int, stop: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield every shard that holds some of samples [start, stop): its rows from, to, and the number of the first."""
    first_of_shard = 0
    for shard, rows in enumerate(folder.rows):
        first, last = max(start - first_of_shard, 0), min(stop - first_of_shard, rows)
        if first < last:
            yield shard, first, last, first_of_shard + first
        first_of_shard += rows


def unigram_baseline(training: ShardFolder, data: EvaluationSet, *, skip_unreadable: bool = False) -> float:
    """Return the accuracy of always predicting the training set's most frequent masked token, in [0, 1].

    Args:
        training: At most its first 8 shards are counted.
        data: What the accuracy is measured on.
        skip_unreadable: Whether training goes on without shards that cannot be read.

    Raises:
        DataUnreadable: As ``ShardFolder.read_ragged``.
    """
    counts = np.zeros(0, dtype=np.int64)
    for shard in range(min(len(training.rows), _BASELINE_SHARDS)):
        try:
            found = np.bincount(_labels(training, shard))
        except DataUnreadable as error:
            if not skip_unreadable or is_storage_error(error.__cause__):
                raise
            continue  # told when it was left out
        longer, shorter = (counts, found) if len(counts) >= len(found) else (found, counts)
        longer[: len(shorter)] += shorter
        counts = longer
    most_frequent = int(counts.argmax()) if len(counts) else -1
    right = total = 0
    for shard, first, last, _ in _parts(data.folder, data.first, data.last):
        labels = _labels(data.folder, shard, slice(first, last))
        right += int((labels == most_frequent).sum())
        total += len(labels)
    return right / max(total, 1)


def _labels(folder: ShardFolder, shard: int, rows: slice = slice(None)) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    samples = folder.read_ragged(shard, rows)
    chosen = samples.masked_lm_ids
    if not len(chosen):
        # Dynamic masking: the shards hold no masks, and any token but [CLS] and [SEP] may be masked.
        may_be = np.ones(len(samples.tokens), np.bool_)
        may_be[samples.special_places(documents=folder.documents)] = False
        chosen = samples.tokens[may_be]
    labels: np.ndarray[tuple[int], np.dtype[np.int64]] = chosen.astype(np.int64)
    return labels
