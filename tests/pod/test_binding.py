"""Ranks bind themselves to whole cores of their socket or NUMA node, inside whatever cpuset their pod has."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

import pods
from bert_trainer.errors import WrongTopology
from bert_trainer.pod.binding import Binding, Place, choose_processors
from bert_trainer.system.machine import Machine, parse_processors, render_processors
from kubelet_cpusets import CASES


def describe_machine(*, sockets: int, cores: int, threads: int, nodes_per_socket: int = 1) -> Machine:
    """Return a machine that is not there, with its processors numbered as Linux does on x86: all first threads first.

    Args:
        sockets: How many.
        cores: Physical ones of a socket.
        threads: Of a core.
        nodes_per_socket: NUMA nodes of a socket, more than one in sub-NUMA clustering.
    """
    total = sockets * cores
    return Machine(
        sockets=sockets,
        numa_nodes=sockets * nodes_per_socket,
        core_of={number: divmod(number % total, cores) for number in range(total * threads)},
        node_of={number: number % total * nodes_per_socket // cores for number in range(total * threads)},
    )


XEON = describe_machine(sockets=2, cores=28, threads=2)
CLUSTERED = describe_machine(sockets=2, cores=28, threads=2, nodes_per_socket=2)
FLAT = describe_machine(sockets=2, cores=4, threads=1)


def bound(
    place: Place,
    machine: Machine = XEON,
    allowed: str = "0-111",
    *,
    ranks: int,
    ranks_per_place: int = 1,
    cores: int | None = None,
    threads: int | None = None,
) -> list[str]:
    """Return what every rank of a pod is bound to, as the kernel writes it."""
    binding = Binding(place=place, ranks_per_place=ranks_per_place, cores_per_rank=cores)
    processors = parse_processors(allowed)
    return [
        render_processors(
            choose_processors(binding, machine, processors, local_rank=rank, local_size=ranks, threads_per_core=threads)
        )
        for rank in range(ranks)
    ]


def test_a_rank_has_both_threads_of_the_cores_of_its_socket() -> None:
    assert bound("socket", ranks=2) == ["0-27,56-83", "28-55,84-111"]
    assert bound("socket", ranks=2, cores=26, threads=2) == ["0-25,56-81", "28-53,84-109"]
    four = bound("socket", ranks=4, ranks_per_place=2)
    assert four == ["0-13,56-69", "14-27,70-83", "28-41,84-97", "42-55,98-111"]


def test_ranks_by_node_and_by_core_follow_one_another() -> None:
    assert bound("numa", CLUSTERED, ranks=4, cores=13) == ["0-12,56-68", "14-26,70-82", "28-40,84-96", "42-54,98-110"]
    assert bound("core", ranks=3, cores=10) == ["0-9,56-65", "10-19,66-75", "20-29,76-85"]
    assert bound("core", ranks=2) == ["0,56", "1,57"]
    assert bound("core", FLAT, "0-7", ranks=2, cores=4) == ["0-3", "4-7"]


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.ranks or case.error])
def test_ranks_find_their_cores_in_what_kubelet_gives(name: str) -> None:
    case = CASES[name]
    machine = describe_machine(
        sockets=2, cores=case.node.cores, threads=2, nodes_per_socket=case.node.numa_nodes_per_socket
    )
    places = {"core": case.slots, "socket": 2, "numa": 4}[case.cpu["pinning"]]

    def find() -> list[str]:
        return bound(
            case.cpu["pinning"],
            machine,
            case.given[-1],
            ranks=case.slots,
            ranks_per_place=case.slots // places,
            cores=case.cpu["coresPerRank"],
            threads=case.cpu["threadsPerCore"],
        )

    if case.error:
        with pytest.raises(WrongTopology, match=re.escape(case.error)):
            find()
    else:
        assert find() == list(case.ranks)


def test_a_pod_without_threads_per_core_counts_half_a_core_as_one() -> None:
    """As where a batch system gives out first threads alone; pods that declare threads ask kubelet for whole cores."""
    assert bound("socket", allowed="0-55", ranks=2, cores=28) == ["0-27", "28-55"]
    with pytest.raises(WrongTopology) as refused:
        bound("socket", allowed="0-55", ranks=2, cores=28, threads=2)
    assert str(refused.value).startswith(
        "spec.cpu.threadsPerCore: got 2; allowed: 1, since 56 of the 56 cores that this pod may use lack threads, "
        "which others use (it has 0-55 of them)"
    )
    assert "full-pcpus-only" in str(refused.value)
    given = CASES["a pod per socket, hyper-threads not counted"].given[0]
    with pytest.raises(WrongTopology, match=r"since 1 of the 14 cores .* lack threads, .* \(it has 57 of them\)"):
        bound("core", allowed=given, ranks=1, cores=13, threads=2)


@pytest.mark.parametrize(
    ("place", "allowed", "ranks", "ranks_per_place", "cores", "words"),
    [
        # A pod that asked for 56 CPUs, and got one socket with both threads of its cores.
        (
            "socket", "0-27,56-83", 2, 1, 26,
            "got 26 for each of 1 rank on each of 2 sockets; allowed: the cores that this pod may use, 28 on socket 0 "
            "(processors 0-27,56-83)",
        ),
        # 52 cores, but not 26 and 26.
        (
            "socket", "1-27,30-54,57-83,86-110", 2, 1, 26,
            "allowed: the cores that this pod may use, 27 on socket 0, 25 on socket 1 (processors 1-27,30-54,57-83,",
        ),
        ("socket", "28-55,84-111", 2, 2, 15, "got 15 for each of 2 ranks on each of 1 socket; allowed: the cores"),
        ("numa", "0-27,56-83", 4, 1, 13, "on each of 4 NUMA nodes; allowed: the cores that this pod may use, 14 on N"),
        ("core", "0-3,56-59", 2, 1, 3, "got 3 for each of 2 ranks; allowed: the cores that this pod may use, 4 (proc"),
        ("core", "0,56", 2, 1, None, "got 1 for each of 2 ranks; allowed: the cores that this pod may use, 1 (proc"),
    ],
)  # fmt: skip
def test_too_few_cores_and_cores_elsewhere_are_told(
    place: Place, allowed: str, ranks: int, ranks_per_place: int, cores: int | None, words: str
) -> None:
    with pytest.raises(WrongTopology) as refused:
        bound(place, CLUSTERED, allowed, ranks=ranks, ranks_per_place=ranks_per_place, cores=cores, threads=2)
    assert words in str(refused.value)


def test_a_machine_that_shows_no_topology_has_cores_of_one_thread() -> None:
    unknown = Machine(sockets=1, numa_nodes=1, core_of={}, node_of={})
    assert bound("socket", unknown, "0-3", ranks=1, cores=4) == ["0-3"]
    assert bound("numa", unknown, "0-3", ranks=2, ranks_per_place=2) == ["0-1", "2-3"]


@pytest.mark.horovod
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="requires two cores")
@pytest.mark.parametrize(
    ("options", "cores"), [(["--bind", "core", "--cores-per-rank", "1"], 1), (["--bind", "none"], 2)]
)
def test_ranks_of_open_mpi_are_bound_as_asked(options: list[str], cores: int) -> None:
    code = "import os; print('cores', sorted(os.sched_getaffinity(0)))"
    program = ["--", sys.executable, "-c", code]
    command = [*pods.POD, "single", "--ranks", "2", *options, *program]
    ended = subprocess.run(command, capture_output=True, text=True, env=pods.environment())
    assert ended.returncode == 0, ended.stderr
    seen = re.findall(r"cores \[(.*?)\]", ended.stdout)
    assert len(seen) == 2
    assert all(len(line.split(",")) >= cores for line in seen)
    assert len(set(seen)) == (2 if cores == 1 else 1)
