"""Which CPUs kubelet gives our pods on machines with hyper-threads, and what ranks make of them.

What kubelet gives is its own answer (`make test-cpumanager` asks it anew); what ranks make of it is tested everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

LAUNCHER_OF_ITS_OWN = "a launcher with a CPU of its own"
FULL = ("full-pcpus-only",)
EVEN = ("full-pcpus-only", "distribute-cpus-across-numa")


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A machine and kubelet's settings there; cores are those of a socket."""

    cores: int = 28
    numa_nodes_per_socket: int = 1
    options: tuple[str, ...] = EVEN
    """Of cpuManagerPolicy: static."""
    topology: str = "none"
    """topologyManagerPolicy."""
    reserved: str = "0,56"
    """reservedSystemCPUs: the first core with both of its threads."""

    @property
    def machine(self) -> str:
        """Its name in tables."""
        numa = f", {2 * self.numa_nodes_per_socket} NUMA nodes" if self.numa_nodes_per_socket > 1 else ""
        return f"2 x {self.cores} x 2{numa}"


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeletCase:
    """A job on a node: what its pods get, and what their ranks are bound to."""

    cpu: dict[str, Any]
    """The job's ``cpu``."""
    slots: int = 2
    pods: int = 1
    """Workers on this node; from two on the job is an MPIJob, and its launcher is admitted there before them."""
    launcher_cpu: object = None
    node: Node = field(default_factory=Node)
    asked: str
    """CPUs that a worker asks for."""
    given: tuple[str, ...]
    """CPUs of every worker, or why it is refused."""
    ranks: tuple[str, ...] = ()
    """Processors of the ranks of the last worker."""
    error: str = ""
    """In place of ranks: what they fail with."""


BY_SOCKET = {"pinning": "socket", "sockets": 2, "coresPerRank": 27, "threadsPerCore": 2}
BY_NODE = {"pinning": "numa", "numaNodes": 4, "coresPerRank": 13, "threadsPerCore": 2}
ALONE = {"pinning": "core", "coresPerRank": 27, "threadsPerCore": 2}

CASES: dict[str, KubeletCase] = {
    "hyper-threads not counted": KubeletCase(
        cpu={**BY_SOCKET, "threadsPerCore": None},
        node=Node(options=()),
        asked="54",
        given=("1-27,57-83",),
        error="got 27 for each of 1 rank on each of 2 sockets; allowed: the cores that this pod may use, 27 on socket",
    ),
    "sockets filled one after another": KubeletCase(
        cpu=BY_SOCKET,
        node=Node(options=FULL),
        asked="108",
        given=("1-26,28-55,57-82,84-111",),
        error="the cores that this pod may use, 26 on socket 0, 28 on socket 1",
    ),
    "as the overlay has it": KubeletCase(
        cpu=BY_SOCKET, asked="108", given=("1-54,57-110",), ranks=("1-27,57-83", "28-54,84-110")
    ),
    "restricted": KubeletCase(
        cpu=BY_SOCKET,
        node=Node(topology="restricted"),
        asked="108",
        given=("1-54,57-110",),
        ranks=("1-27,57-83", "28-54,84-110"),
    ),
    "single-numa-node": KubeletCase(
        cpu=BY_SOCKET, node=Node(topology="single-numa-node"), asked="108", given=("TopologyAffinityError",)
    ),
    "all cores of both sockets": KubeletCase(
        cpu={**BY_SOCKET, "coresPerRank": 28},
        asked="112",
        given=("SMTAlignmentError: SMT Alignment Error: not enough free physical CPUs",),
    ),
    "a pod per socket": KubeletCase(
        cpu=ALONE,
        slots=1,
        pods=2,
        node=Node(topology="single-numa-node"),
        asked="54",
        given=("1-27,57-83", "28-54,84-110"),
        ranks=("28-54,84-110",),
    ),
    LAUNCHER_OF_ITS_OWN: KubeletCase(
        cpu=ALONE,
        slots=1,
        pods=2,
        launcher_cpu=1,
        node=Node(options=("distribute-cpus-across-numa",)),
        asked="54",
        given=("29-55,85-111", "1-27,57-83"),
        ranks=("1-27,57-83",),
    ),
    "a pod per socket, hyper-threads not counted": KubeletCase(
        cpu={**ALONE, "threadsPerCore": None},
        slots=1,
        pods=2,
        node=Node(options=()),
        asked="27",
        given=("2-14,57-70", "15-28,71-83"),
        error="got 27 for each of 1 rank; allowed: the cores that this pod may use, 14 (processors",
    ),
    "large sockets": KubeletCase(
        cpu={**BY_SOCKET, "coresPerRank": 55},
        node=Node(cores=56, reserved="0,112"),
        asked="220",
        given=("1-110,113-222",),
        ranks=("1-55,113-167", "56-110,168-222"),
    ),
    "NUMA nodes": KubeletCase(
        cpu=BY_NODE,
        slots=4,
        node=Node(numa_nodes_per_socket=2),
        asked="104",
        given=("1-26,28-40,42-54,57-82,84-96,98-110",),
        ranks=("1-13,57-69", "14-26,70-82", "28-40,84-96", "42-54,98-110"),
    ),
    "NUMA nodes filled one after another": KubeletCase(
        cpu=BY_NODE,
        slots=4,
        node=Node(numa_nodes_per_socket=2, options=FULL),
        asked="104",
        given=("1-10,14-55,57-66,70-111",),
        error="10 on NUMA node 0, 14 on NUMA node 1, 14 on NUMA node 2, 14 on NUMA node 3",
    ),
    "NUMA nodes, a rank per socket": KubeletCase(
        cpu=BY_SOCKET,
        node=Node(numa_nodes_per_socket=2),
        asked="108",
        given=("1-54,57-110",),
        ranks=("1-27,57-83", "28-54,84-110"),
    ),
}
