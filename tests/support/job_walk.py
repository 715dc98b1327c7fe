"""One job on a cluster in memory, and what must hold whatever happens to it.

``World`` is the job, its cluster and one or two operators, and checks every write while it is made. What happens to
it, a test says; at random tests/planning/test_state_machine.py.
"""

from __future__ import annotations

import json
import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from bert_operator.api.schema.conditions import Reason
from bert_operator.api.schema.status import TERMINAL_PHASES
from bert_operator.cluster.status_writer import CONFLICT_PAUSE_S
from bert_operator.names import JobRef
from bert_operator.render import names
from bert_operator.timestamps import parse_time, render_time
from fake_cluster import NAMESPACE, Document, FakeCluster, is_deleting, owned, owner_uid
from fake_controllers import act, end_pod, has_ended, is_alive, start_pod, true_conditions
from sample_job import PREPARE, sample_document
from walking_operator import WATCHED, Fault, Killed, Look, Operator

T = TypeVar("T")

NAME = "walk"
REF = JobRef(NAMESPACE, NAME)
BUDGETS = {"Application": ("applicationRetries", 1), "Infrastructure": ("infrastructureRetries", 3)}
FORGED_IMAGE = "registry.example.com/forged"
MAX_ROUNDS = 60
"""Of looks and controllers, until a job is at its end that nothing hinders any more."""


@dataclass(frozen=True)
class Shape:
    """What a walk begins with."""

    workers: int
    prepares: bool
    operators: int
    run_policy: dict[str, Any]

    @staticmethod
    def draw(rng: random.Random) -> Shape:
        policy: dict[str, Any] = {"applicationRetries": rng.randrange(3), "infrastructureRetries": rng.randrange(4)}
        for field, values in (
            ("activeDeadlineSeconds", (600, 7200)),
            ("startDeadlineSeconds", (60, 1800)),
            ("ttlSecondsAfterFinished", (0, 300)),
        ):
            if rng.random() < 0.35:
                policy[field] = rng.choice(values)
        return Shape(rng.choice((1, 2, 2)), rng.random() < 0.5, rng.choice((1, 1, 2)), policy)


class World:
    """A job's cluster, and the rules. Raises AssertionError where one is broken."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.cluster = FakeCluster()
        self.rejects = False
        """Whether mpi-operator refuses MPIJobs."""
        self.holds_new = False
        """Whether a queue holds back every child that is created."""
        self.told: list[str] = []
        """What has happened, for people."""
        self.hurt: set[str] = set()
        """Uids of children that something befell; nothing else may count as a failure."""
        self.torn: set[str] = set()
        """Uids of children that were taken away at once, their pods still running, as a watch tells in time or not."""
        self._pods_are_late = False
        self._children: dict[str, dict[int, list[str]]] = defaultdict(lambda: defaultdict(list))
        self._on_record: dict[tuple[str, int], str] = {}
        self._stopped: set[tuple[str, int]] = set()
        self._run_of: dict[tuple[str, int], str] = {}
        self._waiting_since_s: dict[tuple[str, int], float | None] = {}
        self._roots: dict[str, str] = {}
        self._frozen: dict[str, Document] = {}
        self._read = 0
        self.make_job()
        self.cluster.on_create = lambda document: suspended(document, True) if self.holds_new else document
        self.operators = [Operator(self.cluster, self) for _ in range(shape.operators)]

    # The job.

    def make_job(self) -> None:
        """Create the job, as its user does."""

        def change(spec: Document) -> None:
            spec["workers"] = self.shape.workers
            spec["runPolicy"] = dict(self.shape.run_policy)
            spec["output"] = {"path": "runs", "volume": {"persistentVolumeClaim": {"claimName": "results"}}}
            if not self.shape.prepares:
                del spec["stages"][PREPARE]
                spec["dataset"] = {"path": "data", "volume": {"persistentVolumeClaim": {"claimName": "data"}}}

        document = sample_document(change)
        self.cluster.add({**document, "metadata": {"name": NAME}})

    @property
    def job(self) -> Document | None:
        """The job as it is."""
        return self.cluster.find("BertPretrainJob", NAME)

    def status(self) -> Document:
        """Return the job's status."""
        return (self.job or {}).get("status") or {}

    def is_blocked(self) -> bool:
        """Tell whether the job says that something hinders it."""
        return "Blocked" in true_conditions({"status": self.status()})

    def children(self) -> list[Document]:
        """Return the Jobs and MPIJobs of any job of this name, those that mpi-operator made left out."""
        found = [*self.cluster.all("Job"), *self.cluster.all("MPIJob")]
        return [item for item in found if names.JOB_LABEL in (item["metadata"].get("labels") or {})]

    def root(self, pod: Document) -> str:
        """Return the uid of the child that a pod belongs to, which may be gone."""
        for _, item in self.cluster.changes[self._read :]:
            self._roots[item["metadata"]["uid"]] = owner_uid(item)
        self._read = len(self.cluster.changes)
        job_uids = set(self._children) | {uid for uid in self._roots if not self._roots[uid]}
        uid = owner_uid(pod)
        while self._roots.get(uid, "") and self._roots[uid] not in job_uids:
            uid = self._roots[uid]
        return uid

    def forget_record(self) -> None:
        """The status is lost: what it said binds nobody any more."""
        uid = (self.job or {"metadata": {"uid": ""}})["metadata"]["uid"]
        self._children.pop(uid, None)
        self._on_record = {key: child for key, child in self._on_record.items() if key[0] != uid}
        self._waiting_since_s = {key: since_s for key, since_s in self._waiting_since_s.items() if key[0] != uid}

    def forge_frozen(self) -> None:
        """Somebody who may write ConfigMaps puts another one in the place of the frozen one, or there before it is."""
        if self.job is None:
            return
        own = self.take_frozen()
        spec = {**self.job["spec"], "image": FORGED_IMAGE, "network": {"hostNetwork": True}}
        data = {**(own["data"] if own else {"run-config.json": "{}"}), "spec.json": json.dumps(spec)}
        metadata = {"name": names.config_map_name(NAME), "ownerReferences": owned(self.job)}
        self.cluster.add({"kind": "ConfigMap", "metadata": metadata, "immutable": True, "data": data})

    def take_frozen(self) -> Document | None:
        """Somebody deletes the frozen configuration; return what it was."""
        found = self.cluster.find("ConfigMap", names.config_map_name(NAME))
        if found is not None:
            self.cluster.remove(found)
        return found

    def restore_frozen(self) -> None:
        """Do what the condition asks for: put back what the operator has written, or take away what it has not."""
        found, job = self.cluster.find("ConfigMap", names.config_map_name(NAME)), self.job
        own = None if job is None else self._frozen.get(job["metadata"]["uid"])
        if found is None or own is None or found["metadata"]["uid"] != own["metadata"]["uid"]:
            self.take_frozen()
            if own is not None:
                self._frozen[owner_uid(own)] = self.cluster.add(own)

    # What is checked at every write.

    def created(self, child: Document) -> None:
        """Check a child that an operator has just created."""
        uid, owner = child["metadata"]["uid"], owner_uid(child)
        if child["kind"] == "ConfigMap":
            self._frozen[owner] = child
        if child["kind"] not in ("Job", "MPIJob"):
            return
        assert FORGED_IMAGE not in str(child), (
            f"{child['metadata']['name']} is made from what somebody else has written"
        )
        job = self.job
        if job is None or job["metadata"]["uid"] != owner:
            return  # of a job that is gone: the garbage collector's
        status, labels = self.status(), child["metadata"]["labels"]
        run, attempt = labels[names.RUN_LABEL], int(labels[names.ATTEMPT_LABEL])
        told = f"attempt {attempt} at {run}"
        assert status.get("phase") not in TERMINAL_PHASES, f"{told}: the job has ended"
        assert run not in (status.get("completedRuns") or ()), f"{told}: this run is complete"
        assert status.get("attempt") == attempt, f"{told} was not written down, but {status.get('attempt')}"
        others = [item for item in self.children() if owner_uid(item) == owner and item["metadata"]["uid"] != uid]
        for other in others:
            assert has_ended(other), f"{told}: {other['metadata']['name']} is active beside it"
        for pod in filter(is_alive, self.cluster.all("Pod")):
            other_uid = self.root(pod)
            if other_uid in self._all_children(owner) and not (other_uid in self.torn and self._pods_are_late):
                raise AssertionError(f"{told}: {pod['metadata']['name']} of another attempt still runs")
        before = self._on_record.get((owner, attempt), uid)
        assert before == uid, f"{told}: the number belongs to {before}, which was seen"
        failed = {item["attempt"] for item in status.get("failures") or ()}
        last = self._children[owner].get(attempt - 1)
        is_accounted = (
            attempt - 1 in failed or (owner, attempt - 1) in self._stopped or self._is_done(owner, attempt - 1)
        )
        assert not last or is_accounted, f"{told}: nobody says what became of the one before"
        policy = job["spec"]["runPolicy"]
        counts = Counter(item["kind"] for item in status.get("failures") or () if item["run"] == run)
        for kind, (field, default) in BUDGETS.items():
            assert counts[kind] <= policy.get(field, default), f"{told}: the budget {field} is spent"
        self._children[owner][attempt].append(uid)
        self._run_of[owner, attempt] = run

    def described(self, before: Document, after: Document) -> None:
        """Check a status that an operator has just written."""
        uid = after["metadata"]["uid"]
        old, new = before.get("status") or {}, after["status"]
        if old.get("phase") in TERMINAL_PHASES:
            raise AssertionError(f"a job that {old['phase']} was described anew: {new.get('phase')}")
        assert new.get("attempt", 0) >= old.get("attempt", 0), "the attempt's number went down"
        assert set(old.get("completedRuns") or ()) <= set(new.get("completedRuns") or ()), (
            "a complete run was forgotten"
        )
        known = {item["attempt"]: item for item in old.get("failures") or ()}
        attempts = [item["attempt"] for item in new.get("failures") or ()]
        assert len(set(attempts)) == len(attempts), f"a failure was counted twice: {attempts}"
        for item in new.get("failures") or ():
            assert known.get(item["attempt"], item) == item, "a failure was described anew"
            if item["attempt"] not in known:
                uids = self._children[uid][item["attempt"]]
                assert not uids or self.hurt & set(uids), f"nothing befell attempt {item['attempt']}, but: {item}"
        assert known.keys() <= set(attempts), "a failure was forgotten"
        if new["phase"] in ("Stopping", "Stopped"):
            self._stopped.add((uid, new["attempt"]))
        self._check_start_deadline(uid, after)
        if child := new.get("child"):
            self._on_record.setdefault((uid, child["attempt"]), child["uid"])

    def _check_start_deadline(self, uid: str, job: Document) -> None:
        """Check that only an attempt that waits, and not in a queue, is late."""
        status, now_s = job["status"], self.cluster.now_s
        key = (uid, status.get("attempt", 0))
        if status["reason"] == Reason.STOPPING_AT_START_DEADLINE and key in self._waiting_since_s:
            since_s = self._waiting_since_s[key]
            assert since_s is not None, "an attempt that was running is late to start"
            deadline_s = job["spec"]["runPolicy"].get("startDeadlineSeconds", 0)
            # That a queue has let it go is told by its controller, if that has looked in between.
            starts = [(child.get("status") or {}).get("startTime") for child in self.children()]
            is_told = any(parse_time(start) >= since_s for start in starts if start)
            assert not is_told or now_s - since_s >= deadline_s, (
                f"late after {now_s - since_s:.0f} s, most of them in a queue"
            )
        match status["phase"]:
            case "Running":
                self._waiting_since_s[key] = None
            case "Queued":
                self._waiting_since_s[key] = now_s

    def deleted(self, document: Document) -> None:
        """Check what an operator has just deleted."""
        if document["kind"] == "BertPretrainJob":
            assert (document.get("status") or {}).get("phase") in TERMINAL_PHASES, "deleted before its end"

    def _is_done(self, owner: str, attempt: int) -> bool:
        """Tell whether the run of an attempt is complete."""
        return self._run_of.get((owner, attempt)) in (self.status().get("completedRuns") or ())

    def _all_children(self, owner: str) -> set[str]:
        return {uid for uids in self._children[owner].values() for uid in uids}

    # What is checked in between.

    def look(self, operator: Operator, kinds: Sequence[str] = WATCHED, fault: Fault | None = None) -> Look | None:
        """Have an operator look at the job; None where it was killed, and begins anew."""
        operator.catch_up(kinds)
        self._pods_are_late = "Pod" not in kinds
        try:
            look = operator.look(REF, fault)
        except Killed:
            operator.restart()
            self.tell("killed")
            return None
        self.tell(f"{', '.join(look.writes) or 'nothing'}; {self.status().get('phase')} {self.status().get('reason')}")
        return look

    def settle(self, operator: Operator) -> Look:
        """Have an operator look until nothing is left to do at this moment, which must come soon."""
        for _ in range(8):
            look = self.look(operator)
            assert look is not None
            if not look.writes or look.was_refused and not look.describes:
                return look
            # A conflict, an object that is gone, or a refusal to be told of, has it look again at once; and what
            # hindered a child that could be created now, or that a queue has it, is told by the next look.
            is_at_once = look.was_refused or look.again_in_s in (0.0, CONFLICT_PAUSE_S)
            if not (is_at_once or self.is_blocked() or self.holds_new):
                again = self.look(operator)
                assert again is not None
                assert not again.writes, f"a second look has written again: {again.writes}"
                return again
        raise AssertionError("it does not come to rest")

    def rest(self, operator: Operator) -> None:
        """Check that time alone changes nothing before the moment that was announced."""
        look = self.settle(operator)
        if look.was_refused:
            return  # the work queue has it look again
        wait_s = 3600.0 if look.again_in_s is None else look.again_in_s - 2.0  # it may come a second late
        if wait_s > 0:
            self.cluster.now_s += int(wait_s)
            later = self.look(operator)
            assert later is not None
            assert not later.writes, f"after {int(wait_s)} s it does {later.writes}; announced: {look.again_in_s}"

    def finish(self) -> None:
        """Take every hindrance away: the job has to come to an end, and to stay there."""
        self.rejects = False
        self.cluster.refusals.clear()
        self.holds_new = False
        self.restore_frozen()
        for child in self.children():
            suspend_child(self.cluster, child, False)
        if self.job is not None:
            change_policy(self, suspend=False)
        for _ in range(MAX_ROUNDS):
            if self.job is None or self.status().get("phase") in TERMINAL_PHASES:
                break
            self._round()
        else:
            raise AssertionError(f"stuck: {self.status()}")
        end = self.status()
        for _ in range(12):
            self._round()
        if self.job is not None:
            assert self.status() == end, "an end is no end"
        left = [pod["metadata"]["name"] for pod in self.cluster.all("Pod") if is_alive(pod)]
        assert not left, f"the job has ended, and {left} run on"
        if self.job is not None and (ttl_s := self.job["spec"]["runPolicy"].get("ttlSecondsAfterFinished")) is not None:
            self.cluster.now_s += ttl_s
            for operator in self.operators:
                self.settle(operator)
            for _ in range(6):
                act(self.cluster)
            assert self.job is None, "it has outlived its TTL"

    def _round(self) -> None:
        """Let everybody act once, and some minutes pass."""
        for operator in self.operators:
            self.settle(operator)
        act(self.cluster)
        for pod in self.cluster.all("Pod"):
            if is_deleting(pod) and is_alive(pod):
                end_pod(self.cluster, pod, 3)
            elif pod["status"]["phase"] == "Pending":
                start_pod(self.cluster, pod)
            elif is_alive(pod) and pod["metadata"]["labels"][names.ROLE_LABEL] != names.WORKER:
                end_pod(self.cluster, pod, 0)
        act(self.cluster)
        self.cluster.now_s += 400

    def tell(self, what: str) -> None:
        """Note what happens, for whoever has to understand it."""
        self.told.append(f"{render_time(self.cluster.now_s)[11:19]}   {what}")


def pick(items: Sequence[T], number: int) -> T | None:
    """Return one of them, None where there is none."""
    return items[number % len(items)] if items else None


def change_policy(world: World, **fields: Any) -> None:
    """Edit runPolicy, as the user does; None removes a field."""
    job = world.job
    if job is not None:
        policy = {key: value for key, value in (job["spec"]["runPolicy"] | fields).items() if value is not None}
        world.cluster.update(job, spec={**job["spec"], "runPolicy": policy})


def suspend_child(cluster: FakeCluster, child: Document, holds: bool) -> None:
    """Hold a child back or let it go, as a queue does. What has ended is left alone."""
    if has_ended(child) or is_deleting(child):
        return
    cluster.update(child, spec=suspended(child, holds)["spec"])


def suspended(child: Document, holds: bool) -> Document:
    """Return a child that is held back, or let go."""
    spec = child.get("spec", {})
    match child["kind"]:
        case "Job":
            return {**child, "spec": {**spec, "suspend": holds}}
        case "MPIJob":
            return {**child, "spec": {**spec, "runPolicy": {**spec["runPolicy"], "suspend": holds}}}
    return child
