"""How a job's ``cpu`` section is taken on machines without a cluster: counted here, bound here, as far as it fits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bert_operator.api.parsing.validation import parse_job
from bert_operator.api.schema.bert_pretrain_job import BertPretrainJob
from bert_operator.errors import InvalidJob
from bert_operator.local import launch
from bert_operator.local.command import fit_to_machines, rank_command_prefix
from bert_operator.local.launch import Binding, Placement
from bert_operator.local.programs import Programs, count_numa_nodes, count_sockets, count_threads_per_core
from sample_job import sample_document

XEON = Programs(prepare=(), train=("train",), mpirun="mpirun", cores=112, physical_cores=56, sockets=2, numa_nodes=4)
HYPER_XEON = replace(XEON, threads_per_core=2)
LAPTOP = Programs(prepare=(), train=("train",), mpirun="mpirun", cores=8, physical_cores=4)


def job(**spec: Any) -> BertPretrainJob:
    document = sample_document()
    document["spec"].update(spec)
    return parse_job(document)


AUTO = {"ranksPerNode": "auto", "sockets": 8}


@pytest.mark.parametrize(
    ("cpu", "programs", "hosts", "ranks_per_node", "ranks"),
    [
        (AUTO, XEON, (), None, 2),
        ({**AUTO, "pinning": "numa", "numaNodes": 1}, XEON, (), None, 4),
        (AUTO, LAPTOP, (), None, 1),
        (AUTO, XEON, ("a", "b", "c"), None, 6),
        (AUTO, XEON, ("a", "b"), 3, 6),
        ({}, XEON, ("a", "b"), None, 2),
    ],
)
def test_ranks_are_counted_on_this_machine(
    cpu: dict[str, Any], programs: Programs, hosts: tuple[str, ...], ranks_per_node: int | None, ranks: int
) -> None:
    asked = job(slotsPerWorker=1, cpu=cpu)
    assert fit_to_machines(asked, hosts, ranks_per_node, programs).spec.ranks == ranks


def test_ranks_that_cannot_be_spread_over_this_machine_s_sockets_are_refused() -> None:
    asked = job(slotsPerWorker=1, cpu={"pinning": "socket", "sockets": 1})
    assert fit_to_machines(asked, (), None, LAPTOP).spec.ranks == 1
    with pytest.raises(InvalidJob, match="a multiple of cpu.sockets 2"):
        fit_to_machines(asked, (), None, XEON)


@pytest.mark.parametrize(
    ("cpu", "words"),
    [
        ({"pinning": "socket", "sockets": 1}, "--bind socket --ranks-per-place 1"),
        (
            {"pinning": "socket", "sockets": 1, "coresPerRank": 14},
            "--bind socket --ranks-per-place 1 --cores-per-rank 14",
        ),
        ({"pinning": "core", "coresPerRank": 14}, "--bind core --ranks-per-place 1 --cores-per-rank 14"),
        ({"pinning": "core", "coresPerRank": 29}, None),
        ({}, None),
    ],
)
def test_ranks_are_bound_where_the_machine_is_large_enough(cpu: dict[str, Any], words: str | None) -> None:
    here = fit_to_machines(job(slotsPerWorker=2, cpu=cpu), (), None, XEON)
    placement = Placement(ranks=2, ranks_per_node=2)
    binding = launch.choose_binding(here.spec.cpu, placement, XEON.physical_cores)
    assert (None if binding is None else " ".join(binding.options())) == words
    # Ranks bind themselves, so mpirun does not.
    command = launch.launch_training(XEON, "open-mpi", placement, "c.json", {}, through=("rank", "--")).command
    assert " ".join(command) == "mpirun -np 2 --bind-to none --map-by :OVERSUBSCRIBE rank -- train --config c.json"


def test_ranks_are_started_through_bert_pod_only_where_something_is_asked_for() -> None:
    programs = replace(XEON, rank=("rank", "--quiet"))
    binding = Binding(place="socket", ranks_per_place=1, cores_per_rank=None)
    plain = fit_to_machines(job(slotsPerWorker=2), (), None, XEON)
    assert rank_command_prefix(plain, programs, None) == ()
    bound = ("--bind", "socket", "--ranks-per-place", "1", "--")
    here = ("rank", "--quiet", "--sockets", "2", "--numa-nodes", "4")
    assert rank_command_prefix(plain, programs, binding) == (*here, *bound)
    hyper = fit_to_machines(job(slotsPerWorker=2), (), None, HYPER_XEON)
    assert rank_command_prefix(hyper, programs, binding) == (*here, "--threads-per-core", "2", *bound)
    fast = fit_to_machines(job(slotsPerWorker=2, cpu={"allocator": "jemalloc"}), (), None, XEON)
    assert rank_command_prefix(fast, programs, None) == ("rank", "--quiet", "--")


def test_what_pods_ask_for_is_not_asked_of_this_machine() -> None:
    """56 CPUs hold two ranks of 28 cores where the job's nodes have one thread per core; this machine has two."""
    asked = job(slotsPerWorker=2, cpu={"coresPerRank": 28, "pinning": "core"}, resources={"cpu": 56})
    assert fit_to_machines(asked, (), None, HYPER_XEON).spec.cpu.threads_per_core == 2
    apart = job(slotsPerWorker=2, cpu={"coresPerRank": 28}, worker={"resources": {"cpu": 56}})
    assert fit_to_machines(apart, (), 4, HYPER_XEON).spec.ranks == 4


def test_threads_of_a_core_are_those_of_this_machine(tmp_path: Path) -> None:
    assert count_threads_per_core((0, 1), tmp_path) is None
    for number, core in enumerate((0, 1, 0, 1)):
        folder = tmp_path / "cpu" / f"cpu{number}" / "topology"
        folder.mkdir(parents=True)
        (folder / "physical_package_id").write_text("0\n")
        (folder / "core_id").write_text(f"{core}\n")
    assert count_threads_per_core((0, 1, 2, 3), tmp_path) == 2
    assert count_threads_per_core((1, 3), tmp_path) == 2  # whole cores of a cpuset
    assert count_threads_per_core((0, 1), tmp_path) is None  # taskset to first threads: nothing that ranks could check


def test_a_machine_that_is_too_small_gets_no_more_threads_than_cores() -> None:
    asked = {"OMP_NUM_THREADS": "28", "KMP_AFFINITY": "compact", "DNNL_MAX_CPU_ISA": "AVX2"}
    assert launch.fit_environment(asked, None, threads=4) == {"DNNL_MAX_CPU_ISA": "AVX2"}
    binding = Binding(place="socket", ranks_per_place=1, cores_per_rank=28)
    assert launch.fit_environment(asked, binding, threads=28) == asked


def test_what_the_user_has_set_wins() -> None:
    environment = launch.build_environment(
        {"DNNL_MAX_CPU_ISA": "AVX512_CORE"},
        attempt=1,
        termination_log="t",
        threads=2,
        processors={"DNNL_MAX_CPU_ISA": "AVX512_CORE_AMX", "MALLOC_CONF": "x:1"},
    )
    assert (environment["DNNL_MAX_CPU_ISA"], environment["MALLOC_CONF"]) == ("AVX512_CORE", "x:1")
    assert {"DNNL_MAX_CPU_ISA", "MALLOC_CONF"} <= set(launch.exported_names(environment))


def test_sockets_and_nodes_are_those_with_processors(tmp_path: Path) -> None:
    assert (count_sockets(tmp_path), count_numa_nodes(tmp_path)) == (1, 1)
    for number, socket in enumerate((0, 0, 1, 1)):
        folder = tmp_path / "cpu" / f"cpu{number}" / "topology"
        folder.mkdir(parents=True)
        (folder / "physical_package_id").write_text(f"{socket}\n")
    for number, processors in enumerate(("0-1", "2-3", "")):
        node = tmp_path / "node" / f"node{number}"
        node.mkdir(parents=True)
        (node / "cpulist").write_text(f"{processors}\n")
    assert (count_sockets(tmp_path), count_numa_nodes(tmp_path)) == (2, 2)
