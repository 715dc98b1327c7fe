"""Reads how far running jobs are from the end of their logs, a bounded number of times per second.

Rank 0 writes one record per logging interval; the newest one that carries the job's uid and attempt counts. Raw
lines are never kept. A log that cannot be read costs nothing but freshness.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from bert_operator.cluster.client import ApiClient, ApiError
from bert_operator.cluster.entries import ChildEntry, JobEntry, PodEntry
from bert_operator.cluster.index import Index
from bert_operator.cluster.paths import path_of
from bert_operator.names import JobRef
from bert_operator.progress import ProgressRecord, parse_progress_line
from bert_operator.render import names
from bert_operator.render.pods import CONTAINER

READS_PER_SECOND = 10.0
SHORTEST_ROUND_S = 5.0
"""A job's status changes at most this often for the sake of progress."""
_LINES, _BYTES = "60", "65536"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Report:
    """What a job's log said last."""

    progress: ProgressRecord | None = None
    checkpoint: ProgressRecord | None = None


class LogReader:
    """Keeps the newest report of every running job."""

    def __init__(self, api: ApiClient, index: Index, enqueue: Callable[[JobRef], None]) -> None:
        """Enqueue: has a job looked at whose report is new."""
        self._api = api
        self._index = index
        self._enqueue = enqueue
        self._reports: dict[JobRef, Report] = {}
        self._read_to_end: dict[JobRef, str] = {}

    def report(self, ref: JobRef) -> Report:
        """Return the newest report of a job."""
        return self._reports.get(ref, Report())

    async def read_to_end(self, ref: JobRef, job: JobEntry, child: ChildEntry) -> None:
        """Read the log of a child that has ended, once: short runs end between two rounds."""
        main = (names.LAUNCHER, names.SINGLE)
        pod = next((pod for pod in self._index.pods(ref, child.name) if pod.role in main), None)
        if pod is None or self._read_to_end.get(ref) == child.uid:
            return
        self._read_to_end[ref] = child.uid
        await self._read(ref, job, pod)

    async def run(self) -> None:
        """Read until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            started_s = loop.time()
            readable = list(self._readable())
            known = set(self._index.jobs())
            for table in (self._reports, self._read_to_end):
                for gone in table.keys() - known:
                    del table[gone]
            for ref, job, pod in readable:
                await self._read(ref, job, pod)
                await asyncio.sleep(1 / READS_PER_SECOND)
            await asyncio.sleep(max(0.0, started_s + SHORTEST_ROUND_S - loop.time()))

    def _readable(self) -> Iterator[tuple[JobRef, JobEntry, PodEntry]]:
        """Yield the running jobs, each with the pod whose log has its records."""
        for ref in self._index.jobs():
            job = self._index.job(ref)
            if job is None or job.phase not in ("Running", "Stopping"):
                continue
            newest = max(self._index.children(ref), key=lambda child: child.attempt, default=None)
            for pod in self._index.pods(ref, newest.name) if newest else ():
                if pod.role in (names.LAUNCHER, names.SINGLE) and pod.phase == "Running":
                    yield ref, job, pod

    async def _read(self, ref: JobRef, job: JobEntry, pod: PodEntry) -> None:
        path = path_of("Pod", ref.namespace, pod.name, part="log")
        try:
            text = await self._api.get_log(path, container=CONTAINER, tailLines=_LINES, limitBytes=_BYTES)
        except ApiError as error:
            _log.debug("%s: its log cannot be read (%s)", ref, error)
            return
        before = self.report(ref)
        after = read_report(text, job.uid, before)
        if after != before:
            self._reports[ref] = after
            self._enqueue(ref)


def read_report(text: str, uid: str, before: Report) -> Report:
    """Return what the end of a log says of a job, over what was known before."""
    progress, checkpoint = before.progress, before.checkpoint
    for line in text.splitlines():
        record = parse_progress_line(line)
        if record is None or record.job != uid:
            continue
        if record.event in ("checkpoint", "resumed"):
            checkpoint = record
        elif record.event in ("progress", "stage_started"):
            progress = record
    return Report(progress, checkpoint)
