"""``submit``, ``export``, ``lint`` and ``render``."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from kubectl_stand_in import KubectlStandIn, changes, items, refuses, says
from sample_job import sample_document
from seen_jobs import job, running

Bert = Callable[..., int]
Json = dict[str, Any]
APPLIED = "bertpretrainjob.bert-operator.dev/corpus created\n"


@pytest.fixture
def manifest(tmp_path: Path) -> str:
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(sample_document()))
    return str(path)


def test_submit_applies_a_manifest_and_says_how_to_look_at_it(
    bert: Bert, kubectl: KubectlStandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    kubectl.answer("apply", says("secret/data configured\n" + APPLIED))
    kubectl.answer("get -f", items({"kind": "Secret"}, job()))
    assert bert("submit", "job.yaml", "-n", "team") == 0
    assert capsys.readouterr() == (
        "secret/data configured\n" + APPLIED,
        "kubectl bert status corpus -n team shows what becomes of it\n",
    )
    assert kubectl.calls() == ["--namespace team apply -f job.yaml", "--namespace team get -f job.yaml -o json"]


def test_a_manifest_on_standard_input_is_handed_on(
    bert: Bert, kubectl: KubectlStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("the manifest"))
    kubectl.answer("apply", says(APPLIED))
    kubectl.answer("get", says(job()))
    assert bert("submit", "-") == 0
    assert (kubectl.given("apply -f -"), kubectl.given("get -f -")) == ("the manifest", "the manifest")


def test_what_the_api_server_refuses_is_passed_on(
    bert: Bert, kubectl: KubectlStandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    kubectl.answer("apply", refuses("Invalid", 'BertPretrainJob "corpus" is invalid: spec.stages[0]: no'))
    assert bert("submit", "job.yaml") == 1
    assert capsys.readouterr() == (
        "",
        'kubectl apply -f job.yaml: Invalid: BertPretrainJob "corpus" is invalid: spec.stages[0]: no\n',
    )


def test_a_dry_run_on_the_server_keeps_nothing(bert: Bert, kubectl: KubectlStandIn) -> None:
    kubectl.answer("apply -f job.yaml --dry-run=server", says("corpus created (server dry run)\n"))
    assert bert("submit", "job.yaml", "--dry-run=server") == 0
    assert len(kubectl.calls()) == 1


def test_a_dry_run_on_the_client_asks_no_cluster(
    bert: Bert, kubectl: KubectlStandIn, manifest: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert bert("submit", manifest, "--dry-run=client") == 0
    assert capfd.readouterr().out.startswith("valid; ")
    assert bert("lint", manifest) == 2, "a cluster wants a volume"
    assert "spec.output.volume" in capfd.readouterr().err
    assert kubectl.calls() == []


def test_without_the_package_a_dry_run_on_the_client_says_what_to_install(
    bert: Bert, kubectl: KubectlStandIn, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python3")
    assert bert("submit", "job.yaml", "--dry-run=client") == 2
    remarks = capsys.readouterr().err
    assert "bert-operator is not installed" in remarks
    assert "pip install 'bert-pretrain-operator[operator]'" in remarks


def test_render_shows_what_the_operator_would_create_and_asks_no_cluster(
    bert: Bert, kubectl: KubectlStandIn, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    document = sample_document()
    document["spec"]["workers"] = 2
    document["spec"]["output"]["volume"] = {"persistentVolumeClaim": {"claimName": "results"}}
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(document))
    assert bert("render", str(path)) == 0
    shown = capfd.readouterr().out
    assert [item["kind"] for item in yaml.safe_load_all(shown)] == ["ConfigMap", "Job", "MPIJob"]
    assert "# once the run prepare has succeeded: stages" in shown
    settings = tmp_path / "settings.yaml"
    settings.write_text("defaultProfile: ours\nprofiles: {ours: {queueName: big}}\n")
    assert bert("render", str(path), "--settings", str(settings), "--show", "job") == 0
    assert yaml.safe_load(capfd.readouterr().out)["spec"]["queueName"] == "big"
    assert kubectl.calls() == []


def test_without_the_package_render_says_what_to_install(
    bert: Bert, kubectl: KubectlStandIn, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python3")
    assert bert("render", "job.yaml") == 2
    first, hint = capsys.readouterr().err.splitlines()
    assert first == "render: needs the rules of the job in Python, and bert-operator is not installed"
    assert "pip install" in hint


@pytest.mark.parametrize(
    ("answer", "code", "output", "remark"),
    [
        (says("", code=0), 0, "", "Nothing would change.\n"),
        (says("-a\n+b\n", code=1), 1, "-a\n+b\n", ""),
        (refuses("Forbidden", "no"), 1, "", "Forbidden: no"),
        (says("", errors="error: no diff program\n", code=2), 1, "", "no diff program"),
    ],
)
def test_a_difference_has_the_exit_codes_of_kubectl_diff(
    bert: Bert,
    kubectl: KubectlStandIn,
    capsys: pytest.CaptureFixture[str],
    answer: Json,
    code: int,
    output: str,
    remark: str,
) -> None:
    kubectl.answer("diff -f job.yaml", answer)
    assert bert("submit", "job.yaml", "--diff") == code
    told = capsys.readouterr()
    assert told.out == output
    assert remark in told.err


@pytest.mark.parametrize(("phase", "code"), [("Succeeded", 0), ("Failed", 1)])
def test_watch_ends_with_the_job(
    bert: Bert, kubectl: KubectlStandIn, capsys: pytest.CaptureFixture[str], phase: str, code: int
) -> None:
    ended = job(phase=phase, reason="Why", message="It is so.", attempt=3)
    kubectl.answer("apply", says(APPLIED))
    kubectl.answer_watch(
        "bertpretrainjobs.bert-operator.dev", "corpus", changes(("ADDED", running()), ("MODIFIED", ended), hangs=True)
    )
    kubectl.answer("get -f", says(job()))
    assert bert("submit", "job.yaml", "--watch") == code
    output, remarks = capsys.readouterr()
    assert output.splitlines()[-1].startswith(f"corpus {phase}  attempt 3")
    assert "corpus Running  attempt 3  phase1" in remarks


def test_a_file_without_a_job_is_no_success(
    bert: Bert, kubectl: KubectlStandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    kubectl.answer("apply", says("secret/data configured\n"))
    kubectl.answer("get -f", says({"kind": "Secret"}))
    assert bert("submit", "job.yaml") == 2
    assert "holds no BertPretrainJob" in capsys.readouterr().err


def test_an_export_can_be_applied_again(
    bert: Bert, kubectl: KubectlStandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    kubectl.answer("get", says(running()))
    assert bert("export", "corpus", "--as-name", "second") == 0
    text = capsys.readouterr().out
    expected = job("second")
    assert yaml.safe_load(text) == {
        "apiVersion": "bert-operator.dev/v1alpha1",
        "kind": "BertPretrainJob",
        "metadata": {"name": "second", "namespace": "team"},
        "spec": {**expected["spec"], "output": {**expected["spec"]["output"], "path": "runs/corpus"}},
    }
    assert text.splitlines()[:5] == [
        "apiVersion: bert-operator.dev/v1alpha1",
        "kind: BertPretrainJob",
        "metadata:",
        "  name: second",
        "  namespace: team",
    ]
    assert bert("export", "corpus", "-o", "json") == 0
    assert json.loads(capsys.readouterr().out)["metadata"]["name"] == "corpus"
