"""Metrics of a run: one record per logging interval, in four places.

A record is a flat dictionary with units in its keys. It becomes a line of ``metrics.jsonl``, the progress line
on standard output, TensorBoard scalars and Prometheus gauges. All records of one run of an attempt share a clock that
starts with the process. Rank 0 only.
"""

from __future__ import annotations

import errno
import json
import math
import os
import socket
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import psutil
from prometheus_client import CollectorRegistry, Gauge, start_http_server

from bert_job.progress import Value
from bert_job.reporting import LoggingSpec
from bert_trainer.errors import InputError, TrainerError
from bert_trainer.output.gauges import (
    EVALUATION,
    GAUGES,
    ON_THE_LINE,
    ON_THE_LINE_UNLESS_ZERO,
    PREFIX,
    RANK_GAUGES,
    RUN_GAUGES,
)
from bert_trainer.output.progress import Reporter
from bert_trainer.system.atomic_files import disk_errors, open_no_link, random_suffix

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

METRICS_FILE = "metrics.jsonl"

Record = dict[str, Value]
RankFigures = Mapping[str, Sequence[float | None]]
"""Figures of every rank, by name; None where a rank has none."""
NO_RANK_FIGURES: RankFigures = MappingProxyType({})

_OF_EVERY_RECORD = {"event", "attempt", "attempt_run", "attempt_uid", "run_s", "cpu_s"}


@dataclass(slots=True)
class MetricsWriter:
    """Sends records to every place that the configuration asks for. Close it at the end."""

    folder: Path
    config: LoggingSpec
    reporter: Reporter
    prometheus_port: int | None = field(default=None, init=False)
    """Where the gauges are served, if they are."""
    _started_at_s: float = field(default_factory=lambda: _process_start_s(), init=False)
    _tensorboard: SummaryWriter | None = field(default=None, init=False)
    _gauges: dict[str, Gauge] = field(default_factory=dict, init=False)
    _close_server: Any = field(default=None, init=False)

    def __post_init__(self) -> None:
        """Open what the configuration asks for."""
        _end_cut_line(self.folder / METRICS_FILE)
        if self.config.tensorboard:
            # 0.3 s of a core, which every rank would pay at the top of the module.
            from torch.utils.tensorboard import SummaryWriter

            # The rest of the name is a time, a host and a process, which others can guess, and links are followed.
            self._tensorboard = SummaryWriter(str(self.folder / "tensorboard"), filename_suffix=f".{random_suffix()}")
        if self.config.prometheus_port is not None:
            # A registry of its own: the global one adds figures of Python, and refuses the same name in a second run.
            registry = CollectorRegistry()
            self._gauges = {
                name: Gauge(PREFIX + name, found.text, ["stage"], registry=registry) for name, found in GAUGES.items()
            }
            self._gauges |= {
                f"{name}s": Gauge(PREFIX + name, found.text, ["stage", "rank"], registry=registry)
                for name, found in RANK_GAUGES.items()
            }
            self._gauges |= {
                name: Gauge(PREFIX + name, found.text, registry=registry) for name, found in RUN_GAUGES.items()
            }
            self._gauges["checkpoint_timestamp_seconds"].set_to_current_time()
            # At the scrape, in a thread of its own: a volume that does not answer must not hold a step.
            for name, blocks in (("volume_bytes", "f_blocks"), ("volume_free_bytes", "f_bavail")):
                self._gauges[name].set_function(partial(_volume_bytes, self.folder, blocks))
            port = self.config.prometheus_port
            try:
                server, thread = _serve(port, registry)
            except OSError as error:
                raise InputError(
                    f"logging.prometheus_port: got {port}; metrics cannot be served there ({error.strerror})",
                    hint="choose another port, 0 for any free one, or leave the field out",
                ) from error
            self.prometheus_port = server.server_port
            self._close_server = (server, thread)

    def progress(self, record: Record, of_ranks: RankFigures = NO_RANK_FIGURES) -> None:
        """Publish one logging interval; ``record`` has at least stage, step and steps."""
        self.event("progress", of_ranks, **record)
        self._publish(str(record["stage"]), int(record["step"] or 0), record)
        for name, figures in of_ranks.items():
            for rank, figure in enumerate(figures if name in self._gauges else ()):
                gauge = self._gauges[name].labels(str(record["stage"]), str(rank))
                gauge.set(math.nan if figure is None else figure)

    def evaluated(self, **fields: Value) -> None:
        """Publish an evaluation; ``fields`` has at least the stage, and a step while that stage trains."""
        self.event("evaluated", **fields)
        step, rank = fields.get("step"), fields.get("rank")
        figures = {EVALUATION + name: value for name, value in fields.items()}
        # Ranks that each train a model of their own have a curve each.
        curve = str(fields["stage"]) if rank is None else f"{fields['stage']}/rank{rank}"
        self._publish(str(fields["stage"]), None if step is None else int(step), figures, curve=curve)

    def saved(self, **fields: Value) -> None:
        """Publish that a checkpoint is in place; ``fields`` has at least stage, step and seconds."""
        self.event("checkpoint", **fields)
        self._publish(str(fields["stage"]), int(fields["step"] or 0), {"checkpoint_seconds": fields["seconds"]})
        if self._gauges:
            self._gauges["checkpoint_timestamp_seconds"].set_to_current_time()

    def repeat_results(self) -> None:
        """Print the latest evaluation of every stage once more: who reads the end of the log then has all of them."""
        latest = {
            record.get("stage"): record
            for record in read_metrics(self.folder)
            if record.get("event") == "evaluated" and record.get("when") != "before"
        }
        for record in latest.values():
            self.reporter.report("result", **{key: record[key] for key in record if key not in _OF_EVERY_RECORD})

    def _publish(self, stage: str, step: int | None, figures: Record, *, curve: str | None = None) -> None:
        for name, value in figures.items():
            if isinstance(value, float) and self._tensorboard is not None and step is not None:
                self._tensorboard.add_scalar(f"{curve or stage}/{name}", value, step)
            if isinstance(value, int | float) and name in self._gauges:
                self._gauges[name].labels(stage).set(value)

    def event(self, event: str, of_ranks: RankFigures = NO_RANK_FIGURES, /, **fields: Value) -> None:
        """Append a record to ``metrics.jsonl`` and print its line, which lacks the figures of single ranks.

        Raises:
            TrainerError: the file cannot be written; a ``failed`` event is printed nevertheless, since this may be
                the cause.
        """
        record: Record = {
            "event": event,
            **fields,
            "attempt": self.reporter.attempt,
            # From the second on: which run of the attempt, where a queue has suspended it.
            "attempt_run": self.reporter.attempt_run if self.reporter.attempt_run > 1 else None,
            # The job's uid. Without a cluster every start has another one, and counts its attempts from 1 again.
            "attempt_uid": self.reporter.job_uid,
            "run_s": time.monotonic() - self._started_at_s,
            "cpu_s": fields.get("cpu_s", time.process_time()),
        }
        if event == "stage_finished" and self._gauges:
            # Whatever was expected of a stage that met its target early: nobody may take it for one that stands still.
            self._gauges["remaining_s"].labels(str(fields["stage"])).set(0)
        path = self.folder / METRICS_FILE
        try:
            with disk_errors(path), open_no_link(path, "a") as file:
                # One write per line: a killed run leaves at most one incomplete last line, which _end_cut_line ends.
                kept = {key: value for key, value in record.items() if _is_json(value)}
                file.write(json.dumps(kept | {key: list(figures) for key, figures in of_ranks.items()}) + "\n")
                if event == "evaluated":
                    # On the disk before a checkpoint of the same step: what lies behind one is not evaluated again.
                    file.flush()
                    os.fsync(file.fileno())
        except TrainerError:
            if event != "failed":
                raise
        self.reporter.report(event, **(_shown(fields) if event == "progress" else fields))

    def close(self) -> None:
        """Flush and close everything."""
        if self._tensorboard is not None:
            self._tensorboard.close()
        if self._close_server is not None:
            server, thread = self._close_server
            server.shutdown()
            server.server_close()
            thread.join()


def _shown(fields: Record) -> Record:
    """Return what the progress line has of a record."""
    unless_zero = {key: fields[key] for key in ON_THE_LINE_UNLESS_ZERO if fields.get(key)}
    return {key: fields.get(key) for key in ON_THE_LINE} | unless_zero


def _volume_bytes(folder: Path, blocks: str) -> float:
    """Return the bytes in so many blocks of a folder's file system. blocks: a field of ``os.statvfs``."""
    try:
        volume = os.statvfs(folder)
    except OSError:
        return math.nan  # an exception here would take every other figure off the page
    return float(volume.f_frsize * getattr(volume, blocks))


def free_share(folder: Path) -> float | None:
    """Return which part of a folder's file system is free; None where that cannot be known."""
    try:
        volume = os.statvfs(folder)
    except OSError:
        return None
    # Some file systems of clusters say nothing of their size.
    return volume.f_bavail / volume.f_blocks if volume.f_blocks else None


def _process_start_s() -> float:
    """Return when this process began, on the monotonic clock: imports are part of what a run costs."""
    return time.monotonic() - (time.time() - psutil.Process().create_time())


def _is_json(value: Value) -> bool:
    return value is not None and (not isinstance(value, float) or math.isfinite(value))


def _end_cut_line(path: Path) -> None:
    """End a last line that a kill cut short, so that the next record starts on its own."""
    if path.exists() and path.read_bytes()[-1:] not in (b"", b"\n"):
        with open_no_link(path, "a") as file:
            file.write("\n")


def read_metrics(folder: Path) -> Iterator[Record]:
    """Yield the records written so far; a line that was cut by a kill is skipped."""
    try:
        lines = (folder / METRICS_FILE).read_text().splitlines()
    except FileNotFoundError:
        return
    for line in lines:
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict):
            yield record


def attempt_of(record: Record) -> tuple[str, int, int]:
    """Return whose record it is: the job's uid, the attempt, and the run of that attempt."""
    return str(record["attempt_uid"]), int(record["attempt"] or 0), int(record.get("attempt_run") or 1)


def find_evaluations(records: Iterable[Record], stage: str, when: str) -> Iterator[Record]:
    """Yield the evaluations of a stage. when: ``before``, ``during`` or ``after``, as the record has it."""
    wanted = ("evaluated", stage, when)
    return (it for it in records if (it.get("event"), it.get("stage"), it.get("when")) == wanted)


def _serve(port: int, registry: CollectorRegistry) -> Any:
    """Serve metrics at all addresses of this machine, of IPv4 and of IPv6. Raises OSError if the port is taken."""
    if socket.has_dualstack_ipv6():
        try:
            # Its server class leaves it to the system whether IPv4 is heard as well (net.ipv6.bindv6only), usually so.
            return start_http_server(port, addr="::", registry=registry)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise
    return start_http_server(port, addr="0.0.0.0", registry=registry)  # noqa: S104 - the kernel has no IPv6
