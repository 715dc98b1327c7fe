"""Reconciles one job: reads it, plans, writes the status, and creates or deletes its children.

Called again and again; every call may be the first or the last. The order of writes makes every interruption
harmless: the attempt's number is in the status before its child is created; a child has exactly one possible name,
so creating it twice cannot make two; and the status is written against the version that was read, so that of two
operators one gets a conflict and plans again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

from bert_operator import __version__
from bert_operator.api.parsing.profiles import complete
from bert_operator.api.parsing.validation import parse_started_job
from bert_operator.api.schema.bert_pretrain_job import BertPretrainJob
from bert_operator.api.schema.conditions import FailureReason
from bert_operator.api.schema.status import TERMINAL_PHASES, JobStatus, needs_newer_operator
from bert_operator.cluster.blockers import SCHEDULER_SILENCE_S, SILENCE_S
from bert_operator.cluster.children import Children, delete_object, with_hash
from bert_operator.cluster.client import ApiClient
from bert_operator.cluster.events import JobEvent
from bert_operator.cluster.freezing import Freezer, Unusable
from bert_operator.cluster.index import Index
from bert_operator.cluster.log_reader import LatestRecords, select_records
from bert_operator.cluster.metrics import Metrics
from bert_operator.cluster.network_policies import NetworkPolicies
from bert_operator.cluster.object_summaries import ChildSummary, JobSummary, PodSummary
from bert_operator.cluster.observation import (
    HELD_POD_S,
    find_held,
    find_lost_worker,
    has_ended,
    is_settling,
    observe_child,
)
from bert_operator.cluster.paths import job_path
from bert_operator.cluster.quotas import RETRY_S, NamespaceQuotas
from bert_operator.cluster.settings import Settings
from bert_operator.cluster.settings_rules import read_cluster_job
from bert_operator.cluster.status_writer import CONFLICT_PAUSE_S, EventSink, StatusWriter
from bert_operator.cluster.work_queue import Requeue
from bert_operator.errors import InvalidJob
from bert_operator.names import JobRef
from bert_operator.state.observed import Blocker, Child, Observed
from bert_operator.state.plan import Plan, plan
from bert_operator.state.runs import run_placement
from bert_operator.state.status import describe_blocked, describe_invalid
from bert_operator.state.stop_grace import MAX_GRACE_S

Document = dict[str, Any]

_SETTLING_PAUSE_S = 1.0
_CHANGED_PAUSE_S = 1.0
_UNWATCHED_PAUSE_S = 5.0
MAX_REST_S = 30.0
"""So long a job of which nothing is new is not planned again. A watch may be faster than the answer to the write that
it tells of, and then wakes the job once more; a resync shall look at every job."""

_log = logging.getLogger(__name__)


class RecordSource(Protocol):
    """Reads records from logs."""

    def latest(self, ref: JobRef) -> LatestRecords:
        """Return the newest records of a job."""

    async def read_final(self, ref: JobRef, job: JobSummary, child: ChildSummary) -> None:
        """Read the log of a child that has ended."""


class NodeSource(Protocol):
    """Reads nodes into the index."""

    async def refresh(self, node: str) -> None:
        """Read a node on which an attempt has failed."""


class _Rest(NamedTuple):
    """A job of which all that is known is in a plan that was carried out."""

    version: tuple[str, int]
    """The job's uid and resource version."""
    revision: int
    """The job's revision in the index at that time."""
    records: LatestRecords
    """The latest of its log."""
    since_s: float
    until_s: float
    due_s: float | None
    """When time alone changes something."""

    def holds(self, version: tuple[str, int], revision: int, records: LatestRecords, now_s: float) -> bool:
        """Return whether nothing has come since, and the time for another look has not."""
        # Two API servers may have different clocks: one that went back must not put off what is due.
        return (version, revision, records) == self[:3] and self.since_s <= now_s < self.until_s


class Reconciler:
    """Reconciles one job at a time. Its memory may be lost at any time."""

    def __init__(
        self,
        api: ApiClient,
        index: Index,
        settings: Settings,
        recorder: EventSink,
        log_records: RecordSource,
        metrics: Metrics,
        nodes: NodeSource,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Remember nothing.

        Args:
            api: The API server.
            index: What is known of the cluster.
            settings: The operator's.
            recorder: Takes Events.
            log_records: What logs contain.
            metrics: Counts attempts.
            nodes: Reads nodes into the index.
            clock: Returns seconds since 1970, by the API server's clock.
        """
        self._api = api
        self._index = index
        self._settings = settings
        self._recorder = recorder
        self._log_records = log_records
        self._nodes = nodes
        self._now_s = clock
        self._freezer = Freezer(api, settings)
        self._statuses = StatusWriter(api, index, recorder, metrics)
        policies, quotas = NetworkPolicies(api, settings), NamespaceQuotas(index, settings)
        self._children = Children(api, index, self._freezer, policies, self._statuses, metrics, quotas, clock)
        # A restart loses this and emits the Event again. Its name is a hash of its text (recorder), so only a count
        # goes up.
        self._left_alone: dict[JobRef, tuple[str, str]] = {}
        self._rests: dict[JobRef, _Rest] = {}

    async def reconcile(self, ref: JobRef) -> None:
        """Reconcile a job, by one or more steps.

        Raises:
            Requeue: Reconcile again after some time.
            ApiError: The API server refused, or could not be reached.
        """
        summary = self._index.job(ref)
        # Children need no request: the job owns them, so the garbage collector deletes them. Those whose owner somebody
        # has taken away are the exception.
        if summary is None or summary.is_deleting:
            await self._children.delete_orphans(ref)
            self._children.forget(ref)
            self._left_alone.pop(ref, None)
            self._rests.pop(ref, None)
            return
        if summary.is_managed_elsewhere:
            # Of a namesake that was this operator's, the garbage collector deletes what it owned.
            self._children.forget(ref)
            self._rests.pop(ref, None)
            return
        if self._rests_on(ref, summary):
            return
        # Too large to be kept: 200 jobs of the largest size once took the operator beyond its memory limit.
        if summary.content is None:
            large = await self._statuses.read_job(ref, summary)
            if large is None or large.is_deleting:
                raise Requeue(CONFLICT_PAUSE_S)
            summary = large
        document = self._index.take_document(ref, summary)
        # Before anything else: a status of a newer release may hold what this one cannot even parse.
        if (wanted := needs_newer_operator(document.get("status") or {}, own=__version__)) is not None:
            self._leave_alone(ref, summary, wanted)
            return
        status = JobStatus.model_validate(document.get("status") or {})
        try:
            job = await self._read(document, status)
        except Unusable as unusable:
            await self._write_unusable(ref, summary, status, unusable.blocker)
            return
        except InvalidJob as invalid:
            # What is finished stays as it was reported, whatever rules or profiles have come since.
            if status.phase not in TERMINAL_PHASES:
                message = "; ".join(str(problem) for problem in invalid.problems)
                new = describe_invalid(status, message, generation=summary.generation, now_s=self._now_s())
                await self._statuses.write(ref, summary, status, new)
            return
        # Before the plan: once a phase is terminal its status is never written again, and later records would be lost.
        if status.phase not in TERMINAL_PHASES:
            await self._read_final_log(ref, summary)
        step = await self._plan(job, summary, status)
        await self._carry_out(job, document, summary, status, step)

    def _leave_alone(self, ref: JobRef, summary: JobSummary, wanted: str) -> None:
        """Emit once that a newer release has to carry a job on.

        During an upgrade both releases may run side by side, and the status may be the newer one's at this moment: the
        older one would misread or undo it, so it writes nothing.
        """
        if self._left_alone.get(ref) != (summary.uid, wanted):
            self._left_alone[ref] = (summary.uid, wanted)
            message = (
                f"A newer release has carried this job on. It wants bert-operator {wanted} or newer; this "
                f"is {__version__}, which leaves it alone. Next: run that release, and no other beside it"
            )
            _log.warning("%s: %s", ref, message)
            self._recorder.emit(ref, summary.uid, JobEvent("Warning", "OperatorTooOld", message))

    async def _read(self, document: Document, status: JobStatus) -> BertPretrainJob:
        """Return the job, completed by its profile.

        Raises:
            InvalidJob: It cannot run here.
            Unusable: It was started, and cannot be read any more.
        """
        # As long as attempt 1 is not in the status, the API server accepts changes of the spec (immutability_rules).
        if status.attempt == 0:
            return read_cluster_job(document, self._settings)
        # A started job is not validated again by stricter rules or other profiles: what it runs is frozen. Rules are
        # for a generation that no status speaks of yet, and were three quarters of the time that reading takes.
        generation = document["metadata"].get("generation")
        is_new = status.observed_generation is None or status.observed_generation != generation
        try:
            seen = self._settings.seen_from(document["metadata"]["namespace"])
            completed = complete(document, seen.profiles, seen.default_profile)
            return parse_started_job(completed, by_rules=is_new)
        except InvalidJob:
            # The profile that completed it may have been removed since; what was frozen is complete by itself.
            if (frozen := await self._freezer.find(document, status)) is None:
                raise
            return frozen.job

    async def _plan(self, job: BertPretrainJob, summary: JobSummary, status: JobStatus) -> Plan:
        own = self._children.own(job.ref, summary)
        if any(not child.is_watched and child.attempt == status.attempt for child in own):
            await self._children.find(job, summary, status)
        await self._children.note_orphans(job.ref, summary)
        step = plan(job, await self._observe_with_node(job, summary, status), self._now_s())
        makes_another = step.create is not None and status.attempt > 0
        # Before anything is asked: jobs may wait for hours, and each looks every few seconds.
        if makes_another and step.status == status and self._children.waits_for_quota(job.ref, summary.uid):
            raise Requeue(RETRY_S)
        # Of a run of this operator before, which has ended before the status named the child, and with its label gone.
        lacks_child = _ends(status, step.status) and all(child.attempt != status.attempt for child in own)
        if makes_another or lacks_child or _finds_a_loss(status, step.status):
            # A stale cache looks like a lost child: the watch on jobs and the one on children are not ordered against
            # each other. Ask the API server before a second child is created beside the first, in the same output
            # folder. A first child needs no question, since its status is written against the version that was read.
            await self._children.find(job, summary, status)
            step = plan(job, await self._observe_with_node(job, summary, status), self._now_s())
            # So is that of every further attempt. Only where the number of one is used again nothing is written.
            if step.create is not None and step.status == status and await self._statuses.is_outdated(job.ref, summary):
                raise Requeue(0.0)
        return step

    def _plan_on(self, job: BertPretrainJob, summary: JobSummary, done: Plan) -> Plan:
        """Return the plan after one that was carried out, whose time is all that is left of it.

        The index has the answers to all writes, so what the watches tell of them changes no revision and wakes nobody.

        Raises:
            Requeue: It asks for more, as after a child that a run of this operator before had created is found to run.
        """
        after = plan(job, self._observe(job, summary, done.status), self._now_s())
        if after.status != done.status or after.stop or after.remove or after.create is not None:
            raise Requeue(0.0)
        return after

    async def _observe_with_node(self, job: BertPretrainJob, summary: JobSummary, status: JobStatus) -> Observed:
        """Observe a job, after the node on which its newest attempt has failed was read."""
        observed = self._observe(job, summary, status)
        if (node := _node_to_read(observed)) is None:
            return observed
        await self._nodes.refresh(node)
        return self._observe(job, summary, status)

    def _observe(self, job: BertPretrainJob, summary: JobSummary, status: JobStatus) -> Observed:
        refusal = self._children.refusal(job.ref, summary.uid)
        own = self._children.own(job.ref, summary)
        newest = max(own, key=lambda child: child.attempt, default=None)
        pods = () if newest is None else self._index.pods(job.ref, newest.name)
        latest = select_records(self._log_records.latest(job.ref), newest, pods)
        # Only of this very job: one that had its name before may have left records.
        records = latest.progress, latest.checkpoint, latest.resumed, latest.hang, latest.unreached
        progress, checkpoint, resumed, hang, unreached = (
            record if record and record.job == summary.uid else None for record in records
        )
        told = latest if latest.job == summary.uid else LatestRecords()
        return Observed(
            status=status,
            children=tuple(self._observe_child(job, child) for child in own),
            stop_requested=job.spec.run_policy.suspend,
            progress=progress,
            checkpoint=checkpoint,
            resumed=resumed,
            results=told.results,
            hang=hang,
            unreached=unreached,
            silence=told.silence,
            unreadable=told.unreadable,
            cut=told.cut,
            blocker=refusal.blocker if refusal else None,
            created=self._children.created(job.ref, summary.uid),
            max_grace_s=self._settings.limits.of(job.ref.namespace).stop_grace_seconds or MAX_GRACE_S,
        )

    def _observe_child(self, job: BertPretrainJob, child: ChildSummary) -> Child:
        pods = self._index.pods(job.ref, child.name)
        # mpi-operator makes a Job of the launcher, by this name. It is not in the index; its Warnings are.
        subjects = [child.name, f"{child.name}-launcher", *(pod.name for pod in pods)]
        warnings = self._index.warnings(job.ref, subjects)
        workers = run_placement(job.spec, child.run).workers
        workload = self._index.workload(child.uid)
        return observe_child(
            child,
            pods,
            warnings,
            workers=workers,
            now_s=self._now_s(),
            nodes=self._index.nodes(),
            workload=workload,
            preemptor=self._index.owner_of(workload.preemptor) if workload is not None else None,
            namespace=job.ref.namespace,
        )

    async def _read_final_log(self, ref: JobRef, summary: JobSummary) -> None:
        newest = max(self._children.own(ref, summary), key=lambda child: child.attempt, default=None)
        if newest is not None and (has_ended(newest) or find_held(newest, self._index.pods(ref, newest.name))):
            await self._log_records.read_final(ref, summary, newest)

    async def _write_unusable(self, ref: JobRef, summary: JobSummary, status: JobStatus, blocker: Blocker) -> None:
        """Report that a started job cannot be carried on, and leave everything else as it is."""
        if status.phase not in TERMINAL_PHASES:
            new = describe_blocked(status, blocker, generation=summary.generation, now_s=self._now_s())
            await self._statuses.write(ref, summary, status, new)

    async def _carry_out(
        self, job: BertPretrainJob, document: Document, summary: JobSummary, status: JobStatus, step: Plan
    ) -> None:
        draft = None
        if step.create is not None and status.attempt == 0:
            # The hash is in the status before the ConfigMap exists: whoever may write ConfigMaps could otherwise put
            # one of their own there first.
            draft = self._freezer.draft(job)
            step = replace(step, status=with_hash(step.status, draft.hash))
        # Status first: the number of an attempt that was never created is used again, while a child whose number is
        # in no status could be lost without being counted.
        if step.status != status:
            summary = await self._statuses.write(job.ref, summary, status, step.status)
        # Both are deletions: pods that still run get SIGTERM, on which ranks write a checkpoint.
        for child in (*step.stop, *step.remove):
            await self._children.delete(job.ref, child)
        is_created = False
        if step.create is not None:
            is_created = await self._children.create(job, document, summary, step, draft)
        else:
            self._children.forget_refusal(job.ref)
        if step.status != status or is_created or step.stop or step.remove:
            step = self._plan_on(job, summary, step)
        # Only under this uid: a job that was applied again under the name is another one.
        if step.delete_job:
            # Its user may have given it longer since, while the watch was late. What has changed is looked at again.
            if await delete_object(self._api, job_path(job.ref), summary.uid, summary.version) is None:
                await self._statuses.read_job(job.ref, summary)
                raise Requeue(_CHANGED_PAUSE_S)
            return
        again_in_s = self._requeue_after_s(job.ref, summary, step)
        # Nothing was awaited since the last plan, so that all that is known by now is in it.
        now_s, version = self._now_s(), (summary.uid, summary.version)
        due_s = None if again_in_s is None else now_s + again_in_s
        until_s = now_s + min(MAX_REST_S, MAX_REST_S if again_in_s is None else again_in_s)
        records = self._log_records.latest(job.ref)
        self._rests[job.ref] = _Rest(version, self._index.revision(job.ref), records, now_s, until_s, due_s)
        if again_in_s is not None:
            raise Requeue(again_in_s)

    def _rests_on(self, ref: JobRef, summary: JobSummary) -> bool:
        """Return whether a job needs no other plan yet. Raises Requeue where the time for one is known."""
        rest, now_s = self._rests.get(ref), self._now_s()
        version, records = (summary.uid, summary.version), self._log_records.latest(ref)
        if rest is None or not rest.holds(version, self._index.revision(ref), records, now_s):
            self._rests.pop(ref, None)
            return False
        if rest.due_s is not None:
            raise Requeue(rest.due_s - now_s)
        return True

    def _requeue_after_s(self, ref: JobRef, summary: JobSummary, step: Plan) -> float | None:
        """Return when time alone changes something: a deadline, or a controller or a pod that stays silent."""
        pauses = [] if step.requeue_after_s is None else [step.requeue_after_s]
        for child in self._children.own(ref, summary):
            pauses += _pauses_of(child, self._index.pods(ref, child.name), self._now_s())
        return min(pauses, default=None)


def _pauses_of(child: ChildSummary, pods: Sequence[PodSummary], now_s: float) -> Iterator[float]:
    """Yield after how many seconds time alone changes something about a child."""
    silent_since_s = [pod.unready_since_s for pod in pods if pod.unready_since_s is not None]
    if child.kind == "MPIJob" and not child.has_status:
        silent_since_s.append(child.created_at_s)
    moments_s = [since_s + SILENCE_S for since_s in silent_since_s]
    moments_s += [pod.created_at_s + SCHEDULER_SILENCE_S for pod in pods if pod.unseen_by]
    if (lost := find_lost_worker(child, pods)) is not None:
        moments_s.append(lost[1])
    if (held := find_held(child, pods)) is not None:
        moments_s += [held[1] + SILENCE_S, held[1] + HELD_POD_S]
    # A second late, since times of objects are whole seconds; one that has passed is in the status already and must not
    # requeue the job for ever.
    yield from (moment_s - now_s + 1.0 for moment_s in moments_s if moment_s - now_s > -1.0)
    if is_settling(child, pods, now_s):
        yield _SETTLING_PAUSE_S
    if not child.is_watched:
        yield _UNWATCHED_PAUSE_S


def _node_to_read(observed: Observed) -> str | None:
    """Return the node on which the newest attempt failed, before that is put down."""
    status, newest = observed.status, max(observed.children, key=lambda child: child.attempt, default=None)
    if newest is None or newest.state != "Failed" or status.phase in TERMINAL_PHASES:
        return None
    return None if any(failure.attempt == newest.attempt for failure in status.failures) else newest.node


def _ends(before: JobStatus, after: JobStatus) -> bool:
    """Return whether a job that has started is said to be stopped, or over."""
    is_end = after.phase == "Stopped" or after.phase in TERMINAL_PHASES
    return is_end and before.phase != after.phase and before.attempt > 0


def _finds_a_loss(before: JobStatus, after: JobStatus) -> bool:
    known = {failure.attempt for failure in before.failures}
    return any(failure.reason == FailureReason.LOST and failure.attempt not in known for failure in after.failures)
