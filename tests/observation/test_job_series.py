"""What Prometheus gets of single jobs: only of some, only what is named, and no more than so many series."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bert_operator.api.schema.conditions import FailureReason
from bert_operator.cluster.job_series import (
    FAILED_FOR_S,
    MAX_JOBS,
    NOTHING,
    JobSeries,
    choose_jobs,
    list_figures,
    list_report_times,
    list_troubles,
    read_series,
)
from bert_operator.cluster.metrics import Metrics, read_memory_limit
from bert_operator.names import JobRef

NOON, NOON_S = "2026-01-01T12:00:00Z", 1_767_268_800.0
Json = dict[str, Any]


def status(phase: str = "Running", *, conditions: list[tuple[str, str]] | None = None, **more: Any) -> Json:
    listed = [{"type": kind, "status": "True", "reason": reason} for kind, reason in conditions or ()]
    return {"phase": phase, "stage": "phase1", "conditions": listed, **more}


def progress(**figures: str) -> Json:
    return {"metrics": [{"name": name, "value": value} for name, value in figures.items()], "lastUpdatedTime": NOON}


def read(status: Json) -> JobSeries:
    return read_series(status, ("phase1", "phase2"))


def troubles(status: Json, *, now_s: float = NOON_S) -> set[tuple[str, str]]:
    found = list_troubles([(JobRef("team", "corpus"), read(status))], now_s)
    assert all(labels[:2] == ("team", "corpus") and value == 1 for labels, value in found.items())
    return {(labels[2], labels[3]) for labels in found}


def test_a_running_job_shows_the_figures_that_are_named_and_no_others() -> None:
    found = read(status(progress=progress(loss="6.25", step="120", password="7", learning_rate="high", memory="1")))
    assert dict(found.figures) == {"loss": 6.25, "step": 120}
    assert found.reported_at_s == NOON_S
    jobs = [(JobRef("team", "corpus"), found)]
    assert list_figures(jobs, "loss") == {("team", "corpus", "phase1"): 6.25}
    assert list_figures(jobs, "gradient_norm") == {}
    assert list_report_times(jobs) == {("team", "corpus", "phase1"): NOON_S}


def test_a_stage_that_the_spec_does_not_have_is_no_label() -> None:
    shown = read({**status(progress=progress(loss="6.25")), "stage": "made-up-17"})
    assert (shown.stage, dict(shown.figures)) == ("", {"loss": 6.25})


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "", "1_0x", None])
def test_what_is_no_number_is_no_figure(value: str | None) -> None:
    assert read(status(progress={"metrics": [{"name": "loss", "value": value}]})).figures == ()


@pytest.mark.parametrize("phase", ["Pending", "Queued", "Stopped", "Succeeded"])
def test_a_job_that_does_not_run_shows_nothing(phase: str) -> None:
    assert read(status(phase, progress=progress(loss="6.25"))) is NOTHING


def test_what_is_wrong_with_a_job_is_told_with_its_reason() -> None:
    assert troubles(status("Invalid", reason="SpecInvalid")) == {("Invalid", "SpecInvalid")}
    assert troubles(status("Pending", conditions=[("Blocked", "QuotaExceeded")])) == {("Blocked", "QuotaExceeded")}
    both = status(conditions=[("Running", "NoProgress"), ("Straggling", "SlowRank"), ("Valid", "SpecAccepted")])
    assert troubles(both) == {("Stalled", "NoProgress"), ("Straggling", "SlowRank")}
    assert troubles(status(conditions=[("Running", "ChildRunning")])) == set()
    over = {**status(), "conditions": [{"type": "Blocked", "status": "False", "reason": "Cleared"}]}
    assert troubles(over) == set()


def test_a_failed_job_is_told_for_a_day() -> None:
    failed = status("Failed", reason="InvalidInput", completionTime=NOON)
    assert troubles(failed, now_s=NOON_S + FAILED_FOR_S - 1) == {("Failed", "InvalidInput")}
    assert troubles(failed, now_s=NOON_S + FAILED_FOR_S) == set()
    assert troubles(status("Failed", reason="InvalidInput")) == {("Failed", "InvalidInput")}


@pytest.mark.parametrize("reason", [None, "whatever", "x" * 63, FailureReason.HUNG.value])
def test_a_reason_that_the_operator_does_not_write_is_no_label(reason: str | None) -> None:
    assert troubles(status("Failed", reason=reason)) == {("Failed", "Other")}


def test_many_jobs_of_a_namespace_do_not_hide_those_of_another() -> None:
    shown = JobSeries(troubles=(("Blocked", "QuotaExceeded"),))
    jobs = [(JobRef("greedy", f"job-{number}"), shown) for number in range(3 * MAX_JOBS)]
    jobs += [(JobRef("quiet", f"job-{number}"), NOTHING) for number in range(5)]
    jobs += [(JobRef("modest", f"job-{number}"), shown) for number in range(5)]
    long_over = JobSeries(troubles=(("Failed", "Error"),), failed_at_s=NOON_S - FAILED_FOR_S)
    jobs += [(JobRef("past", f"job-{number}"), long_over) for number in range(5)]
    chosen = [ref.namespace for ref, _ in choose_jobs(jobs, NOON_S)]
    assert len(chosen) == MAX_JOBS
    assert chosen.count("modest") == 5
    assert not {"quiet", "past"} & set(chosen)


def test_the_page_has_the_series_of_jobs() -> None:
    metrics = Metrics()
    jobs = [(JobRef("team", "corpus"), read(status(progress=progress(loss="6.25"))))]
    metrics.add_job_views(lambda: jobs, lambda: NOON_S)
    page = metrics.render().decode()
    assert 'bert_operator_job_loss{job_name="corpus",job_namespace="team",stage="phase1"} 6.25' in page


@pytest.mark.parametrize(
    ("file", "text", "limit"),
    [
        ("memory.max", "536870912\n", {"": 536870912.0}),
        ("memory.max", "max\n", {}),
        ("memory/memory.limit_in_bytes", "536870912\n", {"": 536870912.0}),
        ("memory/memory.limit_in_bytes", "9223372036854771712\n", {}),
        ("other", "1", {}),
    ],
)
def test_the_memory_limit_is_that_of_the_container(
    tmp_path: Path, file: str, text: str, limit: dict[str, float]
) -> None:
    path = tmp_path / file
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    assert read_memory_limit([tmp_path]) == limit
