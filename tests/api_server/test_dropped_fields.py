"""What a cluster leaves out of pods is noticed before a pod is made, and said with what to do about it.

The API server stands in for an older release: it then has that release's feature gates.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from bert_operator.api.crd import render_crd
from bert_operator.cluster.dropped_fields import dry_runs, find_dropped
from child_cases import case_child
from cluster_api import Api, wait_until
from cluster_jobs import CLAIM, Jobs, condition
from control_plane import ControlPlane
from operator_process import OperatorProcess, install_operator

Json = dict[str, Any]
CASES = {
    "data-in-an-image": ("image of a volume", "ImageVolume", "1.35"),
    "devices-by-claims": ("resources.resourceClaims", "DynamicResourceAllocation", "1.34"),
    "root-of-a-user-namespace": ("securityContext.hostUsers", "UserNamespacesSupport", "1.33"),
}


class OlderControlPlane(ControlPlane):
    """One whose API server has the features of Kubernetes 1.33, user namespaces switched off."""

    def api_server_arguments(self) -> list[str]:
        return [
            *super().api_server_arguments(),
            "--emulated-version=1.33",
            "--feature-gates=UserNamespacesSupport=false,ProcMountType=false",
        ]


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    parts = ("etcd", "kube-apiserver")
    with OlderControlPlane(tmp_path_factory.mktemp("older"), parts, definitions=[render_crd()]) as running:
        running.install_mpi_operator()  # its definition is all that is needed
        yield running


def blocked_by(api: Api, child: Json) -> Iterator[str]:
    """Yield the messages about what an API server leaves out of a child."""
    for trial in dry_runs(child):
        answer = api.create(trial, "default", dry_run=True, field_validation="Warn").expect()
        if (blocker := find_dropped(trial, answer)) is not None:
            assert blocker.reason == "FieldDropped"
            yield blocker.message


@pytest.mark.parametrize("case", CASES)
def test_an_older_api_server_leaves_the_field_out_and_is_found_out(older: ControlPlane, case: str) -> None:
    field, gate, release = CASES[case]
    messages = list(blocked_by(older.api, case_child(case)))
    assert messages
    for message in messages:
        assert message.startswith(f"{field}: the API server drops it from the pods")
        assert f"have the feature gate {gate} switched on, which it is from Kubernetes {release} on" in message


@pytest.mark.parametrize("case", [*CASES, "user-namespaces"])
def test_a_current_one_keeps_them_all(api: Api, case: str) -> None:
    child = case_child(case)
    assert dry_runs(child)
    assert list(blocked_by(api, child)) == []


def test_a_definition_that_prunes_a_field_is_told_from_an_api_server_that_drops_it() -> None:
    child = case_child("data-in-an-image")
    sent = dry_runs(child)[0]
    answer = case_child("data-in-an-image")
    for replicas in answer["spec"]["mpiReplicaSpecs"].values():
        for volume in replicas["template"]["spec"]["volumes"]:
            volume.pop("image", None)
    blocker = find_dropped(sent, answer)
    assert blocker is not None
    assert blocker.message.startswith("image of a volume: mpi-operator's definition of MPIJob drops it")
    assert "v0.8.2 or newer" in blocker.message


def test_a_child_without_such_fields_costs_no_further_request() -> None:
    assert dry_runs(case_child("gpus-and-rdma")) == []


def test_no_pod_is_made_and_the_job_says_what_is_missing(
    older: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> None:
    api = older.api
    jobs = Jobs(api, "default")
    config = older.kubeconfig(install_operator(older))
    with OperatorProcess(tmp_path_factory.mktemp("operator"), config):
        jobs.create("bert", output={"path": "run", "volume": CLAIM}, securityContext={"hostUsers": False})
        status: Mapping[str, Any] = jobs.wait(
            "bert", lambda status: condition(status, "Blocked").get("reason") == "FieldDropped", "FieldDropped", 30
        )
        assert "securityContext.hostUsers: the API server drops it" in status["message"]
        wait_until(lambda: "FieldDropped" in jobs.events("bert"), "an Event FieldDropped")
    assert api.list("batch/v1/jobs", "default") == []
