"""Traces and times chosen steps: a file for TensorBoard's profiler plugin, Perfetto or chrome://tracing, and a table.

When it is off, the default, each part of a step costs one call that does nothing. On a GPU parts are timed by events
of the stream, without synchronizing: forward, backward, reduction and optimizer are what the device did between two
events, data and checkpoint what the host waited for. Reduction that overlaps the backward pass counts as backward;
``reduction`` is its exposed rest.

A trace has one ``ProfilerStep#N`` per step, which the plugin looks for. Tracing slows steps down, most of all those
with many small operations: trust the shares; the sum is above that of an untraced step.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, get_args

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from bert_job.reporting import ProfileStepsSpec
from bert_trainer.system.atomic_files import create_partial, disk_errors
from bert_trainer.system.heartbeat import watched

Part = Literal["data", "forward", "backward", "reduction", "optimizer", "checkpoint"]
PARTS: tuple[Part, ...] = get_args(Part)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """Seconds over several steps of one stage, on one rank."""

    stage: str
    first: int
    last: int
    """Steps counted from 1; both belong to it."""
    total_s: float
    part_s: Mapping[Part, float]

    @property
    def steps(self) -> int:
        """How many there are."""
        return self.last - self.first + 1

    @property
    def other_s(self) -> float:
        """Time outside the measured parts: reports, and Python between the parts."""
        return max(0.0, self.total_s - sum(self.part_s.values()))

    def to_record(self) -> dict[str, str | int | float | None]:
        """Return flat fields for the metrics, in seconds per step."""
        parts = {f"{part}_s": self.part_s.get(part, 0.0) / self.steps for part in PARTS}
        return {
            "stage": self.stage,
            "first_step": self.first,
            "last_step": self.last,
            "step_s": self.total_s / self.steps,
            **parts,
            "other_s": self.other_s / self.steps,
        }


def render_step_times(times: StepTimes) -> str:
    """Return a table for people: milliseconds per step and the share of each part."""
    rows = [*((part, times.part_s.get(part, 0.0)) for part in PARTS), ("other", times.other_s)]
    whole = max(times.total_s, 1e-12)
    lines = [f"{times.stage}, steps {times.first} to {times.last}: where a step's time went"]
    lines += [f"  {name:<10} {1e3 * seconds / times.steps:>10.2f} ms {seconds / whole:>7.1%}" for name, seconds in rows]
    lines.append(f"  {'step':<10} {1e3 * times.total_s / times.steps:>10.2f} ms")
    return "\n".join(lines)


FOLDER = "profile"
_ON_HOST: tuple[Part, ...] = ("data", "checkpoint")
_NOTHING: AbstractContextManager[None] = contextlib.nullcontext()

OnProfile = Callable[[StepTimes, Path], None]


class Profiler(Protocol):
    """What the training loop calls, in this order, once per step."""

    def start_step(self, stage: str, step: int) -> None:
        """Begin a step of a stage, counted from 1."""

    def part(self, name: Part) -> AbstractContextManager[None]:
        """Return the context of a part of the step."""

    def paused(self) -> AbstractContextManager[None]:
        """Return a context whose time belongs to no step, such as that of an evaluation."""

    def end_step(self) -> None:
        """End the step; after the last one that was requested, write the trace."""

    def close(self) -> None:
        """Write the trace so far, where a stage or a run ends before the last requested step."""


class NoProfiler:
    """The default: does nothing."""

    def start_step(self, stage: str, step: int) -> None:
        """Do nothing."""

    def part(self, name: Part) -> AbstractContextManager[None]:
        """Return a context that does nothing."""
        return _NOTHING

    def paused(self) -> AbstractContextManager[None]:
        """Return a context that does nothing."""
        return _NOTHING

    def end_step(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


class StepProfiler:
    """Traces the steps of one rank that a ``ProfileStepsSpec`` covers."""

    def __init__(
        self, steps: ProfileStepsSpec, folder: Path, *, rank: int, device: torch.device, on_profile: OnProfile | None
    ) -> None:
        """folder: the run's; the trace goes below it. on_profile: called with the times and the path of the trace."""
        self._steps, self._folder, self._rank, self._device, self._on_profile = steps, folder, rank, device, on_profile
        self._stage = ""
        self._clear()

    def _clear(self) -> None:
        self._profile: profile | None = None
        self._traced: list[int] = []
        self._step_record: record_function | None = None
        self._started_at_s = self._total_s = 0.0
        self._spans: list[tuple[Part, _Moment, _Moment]] = []
        self._spans_before = 0

    def start_step(self, stage: str, step: int) -> None:
        """Start the trace with the first step that is covered, and mark every one in it."""
        if not self._steps.covers(stage, step):
            return
        if self._profile is None:
            self._stage = stage
            activities = [ProfilerActivity.CPU]
            if self._device.type == "cuda":
                activities.append(ProfilerActivity.CUDA)
            self._profile = profile(activities=activities, record_shapes=True)
            self._profile.start()
        self._traced.append(step)
        self._spans_before = len(self._spans)
        self._step_record = record_function(f"ProfilerStep#{step}")
        self._step_record.__enter__()  # type: ignore[no-untyped-call]
        self._started_at_s = time.perf_counter()

    def part(self, name: Part) -> AbstractContextManager[None]:
        """Return a context that is named in the trace and timed, during a step that is covered."""
        return _NOTHING if self._step_record is None else self._timed(name)

    @contextmanager
    def _timed(self, name: Part) -> Iterator[None]:
        on_device = self._device.type == "cuda" and name not in _ON_HOST
        with record_function(name):
            start = _Moment(on_device=on_device)
            yield
            self._spans.append((name, start, _Moment(on_device=on_device)))

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave the time inside out of the step; the trace shows it under its own name."""
        began_s = time.perf_counter()
        with record_function("evaluation") if self._step_record is not None else _NOTHING:
            yield
        self._started_at_s += time.perf_counter() - began_s

    def end_step(self) -> None:
        """Close the step; write after the last one."""
        if self._step_record is None:
            return
        self._total_s += time.perf_counter() - self._started_at_s
        self._leave_step()
        if self._traced[-1] == self._steps.last:
            self.close()

    def _leave_step(self) -> None:
        if self._step_record is not None:
            self._step_record.__exit__(None, None, None)
            self._step_record = None

    def close(self) -> None:
        """Write the trace beside its place, rename it, and report the times; nothing where no step was traced.

        Raises:
            InputError, TrainerError: as ``atomic_files.disk_errors``.
        """
        if self._profile is None:
            return
        if self._step_record is not None:  # stopped in the middle of a step, which is left out
            self._leave_step()
            self._traced.pop()
            del self._spans[self._spans_before :]
        # The events of the last step must have happened before their times are read.
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        recorder, spans = self._profile, self._spans
        if not self._traced:
            self._clear()
            recorder.stop()
            return
        times = StepTimes(
            stage=self._stage,
            first=self._traced[0],
            last=self._traced[-1],
            total_s=self._total_s,
            part_s=_sum_parts(spans),
        )
        self._clear()
        recorder.stop()
        # Cleared before anything is written: where that fails, the close at the end of the run has nothing left to do.
        path = trace_path(self._folder, times, rank=self._rank, at_ms=int(time.time() * 1000))
        # Of many steps it takes longer than a step may.
        with disk_errors(path), watched().activity("writing the profile"):
            path.parent.mkdir(parents=True, exist_ok=True)
            partial = create_partial(path, ".partial.gz")  # the exporter compresses names that end so
            recorder.export_chrome_trace(str(partial))
            partial.replace(path)
        if self._on_profile is not None:
            self._on_profile(times, path)


def trace_path(folder: Path, times: StepTimes, *, rank: int, at_ms: int) -> Path:
    """Return where a trace goes. The plugin takes a folder for a run, and reads worker and time from the name."""
    run = f"{times.stage}-steps-{times.first}-{times.last}"
    return folder / FOLDER / run / f"rank{rank:04d}.{at_ms}.pt.trace.json.gz"


class _Moment:
    """A point in time, of the host or of the device's stream."""

    def __init__(self, *, on_device: bool) -> None:
        self._at_s = time.perf_counter()
        self._event = None
        if on_device:
            self._event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            self._event.record()

    def seconds_until(self, later: _Moment) -> float:
        if self._event is None or later._event is None:
            return later._at_s - self._at_s
        return float(self._event.elapsed_time(later._event)) / 1e3


def _sum_parts(spans: list[tuple[Part, _Moment, _Moment]]) -> dict[Part, float]:
    sums: dict[Part, float] = {}
    for name, start, end in spans:
        sums[name] = sums.get(name, 0.0) + start.seconds_until(end)
    return sums


def open_profiler(
    steps: ProfileStepsSpec | None, folder: Path, *, rank: int, device: torch.device, on_profile: OnProfile | None
) -> Profiler:
    """Return this rank's profiler: rank 0's, or every rank's with ``all_ranks``; otherwise one that does nothing."""
    if steps is None or (rank != 0 and not steps.all_ranks):
        return NoProfiler()
    return StepProfiler(steps, folder, rank=rank, device=device, on_profile=on_profile)


def print_table(text: str) -> None:
    """Show a table to people, who read standard error; programs read the metrics."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()
