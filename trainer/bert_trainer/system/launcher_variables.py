"""A rank's place among all ranks, by the variables of whatever launcher has started it: mpirun, torchrun, horovodrun.

For what a run does by itself, before its ranks have met. What only MPI starts (pods, a build on several machines) reads
``mpi_variables``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bert_trainer.system.mpi_variables import read_local_rank, read_local_size, read_rank, read_size

TORCHRUN_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
"""In the order of ``Place``. Other programs set some of them for purposes of their own, torchrun all."""
_HOROVODRUN_VARIABLES = ("HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a rank stands."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    """Among those of its machine."""
    local_size: int = 1


def read_place(environment: Mapping[str, str]) -> Place:
    """Return this process's place; that of a single one without a launcher."""
    by_mpi = Place(
        read_rank(environment), read_size(environment), read_local_rank(environment), read_local_size(environment)
    )
    # MPI first: its ranks may inherit the other variables from the shell that mpirun was started in.
    if by_mpi.size > 1:
        return by_mpi
    for names in (TORCHRUN_VARIABLES, _HOROVODRUN_VARIABLES):
        values = [environment.get(name, "") for name in names]
        # What is no number is not ours: the library itself will complain.
        if all(value.isdecimal() for value in values):
            return Place(*map(int, values))
    return by_mpi
