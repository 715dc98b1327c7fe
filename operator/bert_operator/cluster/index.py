"""The cache of all cluster objects by job: in memory, fed by watches and by the operator's own writes.

What the operator writes is put in here at once, from the API server's response, so no decision is made from a state
older than its own last action. Lower resource versions are ignored: a watch delivers them later. Objects that differ
from what is known in nothing that decisions are made of wake nobody: a watch repeats every write of the operator, and
kubelets and controllers write much that no summary holds.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from bert_operator.cluster.child_lists import ChildLists, Entry
from bert_operator.cluster.fair_table import FairTable
from bert_operator.cluster.job_series import JobSeries
from bert_operator.cluster.node_summaries import NodeSummary, read_node
from bert_operator.cluster.object_summaries import (
    MAX_KEPT_BYTES,
    ChildRecord,
    ChildSummary,
    JobSummary,
    PodSummary,
    child_of,
    keeps_children,
    kept_part,
    read_child,
    read_job,
    read_pod,
    read_version,
)
from bert_operator.cluster.warning_summaries import WarningSummary, read_warning
from bert_operator.cluster.workloads import WorkloadSummary
from bert_operator.names import JobRef
from bert_operator.render import names

Document = Mapping[str, Any]
WarningKey = tuple[str, str]
Summary = JobSummary | ChildSummary | PodSummary

MAX_WARNINGS = 5_000
"""Objects whose warnings are kept; the least recent of the namespace with most of them is dropped first."""
_WARNINGS_EACH = 4
MAX_KEPT_BYTES_EACH = 16 * 1024 * 1024
"""Of the documents of one namespace's jobs, which is thousands of usual ones. Those beyond are read from the API server
at every reconcile: whoever may create jobs must not fill the memory of the operator of all."""
_MAX_AT_HAND = 64
"""Jobs whose documents are held as they came, until they are looked at: those that a look soon follows. As objects they
take ten times the bytes that are kept."""
_MAX_TOMBSTONES = 20_000
"""Uids of deleted objects; enough for every response that may still be on its way."""


class Index:
    """Cache of jobs, children, pods, nodes, Workloads and warnings."""

    def __init__(self) -> None:
        """Start empty."""
        self._jobs: dict[JobRef, JobSummary] = {}
        # Of their documents, by namespace.
        self._kept_bytes: Counter[str] = Counter()
        # Documents of the latest jobs, each with its summary: whoever looks first need not read it from its bytes.
        self._at_hand: dict[JobRef, tuple[JobSummary, dict[str, Any]]] = {}
        # By kind and name: anyone may make a Job of an MPIJob's name.
        self._children: dict[JobRef, dict[tuple[str, str], ChildSummary]] = {}
        self._child_lists = ChildLists()
        self._pods: dict[JobRef, dict[str, PodSummary]] = {}
        # Where children and pods are kept, by uid: the labels that say it may be changed, and names need not begin
        # with that of the job in the labels. What is not found where it is kept would never be dropped.
        self._places: dict[str, JobRef] = {}
        # Of children, by namespace and name. Labels and owners are anyone's to change; what a status says is not.
        self._records: dict[tuple[str, str], ChildRecord] = {}
        # Uids of children that had lost their owner while their job was there and not being deleted.
        self._orphans: dict[JobRef, set[str]] = {}
        # Jobs by the prefix of their children's names, where that is not the job's own name.
        self._by_prefix: dict[JobRef, JobRef] = {}
        self._nodes: dict[str, NodeSummary] = {}
        # By the uid of the Job or MPIJob that they are of.
        self._workloads: dict[str, WorkloadSummary] = {}
        self._warnings: FairTable[tuple[WarningSummary, ...]] = FairTable(MAX_WARNINGS)
        # How often something new has come for a job. Numbers are not used twice, so that one who holds the number of a
        # job that is gone sees that another has come since.
        self._revisions: dict[JobRef, int] = {}
        self._numbers = itertools.count(1)
        # A late watch, or the response to a write, may bring an object back after its deletion was seen.
        self._tombstones: FairTable[bool] = FairTable(_MAX_TOMBSTONES)

    # Writes. Every method returns the job that has to be looked at, None if there is none or nothing new.

    def put_job(self, body: Document) -> JobRef | None:
        """Add or update a BertPretrainJob."""
        ref = _ref(body)
        known = self._jobs.get(ref)
        if self._is_old(known, body):
            return None
        self._count_kept(ref, known, -1)
        has_room = self._kept_bytes[ref.namespace] < MAX_KEPT_BYTES_EACH
        self._jobs[ref] = summary = read_job(body, max_bytes=MAX_KEPT_BYTES if has_room else 0)
        self._count_kept(ref, summary, 1)
        self._at_hand.pop(ref, None)
        if summary.content is not None:
            self._at_hand[ref] = summary, kept_part(body)
        if len(self._at_hand) > _MAX_AT_HAND:
            del self._at_hand[next(iter(self._at_hand))]
        self._keep_record(ref, None if known is None else known.child, summary.child)
        if summary.keeps_children:
            self._orphans.pop(ref, None)
        return self._bump_revision(ref) if _is_news(known, summary) else None

    def put_child(self, body: Document) -> JobRef | None:
        """Add or update a Job or MPIJob."""
        metadata = body.get("metadata", {})
        record = self._records.get((_namespace(body), metadata.get("name", "")))
        own_record = record if record is not None and record.uid == metadata.get("uid") else None
        # First: the watch tells of every write once more. Not by where it is kept, since a record that has come since
        # may have it kept elsewhere.
        job = own_record.job if own_record is not None else (metadata.get("labels") or {}).get(names.JOB_LABEL, "")
        ref = JobRef(_namespace(body), job)
        known = self._children.get(ref, {}).get((body.get("kind", ""), metadata.get("name", "")))
        if self._is_old(known, body) or (read := read_child(body, own_record)) is None:
            return None
        _, summary = read
        if known is not None and known.uid == summary.uid:
            # Pods are made from what it was created with: who lowers the numbers afterwards frees nothing.
            summary = summary._replace(demand=summary.demand.at_least(known.demand))
        self._place(self._children, ref, summary)
        return self._bump_revision(ref) if _is_news(known, summary) else None

    def note_orphan(self, ref: JobRef, uid: str) -> None:
        """Note that a child lost its owner while its job existed, so not through ``--cascade=orphan``."""
        self._orphans.setdefault(ref, set()).add(uid)

    def restore_child(self, body: Document, record: ChildRecord) -> JobRef | None:
        """Add a child found at the API server that watches no longer deliver, since it lost its label."""
        self._tombstones.pop(_namespace(body), record.uid)
        self._records[_namespace(body), record.name] = record
        return self.put_child(body)

    def put_pod(self, body: Document) -> JobRef | None:
        """Add or update a pod."""
        read = read_pod(body, self._records.get((_namespace(body), child_of(body))))
        if read is None:
            return None
        job, summary = read
        ref = JobRef(_namespace(body), job)
        if self._tombstones.get(ref.namespace, summary.uid):
            return None
        known = self._pods.get(ref, {}).get(summary.name)
        if known is not None and known.uid == summary.uid and summary.version < known.version:
            return None  # a watch that begins again may bring what has been
        if known is not None and known.uid == summary.uid and summary.phase in ("Succeeded", "Failed"):
            # kubelet may say nothing of devices any more that a pod has given back.
            summary = summary._replace(sick_devices=summary.sick_devices or known.sick_devices)
        self._place(self._pods, ref, summary)
        return self._bump_revision(ref) if _is_news(known, summary) else None

    def put_warning(self, body: Document) -> JobRef | None:
        """Add a Warning event; events about foreign objects are kept as well, within bounds.

        An event may arrive before its object: the watches are not ordered against each other.
        """
        read = read_warning(body)
        if read is None:
            return None
        _, name, warning = read
        key = (_namespace(body), name)
        # One per reason: repeated events differ in their count and time only.
        known = [item for item in self._warnings.get(*key) or () if item.reason != warning.reason]
        self._warnings.put(*key, (*known[-_WARNINGS_EACH + 1 :], warning))
        ref = self._job_of(key)
        return None if ref is None else self._bump_revision(ref)

    def put_node(self, name: str, body: Document) -> list[JobRef]:
        """Add, update or, if empty, clear a node; return the jobs with pods on it if anything changed."""
        known, found = self._nodes.get(name), read_node(name, body)
        self._nodes[name] = found
        if found == (known or NodeSummary(name, ())):
            return []
        below = [ref for ref, pods in self._pods.items() if any(pod.node == name for pod in pods.values())]
        return [self._bump_revision(ref) for ref in below]

    def keep_nodes(self, wanted: Collection[str]) -> None:
        """Drop all nodes but these."""
        for name in self._nodes.keys() - set(wanted):
            del self._nodes[name]

    def put_workload(self, ref: JobRef, child_uid: str, workload: WorkloadSummary | None) -> JobRef | None:
        """Store the Workload of a child; None: it has none."""
        if self._workloads.get(child_uid) == workload:
            return None
        if workload is None:
            del self._workloads[child_uid]
        else:
            self._workloads[child_uid] = workload
        return self._bump_revision(ref)

    def keep_workloads(self, wanted: Collection[str]) -> None:
        """Drop the Workloads of all children but these."""
        for uid in self._workloads.keys() - set(wanted):
            del self._workloads[uid]

    def drop(self, body: Document) -> JobRef | None:
        """Drop an object that was deleted."""
        metadata = body.get("metadata", {})
        # Its last state: the change to it may not have been told.
        if body.get("kind") == "BertPretrainJob" and keeps_children(body):
            self._orphans.pop(_ref(body), None)
        return self.drop_uid(str(body.get("kind")), _namespace(body), metadata.get("name", ""), metadata.get("uid", ""))

    def drop_uid(self, kind: str, namespace: str, name: str, uid: str) -> JobRef | None:
        """Drop an object by its uid; another one of the same name stays."""
        # Events expire in any number; their uids would push out those that matter.
        if kind != "Event":
            self._tombstones.put(namespace, uid, True)
        if kind == "BertPretrainJob":
            ref = JobRef(namespace, name)
            if (job := self._jobs.get(ref)) is not None and job.uid == uid:
                del self._jobs[ref]
                self._count_kept(ref, job, -1)
                self._at_hand.pop(ref, None)
                self._revisions.pop(ref, None)
                # One that is there may have lost its owner, and is known by its record until it is gone.
                if job.child is not None and not self._has(ref, job.child):
                    self._records.pop((namespace, job.child.name), None)
            return ref
        tables: Mapping[str, dict[JobRef, dict[Any, Any]]] = {
            "Job": self._children,
            "MPIJob": self._children,
            "Pod": self._pods,
        }
        if kind not in tables or (place := self._places.get(uid)) is None:
            return None
        if kind != "Pod":
            if (record := self._records.get((namespace, name))) is not None and record.uid == uid:
                del self._records[namespace, name]
            self._forget_orphan(place, uid)
        self._remove(tables[kind], place, name if kind == "Pod" else (kind, name), uid)
        # A successor may have the same name, as a worker's pod does that mpi-operator makes again.
        self._warnings.pop(namespace, name)
        return self._bump_revision(place)

    # Reads.

    def job(self, ref: JobRef) -> JobSummary | None:
        """Return a job."""
        return self._jobs.get(ref)

    def take_document(self, ref: JobRef, summary: JobSummary) -> dict[str, Any]:
        """Return a job's document and release it from the cache, if it was small enough to be kept."""
        known, document = self._at_hand.pop(ref, (None, {}))
        return document if known is summary else summary.document()

    def revision(self, ref: JobRef) -> int:
        """Return a number that grows with each change to a job, its children, its pods or their warnings."""
        return self._revisions.get(ref, 0)

    def jobs(self) -> Sequence[JobRef]:
        """Return all jobs."""
        return list(self._jobs)

    def all_refs(self) -> set[JobRef]:
        """Return all jobs, including deleted ones with children left."""
        return {*self._jobs, *self._children, *self._orphans}

    def children(self, ref: JobRef) -> Sequence[ChildSummary]:
        """Return the children labelled with a job's name, whoever owns them."""
        return list(self._children.get(ref, {}).values())

    def children_in(self, namespace: str) -> Iterable[Entry]:
        """Return a live view of the children of a namespace with their jobs; do not keep it across an await."""
        return self._child_lists.of(namespace)

    def own_children(self, ref: JobRef, uid: str) -> Sequence[ChildSummary]:
        """Return the children that the job with this uid controls."""
        return [child for child in self.children(ref) if child.owner_uid == uid]

    def pods(self, ref: JobRef, child: str) -> Sequence[PodSummary]:
        """Return the pods of a child, without those of an earlier child of the same name."""
        pods = [pod for pod in self._pods.get(ref, {}).values() if pod.child == child]
        known = self._child_called(ref, child)
        return pods if known is None else [pod for pod in pods if _is_made_for(pod, known)]

    def orphans(self, ref: JobRef) -> Sequence[ChildSummary]:
        """Return the children of a job that were reported to ``note_orphan``."""
        noted = self._orphans.get(ref, ())
        return [child for child in self.children(ref) if child.uid in noted]

    def all_pods(self, ref: JobRef) -> Sequence[PodSummary]:
        """Return the pods with a job's name in their labels, whoever owns them."""
        return list(self._pods.get(ref, {}).values())

    def warnings(self, ref: JobRef, names: Sequence[str]) -> dict[str, tuple[WarningSummary, ...]]:
        """Return the warnings about objects of a job's namespace."""
        found = ((name, self._warnings.get(ref.namespace, name)) for name in names)
        return {name: warnings for name, warnings in found if warnings}

    def nodes(self) -> Mapping[str, NodeSummary]:
        """Return the known nodes by name."""
        return self._nodes

    def workload(self, child_uid: str) -> WorkloadSummary | None:
        """Return the Workload of a child, if known."""
        return self._workloads.get(child_uid)

    def owner_of(self, child_uid: str) -> JobRef | None:
        """Return the job of a child or pod, by its UID."""
        return self._places.get(child_uid)

    def queued_children(self) -> list[Entry]:
        """Return the children that a queue holds or has let go, ended ones left out."""
        return self._child_lists.queued()

    def nodes_of_pods(self) -> set[str]:
        """Return the nodes on which pods run."""
        pods = (pod for pods in self._pods.values() for pod in pods.values())
        return {pod.node for pod in pods if pod.node and pod.phase == "Running"}

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
        """Return the number of objects of each kind."""
        return {
            "jobs": len(self._jobs),
            "children": sum(map(len, self._children.values())),
            "pods": sum(map(len, self._pods.values())),
            "warnings": len(self._warnings),
        }

    @property
    def num_records(self) -> int:
        """Return how many children are known from the status of their jobs."""
        return len(self._records)

    def series(self) -> Iterator[tuple[JobRef, JobSeries]]:
        """Yield the data of each job's own metrics."""
        return ((ref, job.series) for ref, job in self._jobs.items())

    def count_phases(self) -> Mapping[str, float]:
        """Return how many jobs are in each phase, without those that are managed elsewhere."""
        return Counter(job.phase for job in self._jobs.values() if not job.is_managed_elsewhere)

    def _is_old(self, known: JobSummary | ChildSummary | None, body: Document) -> bool:
        """Return whether an object is gone, or known in this version or a later one."""
        uid = body.get("metadata", {}).get("uid", "")
        # Versions order the states of one object; a recreated one has another uid, and replaces its namesake.
        is_gone = self._tombstones.get(_namespace(body), uid) is not None
        if is_gone or known is None or known.uid != uid:
            return is_gone
        # 0 is a version that is no number, and tells nothing.
        return known.version >= max(read_version(body), 1)

    def _has(self, ref: JobRef, child: ChildRecord) -> bool:
        """Return whether a child of this kind and name is known."""
        return (child.kind, child.name) in self._children.get(ref, {})

    def _child_called(self, ref: JobRef, name: str) -> ChildSummary | None:
        """Return the child of a name: of two kinds the one on record, else the one that the job controls."""
        children, record = self._children.get(ref, {}), self._records.get((ref.namespace, name))
        found = [child for kind in ("MPIJob", "Job") if (child := children.get((kind, name))) is not None]
        trusted = [one.uid for one in (record, self._jobs.get(ref)) if one is not None]
        by_trust = [child for uid in trusted for child in found if uid in (child.uid, child.owner_uid)]
        return next(iter([*by_trust, *found]), None)

    def _place(self, table: dict[JobRef, dict[Any, Any]], ref: JobRef, summary: ChildSummary | PodSummary) -> None:
        """Keep an object below a job, and below no other any more."""
        key = (summary.kind, summary.name) if isinstance(summary, ChildSummary) else summary.name
        before, namesake = self._places.get(summary.uid, ref), table.get(ref, {}).get(key)
        if before != ref:
            self._remove(table, before, key, summary.uid)
            self._bump_revision(before)
        if namesake is not None and namesake.uid != summary.uid:
            self._forget_place(ref, namesake.uid)
        table.setdefault(ref, {})[key] = summary
        self._places[summary.uid] = ref
        if isinstance(summary, ChildSummary):
            self._child_lists.put(ref, summary)
            self._note_prefix(ref, JobRef(ref.namespace, names.prefix_of(summary.name)))
        self._note_prefix(ref, _prefix(ref))

    def _remove(self, table: dict[JobRef, dict[Any, Any]], ref: JobRef, key: str | tuple[str, str], uid: str) -> None:
        """Keep an object no longer."""
        self._forget_place(ref, uid)
        table[ref].pop(key)
        if not table[ref]:
            del table[ref]
            if ref not in self._children and ref not in self._pods:
                own = JobRef(ref.namespace, names.prefix_of(key if isinstance(key, str) else key[1]))
                for prefix in {_prefix(ref), own}:
                    self._by_prefix.pop(prefix, None)

    def _forget_place(self, ref: JobRef, uid: str) -> None:
        """Forget where a child is kept, or a pod, which is in no list."""
        self._places.pop(uid, None)
        self._child_lists.drop(ref.namespace, uid)

    def _job_of(self, key: WarningKey) -> JobRef | None:
        namespace, name = key
        for ref in self._candidates(namespace, name):
            children = {child.name for child in self._children.get(ref, {}).values()}
            if name in self._pods.get(ref, {}) or name in children or name.removesuffix("-launcher") in children:
                return ref
        return None

    def _bump_revision(self, ref: JobRef) -> JobRef:
        # Nobody asks about a job that is not known yet or no longer known.
        if ref in self._jobs:
            self._revisions[ref] = next(self._numbers)
        return ref

    def _count_kept(self, ref: JobRef, job: JobSummary | None, times: int) -> None:
        if job is not None and job.content is not None:
            self._kept_bytes[ref.namespace] += times * len(job.content)
            if not self._kept_bytes[ref.namespace]:
                del self._kept_bytes[ref.namespace]

    def _keep_record(self, ref: JobRef, before: ChildRecord | None, after: ChildRecord | None) -> None:
        """Keep the record of a job's newest child. One that is gone is not put back by a status that still names it."""
        if before is not None and before != after and not self._has(ref, before):
            self._records.pop((ref.namespace, before.name), None)
        if after is not None and self._tombstones.get(ref.namespace, after.uid) is None:
            self._records[ref.namespace, after.name] = after

    def _forget_orphan(self, ref: JobRef, uid: str) -> None:
        noted = self._orphans.get(ref, set())
        noted.discard(uid)
        if not noted:
            self._orphans.pop(ref, None)

    def _note_prefix(self, ref: JobRef, prefix: JobRef) -> None:
        if prefix != ref:
            self._by_prefix[prefix] = ref

    def _candidates(self, namespace: str, name: str) -> Iterator[JobRef]:
        """Yield the jobs that an object may belong to by its name, which starts with that of its job.

        Events carry no labels, so their job is found by trying every prefix that ends at a dash.
        """
        end = name.rfind("-")
        while end > 0:
            ref = JobRef(namespace, name[:end])
            for candidate in {ref, self._by_prefix.get(ref, ref)}:
                if candidate in self._children or candidate in self._pods:
                    yield candidate
            end = name.rfind("-", 0, end)


def _is_news(known: Summary | None, found: Summary) -> bool:
    """Return whether an object differs from what is known of it in more than its version."""
    # Of a job that is too large to be kept the version is all that tells.
    is_whole = not isinstance(found, JobSummary) or found.content is not None
    return known is None or known != (found._replace(version=known.version) if is_whole else found)


def _prefix(ref: JobRef) -> JobRef:
    return JobRef(ref.namespace, names.name_prefix(ref.name))


def _is_made_for(pod: PodSummary, child: ChildSummary) -> bool:
    """Return whether a pod is this very child's.

    A launcher's pod is owned by a Job that mpi-operator creates in between and that is not in the index, so only its
    age tells which MPIJob it belongs to.
    """
    if pod.role == names.LAUNCHER:
        return pod.created_at_s >= child.created_at_s
    return pod.owner_uid == child.uid


def _namespace(body: Document) -> str:
    return str(body.get("metadata", {}).get("namespace", ""))


def _ref(body: Document) -> JobRef:
    return JobRef(_namespace(body), body.get("metadata", {}).get("name", ""))
