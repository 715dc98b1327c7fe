"""The one reduction round of a step: gradients summed over ranks while the last backward pass still runs.

The flat gradients are cut into chunks of fixed bounds. A chunk is final when autograd has added the last gradient
to each of its parameters in the last micro-batch; then its reduction starts. Chunks start in a fixed order, that
of the backward pass, on every rank: one that is final early waits for its turn. Each is reduced on its own, so the
sums are those of a reduction after the backward pass, to the bit. The tied token table is last: autograd adds both of
its gradients, the head's and the embedding's, before it reports the parameter.
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
from bert_trainer.parallel.zero1 import Partition


@dataclass(frozen=True, slots=True)
class Chunk:
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
    """Gradients handed to the reduction, as they travel; what a ring sends is about twice as much."""
    total_s: float
    """From the start of the first chunk to the end of the last."""
    exposed_s: float
    """From the end of the backward pass to the end of the last chunk: what the step waits for."""


class GradientReduction:
    """Sums ``parameters.gradients`` over ranks into ``own_gradients``, chunk by chunk.

    Each step calls ``watch`` before its last backward pass and ``finish`` after it; a rank without any
    micro-batch calls ``finish`` alone. Without ``watch`` all chunks start in ``finish``.
    """

    def __init__(
        self, parameters: FlatParameters, own_gradients: Tensor, partition: Partition, world: World, *, compressed: bool
    ) -> None:
        """own_gradients: (rows of this rank's share, ROW), takes the sums. compressed: all-reduce in fp16."""
        self._world = world
        self._compressed = compressed
        self._gradients = parameters.gradients.view(-1, ROW)
        self._own = own_gradients
        self._split = partition.is_split
        self.chunks = plan_chunks(parameters.spans, partition.chunks, partition.own_in_share)
        """In the order in which they start."""
        self._watching = False
        self._clear()
        if world.size > 1:
            for span in parameters.spans:
                span.parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                    partial(self._take_note, span)
                )

    def _clear(self) -> None:
        self._watching = False
        self._final: set[int] = set()
        self._next = 0
        self._bounds: deque[tuple[Chunk, Pending]] = deque()
        self._under_way: deque[tuple[Chunk, Pending, Tensor | None]] = deque()
        self._started_at_s: float | None = None
        self._sent_bytes = 0

    def watch(self) -> None:
        """Start chunks as the backward pass that follows makes them final; it must be the step's last."""
        self._watching = self._world.size > 1

    def finish(self) -> ReductionTimes:
        """Start what has not started and wait for all; ``own_gradients`` then holds the sums."""
        at_end_s = time.perf_counter()
        started_at_s = at_end_s if self._started_at_s is None else self._started_at_s
        while self._next < len(self.chunks):
            self._start_next()
        self._send_bounded(wait=True)
        while self._under_way:
            self._store_first()
        now_s = time.perf_counter()
        times = ReductionTimes(self._sent_bytes, now_s - started_at_s, now_s - at_end_s)
        self._clear()
        return times if self._world.size > 1 else ReductionTimes(0, 0.0, 0.0)

    def _take_note(self, span: Span, _parameter: Tensor) -> None:
        """Autograd has added to a parameter's gradient."""
        if not self._watching:
            return
        place = span.place_in_model
        if place in self._final and any(place in chunk.places for chunk in self.chunks[: self._next]):
            raise RuntimeError(f"{span.name}: got a gradient after it was reduced; this backward pass adds to it twice")
        self._final.add(place)
        while self._next < len(self.chunks) and self.chunks[self._next].places <= self._final:
            self._start_next()

    def _start_next(self) -> None:
        chunk = self.chunks[self._next]
        self._next += 1
        if self._started_at_s is None:
            self._started_at_s = time.perf_counter()
        if self._compressed:
            bound = compression.largest(self._gradients[chunk.rows])
            self._bounds.append((chunk, self._world.start_sum_(bound, f"bound.{chunk.number}")))
            self._send_bounded(wait=False)
        else:
            self._send(chunk, self._gradients[chunk.rows], None)
        while self._under_way and self._under_way[0][1].done():
            self._store_first()

    def _send_bounded(self, *, wait: bool) -> None:
        """Send the chunks whose bounds have arrived, in their order."""
        while self._bounds and (wait or self._bounds[0][1].done()):
            chunk, pending = self._bounds.popleft()
            scale = compression.scale_for(pending.wait())
            self._send(chunk, compression.pack(self._gradients[chunk.rows], scale), scale)

    def _send(self, chunk: Chunk, rows: Tensor, scale: Tensor | None) -> None:
        begin = self._world.start_sum_share if self._split else self._world.start_sum_
        self._under_way.append((chunk, begin(rows, f"gradients.{chunk.number}"), scale))
        self._sent_bytes += rows.nbytes

    def _store_first(self) -> None:
        chunk, pending, scale = self._under_way.popleft()
        result = pending.wait()
        if scale is not None:
            compression.unpack_(result, scale, self._own[chunk.own])
        elif self._split:
            self._own[chunk.own] = result


def plan_chunks(spans: list[Span], chunks: list[slice], own: list[slice]) -> list[Chunk]:
    """Return the chunks in the order in which a backward pass makes them final.

    chunks, own: rows of every chunk, in the buffer and in this rank's share. A chunk is final with the gradient that
    arrives last, that of the parameter nearest to the model's input.
    """
    planned = []
    for number, (rows, own_rows) in enumerate(zip(chunks, own, strict=True)):
        start, stop = rows.start * ROW, rows.stop * ROW
        places = frozenset(span.place_in_model for span in spans if span.start < stop and start < span.stop)
        planned.append(Chunk(number, rows, own_rows, places))
    return sorted(planned, key=lambda chunk: (min(chunk.places, default=0), chunk.number), reverse=True)
