"""A variable that contradicts a field is refused, one without effect remarked on, and what is shipped has neither."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from bert_operator.api.parsing.validation import advise, parse_job
from bert_operator.cluster.settings import load_settings
from bert_operator.cluster.settings_rules import read_cluster_job
from bert_operator.errors import InvalidJob
from examples import OVERLAYS, list_examples, read_example
from job_changes import Change, both, put
from sample_job import Document, sample_document, sample_job

ROOT = Path(__file__).parents[2]


def env(name: str, value: str) -> Change:
    return put("env", value=[{"name": "TZ", "value": "UTC"}, {"name": name, "value": value}])


CPU = {"coresPerRank": 28}
SOCKETS = {"sockets": 2, "pinning": "socket"}
GPUS = {"accelerator": {}}

CONTRADICTIONS: dict[str, tuple[str, str, Document, str]] = {
    "threads": ("OMP_NUM_THREADS", "1", {"cpu": CPU}, r'allowed: "28", which spec.cpu.coresPerRank'),
    "threads of MKL": ("MKL_NUM_THREADS", "14", {"cpu": CPU}, "cpu.coresPerRank"),
    "threads of levels": ("OMP_NUM_THREADS", "2,14", {"cpu": CPU}, "cpu.coresPerRank"),
    "instructions": ("DNNL_MAX_CPU_ISA", "AVX2", {"cpu": {"dnnlMaxCpuIsa": "AVX512_CORE"}}, "cpu.dnnlMaxCpuIsa"),
    "proxy": ("https_proxy", "http://b", {"proxy": {"https": "http://a"}}, "proxy.https"),
    "no proxy": ("NO_PROXY", "c", {"proxy": {"noProxy": "a,b"}}, "proxy.noProxy"),
    "allocator": ("BERT_ALLOCATOR", "jemalloc", {}, "cpu.allocator"),
    "OpenMP": ("BERT_OPENMP", "intel", {}, "cpu.openmp"),
    "hangs": ("BERT_ON_HANG", "Notify", {}, "runPolicy.onHang"),
    "rank": ("RANK", "0", {}, "the launcher gives every rank its own"),
    "world": ("WORLD_SIZE", "8", {}, "the launcher"),
    "rank of Open MPI": ("OMPI_COMM_WORLD_RANK", "0", {}, "the launcher"),
    "rank of Horovod": ("HOROVOD_RANK", "0", {}, "the launcher"),
    "meeting point": ("MASTER_ADDR", "worker-0", {}, "the launcher"),
    "binding by Open MPI 4": ("OMPI_MCA_hwloc_base_binding_policy", "core", {}, "cpu.pinning"),
    "binding by Open MPI 5": ("PRTE_MCA_hwloc_default_binding_policy", "numa", {"cpu": SOCKETS}, "cpu.pinning"),
    "binding by Intel MPI": ("I_MPI_PIN_DOMAIN", "socket", {"mpi": {"implementation": "Intel"}}, "cpu.pinning"),
    "processors of all ranks": ("GOMP_CPU_AFFINITY", "0-27", {}, "the same for every rank"),
    "processors beside pinning": ("KMP_AFFINITY", "explicit,proclist=[0-27]", {"cpu": SOCKETS}, "cpu.pinning"),
    "places by numbers": ("OMP_PLACES", "{0:28}", {"cpu": SOCKETS}, "cpu.pinning"),
    "hidden GPUs": ("CUDA_VISIBLE_DEVICES", "0", {"resources": GPUS}, "a worker has ranks, 2"),
    "all GPUs hidden": ("CUDA_VISIBLE_DEVICES", "-1", {"resources": GPUS}, "a worker has ranks, 2"),
    "GPUs of workers": ("CUDA_VISIBLE_DEVICES", "", {"worker": {"resources": GPUS}}, "a worker has ranks, 2"),
}


@pytest.mark.parametrize(("name", "value", "spec", "words"), CONTRADICTIONS.values(), ids=CONTRADICTIONS)
def test_a_variable_that_contradicts_a_field_is_refused(name: str, value: str, spec: Document, words: str) -> None:
    with pytest.raises(InvalidJob) as refused:
        sample_job(both(lambda own: own.update(spec), env(name, value)))
    (problem,) = refused.value.problems
    assert problem.path == "spec.env[1].value"
    assert f"for {name}" in problem.got
    assert re.search(words, str(problem))


@pytest.mark.parametrize(
    ("name", "value", "spec"),
    [
        ("OMP_NUM_THREADS", "28", {"cpu": CPU}),
        ("OMP_NUM_THREADS", "28,1", {"cpu": CPU}),
        ("OMP_NUM_THREADS", "1", {}),
        ("DNNL_MAX_CPU_ISA", "AVX2", {}),
        ("http_proxy", "http://a", {"proxy": {"https": "http://b"}}),
        ("I_MPI_PIN", "off", {}),
        ("PMIX_MCA_gds", "hash", {}),
        ("GOMP_CPU_AFFINITY", "0-27", {"slotsPerWorker": 1}),
        ("OMP_PLACES", "cores", {}),
        ("CUDA_VISIBLE_DEVICES", "0,1", {"resources": GPUS}),
        ("CUDA_VISIBLE_DEVICES", "", {}),
        ("MASTER_PORT", "29500", {"workspace": {"command": ["python3", "train.py"]}}),
        ("NCCL_SOCKET_IFNAME", "eth0", {"resources": GPUS}),
    ],
)
def test_a_variable_that_agrees_or_that_no_field_decides_is_let_through(name: str, value: str, spec: Document) -> None:
    assert advise(sample_job(both(lambda own: own.update(spec), env(name, value)))) == []


@pytest.mark.parametrize(
    ("name", "value", "spec", "words"),
    [
        ("KMP_BLOCKTIME", "0", {}, "cpu.openmp: intel"),
        ("KMP_AFFINITY", "compact", {"cpu": {**SOCKETS, "openmp": "intel"}}, "cpu.pinning: socket"),
        ("OMP_PROC_BIND", "false", {"cpu": SOCKETS}, "cpu.pinning: socket"),
        ("MALLOC_CONF", "narenas:1", {}, "cpu.allocator: jemalloc"),
        ("HOROVOD_CYCLE_TIME", "2", {"collectives": "torch"}, "collectives: torch"),
        ("NCCL_IB_DISABLE", "1", {"resources": {**GPUS, "rdma": {"resourceName": "rdma/ib"}}}, "resources.rdma"),
    ],
)
def test_a_variable_without_effect_is_remarked_on(name: str, value: str, spec: Document, words: str) -> None:
    (remark,) = advise(sample_job(both(lambda own: own.update(spec), env(name, value))))
    assert remark.startswith(f"spec.env[1].value: {name}: ")
    assert words in remark


def test_a_value_that_is_not_known_is_remarked_on() -> None:
    secret = {"name": "OMP_NUM_THREADS", "secret": {"name": "tuning", "key": "threads"}}
    (remark,) = advise(sample_job(both(put("cpu", value=CPU), put("env", value=[secret]))))
    assert remark.startswith("spec.env[0]: OMP_NUM_THREADS comes from a Secret or ConfigMap and wins over spec.cpu.")


def uncommented(text: str) -> Iterator[str]:
    """Yield a manifest, and it once more for every line of it that is offered in a comment."""
    yield text
    lines = text.splitlines()
    for number, line in enumerate(lines):
        if offered := re.match(r"^( *)# ([a-z][A-Za-z]*: .+)$", line):
            yield "\n".join([*lines[:number], offered[1] + offered[2], *lines[number + 1 :]])


@pytest.mark.parametrize("tree", ["single-node", "multi-node"])
def test_what_a_tree_of_jobs_offers_fits_what_it_has(tree: str) -> None:
    text = (ROOT / f"deploy/kustomize/jobs/{tree}/pods.yaml").read_text()
    found = [document["spec"] for document in map(yaml.safe_load, uncommented(text))]
    assert len([spec for spec in found if "cpu" in spec]) == 1
    for pods in found:
        if "scheduling" in pods and pods["scheduling"] is None:
            continue
        queue = {} if "workloadPriorityClass" not in pods else {"queueName": "bert"}
        document = sample_document(put("slotsPerWorker", value=2 if tree == "single-node" else 1))
        document["spec"] |= pods | queue
        parse_job(document)


PROFILES = [
    (overlay.name, name)
    for overlay in sorted(OVERLAYS.iterdir())
    for name in load_settings(overlay / "settings.yaml").profiles
]


@pytest.mark.parametrize(("overlay", "profile"), PROFILES)
def test_what_is_shipped_neither_contradicts_itself_nor_a_job_with_cores(overlay: str, profile: str) -> None:
    settings = load_settings(OVERLAYS / overlay / "settings.yaml")
    for cpu in ({}, {"coresPerRank": 4}):
        document = sample_document(both(put("profile", value=profile), put("cpu", value=cpu)))
        del document["spec"]["slotsPerWorker"]
        document["spec"]["stages"][1]["pretrain"]["globalBatchSize"] = 64
        assert [remark for remark in advise(read_cluster_job(document, settings)) if "spec.env" in remark] == []


def test_no_example_sets_what_a_field_or_a_profile_decides() -> None:
    specs = [read_example(example.name)["spec"] for example in list_examples()]
    names = {variable["name"] for spec in specs for variable in spec.get("env", ())}
    assert names.isdisjoint({"OMP_NUM_THREADS", "MKL_NUM_THREADS"})
