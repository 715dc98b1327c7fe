"""``kubectl bert`` by the real kubectl on a real API server: what a stand-in for kubectl would not know.

Pods are played (``kubelet.py``), so there are no logs; those are in tests/plugin.
"""

from __future__ import annotations

import json
import shutil
import tarfile
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import pytest

from bert_operator.plugin.command_line import main
from cluster_api import Api, wait_until
from cluster_jobs import Jobs, job_document
from control_plane import ControlPlane
from kubelet import FakeKubelet

pytestmark = [
    pytest.mark.usefixtures("operator"),
    pytest.mark.skipif(shutil.which("kubectl") is None, reason="requires kubectl"),
]


class Answer(NamedTuple):
    """What a verb has said."""

    code: int
    output: str
    remarks: str


Bert = Callable[..., Answer]


@pytest.fixture
def bert(
    control_plane: ControlPlane, namespace: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Bert:
    """Run a verb in the namespace of the test."""
    monkeypatch.setenv("KUBECONFIG", str(control_plane.kubeconfig(control_plane.admin_token)))

    def run(*words: str) -> Answer:
        code = main([*words, "--namespace", namespace])
        return Answer(code, *capsys.readouterr())

    return run


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    """A job of two workers."""
    path = tmp_path / "job.json"
    path.write_text(json.dumps(job_document("bert", workers=2)))
    return path


def test_a_job_is_submitted_watched_paused_and_ended(
    api: Api, namespace: str, jobs: Jobs, bert: Bert, manifest: Path
) -> None:
    assert bert("submit", str(manifest), "--dry-run=server").output.endswith("created (server dry run)\n")
    assert jobs.is_gone("bert"), "a dry run"
    answer = bert("submit", str(manifest))
    assert answer.output == "bertpretrainjob.bert-operator.dev/bert created\n"
    assert answer.remarks == f"kubectl bert status bert -n {namespace} shows what becomes of it\n"
    with FakeKubelet(api, namespace, {1: None, 2: None}) as kubelet:
        assert bert("wait", "bert", "--for=running", "--timeout=90s").output == "bert Running  attempt 1\n"
        row = bert("list").output.splitlines()[1]
        assert row.split()[:2] == ["bert", "Running"]
        status = bert("status", "bert").output
        assert "· phase1  pretrain  waiting" in status
        assert "Not shown" in status, "no kubelet gives out a log"

        assert bert("suspend", "bert", "--wait", "--timeout=90s").code == 0
        assert jobs.status("bert")["phase"] == "Stopped"
        assert "PAUSED" in bert("status", "bert").output
        assert bert("wait", "bert", "--for=running", "--timeout=1").code == 4
        assert bert("resume", "bert", "--wait", "--timeout=90s").output.startswith(f"{namespace}/bert: resumed")
        assert jobs.status("bert")["attempt"] == 2

        tree = [line.split()[:2] for line in bert("tree", "bert").output.replace("─ ", "─").splitlines()[1:]]
        kinds = [words[0].strip("├─└│").partition("/")[0] for words in tree if "/" in words[0]]
        assert kinds[:4] == ["BertPretrainJob", "ConfigMap", "MPIJob", "Job"]
        kubelet.fates[2] = kubelet.succeed
        assert bert("wait", "bert", "--timeout=90s").output == "bert Succeeded  attempt 2\n"
        reasons = [line.split() for line in bert("events", "bert").output.splitlines()[1:]]
        told = {word for words in reasons for word in words}
        assert {"AttemptStarted", "StoppedOnRequest", "AllStagesDone", "BertPretrainJob/bert", "MPIJob/bert-a2"} <= told
        answer = bert("suspend", "bert")
        assert (answer.code, "has ended as Succeeded" in answer.remarks) == (2, True)
        # Pods that were bound wait for their kubelet, and the job for them.
        assert (
            bert("delete", "bert").output == f"{namespace}/bert: deleted; its files stay in claim results, runs/bert\n"
        )
    assert bert("status", "bert").code == 3


def test_a_tree_has_the_launcher_s_pod_below_its_job(api: Api, namespace: str, jobs: Jobs, bert: Bert) -> None:
    jobs.create("bert", workers=2)
    with FakeKubelet(api, namespace, {1: None}):
        jobs.wait_phase("bert", "Running")
        lines = bert("tree", "bert").output.splitlines()
    objects = [line.partition("   ")[0] if not line.startswith("   ") else line for line in lines[1:]]
    shape = [(text.index(text.strip("├─└│ ")[0]), text.strip("├─└│ ").partition("/")[0]) for text in objects]
    assert shape == [
        (0, "BertPretrainJob"),
        (3, "ConfigMap"),
        (3, "MPIJob"),
        (6, "Job"),
        (9, "Pod"),
        (6, "Pod"),
        (6, "Pod"),
    ]


def test_a_failed_job_is_started_again_and_resumes(api: Api, namespace: str, jobs: Jobs, bert: Bert) -> None:
    jobs.create("bert", runPolicy={"applicationRetries": 0})
    before = jobs.get("bert")["metadata"]["uid"]
    with FakeKubelet(api, namespace) as kubelet:
        kubelet.fates[1] = kubelet.failing(1, "no such file: corpus")
        answer = bert("wait", "bert", "--for=succeeded", "--timeout=90s")
        assert (answer.code, "bert has ended as Failed" in answer.remarks) == (1, True)
        assert "no such file: corpus" in " ".join(bert("status", "bert").output.split())
        kubelet.fates[1] = None
        answer = bert("retry", "bert")
        assert answer.code == 0, answer.remarks
        jobs.wait_phase("bert", "Running")
    after = jobs.get("bert")
    assert after["metadata"]["uid"] != before
    assert after["spec"]["output"]["ifExists"] == "Resume"


def test_an_export_changes_nothing_when_it_is_applied(jobs: Jobs, bert: Bert, tmp_path: Path) -> None:
    jobs.create("bert")
    path = tmp_path / "exported.yaml"
    path.write_text(bert("export", "bert").output)
    answer = bert("submit", str(path), "--diff")
    assert "runPolicy" not in answer.output
    assert "spec:" not in answer.output, "annotations of kubectl apply are the only difference"
    document = json.loads(bert("export", "bert", "-o", "json").output)
    assert set(document) == {"apiVersion", "kind", "metadata", "spec"}
    assert set(document["metadata"]) == {"name", "namespace"}


def test_a_wrong_manifest_is_refused_with_the_server_s_words(bert: Bert, tmp_path: Path) -> None:
    path = tmp_path / "job.json"
    document = job_document("bert", precision="fp8")
    path.write_text(json.dumps(document))
    for words in ((), ("--dry-run=server",)):
        answer = bert("submit", str(path), *words)
        assert (answer.code, answer.output) == (1, "")
        assert "spec.precision" in answer.remarks


def test_a_missing_right_is_named(jobs: Jobs, bert: Bert) -> None:
    jobs.create("bert")
    for words in (("list",), ("status", "bert"), ("suspend", "bert"), ("events", "bert")):
        answer = bert(*words, "--as", "nobody")
        assert answer.code == 1
        assert "Forbidden" in answer.remarks
        assert "hint: ask whoever runs the cluster" in answer.remarks


def test_what_a_job_costs_and_its_bundle_are_read_from_its_own_objects(
    api: Api, namespace: str, jobs: Jobs, bert: Bert, tmp_path: Path
) -> None:
    jobs.create("bert", workers=2, resources={"cpu": 4, "memory": "8Gi"}, env=[{"name": "TOKEN", "value": "hunter2"}])
    with FakeKubelet(api, namespace, {1: None, 2: None}) as kubelet:
        jobs.wait_phase("bert", "Running")
        assert bert("suspend", "bert", "--wait", "--timeout=90s").code == 0
        assert bert("resume", "bert", "--wait", "--timeout=90s").code == 0
        kubelet.fates[2] = kubelet.succeed
        assert bert("wait", "bert", "--timeout=90s").code == 0
        status = jobs.status("bert")
        counted = {(item["phase"], item.get("run")) for item in status["phaseTimes"]}
        assert {phase for phase, _ in counted} <= {"Pending", "Running", "Stopping", "Stopped"}
        took_s = sum(item["seconds"] for item in status["phaseTimes"])
        since, created = (datetime.fromisoformat(status[name]) for name in ("phaseSince", "startTime"))
        assert (since - created).total_seconds() <= took_s + 1
        told = json.loads(bert("cost", "bert", "-o", "json").output)
        assert not any("frozen configuration" in sentence for sentence in told["notKnown"])
        running_s = sum(item["seconds"] for item in status["phaseTimes"] if item["phase"] in ("Running", "Stopping"))
        assert told["expectedHours"] == told["hours"]
        assert told["hours"].get("cpu", 0.0) == pytest.approx(running_s * 9 / 3600, abs=1e-3)
        assert "In all" in bert("status", "bert").output

        path = tmp_path / "bert.tar.gz"
        answer = bert("collect", "bert", "--output", str(path))
        assert answer.code == 0, answer.remarks
    with tarfile.open(path, "r:gz") as files:
        content = {name: files.extractfile(name).read().decode() for name in files.getnames()}  # type: ignore[union-attr]
    held = "".join(content.values())
    assert not [word for word in ("hunter2", "TOKEN", namespace, "bert-a1", "runs/bert", "example.com") if word in held]
    assert json.loads(content["support/job.json"])["status"]["phase"] == "Succeeded"
    reasons = {event["reason"] for event in json.loads(content["support/events.json"])}
    assert {"AttemptStarted", "AllStagesDone"} & reasons
    assert json.loads(content["support/pods.json"])[0]["metadata"]["name"].startswith("pod-")


def test_a_namespace_without_jobs_and_a_job_that_is_deleted_while_it_is_waited_for(
    api: Api, namespace: str, jobs: Jobs, bert: Bert
) -> None:
    assert bert("list").remarks == f"No BertPretrainJobs in namespace {namespace}.\n"
    assert bert("wait", "bert", "--for=deleted").code == 0
    jobs.create("bert")
    wait_until(lambda: jobs.status("bert"), "a status")
    jobs.delete("bert")
    assert bert("wait", "bert", "--for=deleted", "--timeout=60s").output == "bert: deleted\n"


def test_a_dry_run_of_verbs_that_change_is_kept_by_nobody(jobs: Jobs, bert: Bert) -> None:
    for name in ("first", "second"):
        jobs.create(name)
    assert bert("list", "-o", "jsonpath={.items[*].metadata.name}").output == "first second\n"
    before = {name: jobs.get(name)["metadata"]["generation"] for name in ("first", "second")}
    for verb in ("suspend", "delete"):
        answer = bert(verb, "--all", "--dry-run=server")
        assert (answer.code, answer.output.count(" (server dry run)\n")) == (0, 2), answer
    assert {name: jobs.get(name)["metadata"]["generation"] for name in before} == before
    assert bert("delete", "--all").output.count(": deleted; ") == 2
    assert jobs.is_gone("first")
