"""The doctor on a real API server: objects as the server has them, and kubectl as people have it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bert_operator.api.crd import render_crd
from bert_operator.doctor.reading import FORBIDDEN, NO_ANSWER, NOT_FOUND, Refused
from bert_operator.plugin.kubectl import Kubectl
from bert_operator.plugin.kubectl_reader import KubectlReader
from control_plane import ControlPlane
from doctor_api import ApiCluster, ApiReader
from doctor_cluster import queue_definitions
from doctor_faults import ASKED_FOR, FURTHER, Fault
from doctor_trial import false_alarms, look, try_fault

KUBECTL = shutil.which("kubectl")
needs_kubectl = pytest.mark.skipif(KUBECTL is None, reason="requires kubectl")


def reader_of(bare: ControlPlane, *options: str) -> KubectlReader:
    """Return what asks kubectl as the administrator. options: of kubectl."""
    return KubectlReader(Kubectl(("--kubeconfig", str(bare.folder / "kubeconfig-admin"), *options)))


@pytest.fixture(scope="module")
def bare() -> Iterator[ControlPlane]:
    """An API server without controllers, which would put right what is planted."""
    with ControlPlane(start=(), definitions=[render_crd(), *queue_definitions()]) as running:
        yield running


@pytest.fixture(scope="module")
def cluster(bare: ControlPlane) -> ApiCluster:
    return ApiCluster(bare)


def test_a_healthy_cluster_has_no_finding(cluster: ApiCluster) -> None:
    report = look(ApiReader(cluster.api))
    assert false_alarms(report, set()) == ()
    assert report.exit_code == 0


@pytest.mark.parametrize("fault", [*ASKED_FOR, *FURTHER], ids=lambda fault: fault.words)
def test_a_fault_is_found_by_its_own_check_and_by_no_other(cluster: ApiCluster, fault: Fault) -> None:
    trial = try_fault(cluster, fault)
    assert trial.is_found, trial.said
    assert trial.false == ()


@needs_kubectl
def test_kubectl_shows_the_same(bare: ControlPlane, cluster: ApiCluster) -> None:
    reader = reader_of(bare)
    assert false_alarms(look(reader), set()) == ()
    (broken,) = [fault for fault in ASKED_FOR if fault.check == "settings"]
    trial = try_fault(cluster, broken, reader)
    assert trial.is_found
    assert trial.false == ()
    lines = [line for line in trial.said if "line 12" in line or "line 13" in line]
    assert lines, f"the line is that of the settings themselves: {trial.said}"


@needs_kubectl
def test_refusals_of_kubectl_are_told_apart(bare: ControlPlane) -> None:
    reader = reader_of(bare, "--as", "nobody")
    with pytest.raises(Refused) as refusal:
        reader.get("/api/v1/nodes?limit=500")
    assert refusal.value.status == FORBIDDEN
    with pytest.raises(Refused) as refusal:
        reader_of(bare).get("/apis/nowhere/v1/things")
    assert refusal.value.status == NOT_FOUND
    with pytest.raises(Refused) as refusal:
        KubectlReader(Kubectl(("--server", "https://127.0.0.1:1"))).get("/version")
    assert refusal.value.status == NO_ANSWER


@needs_kubectl
def test_who_may_do_nothing_is_told_so_and_nothing_is_called_well(bare: ControlPlane, cluster: ApiCluster) -> None:
    reader = reader_of(bare, "--as", "nobody")
    report = look(reader, pre=True)
    (rights,) = [outcome for outcome in report.outcomes if outcome.check == "rights"]
    (finding,) = rights.findings
    assert "create customresourcedefinitions.apiextensions.k8s.io" in finding.problem
    assert {"nodes", "in-the-way", "webhooks"} <= {outcome.check for outcome in report.unseen}


@needs_kubectl
def test_the_command_prints_the_report(
    bare: ControlPlane, cluster: ApiCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(bare.folder / "kubeconfig-admin"))
    command = [sys.executable, "-m", "bert_operator", "doctor"]
    answer = subprocess.run([*command, "--output", "json"], capture_output=True, text=True)
    assert (answer.returncode, answer.stderr) == (0, "")
    assert json.loads(answer.stdout)["findings"] == []
    monkeypatch.setenv("KUBECONFIG", str(Path("/nonexistent")))
    answer = subprocess.run(command, capture_output=True, text=True)
    assert answer.returncode == 1
    assert "the API server gave no answer" in answer.stderr
