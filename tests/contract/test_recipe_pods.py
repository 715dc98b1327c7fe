"""The recipes' jobs as pods: how many, with how many ranks, what these ask their nodes for, find, and run as.

Each job is rendered as the operator of the overlay renders it. Numbers of training: ``test_recipes``.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from bert_trainer.dataset.build.recipes import NAMES
from child_cases import Document, container, templates
from examples import Rendered, read_example, render, settings_of

MALLOC_CONF = (
    "oversize_threshold:1,background_thread:true,metadata_thp:auto,dirty_decay_ms:9000000000,muzzy_decay_ms:9000000000"
)
# What Intel's guide exports and its launcher sets; the newest instructions that bf16 and fp32 use.
XEON = {
    "BERT_ALLOCATOR": "jemalloc",
    "MALLOC_CONF": MALLOC_CONF,
    "BERT_OPENMP": "intel",
    "KMP_BLOCKTIME": "1",
    "DNNL_MAX_CPU_ISA": "AVX512_CORE_AMX",
}
BOUND = XEON | {"KMP_AFFINITY": "granularity=fine,compact,1,0"}
INFINIBAND = {"NCCL_IB_HCA": "mlx5", "NCCL_IB_PCI_RELAXED_ORDERING": "1", "NCCL_SOCKET_IFNAME": "eth0"}
# The cores of a socket are the overlay's, which administrators edit; a rank on a whole node says them itself.
NODE = settings_of("xeon-nfs").profiles["xeon-nfs"]["cpu"]
CORES, THREADS = NODE["coresPerRank"], NODE.get("threadsPerCore", 1)
NUMA_NODE = settings_of("xeon-nfs").profiles["xeon-numa-nfs"]["cpu"]
NUMA_CORES = NUMA_NODE["coresPerRank"]
BY_NUMA_NODE = f"--bind numa --ranks-per-place 1 --cores-per-rank {NUMA_CORES}"
BY_SOCKET = f"--bind socket --ranks-per-place 1 --cores-per-rank {CORES}"
BY_NODE = "--bind core --ranks-per-place 1 --cores-per-rank 54"
ON_CLAIM = {"/mnt/bert": ("bert", False), "/mnt/data": ("bert", True)}


@dataclass(frozen=True)
class Pods:
    """The pods that run ranks, as the recipe and the overlay have them."""

    pods: int
    ranks: int
    """Of each pod."""
    limits: dict[str, str]
    environment: dict[str, str]
    bound: str = ""
    """Where the launcher binds ranks; empty: nowhere."""
    mounts: dict[str, tuple[str, bool]] = field(default_factory=lambda: ON_CLAIM)
    """Claim, and whether it is read-only, by folder."""
    user: tuple[int, int, int] = (54321, 54321, 54321)
    groups: tuple[int, ...] = ()


GPU_NFS = {"cpu": "64", "memory": "400Gi", "nvidia.com/gpu": "8"}
ND_SERIES = {"cpu": "88", "memory": "800Gi", "nvidia.com/gpu": "8", "rdma/shared_ib": "1"}
BLOB = {"cpu": "48", "memory": "300Gi", "ephemeral-storage": "200Gi", "nvidia.com/gpu": "4"}
TWO_SOCKETS = {"cpu": str(2 * CORES * THREADS), "memory": "200Gi"}
ON_SOCKET = BOUND | {"OMP_NUM_THREADS": str(CORES)}
FOUR_NUMA_NODES = {"cpu": str(4 * NUMA_CORES * NUMA_NODE.get("threadsPerCore", 1)), "memory": "200Gi"}
WHOLE_NODE = {"cpu": str(54 * THREADS), "memory": "200Gi"}
TF_MOUNTS = {"/tmp/output": ("bert", False), "/tf_dataset": ("bert", True)}
NCCL = {"NCCL_SOCKET_IFNAME": "eth0"}

RECIPES = {
    ("10-nvidia/8-gpus", "gpu-nfs"): Pods(1, 8, GPU_NFS, NCCL),
    ("10-nvidia/8-gpus", "azure-infiniband"): Pods(1, 8, ND_SERIES, INFINIBAND),
    ("10-nvidia/16-gpus", "gpu-nfs"): Pods(2, 8, GPU_NFS, NCCL),
    ("10-nvidia/16-gpus", "azure-infiniband"): Pods(2, 8, ND_SERIES, INFINIBAND),
    ("10-nvidia/v2-8-gpus", "gpu-nfs"): Pods(1, 8, GPU_NFS, NCCL),
    ("10-nvidia/v2-16-gpus", "gpu-nfs"): Pods(2, 8, GPU_NFS, NCCL),
    ("11-onnx-runtime", "azure-blob"): Pods(
        *(1, 4, BLOB, NCCL), mounts={"/mnt/bert": ("bert", False), "/mnt/data": ("bert-data", True)}
    ),
    ("12-intel-pytorch/8-nodes-1-rank", "xeon-nfs"): Pods(8, 1, WHOLE_NODE, BOUND | {"OMP_NUM_THREADS": "54"}, BY_NODE),
    ("12-intel-pytorch/8-nodes-2-ranks", "xeon-nfs"): Pods(8, 2, TWO_SOCKETS, ON_SOCKET, BY_SOCKET),
    ("12-intel-pytorch/8-nodes-4-ranks", "xeon-nfs"): Pods(
        8, 4, FOUR_NUMA_NODES, BOUND | {"OMP_NUM_THREADS": str(NUMA_CORES)}, BY_NUMA_NODE
    ),
    ("12-intel-pytorch/16-nodes-1-rank", "xeon-nfs"): Pods(
        16, 1, WHOLE_NODE, BOUND | {"OMP_NUM_THREADS": "54"}, BY_NODE
    ),
    ("12-intel-pytorch/16-nodes-2-ranks", "xeon-nfs"): Pods(16, 2, TWO_SOCKETS, ON_SOCKET, BY_SOCKET),
    ("12-intel-pytorch/phase2", "xeon-nfs"): Pods(8, 2, TWO_SOCKETS, ON_SOCKET, BY_SOCKET),
    ("13-mlperf", "gpu-nfs"): Pods(1, 8, GPU_NFS, NCCL),
    ("14-intel-mrpc", "xeon-nfs"): Pods(1, 2, TWO_SOCKETS, ON_SOCKET, BY_SOCKET),
    ("14-intel-mrpc/fp32-single-node", "xeon-nfs"): Pods(
        1, 1, WHOLE_NODE, BOUND | {"OMP_NUM_THREADS": "54"}, BY_NODE, mounts=TF_MOUNTS
    ),
    ("14-intel-mrpc/fp32-multi-node", "xeon-nfs"): Pods(
        2, 1, WHOLE_NODE, XEON | {"OMP_NUM_THREADS": "54"}, mounts=TF_MOUNTS
    ),
    ("15-squad", "xeon-nfs"): Pods(1, 2, TWO_SOCKETS, ON_SOCKET, BY_SOCKET),
    ("16-azure-cola/large", "azure-infiniband"): Pods(2, 8, ND_SERIES, INFINIBAND),
    ("16-azure-cola/base", "azure-infiniband"): Pods(2, 8, ND_SERIES, INFINIBAND),
    ("16-azure-cola/distilbert", "azure-infiniband"): Pods(2, 8, ND_SERIES, INFINIBAND),
    ("16-azure-cola/large-vanilla", "azure-infiniband"): Pods(2, 8, ND_SERIES, INFINIBAND),
    ("16-azure-cola/base-vanilla", "azure-infiniband"): Pods(2, 8, ND_SERIES, INFINIBAND),
    ("16-azure-cola/distilbert-vanilla", "azure-infiniband"): Pods(2, 8, ND_SERIES, INFINIBAND),
    ("17-intel-tensorflow/single-node", "xeon-nfs"): Pods(
        *(1, 2, TWO_SOCKETS, ON_SOCKET, BY_SOCKET), mounts=TF_MOUNTS, groups=(54400,)
    ),
    # mpirun -bind-to none in the recipe.
    ("17-intel-tensorflow/multi-node", "xeon-nfs"): Pods(
        *(2, 1, WHOLE_NODE, XEON | {"OMP_NUM_THREADS": "54"}), mounts=TF_MOUNTS, groups=(54400,)
    ),
}

PAIRS = pytest.mark.parametrize(("example", "overlay"), RECIPES)


def training(example: str, overlay: str) -> tuple[Rendered, Document]:
    rendered = render(read_example(example), overlay)
    return rendered, rendered.children[-1]


def of_ranks(child: Document) -> Document:
    """Return the template of the pods that run ranks."""
    return next(template for role, template in templates(child) if role != "launcher")


def option(words: list[str], name: str) -> str:
    return words[words.index(name) + 1]


@PAIRS
def test_pods_and_ranks_are_the_recipe_s(example: str, overlay: str) -> None:
    wanted = RECIPES[example, overlay]
    _, child = training(example, overlay)
    launching = container(next(template for _, template in templates(child)))["args"]
    assert option(launching, "--ranks") == str(wanted.pods * wanted.ranks)
    if wanted.pods == 1:
        assert child["kind"] == "Job"
        return
    assert child["kind"] == "MPIJob"
    assert child["spec"]["slotsPerWorker"] == wanted.ranks
    assert child["spec"]["mpiReplicaSpecs"]["Worker"]["replicas"] == wanted.pods


@PAIRS
def test_nodes_are_asked_for_what_the_ranks_use(example: str, overlay: str) -> None:
    wanted = RECIPES[example, overlay]
    _, child = training(example, overlay)
    asked = container(of_ranks(child))["resources"]
    assert asked["limits"] == wanted.limits
    assert asked["requests"] == wanted.limits


@PAIRS
def test_ranks_are_bound_and_find_their_environment(example: str, overlay: str) -> None:
    wanted = RECIPES[example, overlay]
    _, child = training(example, overlay)
    found = {entry["name"]: entry["value"] for entry in container(of_ranks(child))["env"]}
    assert wanted.environment.items() <= found.items()
    assert ("KMP_AFFINITY" in found) == bool(wanted.bound)
    launching = " ".join(container(next(template for _, template in templates(child)))["args"])
    assert ("--bind" in launching) == bool(wanted.bound)
    assert wanted.bound in launching


@PAIRS
def test_data_is_read_only_and_files_belong_to_the_user(example: str, overlay: str) -> None:
    wanted = RECIPES[example, overlay]
    _, child = training(example, overlay)
    pod: Any = of_ranks(child)["spec"]
    claims = {
        volume["name"]: volume["persistentVolumeClaim"]["claimName"]
        for volume in pod["volumes"]
        if "persistentVolumeClaim" in volume
    }
    mounted = {
        mount["mountPath"]: (claims[mount["name"]], mount.get("readOnly", False))
        for mount in pod["containers"][0]["volumeMounts"]
        if mount["name"] in claims
    }
    assert mounted == wanted.mounts
    for _, template in templates(child):
        security = template["spec"]["securityContext"]
        assert (security["runAsUser"], security["runAsGroup"], security["fsGroup"]) == wanted.user
        assert tuple(security.get("supplementalGroups", ())) == wanted.groups


def texts(document: Any) -> Iterator[str]:
    if isinstance(document, str):
        yield document
    elif isinstance(document, dict | list):
        for item in document.values() if isinstance(document, dict) else document:
            yield from texts(item)


@PAIRS
def test_every_path_of_a_job_is_on_one_of_its_mounts(example: str, overlay: str) -> None:
    wanted = RECIPES[example, overlay]
    rendered, _ = training(example, overlay)
    run_config = json.loads(rendered.config_map["data"]["run-config.json"])
    paths = {text for text in texts(run_config) if text.startswith("/")}
    assert {run_config["output_folder"], run_config["dataset"]["folder"]} <= paths
    assert all(any(path.startswith(f"{mount}/") for mount in wanted.mounts) for path in paths), paths


def test_preparing_wikipedia_takes_no_gpus_and_may_write_the_dataset() -> None:
    rendered = render(read_example("18-wikipedia"), "gpu-nfs")
    (child,) = rendered.children
    assert child["kind"] == "Job"
    (template,) = (template for _, template in templates(child))
    assert container(template)["resources"]["limits"] == {"cpu": "64", "memory": "400Gi"}
    read_only = {mount["mountPath"]: mount.get("readOnly", False) for mount in container(template)["volumeMounts"]}
    assert (read_only["/mnt/data"], read_only["/mnt/bert"]) == (False, False)
    assert '"/mnt/data/hdf5"' in rendered.config_map["data"]["run-config.json"]


def test_mlperf_s_shards_are_written_where_intel_s_jobs_read_them() -> None:
    written, read = (
        json.loads(render(read_example(name), "xeon-nfs").config_map["data"]["run-config.json"])
        for name in ("18-wikipedia/mlperf", "12-intel-pytorch/8-nodes-2-ranks")
    )
    assert written["dataset"]["vocabulary_file"] == read["dataset"]["vocabulary_file"]
    shards = NAMES["mlperf"].resharding
    assert shards is not None
    folders = [shards.folder_name.format(tokens=tokens) for tokens in (128, 512)]
    assert [stage["shards"] for stage in read["stages"] if stage["kind"] == "pretrain"] == [
        posixpath.normpath(posixpath.join(written["dataset"]["folder"], folder)) for folder in folders
    ]
