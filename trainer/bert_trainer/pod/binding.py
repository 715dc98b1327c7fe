"""Which processors a rank is bound to: whole physical cores of its socket or NUMA node. Pure.

``bert-pod rank`` binds itself, and mpirun is told not to. Every MPI would bind in its own way, count hyper-threads in
its own way, and where a pod has too few cores fail in words of its own; the pod's cores are known where the rank runs.

A rank gets all hardware threads of its cores. OpenMP has one thread per core (OMP_NUM_THREADS), which KMP_AFFINITY
``granularity=fine,compact,1,0`` puts on the first threads of the cores, one each. The second threads are for what runs
beside it: Horovod's background thread, the one that reads data, MPI's own. With first threads alone these would take
turns with OpenMP's, all of which then wait for the one that was interrupted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from bert_trainer.errors import WrongTopology
from bert_trainer.system.machine import Machine, render_processors

Place = Literal["core", "socket", "numa"]
PLACES: tuple[Place, ...] = ("core", "socket", "numa")

_NOUNS: Mapping[Place, str] = {"core": "pod", "socket": "socket", "numa": "NUMA node"}
_NEXT = 'kubelet decides which: see "Whole cores from kubelet" in docs/concepts/cpus.md'


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """What every rank is bound to. Cores are physical cores."""

    place: Place
    ranks_per_place: int = 1
    """Ranks per socket or NUMA node. Ranks that are bound to cores are placed one after another."""
    cores_per_rank: int | None = None
    """None: the cores of the socket or NUMA node divided by its ranks; one core if ``place`` is core."""

    def options(self) -> tuple[str, ...]:
        """Return the options of ``bert-pod rank`` for it."""
        cores = () if self.cores_per_rank is None else ("--cores-per-rank", str(self.cores_per_rank))
        return ("--bind", self.place, "--ranks-per-place", str(self.ranks_per_place), *cores)


def choose_processors(
    binding: Binding,
    machine: Machine,
    allowed: tuple[int, ...],
    *,
    local_rank: int,
    local_size: int,
    threads_per_core: int | None = None,
) -> tuple[int, ...]:
    """Return the logical processors of one rank, in ascending order.

    Args:
        binding: What the job asks for.
        machine: The whole machine, whatever part of it the pod has.
        allowed: Logical processors that the pod may use: its cpuset.
        local_rank: Number of the rank among those of the pod.
        local_size: How many they are.
        threads_per_core: Threads that every core of the pod must have in ``allowed``; None: any, so that a core with
            one of two threads counts as a core.

    Raises:
        WrongTopology: The pod lacks cores, has them on other sockets or NUMA nodes, or has half cores.
    """
    cores = machine.group_by_core(allowed)
    half = {core: threads for core, threads in cores.items() if len(threads) < (threads_per_core or 1)}
    if half:
        processors = render_processors(number for threads in half.values() for number in threads)
        raise WrongTopology(
            f"spec.cpu.threadsPerCore: got {threads_per_core}; allowed: 1, since {len(half)} of the {len(cores)} cores "
            f"that this pod may use lack threads, which others use (it has {processors} of them)",
            hint=f"set kubelet's policy option full-pcpus-only; {_NEXT}",
        )
    places = _group_by_place(binding.place, machine, cores)
    ranks = local_size if binding.place == "core" else binding.ranks_per_place
    chosen, position = (0, local_rank) if binding.place == "core" else divmod(local_rank, ranks)
    found = list(places.values())
    needed = binding.cores_per_rank or 1
    num_places = -(-local_size // ranks)
    if len(found) < num_places or any(len(place) < ranks * needed for place in found[:num_places]):
        raise WrongTopology(
            f"spec.cpu.coresPerRank: got {_describe_need(binding, needed, ranks, num_places)}; allowed: the cores that "
            f"this pod may use, {_describe_places(binding.place, places)} (processors {render_processors(allowed)})",
            hint=f"ask for more CPUs (cpu.threadsPerCore counts hyper-threads) or fewer cores; {_NEXT}",
        )
    if binding.cores_per_rank is None and binding.place != "core":
        needed = len(found[chosen]) // ranks
    first = position * needed
    return tuple(sorted(number for core in found[chosen][first : first + needed] for number in cores[core]))


def _group_by_place(
    place: Place, machine: Machine, cores: Mapping[tuple[int, int], tuple[int, ...]]
) -> dict[int, list[tuple[int, int]]]:
    """Return the cores of every socket or NUMA node that has any, in the order of their numbers."""
    found: dict[int, list[tuple[int, int]]] = {}
    for core, threads in cores.items():
        key = {"core": 0, "socket": core[0], "numa": machine.node_of.get(threads[0], 0)}[place]
        found.setdefault(key, []).append(core)
    return dict(sorted(found.items()))


def _describe_need(binding: Binding, needed: int, ranks: int, num_places: int) -> str:
    of_ranks = f"{needed} for each of {ranks} {'rank' if ranks == 1 else 'ranks'}"
    if binding.place == "core":
        return of_ranks
    return f"{of_ranks} on each of {num_places} {_NOUNS[binding.place]}{'s' if num_places > 1 else ''}"


def _describe_places(place: Place, places: Mapping[int, list[tuple[int, int]]]) -> str:
    if place == "core":
        return str(sum(map(len, places.values())))
    return ", ".join(f"{len(cores)} on {_NOUNS[place]} {number}" for number, cores in places.items()) or "none"
