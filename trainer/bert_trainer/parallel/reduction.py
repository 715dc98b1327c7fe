"""The one gradient reduction of a step: buckets are all-reduced while the last backward pass still runs.

The flat gradients are cut into buckets of fixed bounds. A bucket is final when autograd has added the last gradient to
each of its parameters in the last micro-batch; then its reduction starts.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from bert_trainer.parallel import compression
from bert_trainer.parallel.flat_parameters import ROW, FlatParameters, Span
from bert_trainer.parallel.world import Pending, World
from bert_trainer.parallel.zero1 import Zero1Partition

# How many bounds of compressed buckets may be on their way before the first one's bucket is sent: 64 MiB of gradients,
# for which a backward pass takes longer than a bound does.
_BOUNDS_AHEAD = 4


@dataclass(frozen=True, slots=True)
class Bucket:
    """Rows that are reduced together."""

    number: int
    """Place in the buffer."""
    rows: slice
    own: slice
    """Where this rank's part of the sum goes, in its share of the gradients."""
    places: frozenset[int]
    """Parameters that have elements in it, by their place in the model."""


@dataclass(frozen=True, slots=True)
class ReductionTimes:
    """What one step's reduction cost on this rank."""

    sent_bytes: int
    """Gradients handed to the reduction, as they are sent; what a ring sends is about twice as much."""
    total_s: float
    """From the start of the first bucket to the end of the last."""
    exposed_s: float
    """From the end of the backward pass to the end of the last bucket: what the step waits for."""


class GradientReduction:
    """Sums ``parameters.gradients`` over ranks into ``own_gradients``, bucket by bucket.

    Each step calls ``watch`` before its last backward pass and ``finish`` after it; a rank without any
    micro-batch calls ``finish`` alone. Without ``watch`` all buckets start in ``finish``.
    """

    def __init__(
        self,
        parameters: FlatParameters,
        own_gradients: Tensor,
        partition: Zero1Partition,
        world: World,
        *,
        compressed: bool,
    ) -> None:
        """Register hooks that see gradients become final.

        Args:
            parameters: whose ``gradients`` are reduced.
            own_gradients: (rows of this rank's share, ROW), takes the sums.
            partition: decides the buckets, and this rank's rows of each.
            world: the ranks.
            compressed: whether to reduce in fp16.
        """
        self._world = world
        self._compressed = compressed
        self._gradients = parameters.gradients.view(-1, ROW)
        self._own = own_gradients
        self._split = partition.is_split
        self.buckets = plan_buckets(parameters.spans, partition.buckets, partition.own_in_share)
        """In the order in which they start."""
        self._watching = False
        self._clear()
        if world.size > 1:
            for span in parameters.spans:
                # "Post-accumulate": runs when all gradients of a parameter within one backward pass have been added,
                # also those that kernels added to ``main_grad`` themselves. A tied parameter, the token table, gets
                # one call for both of its uses, the head's and the embedding's.
                span.parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                    partial(self._mark_final, span)
                )

    def _clear(self) -> None:
        self._watching = False
        self._final: set[int] = set()
        self._next = 0
        self._bounds: deque[tuple[Bucket, Pending]] = deque()
        self._in_flight: deque[tuple[Bucket, Pending, Tensor | None]] = deque()
        self._started_at_s: float | None = None
        self._sent_bytes = 0

    def watch(self) -> None:
        """Start buckets as the backward pass that follows makes them final; it must be the step's last."""
        self._watching = self._world.size > 1

    def finish(self) -> ReductionTimes:
        """Start what has not started and wait for all; ``own_gradients`` then holds the sums."""
        at_end_s = time.perf_counter()
        started_at_s = at_end_s if self._started_at_s is None else self._started_at_s
        while self._next < len(self.buckets):
            self._start_next()
        self._send_bounded(but=0)
        while self._in_flight:
            self._store_first()
        now_s = time.perf_counter()
        times = ReductionTimes(self._sent_bytes, now_s - started_at_s, now_s - at_end_s)
        self._clear()
        return times if self._world.size > 1 else ReductionTimes(0, 0.0, 0.0)

    def _mark_final(self, span: Span, _parameter: Tensor) -> None:
        """Note that autograd has added the last gradient to a parameter, and start the buckets that it completes."""
        if not self._watching:
            return
        place = span.place_in_model
        # A second call for a parameter whose bucket has been sent: the sum that is under way lacks this gradient.
        if place in self._final and any(place in bucket.places for bucket in self.buckets[: self._next]):
            raise RuntimeError(f"{span.name}: got a gradient after it was reduced; this backward pass adds to it twice")
        self._final.add(place)
        # In one order on every rank, that of the backward pass: a bucket that is final early waits for its turn.
        while self._next < len(self.buckets) and self.buckets[self._next].places <= self._final:
            self._start_next()

    def _start_next(self) -> None:
        bucket = self.buckets[self._next]
        self._next += 1
        if self._started_at_s is None:
            self._started_at_s = time.perf_counter()
        if self._compressed:
            # Two collectives: the scale depends on the largest gradient of all ranks, so the bound goes first.
            bound = compression.largest(self._gradients[bucket.rows])
            self._bounds.append((bucket, self._world.start_all_reduce_(bound, f"bound.{bucket.number}")))
            self._send_bounded(but=_BOUNDS_AHEAD)
        else:
            self._send(bucket, self._gradients[bucket.rows], None)
        # Results that have arrived are stored at once, which frees the compressed copies while backward goes on.
        while self._in_flight and self._in_flight[0][1].done():
            self._store_first()

    def _send_bounded(self, *, but: int) -> None:
        """Send the buckets whose bounds are under way, in their order, but for the last few."""
        # By count, not by which bounds have arrived: torch.distributed matches collectives by their order, which would
        # differ between ranks. A rank that waits here is ahead of another one, for which it would wait later.
        while len(self._bounds) > but:
            bucket, pending = self._bounds.popleft()
            scale = compression.scale_for(pending.wait())
            self._send(bucket, compression.compress(self._gradients[bucket.rows], scale), scale)

    def _send(self, bucket: Bucket, rows: Tensor, scale: Tensor | None) -> None:
        # Each bucket is a collective of its own, so that its sum is that of a reduction after the backward pass, to the
        # bit, however far the pass has got.
        start = self._world.start_reduce_scatter if self._split else self._world.start_all_reduce_
        self._in_flight.append((bucket, start(rows, f"gradients.{bucket.number}"), scale))
        self._sent_bytes += rows.nbytes

    def _store_first(self) -> None:
        bucket, pending, scale = self._in_flight.popleft()
        result = pending.wait()
        if scale is not None:
            compression.decompress_(result, scale, self._own[bucket.own])
        elif self._split:
            self._own[bucket.own] = result
        # Otherwise the sum is in place already: ``own_gradients`` is a view of the flat gradients.


def plan_buckets(spans: list[Span], buckets: list[slice], own: list[slice]) -> list[Bucket]:
    """Return the buckets in the order in which a backward pass makes them final.

    Args:
        spans: the parameters' places in the flat buffers.
        buckets: rows of every bucket, in the buffer.
        own: this rank's rows of every bucket, in its share.
    """
    planned = []
    for number, (rows, own_rows) in enumerate(zip(buckets, own, strict=True)):
        start, stop = rows.start * ROW, rows.stop * ROW
        places = frozenset(span.place_in_model for span in spans if span.start < stop and start < span.stop)
        planned.append(Bucket(number, rows, own_rows, places))
    # Backward reaches the parameter nearest to the model's input last: a bucket is final with that one. So the bucket
    # of the tied token table, which is the model's first parameter, comes last.
    return sorted(planned, key=lambda bucket: (min(bucket.places, default=0), bucket.number), reverse=True)
