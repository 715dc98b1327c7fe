"""``kubectl bert status``: what one screen says of a job at the moments at which people look."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import yaml

import seen_jobs
from bert_operator.plugin.job import Job, losses, read_pods, read_records, read_timed_records
from bert_operator.plugin.terminal import Ink
from bert_operator.plugin.views.status_view import StatusData, show_status
from bert_operator.plugin.views.time_spent import TimeSpent, time_in_phases, time_of_attempt, time_of_stage
from bert_operator.timestamps import render_time
from kubectl_stand_in import KubectlStandIn, items, refuses, says
from seen_jobs import NOON, NOW_S, job, pod, progress, record, running

GET = "get bertpretrainjobs.bert-operator.dev corpus"
PODS = "get pods --selector bert-operator.dev/job=corpus"
Golden = Callable[[str, str], None]


def stamped(*lines: tuple[float, str]) -> list[str]:
    """Return lines as ``kubectl logs --timestamps`` prints them; each with its seconds after eleven."""
    return [f"{render_time(NOW_S - 3600 + after_s)[:-1]}.123456789Z {line}" for after_s, line in lines]


ATTEMPT = stamped(
    (90, record("stage_started", stage="phase1", steps=700)),
    (1890, progress(200, 7.0, elapsed_s=1800, data_wait_s=90.5, evaluation_s=120)),
    # Each stage counts from its start.
    (1900, record("stage_finished", stage="phase1")),
    (1910, record("stage_started", stage="phase2", steps=700)),
    (3400, progress(400, 6.1, stage="phase2", elapsed_s=1480, data_wait_s=60, checkpoint_s=30)),
)
PHASES = {
    "phaseSince": "2026-01-01T11:00:30Z",
    "phaseTimes": [
        {"phase": "Queued", "run": "prepare", "seconds": 300},
        {"phase": "Running", "run": "prepare", "seconds": 600},
        {"phase": "Running", "run": "training", "seconds": 2400},
        {"phase": "Pending", "run": "training", "seconds": 325},
    ],
}


def spent_on(lines: list[str], **pod_is: Any) -> TimeSpent | None:
    (ours,) = read_pods([pod("corpus-a3-launcher-x", **pod_is)])
    return time_of_attempt(ours, read_timed_records(lines, Job(running())), is_whole=True)


def test_the_time_of_an_attempt_is_shared_out_over_its_stages() -> None:
    spent = spent_on(ATTEMPT, state={"running": {"startedAt": "2026-01-01T11:00:40Z"}})
    assert spent is not None
    assert spent.seconds == pytest.approx(
        {
            "waiting for nodes and images": 40,
            "start": 50,
            "waiting for data": 150.5,
            "evaluation": 120,
            "checkpoints": 30,
            "steps": 1800 - 90.5 - 120 + 1480 - 60 - 30,
            "all else": 30,
        },
        abs=0.2,
    )
    assert spent.sentence() == (
        "88% steps, 4% waiting for data, 4% evaluation, 1% start, 1% waiting for nodes and images, <1% checkpoints, "
        "<1% all else; of 56:40 min of attempt 3 up to its newest report"
    )


def test_an_attempt_that_has_ended_is_told_to_its_end() -> None:
    state = {"terminated": {"startedAt": "2026-01-01T11:00:40Z", "finishedAt": NOON, "exitCode": 0}}
    spent = spent_on(ATTEMPT, phase="Succeeded", state=state)
    assert spent is not None
    assert (spent.total_s, spent.of) == (3600, "attempt 3 up to its end")


@pytest.mark.parametrize("lines", [[], stamped((90, record("stage_started", stage="phase1", steps=700))), ["torn"]])
def test_before_the_first_report_nothing_is_shared_out(lines: list[str]) -> None:
    assert spent_on(lines) is None


@pytest.mark.parametrize(
    "fields",
    [
        {"elapsed_s": 1e308, "data_wait_s": 1e308, "evaluation_s": 1e308},
        {"elapsed_s": 1e300},
        {"elapsed_s": 100, "data_wait_s": 300},
        {"elapsed_s": -5},
    ],
)
def test_figures_that_can_be_no_times_are_left_out(fields: dict[str, float]) -> None:
    assert spent_on(stamped((100, progress(5, 7.0, **fields)))) is None


def test_of_a_log_that_was_cut_nothing_is_the_rest() -> None:
    (ours,) = read_pods([pod("corpus-a3-launcher-x")])
    spent = time_of_attempt(ours, read_timed_records(ATTEMPT[-1:], Job(running())), is_whole=False)
    assert spent is not None
    assert spent.seconds == {"steps": 1390, "waiting for data": 60, "checkpoints": 30}
    assert spent.of == "attempt 3 that the newest lines of its log tell of"


def test_without_the_log_the_status_tells_of_the_present_stage() -> None:
    figures = [{"name": "elapsed_s", "value": "1000"}, {"name": "data_wait_s", "value": "50"}]
    seen = time_of_stage(Job(running(progress={"step": 1, "metrics": figures})))
    assert seen is not None
    assert seen.sentence() == "95% steps, 5% waiting for data; of 16:40 min of this stage in attempt 3"
    assert time_of_stage(Job(running(progress={"metrics": figures[:1]}))) is None, "a trainer that does not say"


def test_all_attempts_are_told_by_the_phases_of_the_status() -> None:
    spent = time_in_phases(Job(running(**PHASES)), NOW_S)
    assert spent is not None
    assert spent.seconds == {
        "in the queue": 300,
        "preparing (running)": 600,
        "running": 2400 + 3570,
        "waiting to start": 325,
    }
    assert time_in_phases(Job(running()), NOW_S) is None, "an operator that does not count"
    ended = time_in_phases(Job(job(phase="Succeeded", phaseSince=NOON, phaseTimes=PHASES["phaseTimes"])), NOW_S + 9)
    assert ended is not None
    assert ended.total_s == 3625


def shown(document: dict[str, Any], *pods: dict[str, Any], log: tuple[str, ...] = (), **how: Any) -> str:
    what = Job(document)
    curve = losses(read_records(log, what), what.status.get("stage"))
    seen = StatusData(job=what, pods=read_pods(pods), losses=curve, spent=how.pop("spent", None), now_s=NOW_S)
    return "\n".join(show_status(seen, how.pop("ink", Ink()), **how)) + "\n"


def test_a_running_job_shows_its_stages_figures_and_failures(golden: Golden) -> None:
    log = tuple(progress(step, 9.0 - step / 100) for step in range(10, 410, 10))
    spent = spent_on(ATTEMPT, state={"running": {"startedAt": "2026-01-01T11:00:40Z"}})
    golden("plugin/status-running.txt", shown(running(**PHASES), log=log, spent=spent))


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
            "invalid", job(phase="Invalid", reason="SpecInvalid", message="spec.image: required"), id="invalid"
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
    kubectl.answer(
        "logs corpus-a3-launcher-x", says("\n".join(stamped((600, progress(10, 9.0)), (660, progress(20, 8.0)))))
    )
    assert bert("status", "corpus") == 0
    assert "from 9 at step 10, to step 20" in capsys.readouterr().out
    assert kubectl.calls()[1:] == [
        f"--namespace team {PODS} -o json",
        "--namespace team logs corpus-a3-launcher-x --container trainer --tail=4000 --timestamps",
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


PENDING = "/namespaces/team/localqueues/gpus/pendingworkloads"


def waiting(owner: str, place: int) -> dict[str, Any]:
    metadata = {"name": f"mpijob-{owner}", "ownerReferences": [{"kind": "MPIJob", "name": owner}]}
    return {"metadata": metadata, "positionInLocalQueue": place, "positionInClusterQueue": place + 4}


def test_a_job_of_another_controller_is_not_called_forgotten(
    bert: Callable[..., int], kubectl: KubectlStandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    kubectl.answer(GET, says(job(spec={"managedBy": "kueue.x-k8s.io/multikueue"})))
    kubectl.answer(PODS, items())
    assert bert("status", "corpus") == 0
    output = capsys.readouterr().out
    assert "  Elsewhere  " in output
    assert "ATTENTION" not in output
    assert "Whatever kueue.x-k8s.io/multikueue does with it (spec.managedBy)" in output


@pytest.mark.parametrize("served", ["v1beta2", "v1beta1"])
def test_a_queued_job_shows_how_many_are_before_it(
    bert: Callable[..., int], kubectl: KubectlStandIn, capsys: pytest.CaptureFixture[str], served: str
) -> None:
    kubectl.answer(GET, says(job(spec={"queueName": "gpus"}, phase="Queued", attempt=1)))
    kubectl.answer(PODS, items())
    # A job named corpus-a1 has children whose names begin with those of corpus.
    others = [waiting("corpus-a1-a1", 0), waiting("corpus-a2x", 1)]
    kubectl.answer(f"{served}{PENDING}", items(*others, waiting("corpus-a1", 2)))
    kubectl.answer("get --raw", refuses("NotFound", "the server could not find the requested resource"))
    assert bert("status", "corpus") == 0
    output = capsys.readouterr().out
    assert "Queue       gpus: 2 before it, 6 with those of other queues for the same quota\n" in output
    assert bert("status", "corpus", "-o", "json") == 0
    queue = json.loads(capsys.readouterr().out)["queue"]
    assert queue == {"name": "gpus", "before": 2, "beforeInCluster": 6}


def test_a_queue_that_may_not_be_looked_at_is_named_and_one_that_nobody_shows_is_not(
    bert: Callable[..., int], kubectl: KubectlStandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    kubectl.answer(GET, says(job(spec={"queueName": "gpus"}, phase="Queued", attempt=1)))
    kubectl.answer(PODS, items())
    absent = refuses("NotFound", "the server could not find the requested resource")
    kubectl.answer("get --raw", refuses("Forbidden", "may not"), absent, absent)
    assert bert("status", "corpus") == 0
    assert "Not shown   place in the queue: " in capsys.readouterr().out
    assert bert("status", "corpus") == 0
    shown_then = capsys.readouterr().out
    assert "Queue  " not in shown_then
    assert "Not shown" not in shown_then


def test_a_queue_that_the_profile_names_is_the_job_s(
    bert: Callable[..., int], kubectl: KubectlStandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    kubectl.answer(GET, says(job(phase="Queued", attempt=1)))
    kubectl.answer(PODS, items())
    metadata = {"ownerReferences": [{"uid": seen_jobs.UID}]}
    kubectl.answer("get configmaps", says({"metadata": metadata, "data": {"spec.json": '{"queueName": "gpus"}'}}))
    kubectl.answer(f"v1beta2{PENDING}", items(waiting("corpus-a1", 0)))
    assert bert("status", "corpus") == 0
    assert "Queue       gpus: 0 before it, 4 with" in capsys.readouterr().out


def test_no_queue_is_asked_about_a_job_that_is_in_none(bert: Callable[..., int], kubectl: KubectlStandIn) -> None:
    kubectl.answer(GET, says(job(spec={"queueName": "gpus"}, phase="Pending", attempt=1)), says(job(phase="Queued")))
    kubectl.answer(PODS, items())
    for _ in range(2):
        assert bert("status", "corpus") == 0
    assert not [call for call in kubectl.calls() if "--raw" in call]


def test_what_a_failure_has_to_say_keeps_its_lines() -> None:
    message = "rank 1 was killed by SIGKILL\nits newest line: step 25"
    failure = {"run": "training", "attempt": 1, "kind": "Infrastructure", "reason": "SIGKILL", "message": message}
    text = shown(job(phase="Running", attempt=2, failures=[failure]))
    assert "     rank 1 was killed by SIGKILL\n     its newest line: step 25\n" in text


@pytest.mark.parametrize(("runs", "head"), [({}, "attempt 3  "), ({"attemptRun": 2}, "attempt 3, run 2  ")])
def test_a_further_run_of_an_attempt_is_told_beside_its_number(runs: dict[str, int], head: str) -> None:
    document = running()
    document["status"] |= runs
    screen = show_status(StatusData(job=Job(document), now_s=NOW_S), Ink())
    assert head in screen[0]


PROXY = {"name": "istio-proxy", "state": {"running": {"startedAt": "2026-01-01T10:00:00Z"}}}
LOOPING = {"name": "vault-init", "state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}}
REFUSED = {"name": "vault-init", "state": {"terminated": {"exitCode": 7, "reason": "Error"}}}
TRAINER_REFUSED = {"name": "trainer", "state": {"terminated": {"exitCode": 2, "reason": "Error"}}}
TRAINER_WAITS = {"name": "trainer", "state": {"waiting": {"reason": "PodInitializing"}}}


@pytest.mark.parametrize(
    ("phase", "status", "has_started", "has_ended", "trouble"),
    [
        ("Running", {"containerStatuses": [PROXY, TRAINER_REFUSED]}, True, True, "Error (exit code 2)"),
        ("Pending", {"containerStatuses": [PROXY, TRAINER_WAITS]}, False, False, None),
        (
            "Pending",
            {"initContainerStatuses": [LOOPING], "containerStatuses": [TRAINER_WAITS]},
            False,
            False,
            "container vault-init: ImagePullBackOff: no such image",
        ),
        (
            "Failed",
            {"initContainerStatuses": [REFUSED], "containerStatuses": [TRAINER_WAITS]},
            False,
            True,
            "init container vault-init: Error (exit code 7)",
        ),
        (
            "Failed",
            {"reason": "OutOfcpu", "message": "Pod was rejected: no cpu"},
            False,
            True,
            "OutOfcpu: Pod was rejected: no cpu",
        ),
    ],
)
def test_a_pod_is_what_its_trainer_is_whatever_stands_beside_it(
    phase: str, status: dict[str, Any], has_started: bool, has_ended: bool, trouble: str | None
) -> None:
    document = pod("corpus-a3-x", phase=phase)
    document["status"] = {"phase": phase, **status}
    (read,) = read_pods([document])
    assert (read.has_started, read.has_ended, read.trouble) == (has_started, has_ended, trouble)
