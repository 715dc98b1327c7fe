"""Reads how far running jobs are from the end of their logs, a bounded number of times per second.

Rank 0 writes one record per logging interval; the newest one that carries the job's uid and attempt counts. Raw
lines are never kept. A log that cannot be read costs nothing but freshness, and nobody's but its own: the API server
passes logs on from nodes, and one that hangs is waited for beside the others. A record that cannot be used costs
nothing but that record: it is counted.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from bert_operator.cluster.client import ApiClient, ApiError
from bert_operator.cluster.index import Index
from bert_operator.cluster.object_summaries import ChildSummary, JobSummary, PodSummary
from bert_operator.cluster.paths import path_of
from bert_operator.cluster.work_queue import Requeue
from bert_operator.names import JobRef
from bert_operator.render import names
from bert_operator.render.pods import CONTAINER
from bert_operator.state.progress import ProgressRecord, claims_to_be_record, parse_progress_line

READS_PER_SECOND = 10.0
SHORTEST_ROUND_S = 5.0
"""A job's status changes at most this often for the sake of progress."""
FINAL_READ_S = 5.0
"""Longest wait for the log of a child that has ended; its end is then told without it."""
_INLINE_WAIT_S = 0.25
"""What a node that does not hang needs at most. Nobody's turn is taken for longer."""
_LINES, _BYTES = "60", "65536"

_log = logging.getLogger(__name__)


class LogMetrics(Protocol):
    """What the reader of logs tells of itself."""

    def progress_refused(self, lines: int) -> None:
        """So many lines of a log begin like records and cannot be used."""


@dataclass(frozen=True, slots=True)
class LatestRecords:
    """What a job's log said last."""

    progress: ProgressRecord | None = None
    checkpoint: ProgressRecord | None = None
    refused: frozenset[int] = field(default=frozenset(), compare=False)
    """Hashes of the lines that begin like records and are none, so that they are counted once."""


@dataclass(frozen=True, slots=True)
class _Known:
    """What has been read of a job, and by which reading."""

    uid: str
    """The job's: it may be deleted and applied again under its name."""
    reading: int
    attempt: int
    report: LatestRecords

    def is_newer(self, uid: str, reading: int, attempt: int) -> bool:
        """Tell whether a log that comes now says less: readings come in any order."""
        return self.reading > reading or (self.uid == uid and self.attempt > attempt)


@dataclass(frozen=True, slots=True)
class _FinalRead:
    """The reading of a log whose child has ended."""

    child_uid: str
    reading: asyncio.Task[None]
    until_s: float
    """On the loop's clock."""


class LogReader:
    """Keeps the newest report of every running job."""

    def __init__(self, api: ApiClient, index: Index, enqueue: Callable[[JobRef], None], metrics: LogMetrics) -> None:
        """Enqueue: has a job looked at whose report is new."""
        self._api = api
        self._index = index
        self._enqueue = enqueue
        self._metrics = metrics
        self._known: dict[JobRef, _Known] = {}
        self._readings = itertools.count()
        self._final_reads: dict[JobRef, _FinalRead] = {}
        self._being_read: set[str] = set()
        """Uids of pods."""

    def latest(self, ref: JobRef) -> LatestRecords:
        """Return the newest report of a job."""
        known = self._known.get(ref)
        return known.report if known is not None else LatestRecords()

    async def read_final(self, ref: JobRef, job: JobSummary, child: ChildSummary) -> None:
        """Read the log of a child that has ended, once: short runs end between two rounds.

        Raises:
            Requeue: it has not come yet; the job is looked at again when it has, or when that takes too long.
        """
        main = (names.LAUNCHER, names.SINGLE)
        pod = next((pod for pod in self._index.pods(ref, child.name) if pod.role in main), None)
        if pod is None:
            return
        loop = asyncio.get_running_loop()
        words = self._final_reads.get(ref)
        if words is None or words.child_uid != child.uid:
            words = _FinalRead(child.uid, loop.create_task(self._read(ref, job, pod)), loop.time() + FINAL_READ_S)
            self._final_reads[ref] = words
            await asyncio.wait({words.reading}, timeout=_INLINE_WAIT_S)
            if not words.reading.done():
                words.reading.add_done_callback(lambda _: self._enqueue(ref))
        if not words.reading.done() and loop.time() < words.until_s:
            raise Requeue(words.until_s - loop.time())

    async def run(self) -> None:
        """Read until cancelled: so many logs are begun per second, whether or not those before have come."""
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as readings:
            while True:
                started_s = loop.time()
                known = set(self._index.jobs())
                for table in (self._known, self._final_reads):
                    for gone in table.keys() - known:
                        del table[gone]
                for ref, job, pod in list(self._readable()):
                    if pod.uid not in self._being_read:
                        readings.create_task(self._read_once(ref, job, pod))
                        await asyncio.sleep(1 / READS_PER_SECOND)
                await asyncio.sleep(max(0.0, started_s + SHORTEST_ROUND_S - loop.time()))

    def _readable(self) -> Iterator[tuple[JobRef, JobSummary, PodSummary]]:
        """Yield the running jobs, each with the pod whose log has its records."""
        for ref in self._index.jobs():
            job = self._index.job(ref)
            if job is None or job.phase not in ("Running", "Stopping"):
                continue
            newest = max(self._index.own_children(ref, job.uid), key=lambda child: child.attempt, default=None)
            for pod in self._index.pods(ref, newest.name) if newest else ():
                if pod.role in (names.LAUNCHER, names.SINGLE) and pod.phase == "Running":
                    yield ref, job, pod

    async def _read_once(self, ref: JobRef, job: JobSummary, pod: PodSummary) -> None:
        self._being_read.add(pod.uid)
        try:
            await self._read(ref, job, pod)
        finally:
            self._being_read.discard(pod.uid)

    async def _read(self, ref: JobRef, job: JobSummary, pod: PodSummary) -> None:
        reading = next(self._readings)
        path = path_of("Pod", ref.namespace, pod.name, part="log")
        try:
            text = await self._api.get_log(path, container=CONTAINER, tailLines=_LINES, limitBytes=_BYTES)
        except ApiError as error:
            _log.debug("%s: its log cannot be read (%s)", ref, error)
            return
        except Exception:
            _log.exception("%s: the log of pod %s could not be read", ref, pod.name)
            return
        known = self._known.get(ref)
        if known is not None and known.is_newer(job.uid, reading, pod.attempt):
            return
        before = known.report if known is not None and known.uid == job.uid else LatestRecords()
        after = read_latest_records(text, job.uid, pod.attempt, before)
        self._known[ref] = _Known(job.uid, reading, pod.attempt, after)
        if refused := len(after.refused - before.refused):
            self._metrics.progress_refused(refused)
            _log.info("%s: %d progress records in the log of pod %s cannot be used", ref, refused, pod.name)
        if after != before:
            self._enqueue(ref)


def read_latest_records(text: str, uid: str, attempt: int, before: LatestRecords) -> LatestRecords:
    """Return what the end of a log says of an attempt of a job, over what was known before."""
    progress, checkpoint, refused = before.progress, before.checkpoint, set()
    for line in text.split("\n"):
        record = parse_progress_line(line)
        if record is None and claims_to_be_record(line):
            refused.add(hash(line))
        if record is None or (record.job, record.attempt) != (uid, attempt):
            continue
        if record.event in ("checkpoint", "resumed"):
            checkpoint = record
        elif record.event in ("progress", "stage_started"):
            progress = record
    return LatestRecords(progress, checkpoint, frozenset(refused))
