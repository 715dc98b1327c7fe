"""Everything that the operator knows of the cluster, by job. In memory, fed by watches and by its own writes.

What the operator has just written is put in here at once, from the API server's answer: a decision is never made
from a state that is older than its own last action. Entries of a lower resource version are ignored.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bert_operator.cluster.object_summaries import (
    ChildSummary,
    JobSummary,
    PodSummary,
    WarningSummary,
    read_child,
    read_job,
    read_pod,
    read_warning,
)
from bert_operator.names import JobRef
from bert_operator.render import names

Document = Mapping[str, Any]
WarningKey = tuple[str, str]

MAX_WARNINGS = 5_000
"""Objects of which warnings are remembered; the oldest are forgotten first."""
_WARNINGS_EACH = 4
_MAX_TOMBSTONES = 20_000


class Index:
    """Jobs, children, pods and warnings."""

    def __init__(self) -> None:
        """Empty."""
        self._jobs: dict[JobRef, JobSummary] = {}
        self._children: dict[JobRef, dict[str, ChildSummary]] = {}
        self._pods: dict[JobRef, dict[str, PodSummary]] = {}
        # Jobs by what their children's names begin with, where that is not their own name.
        self._called: dict[JobRef, JobRef] = {}
        self._warnings: OrderedDict[WarningKey, tuple[WarningSummary, ...]] = OrderedDict()
        # Deleted objects may still be told of by an answer or a watch that is late.
        self._gone: OrderedDict[str, None] = OrderedDict()

    # What comes in. Every method returns the job that is concerned, None where none is.

    def put_job(self, body: Document) -> JobRef | None:
        """Take a BertPretrainJob."""
        summary, ref = read_job(body), _ref(body)
        known = self._jobs.get(ref)
        if summary.uid in self._gone:
            return None
        if known is None or known.uid != summary.uid or known.version <= summary.version:
            self._jobs[ref] = summary
        return ref

    def put_child(self, body: Document) -> JobRef | None:
        """Take a Job or MPIJob."""
        read = read_child(body)
        if read is None:
            return None
        job, summary = read
        ref = JobRef(_namespace(body), job)
        if summary.uid not in self._gone:
            children = self._children.setdefault(ref, {})
            known = children.get(summary.name)
            if known is None or known.uid != summary.uid or known.version <= summary.version:
                children[summary.name] = summary
                self._note_name(ref)
        return ref

    def put_pod(self, body: Document) -> JobRef | None:
        """Take a pod."""
        read = read_pod(body)
        if read is None:
            return None
        job, summary = read
        ref = JobRef(_namespace(body), job)
        if summary.uid not in self._gone:
            self._pods.setdefault(ref, {})[summary.name] = summary
            self._note_name(ref)
        return ref

    def put_warning(self, body: Document) -> JobRef | None:
        """Take an event; those about other people's objects are remembered as well, within bounds.

        They may be told before the object itself is.
        """
        read = read_warning(body)
        if read is None:
            return None
        _, name, warning = read
        key = (_namespace(body), name)
        known = [item for item in self._warnings.pop(key, ()) if item.reason != warning.reason]
        self._warnings[key] = (*known[-_WARNINGS_EACH + 1 :], warning)
        if len(self._warnings) > MAX_WARNINGS:
            self._warnings.popitem(last=False)
        return self._job_of(key)

    def drop(self, body: Document) -> JobRef | None:
        """Forget an object that was deleted."""
        metadata = body.get("metadata", {})
        return self.drop_uid(str(body.get("kind")), _namespace(body), metadata.get("name", ""), metadata.get("uid", ""))

    def drop_uid(self, kind: str, namespace: str, name: str, uid: str) -> JobRef | None:
        """Forget an object by its identity; another one of the same name stays."""
        if kind != "Event":
            self._gone[uid] = None
            if len(self._gone) > _MAX_TOMBSTONES:
                self._gone.popitem(last=False)
        if kind == "BertPretrainJob":
            ref = JobRef(namespace, name)
            if (job := self._jobs.get(ref)) is not None and job.uid == uid:
                del self._jobs[ref]
            return ref
        tables: Mapping[str, dict[JobRef, dict[str, Any]]] = {
            "Job": self._children,
            "MPIJob": self._children,
            "Pod": self._pods,
        }
        for ref in [ref for ref in self._candidates(namespace, name) if name in tables.get(kind, {}).get(ref, {})]:
            table = tables[kind]
            if table[ref][name].uid == uid:
                del table[ref][name]
                if not table[ref]:
                    del table[ref]
                    if ref not in self._children and ref not in self._pods:
                        self._called.pop(_called(ref), None)
                self._warnings.pop((namespace, name), None)
                return ref
        return None

    # What is asked.

    def owner(self, body: Document) -> JobRef | None:
        """Return the job that an object belongs to."""
        metadata = body.get("metadata", {})
        if body.get("kind") == "BertPretrainJob":
            return _ref(body)
        if body.get("kind") == "Event":
            return self._job_of((_namespace(body), (body.get("involvedObject") or {}).get("name", "")))
        job = (metadata.get("labels") or {}).get(names.JOB_LABEL)
        return JobRef(_namespace(body), job) if job else None

    def job(self, ref: JobRef) -> JobSummary | None:
        """Return a job."""
        return self._jobs.get(ref)

    def jobs(self) -> Sequence[JobRef]:
        """Return all jobs."""
        return list(self._jobs)

    def children(self, ref: JobRef) -> Sequence[ChildSummary]:
        """Return the children that carry a job's name, whosever they are."""
        return list(self._children.get(ref, {}).values())

    def own_children(self, ref: JobRef, uid: str) -> Sequence[ChildSummary]:
        """Return the children that the job of this uid controls; others may carry its name in their labels."""
        return [child for child in self.children(ref) if child.owner_uid == uid]

    def pods(self, ref: JobRef, child: str) -> Sequence[PodSummary]:
        """Return the pods of a child, those of a namesake left out that an earlier job has left behind."""
        pods = [pod for pod in self._pods.get(ref, {}).values() if pod.child == child]
        known = self._children.get(ref, {}).get(child)
        return pods if known is None else [pod for pod in pods if _is_made_for(pod, known)]

    def all_pods(self, ref: JobRef) -> Sequence[PodSummary]:
        """Return the pods that carry a job's name, whosever they are."""
        return list(self._pods.get(ref, {}).values())

    def warnings(self, ref: JobRef, names: Sequence[str]) -> dict[str, tuple[WarningSummary, ...]]:
        """Return the warnings about objects of a job's namespace."""
        found = ((name, self._warnings.get((ref.namespace, name))) for name in names)
        return {name: warnings for name, warnings in found if warnings}

    def known(self, kind: str) -> Iterator[tuple[str, str, str, int]]:
        """Yield namespace, name, uid and version of everything of a kind."""
        if kind == "BertPretrainJob":
            for ref, job in self._jobs.items():
                yield ref.namespace, ref.name, job.uid, job.version
        elif kind == "Pod":
            for ref, pods in self._pods.items():
                for pod in pods.values():
                    yield ref.namespace, pod.name, pod.uid, pod.version
        else:
            for ref, children in self._children.items():
                for child in children.values():
                    if child.kind == kind:
                        yield ref.namespace, child.name, child.uid, child.version

    def count(self) -> Mapping[str, int]:
        """Return how many of each there are."""
        return {
            "jobs": len(self._jobs),
            "children": sum(map(len, self._children.values())),
            "pods": sum(map(len, self._pods.values())),
            "warnings": len(self._warnings),
        }

    def count_phases(self) -> Mapping[str, float]:
        """Return how many jobs are in each phase."""
        return Counter(job.phase for job in self._jobs.values())

    def _job_of(self, key: WarningKey) -> JobRef | None:
        namespace, name = key
        for ref in self._candidates(namespace, name):
            children = self._children.get(ref, {})
            if name in self._pods.get(ref, {}) or name in children or name.removesuffix("-launcher") in children:
                return ref
        return None

    def _note_name(self, ref: JobRef) -> None:
        if (called := _called(ref)) != ref:
            self._called[called] = ref

    def _candidates(self, namespace: str, name: str) -> Iterator[JobRef]:
        """Yield the jobs that an object may belong to by its name: everything is called after its job."""
        end = name.rfind("-")
        while end > 0:
            ref = JobRef(namespace, name[:end])
            for candidate in {ref, self._called.get(ref, ref)}:
                if candidate in self._children or candidate in self._pods:
                    yield candidate
            end = name.rfind("-", 0, end)


def _called(ref: JobRef) -> JobRef:
    return JobRef(ref.namespace, names.name_prefix(ref.name))


def _is_made_for(pod: PodSummary, child: ChildSummary) -> bool:
    """Tell whether a pod is this very child's; a launcher's says by its age alone which MPIJob it is of."""
    if pod.role == names.LAUNCHER:
        return pod.created_at_s >= child.created_at_s
    return pod.owner_uid == child.uid


def _namespace(body: Document) -> str:
    return str(body.get("metadata", {}).get("namespace", ""))


def _ref(body: Document) -> JobRef:
    return JobRef(_namespace(body), body.get("metadata", {}).get("name", ""))
