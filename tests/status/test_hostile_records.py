"""Whatever a program prints or leaves, its job is still reconciled: no exception, no other phase, no flood.

BERT_TEST_RECORDS=100000 is the full bar, a minute; what is drawn by default is a sample of it.
"""

from __future__ import annotations

import json
import os
from typing import TypeVar

import pytest

from bert_job.progress import parse_progress_line, starts_like_record
from bert_operator.api.schema.status import MAX_FAILURES, Failure, JobStatus
from bert_operator.cluster.events import events_between
from bert_operator.cluster.log_reader import LatestRecords, read_latest_records
from bert_operator.cluster.object_summaries import read_child, read_pod
from bert_operator.cluster.observation import observe_child
from bert_operator.cluster.recorder import render_event
from bert_operator.names import JobRef
from bert_operator.state.observed import Child, Observed
from bert_operator.state.plan import plan
from child_documents import CREATED_S, child_document, ended, pod_document
from hostile_records import ATTEMPT, OURS, UID, draw_endings, draw_lines
from sample_job import sample_job

T = TypeVar("T")

RECORDS = int(os.environ.get("BERT_TEST_RECORDS", "2000"))
NOW_S = CREATED_S + 500
JOB = sample_job()
BEFORE = JobStatus(phase="Running", attempt=ATTEMPT, run="training", completed_runs=("prepare",))
MAX_STATUS_BYTES = 16_384  # bytes, of a job without failures
MAX_STATUS_WITH_FAILURES_BYTES = 1_048_576  # with as many failures as there may be; etcd takes half as much again


def size(status: JobStatus) -> int:
    document = status.model_dump(mode="json", by_alias=True)
    assert JobStatus.model_validate(document) == status
    return len(json.dumps(document, ensure_ascii=False).encode())


def training(state: str, **rest: object) -> Child:
    return Child(run="training", attempt=ATTEMPT, state=state, **rest)  # type: ignore[arg-type]


ENDINGS = (
    training("Running"),
    training("Succeeded", exit_code=0, finished_at_s=NOW_S),
    training("Failed", exit_code=1, finished_at_s=NOW_S),
    training("Stopped", exit_code=3, finished_at_s=NOW_S),
)


@pytest.mark.parametrize(
    "fields", ["step=-5 steps=10", 'step=1 stage="\\ud800"', "step=1 remaining_s=1e300", f"step={'9' * 18} steps=9"]
)
def test_a_bad_record_costs_that_record_and_is_counted(fields: str) -> None:
    good = f"bert-trainer/1 event=progress stage=phase1 step=4 steps=10 {OURS}"
    before = read_latest_records(good, UID, ATTEMPT, LatestRecords())
    text = f"{good}\nbert-trainer/1 event=progress {fields} {OURS}\nplain words\n"
    after = read_latest_records(text, UID, ATTEMPT, before)
    assert after == before
    assert len(after.refused) == 1
    assert read_latest_records(text, UID, ATTEMPT, after).refused == after.refused, (
        "the same line is read in every round"
    )
    done = plan(JOB, Observed(status=BEFORE, children=(ENDINGS[1],), progress=after.progress), NOW_S)
    assert (done.status.phase, done.status.progress and done.status.progress.total_steps) == ("Succeeded", 10)


def test_records_of_others_are_nobody_s() -> None:
    text = "\n".join(
        f"bert-trainer/1 event=checkpoint stage=phase1 step=4 job={job} attempt={attempt}"
        for job, attempt in ((UID, ATTEMPT - 1), (UID, ATTEMPT + 1), ("uid-2", ATTEMPT), (UID, "x"))
    )
    assert read_latest_records(text, UID, ATTEMPT, LatestRecords()).checkpoint is None


@pytest.mark.timeout(600)
def test_no_record_raises_changes_a_phase_or_fills_the_status() -> None:
    sound = f"bert-trainer/1 event=evaluated stage=phase1 when=during step=1 mlm_accuracy=0.5 {OURS}"
    report, status = read_latest_records(sound, UID, ATTEMPT, LatestRecords()), BEFORE
    used = refused = 0
    for number, line in enumerate(draw_lines(RECORDS, seed=1)):
        report = read_latest_records(line, UID, ATTEMPT, report)
        refused += len(report.refused)
        used += parse_progress_line(line) is not None
        child = ENDINGS[number % len(ENDINGS)]
        without = Observed(status=BEFORE, children=(child,))
        seen = Observed(
            status=status if child.state == "Running" else BEFORE,
            children=(child,),
            progress=report.progress,
            checkpoint=report.checkpoint,
            results=report.results,
        )
        step = plan(JOB, seen, NOW_S + number)
        assert step.status.phase == plan(JOB, without, NOW_S).status.phase, line
        assert size(step.status) < MAX_STATUS_BYTES, line
        if child.state == "Running":
            status = step.status
    assert used > RECORDS / 10
    assert refused > RECORDS / 10
    assert status.progress is not None
    assert "phase1" in {result.stage for result in status.results} <= {"phase1", "evaluate"}


@pytest.mark.timeout(600)
def test_no_termination_record_raises_or_changes_what_the_exit_code_says() -> None:
    failed = child_document(true={"Failed": "BackoffLimitExceeded"})
    known = read_child(failed)
    assert known is not None
    phases = {1: "Pending", 2: "Failed", 137: "Pending"}
    before = JobStatus(phase="Running", attempt=1, run="training", completed_runs=("prepare",))
    for number, message in enumerate(draw_endings(max(300, RECORDS // 10), seed=2)):
        exit_code = (2, 137)[number % 2]
        pod = read_pod(pod_document("launcher", phase="Failed", state=ended(exit_code, message=message)))
        assert pod is not None
        child = observe_child(known[1], [pod[1]], {}, workers=2, now_s=NOW_S)
        status = plan(JOB, Observed(status=before, children=(child,)), NOW_S).status
        assert status.phase == phases[exit_code], message
        assert size(status) < MAX_STATUS_BYTES
        for event in events_between(before, status):
            json.dumps(render_event(JobRef("demo", "demo"), UID, event, "now")).encode()


UNSEEN = "".join(map(chr, (0x1B, 0x07, 0x9B, *range(0x200B, 0x2010), *range(0x2028, 0x202F), *range(0x2066, 0x206A))))


def test_nothing_that_is_not_drawn_gets_from_a_pod_into_status_or_events() -> None:
    said = f"gnp.{UNSEEN}\ufeffexe"
    failed = known(read_child(child_document(true={"Failed": "BackoffLimitExceeded"})))
    created = known(read_child(child_document(true={"Created": "MPIJobCreated"})))
    record = json.dumps({"reason": said, "message": f"{said}\n\tat line 3", "exitCode": 1})
    launcher = pod_document("launcher", phase="Failed", state=ended(1, message=record))
    puller = pod_document(phase="Pending", state={"waiting": {"reason": "ErrImagePull", "message": said}})
    line = f"bert-trainer/1 event=evaluated stage=phase1 step=1 mlm_accuracy=0.5 message={json.dumps(said)}"
    told = read_latest_records(f"{line} target_met=true {OURS}", UID, ATTEMPT, LatestRecords())
    before = JobStatus(phase="Pending", attempt=1, run="training", completed_runs=("prepare",))
    for child, document in ((failed, launcher), (created, puller)):
        pods = [known(read_pod(document))]
        seen = Observed(
            status=before,
            children=(observe_child(child, pods, {}, workers=2, now_s=NOW_S),),
            results=told.results,
        )
        status = plan(JOB, seen, NOW_S).status
        texts = [status.model_dump_json(), *(event.message for event in events_between(before, status))]
        # In the status, in the Event about the target and in that about the pod.
        assert sum("gnp.\ufffd" in text for text in texts) == 3
        assert not {sign for text in texts for sign in text if sign in f"{UNSEEN}\ufeff"}


def known(read: tuple[object, T] | None) -> T:
    assert read is not None
    return read[1]


def test_a_job_that_failed_as_often_as_may_be_still_fits_into_etcd() -> None:
    failures = tuple(
        Failure(
            run="training",
            attempt=attempt,
            kind="Infrastructure",
            reason="\U0001f600" * 80,
            message="\U0001f600" * 1024,
            finished_at="2026-01-01T00:00:00Z",
        )
        for attempt in range(1, MAX_FAILURES + 1)
    )
    before = BEFORE.model_copy(update={"failures": failures, "attempt": MAX_FAILURES})
    step = plan(JOB, Observed(status=before), NOW_S)
    assert size(step.status) < MAX_STATUS_WITH_FAILURES_BYTES
    assert plan(JOB, Observed(status=step.status), NOW_S).status == step.status


def test_what_only_looks_like_a_record_is_distinguished_from_other_output() -> None:
    assert starts_like_record("bert-trainer/1 event=")
    assert not starts_like_record("bert-trainer/2 event=progress")
    assert not starts_like_record("words")
