"""Which variables follow from ``cpu`` and ``precision``, and how ranks are counted, as values."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bert_operator.api.parsing.validation import parse_job
from bert_operator.api.schema.bert_pretrain_job import BertPretrainJob
from bert_operator.cluster.settings import Settings
from bert_operator.cluster.settings_rules import cluster_problems
from bert_operator.names import PREPARE_RUN
from bert_operator.render.children import render_child
from bert_operator.render.frozen import freeze, render_config_map, spec_document
from bert_operator.render.processors import processor_environment
from bert_operator.render.run_config import render_run_config
from bert_operator.state.runs import list_runs, run_placement
from child_cases import IMAGE, UID, child_of, container, templates
from sample_job import sample_document


def job(**spec: Any) -> BertPretrainJob:
    document = sample_document()
    document["metadata"]["uid"] = UID
    document["spec"].update(spec)
    return parse_job(document)


@pytest.mark.parametrize(
    ("precision", "isa"),
    [
        ("fp32", "AVX512_CORE_AMX"),
        ("bf32", "AVX512_CORE_AMX"),
        ("bf16", "AVX512_CORE_AMX"),
        ("fp16", "AVX512_CORE_AMX_FP16"),
        ("avx-fp32", None),
        ("fp64", None),
    ],
)
def test_the_newest_instructions_follow_from_the_precision(precision: str, isa: str | None) -> None:
    assert processor_environment(job(precision=precision).spec).get("DNNL_MAX_CPU_ISA") == isa


def test_on_gpus_they_do_not_and_what_the_job_says_always_wins() -> None:
    gpus = {"resources": {"accelerator": {}}}
    assert "DNNL_MAX_CPU_ISA" not in processor_environment(job(precision="bf16", **gpus).spec)
    said = job(precision="bf16", cpu={"dnnlMaxCpuIsa": "AVX2"})
    assert processor_environment(said.spec)["DNNL_MAX_CPU_ISA"] == "AVX2"


def test_gpus_of_a_claim_are_gpus_that_a_cluster_has_to_bring_and_a_laptop_has_not() -> None:
    claim = {"name": "gpus", "resourceClaimTemplateName": "two-gpus"}
    claimed = job(precision="bf16", resources={"accelerator": {"resourceClaim": "gpus"}, "resourceClaims": [claim]})
    assert "DNNL_MAX_CPU_ISA" not in processor_environment(claimed.spec)
    frozen = freeze(claimed, default_image=IMAGE)
    assert json.loads(render_config_map(frozen)["data"]["run-config.json"])["device"] == "cuda"
    elsewhere = render_run_config(claimed, uid=UID, ranks=2, hosts=1, output_folder="/results")
    assert elsewhere["device"] == "auto"


def test_a_variable_of_the_job_wins_over_all_that_follows() -> None:
    frozen = freeze(
        job(cpu={"allocator": "jemalloc"}, env=[{"name": "MALLOC_CONF", "value": "narenas:4"}]), default_image=IMAGE
    )
    child = render_child(frozen, child_of(frozen, list_runs(frozen.job)[-1].name, 1))
    for _, template in templates(child):
        entries = [entry for entry in container(template)["env"] if entry["name"] == "MALLOC_CONF"]
        assert entries == [{"name": "MALLOC_CONF", "value": "narenas:4"}]


def test_openmp_and_allocator_bring_their_own_variables_and_no_others() -> None:
    plain = processor_environment(job(precision="fp64").spec)
    assert plain == {"BERT_ALLOCATOR": "system", "BERT_OPENMP": "gnu"}
    unbound = processor_environment(job(cpu={"openmp": "intel", "allocator": "jemalloc"}).spec)
    assert unbound["KMP_BLOCKTIME"] == "1"
    assert "KMP_AFFINITY" not in unbound  # every rank would take the first cores
    assert "background_thread:true" in unbound["MALLOC_CONF"]
    bound = processor_environment(job(cpu={"openmp": "intel", "pinning": "core", "coresPerRank": 8}).spec)
    assert bound["KMP_AFFINITY"] == "granularity=fine,compact,1,0"
    assert bound["OMP_NUM_THREADS"] == "8"


@pytest.mark.parametrize(
    ("cpu", "ranks"),
    [
        ({"ranksPerNode": "auto", "sockets": 2}, 2),
        ({"ranksPerNode": "auto", "sockets": 2, "numaNodes": 8}, 2),
        ({"ranksPerNode": "auto", "sockets": 2, "numaNodes": 8, "pinning": "numa"}, 8),
        ({"sockets": 2}, 1),
    ],
)
def test_ranks_are_counted_before_they_are_frozen(cpu: dict[str, Any], ranks: int) -> None:
    asked = job(workers=3, slotsPerWorker=1, cpu=cpu)
    assert (asked.spec.ranks_per_worker, asked.spec.ranks) == (ranks, 3 * ranks)
    frozen = freeze(asked, default_image=IMAGE)
    assert frozen.job.spec.slots_per_worker == ranks
    assert frozen.job.spec.cpu.ranks_per_node is None
    assert json.loads(render_config_map(frozen)["data"]["run-config.json"])["world"]["ranks"] == 3 * ranks
    # What was frozen is a valid job again.
    document = {**sample_document(), "spec": spec_document(frozen.job)}
    assert parse_job(document).spec.ranks == 3 * ranks


def test_ranks_of_an_unknown_topology_cannot_be_counted() -> None:
    volume = {"path": "r", "volume": {"persistentVolumeClaim": {"claimName": "c"}}}
    untold = job(slotsPerWorker=1, cpu={"ranksPerNode": "auto"}, output=volume)
    (problem,) = cluster_problems(untold, Settings())
    assert problem.path == "spec.cpu.sockets"
    assert "ranksPerNode: auto" in problem.allowed
    told = job(slotsPerWorker=1, cpu={"ranksPerNode": "auto", "sockets": 2}, output=volume)
    assert list(cluster_problems(told, Settings())) == []


def requests_of(spec_changes: dict[str, Any], run: int = -1) -> dict[str, str]:
    """Return the CPUs that the pods of a job's run ask for, by role."""
    frozen = freeze(job(**spec_changes), default_image=IMAGE)
    child = render_child(frozen, child_of(frozen, list_runs(frozen.job)[run].name, 1))
    return {role: container(template)["resources"]["requests"].get("cpu") for role, template in templates(child)}


def test_pods_ask_for_every_hardware_thread_of_their_cores() -> None:
    plain = {"coresPerRank": 26, "sockets": 2, "ranksPerNode": "auto"}
    memory = {"memory": "200Gi"}
    assert requests_of({"slotsPerWorker": 1, "cpu": plain, "resources": memory}) == {"single": "52"}
    threads = {**plain, "threadsPerCore": 2}
    asked = {"slotsPerWorker": 1, "cpu": threads, "resources": memory}
    assert requests_of(asked) == {"single": "104"}
    # A whole CPU for the launcher would be half of a core that a worker lacks.
    assert requests_of({**asked, "workers": 4}) == {"launcher": "900m", "worker": "104"}
    said = {"resources": {"cpu": 108, **memory}, "launcher": {"resources": {"cpu": 2}}}
    assert requests_of({**asked, "workers": 4, **said}) == {"launcher": "2", "worker": "108"}


def test_threads_of_a_rank_stay_cores() -> None:
    cpu = {"coresPerRank": 26, "threadsPerCore": 2, "pinning": "socket", "sockets": 2, "openmp": "intel"}
    variables = processor_environment(job(slotsPerWorker=2, cpu=cpu).spec)
    assert variables["OMP_NUM_THREADS"] == "26"
    assert variables["KMP_AFFINITY"] == "granularity=fine,compact,1,0"


@pytest.mark.parametrize(
    "written", [{"slotsPerWorker": 4, "resources": {"cpu": 8}}, {"slotsPerWorker": 1, "resources": {"cpu": "1500m"}}]
)
def test_jobs_from_before_hardware_threads_were_counted_stay_valid(written: dict[str, Any]) -> None:
    # They run where kubelet's CPU policy is none, and a rule that refuses them would refuse suspending them, too.
    assert job(cpu={"pinning": "core", "coresPerRank": 4}, **written).spec.cpu.pinning == "core"


@pytest.mark.parametrize(
    ("cpu", "resources", "processes"),
    [
        ({}, {"cpu": 16}, 16),
        ({"threadsPerCore": 2}, {"cpu": 16}, 8),
        ({"threadsPerCore": 2, "coresPerRank": 6}, {}, 12),
        ({"coresPerRank": 6}, {}, 1),  # as before there was threadsPerCore
        ({"threadsPerCore": 2}, {"cpu": "1500m"}, 1),
        ({}, {"cpu": "2500m"}, 2),
    ],
)
def test_data_is_prepared_by_one_process_for_each_core(
    cpu: dict[str, Any], resources: dict[str, Any], processes: int
) -> None:
    document = sample_document()
    stages = [
        {**stage, "prepare": {**stage["prepare"], "workers": 3}} if "prepare" in stage else stage
        for stage in document["spec"]["stages"]
    ]
    asked = job(stages=stages, slotsPerWorker=2, cpu=cpu, resources=resources)
    assert run_placement(asked.spec, PREPARE_RUN).slots == processes
