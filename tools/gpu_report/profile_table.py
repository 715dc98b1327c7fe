"""Ten traced steps of the trainer as tables: kernels by time, and where the host waits for the device."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from gpu_report.documents import read_records, run_trainer
from gpu_report.part import Cell, Part, Result, Table
from gpu_report.training import TRACED_STEPS, make_traced_run

KERNELS_SHOWN = 30
MAX_RAW_BYTES = 15 << 20
_WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize", "cudaMemcpy", "cudaFree")
"""Calls of the runtime in which the host waits for the device."""
_PARTS = ("data", "forward", "backward", "reduction", "optimizer", "checkpoint")

Event = dict[str, Any]


def tabulate_profile(part: Part) -> None:
    """Read the trace that the trainer's part has left, or train twenty steps for one."""
    result = Result()
    folder = part.scratch / "train-large-512" / "run"
    if _newest_trace(folder) is None:
        folder = part.folder / "run"
        run_trainer(make_traced_run(part), folder)
    path = _newest_trace(folder)
    if path is None:
        result.left_out.append("the trainer left no trace; output.log says why")
        part.publish(result)
        return
    for record in read_records(folder, "profiled"):
        step_s = float(record["step_s"])
        shares = {name: float(record.get(f"{name}_s") or 0.0) for name in (*_PARTS, "other")}
        rows: list[list[Cell]] = [
            [name, round(1e3 * seconds, 3), f"{seconds / step_s:.1%}"] for name, seconds in shares.items()
        ]
        result.tables.append(Table("Where a step's time goes", ["part", "ms per step", "share"], rows))
        result.figures["traced step, ms"] = round(1e3 * step_s, 2)
    part.publish(result)
    with gzip.open(path, "rt") as file:
        events = [event for event in json.load(file)["traceEvents"] if event.get("ph") == "X"]
    add_kernels(result, events)
    add_waits(result, events)
    size = path.stat().st_size
    if size <= MAX_RAW_BYTES:
        result.files.append(str(path))
    else:
        result.left_out.append(f"the trace itself has {size >> 20} MiB, more than is kept")
    result.done = True
    part.publish(result)


def _newest_trace(folder: Path) -> Path | None:
    return max(folder.glob("profile/*/*.gz"), default=None, key=lambda path: path.stat().st_mtime)


def add_kernels(result: Result, events: list[Event]) -> None:
    """Add the table of kernels, of operators where no kernel was recorded, by their own time."""
    kernels = [event for event in events if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    own_us = [(event["name"], float(event["dur"])) for event in kernels] or [*_own_times(events)]
    calls: dict[str, int] = defaultdict(int)
    spent_us: dict[str, float] = defaultdict(float)
    for name, duration_us in own_us:
        calls[name] += 1
        spent_us[name] += duration_us
    whole_us = sum(spent_us.values()) or 1.0
    order = sorted(spent_us, key=lambda name: -spent_us[name])
    rows: list[list[Cell]] = [
        [name[:110], calls[name] / TRACED_STEPS, round(spent_us[name] / 1e3 / TRACED_STEPS, 3),
         f"{spent_us[name] / whole_us:.1%}"]
        for name in order[:KERNELS_SHOWN]
    ]  # fmt: skip
    what = "kernel" if kernels else "operator on the processor"
    result.tables.append(Table(f"By {what}", [what, "calls per step", "ms per step", "share"], rows))
    result.figures[f"different {what.split()[0]}s"] = len(order)
    result.figures[f"all {what.split()[0]}s, ms per step"] = round(whole_us / 1e3 / TRACED_STEPS, 2)
    if kernels:
        busy_us = _covered(sorted((float(one["ts"]), float(one["ts"]) + float(one["dur"])) for one in kernels))
        begins, ends = (
            min(float(one["ts"]) for one in kernels),
            max(float(one["ts"]) + float(one["dur"]) for one in kernels),
        )
        result.figures["card idle within the traced steps"] = f"{1 - busy_us / max(ends - begins, 1e-9):.1%}"


def _own_times(events: list[Event]) -> Iterable[tuple[str, float]]:
    """Yield every operator with its time less that of the operators that it called."""
    by_thread: dict[Any, list[Event]] = defaultdict(list)
    for event in events:
        if event.get("cat") == "cpu_op":
            by_thread[event["tid"]].append(event)
    for own in by_thread.values():
        open_: list[list[Any]] = []  # end, name, own time
        for event in sorted(own, key=lambda one: (one["ts"], -one["dur"])):
            while open_ and open_[-1][0] <= event["ts"]:
                _, name, left = open_.pop()
                yield name, left
            if open_:
                open_[-1][2] -= event["dur"]
            open_.append([event["ts"] + event["dur"], event["name"], event["dur"]])
        yield from ((name, left) for _, name, left in open_)


def _covered(spans: list[tuple[float, float]]) -> float:
    """Return the length of the union of sorted spans."""
    total, end = 0.0, float("-inf")
    for start, stop in spans:
        total += max(0.0, stop - max(start, end))
        end = max(end, stop)
    return total


def add_waits(result: Result, events: list[Event]) -> None:
    """Add the calls in which the host waits for the device, by the part of the step in which they are made."""
    if not any(event.get("cat") == "cuda_runtime" for event in events):
        result.notes.append("Host synchronisations: none to be seen without a card.")
        result.figures["host synchronisations per step"] = 0
        return
    parts = [event for event in events if event.get("cat") == "user_annotation" and event["name"] in _PARTS]
    counts: dict[tuple[str, str], list[float]] = defaultdict(list)
    for event in events:
        if event.get("cat") == "cuda_runtime" and event["name"] in _WAITS:
            inside = (part["name"] for part in parts if part["ts"] <= event["ts"] <= part["ts"] + part["dur"])
            counts[next(inside, "other"), event["name"]].append(float(event["dur"]))
    rows: list[list[Cell]] = [
        [where, call, len(spent) / TRACED_STEPS, round(sum(spent) / 1e3 / TRACED_STEPS, 3)]
        for (where, call), spent in sorted(counts.items(), key=lambda item: -sum(item[1]))
    ]
    columns = ["part", "call", "calls per step", "ms per step"]
    result.tables.append(Table("Where the host waits for the device", columns, rows))
    result.figures["host synchronisations per step"] = sum(len(spent) for spent in counts.values()) / TRACED_STEPS
