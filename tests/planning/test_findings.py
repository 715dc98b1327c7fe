"""What a running attempt goes on with, and the status says: a slow rank, a sick node, a log that cannot be read."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bert_job.progress import ProgressRecord, parse_progress_line
from bert_operator.api.schema.conditions import FailureReason, Reason
from bert_operator.api.schema.status import ChildRef, Condition, Failure, JobStatus
from bert_operator.cluster.events import events_between
from bert_operator.state.bad_nodes import find_bad_nodes
from bert_operator.state.observed import Child, Finding, Observed
from bert_operator.state.plan import plan
from plan_inputs import NOW_S, TRAINING_ONLY

REF = ChildRef(kind="MPIJob", name="bert-a1", uid="u", attempt=1)
RUNNING = Child(run="training", attempt=1, state="Running", ref=REF, pod_nodes=(("bert-a1-worker-1", "node-7"),))
STATUS = JobStatus(phase="Running", attempt=1, run="training", child=REF)


def record(slow: str = "", *, attempt: int = 1) -> ProgressRecord:
    line = f"bert-trainer/1 event=progress stage=phase1 step=30 steps=90 {slow} job=uid attempt={attempt}"
    found = parse_progress_line(" ".join(line.split()))
    assert found is not None
    return found


def slow(*, intervals: int = 3, for_s: float = 90, host: str = "bert-a1-worker-1", score: str = "2.04") -> str:
    return (
        f"slow_rank=5 slow_rank_host={host} slow_rank_score={score} slow_rank_intervals={intervals} slow_rank_s={for_s}"
    )


def seen(status: JobStatus = STATUS, child: Child = RUNNING, **observed: object) -> JobStatus:
    return plan(TRAINING_ONLY, Observed(status=status, children=(child,), **observed), NOW_S).status  # type: ignore[arg-type]


def condition(status: JobStatus, kind: str) -> Condition | None:
    return next((item for item in status.conditions if item.type == kind), None)


def test_a_rank_that_stays_slow_is_named_with_its_pod_and_node_until_it_is_not() -> None:
    status = seen(progress=record(slow()))
    found = condition(status, "Straggling")
    assert found is not None
    assert (found.status, found.reason) == ("True", Reason.SLOW_RANK)
    assert found.message.startswith(
        "Rank 5 in pod bert-a1-worker-1 on node node-7 takes 2.0 times as long as the others"
    )
    assert (status.phase, status.reason) == ("Running", Reason.CHILD_RUNNING), "the job goes on"
    assert ("Warning", "SlowRank") in [(event.kind, event.reason) for event in events_between(STATUS, status)]
    again = seen(status, progress=record(slow(score="2.11")))
    assert list(events_between(status, again)) == [], "one Event"
    over = condition(seen(status, progress=record()), "Straggling")
    assert over is not None
    assert (over.status, over.reason) == ("False", Reason.RECOVERED)


@pytest.mark.parametrize(
    "found",
    [
        record(),
        record(slow(intervals=2)),
        record(slow(for_s=59)),
        record(slow(), attempt=2),
        record("slow_rank=many slow_rank_score=2 slow_rank_intervals=9 slow_rank_s=99"),
        record("slow_rank=1 slow_rank_score=nan slow_rank_intervals=9 slow_rank_s=99"),
    ],
)
def test_a_moment_another_attempt_or_no_number_is_no_straggler(found: ProgressRecord) -> None:
    assert condition(seen(progress=found), "Straggling") is None


def test_a_host_that_is_no_pod_of_the_attempt_has_no_node() -> None:
    found = condition(seen(progress=record(slow(host="node-7.evil"))), "Straggling")
    assert found is not None
    assert "Rank 5 in node-7.evil takes" in found.message
    assert "describe node" not in found.message


def test_a_sick_node_and_a_log_that_cannot_be_read_are_told_and_nothing_is_stopped() -> None:
    finding = Finding(reason=Reason.NODE_NOT_READY, message="Node n-1 has been not ready since yesterday")
    observed = Observed(
        status=STATUS, children=(replace(RUNNING, finding=finding),), unreadable="The log of pod p is not readable"
    )
    step = plan(TRAINING_ONLY, observed, NOW_S)
    assert (step.stop, step.remove, step.create, step.status.phase) == ((), (), None, "Running")
    told = {item.type: (item.status, item.reason, item.message) for item in step.status.conditions}
    assert told["NodeUnhealthy"] == ("True", "NodeNotReady", finding.message)
    assert told["ProgressUnknown"] == ("True", "LogUnreadable", "The log of pod p is not readable")
    assert plan(TRAINING_ONLY, replace(observed, status=step.status), NOW_S + 9).status == step.status
    reasons = [event.reason for event in events_between(STATUS, step.status)]
    assert reasons == ["NodeNotReady", "LogUnreadable"]


def test_a_log_that_is_not_read_to_its_end_is_told_as_that_unless_it_is_not_read_at_all() -> None:
    cut = condition(seen(cut="The last lines are long"), "ProgressUnknown")
    assert cut is not None
    assert (cut.reason, cut.message) == ("LogCut", "The last lines are long")
    unread = condition(seen(cut="The last lines are long", unreadable="Nobody answers"), "ProgressUnknown")
    assert unread is not None
    assert (unread.reason, unread.message) == ("LogUnreadable", "Nobody answers")


def test_what_was_told_ends_with_its_attempt() -> None:
    finding = Finding(reason=Reason.NODE_NOT_READY, message="Node n-1 has been not ready since yesterday")
    status = seen(child=replace(RUNNING, finding=finding))
    failed = replace(RUNNING, state="Failed", signal=9, finding=None)
    found = condition(seen(status, failed), "NodeUnhealthy")
    assert found is not None
    assert found.status == "False"


def test_a_failure_by_a_sick_node_is_infrastructure_and_the_node_is_avoided_from_then_on() -> None:
    failed = replace(RUNNING, state="Failed", reason="DeviceUnhealthy", node="node-7", pod="bert-a1-worker-1")
    status = seen(child=failed)
    assert [(it.kind, it.reason) for it in status.failures] == [("Infrastructure", FailureReason.DEVICE_UNHEALTHY)]
    assert status.avoided_nodes == ("node-7",)
    step = plan(TRAINING_ONLY, Observed(status=status), NOW_S + 5)
    assert step.create is not None
    assert step.create.avoided_nodes == ("node-7",)


def test_one_other_failure_on_a_node_does_not_make_it_bad() -> None:
    killed = Failure(
        run="training", attempt=1, kind="Infrastructure", reason="Killed", node="n", finished_at="2026-01-01T00:00:00Z"
    )
    assert find_bad_nodes([killed]) == ()
    assert find_bad_nodes([killed.model_copy(update={"reason": "DeviceUnhealthy"})]) == ("n",)
