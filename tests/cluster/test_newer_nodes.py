"""Jobs whose pods ask for what only newer nodes have: user ids of their own, and data in an image.

Observed: that a job trains on data in an image where the node can do it, and what the condition Blocked says elsewhere.
The one-node cluster takes the containerd that is found first in PATH; Debian 12 has 1.6, which can do neither.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from job_cluster import USER, JobCluster, Json, Namespace
from real_jobs import DATA_JOB, RealJob, training_job

pytestmark = pytest.mark.timeout(400)
IMAGE = "bert-operator.test/data:1"
MAPPED = {"runAsUser": USER, "runAsGroup": USER, "fsGroup": USER, "hostUsers": False}


@pytest.fixture(scope="module")
def node_info(data: Namespace) -> Json:
    """The status of a node."""
    status: Json = data.list("nodes")[0]["status"]
    return status


def test_where_a_node_has_no_user_namespaces_the_job_says_so(data: Namespace, node_info: Json) -> None:
    handlers = node_info.get("runtimeHandlers") or []
    if any((handler.get("features") or {}).get("userNamespaces") for handler in handlers):
        pytest.skip("needs a node whose container runtime has no user namespaces, such as containerd 1.6")
    data.apply(training_job("mapped", securityContext=MAPPED))
    condition = blocked(RealJob(data, "mapped").wait(blocked, "the condition"))
    assert condition["reason"] == "UserNamespaceFailed"
    assert "apply it without securityContext.hostUsers" in condition["message"]
    data.kubectl("delete", "bpj", "mapped", "--wait=false")


def test_a_dataset_comes_in_an_image(cluster: JobCluster, data: Namespace, node_info: Json, tmp_path: Path) -> None:
    runtime, _, version = node_info["nodeInfo"]["containerRuntimeVersion"].partition("://")
    if cluster.node is None or runtime != "containerd" or tuple(map(int, version.lstrip("v").split(".")[:2])) < (2, 1):
        pytest.skip("needs the one-node cluster with containerd 2.1 or newer first in PATH")
    folder = cluster.node.folder / "volumes" / data.name / DATA_JOB
    (tmp_path / "Dockerfile").write_text("FROM scratch\nCOPY data /wiki\n")
    archive = tmp_path / "data.tar"
    environment = {**os.environ, "BUILDAH_ISOLATION": "chroot", "STORAGE_DRIVER": "overlay"}
    for words in (
        ["buildah", "build", "-q", "-t", IMAGE, "-f", str(tmp_path / "Dockerfile"), str(folder)],
        ["buildah", "push", "-q", IMAGE, f"docker-archive:{archive}:{IMAGE}"],
    ):
        subprocess.run(words, env=environment, check=True, capture_output=True)
    cluster.node.import_image(archive)
    data.apply(image_job("imaged", IMAGE))
    RealJob(data, "imaged").wait_phase("Succeeded")


def test_an_image_that_is_not_there_is_named(data: Namespace) -> None:
    data.apply(image_job("nowhere", "bert-operator.test/nothing:1"))
    condition = blocked(RealJob(data, "nowhere").wait(blocked, "the condition"))
    assert condition["reason"] == "ImagePullFailed"
    assert "bert-operator.test/nothing:1" in condition["message"]
    assert "image.reference" in condition["message"]
    data.kubectl("delete", "bpj", "nowhere", "--wait=false")


def image_job(name: str, reference: str) -> Json:
    """Return a short job in one pod whose dataset is an image."""
    image = {"reference": reference, "pullPolicy": "Never"}
    job = training_job(name, workers=1, dataset={"path": "wiki", "volume": {"image": image, "mountPath": "/mnt/data"}})
    for stage in job["spec"]["stages"][:2]:
        stage["pretrain"]["length"] = {"steps": 2}
    return job


def blocked(status: Json) -> Json:
    """Return the condition Blocked while it is true."""
    found = [item for item in status.get("conditions", ()) if (item["type"], item["status"]) == ("Blocked", "True")]
    return found[0] if found else {}
