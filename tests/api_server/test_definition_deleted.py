"""The definition is deleted and applied again under a running job: the operator goes on, and nothing runs twice.

A control plane of its own: the definition is that of every other test. Observed: jobs, children and pods, and what
the operator's watch delivers.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bert_operator.api.crd import render_crd
from cluster_api import Api, wait_until
from cluster_jobs import Jobs
from control_plane import ControlPlane, namespace_of
from kubelet import FakeKubelet
from operator_process import JOBS, OperatorProcess, install_operator

CRDS = "apiextensions.k8s.io/v1/customresourcedefinitions"
NAME = "bertpretrainjobs.bert-operator.dev"
DELIVERED = 'watch_events_total{kind="BertPretrainJob"}'


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with ControlPlane(tmp_path_factory.mktemp("own-control-plane"), definitions=[render_crd()]) as running:
        yield running


@pytest.fixture
def own_jobs(own: ControlPlane) -> Jobs:
    own.api.create(namespace_of("kept")).expect()
    wait_until(lambda: own.api.get("v1/serviceaccounts", "default", "kept").status == 200, "its ServiceAccount")
    return Jobs(own.api, "kept")


def delete_definition(api: Api) -> None:
    api.delete(CRDS, NAME).expect()
    wait_until(lambda: api.get(CRDS, NAME).status == 404, "the definition to be gone")


def delivers(operator: OperatorProcess, jobs: Jobs) -> bool:
    """Change the job, and tell whether the watch has delivered the change before the resyncs came to it."""
    before, turn = operator.figure(DELIVERED), str(operator.figure("last_sweep_timestamp_seconds"))
    jobs.api.patch(JOBS, "long", {"metadata": {"annotations": {"turn": turn}}}, jobs.namespace).expect()
    operator.wait_resyncs(1)
    return operator.figure(DELIVERED) > before


def test_a_deleted_definition_takes_its_jobs_along_and_comes_back(
    own: ControlPlane, own_jobs: Jobs, tmp_path_factory: pytest.TempPathFactory
) -> None:
    api, jobs = own.api, own_jobs
    config = own.kubeconfig(install_operator(own))
    with (
        OperatorProcess(tmp_path_factory.mktemp("operator"), config) as operator,
        FakeKubelet(api, "kept", {1: None}),
    ):
        jobs.create("long")
        jobs.wait_phase("long", "Running", attempt=1)
        (before,) = jobs.pods("long")

        delete_definition(api)
        # The jobs are gone with it, and with them what they own: the garbage collector sees to that.
        wait_until(lambda: not jobs.children("long"), "the job's child to be collected")

        api.apply_crd(render_crd())
        wait_until(lambda: jobs.api.get("bert-operator.dev/v1alpha1/bertpretrainjobs", "", "kept").status == 200, "")
        jobs.create("long")
        jobs.wait_phase("long", "Running", attempt=1)
        (after,) = jobs.pods("long")
        assert after["metadata"]["uid"] != before["metadata"]["uid"]
        assert jobs.child("long")["metadata"]["ownerReferences"][0]["uid"] == jobs.get("long")["metadata"]["uid"]
        # kopf gives up its watch where it asks while the kind is unknown, and the operator starts it again; where the
        # definition is back by then, it never notices. Either way it delivers what changes, not the resync alone.
        wait_until(lambda: delivers(operator, jobs), "the watch on jobs to deliver again")
        assert operator.is_ready()
