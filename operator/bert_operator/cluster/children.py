"""Creates and deletes the children of jobs, and remembers which creations were refused and when to try again.

A child is created by POST and never patched (docs/adr/0006): applying it again, server-side or not, would take
``suspend`` away from Kueue. Creating is idempotent without that, because an attempt's child has exactly one name.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bert_operator.api.schema.bert_pretrain_job import BertPretrainJob
from bert_operator.api.schema.conditions import BlockerReason
from bert_operator.api.schema.status import MAX_MESSAGE, ChildRef, JobStatus
from bert_operator.cluster.blockers import classify_refusal
from bert_operator.cluster.client import ApiClient, ApiError
from bert_operator.cluster.demand import read_demand
from bert_operator.cluster.dropped_fields import call_by_own_name, dry_runs, find_dropped
from bert_operator.cluster.freezing import Draft, Freezer, Unusable, create_or_get
from bert_operator.cluster.index import Index
from bert_operator.cluster.metrics import Metrics
from bert_operator.cluster.name_conflicts import (
    NameConflict,
    describe_conflicts,
    find_conflicts,
    find_leftover_pods,
    read_conflict,
)
from bert_operator.cluster.network_policies import NetworkPolicies
from bert_operator.cluster.object_summaries import ChildKind, ChildRecord, ChildSummary, JobSummary, read_child
from bert_operator.cluster.observation import has_ended
from bert_operator.cluster.paths import path_of
from bert_operator.cluster.quotas import RETRY_S, NamespaceQuotas
from bert_operator.cluster.status_writer import StatusWriter
from bert_operator.cluster.work_queue import Requeue
from bert_operator.names import JobRef
from bert_operator.render import names
from bert_operator.render.children import render_child
from bert_operator.render.frozen import Frozen
from bert_operator.state.observed import Blocker, Child
from bert_operator.state.plan import Plan
from bert_operator.state.runs import ChildSpec, run_placement

Document = dict[str, Any]

FIRST_CREATION_PAUSE_S = 2.0
MAX_CREATION_PAUSE_S = 60.0
NAME_PAUSE_S = 5.0
"""For names: no watch tells of the objects of others."""
ENDED_PHASES = ("Succeeded", "Failed")

_log = logging.getLogger(__name__)

# The API server's 404 for a resource that it does not serve, and for a whole group. A 404 for a namespace reads
# differently, and is no reason to install mpi-operator.
_UNKNOWN_API = ("could not find the requested resource", "404 page not found")

# etcd's refusal, which the API server passes on as an error of its own, not as a 413.
_TOO_LARGE = "request is too large"


@dataclass(slots=True)
class Refusal:
    """A refused creation of a child for the job with this UID, and when to retry."""

    uid: str
    blocker: Blocker
    pause_s: float
    again_at_s: float
    revision: int = 0
    """The job's revision in the index at that time."""

    def may_be_freed(self, revision: int) -> bool:
        """Return whether the conflict may be gone before the pause is over. revision: the current one."""
        return self.blocker.reason == BlockerReason.NAME_TAKEN and self.revision != revision


class Children:
    """Creates, finds and deletes the children of all jobs. Its memory may be lost at any time."""

    def __init__(
        self,
        api: ApiClient,
        index: Index,
        freezer: Freezer,
        policies: NetworkPolicies,
        statuses: StatusWriter,
        metrics: Metrics,
        quotas: NamespaceQuotas,
        clock: Callable[[], float],
    ) -> None:
        """Start with nothing refused and nothing created.

        Args:
            api: The API server.
            index: What is known of the cluster.
            freezer: Freezes the configuration before the first child, and reads it back afterwards.
            policies: Keeps the policies of jobs' pods.
            statuses: Writes the hash of the frozen configuration.
            metrics: Counts attempts.
            quotas: What namespaces may still have.
            clock: Returns seconds since 1970, by the API server's clock.
        """
        self._api = api
        self._index = index
        self._freezer = freezer
        self._policies = policies
        self._statuses = statuses
        self._metrics = metrics
        self._quotas = quotas
        self._now_s = clock
        # Both hold the job's uid as well: a job may be deleted and recreated under its name at any time.
        self._refusals: dict[JobRef, Refusal] = {}
        self._created: dict[JobRef, ChildRecord] = {}

    def forget(self, ref: JobRef) -> None:
        """Drop everything about a job that is gone."""
        self._refusals.pop(ref, None)
        self._created.pop(ref, None)
        self._quotas.forget(ref)

    def forget_refusal(self, ref: JobRef) -> None:
        """Drop a refusal that no longer matters, so that the next creation starts without a pause."""
        self._refusals.pop(ref, None)
        self._quotas.forget(ref)

    def refusal(self, ref: JobRef, uid: str) -> Refusal | None:
        """Return why this very job's next child could not be created."""
        refusal = self._refusals.get(ref)
        return refusal if refusal is not None and refusal.uid == uid else None

    def waits_for_quota(self, ref: JobRef, uid: str) -> bool:
        """Return whether the job's next child must wait for its namespace's quota; costs no request."""
        refusal = self.refusal(ref, uid)
        waits = refusal is not None and refusal.blocker.reason == BlockerReason.NAMESPACE_LIMIT_REACHED
        return waits and self._quotas.still_waits(ref)

    def created(self, ref: JobRef, uid: str) -> ChildRef | None:
        """Return the child that this process created last for this very job."""
        made = self._created.get(ref)
        if made is None or made.job_uid != uid:
            return None
        return ChildRef(kind=made.kind, name=made.name, uid=made.uid, attempt=made.attempt)

    def own(self, ref: JobRef, summary: JobSummary) -> Sequence[ChildSummary]:
        """Return the children controlled by this very job; the garbage collector deletes a namesake's."""
        return self._index.own_children(ref, summary.uid)

    async def find(self, job: BertPretrainJob, summary: JobSummary, status: JobStatus) -> None:
        """Read the newest child from the API server: a watch may lag, and loses sight of one that was relabelled.

        By the uid that the status, or its creation, has on record; else by the names that the child of the newest
        attempt may have, and its owner: a run of this operator before may have created it and ended. Called before a
        child is called lost or stopped for good, and before another one is created.
        """
        records = self._records(job.ref, summary)
        for record in records:
            await self._look_for(job.ref, record)
        known = {record.attempt for record in records} | {child.attempt for child in self.own(job.ref, summary)}
        if status.run is not None and status.attempt not in known:
            await self._find_by_name(job, summary, status.run, status.attempt)

    def _records(self, ref: JobRef, summary: JobSummary) -> list[ChildRecord]:
        """Return what is on record of the newest child: in the status, or, until it is there, of its creation."""
        made = self._created.get(ref)
        both = (summary.child, made if made is not None and made.job_uid == summary.uid else None)
        return list(dict.fromkeys(record for record in both if record is not None))

    async def _look_for(self, ref: JobRef, record: ChildRecord) -> None:
        answer = await self._read(path_of(record.kind, ref.namespace, record.name))
        uid = answer.get("metadata", {}).get("uid")
        if uid != record.uid:
            self._index.drop_uid(record.kind, ref.namespace, record.name, record.uid)
            if not answer or _controller_uid(answer) != record.job_uid:
                return
            # Another operator has made it anew, under the same number.
            record = self._created[ref] = record._replace(uid=uid)
        self._index.restore_child({**answer, "kind": record.kind}, record)

    async def _find_by_name(self, job: BertPretrainJob, summary: JobSummary, run: str, attempt: int) -> None:
        is_mpi = run_placement(job.spec, run).workers > 1
        kind: ChildKind = "MPIJob" if is_mpi else "Job"
        for other in ("", summary.uid):
            name = names.child_name(job.ref.name, run, attempt, is_mpi=is_mpi, uid=other)
            answer = await self._read(path_of(kind, job.ref.namespace, name))
            if answer and _controller_uid(answer) == summary.uid:
                uid = answer["metadata"]["uid"]
                record = ChildRecord(job.ref.name, summary.uid, kind, name, uid, run, attempt)
                self._created[job.ref] = record
                self._index.restore_child({**answer, "kind": kind}, record)
                return

    async def _read(self, path: str) -> Document:
        """Return an object; empty where there is none."""
        try:
            return await self._api.get(path)
        except ApiError as error:
            if error.status != 404:
                raise
            return {}

    async def note_orphans(self, ref: JobRef, summary: JobSummary) -> None:
        """Remember children whose owner reference was removed, so that they are deleted with their job.

        The garbage collector takes it away as well where a job is deleted with --cascade=orphan, whose children stay.
        So the job must be there and not be deleted, by the API server's word: the watches are not ordered.

        Raises:
            Requeue: The job has changed, and the index has learnt of it.
        """
        noted = {child.uid for child in self._index.orphans(ref)}
        new = [child for child in self.own(ref, summary) if child.is_orphan and child.uid not in noted]
        if new and await self._statuses.is_outdated(ref, summary):
            raise Requeue(0.0)
        for child in new:
            self._index.note_orphan(ref, child.uid)

    async def delete_orphans(self, ref: JobRef) -> None:
        """Delete the noted children of a job that is gone; drop those that no watch will tell of."""
        for child in self._index.orphans(ref):
            if not child.is_deleting:
                answer = await delete_object(self._api, path_of(child.kind, ref.namespace, child.name), child.uid)
                if answer is None:
                    self._index.drop_uid(child.kind, ref.namespace, child.name, child.uid)
                else:
                    self._index.put_child(answer)
        for child in self._index.children(ref):
            if not child.is_watched:
                self._index.drop_uid(child.kind, ref.namespace, child.name, child.uid)

    async def delete(self, ref: JobRef, child: Child) -> None:
        """Delete a child, its pods first.

        Raises:
            Requeue: It was gone already, so the plan was made from an outdated index.
        """
        assert child.ref is not None, "children in a cluster have a name"
        path = path_of(child.ref.kind, ref.namespace, child.ref.name)
        answer = await delete_object(self._api, path, child.ref.uid)
        if answer is None:
            self._index.drop_uid(child.ref.kind, ref.namespace, child.ref.name, child.ref.uid)
            raise Requeue(0.0)
        # It has a deletionTimestamp now, so the child counts as stopping and is not deleted again.
        self._index.put_child(answer)

    async def create(
        self, job: BertPretrainJob, document: Document, summary: JobSummary, step: Plan, draft: Draft | None
    ) -> bool:
        """Create the child that a plan asks for, or adopt the one that exists; back off from refusals.

        Return whether it is there; if not, a pod of an earlier one is in its way, as is written in the status already.

        Args:
            job: The job.
            document: What it was read from.
            summary: Its summary at the version that ``step.status`` was written to.
            step: A plan that creates a child.
            draft: What the job is frozen with, if this is its first attempt.

        Raises:
            Requeue: It was refused; the next reconcile puts the reason into the status, or tries again.
        """
        refusal = self.refusal(job.ref, summary.uid)
        if left := self._find_leftovers(job.ref, summary):
            leftover = await self._describe_taken(job, summary, step.create, left)
            assert leftover is not None, "pods are left"
            self._refusals[job.ref] = Refusal(summary.uid, leftover, FIRST_CREATION_PAUSE_S, again_at_s=0.0)
            if refusal is None or refusal.blocker != leftover:
                raise Requeue(0.0)  # to write it into the status
            return False  # the watch queues the job when the pod is gone
        left_s = refusal.again_at_s - self._now_s() if refusal is not None else 0.0
        # The job is queued by every change around it; without this check each would be another refused request.
        # More than the pause is left only if the clock was set back.
        is_freed = refusal is not None and refusal.may_be_freed(self._index.revision(job.ref))
        if refusal is not None and 0.0 < left_s <= refusal.pause_s and not is_freed:
            raise Requeue(left_s)
        blocker = await self._create(job, document, summary, step, draft)
        if blocker is None:
            self._refusals.pop(job.ref, None)
            self._metrics.attempt_started(step.create.run if step.create else "")
            return True
        # Admission webhooks quote the object that they refuse, however long it is.
        blocker = replace(blocker, message=blocker.message[:MAX_MESSAGE])
        pause_s = min(2 * refusal.pause_s, MAX_CREATION_PAUSE_S) if refusal else FIRST_CREATION_PAUSE_S
        if blocker.reason == BlockerReason.NAMESPACE_LIMIT_REACHED:
            pause_s = RETRY_S
        if blocker.reason == BlockerReason.NAME_TAKEN:
            pause_s = min(pause_s, NAME_PAUSE_S)
        revision = self._index.revision(job.ref)
        self._refusals[job.ref] = Refusal(summary.uid, blocker, pause_s, self._now_s() + pause_s, revision)
        if refusal is None or refusal.blocker != blocker:
            raise Requeue(0.0)  # to write it into the status
        raise Requeue(pause_s)

    def _find_leftovers(self, ref: JobRef, summary: JobSummary) -> list[NameConflict]:
        """Return the pods that are in the way of the next child though their own is gone.

        A Job that is deleted in the background, as kubectl and the garbage collector do, disappears at once, while its
        pod still has its grace period, and may write into the output folder. And as long as a pod of a job of the same
        name is there, ended or not, its kubelet gives new pods the frozen ConfigMap of that job: immutable ones are not
        read again.
        """
        own = {child.name for child in self.own(ref, summary)}
        is_first = summary.child is None
        return find_leftover_pods(
            pod
            for pod in self._index.all_pods(ref)
            if pod.child not in own and (pod.phase not in ENDED_PHASES or is_first and pod.is_deleting)
        )

    async def _describe_taken(
        self, job: BertPretrainJob, summary: JobSummary, child: ChildSpec | None, known: Sequence[NameConflict] = ()
    ) -> Blocker | None:
        """Return all that is in the way of a child, so that one command frees it; None if nothing is. known: of it."""
        assert child is not None, "only called for a plan that creates one"
        is_mpi = run_placement(job.spec, child.run).workers > 1
        wanted = [
            ("MPIJob" if is_mpi else "Job", names.child_name(job.ref.name, child.run, child.attempt, is_mpi=is_mpi)),
            ("ConfigMap", names.config_map_name(job.ref.name)),
            *self._policies.list_names(job),
        ]

        def is_in_way(kind: str, answer: Mapping[str, Any]) -> bool:
            return kind not in ("Job", "MPIJob") or _may_run_for(job.ref, kind, answer)

        found = await find_conflicts(self._api, job.ref, summary.uid, wanted, is_in_way)
        taken = list(dict.fromkeys([*found, *known]))
        return describe_conflicts(job.ref.namespace, taken) if taken else None

    async def _try(self, ref: JobRef, trial: Document) -> Document:
        """Return what the API server would store. Raises ApiError as for the child itself."""
        try:
            return await self._api.create(path_of(trial["kind"], ref.namespace), trial, dry_run=True)
        except ApiError as error:
            message = call_by_own_name(trial, error.message)
            raise ApiError(error.status, error.reason, message, error.retry_after_s) from error

    async def _create(
        self, job: BertPretrainJob, document: Document, summary: JobSummary, step: Plan, draft: Draft | None
    ) -> Blocker | None:
        child = step.create
        assert child is not None, "only called for a plan that creates one"

        async def write_hash(text: str) -> None:
            await self._statuses.write(job.ref, summary, step.status, with_hash(step.status, text))

        try:
            frozen = await self._freezer.obtain(document, step.status, draft, write_hash)
            rendered = render_child(frozen, child)
            path = path_of(rendered["kind"], job.ref.namespace)
            # The last step before the request that is not done at once: what is given here is held until that is
            # answered. Without an answer it stays given, since the child may be there.
            if (excess := self._quotas.reserve(job.ref, read_demand(rendered))) is not None:
                return excess
            for trial in dry_runs(rendered):
                kept = await self._try(job.ref, trial)
                if (dropped := find_dropped(trial, kept)) is not None:
                    self._quotas.release(job.ref)
                    return dropped
            # Before the first pod: one that starts without it could be reached until it is there.
            await self._policies.ensure(frozen, is_first=child.attempt == 1)
            # AlreadyExists is the normal case after a crash between the POST and the next status write.
            answer = await create_or_get(self._api, path, rendered)
            if not _is_ours(answer, frozen) and not _may_run_for(job.ref, rendered["kind"], answer):
                rendered = render_child(frozen, child, is_name_taken=True)
                answer = await create_or_get(self._api, path, rendered)
        except Unusable as error:
            self._quotas.release(job.ref)
            is_taken = error.blocker.reason == BlockerReason.NAME_TAKEN
            return is_taken and await self._describe_taken(job, summary, child) or error.blocker
        except ApiError as error:
            blocker = _blocker_of(error)
            self._quotas.release(job.ref)
            return blocker
        except Exception:
            # A mistake of ours, and no answer that was lost: those are errors of the API.
            self._quotas.release(job.ref)
            raise
        # Nothing is awaited from here until the child is in the index.
        self._quotas.release(job.ref)
        if not _is_ours(answer, frozen):
            return await self._describe_taken(job, summary, child, [read_conflict(rendered["kind"], answer)])
        name, uid = answer["metadata"]["name"], answer["metadata"]["uid"]
        made = ChildRecord(job.ref.name, summary.uid, rendered["kind"], name, uid, child.run, child.attempt)
        # For plan: a child that is gone before any watch has shown it is lost, and its number must not be used again.
        self._created[job.ref] = made
        # By what was rendered, not by its labels: others may have changed them since a run before has created it.
        self._index.restore_child({**answer, "kind": rendered["kind"]}, made)
        return None


async def delete_object(api: ApiClient, path: str, uid: str, version: int | None = None) -> Document | None:
    """Delete an object; None if it is gone already, or has changed where a version is given.

    Nor is another object of the name deleted.
    """
    try:
        return await api.delete(path, uid=uid, version=version)
    except ApiError as error:
        # 409: a precondition failed.
        if error.status in (404, 409):
            return None
        raise


def with_hash(status: JobStatus, text: str) -> JobStatus:
    """Return a status with the hash of the frozen configuration."""
    return status.model_copy(update={"frozen_hash": text})


def _is_ours(answer: Document, frozen: Frozen) -> bool:
    """Tell whether an object is the child of this very job, made from the same spec."""
    same_spec = (answer["metadata"].get("annotations") or {}).get(names.HASH_ANNOTATION) == frozen.spec_hash
    return _controller_uid(answer) == frozen.uid and same_spec


def _may_run_for(ref: JobRef, kind: str, answer: Mapping[str, Any]) -> bool:
    """Return whether an object that is not ours may write where the job does: it was made for it, and has not ended.

    Such as a child of a namesake that was deleted with ``--cascade=orphan``, or one whose owner others took away.
    """
    read = read_child({**answer, "kind": kind})
    return read is not None and read[0] == ref.name and not has_ended(read[1])


def _controller_uid(answer: Document) -> str:
    """Return the uid of an object's controller; empty where it has none."""
    owners = answer["metadata"].get("ownerReferences") or ()
    return next((str(owner.get("uid")) for owner in owners if owner.get("controller")), "")


def _blocker_of(error: ApiError) -> Blocker:
    """Return the blocker behind a refusal; raise it again if it is about the API server and not about the job."""
    if error.status == 404 and any(words in error.message for words in _UNKNOWN_API):
        reason = BlockerReason.MPI_JOB_API_MISSING
        message = f"{reason.sentence} Next: kubectl get crd mpijobs.kubeflow.org"
        return Blocker(reason=reason, message=message)
    if error.status == 403:
        return classify_refusal(error.message)
    if error.status == 409 and error.reason == "AlreadyExists":
        return Blocker(reason=BlockerReason.NAME_TAKEN, message=error.message)
    if error.status == 413 or _TOO_LARGE in error.message:
        message = f"{error.message}. Next: make the spec smaller, delete the job and apply it again"
        return Blocker(reason=BlockerReason.REJECTED, message=message)
    # 404: the namespace is gone; an unknown API was told apart above.
    if error.status in (400, 404, 422):
        message = f"{error.message}. Next: correct the field that is named, or delete the job"
        return Blocker(reason=BlockerReason.REJECTED, message=message)
    raise error
