"""An operator looks at a job when something new has come or a time that it named is due, and at no other moment.

Its own writes come back over the watches and are no news, so whatever follows from a write alone has to be thought of
when it is made: otherwise a job would stand still until the next resync.
"""

from __future__ import annotations

from typing import Any

import pytest

from bert_operator.cluster import reconciler
from bert_operator.cluster.observation import LOST_WORKER_S
from bert_operator.state.plan import plan
from fake_cluster import Document, FakeCluster, is_deleting
from fake_controllers import act, end_pod, is_alive, start_pod
from job_walk import REF, Shape, World, change_policy
from walking_operator import Fault, Operator

MAX_MOMENTS = 120


class WokenOperator(Operator):
    """An operator that knows whether the work queue would have it look."""

    is_woken = False
    due_s: float | None = None

    def _take(self, change: str, document: Document) -> None:
        put = {"Pod": self.index.put_pod, "BertPretrainJob": self.index.put_job, "Event": self.index.put_warning}
        take = self.index.drop if change == "DELETED" else put.get(document["kind"], self.index.put_child)
        self.is_woken |= take(document) == REF


class Sleepers:
    """A world in which nobody looks without a reason."""

    def __init__(
        self, *, workers: int = 1, prepares: bool = False, acts: bool = True, starts: bool = True, **policy: Any
    ) -> None:
        """acts: whether controllers and nodes do anything. starts: whether nodes start pods."""
        self.world = World(Shape(workers=workers, prepares=prepares, operators=0, run_policy=policy))
        self.operator = WokenOperator(self.world.cluster, self.world)
        self.acts, self.starts = acts, starts
        self.failing = 0
        """So many attempts end with exit code 1."""

    @property
    def cluster(self) -> FakeCluster:
        return self.world.cluster

    def pass_time(self, fault: Fault | None = None, *, until: str = "") -> None:
        """Let everybody do what they have a reason for until nobody has one, or the job is in a phase.

        fault: of the first look.
        """
        for _ in range(MAX_MOMENTS):
            self.operator.catch_up()
            if self.operator.is_woken or self._is_due():
                self.look(fault)
                fault = None
            elif until and self.world.status().get("phase") == until:
                return
            elif not self._others_act():
                if self.operator.due_s is None:
                    return
                self.cluster.now_s = max(self.cluster.now_s, self.operator.due_s)
        raise AssertionError(f"no rest: {self.world.told[-8:]}")

    def _is_due(self) -> bool:
        return self.operator.due_s is not None and self.cluster.now_s >= self.operator.due_s

    def look(self, fault: Fault | None = None) -> None:
        """Look at the job, and note when to look again."""
        self.operator.is_woken, self.operator.due_s = False, None
        look = self.world.look(self.operator, kinds=[], fault=fault)
        if look is not None and (look.was_refused or look.again_in_s is not None):
            # The work queue has a job that failed looked at again after a pause.
            self.operator.due_s = self.cluster.now_s + (look.again_in_s or 1.0)

    def _others_act(self) -> bool:
        """Have controllers and nodes do one thing each; return whether anything came of it."""
        if not self.acts:
            return False
        before = len(self.cluster.changes)
        act(self.cluster)
        for pod in self.cluster.all("Pod"):
            if is_deleting(pod) and is_alive(pod):
                end_pod(self.cluster, pod, 3)
            elif pod["status"]["phase"] == "Pending" and self.starts:
                start_pod(self.cluster, pod)
            elif is_alive(pod) and self.world.status().get("phase") == "Running" and _is_main(pod):
                self._end(pod)
        return len(self.cluster.changes) > before

    def _end(self, pod: Document) -> None:
        if self.failing:
            self.failing -= 1
            self.world.hurt.add(self.world.root(pod))
            end_pod(self.cluster, pod, 1)
        else:
            end_pod(self.cluster, pod, 0)


def _is_main(pod: Document) -> bool:
    return "-worker-" not in pod["metadata"]["name"]


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("prepares", [False, True])
def test_a_job_comes_to_its_end(workers: int, prepares: bool) -> None:
    sleepers = Sleepers(workers=workers, prepares=prepares)
    sleepers.pass_time()
    assert sleepers.world.status()["phase"] == "Succeeded"


def test_what_an_operator_has_written_does_not_wake_it() -> None:
    sleepers = Sleepers(starts=False)
    sleepers.operator.catch_up()
    sleepers.look()
    written = len(sleepers.cluster.changes)
    sleepers.operator.catch_up()
    assert written >= 3, "a job, its status, a ConfigMap and a child"
    assert not sleepers.operator.is_woken


@pytest.mark.parametrize("how", ["dies before", "dies after", "unsent", "unheard", "busy"])
@pytest.mark.parametrize("at_write", [1, 2, 3])
def test_a_job_comes_to_its_end_whatever_becomes_of_its_first_writes(at_write: int, how: str) -> None:
    sleepers = Sleepers(workers=2)
    sleepers.pass_time(Fault(at_write=at_write, how=how))
    assert sleepers.world.status()["phase"] == "Succeeded"


def test_failed_attempts_are_followed_by_others() -> None:
    sleepers = Sleepers(workers=2, applicationRetries=2)
    sleepers.failing = 2
    sleepers.pass_time()
    status = sleepers.world.status()
    assert (status["phase"], status["attempt"], len(status["failures"])) == ("Succeeded", 3, 2)


def test_a_paused_job_goes_on_once_it_may() -> None:
    sleepers = Sleepers()
    sleepers.pass_time(until="Running")
    change_policy(sleepers.world, suspend=True)
    sleepers.pass_time()
    assert sleepers.world.status()["phase"] == "Stopped"
    change_policy(sleepers.world, suspend=False)
    sleepers.pass_time()
    assert sleepers.world.status()["phase"] == "Succeeded"


def test_a_pod_that_outlives_its_child_is_waited_for_at_rest() -> None:
    # kubectl deletes in the background: the child goes at once, while its pod has its grace, or a node that is lost.
    sleepers = Sleepers()
    sleepers.pass_time(until="Running")
    (child,), (pod,) = sleepers.world.children(), sleepers.cluster.all("Pod")
    sleepers.world.hurt.add(child["metadata"]["uid"])
    sleepers.world.torn.add(child["metadata"]["uid"])
    sleepers.cluster.remove(child)
    sleepers.acts = False
    sleepers.pass_time()
    assert [item["reason"] for item in sleepers.world.status()["conditions"] if item["type"] == "Blocked"] == [
        "NameTaken"
    ]
    sleepers.cluster.remove(pod)
    sleepers.acts = True
    sleepers.pass_time()
    status = sleepers.world.status()
    assert (status["phase"], status["attempt"]) == ("Succeeded", 2)


def test_a_clock_that_goes_back_puts_nothing_off() -> None:
    sleepers = Sleepers(acts=False, startDeadlineSeconds=600)
    sleepers.operator.catch_up()
    sleepers.look()
    sleepers.cluster.now_s -= 3600
    sleepers.look()
    assert sleepers.operator.due_s is not None
    assert sleepers.operator.due_s - sleepers.cluster.now_s <= 600


def test_an_attempt_that_nobody_starts_ends_at_its_deadline() -> None:
    sleepers = Sleepers(starts=False, startDeadlineSeconds=600)
    sleepers.pass_time()
    status = sleepers.world.status()
    assert (status["phase"], status["reason"]) == ("Failed", "StartDeadlineExceeded")


def test_a_child_that_nobody_takes_note_of_is_stopped_at_its_deadline() -> None:
    # No controller changes it, and so no watch tells of it: the deadline is the only reason to look.
    sleepers = Sleepers(acts=False, startDeadlineSeconds=600)
    sleepers.pass_time()
    status = sleepers.world.status()
    assert (status["phase"], status["reason"]) == ("Stopping", "StoppingAtStartDeadline")


def test_an_attempt_whose_worker_has_ended_is_followed_by_another_though_its_launcher_goes_on() -> None:
    sleepers = Sleepers(workers=2)
    cluster = sleepers.cluster
    sleepers.pass_time(until="Running")
    sleepers.acts = False
    worker = next(pod for pod in cluster.all("Pod") if not _is_main(pod))
    sleepers.world.hurt.add(sleepers.world.root(worker))
    end_pod(cluster, worker, 137)
    died_s = cluster.now_s
    sleepers.pass_time()
    (failure,) = sleepers.world.status()["failures"]
    assert (failure["kind"], failure["reason"]) == ("Infrastructure", "Killed")
    assert LOST_WORKER_S <= cluster.now_s - died_s <= LOST_WORKER_S + 2
    assert [is_deleting(child) for child in cluster.all("MPIJob")] in ([], [True])
    sleepers.acts = True
    sleepers.pass_time()
    assert (sleepers.world.status()["phase"], sleepers.world.status()["attempt"]) == ("Succeeded", 2)


def test_a_job_goes_when_its_time_to_live_is_over() -> None:
    sleepers = Sleepers(ttlSecondsAfterFinished=300)
    sleepers.pass_time()
    assert sleepers.world.job is None


def test_a_pod_in_the_way_is_waited_for_and_not_looked_at_all_the_time() -> None:
    sleepers = Sleepers()
    sleepers.pass_time(until="Running")
    (child,) = sleepers.world.children()
    sleepers.world.hurt.add(child["metadata"]["uid"])
    sleepers.cluster.remove(child)  # as by a deletion in the background: its pod runs on
    sleepers.acts = False
    sleepers.pass_time()
    status = sleepers.world.status()
    assert (status["phase"], status["reason"]) == ("Pending", "NameTaken")
    sleepers.acts = True
    sleepers.pass_time()
    assert sleepers.world.status()["phase"] == "Succeeded"


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The times at which a plan was made."""
    made: list[float] = []

    def noted(job: Any, observed: Any, now_s: float) -> Any:
        made.append(now_s)
        return plan(job, observed, now_s)

    monkeypatch.setattr(reconciler, "plan", noted)
    return made


def at_rest() -> Sleepers:
    """Return a job that waits for its child."""
    sleepers = Sleepers(acts=False)
    sleepers.pass_time()
    return sleepers


def test_a_job_that_is_woken_by_its_own_echo_is_not_planned_again(plans: list[float]) -> None:
    sleepers = at_rest()
    before = len(plans)
    sleepers.look()
    assert (len(plans), before > 0) == (before, True)


def test_a_job_is_planned_again_after_a_while(plans: list[float]) -> None:
    sleepers = at_rest()
    before = len(plans)
    sleepers.cluster.now_s += reconciler.MAX_REST_S
    sleepers.look()
    assert len(plans) == before + 1


def test_every_news_of_a_job_has_it_planned_again(plans: list[float]) -> None:
    sleepers = at_rest()
    cluster, (child,) = sleepers.cluster, sleepers.world.children()

    def is_planned_after(what: str) -> None:
        before = len(plans)
        sleepers.operator.catch_up()
        sleepers.look()
        assert len(plans) > before, what
        sleepers.pass_time()

    act(cluster)
    is_planned_after("a pod")
    start_pod(cluster, cluster.all("Pod")[0])
    is_planned_after("a pod that runs")
    cluster.warn(cluster.all("Pod")[0], "FailedMount", "no such share")
    is_planned_after("a warning")
    change_policy(sleepers.world, applicationRetries=5)
    is_planned_after("another spec")
    cluster.update(child, metadata={**child["metadata"], "deletionTimestamp": "2023-11-14T22:13:20Z"})
    is_planned_after("a child that is being deleted")


def test_another_job_of_the_name_is_planned(plans: list[float]) -> None:
    sleepers = at_rest()
    job = sleepers.world.job
    assert job is not None
    for document in (*sleepers.world.children(), job):
        sleepers.cluster.remove(document)
    sleepers.world.make_job()
    before = len(plans)
    sleepers.operator.catch_up()
    sleepers.look()
    assert len(plans) > before


def test_a_change_that_comes_while_a_child_is_created_is_not_missed() -> None:
    sleepers = Sleepers(acts=False)

    def pause(document: Document) -> Document:
        if document["kind"] == "Job":
            change_policy(sleepers.world, suspend=True)
            sleepers.operator.catch_up()
        return document

    sleepers.cluster.on_create = pause
    sleepers.pass_time()
    assert sleepers.world.status()["phase"] == "Stopping"


def test_a_child_that_is_found_when_it_is_created_has_its_job_looked_at_again_at_once() -> None:
    sleepers = Sleepers(workers=2)
    late = WokenOperator(sleepers.cluster, sleepers.world)
    sleepers.pass_time()
    # The status is lost, and the late one, which no watch has told of the child, begins from nothing.
    job = sleepers.world.job
    assert job is not None
    sleepers.cluster.update(job, status={})
    late.catch_up(["BertPretrainJob"])
    found = late.look(REF)
    assert [write.split()[0] for write in found.writes] == ["patch", "create", "create"]
    assert (sleepers.world.status()["phase"], found.again_in_s) == ("Pending", 0.0)
    late.look(REF)
    assert sleepers.world.status()["phase"] == "Succeeded"


def test_a_look_that_comes_a_moment_too_early_is_announced_again() -> None:
    # The queue has a clock of its own, and the API server's may be set back a little.
    sleepers = Sleepers(acts=False, startDeadlineSeconds=20)
    sleepers.operator.catch_up()
    sleepers.look()
    due_s = sleepers.operator.due_s
    assert due_s is not None
    sleepers.cluster.now_s = due_s - 0.5
    sleepers.look()
    assert sleepers.operator.due_s == pytest.approx(due_s)


def test_a_child_that_leaves_is_deleted_once_however_late_its_watch_is() -> None:
    sleepers = Sleepers()
    sleepers.pass_time(until="Running")
    change_policy(sleepers.world, suspend=True)
    sleepers.operator.catch_up()
    first = sleepers.world.look(sleepers.operator, kinds=[])
    sleepers.cluster.now_s += reconciler.MAX_REST_S
    second = sleepers.world.look(sleepers.operator, kinds=[])
    assert first is not None
    assert second is not None
    assert [write.split()[0] for write in (*first.writes, *second.writes)] == ["patch", "delete"]


def test_a_job_that_may_stay_longer_stays_though_its_watch_is_late() -> None:
    sleepers = Sleepers(ttlSecondsAfterFinished=100)
    sleepers.pass_time(until="Succeeded")
    sleepers.operator.catch_up()
    sleepers.look()
    sleepers.cluster.now_s += 200
    change_policy(sleepers.world, ttlSecondsAfterFinished=10_000)
    sleepers.look()
    job = sleepers.cluster.find("BertPretrainJob", REF.name)
    assert job is not None
    assert not is_deleting(job)
    assert sleepers.operator.due_s is not None


def test_a_job_of_the_same_name_waits_until_the_pods_of_the_one_before_are_gone() -> None:
    """Until then kubelet would give its pods that one's ConfigMap: it does not read an immutable one again."""
    sleepers = Sleepers()
    sleepers.pass_time(until="Running")
    cluster, sleepers.acts = sleepers.cluster, False
    (pod,) = cluster.all("Pod")
    end_pod(cluster, pod, 3)
    cluster.mark_deleted(pod)
    (job,) = cluster.all("BertPretrainJob")
    for gone in (job, *cluster.all("Job"), *cluster.all("ConfigMap")):
        cluster.remove(gone)
    again = {key: value for key, value in job.items() if key != "status"}
    cluster.add({**again, "metadata": {"name": job["metadata"]["name"]}})
    sleepers.pass_time()
    assert cluster.all("Job") == []
    assert "of an earlier job or attempt is still being deleted" in str(sleepers.world.status()["conditions"])
    cluster.remove(pod)
    sleepers.pass_time()
    assert len(cluster.all("Job")) == 1
