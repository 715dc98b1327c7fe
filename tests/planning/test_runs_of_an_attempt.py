"""An attempt that a queue suspends and lets go on: the same child, other pods. What the status says of either.

Inputs: statuses, children and lines of logs as literals, and a cluster in memory whose queue preempts a child twice.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bert_job.progress import ProgressRecord, parse_progress_line
from bert_operator.api.schema.conditions import Reason
from bert_operator.api.schema.status import MAX_ATTEMPT_RUNS, ChildRef, JobStatus
from bert_operator.cluster.job_series import read_series
from bert_operator.cluster.log_reader import LatestRecords, read_latest_records, select_records
from bert_operator.cluster.object_summaries import ChildSummary, PodSummary, read_child, read_pod
from bert_operator.render import names
from bert_operator.state.observed import Child, Observed, Silence
from bert_operator.state.plan import plan
from child_documents import child_document, pod_document
from fake_cluster import is_deleting
from fake_controllers import act, end_pod, is_alive, start_pod
from job_walk import Shape, World, suspend_child
from plan_inputs import NOW_S, TRAINING_ONLY

REF = ChildRef(kind="Job", name="bert-a1", uid="u", attempt=1)
RUNNING = Child(run="training", attempt=1, state="Running", ref=REF)
QUEUED = replace(RUNNING, state="Queued")
STATUS = JobStatus(phase="Running", attempt=1, run="training", child=REF)
FIGURES = "loss=6.5 sequences_per_s=120 remaining_s=600 step_s=2"
SLOW = "slow_rank=5 slow_rank_host=w-1 slow_rank_score=2.04 slow_rank_intervals=9 slow_rank_s=300"


def line(event: str, fields: str = "", *, attempt: int = 1, run: int = 1, job: str = "uid") -> str:
    of_run = f" attempt_run={run}" if run > 1 else ""
    words = f"bert-trainer/1 event={event} stage=phase1 {fields} job={job} attempt={attempt}{of_run}"
    return " ".join(words.split())


def record(event: str, fields: str = "", **of: Any) -> ProgressRecord:
    found = parse_progress_line(line(event, fields, **of))
    assert found is not None
    return found


STEP_300 = record("progress", f"step=300 steps=900 {FIGURES}")


def look(status: JobStatus, child: Child, now_s: float = NOW_S, **seen: Any) -> JobStatus:
    """Return the status after a look, which a second look leaves alone."""
    observed = Observed(status=status, children=(child,), **seen)
    step = plan(TRAINING_ONLY, observed, now_s)
    assert (step.stop, step.remove, step.create) == ((), (), None)
    assert plan(TRAINING_ONLY, replace(observed, status=step.status), now_s + 5).status == step.status
    return step.status


# What the status says.


def test_an_attempt_that_its_queue_holds_does_not_look_as_if_it_ran() -> None:
    running = look(STATUS, RUNNING, progress=STEP_300)
    assert running.progress is not None
    assert (running.progress.eta, running.progress.sequences_per_second) == ("10:00 min", "120")
    held = look(running, QUEUED, NOW_S + 30)
    assert (held.phase, held.reason, held.attempt) == ("Queued", Reason.QUEUED, 1)
    assert held.progress is not None
    told = held.progress.model_dump(exclude_defaults=True)
    assert told == {"step": 300, "total_steps": 900, "progress_percentage": 33, "loss": "6.5"}
    conditions = {item.type: item.status for item in held.conditions}
    assert conditions == {"Running": "False", "Ready": "False"}
    document = held.model_dump(by_alias=True, mode="json")
    assert read_series(document, ["phase1"]).reported_at_s is None


def test_its_figures_do_not_come_back_before_the_next_run_reports() -> None:
    held = look(look(STATUS, RUNNING, progress=STEP_300), QUEUED, NOW_S + 30)
    starting = look(held, replace(RUNNING, state="Pending"), NOW_S + 3600)
    again = look(starting, RUNNING, NOW_S + 3660)
    assert (starting.phase, again.phase) == ("Pending", "Running")
    assert again.progress == held.progress
    series = read_series(again.model_dump(by_alias=True, mode="json"), ["phase1"])
    assert (series.reported_at_s, series.figures) == (None, ()), "no report of an hour ago that would count as old"


def test_a_run_that_goes_on_from_an_older_step_than_was_reported_says_so() -> None:
    held = look(look(STATUS, RUNNING, progress=STEP_300), QUEUED)
    resumed = record("resumed", "step=250", run=2)
    status = look(held, RUNNING, checkpoint=resumed)
    assert (status.attempt, status.attempt_run) == (1, 2)
    assert status.checkpoint is not None
    assert status.checkpoint.step == 250
    begun = look(status, RUNNING, checkpoint=resumed, progress=record("stage_started", "steps=900", run=2))
    assert begun.progress is not None
    assert (begun.progress.step, begun.progress.total_steps) == (None, 900)
    first = look(begun, RUNNING, progress=record("progress", f"step=260 steps=900 {FIGURES}", run=2))
    assert first.progress is not None
    assert (first.progress.step, first.progress.progress_percentage) == (260, 28)


@pytest.mark.parametrize(
    ("known", "told", "expected"),
    [
        (None, "", None),
        (None, "attempt_run=2", 2),
        (2, "attempt_run=3", 3),
        (3, "attempt_run=2", 3),  # a log that is read late
        (3, "", 3),
        (None, "attempt_run=1", None),
        (None, "attempt_run=0", None),
        (None, "attempt_run=-4", None),
        (None, "attempt_run=many", None),
        (2, f"attempt_run={MAX_ATTEMPT_RUNS + 1}", 2),
    ],
)
def test_the_number_of_runs_only_grows_and_is_the_trainer_s(known: int | None, told: str, expected: int | None) -> None:
    before = STATUS.model_copy(update={"attempt_run": known})
    status = look(before, RUNNING, progress=record("progress", f"step=3 steps=9 {told}"))
    assert status.attempt_run == expected


def test_another_attempt_counts_its_runs_anew() -> None:
    before = STATUS.model_copy(update={"attempt_run": 4})
    second = replace(RUNNING, attempt=2, ref=REF.model_copy(update={"attempt": 2}))
    assert look(before, second, progress=record("progress", "step=3 steps=9", run=4)).attempt_run is None
    failed = replace(RUNNING, state="Failed", signal=9, finished_at_s=NOW_S, ref=None)
    step = plan(TRAINING_ONLY, Observed(status=before, children=(failed,)), NOW_S)
    assert step.create is not None
    assert (step.status.attempt, step.status.attempt_run) == (2, None)


# Whose records count.


def child(**spec: Any) -> ChildSummary:
    found = read_child(child_document("Job", true={"Suspended": "JobSuspended"} if spec else None) | {"spec": spec})
    assert found is not None
    return found[1]


def pod(uid: str, created: float = 0, *, leaving: bool = False, **more: Any) -> PodSummary:
    document = pod_document(names.SINGLE, uid=uid, created=created, **more)
    if leaving:
        document["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    found = read_pod(document)
    assert found is not None
    return found[1]


HUNG = record("hung", "step=300 message=stuck")
OF_FIRST = LatestRecords(
    progress=record("progress", f"step=300 steps=900 {SLOW}"),
    checkpoint=record("checkpoint", "step=250"),
    hang=HUNG,
    silence=Silence(1, 301),
    unreadable="The log of pod x is not readable",
    promise=record("alive", "every_s=60"),
    pod="first",
    job="uid",
)


@pytest.mark.parametrize(
    ("of_child", "pods", "counts"),
    [
        (child(), [pod("first")], True),
        (child(), [], True),  # its pods are gone, and it is about to end
        (child(suspend=True), [pod("first", leaving=True)], False),
        (child(suspend=True), [], False),
        (child(), [pod("first", leaving=True)], True),  # drained
        (child(), [pod("second", 60), pod("first", leaving=True)], False),
        (child(), [pod("first", leaving=True), pod("second", 60, phase="Pending")], False),
    ],
)
def test_only_what_the_present_pods_have_said_tells_of_the_present(
    of_child: ChildSummary, pods: list[PodSummary], counts: bool
) -> None:
    records = select_records(OF_FIRST, of_child, pods)
    assert records.checkpoint is OF_FIRST.checkpoint, "it is on the volume, whoever wrote it"
    live = (records.progress, records.hang, records.silence, records.unreadable, records.promise)
    assert all(it is not None for it in live) if counts else live == (None,) * 5


def test_a_hang_a_slow_rank_or_silence_of_a_run_is_not_held_against_the_next_one() -> None:
    status = look(STATUS, RUNNING, progress=OF_FIRST.progress, hang=HUNG)
    assert {item.type: item.reason for item in status.conditions} == {
        "Running": Reason.NO_PROGRESS,
        "Ready": Reason.NO_PROGRESS,
        "Straggling": Reason.SLOW_RANK,
    }
    for of_child, seen in ((child(suspend=True), QUEUED), (child(), RUNNING)):
        records = select_records(OF_FIRST, of_child, [pod("second", 60)] if seen is RUNNING else [])
        status = look(status, seen, progress=records.progress, hang=records.hang, silence=records.silence)
        assert {item.type: item.status for item in status.conditions}["Straggling"] == "False"
        assert (status.reason, status.failures) == (
            Reason.QUEUED if seen is QUEUED else Reason.CHILD_RUNNING,
            (),
        )


def test_a_log_of_other_pods_begins_without_what_the_one_before_has_promised() -> None:
    before = OF_FIRST.of_pod("second")
    after = read_latest_records(line("stage_started", "steps=900", run=2), "uid", 1, before)
    assert (after.hang, after.silence, after.promise, after.pod) == (None, None, None, "second")
    assert after.progress is not None
    assert after.progress.count("attempt_run") == 2
    assert read_latest_records("", "uid", 1, OF_FIRST).hang is HUNG, "of the same pod it stays"


# A cluster in memory.


class Preempted:
    """A job whose child a queue may suspend, and what its logs have told so far."""

    def __init__(self, workers: int) -> None:
        self.world = World(Shape(workers=workers, prepares=False, operators=1, run_policy={}))
        self.cluster, self.operator = self.world.cluster, self.world.operators[0]
        self.records = LatestRecords()
        self.operator.told.latest = lambda ref: self.records  # type: ignore[method-assign]

    def settle(self) -> JobStatus:
        """Let controllers, nodes and the operator do what they have to do."""
        for _ in range(12):
            act(self.cluster)
            for pod in self.cluster.all("Pod"):
                if is_deleting(pod) and is_alive(pod):
                    end_pod(self.cluster, pod, 3)
                elif pod["status"]["phase"] == "Pending" and not is_deleting(pod):
                    start_pod(self.cluster, pod)
            self.operator.catch_up()
            self.world.look(self.operator, kinds=[])
            self.cluster.now_s += 5
        return JobStatus.model_validate(self.world.status())

    def hold(self, holds: bool) -> JobStatus:
        (child,) = self.world.children()
        suspend_child(self.cluster, child, holds)
        return self.settle()

    def report(self, text: str) -> JobStatus:
        """Have the log of the pod that runs have these lines."""
        job = self.world.job
        assert job is not None
        uid = job["metadata"]["uid"]
        (main,) = (
            pod
            for pod in self.cluster.all("Pod")
            if pod["metadata"]["labels"][names.ROLE_LABEL] != names.WORKER and not is_deleting(pod)
        )
        before = self.records.of_pod(main["metadata"]["uid"])
        self.records = read_latest_records(text.replace("job=uid", f"job={uid}"), uid, 1, before)
        return self.settle()


@pytest.mark.parametrize("workers", [1, 2])
def test_a_child_that_is_preempted_twice_is_one_attempt_of_three_runs(workers: int) -> None:
    job = Preempted(workers)
    assert job.settle().phase == "Running"
    hung = "\n".join([line("progress", f"step=300 steps=900 {SLOW} {FIGURES}"), line("hung", "step=300 message=stuck")])
    assert job.report(hung).reason == Reason.NO_PROGRESS
    for run in (2, 3):
        held = job.hold(True)
        assert (held.phase, held.attempt, held.failures) == ("Queued", 1, ())
        assert held.progress is not None
        assert (held.progress.eta, held.progress.metrics, held.progress.last_updated_time) == (None, (), None)
        # Silent for hours, and that is how it should be.
        job.records = replace(job.records, silence=Silence(1, 10_000))
        again = job.hold(False)
        assert (again.phase, again.reason, again.attempt, again.failures) == ("Running", Reason.CHILD_RUNNING, 1, ())
        assert again.progress == held.progress
        assert not [item.type for item in again.conditions if item.type == "Straggling" and item.status == "True"]
        begun = "\n".join(
            [line("resumed", "step=250", run=run), line("progress", f"step=26{run} steps=900 {FIGURES}", run=run)]
        )
        status = job.report(begun)
        assert (status.attempt, status.attempt_run) == (1, run)
        assert status.progress is not None
        assert (status.progress.step, status.progress.eta) == (260 + run, "10:00 min")
    assert len(job.world.children()) == 1
