"""How long a rank works by itself in its steps: reading batches, forward, backward. Waits for others are left out.

All ranks take a step in the same time, since each waits for the slowest: only what a rank does between the waits tells
which one that is. Optimizer, reports and checkpoints do not count: their work is the same on every rank, or rank 0's
alone.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from bert_trainer.system.heartbeat import watched


class ComputeTimer:
    """Measures compute time without synchronizing with the device."""

    def __init__(self, device: torch.device) -> None:
        """device: where forward and backward run."""
        self._is_gpu = device.type == "cuda"
        self._seconds = 0.0
        self._spans: deque[tuple[Any, Any]] = deque()
        """Events of the stream whose distance is not known yet."""

    @contextmanager
    def on_host(self) -> Iterator[None]:
        """Time the block on the host, without its waits for other ranks."""
        began_at_s, waited_s = time.perf_counter(), watched().waited_s
        yield
        self._seconds += time.perf_counter() - began_at_s - (watched().waited_s - waited_s)

    @contextmanager
    def on_device(self) -> Iterator[None]:
        """Time the block on the device, including gaps in which it waits for the host."""
        if not self._is_gpu:
            with self.on_host():
                yield
            return
        # The host's own time ends when all is launched, and it may wait for another rank while this device computes.
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begin.record()
        yield
        end.record()
        self._spans.append((begin, end))

    def take_s(self) -> float:
        """Return the seconds since the last call; unfinished device work counts at the next one."""
        while self._spans and self._spans[0][1].query():
            begin, end = self._spans.popleft()
            self._seconds += begin.elapsed_time(end) / 1e3
        seconds, self._seconds = self._seconds, 0.0
        return seconds
