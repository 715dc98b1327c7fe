"""Reads the progress of running jobs from the tails of their logs, at a bounded rate.

Rank 0 writes one progress record per logging interval; the newest one with the job's uid and attempt counts. A queue
may suspend an attempt and let it go on in other pods: what the log before has told of progress, of a hang or of silence
does not count for those. Raw lines are never kept.

The API server proxies logs from kubelets, so one that hangs delays only its own job: logs are read
concurrently. Namespaces take turns, so that many running jobs in one do not delay what is known of those in another. A
record that cannot be parsed is counted and ignored.

A launcher of today's images also promises a record every so often (``event=alive``). One that breaks its promise is
frozen: that is counted from log to log that could be read, so that an API server or a kubelet that does not answer is
never taken for it. A log that stays unreadable is told as that, and one with too many bytes in its last lines, too.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from bert_job.progress import ProgressRecord, parse_progress_line, starts_like_record
from bert_operator.api.schema.status import StageResult
from bert_operator.cluster.client import ApiClient, ApiError
from bert_operator.cluster.index import Index
from bert_operator.cluster.metrics import Metrics
from bert_operator.cluster.object_summaries import ChildSummary, JobSummary, PodSummary
from bert_operator.cluster.observation import find_main_pod, has_ended, has_succeeded
from bert_operator.cluster.paths import path_of
from bert_operator.cluster.round_robin import RoundRobin
from bert_operator.cluster.work_queue import Requeue
from bert_operator.names import CONTAINER, JobRef
from bert_operator.state.observed import Silence
from bert_operator.state.results import add_results, read_result
from bert_operator.timestamps import render_time

READS_PER_SECOND = 10.0
"""Requests started per second, for all jobs together: with a thousand running jobs in one namespace each of its logs is
read every 100 s, and with ten in each of a hundred as well."""
MIN_ROUND_S = 5.0
"""Progress changes a job's status at most this often; every change is a write to etcd."""
FINAL_READ_S = 5.0
"""Longest wait for the log of a child that has failed; its outcome is then reported without it, since the next attempt
waits for that, and the node may be gone."""
SUCCESS_READ_S = 60.0
"""Of one that has succeeded. Its last evaluations are what it ran for, nothing waits, and its node was just heard of:
an API server that takes 30 s for an answer once cost a job its result."""
_INLINE_WAIT_S = 0.25
"""How long a worker of the queue waits for a log before it turns to another job; a healthy kubelet needs less."""
# Bounds of one read: tracebacks and NCCL's log may stand between the last records, and a line may be of any length.
_LINES, _BYTES = "60", "65536"
# Times that a launcher may take for what it promises: half a minute in which its node swaps is no reason to end it.
_PATIENCE = 5
_MIN_PATIENCE_S = 60.0
UNREADABLE_S = 60.0
"""So long no log is read, or no news is found in one that is cut, before the status says so: kubelets restart, API
servers are upgraded, and a long line goes by."""
_MAX_CAUSE = 200

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LatestRecords:
    """The newest records in a job's log."""

    progress: ProgressRecord | None = None
    checkpoint: ProgressRecord | None = None
    resumed: ProgressRecord | None = None
    """From where the attempt goes on."""
    results: tuple[StageResult, ...] = ()
    """The newest evaluation of each stage."""
    hang: ProgressRecord | None = None
    """That ranks make no progress; None once one of them does."""
    unreached: ProgressRecord | None = None
    """That the launcher waits for its workers, and for which; None once the end of its log says anything else."""
    silence: Silence | None = None
    """Of a launcher that does not keep its promise to write something."""
    unreadable: str | None = None
    """Why the log cannot be read, and since when; None if it can."""
    cut: str | None = None
    """That the last lines are too long to be read to their end, and since when; None if they are not."""
    pod: str | None = None
    """Uid of the pod whose log was read."""
    job: str | None = field(default=None, compare=False)
    """Uid of the job that they are about."""
    refused: frozenset[int] = field(default=frozenset(), compare=False)
    """Hashes of lines that start like records and are none: the same tail is read again, and counts once."""
    promise: ProgressRecord | None = field(default=None, compare=False)
    """How often the launcher writes something at least; None: it promises nothing."""

    def of_pod(self, uid: str) -> LatestRecords:
        """Return what applies to the run of this pod: of earlier runs only checkpoints and results."""
        if self.pod == uid:
            return self
        return LatestRecords(
            checkpoint=self.checkpoint,
            resumed=self.resumed,
            results=self.results,
            pod=uid,
            job=self.job,
            refused=self.refused,
        )


@dataclass(frozen=True, slots=True)
class _Known:
    """The latest records of a job, and which reading found them."""

    uid: str
    """The job's: it may be deleted and recreated under its name."""
    reading: int
    attempt: int
    records: LatestRecords
    tail: int
    """Hash of the log's last lines."""
    changed_at_s: float
    """When a reading first found them, on the loop's clock."""
    read_at_s: float
    """When they were read last, on the loop's clock."""

    def is_newer(self, uid: str, reading: int, attempt: int) -> bool:
        """Return whether this is newer than a log that arrives now: concurrent readings finish in any order."""
        return self.reading > reading or (self.uid == uid and self.attempt > attempt)


class _Readable(NamedTuple):
    """A running job."""

    ref: JobRef
    job: JobSummary
    pod: PodSummary
    """Whose log has its records."""


@dataclass(frozen=True, slots=True)
class _Unread:
    """A log that cannot be read."""

    pod_uid: str
    since_s: float
    """On the loop's clock."""
    message: str


@dataclass(frozen=True, slots=True)
class _Cut:
    """A log that cannot be read to its end."""

    pod_uid: str
    since_s: float
    """On the loop's clock."""
    last_s: float
    """When a reading did not reach the end for the last time."""
    message: str
    is_told: bool


@dataclass(frozen=True, slots=True)
class _FinalRead:
    """The latest reading of a log after its child has ended."""

    child_uid: str
    reading: asyncio.Task[bool]
    """Returns whether there is nothing more to be had."""
    until_s: float
    """On the loop's clock."""


@dataclass(slots=True)
class _JobLog:
    """What is kept of the log of one job."""

    known: _Known | None = None
    final: _FinalRead | None = None
    unread: _Unread | None = None
    cut: _Cut | None = None
    begun_at_s: float = -math.inf
    """When it was last asked for while the job ran, on the loop's clock."""


class LogReader:
    """Keeps the latest records of every running job."""

    def __init__(self, api: ApiClient, index: Index, enqueue: Callable[[JobRef], None], metrics: Metrics) -> None:
        """Start without records. enqueue: queues a job whose records are new."""
        self._api = api
        self._index = index
        self._enqueue = enqueue
        self._metrics = metrics
        self._logs: defaultdict[JobRef, _JobLog] = defaultdict(_JobLog)
        self._readings = itertools.count()
        self._being_read: set[str] = set()
        """Uids of pods."""
        self._served_at_s: dict[str, float] = {}
        """When a log of a namespace was last asked for, on the loop's clock."""

    def latest(self, ref: JobRef) -> LatestRecords:
        """Return the latest records of a job."""
        log = self._logs.get(ref)
        return log.known.records if log is not None and log.known is not None else LatestRecords()

    async def read_final(self, ref: JobRef, job: JobSummary, child: ChildSummary) -> None:
        """Read the log of an ended child once: short runs end between two rounds.

        Once more at every look for as long as the API server refuses or cannot be reached: what kept the outcome from
        being written kept the last evaluations from being read.

        Raises:
            Requeue: It has not arrived yet; the job is queued when it has, or when that takes too long.
        """
        pod = find_main_pod(self._index.pods(ref, child.name))
        if pod is None:
            return
        loop, log = asyncio.get_running_loop(), self._logs[ref]
        final = log.final
        if final is None or final.child_uid != child.uid or final.reading.done() and not final.reading.result():
            until_s = loop.time() + (SUCCESS_READ_S if has_succeeded(child) else FINAL_READ_S)
            final = _FinalRead(child.uid, loop.create_task(self._read(ref, job, pod)), until_s)
            log.final = final
            await asyncio.wait({final.reading}, timeout=_INLINE_WAIT_S)
            if not final.reading.done():
                final.reading.add_done_callback(lambda _: self._enqueue(ref))
        if not final.reading.done() and loop.time() < final.until_s:
            raise Requeue(final.until_s - loop.time())

    async def run(self) -> None:
        """Read until cancelled; requests start at a fixed rate, even if earlier ones are unanswered."""
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as readings:
            while True:
                started_s = loop.time()
                known = set(self._index.jobs())
                # Here and not by events: a deletion may be missed, and memory must not grow with every job ever run.
                for gone in self._logs.keys() - known:
                    del self._logs[gone]
                for namespace in self._served_at_s.keys() - {ref.namespace for ref in known}:
                    del self._served_at_s[namespace]
                for reading in self._next_round():
                    readings.create_task(self._read_once(*reading))
                    self._logs[reading.ref].begun_at_s = self._served_at_s[reading.ref.namespace] = loop.time()
                    await asyncio.sleep(1 / READS_PER_SECOND)
                await asyncio.sleep(max(0.0, started_s + MIN_ROUND_S - loop.time()))

    def _next_round(self) -> list[_Readable]:
        """Return whose logs are read next: one of each namespace in turn, the one that was read longest ago first.

        A round may end before every namespace had its turn: the one that was served longest ago begins the next.
        """

        def last_turn(item: _Readable) -> tuple[float, float]:
            return self._served_at_s.get(item.ref.namespace, -math.inf), self._logs[item.ref].begun_at_s

        readable = [item for item in self._readable() if item.pod.uid not in self._being_read]
        fair: RoundRobin[_Readable] = RoundRobin()
        for item in sorted(readable, key=last_turn):
            fair.put(item.ref.namespace, item)
        most = max(1, int(READS_PER_SECOND * MIN_ROUND_S))
        return [fair.take() for _ in range(min(most, len(fair)))]

    def _readable(self) -> Iterator[_Readable]:
        """Yield the running jobs, each with the pod whose log has its records: the launcher, or the single pod."""
        for ref in self._index.jobs():
            job = self._index.job(ref)
            if job is None or job.phase not in ("Running", "Stopping"):
                continue
            newest = max(self._index.own_children(ref, job.uid), key=lambda child: child.attempt, default=None)
            pod = find_main_pod(self._index.pods(ref, newest.name)) if newest is not None else None
            # A container that has ended writes no more, whatever its pod says: where kubelet does not get to report the
            # pod's end, the silence is not the launcher's. ``PodNotReady`` tells of such a pod.
            if pod is not None and pod.phase == "Running" and pod.exit_code is None:
                yield _Readable(ref, job, pod)

    async def _read_once(self, ref: JobRef, job: JobSummary, pod: PodSummary) -> None:
        self._being_read.add(pod.uid)
        try:
            await self._read(ref, job, pod)
        finally:
            self._being_read.discard(pod.uid)

    async def _read(self, ref: JobRef, job: JobSummary, pod: PodSummary) -> bool:
        """Read a log; return whether another try would bring no more."""
        reading = next(self._readings)
        path = path_of("Pod", ref.namespace, pod.name, part="log")
        try:
            data = await self._api.get_log(path, container=CONTAINER, tailLines=_LINES, limitBytes=_BYTES)
        except ApiError as error:
            _log.debug("%s: cannot read the log of pod %s (%s)", ref, pod.name, error)
            self._note_unread(ref, job, pod, error)
            return error.status in (400, 404)  # the pod, or its log, is gone
        except Exception:
            # One bad response must not end the task group, and with it the readings of all jobs.
            _log.exception("%s: cannot read the log of pod %s", ref, pod.name)
            return True
        log = self._logs[ref]
        known = log.known
        # A slow response must not overwrite a later one, nor an old attempt's log a new one's.
        if known is not None and known.is_newer(job.uid, reading, pod.attempt):
            return True
        before = known.records if known is not None and known.uid == job.uid else LatestRecords()
        text = data.decode(errors="replace")  # programs print any bytes
        after = read_latest_records(text, job.uid, pod.attempt, before.of_pod(pod.uid), job.stages)
        now_s, tail = asyncio.get_running_loop().time(), hash((pod.uid, text))
        is_same = known is not None and known.uid == job.uid and known.tail == tail
        changed_at_s = known.changed_at_s if known is not None and is_same else now_s
        unread, log.unread = log.unread, None
        if known is not None and is_same and unread is not None:
            # Nothing was to be seen between the two: what was frozen for that time, this log's node included, may not
            # have got to writing since.
            changed_at_s += now_s - known.read_at_s
        # Of more than so many bytes the API server sends the first: what is new is not seen.
        is_cut = len(data) >= int(_BYTES)
        if not is_cut and now_s - changed_at_s > _patience_s(after.promise):
            known_silence = before.of_pod(pod.uid).silence
            after = replace(after, silence=known_silence or Silence(pod.attempt, int(now_s - changed_at_s)))
        if is_cut or log.cut is not None:
            after = replace(after, cut=self._note_cut(log, pod, is_cut=is_cut, has_news=after != before))
        log.known = _Known(job.uid, reading, pod.attempt, after, tail, changed_at_s, now_s)
        if refused := len(after.refused - before.refused):
            self._metrics.progress_refused(refused)
            _log.info("%s: ignored %d unreadable progress records in the log of pod %s", ref, refused, pod.name)
        if after != before:
            self._enqueue(ref)
        return True

    def _note_cut(self, log: _JobLog, pod: PodSummary, *, is_cut: bool, has_news: bool) -> str | None:
        """Return what is to be told of a log that is cut now or was of late; nothing while its beginning has news.

        Once told it stays until every reading of a minute has reached the end: a long line that comes again and again
        leaves the last lines each time, and each change is a write of the status and an Event.
        """
        now_s, cut = asyncio.get_running_loop().time(), log.cut
        if cut is not None and cut.pod_uid != pod.uid:
            cut = None
        if is_cut:
            if cut is None or (has_news and not cut.is_told):
                since = render_time(self._api.now_s())
                cut = _Cut(pod.uid, now_s, now_s, describe_cut(pod, since), is_told=False)
            cut = replace(cut, last_s=now_s, is_told=cut.is_told or now_s - cut.since_s >= UNREADABLE_S)
        elif cut is not None and (not cut.is_told or now_s - cut.last_s >= UNREADABLE_S):
            cut = None
        log.cut = cut
        return cut.message if cut is not None and cut.is_told else None

    def _note_unread(self, ref: JobRef, job: JobSummary, pod: PodSummary, error: ApiError) -> None:
        """Note that a log could not be read, and tell of it once it has not been for a while."""
        now_s, log = asyncio.get_running_loop().time(), self._logs[ref]
        unread = log.unread
        if unread is None or unread.pod_uid != pod.uid:
            # The first cause, and no age: a message that changes with every reading would be a status write each time.
            message = describe_unreadable(pod, error, render_time(self._api.now_s()))
            log.unread = _Unread(pod.uid, now_s, message)
        elif now_s - unread.since_s >= UNREADABLE_S and error.status != 404:
            known = log.known
            if known is None or known.uid != job.uid:
                known = _Known(job.uid, next(self._readings), pod.attempt, LatestRecords(job=job.uid), 0, now_s, now_s)
            records = known.records.of_pod(pod.uid)
            if known.attempt < pod.attempt:  # of whose log nothing was read yet
                known = replace(known, reading=next(self._readings), attempt=pod.attempt, tail=0, changed_at_s=now_s)
            if known.attempt == pod.attempt and records.unreadable != unread.message:
                log.known = replace(known, records=replace(records, unreadable=unread.message))
                self._enqueue(ref)


def select_records(latest: LatestRecords, child: ChildSummary | None, pods: Collection[PodSummary]) -> LatestRecords:
    """Return the records that apply to a job now.

    Args:
        latest: The job's.
        child: Its newest. While a queue holds it, and until the pods that run it then have written something, what was
            told before tells nothing of the present: such a child neither hangs nor is silent, and no rank of it slow.
        pods: Of that child.
    """
    if child is None or has_ended(child):
        return latest
    if child.is_suspended:
        return latest.of_pod("")
    pod = find_main_pod(pods)
    return latest if pod is None else latest.of_pod(pod.uid)


def describe_unreadable(pod: PodSummary, error: ApiError, since: str) -> str:
    """Return why the log of a running pod is not read. since: RFC 3339."""
    if error.status == 0:
        cause = "the API server does not answer"
    elif error.status >= 500:
        cause = f"the API server does not get it from the kubelet of node {pod.node}"
    else:
        cause = "the API server refuses it"
    said = f"{error.reason}: {error.message}"[:_MAX_CAUSE]
    return (
        f"The log of pod {pod.name} has not been readable since {since}: {cause} ({said}). Steps and losses are those "
        f"from before; the attempt goes on. Next: kubectl logs {pod.name} -c {CONTAINER}, and kubectl get node "
        f"{pod.node}"
    )


def describe_cut(pod: PodSummary, since: str) -> str:
    """Return why the log of a running pod is not read to its end. since: RFC 3339."""
    return (
        f"Since {since} the last {_LINES} lines of the log of pod {pod.name} have more than {int(_BYTES) >> 10} KiB. "
        "The API server sends their beginning; records behind it are not seen, so that steps and losses may be old. "
        f"The attempt goes on. Next: kubectl logs --tail=20 {pod.name} -c {CONTAINER}, and let the program write "
        "shorter lines"
    )


def read_latest_records(
    text: str, uid: str, attempt: int, before: LatestRecords, stages: Collection[str] | None = None
) -> LatestRecords:
    """Return the newest records of an attempt in the tail of a log, else those known before.

    stages: of the job. Results of others are left out here already: so many are kept, and invented ones must not push
    out the job's own. None: none are left out.
    """
    progress, checkpoint, refused = before.progress, before.checkpoint, set()
    earlier = (before.hang, before.promise, before.resumed)
    hang, promise, resumed = (it if it and it.attempt == attempt else None for it in earlier)
    # Not from before: a launcher that waits writes so little that the tail has its record. Where that is not in it any
    # more, the launcher has gone on, though lines of a chatty program may have pushed out whatever told so.
    unreached: ProgressRecord | None = None
    results: list[StageResult] = []
    for line in text.split("\n"):
        record = parse_progress_line(line)
        if record is None and starts_like_record(line):
            # Python's hash of texts differs between processes; these are compared within one.
            refused.add(hash(line))
        # Ranks may print the log of another job, and a resumed run that of its predecessor.
        if record is None or (record.job, record.attempt) != (uid, attempt):
            continue
        unreached = record if record.event == "unreached" else None
        if record.event == "alive":
            promise = record
            continue
        # A checkpoint may be written while ranks hang.
        if record.event != "checkpoint":
            hang = record if record.event == "hung" else None
        if record.event == "resumed":
            resumed = record
        if record.event in ("checkpoint", "resumed"):
            checkpoint = record
        elif record.event in ("progress", "stage_started"):
            progress = record
        elif (result := read_result(record)) is not None:
            results.append(result)
    return LatestRecords(
        progress=progress,
        checkpoint=checkpoint,
        resumed=resumed,
        results=add_results(before.results, results, stages),
        hang=hang,
        unreached=unreached,
        pod=before.pod,
        job=uid,
        refused=frozenset(refused),
        promise=promise,
    )


def _patience_s(promise: ProgressRecord | None) -> float:
    every_s = promise.number("every_s") if promise is not None else None
    return math.inf if every_s is None else max(_PATIENCE * every_s, _MIN_PATIENCE_S)
