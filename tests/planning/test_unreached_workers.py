"""A launcher that waits for its workers: its limit counts only while every pod runs, and the operator keeps it."""

from __future__ import annotations

from typing import Any

import pytest

from bert_job.progress import ProgressRecord, parse_progress_line
from bert_operator.api.schema.status import JobStatus
from bert_operator.cluster.log_reader import LatestRecords, read_latest_records
from bert_operator.cluster.object_summaries import read_child, read_pod
from bert_operator.cluster.observation import observe_child
from bert_operator.state.observed import Child, Observed
from bert_operator.state.plan import plan
from bert_operator.timestamps import render_time
from child_documents import CREATED_S, at, child_document, pod_document
from plan_inputs import NOW_S, TRAINING_ONLY, child, ref

LIMIT_S = 600
WAITS = 'bert-trainer/1 event=unreached message="demo-a1-worker-1 (connection timed out)" job=uid attempt=1'
ALIVE = "bert-trainer/1 event=alive every_s=60 job=uid attempt=1"
Document = dict[str, Any]


def unreached(line: str = WAITS) -> ProgressRecord:
    record = parse_progress_line(line)
    assert record is not None
    return record


def running(since_s: float | None = NOW_S) -> Child:
    return child(state="Running", running_since_s=since_s, ref=ref())


def status(since_s: float = NOW_S) -> JobStatus:
    return JobStatus(phase="Running", attempt=1, run="training", child=ref(), phase_since=render_time(since_s))


def look(now_s: float, one: Child, before: JobStatus, record: ProgressRecord | None = None) -> Any:
    seen = Observed(status=before, children=(one,), unreached=record or unreached())
    return plan(TRAINING_ONLY, seen, now_s)


def test_an_attempt_whose_pods_all_run_ends_after_the_limit_and_says_for_whom_it_waited() -> None:
    step = look(NOW_S + LIMIT_S - 10, running(), status())
    assert (step.status.phase, step.status.failures, step.requeue_after_s) == ("Running", (), 10)
    step = look(NOW_S + LIMIT_S, running(), status())
    [failure] = step.status.failures
    assert (failure.kind, failure.reason) == ("Infrastructure", "WorkersUnreachable")
    assert failure.message.startswith(
        "All pods have run for 600 s, and the launcher still waits for demo-a1-worker-1 (connection timed out). Next: "
    )
    assert [one.ref for one in (*step.stop, *step.remove)] == [ref()], "its pods hold nodes"


@pytest.mark.parametrize("state", ["Pending", "Queued"])
def test_time_without_a_node_or_an_image_or_a_turn_does_not_count(state: str) -> None:
    written = JobStatus(phase="Pending", attempt=1, run="training", start_time=render_time(NOW_S))
    waits = child(state=state, waiting_since_s=NOW_S, ref=ref())
    step = look(NOW_S + 30 * 86_400, waits, written)
    assert (step.status.phase, step.status.failures, step.stop) == (state, (), ())


def test_a_worker_that_has_to_be_made_again_takes_the_limit_away() -> None:
    step = look(NOW_S + 30 * 86_400, running(None), status())
    assert (step.status.phase, step.status.failures, step.stop) == ("Running", (), ())


def test_what_keeps_a_worker_that_is_made_again_is_told_while_the_launcher_waits_for_it() -> None:
    full = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "1 Insufficient cpu"}
    made_again = pod_document(number=1, phase="Pending", node="", conditions=(full,))
    known = read_child(child_document(true={"Running": "MPIJobRunning"}))
    assert known is not None
    pods = [found[1] for found in map(read_pod, [LAUNCHER, started("worker", 0, 30), made_again]) if found is not None]
    seen = observe_child(known[1], pods, {}, workers=2, now_s=CREATED_S + 100)
    before = JobStatus(phase="Running", attempt=1, run="training", child=ref())
    step = look(NOW_S + 9999, seen, before)
    assert (step.status.phase, step.status.reason, step.status.failures) == ("Running", "Unschedulable", ())
    # Ranks that run lose their peer and end: nothing is to be told of before they do.
    trains = plan(TRAINING_ONLY, Observed(status=before, children=(seen,)), NOW_S)
    assert trains.status.reason == "ChildRunning"


def test_the_limit_begins_when_all_pods_are_first_seen_to_run_whatever_the_clocks_of_nodes_say() -> None:
    written = JobStatus(phase="Pending", attempt=1, run="training", start_time=render_time(NOW_S))
    # The node's clock is an hour behind, so that the pod seems to have run since it was created.
    step = look(NOW_S + 3600, running(NOW_S), written)
    assert (step.status.phase, step.requeue_after_s, step.status.failures) == ("Running", LIMIT_S, ())


def test_another_attempt_s_wait_and_a_launcher_that_has_its_workers_count_for_nothing() -> None:
    other = unreached(WAITS.replace("attempt=1", "attempt=2"))
    assert look(NOW_S + 9999, running(), status(), other).status.failures == ()
    seen = Observed(status=status(), children=(running(),))
    assert plan(TRAINING_ONLY, seen, NOW_S + 9999).status.failures == ()


def test_a_log_that_cannot_be_read_tells_nothing_of_now() -> None:
    seen = Observed(status=status(), children=(running(),), unreached=unreached(), unreadable="The log is unreadable")
    step = plan(TRAINING_ONLY, seen, NOW_S + 9999)
    assert (step.status.phase, step.status.failures, step.stop) == ("Running", (), ())


def test_a_stop_on_request_is_told_as_that() -> None:
    seen = Observed(status=status(), children=(running(),), unreached=unreached(), stop_requested=True)
    step = plan(TRAINING_ONLY, seen, NOW_S + 9999)
    assert (step.status.phase, step.status.failures) == ("Stopping", ())


def read(text: str, before: LatestRecords | None = None, attempt: int = 1) -> LatestRecords:
    return read_latest_records(text, "uid", attempt, before or LatestRecords())


def test_the_log_tells_that_a_launcher_waits_until_it_writes_anything_else() -> None:
    waits = read(f"Waiting for demo-a1-worker-1: connection timed out\n{WAITS}\n")
    assert waits.unreached == unreached()
    # A launcher that waits writes a few lines in a minute, so that the end of its log has this one. A chatty program
    # may have pushed out whatever told that it runs.
    assert read("step 1\nstep 2\n" * 30, waits).unreached is None
    assert read(f"{WAITS}\n{ALIVE}\n", waits).unreached is None
    assert read("nothing new", waits, attempt=2).unreached is None
    assert waits.of_pod("another").unreached is None


def started(role: str, number: int, after: float, *, created: float = 0) -> Document:
    pod = pod_document(role, number, state={"running": {"startedAt": at(after)}})
    return {**pod, "metadata": {**pod["metadata"], "creationTimestamp": at(created)}}


LAUNCHER = started("launcher", 0, 20)
PULLS = pod_document(number=1, phase="Pending", state={"waiting": {"reason": "ContainerCreating"}})
LEAVES = started("worker", 1, 40)
LEAVES = {**LEAVES, "metadata": {**LEAVES["metadata"], "deletionTimestamp": at(60)}}


@pytest.mark.parametrize(
    ("pods", "since"),
    [
        ([LAUNCHER, started("worker", 0, 30), started("worker", 1, 40)], 40),
        ([LAUNCHER, started("worker", 0, 30), started("worker", 1, -3600, created=50)], 50),
        ([LAUNCHER, started("worker", 0, 30)], None),
        ([LAUNCHER, started("worker", 0, 30), PULLS], None),
        ([LAUNCHER, started("worker", 0, 30), LEAVES], None),
        ([started("worker", 0, 30), started("worker", 1, 40)], None),
    ],
)
def test_all_pods_run_since_the_last_of_them_does(pods: list[Document], since: float | None) -> None:
    known = read_child(child_document(true={"Running": "MPIJobRunning"}))
    assert known is not None
    entries = [found[1] for found in map(read_pod, pods) if found is not None]
    seen = observe_child(known[1], entries, {}, workers=2, now_s=CREATED_S + 100)
    assert seen.running_since_s == (None if since is None else CREATED_S + since)
