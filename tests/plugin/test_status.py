"""``kubectl bert status``: what one screen says of a job at the moments at which people look."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from bert_operator.plugin.job import Job, losses, read_pods, read_records
from bert_operator.plugin.terminal import Ink
from bert_operator.plugin.views.status_view import Seen, show_status
from kubectl_stand_in import KubectlStandIn, items, refuses, says
from seen_jobs import NOW_S, job, pod, progress, record, running

GET = "get bertpretrainjobs.bert-operator.dev corpus"
PODS = "get pods --selector bert-operator.dev/job=corpus"
Golden = Callable[[str, str], None]


def shown(document: dict[str, Any], *pods: dict[str, Any], log: tuple[str, ...] = (), **how: Any) -> str:
    what = Job(document)
    curve = losses(read_records(log, what), what.status.get("stage"))
    seen = Seen(job=what, pods=read_pods(pods), losses=curve, now_s=NOW_S)
    return "\n".join(show_status(seen, how.pop("ink", Ink()), **how)) + "\n"


def test_a_running_job_shows_its_stages_figures_and_failures(golden: Golden) -> None:
    log = tuple(progress(step, 9.0 - step / 100) for step in range(10, 410, 10))
    golden("plugin/status-running.txt", shown(running(), log=log))


def test_verbose_adds_pods_conditions_and_all_figures(golden: Golden) -> None:
    waits = {"waiting": {"reason": "ImagePullBackOff", "message": "Back-off pulling image"}}
    pods = (pod("corpus-a3-launcher-x"), pod("corpus-a3-worker-0", role="worker", phase="Pending", state=waits))
    golden("plugin/status-verbose.txt", shown(running(frozenHash="abc"), *pods, verbose=True))


STOPPED = {
    "phase": "Stopped",
    "reason": "StoppedOnRequest",
    "message": "A stop was requested and no child is left.",
    "conditions": [{"type": "Stopped", "status": "True", "lastTransitionTime": "2026-01-01T11:57:00Z"}],
}
BLOCKED = {
    "phase": "Pending",
    "reason": "ImagePullFailed",
    "message": "Node node-1 cannot pull the image.\x1b[31m Next: kubectl describe pod corpus-a3-launcher-x",
    "stage": None,
    "conditions": [
        {
            "type": "Blocked",
            "status": "True",
            "reason": "ImagePullFailed",
            "message": "Node node-1 cannot pull the image.\x1b[31m Next: kubectl describe pod corpus-a3-launcher-x",
            "lastTransitionTime": "2026-01-01T11:00:00Z",
        }
    ],
}
FAILED = {"phase": "Failed", "reason": "ApplicationRetriesSpent", "message": "The program failed by itself too often."}


@pytest.mark.parametrize(
    ("name", "document"),
    [
        pytest.param("stopped", running(**STOPPED), id="stopped"),
        pytest.param("blocked", running(**BLOCKED), id="blocked"),
        pytest.param("failed", running(**FAILED), id="failed"),
        pytest.param(
            "invalid", job(phase="Invalid", reason="SpecInvalid", message="spec.image: got nothing"), id="invalid"
        ),
        pytest.param("unseen", job(), id="unseen"),
        pytest.param(
            "succeeded",
            running(phase="Succeeded", reason="AllStagesDone", stage=None, completionTime="2026-01-01T11:30:05Z"),
            id="succeeded",
        ),
    ],
)
def test_each_phase_has_a_screen_of_its_own(golden: Golden, name: str, document: dict[str, Any]) -> None:
    text = shown(document)
    golden(f"plugin/status-{name}.txt", text)
    assert "\x1b" not in text, "a program could write to the terminal"


def test_a_terminal_gets_colours_and_ascii_is_enough() -> None:
    assert "\x1b[32mRunning\x1b[0m" in shown(running(), ink=Ink(colours=True))
    assert shown(running(), ink=Ink(unicode=False)).isascii()


@pytest.mark.parametrize(
    ("status", "states"),
    [
        pytest.param({"attempt": 1}, "waiting waiting waiting waiting", id="nothing reported"),
        pytest.param({"stage": "prepare"}, "current waiting waiting waiting", id="preparing"),
        pytest.param({"completedRuns": ["prepare"]}, "done waiting waiting waiting", id="prepared"),
        pytest.param(
            {"completedRuns": ["prepare"], "stage": "prepare"}, "done waiting waiting waiting", id="prepared just now"
        ),
        pytest.param({"completedRuns": ["prepare"], "stage": "phase1"}, "done current waiting waiting", id="training"),
        pytest.param({"completedRuns": ["prepare"], "stage": "evaluate"}, "done done current waiting", id="evaluating"),
        pytest.param(
            {"completedRuns": ["prepare"], "checkpoint": {"stage": "evaluate", "step": 1}},
            "done done waiting waiting",
            id="a new attempt that has not reported",
        ),
        pytest.param({"phase": "Succeeded"}, "done done done done", id="succeeded"),
        pytest.param(
            {"phase": "Failed", "completedRuns": ["prepare"], "stage": "phase1"},
            "done failed waiting waiting",
            id="failed",
        ),
    ],
)
def test_stages_are_told_from_the_status(status: dict[str, Any], states: str) -> None:
    assert " ".join(stage.state for stage in Job(job(**status)).stages()) == states


def test_steps_that_were_taken_again_replace_those_before() -> None:
    lines = [
        progress(10, 9.0),
        progress(20, 8.0),
        progress(30, 7.0),
        record("resumed", stage="phase1", step=10),
        progress(20, 8.5),
        record("progress", uid="another", stage="phase1", step=25, loss=1.0),
        record("progress", stage="phase2", step=28, loss=1.0),
        "step=29 loss=1.0 is no record",
    ]
    job_of_them = Job(running())
    assert losses(read_records(lines, job_of_them), "phase1") == [(10, 9.0), (20, 8.5)]


def test_the_curve_comes_from_the_log_of_the_newest_attempt(
    bert: Callable[..., int], kubectl: KubectlStandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    kubectl.answer(GET, says(running()))
    older = pod("corpus-old", attempt=3, metadata={"creationTimestamp": "2025-12-31T00:00:00Z"})
    kubectl.answer(PODS, items(older, pod("corpus-a3-worker-0", role="worker"), pod("corpus-a3-launcher-x")))
    kubectl.answer("logs corpus-a3-launcher-x", says("\n".join([progress(10, 9.0), progress(20, 8.0)])))
    assert bert("status", "corpus") == 0
    assert "from 9 at step 10, to step 20" in capsys.readouterr().out
    assert kubectl.calls()[1:] == [
        f"--namespace team {PODS} -o json",
        "--namespace team logs corpus-a3-launcher-x --container trainer --tail=4000",
    ]


def test_what_may_not_be_read_is_named_and_the_rest_is_shown(
    bert: Callable[..., int], kubectl: KubectlStandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    kubectl.answer(GET, says(running()))
    kubectl.answer(PODS, refuses("Forbidden", "pods is forbidden"))
    assert bert("status", "corpus") == 0
    output = " ".join(capsys.readouterr().out.split())
    assert "phase1" in output
    assert "Not shown pods: kubectl get pods" in output
    assert "Forbidden: pods is forbidden" in output


def test_programs_get_the_same_as_json_and_yaml(
    bert: Callable[..., int], kubectl: KubectlStandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    kubectl.answer(GET, says(running()))
    kubectl.answer(PODS, items())
    assert bert("status", "corpus", "-o", "json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["stages"][1] == {"name": "phase1", "kind": "pretrain", "state": "current"}
    assert (document["phase"], document["attempt"], document["losses"]) == ("Running", 3, [])
    assert bert("status", "corpus", "-o", "yaml") == 0
    assert yaml.safe_load(capsys.readouterr().out) == document


def test_a_job_that_is_not_there_has_an_exit_code_of_its_own(
    bert: Callable[..., int], kubectl: KubectlStandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    kubectl.answer(GET, refuses("NotFound", 'bertpretrainjobs.bert-operator.dev "corpus" not found'))
    assert bert("status", "corpus") == 3
    assert capsys.readouterr().err.splitlines()[-1] == "hint: kubectl bert list -A shows every job"
