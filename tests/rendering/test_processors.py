"""Which variables follow from ``cpu`` and ``precision``, and how ranks are counted, as values."""

from __future__ import annotations

from typing import Any

import pytest

from bert_operator.api.parsing.validation import parse_job
from bert_operator.api.schema.bert_pretrain_job import BertPretrainJob
from bert_operator.cluster.settings import Settings
from bert_operator.cluster.settings_rules import cluster_problems
from bert_operator.render.children import render_child
from bert_operator.render.frozen import freeze, render_config_map, spec_document
from bert_operator.render.processors import processor_environment
from bert_operator.state.runs import list_runs
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
    assert f'"ranks": {3 * ranks}' in render_config_map(frozen)["data"]["run-config.json"]
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
