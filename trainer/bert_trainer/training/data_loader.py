"""Prefetching for any training; and shards to the micro-batches of one rank: sample order, split over ranks.

The order of samples is a function of seed and epoch, and of the shards that are left out from a place in it on: every
rank computes the same one and takes its part of each global batch, so any number of ranks sees the same samples in the
same steps. Which rows of a step a rank takes follows from their lengths (``parallel.row_balancing``), which every rank
has in memory. A checkpoint stores a position and no order. Batches continue across epochs; every sample is seen once in
each.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Self

import numpy as np
from numpy.typing import NDArray

from bert_job.evaluation import DataRangeSpec
from bert_trainer.dataset.sampling.dynamic_masking import DynamicMasking
from bert_trainer.dataset.shards import ShardFolder
from bert_trainer.dataset.shards.ragged import RaggedSamples
from bert_trainer.errors import DataUnreadable, InputError, StorageFailed
from bert_trainer.model.batch import Batch, make_batch
from bert_trainer.parallel.row_balancing import balance_rows, rank_slice
from bert_trainer.system.atomic_files import is_storage_error

logger = logging.getLogger(__name__)

WINDOW_SAMPLES = 65536
"""Samples shuffled together: as many whole shards as fit, at least one. Bounds the reader's memory."""

READ_AGAIN_AFTER_S = (1.0, 4.0, 16.0)
"""Waits between attempts at a shard whose volume is in trouble: what lasts longer is no moment of a server's."""

# One step for the loop to take at once, one in preparation. More would only hold memory: a reader that is slower than
# the loop stays slower.
_READ_AHEAD_STEPS = 2


@dataclass(frozen=True, slots=True)
class _Window:
    """Shards that are in memory together, in one epoch's order."""

    first_index: int
    """Place of the window's first sample in the epoch."""
    shards: tuple[int, ...]
    num_samples: int


@dataclass(frozen=True, slots=True)
class _Piece:
    """Samples that lie in one window: the shards they come from and their rows there."""

    epoch: int
    window: int
    order: NDArray[np.int64]
    """Places in the window's concatenated shards."""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A shard that is left out of the order from a position on."""

    shard: int
    place: int
    """From which on: counted in the endless order of all samples, from which nothing is left out."""


class SampleOrder:
    """The endless order of a stage's samples.

    Shards are shuffled, taken in windows of about ``WINDOW_SAMPLES``, and samples shuffled inside each window. Samples
    of shards that are left out are taken away afterwards, so that the others keep their order; positions count what is
    left.
    """

    def __init__(
        self,
        rows: tuple[int, ...],
        seed: int,
        data_range: DataRangeSpec | None = None,
        left_out: tuple[LeftOut, ...] = (),
    ) -> None:
        """Find out which samples there are.

        Args:
            rows: Samples of every shard.
            seed: Of the order.
            data_range: The part of all samples, in shard order, that is used.
            left_out: Shards that are left out, each once.

        Raises:
            InputError: the range holds no sample, or all shards are left out.
        """
        data_range = data_range or DataRangeSpec(start=0.0, end=1.0)
        self._arguments = (rows, seed, data_range)
        self.left_out = left_out
        total = sum(rows)
        first, last = round(data_range.start * total), round(data_range.end * total)
        self.seed = seed
        self.shard_starts = [0, *accumulate(rows)]
        """Number of the first sample of every shard."""
        self.used_rows = [
            (max(first - start, 0), max(min(last - start, count), 0))
            for start, count in zip(self.shard_starts, rows, strict=False)
        ]
        """First and last (exclusive) row used of every shard."""
        self.num_samples = sum(max(stop - start, 0) for start, stop in self.used_rows)
        if self.num_samples == 0:
            raise InputError(
                f"dataRange: {data_range.start} to {data_range.end} of {total} samples holds none",
                hint="widen the range or build more samples",
            )
        gone = {it.shard: it.place for it in left_out}
        assert len(gone) == len(left_out), "a shard is left out once"
        self._gone = gone
        self._num_kept = self.num_samples - sum(self._used(shard) for shard in gone)
        if self._num_kept == 0:
            raise InputError(
                "every shard of this stage is left out: no sample remains",
                hint="restore the dataset; the log names each shard and why it was left out",
            )
        # Per instance: lru_cache on the methods would keep every instance alive. A step that crosses an epoch needs
        # entries of both; the hash of its samples asks for the same ones again.
        self.windows = lru_cache(maxsize=4)(self._windows)
        self.window_order = lru_cache(maxsize=4)(self._window_order)
        self.window_numbers = lru_cache(maxsize=4)(self._window_numbers)
        self.kept_places = lru_cache(maxsize=4)(self._kept_places)
        self.window_starts = lru_cache(maxsize=4)(self._window_starts)
        # Of every epoch up to the first from whose beginning on all of them are left out; all later ones are as long.
        num_mixed = -(-max(gone.values(), default=0) // self.num_samples)
        self._epoch_starts = [0, *accumulate(self.window_starts(epoch)[-1] for epoch in range(num_mixed))]

    def __reduce__(self) -> tuple[type[SampleOrder], tuple[object, ...]]:
        """Pickle the arguments alone, for the broadcast to the other ranks; lru_cache does not pickle."""
        return SampleOrder, (*self._arguments, self.left_out)

    def without(self, left_out: tuple[LeftOut, ...]) -> SampleOrder:
        """Return the order with another set of shards left out."""
        return SampleOrder(*self._arguments, left_out)

    def leave_out(self, shard: int, position: int) -> SampleOrder:
        """Return the order in which a shard is left out as well, from a position of this one on."""
        return self.without((*self.left_out, LeftOut(shard, self.place_of(position))))

    def _used(self, shard: int) -> int:
        start, stop = self.used_rows[shard]
        return max(stop - start, 0)

    def _windows(self, epoch: int) -> tuple[_Window, ...]:
        used = [shard for shard, (start, stop) in enumerate(self.used_rows) if stop > start]
        shuffled = [used[place] for place in self._random(epoch).permutation(len(used))]
        windows: list[_Window] = []
        shards: list[int] = []
        first = size = 0
        for shard in shuffled:
            count = self.used_rows[shard][1] - self.used_rows[shard][0]
            if shards and size + count > WINDOW_SAMPLES:
                windows.append(_Window(first, tuple(shards), size))
                first, shards, size = first + size, [], 0
            shards.append(shard)
            size += count
        return (*windows, _Window(first, tuple(shards), size))

    def _window_order(self, epoch: int, window: int) -> NDArray[np.int64]:
        """Places in the window's concatenated shards, in the order they are seen."""
        return self._random(epoch, window).permutation(self.windows(epoch)[window].num_samples)

    def _random(self, *key: int) -> np.random.Generator:
        # The length keeps (epoch,) and (epoch, 0) apart: SeedSequence ignores trailing zeros. Changing anything here
        # changes the order of every run that resumes.
        return np.random.Generator(np.random.Philox(np.random.SeedSequence((self.seed, len(key), *key))))

    def _kept_places(self, epoch: int, window: int) -> NDArray[np.int64] | None:
        """Return which places of a window's order are kept, ascending; None: all of them."""
        found = self.windows(epoch)[window]
        first_place = epoch * self.num_samples + found.first_index
        end = first_place + found.num_samples
        if all(self._gone.get(shard, end) >= end for shard in found.shards):
            return None
        order = self.window_order(epoch, window)
        kept = np.ones(len(order), np.bool_)
        starts = [0, *accumulate(self._used(shard) for shard in found.shards)]
        for shard, start, stop in zip(found.shards, starts, starts[1:], strict=False):
            if shard in self._gone:
                is_late = np.arange(len(order)) >= self._gone[shard] - first_place
                kept &= ~((order >= start) & (order < stop) & is_late)
        return np.flatnonzero(kept)

    def _window_starts(self, epoch: int) -> tuple[int, ...]:
        """Return the kept samples of an epoch before each of its windows, and last of all of them."""
        counts = []
        for number, window in enumerate(self.windows(epoch)):
            places = self._kept_places(epoch, number) if self._gone.keys() & set(window.shards) else None
            counts.append(window.num_samples if places is None else len(places))
        return (0, *accumulate(counts))

    def _locate(self, position: int) -> tuple[int, int]:
        """Return the epoch of a position, and the kept samples of that epoch before it."""
        starts = self._epoch_starts
        if position >= starts[-1]:
            epochs, index = divmod(position - starts[-1], self._num_kept)
            return len(starts) - 1 + epochs, index
        epoch = bisect_right(starts, position) - 1
        return epoch, position - starts[epoch]

    def place_of(self, position: int) -> int:
        """Return the place that a position has in the order of all samples, from which nothing is left out."""
        epoch, index = self._locate(position)
        window = bisect_right(self.window_starts(epoch), index) - 1
        offset = index - self.window_starts(epoch)[window]
        places = self.kept_places(epoch, window)
        within = offset if places is None else int(places[offset])
        return epoch * self.num_samples + self.windows(epoch)[window].first_index + within

    def pieces(self, start: int, stop: int) -> Iterator[_Piece]:
        """Cut positions [start, stop) of the endless order at the bounds of epochs and windows."""
        while start < stop:
            epoch, index = self._locate(start)
            starts = self.window_starts(epoch)
            # The last of those that begin there: one that is left out as a whole begins where the next does.
            number = bisect_right(starts, index) - 1
            offset = index - starts[number]
            count = min(stop - start, starts[number + 1] - index)
            order, places = self.window_order(epoch, number), self.kept_places(epoch, number)
            kept = order if places is None else order[places]
            yield _Piece(epoch, number, kept[offset : offset + count])
            start += count

    def _window_numbers(self, epoch: int, window: int) -> NDArray[np.int64]:
        """Numbers in the data set of the window's concatenated samples, int64."""
        ranges = []
        for shard in self.windows(epoch)[window].shards:
            start, stop = self.used_rows[shard]
            ranges.append(np.arange(start, stop, dtype=np.int64) + self.shard_starts[shard])
        return np.concatenate(ranges)

    def sample_numbers(self, start: int, stop: int) -> NDArray[np.int64]:
        """Numbers in the data set of the samples at positions [start, stop) of the order, int64."""
        return np.concatenate(
            [self.window_numbers(piece.epoch, piece.window)[piece.order] for piece in self.pieces(start, stop)]
        )


def num_micro_batches(global_batch_size: int, micro_batch_size: int, world_size: int) -> int:
    """Return the forward passes of one step, over all ranks."""
    slices = (rank_slice(global_batch_size, rank, world_size) for rank in range(world_size))
    return sum(-(-(stop - start) // micro_batch_size) for start, stop in slices)


class ReadAhead(ABC):
    """One rank's micro-batches of the steps of a training, prefetched by a thread.

    Use it as a context manager, so that the thread ends with the training.
    """

    def __init__(self, first_step: int, last_step: int) -> None:
        """Prepare to read; the thread starts on ``__enter__``. Steps are counted from 0, last_step is exclusive."""
        self.most_tokens = 0
        """Real tokens of the busiest rank in the step that ``next_step`` returned last."""
        self.waited_s = 0.0
        """Seconds that ``next_step`` has waited so far."""
        self._last_step = last_step
        self._queue: queue.Queue[tuple[list[Batch], int] | BaseException] = queue.Queue(_READ_AHEAD_STEPS)
        self._closed = threading.Event()
        self._thread = self._make_thread(first_step)

    @abstractmethod
    def read_step(self, step: int) -> tuple[list[Batch], int]:
        """Return this rank's micro-batches, and the real tokens of the busiest rank."""

    def _make_thread(self, first_step: int) -> threading.Thread:
        steps = range(first_step, self._last_step)
        return threading.Thread(target=self._read_ahead, args=(steps,), name="stage-reader", daemon=True)

    def __enter__(self) -> Self:
        """Start reading."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop reading and wait for the thread."""
        self._stop()

    def _restart(self, step: int) -> None:
        """Read on from a step, where nothing is read ahead any more."""
        self._closed.clear()
        self._thread = self._make_thread(step)
        self._thread.start()

    def _stop(self) -> None:
        self._closed.set()
        # The thread may block on a full queue, and may fill it again after each draining, until it sees the flag.
        while self._thread.is_alive():
            self._drain()
            self._thread.join(timeout=0.01)
        self._drain()

    def next_step(self) -> list[Batch]:
        """Return the micro-batches of the next step, in order; raises whatever ended the reading."""
        began_s = time.monotonic()
        # Without a timeout: whatever ends the reader, its error included, comes through this queue.
        item = self._queue.get()
        self.waited_s += time.monotonic() - began_s
        if isinstance(item, BaseException):
            raise item
        batches, self.most_tokens = item
        return batches

    def _drain(self) -> None:
        while not self._queue.empty():
            self._queue.get_nowait()

    def _read_ahead(self, steps: Iterable[int]) -> None:
        try:
            for step in steps:
                if self._closed.is_set():
                    return
                self._queue.put(self.read_step(step))
        except BaseException as error:  # noqa: BLE001 - raised in the training thread by next_step
            self._queue.put(error)


class StageReader(ReadAhead):
    """Reads the steps of a pretrain stage.

    ``next_step`` raises DataUnreadable where a shard cannot be used, which ``failed_shard`` names, and StorageFailed
    where the folder of shards is gone.
    """

    def __init__(
        self,
        folder: ShardFolder,
        order: SampleOrder,
        *,
        global_batch_size: int,
        micro_batch_size: int,
        rank: int,
        world_size: int,
        first_step: int,
        last_step: int,
        masking: DynamicMasking | None = None,
        splits_documents: bool = False,
        balanced: bool = True,
        staged: Callable[[Batch], Batch] | None = None,
    ) -> None:
        """Prepare to read; the thread starts on ``__enter__``.

        Args:
            folder: Shards of one split and length.
            order: The stage's sample order.
            global_batch_size: Rows per step, over all ranks.
            micro_batch_size: Rows per micro-batch, at most.
            rank: This rank.
            world_size: Number of ranks.
            first_step: Counted from 0.
            last_step: Exclusive.
            masking: Draws masks; without it those of the files are used.
            splits_documents: As for ``make_batch``.
            balanced: Ranks get nearly the same number of tokens of every step; otherwise contiguous parts of it.
            staged: Applied to every micro-batch in the reading thread (``Backend.stage_batch``).
        """
        super().__init__(first_step, last_step)
        self.folder = folder
        self.order = order
        self.global_batch_size = global_batch_size
        self.micro_batch_size = micro_batch_size
        self.masking = masking
        self.splits_documents = splits_documents
        self.rank = rank
        self.world_size = world_size
        self.balanced = balanced
        self.staged = staged
        self.failed_shard: int | None = None
        """The shard whose reading has failed, once ``next_step`` has raised its error."""
        self._loaded: tuple[tuple[int, int], RaggedSamples] | None = None

    def restart(self, order: SampleOrder, step: int) -> None:
        """Read another order from a step on; what was read ahead is forgotten."""
        self._stop()
        self.order, self._loaded, self.failed_shard = order, None, None
        self._restart(step)

    def read_step(self, step: int) -> tuple[list[Batch], int]:
        """Return this rank's micro-batches, and the real tokens of the busiest rank."""
        samples, numbers, loads = self.read_rows(step * self.global_batch_size)
        bounds = range(0, len(numbers), self.micro_batch_size)
        parts = (slice(at, at + self.micro_batch_size) for at in bounds)
        batches = [
            make_batch(samples.take(part), numbers[part], splits_documents=self.splits_documents) for part in parts
        ]
        if self.staged is not None:
            batches = [self.staged(batch) for batch in batches]
        return batches, int(loads.max())

    def read_rows(self, start: int) -> tuple[RaggedSamples, NDArray[np.int64], NDArray[np.int64]]:
        """Return this rank's rows of the step that begins at ``start``, their numbers, and all ranks' tokens."""
        parts, numbers = [], []
        loads, num_assigned = np.zeros(self.world_size, np.int64), 0
        # Piece by piece, since only one window is in memory; a step seldom has more than one. Every rank reads whole
        # windows, the other ranks' rows included: balancing needs all lengths, and so no exchange between ranks.
        for piece in self.order.pieces(start, start + self.global_batch_size):
            window = self._window(piece.epoch, piece.window)
            own = self._own_rows(piece.order, window.token_counts[piece.order], num_assigned, loads)
            num_assigned += len(piece.order)
            taken = window.take(own)
            own_numbers = self.order.window_numbers(piece.epoch, piece.window)[own]
            parts.append(taken if self.masking is None else self.masking.mask(taken, piece.epoch, own_numbers))
            numbers.append(own_numbers)
        return RaggedSamples.concatenate(parts), np.concatenate(numbers), loads

    def _own_rows(
        self, rows_R: NDArray[np.int64], tokens_R: NDArray[np.int64], num_assigned: int, loads: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Return those of a piece's rows that are this rank's; adds all ranks' tokens to ``loads``."""
        if self.world_size == 1:
            # Balancing a single rank, row by row, took longer than all the rest of loading.
            loads += tokens_R.sum()
            return rows_R
        if self.balanced:
            rank_R = balance_rows(tokens_R, num_assigned, loads)
        else:
            starts = [rank_slice(self.global_batch_size, rank, self.world_size)[0] for rank in range(self.world_size)]
            rank_R = np.searchsorted(starts, np.arange(num_assigned, num_assigned + len(tokens_R)), side="right") - 1
            loads += np.bincount(rank_R, tokens_R, self.world_size).astype(np.int64)
        own: NDArray[np.int64] = rows_R[rank_R == self.rank]
        return own

    def _window(self, epoch: int, window: int) -> RaggedSamples:
        """Return a window's samples, and forget those of the window before: the order never goes back."""
        if self._loaded is None or self._loaded[0] != (epoch, window):
            # Before the next one is read, or both would be in memory.
            self._loaded = None
            parts = []
            gone = {it.shard for it in self.order.left_out}
            for shard in self.order.windows(epoch)[window].shards:
                start, stop = self.order.used_rows[shard]
                if shard in gone:
                    # In their places, where nobody looks: a reader only goes on behind where they were left out.
                    parts.append(RaggedSamples.without_tokens(stop - start))
                    continue
                self.failed_shard = shard
                parts.append(self._read_patiently(shard, slice(start, stop)))
            self.failed_shard = None
            self._loaded = ((epoch, window), RaggedSamples.concatenate(parts))
        return self._loaded[1]

    def _read_patiently(self, shard: int, rows: slice) -> RaggedSamples:
        """Read a shard; again after a while where its volume was in trouble, since that may pass."""
        for wait_s in (*READ_AGAIN_AFTER_S, None):
            try:
                if self.masking is None:
                    return self.folder.read_ragged(shard, rows)
                return self.masking.read_unmasked(self.folder, shard, rows)
            except (DataUnreadable, StorageFailed) as error:
                if wait_s is None or not is_storage_error(error.__cause__):
                    raise
                logger.warning("%s; trying again in %.0f s", error.message, wait_s)
                if self._closed.wait(wait_s):
                    raise
        raise AssertionError("the last attempt returns or raises")
