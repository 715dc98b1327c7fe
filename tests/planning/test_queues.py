"""What the status says of a child that a queue holds, and for how long it says so."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bert_operator.api.schema.conditions import BlockerReason, Reason
from bert_operator.api.schema.status import CheckpointStatus, JobStatus, QueueStatus
from bert_operator.state.observed import Blocker, Child, Finding, Observed
from bert_operator.state.plan import plan
from bert_operator.timestamps import render_time
from plan_inputs import NOW_S, TRAINING_ONLY, child, observed, reason_of, ref

HELD = QueueStatus(name="team", workload="w")
ADMITTED = QueueStatus(name="team", workload="w", cluster_queue="cq", flavors=("default",))
CHECKPOINT = CheckpointStatus(stage="phase1", step=40, path="phase1/40", time=render_time(NOW_S))
PREEMPTED = Finding(reason=Reason.PREEMPTED, message="In LocalQueue team: preempted by BertPretrainJob urgent")


def status_of(newest: Child, **before: object) -> JobStatus:
    return plan(TRAINING_ONLY, observed(newest, status=JobStatus(attempt=1, run="training", **before)), NOW_S).status  # type: ignore[arg-type]


def queued(**rest: object) -> Child:
    return child(state="Queued", ref=ref(), queue=HELD, **rest)


def test_the_queue_s_words_are_the_message() -> None:
    status = status_of(queued(wait=Finding(reason=Reason.QUEUED, message="In LocalQueue team: no quota")))
    assert (status.phase, status.reason, status.message) == ("Queued", "Queued", "In LocalQueue team: no quota")
    assert status.queue == HELD


@pytest.mark.parametrize(
    ("checkpoint", "kept"),
    [(CHECKPOINT, "its newest checkpoint (phase1, step 40, or a later one)"), (None, "if it has written one by then")],
)
def test_who_was_preempted_is_told_what_is_kept(checkpoint: CheckpointStatus | None, kept: str) -> None:
    status = status_of(queued(wait=PREEMPTED), checkpoint=checkpoint)
    assert (status.reason, status.failures) == ("Preempted", ())
    assert status.message is not None
    assert status.message.startswith(PREEMPTED.message)
    assert kept in status.message


def test_what_no_waiting_mends_is_a_blocker_until_it_is_fixed() -> None:
    blocker = Blocker(reason=BlockerReason.DEACTIVATED, message="put it back")
    status = status_of(queued(blocker=blocker))
    assert (status.phase, status.reason, status.message) == ("Queued", "Deactivated", "put it back")
    assert reason_of(status, "Blocked") == "Deactivated"
    fixed = plan(TRAINING_ONLY, Observed(status=status, children=(queued(),)), NOW_S).status
    assert (fixed.reason, reason_of(fixed, "Blocked")) == ("Queued", None)


def test_what_admitted_a_child_stays_told_while_nothing_else_is_known() -> None:
    running = child(state="Running", ref=ref(), queue=ADMITTED)
    assert status_of(running).queue == ADMITTED
    unread = replace(running, queue=QueueStatus(name="team"))
    assert status_of(unread, queue=ADMITTED).queue == ADMITTED, "after the operator's restart"
    assert status_of(replace(running, attempt=2), queue=HELD).queue == ADMITTED
    assert status_of(replace(unread, attempt=2), queue=ADMITTED).queue == QueueStatus(name="team")
