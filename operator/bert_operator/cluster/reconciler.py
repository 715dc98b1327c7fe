"""Looks at one job and does what its plan says. Called again and again; every call may be the first or the last.

The order of writes makes every interruption harmless: the attempt's number is in the status before its child is
asked for; a child has one possible name, so asking for it twice cannot make two; and the status is written
against the version that was read, so that of two operators one is refused and looks again.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from bert_operator import __version__
from bert_operator.api.parsing.profiles import complete
from bert_operator.api.parsing.validation import parse_started_job
from bert_operator.api.schema.bert_pretrain_job import BertPretrainJob
from bert_operator.api.schema.conditions import FailureReason, ObstacleReason
from bert_operator.api.schema.status import MAX_MESSAGE, TERMINAL_PHASES, ChildRef, JobStatus, wants_newer
from bert_operator.cluster.blockers import SILENCE_S, classify_refusal
from bert_operator.cluster.client import ApiClient, ApiError
from bert_operator.cluster.events import News, news_between
from bert_operator.cluster.freezing import Draft, Freezer, Unusable, create_or_get
from bert_operator.cluster.index import Index
from bert_operator.cluster.log_reader import Report
from bert_operator.cluster.object_summaries import ChildEntry, JobEntry, PodEntry, read_job
from bert_operator.cluster.observation import has_ended, is_settling, observe_child
from bert_operator.cluster.paths import job_path, path_of
from bert_operator.cluster.settings import Settings
from bert_operator.cluster.settings_rules import read_cluster_job
from bert_operator.cluster.work_queue import Retry
from bert_operator.errors import InvalidJob
from bert_operator.names import JobRef
from bert_operator.render import names
from bert_operator.render.children import render_child
from bert_operator.render.frozen import Frozen
from bert_operator.state.observed import Child, Observed, Obstacle
from bert_operator.state.plan import Plan, plan
from bert_operator.state.runs import run_world
from bert_operator.state.status import describe_invalid, describe_obstacle

Document = dict[str, Any]

FIRST_CREATION_PAUSE_S = 2.0
MAX_CREATION_PAUSE_S = 60.0
CONFLICT_PAUSE_S = 0.2
ENDED_PHASES = ("Succeeded", "Failed")

# What the API server says of a resource that it does not serve, and of a whole group.
_UNKNOWN_API = ("could not find the requested resource", "404 page not found")

# What etcd says, which the API server passes on as an error of its own.
_TOO_LARGE = "request is too large"

_log = logging.getLogger(__name__)


class Teller(Protocol):
    """Where news go."""

    def tell(self, ref: JobRef, uid: str, news: News) -> None:
        """Have an Event written."""


class Reports(Protocol):
    """What logs say."""

    def report(self, ref: JobRef) -> Report:
        """Return the newest report of a job."""

    async def read_to_end(self, ref: JobRef, job: JobEntry, child: ChildEntry) -> None:
        """Read the log of a child that has ended."""


class ReconcileMetrics(Protocol):
    """What the reconciler tells of itself."""

    def attempt_started(self, run: str) -> None:
        """A child was created."""

    def attempt_failed(self, kind: str, reason: str) -> None:
        """A child failed."""


@dataclass(slots=True)
class _Refusal:
    """A child that could not be created, of the job with a uid, and when to try again."""

    uid: str
    obstacle: Obstacle
    pause_s: float
    again_at_s: float


class Reconciler:
    """Knows how to bring one job forward. Everything that it remembers can be lost."""

    def __init__(
        self,
        api: ApiClient,
        index: Index,
        settings: Settings,
        recorder: Teller,
        reports: Reports,
        metrics: ReconcileMetrics,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Clock: returns seconds since 1970, by the API server's clock."""
        self._api = api
        self._index = index
        self._settings = settings
        self._freezer = Freezer(api, settings)
        self._recorder = recorder
        self._reports = reports
        self._metrics = metrics
        self._now_s = clock
        self._refusals: dict[JobRef, _Refusal] = {}
        self._created: dict[JobRef, tuple[str, ChildRef]] = {}
        self._left_alone: dict[JobRef, tuple[str, str]] = {}

    async def reconcile(self, ref: JobRef) -> None:
        """Bring a job one or more steps forward.

        Raises:
            Retry: look again after some time.
            ApiError: the API server refused, or could not be reached.
        """
        entry = self._index.job(ref)
        if entry is None or entry.is_deleting:
            self._refusals.pop(ref, None)
            self._created.pop(ref, None)
            self._left_alone.pop(ref, None)
            return
        if entry.content is None:
            large = await self._read_job(ref, entry)
            if large is None or large.is_deleting:
                raise Retry(CONFLICT_PAUSE_S)
            entry = large
        document = entry.document()
        if (wanted := wants_newer(document.get("status") or {}, own=__version__)) is not None:
            self._leave_alone(ref, entry, wanted)
            return
        status = JobStatus.model_validate(document.get("status") or {})
        try:
            job = await self._read(document, status)
        except Unusable as unusable:
            await self._tell_unusable(ref, entry, status, unusable.obstacle)
            return
        except InvalidJob as invalid:
            if status.phase not in TERMINAL_PHASES:
                message = "; ".join(str(problem) for problem in invalid.problems)
                new = describe_invalid(status, message, generation=entry.generation, now_s=self._now_s())
                await self._write_status(ref, entry, status, new)
            return
        if status.phase not in TERMINAL_PHASES:
            await self._read_last_words(ref, entry)
        step = await self._plan(job, entry, status)
        await self._carry_out(job, entry, status, step)

    def _leave_alone(self, ref: JobRef, entry: JobEntry, wanted: str) -> None:
        """Say once that a newer release has to carry a job on; its status may be that one's at this moment."""
        if self._left_alone.get(ref) != (entry.uid, wanted):
            self._left_alone[ref] = (entry.uid, wanted)
            message = (
                f"A newer release has carried this job on. It wants bert-operator {wanted} or newer; this "
                f"is {__version__}, which leaves it alone. Next: run that release, and no other beside it"
            )
            _log.warning("%s: %s", ref, message)
            self._recorder.tell(ref, entry.uid, News("Warning", "OperatorTooOld", message))

    async def _read(self, document: Document, status: JobStatus) -> BertPretrainJob:
        """Return the job with what its profile adds.

        Raises:
            InvalidJob: it cannot be carried out here.
            Unusable: it was started, and cannot be read any more.
        """
        if status.attempt == 0:
            return read_cluster_job(document, self._settings)
        # Once started a job is not judged again, by stricter rules or other profiles: what it runs is frozen.
        try:
            return parse_started_job(complete(document, self._settings.profiles, self._settings.default_profile))
        except InvalidJob:
            if (frozen := await self._freezer.find(document, status)) is None:
                raise
            return frozen.job

    async def _plan(self, job: BertPretrainJob, entry: JobEntry, status: JobStatus) -> Plan:
        step = plan(job, self._observe(job, entry, status), self._now_s())
        makes_another = step.create is not None and status.attempt > 0
        if makes_another or _finds_a_loss(status, step.status):
            # What seems to be gone may only be missing from what was seen so far, and the job itself may have moved
            # on: ask, before a second child is made beside the first. A first child needs no question, since its
            # status is written against the version that was seen.
            if await self._is_outdated(job.ref, entry):
                raise Retry(0.0)
            await self._read_children(job.ref)
            step = plan(job, self._observe(job, entry, status), self._now_s())
        return step

    async def _is_outdated(self, ref: JobRef, entry: JobEntry) -> bool:
        """Tell whether the API server has a newer version of a job, which is in the index by then."""
        await self._read_job(ref, entry)
        known = self._index.job(ref)
        return known is None or (known.uid, known.version) != (entry.uid, entry.version)

    def _observe(self, job: BertPretrainJob, entry: JobEntry, status: JobStatus) -> Observed:
        refusal = self._find_refusal(job.ref, entry)
        report = self._reports.report(job.ref)
        # Of this very job, not of one that had its name before.
        records = report.progress, report.checkpoint
        progress, checkpoint = (record if record and record.job == entry.uid else None for record in records)
        owner_uid, created = self._created.get(job.ref, ("", None))
        return Observed(
            status=status,
            children=tuple(self._observe_child(job, child) for child in self._own_children(job.ref, entry)),
            stop_requested=job.spec.run_policy.suspend,
            progress=progress,
            checkpoint=checkpoint,
            obstacle=refusal.obstacle if refusal else None,
            created=created if owner_uid == entry.uid else None,
        )

    def _find_refusal(self, ref: JobRef, entry: JobEntry) -> _Refusal | None:
        refusal = self._refusals.get(ref)
        return refusal if refusal is not None and refusal.uid == entry.uid else None

    async def _read_last_words(self, ref: JobRef, entry: JobEntry) -> None:
        newest = max(self._own_children(ref, entry), key=lambda child: child.attempt, default=None)
        if newest is not None and has_ended(newest):
            await self._reports.read_to_end(ref, entry, newest)

    def _own_children(self, ref: JobRef, entry: JobEntry) -> Sequence[ChildEntry]:
        """Return the children that this very job controls; those of a namesake are left to the garbage collector."""
        return self._index.own_children(ref, entry.uid)

    def _observe_child(self, job: BertPretrainJob, child: ChildEntry) -> Child:
        pods = self._index.pods(job.ref, child.name)
        subjects = [child.name, f"{child.name}-launcher", *(pod.name for pod in pods)]
        warnings = self._index.warnings(job.ref, subjects)
        workers = run_world(job.spec, child.run).workers
        return observe_child(child, pods, warnings, workers=workers, now_s=self._now_s())

    async def _read_children(self, ref: JobRef) -> None:
        """Read a job's children from the API server itself."""
        for kind in ("Job", "MPIJob"):
            try:
                answer = await self._api.get(
                    path_of(kind, ref.namespace), labelSelector=f"{names.JOB_LABEL}={ref.name}"
                )
            except ApiError as error:
                if kind == "MPIJob" and error.status == 404:
                    continue
                raise
            for item in answer.get("items", ()):
                # Items of a list do not say what they are.
                self._index.put_child({**item, "kind": kind})

    async def _tell_unusable(self, ref: JobRef, entry: JobEntry, status: JobStatus, obstacle: Obstacle) -> None:
        """Say that a started job cannot be carried on, and leave everything else as it is."""
        if status.phase not in TERMINAL_PHASES:
            new = describe_obstacle(status, obstacle, generation=entry.generation, now_s=self._now_s())
            await self._write_status(ref, entry, status, new)

    async def _carry_out(self, job: BertPretrainJob, entry: JobEntry, status: JobStatus, step: Plan) -> None:
        draft = None
        if step.create is not None and status.attempt == 0:
            # On record before it is created: nothing else counts as what the operator wrote.
            draft = self._freezer.draft(job)
            step = replace(step, status=_with_hash(step.status, draft.hash))
        if step.status != status:
            entry = await self._write_status(job.ref, entry, status, step.status)
        for child in (*step.stop, *step.remove):
            await self._delete_child(job.ref, child)
        if step.create is not None:
            await self._create_in_turn(job, entry, step, draft)
        else:
            self._refusals.pop(job.ref, None)
        if step.delete_job:
            await self._delete(job_path(job.ref), entry.uid)
        elif (again_in_s := self._look_again_in_s(job.ref, entry, step)) is not None:
            raise Retry(again_in_s)

    def _look_again_in_s(self, ref: JobRef, entry: JobEntry, step: Plan) -> float | None:
        """Return when time alone changes something: a deadline, or a controller or a pod that stays silent."""
        silent = [
            child.created_at_s + SILENCE_S - self._now_s()
            for child in self._own_children(ref, entry)
            if child.kind == "MPIJob" and not child.was_looked_at
        ]
        silent += [
            pod.unready_since_s + SILENCE_S - self._now_s()
            for child in self._own_children(ref, entry)
            for pod in self._index.pods(ref, child.name)
            if pod.unready_since_s is not None
        ]
        settling = [
            1.0
            for child in self._own_children(ref, entry)
            if is_settling(child, self._index.pods(ref, child.name), self._now_s())
        ]
        moments = [step.look_again_in_s, *settling, *(moment + 1.0 for moment in silent if moment > -1.0)]
        return min((moment for moment in moments if moment is not None), default=None)

    async def _write_status(self, ref: JobRef, entry: JobEntry, before: JobStatus, after: JobStatus) -> JobEntry:
        """Write a status over the version that it was made from, and tell what is new.

        Raises:
            Retry: somebody else wrote in between; the newer version is in the index by then.
        """
        if after == before:
            return entry
        patch = {
            "metadata": {"resourceVersion": str(entry.version), "uid": entry.uid},
            "status": after.model_dump(mode="json", by_alias=True),
        }
        try:
            answer = await self._api.patch(job_path(ref, part="status"), patch)
        except ApiError as error:
            if error.status == 404:
                self._index.drop_uid("BertPretrainJob", ref.namespace, ref.name, entry.uid)
                raise Retry(CONFLICT_PAUSE_S) from error
            if error.status == 409:
                await self._read_job(ref, entry)
                raise Retry(CONFLICT_PAUSE_S) from error
            raise
        self._index.put_job(answer)
        for news in news_between(before, after):
            self._recorder.tell(ref, entry.uid, news)
        known = {failure.attempt for failure in before.failures}
        for failure in after.failures:
            if failure.attempt not in known:
                self._metrics.attempt_failed(failure.kind, failure.reason)
        # What the watch brought in the meantime is newer still, and will be looked at for its own sake.
        return replace_version(entry, answer)

    async def _read_job(self, ref: JobRef, entry: JobEntry) -> JobEntry | None:
        """Read a job from the API server itself, as a whole; None where it is gone."""
        try:
            answer = await self._api.get(job_path(ref))
        except ApiError as error:
            if error.status != 404:
                raise
            self._index.drop_uid("BertPretrainJob", ref.namespace, ref.name, entry.uid)
            return None
        self._index.put_job(answer)
        return read_job(answer, most_bytes=math.inf)

    async def _delete_child(self, ref: JobRef, child: Child) -> None:
        assert child.ref is not None, "children in a cluster have a name"
        path = path_of(child.ref.kind, ref.namespace, child.ref.name)
        answer = await self._delete(path, child.ref.uid)
        if answer is None:
            self._index.drop_uid(child.ref.kind, ref.namespace, child.ref.name, child.ref.uid)
            raise Retry(0.0)
        self._index.put_child(answer)

    async def _delete(self, path: str, uid: str) -> Document | None:
        """Delete an object; None where it is gone already, or another one has its name."""
        try:
            return await self._api.delete(path, uid=uid)
        except ApiError as error:
            if error.status in (404, 409):
                return None
            raise

    async def _create_in_turn(self, job: BertPretrainJob, entry: JobEntry, step: Plan, draft: Draft | None) -> None:
        """Create a child, or say why that cannot be; what was refused is tried again at growing intervals."""
        refusal = self._find_refusal(job.ref, entry)
        if (leftover := self._find_leftover(job.ref, entry)) is not None:
            self._refusals[job.ref] = _Refusal(entry.uid, leftover, FIRST_CREATION_PAUSE_S, again_at_s=0.0)
            if refusal is None or refusal.obstacle != leftover:
                raise Retry(0.0)  # to put it into the status
            return  # the watch tells when it is gone
        left_s = refusal.again_at_s - self._now_s() if refusal is not None else 0.0
        # More than the pause is left only where the clock was set back.
        if refusal is not None and 0.0 < left_s <= refusal.pause_s:
            raise Retry(left_s)
        obstacle = await self._create(job, entry, step, draft)
        if obstacle is None:
            self._refusals.pop(job.ref, None)
            self._metrics.attempt_started(step.create.run if step.create else "")
            return
        # Refusals repeat what they refuse, however long that is.
        obstacle = replace(obstacle, message=obstacle.message[:MAX_MESSAGE])
        pause_s = min(2 * refusal.pause_s, MAX_CREATION_PAUSE_S) if refusal else FIRST_CREATION_PAUSE_S
        self._refusals[job.ref] = _Refusal(entry.uid, obstacle, pause_s, self._now_s() + pause_s)
        if refusal is None or refusal.obstacle != obstacle:
            raise Retry(0.0)  # to put it into the status
        raise Retry(pause_s)

    def _find_leftover(self, ref: JobRef, entry: JobEntry) -> Obstacle | None:
        """Return the pod that may still write into the output folder though its child is gone.

        A Job that is deleted in the background, as kubectl and the garbage collector do, vanishes at once; its pod
        has its grace period still before it.
        """
        own = {child.name for child in self._own_children(ref, entry)}
        left = (pod for pod in self._index.all_pods(ref) if pod.phase not in ENDED_PHASES and pod.child not in own)
        pod = next(left, None)
        return None if pod is None else _pod_left(pod)

    async def _create(self, job: BertPretrainJob, entry: JobEntry, step: Plan, draft: Draft | None) -> Obstacle | None:
        """Create a child and what it reads, or take over the one that is there; return what is in the way."""
        child = step.create
        assert child is not None, "asked for by a plan that creates one"

        async def write_hash(text: str) -> None:
            await self._write_status(job.ref, entry, step.status, _with_hash(step.status, text))

        try:
            frozen = await self._freezer.obtain(entry.document(), step.status, draft, write_hash)
            document = render_child(frozen, child)
            path = path_of(document["kind"], job.ref.namespace)
            answer = await create_or_get(self._api, path, document)
        except Unusable as error:
            return error.obstacle
        except ApiError as error:
            return _obstacle_of(error)
        if not _is_ours(answer, frozen):
            return _name_taken(answer)
        self._index.put_child(answer)
        metadata = answer["metadata"]
        made = ChildRef(kind=document["kind"], name=metadata["name"], uid=metadata["uid"], attempt=child.attempt)
        self._created[job.ref] = (entry.uid, made)
        return None


def replace_version(entry: JobEntry, answer: Document) -> JobEntry:
    """Return an entry at the version that a write led to."""
    return entry._replace(version=int(answer["metadata"]["resourceVersion"]))


def _finds_a_loss(before: JobStatus, after: JobStatus) -> bool:
    known = {failure.attempt for failure in before.failures}
    return any(failure.reason == FailureReason.LOST and failure.attempt not in known for failure in after.failures)


def _with_hash(status: JobStatus, text: str) -> JobStatus:
    return status.model_copy(update={"frozen_hash": text})


def _is_ours(answer: Document, frozen: Frozen) -> bool:
    metadata = answer["metadata"]
    owner: Document = next((ref for ref in metadata.get("ownerReferences") or () if ref.get("controller")), {})
    same_spec = (metadata.get("annotations") or {}).get(names.HASH_ANNOTATION) == frozen.spec_hash
    return owner.get("uid") == frozen.uid and same_spec


def _name_taken(answer: Document) -> Obstacle:
    metadata = answer["metadata"]
    leaving = "deletionTimestamp" in metadata
    what = f"{answer.get('kind', 'An object')} {metadata.get('name')}"
    message = (
        f"{what} of an earlier job of this name is still being deleted. Next: wait"
        if leaving
        else f"{what} exists and is not this job's. Next: delete it, or rename the job"
    )
    return Obstacle(reason=ObstacleReason.NAME_TAKEN, message=message)


def _pod_left(pod: PodEntry) -> Obstacle:
    message = (
        f"Pod {pod.name} of an earlier child is still leaving. Next: wait; if its node is gone for good, kubectl "
        "delete it with --force"
        if pod.is_deleting
        else f"Pod {pod.name} carries this job's name and belongs to none of its children. Next: delete it"
    )
    return Obstacle(reason=ObstacleReason.NAME_TAKEN, message=message)


def _obstacle_of(error: ApiError) -> Obstacle:
    """Return what a refusal means; raises it again where it is about the API server, not about the job."""
    if error.status == 404 and any(words in error.message for words in _UNKNOWN_API):
        reason = ObstacleReason.MPI_JOB_API_MISSING
        message = f"{reason.sentence} Next: kubectl get crd mpijobs.kubeflow.org"
        return Obstacle(reason=reason, message=message)
    if error.status == 403:
        return classify_refusal(error.message)
    if error.status == 409 and error.reason == "AlreadyExists":
        return Obstacle(reason=ObstacleReason.NAME_TAKEN, message=error.message)
    if error.status == 413 or _TOO_LARGE in error.message:
        message = f"{error.message}. Next: make the spec smaller, delete the job and apply it again"
        return Obstacle(reason=ObstacleReason.REJECTED, message=message)
    if error.status in (400, 404, 422):
        message = f"{error.message}. Next: correct the field that is named, or delete the job"
        return Obstacle(reason=ObstacleReason.REJECTED, message=message)
    raise error
