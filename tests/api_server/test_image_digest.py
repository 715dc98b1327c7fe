"""A started job keeps the image that its tag stood for at first, whatever the tag stands for at later attempts."""

from __future__ import annotations

from typing import Any

import pytest

from cluster_api import Api, wait_until
from cluster_jobs import IMAGE, Jobs
from kubelet import FakeKubelet
from operator_process import OperatorProcess

Json = dict[str, Any]

NAME = IMAGE.rpartition(":")[0]
FIRST, MOVED = (f"{NAME}@sha256:{digit * 64}" for digit in "ab")


def images_of(child: Json) -> list[str]:
    """Return the images of a child's pods."""
    spec = child["spec"]
    templates = [spec["template"]] if child["kind"] == "Job" else [
        replicas["template"] for replicas in spec["mpiReplicaSpecs"].values()
    ]  # fmt: skip
    return [container["image"] for template in templates for container in template["spec"]["containers"]]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_moved_tag_changes_nothing_in_a_started_job(
    workers: int, api: Api, namespace: str, jobs: Jobs, operator: OperatorProcess
) -> None:
    with FakeKubelet(api, namespace, {1: None, 2: None}) as kubelet:
        kubelet.digests[IMAGE] = FIRST
        jobs.create("bert", workers=workers)
        jobs.wait_phase("bert", "Running")
        assert set(images_of(jobs.child("bert"))) == {IMAGE}
        assert jobs.status("bert")["image"] == FIRST
        # Somebody pushes another image under the tag, and nodes pull it.
        kubelet.digests[IMAGE] = MOVED
        operator.restart()
        kubelet.fates[1] = kubelet.failing(137, signal=9)
        jobs.wait_phase("bert", "Running", attempt=2)
        assert images_of(jobs.child("bert")) == [FIRST] * (1 if workers == 1 else 2)
        assert jobs.status("bert")["image"] == FIRST
        kubelet.fates[2] = kubelet.succeed
        jobs.wait_phase("bert", "Succeeded")
        # Applied again it is a new job, which takes what the tag stands for now.
        jobs.delete("bert")
        kubelet.fates.clear()
        wait_until(lambda: not jobs.children("bert"), "its children to go")
        jobs.create("bert", workers=workers)
        jobs.wait_phase("bert", "Succeeded")
        assert jobs.status("bert")["image"] == MOVED


def test_training_runs_what_prepared_its_data(api: Api, namespace: str, jobs: Jobs, operator: OperatorProcess) -> None:
    with FakeKubelet(api, namespace, {2: None}) as kubelet:
        kubelet.digests[IMAGE] = FIRST
        jobs.create("bert", prepare=True)
        jobs.wait_phase("bert", "Running", attempt=2)
        (prepare, training) = jobs.children("bert")
        assert (images_of(prepare), images_of(training)) == ([IMAGE], [FIRST])


@pytest.mark.parametrize("image_id", [f"sha256:{'c' * 64}", f"docker.io/library/import-1@sha256:{'c' * 64}"])
def test_an_image_that_was_loaded_into_the_node_keeps_its_tag(
    image_id: str, api: Api, namespace: str, jobs: Jobs, operator: OperatorProcess
) -> None:
    with FakeKubelet(api, namespace, {1: None, 2: None}) as kubelet:
        kubelet.digests[IMAGE] = image_id
        jobs.create("bert")
        jobs.wait_phase("bert", "Running")
        kubelet.fates[1] = kubelet.failing(137, signal=9)
        jobs.wait_phase("bert", "Running", attempt=2)
        assert images_of(jobs.child("bert")) == [IMAGE]
        assert "image" not in jobs.status("bert")
