"""``bert_operator.client``: the verbs as methods."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from bert_operator.client import ApiRefused, Client, NoSuchObject, Unreachable, WaitTimeout
from bert_operator.errors import DocumentError, InputError
from kubectl_stand_in import KubectlStandIn, changes, items, refuses, says
from seen_jobs import job, pod, progress, record, running

Json = dict[str, Any]
GET = "get bertpretrainjobs.bert-operator.dev"


def test_options_lead_to_the_cluster(kubectl: KubectlStandIn) -> None:
    kubectl.answer(GET, items(running()))
    (found,) = Client("team", context="far", kubeconfig="/some/file").jobs()
    assert (found.name, found.phase, found.stages()[1].state) == ("corpus", "Running", "current")
    assert kubectl.calls() == [f"--context far --kubeconfig /some/file --namespace team {GET} -o json"]


def test_jobs_are_chosen_as_by_list(kubectl: KubectlStandIn) -> None:
    kubectl.answer(GET, items(running()))
    Client("team").jobs(selector="team=a", everywhere=True)
    assert kubectl.calls() == [f"{GET} --selector team=a --all-namespaces -o json"]


def test_events_have_types(kubectl: KubectlStandIn) -> None:
    kubectl.answer(GET, says(running()))
    about = {"kind": "Pod", "name": "corpus-a3-launcher-x"}
    said = {"reason": "BackOff", "type": "Warning", "lastTimestamp": "2026-01-01T11:30:00Z", "count": 2}
    kubectl.answer("get events", items({**said, "involvedObject": about, "message": "Back-off"}))
    (event,) = Client().events("corpus")
    assert (event.object, event.reason, event.type, event.times) == (
        "Pod/corpus-a3-launcher-x",
        "BackOff",
        "Warning",
        2,
    )
    assert event.last_seen_s == datetime(2026, 1, 1, 11, 30, tzinfo=UTC).timestamp()
    assert event.message == "Back-off"


def test_a_log_is_what_is_there_now(kubectl: KubectlStandIn) -> None:
    kubectl.answer(GET, says(running()))
    kubectl.answer("get pods", items(pod("corpus-a3-launcher-x")))
    kubectl.answer("get pod corpus-a3", says("Running"))
    kubectl.answer("logs", says("2026-01-01T12:00:00.1Z [0] one\n2026-01-01T12:00:00.2Z [1] two\n"))
    assert Client().logs("corpus", rank=1, tail=10) == ["two"]
    (asked,) = [call for call in kubectl.calls() if " logs " in f" {call}"]
    assert "--tail=10" in asked
    assert "--follow" not in asked


def test_a_document_or_a_file_is_submitted(kubectl: KubectlStandIn) -> None:
    kubectl.answer("apply", says(job()))
    assert Client().submit({"kind": "BertPretrainJob"}).name == "corpus"
    assert json.loads(kubectl.given("apply -f -")) == {"kind": "BertPretrainJob"}
    assert Client().submit("job.yaml").name == "corpus"
    assert kubectl.calls()[-1] == "apply -f job.yaml -o json"


def test_a_file_with_two_jobs_has_no_answer(kubectl: KubectlStandIn) -> None:
    kubectl.answer("apply", items(job(), job("second")))
    with pytest.raises(DocumentError, match="got 2 BertPretrainJobs"):
        Client().submit("jobs.yaml")


def test_metrics_are_rows_of_the_logs_that_are_there(kubectl: KubectlStandIn) -> None:
    kubectl.answer(GET, says(running()))
    prepare, launcher = (
        pod("corpus-a1-prepare-x", attempt=1, role="single", phase="Succeeded"),
        pod("corpus-a3-launcher-x"),
    )
    kubectl.answer("get pods", items(launcher, prepare, pod("corpus-a3-worker-0", role="worker")))
    kubectl.answer("logs corpus-a1", says(record("progress", attempt=1, stage="prepare", step=1, steps=2)))
    kubectl.answer(
        "logs corpus-a3",
        says(f"{progress(10, 9.5)}\nnoise\n{record('alive')}\n{progress(20, 8.5, slow_rank_host='x')}"),
    )
    assert Client().metrics("corpus") == [
        {"attempt": 1, "stage": "prepare", "step": 1.0, "steps": 2.0},
        {"attempt": 3, "stage": "phase1", "step": 10.0, "steps": 700.0, "loss": 9.5},
        {"attempt": 3, "stage": "phase1", "step": 20.0, "steps": 700.0, "loss": 8.5},
    ]


def test_follow_yields_lines(kubectl: KubectlStandIn) -> None:
    kubectl.answer(GET, says(running()), says(job(phase="Succeeded")))
    kubectl.answer("get pods", items(pod("corpus-a3-launcher-x")))
    kubectl.answer("get pod corpus-a3", says("Succeeded"))
    kubectl.answer("logs", says("2026-01-01T12:00:00.1Z one\n2026-01-01T12:00:00.2Z two\n"))
    assert list(Client().follow("corpus")) == ["one", "two"]


def test_waiting_ends_with_a_job_or_an_error(kubectl: KubectlStandIn) -> None:
    seen: list[str] = []
    ended = job(phase="Failed", reason="InvalidInput")
    kubectl.answer_watch(
        "bertpretrainjobs.bert-operator.dev", "corpus", changes(("ADDED", running()), ("MODIFIED", ended), hangs=True)
    )
    found = Client().wait("corpus", tell=lambda job: seen.append(job.phase))
    assert found is not None
    assert (found.phase, seen) == ("Failed", ["Running", "Failed"])
    with pytest.raises(Unreachable):
        Client().wait("corpus", "succeeded")


def test_waiting_has_a_limit(kubectl: KubectlStandIn) -> None:
    kubectl.answer_watch("bertpretrainjobs.bert-operator.dev", "corpus", changes(("ADDED", running()), hangs=True))
    with pytest.raises(WaitTimeout):
        Client().wait("corpus", timeout_s=0.1)


@pytest.mark.parametrize(
    "act",
    [
        lambda client: client.suspend("corpus"),
        lambda client: client.resume("corpus"),
        lambda client: client.retry("corpus"),
        lambda client: client.delete("corpus"),
        lambda client: client.get("corpus"),
        lambda client: client.metrics("corpus"),
        lambda client: next(client.follow("corpus")),
        lambda client: client.logs("corpus"),
        lambda client: client.events("corpus"),
    ],
)
def test_a_job_that_is_not_there_is_one_kind_of_error(kubectl: KubectlStandIn, act: Callable[[Client], object]) -> None:
    kubectl.answer(GET, refuses("NotFound", "not found"))
    with pytest.raises(NoSuchObject) as caught:
        act(Client())
    assert isinstance(caught.value, ApiRefused)
    assert caught.value.status == 404


def test_a_name_is_never_an_option(kubectl: KubectlStandIn) -> None:
    for act in (
        Client().get,
        Client().delete,
        Client().suspend,
        Client().wait,
        lambda name: list(Client().follow(name)),
    ):
        with pytest.raises(InputError, match="for the name of a job"):
            act("--kubeconfig=/shared/evil.yaml")
    assert kubectl.calls() == []
