"""Binding of ranks to cores, sockets or NUMA nodes, in the words of three MPIs. Pure.

Open MPI 5.0.11 and MPICH 5.0.2 were asked what they do with these words, the latter on a simulated node of two
sockets with hyperthreads; those for Intel MPI follow its reference, as it takes no such node. Cores are physical ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Place = Literal["core", "socket", "numa"]
PLACES: tuple[Place, ...] = ("core", "socket", "numa")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pinning:
    """What every rank is bound to."""

    place: Place
    ranks_per_place: int
    """Of a socket or NUMA node; ranks bound to cores are placed one after another."""
    cores_per_rank: int | None
    """None: all cores of the socket or NUMA node, one core otherwise."""


def open_mpi_words(pinning: Pinning) -> tuple[str, ...]:
    """Return options of mpirun; version 5 still takes ``socket`` for what it calls a package."""
    cores = pinning.cores_per_rank
    if pinning.place == "core":
        return ("--map-by", f"slot:PE={cores or 1}", "--bind-to", "core")
    mapping = f"ppr:{pinning.ranks_per_place}:{pinning.place}"
    if cores is None:
        return ("--map-by", mapping, "--bind-to", pinning.place)
    return ("--map-by", f"{mapping}:PE={cores}", "--bind-to", "core")


def mpich_words(pinning: Pinning) -> tuple[str, ...]:
    """Return options of mpiexec, which deals ranks out to sockets in turn: as many on each."""
    cores = pinning.cores_per_rank
    if pinning.place == "core":
        return ("-bind-to", f"core:{cores or 1}")
    if cores is None:
        return ("-bind-to", pinning.place)
    return ("-bind-to", f"core:{cores}", "-map-by", pinning.place)


def intel_words(pinning: Pinning) -> tuple[str, ...]:
    """Return variables as options: mpiexec.hydra takes -bind-to, and does nothing about it."""
    cores = pinning.cores_per_rank
    if pinning.place != "core" and cores is None:
        return ("-genv", "I_MPI_PIN_DOMAIN", pinning.place)
    # Counts hyperthreads otherwise. Bunch fills sockets evenly, compact one after another.
    order = "compact" if pinning.place == "core" else "bunch"
    domain = ("-genv", "I_MPI_PIN_DOMAIN", f"{cores or 1}:compact")
    return (*domain, "-genv", "I_MPI_PIN_CELL", "core", "-genv", "I_MPI_PIN_ORDER", order)
