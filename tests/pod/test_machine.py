"""Sockets, NUMA nodes and cores as the kernel shows them, and the threads that a rank gets from them."""

from __future__ import annotations

from pathlib import Path

import pytest

from bert_trainer.errors import WrongTopology
from bert_trainer.pod.rank import DeclaredTopology, check_topology, choose_threads
from bert_trainer.system.machine import (
    Machine,
    bound_processors,
    parse_processors,
    quota_cores,
    read_machine,
    render_processors,
)


def make_sysfs(folder: Path, *, sockets: int, cores: int, nodes: int, memory_nodes: int = 0) -> Path:
    """Write what Linux shows of a machine with two hyperthreads per core; the second ones come after all first ones."""
    for thread in range(2):
        for number in range(sockets * cores):
            topology = folder / "cpu" / f"cpu{thread * sockets * cores + number}" / "topology"
            topology.mkdir(parents=True)
            (topology / "physical_package_id").write_text(f"{number // cores}\n")
            (topology / "core_id").write_text(f"{number % cores}\n")
    for number in range(nodes + memory_nodes):
        node = folder / "node" / f"node{number}"
        node.mkdir(parents=True)
        each = sockets * cores // nodes
        first = number * each
        second = sockets * cores + first
        (node / "cpulist").write_text(
            f"{first}-{first + each - 1},{second}-{second + each - 1}\n" if number < nodes else "\n"
        )
    (folder / "cpu" / "cpufreq").mkdir()
    (folder / "cpu" / "cpu999").mkdir()  # switched off
    return folder


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return read_machine(make_sysfs(tmp_path, sockets=2, cores=28, nodes=4, memory_nodes=2))


def test_hyperthreads_are_no_cores_and_memory_alone_is_no_node(machine: Machine) -> None:
    assert (machine.sockets, machine.numa_nodes, len(machine.core_of)) == (2, 4, 112)
    assert machine.count_cores(range(112)) == 56
    assert machine.count_cores([0, 56]) == 1
    assert machine.threads_per_core == 2
    assert [machine.node_of[number] for number in (0, 13, 14, 28, 55, 56, 111)] == [0, 0, 1, 2, 3, 0, 3]
    assert machine.group_by_core([0, 29, 1, 56, 85]) == {(0, 0): (0, 56), (0, 1): (1,), (1, 1): (29, 85)}


def test_processors_are_told_with_their_cores_and_what_those_lack(machine: Machine) -> None:
    assert machine.describe_processors((*range(27), *range(56, 83))) == "0-26,56-82 (27 cores)"
    # What kubelet gives a pod that asks for 27 CPUs.
    given = (*range(2, 15), *range(57, 71))
    lacking = "1 of them without all of their 2 threads"
    assert machine.describe_processors(given) == f"2-14,57-70 (14 cores, {lacking})"


def test_a_machine_without_topology_counts_as_one_of_each(tmp_path: Path) -> None:
    nothing = read_machine(tmp_path)
    assert (nothing.sockets, nothing.numa_nodes, nothing.core_of) == (1, 1, {})
    assert nothing.threads_per_core == 1


def test_this_machine_has_the_processors_that_this_process_may_use() -> None:
    assert set(bound_processors()) <= set(read_machine().core_of)


@pytest.mark.parametrize(
    ("processors", "text"), [((), ""), ((3,), "3"), ((0, 1, 2, 56, 57), "0-2,56-57"), ((5, 1, 0), "0-1,5")]
)
def test_processors_are_written_as_the_kernel_does(processors: tuple[int, ...], text: str) -> None:
    assert render_processors(processors) == text
    assert parse_processors(text) == tuple(sorted(processors))


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({}, None),
        ({"cpu.max": "max 100000\n"}, None),
        ({"cpu.max": "250000 100000\n"}, 2.5),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
        ({"cpu/cpu.cfs_quota_us": "50000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 0.5),
        ({"cpu.max": "\n"}, None),
    ],
    ids=["no container", "no limit", "limit", "no limit, version 1", "limit, version 1", "empty"],
)
def test_a_container_s_share_of_the_processors_is_read(
    tmp_path: Path, files: dict[str, str], cores: float | None
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert quota_cores(tmp_path) == cores


def test_a_wrong_declaration_is_refused_and_none_is_not(machine: Machine) -> None:
    check_topology(machine, DeclaredTopology(), "w0")
    check_topology(machine, DeclaredTopology(sockets=2, numa_nodes=4, threads_per_core=2), "w0")
    with pytest.raises(WrongTopology, match="spec.cpu.sockets: got 4; allowed: 2, as many as w0 has"):
        check_topology(machine, DeclaredTopology(sockets=4), "w0")
    with pytest.raises(WrongTopology, match="spec.cpu.numaNodes: got 2; allowed: 4"):
        check_topology(machine, DeclaredTopology(sockets=2, numa_nodes=2), "w0")
    with pytest.raises(WrongTopology, match="spec.cpu.threadsPerCore: got 1; allowed: 2, as many as w0 has"):
        check_topology(machine, DeclaredTopology(sockets=2, threads_per_core=1), "w0")


SOCKET_0 = (*range(28), *range(56, 84))
BESIDE = {"OMPI_COMM_WORLD_LOCAL_SIZE": "2"}


@pytest.mark.parametrize(
    ("environment", "processors", "is_bound", "quota_cores", "threads"),
    [
        ({}, tuple(range(112)), False, None, "56"),
        (BESIDE, tuple(range(112)), False, None, "28"),  # bound to nothing: shared out
        (BESIDE, SOCKET_0, False, None, "14"),  # likewise in a pod with one socket of two
        (BESIDE, SOCKET_0, True, None, "28"),  # bound: all that it is bound to
        ({"MPI_LOCALNRANKS": "8"}, tuple(range(112)), False, None, "7"),
        ({"MPI_LOCALNRANKS": "200"}, tuple(range(112)), False, None, "1"),
        ({}, tuple(range(112)), False, 16.0, "16"),
        (BESIDE, SOCKET_0, True, 32.0, "16"),
    ],
)
def test_a_rank_has_as_many_threads_as_cores(
    machine: Machine,
    environment: dict[str, str],
    processors: tuple[int, ...],
    is_bound: bool,
    quota_cores: float | None,
    threads: str,
) -> None:
    chosen = choose_threads(environment, machine, processors, quota_cores, is_bound=is_bound)
    assert chosen == {"OMP_NUM_THREADS": threads}


def test_threads_that_are_already_set_stay(machine: Machine) -> None:
    assert choose_threads({"OMP_NUM_THREADS": "3"}, machine, SOCKET_0, None, is_bound=True) == {}
