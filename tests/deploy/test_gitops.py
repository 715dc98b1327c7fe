"""What GitOps tools make of a job in each of its phases: kstatus, which Flux waits by, and Argo CD's health check.

Inputs: statuses as the operator writes them. Observed: the verdicts of kstatus' own library, and of the check in
deploy/argocd by the interpreter that Argo CD has.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bert_operator.api.crd import render_crd
from bert_operator.api.schema.conditions import BlockerReason, Reason
from bert_operator.api.schema.status import JobStatus
from bert_operator.state.observed import Blocker
from bert_operator.state.status import Facts, Verdict, describe, describe_blocked, describe_invalid
from manifests import BUILD, ROOT, run
from sample_job import sample_document

pytestmark = pytest.mark.manifests

CHECK = ROOT / "deploy/argocd/health.lua"
NOW_S = 1_700_000_000.0
UNSCHEDULABLE = Blocker(reason=BlockerReason.UNSCHEDULABLE, message="no node fits")


def status_in(
    phase: str, reason: Reason, *, before: JobStatus | None = None, blocker: Blocker | None = None
) -> JobStatus:
    facts = Facts(
        namespace="team", attempt=1, run="training", completed_runs=(), failures=(), progress=None, started=True,
        blocker=blocker,
    )  # fmt: skip
    verdict = Verdict(phase=phase, reason=reason)  # type: ignore[arg-type]
    return describe(before or JobStatus(), facts, verdict, generation=2, now_s=NOW_S)


RUNNING = status_in("Running", Reason.CHILD_RUNNING)
INVALID = describe_invalid(JobStatus(), "spec.workers: got 0", generation=2, now_s=NOW_S)
FAILED = status_in("Failed", Reason.INVALID_INPUT, before=RUNNING)

STATES: dict[str, tuple[JobStatus | None, str, str]] = {
    "nobody has looked at it": (None, "InProgress", "Progressing"),
    "its spec has changed since": (RUNNING.model_copy(update={"observed_generation": 1}), "InProgress", "Progressing"),
    "Pending": (status_in("Pending", Reason.WAITING_TO_START), "InProgress", "Progressing"),
    "Pending, blocked": (
        status_in("Pending", Reason.WAITING_TO_START, blocker=UNSCHEDULABLE),
        "InProgress",
        "Progressing",
    ),
    "Queued": (status_in("Queued", Reason.QUEUED), "InProgress", "Progressing"),
    "Running": (RUNNING, "Current", "Progressing"),
    "Pending, after a failed attempt": (
        status_in("Pending", Reason.BACKING_OFF, before=RUNNING),
        "InProgress",
        "Progressing",
    ),
    "Stopping": (status_in("Stopping", Reason.STOPPING_ON_REQUEST, before=RUNNING), "InProgress", "Progressing"),
    "Stopped": (status_in("Stopped", Reason.STOPPED_ON_REQUEST, before=RUNNING), "Current", "Suspended"),
    "Succeeded": (status_in("Succeeded", Reason.ALL_STAGES_DONE, before=RUNNING), "Current", "Healthy"),
    "Failed": (FAILED, "Failed", "Degraded"),
    "Invalid": (INVALID, "Failed", "Degraded"),
    "Invalid, corrected": (status_in("Running", Reason.CHILD_RUNNING, before=INVALID), "Current", "Progressing"),
    "started, and not to be read any more": (
        describe_blocked(RUNNING, UNSCHEDULABLE, generation=2, now_s=NOW_S),
        "InProgress",
        "Progressing",
    ),
}


def job_with(status: JobStatus | None) -> dict[str, Any]:
    (version,) = render_crd()["spec"]["versions"]
    default = version["schema"]["openAPIV3Schema"]["properties"]["status"]["default"]
    written = default if status is None else status.model_dump(mode="json", by_alias=True, exclude_none=True)
    return {**sample_document(), "metadata": {"name": "job", "namespace": "team", "generation": 2}, "status": written}


def test_every_phase_is_what_it_means_to_these_tools() -> None:
    program = Path(run(BUILD, "gitops").strip()) / "gitops"
    jobs = "\n".join(json.dumps(job_with(status)) for status, _, _ in STATES.values())
    verdicts = run(program, CHECK, text=jobs).splitlines()
    expected = [f"{kstatus} {health}" for _, kstatus, health in STATES.values()]
    assert dict(zip(STATES, verdicts, strict=True)) == dict(zip(STATES, expected, strict=True))


def test_the_page_has_this_table() -> None:
    page = (ROOT / "docs/guides/gitops.md").read_text()
    for state, (_, kstatus, health) in STATES.items():
        assert f"| {state} | {kstatus} | {health} |" in page
