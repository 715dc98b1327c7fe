"""What other people do to the objects of a running job: it goes on, is told of as it is, and is run once.

Observed: phase, attempt and failures while the child runs on, its end, and what is left once the job is deleted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from cluster_api import Api, wait_until
from cluster_jobs import Jobs
from kubelet import GROUP, FakeKubelet
from operator_process import OperatorProcess

pytestmark = pytest.mark.usefixtures("operator")
Json = dict[str, Any]
RESOURCES = {1: "batch/v1/jobs", 2: "kubeflow.org/v2beta1/mpijobs"}
JOB_LABEL = f"{GROUP}/job"


def remove_owner(api: Api, namespace: str, workers: int) -> None:
    change_child(api, namespace, workers, {"ownerReferences": None})


def overwrite_label(api: Api, namespace: str, workers: int) -> None:
    change_child(api, namespace, workers, {"labels": {JOB_LABEL: "another"}})


def overwrite_every_label(api: Api, namespace: str, workers: int) -> None:
    labels = {JOB_LABEL: "another", f"{GROUP}/attempt": "7", f"{GROUP}/run": "prepare"}
    change_child(api, namespace, workers, {"labels": labels})
    change_pods(api, namespace, labels)


def remove_label(api: Api, namespace: str, workers: int) -> None:
    change_child(api, namespace, workers, {"labels": {JOB_LABEL: None}})


def remove_every_label(api: Api, namespace: str, workers: int) -> None:
    change_child(api, namespace, workers, {"labels": {JOB_LABEL: None}})
    change_pods(api, namespace, {JOB_LABEL: None})


def change_child(api: Api, namespace: str, workers: int, metadata: Json) -> None:
    name = "bert-a1" if workers > 1 else "bert-a1-training"
    api.patch(RESOURCES[workers], name, {"metadata": metadata}, namespace).expect()


def change_pods(api: Api, namespace: str, labels: Json) -> None:
    for pod in api.list("v1/pods", namespace):
        api.patch("v1/pods", pod["metadata"]["name"], {"metadata": {"labels": labels}}, namespace).expect()


def count_children(api: Api) -> int:
    """Return how many there are in all namespaces: those of tests before may have objects that stay."""
    return sum(len(api.list(resource, labelSelector=JOB_LABEL)) for resource in RESOURCES.values())


def suspension(spec: Json) -> bool:
    return bool(spec.get("runPolicy", spec).get("suspend"))


CHANGES = (remove_owner, overwrite_label, overwrite_every_label, remove_label, remove_every_label)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("change", CHANGES)
def test_a_child_that_others_have_changed_runs_on_as_the_jobs_own(
    change: Callable[[Api, str, int], None],
    workers: int,
    api: Api,
    namespace: str,
    jobs: Jobs,
    operator: OperatorProcess,
) -> None:
    jobs.create("bert", workers=workers)
    with FakeKubelet(api, namespace) as kubelet:
        # By whatever attempt its labels say that it is.
        kubelet.fates = dict.fromkeys(range(10), None)
        jobs.wait_phase("bert", "Running")
        change(api, namespace, workers)
        operator.wait_resyncs(3)
        status = jobs.status("bert")
        assert (status["phase"], status["attempt"], status.get("failures", [])) == ("Running", 1, []), status
        kubelet.fates = {}
        status = jobs.wait_phase("bert", "Succeeded")
        assert (status["attempt"], status.get("failures", [])) == (1, [])
        jobs.delete("bert")
        wait_until(lambda: not api.list(RESOURCES[workers], namespace), "the child to go with its job")
        wait_until(lambda: not api.list("v1/pods", namespace), "its pods to go")


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("change", [overwrite_label, overwrite_every_label, remove_label, remove_every_label])
def test_a_child_that_others_have_changed_before_it_ran_is_the_jobs_own(
    change: Callable[[Api, str, int], None],
    workers: int,
    restarts: bool,
    api: Api,
    namespace: str,
    jobs: Jobs,
    operator: OperatorProcess,
) -> None:
    """The status names a child from its start on; until then it is known by its creation, or by its name again."""
    jobs.create("bert", workers=workers)
    name = "bert-a1" if workers > 1 else "bert-a1-training"
    wait_until(lambda: api.get(RESOURCES[workers], name, namespace).status == 200, "the child")
    wait_until(lambda: api.list("v1/pods", namespace), "its pods")
    change(api, namespace, workers)
    if restarts:
        operator.restart()
    operator.wait_resyncs(2)
    assert len(api.list(RESOURCES[workers], namespace)) == 1
    with FakeKubelet(api, namespace) as kubelet:
        kubelet.fates = dict.fromkeys(range(10), None)
        # Without their labels its pods are not seen, and their controller's count is.
        jobs.wait_phase("bert", "Running")
        kubelet.fates = dict.fromkeys(range(10), kubelet.succeed)
        status = jobs.wait_phase("bert", "Succeeded")
    assert (status["attempt"], status.get("failures", [])) == (1, []), status
    jobs.delete("bert")
    wait_until(lambda: not api.list(RESOURCES[workers], namespace), "the child to go with its job")
    wait_until(lambda: operator.figure('known_objects{kind="children"}') <= count_children(api), "no more to be known")


@pytest.mark.parametrize("workers", [1, 2])
def test_a_stop_finds_the_child_that_an_operator_before_created_and_others_have_changed(
    workers: int, api: Api, namespace: str, jobs: Jobs, operator: OperatorProcess
) -> None:
    """Until a child starts the status does not name it: one whose label is gone is known by its name alone."""
    jobs.create("bert", workers=workers)
    name = "bert-a1" if workers > 1 else "bert-a1-training"
    wait_until(lambda: api.list("v1/pods", namespace), "its pods")
    operator.kill()
    overwrite_label(api, namespace, workers)
    jobs.change("bert", runPolicy={"suspend": True}).expect()
    operator.start()
    jobs.wait_phase("bert", "Stopped")
    left = api.get(RESOURCES[workers], name, namespace)
    assert left.status == 404 or suspension(left.body["spec"]), left.body
