"""The environment variables from which a rank learns its place: one table for Open MPI, MPICH and Intel MPI.

They can be read before MPI_Init and without an MPI library: ``bert-pod rank`` announces its rank before the program
starts, a worker recognizes ranks among its processes, and a build decides whether to load mpi4py at all. Variables
that configure a launcher (ssh options) are in ``pod/mpi.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

# Open MPI sets OMPI_* in release 4 and 5. PMI_* and MPI_LOCAL* come from Hydra, the launcher of MPICH and Intel
# MPI. PMIX_RANK comes from any PMIx launcher; PMIx has no variable for the size.
_RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK")
SIZE_VARIABLES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
_LOCAL_RANK_VARIABLES = ("OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")
_LOCAL_SIZE_VARIABLES = ("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")


def read_rank(environment: Mapping[str, str]) -> int:
    """Return this process's rank; 0 without a launcher."""
    return _first_number(environment, _RANK_VARIABLES, 0)


def read_size(environment: Mapping[str, str]) -> int:
    """Return the number of ranks; 1 without a launcher."""
    return _first_number(environment, SIZE_VARIABLES, 1)


def read_local_rank(environment: Mapping[str, str]) -> int:
    """Return this process's number on this machine, or in this pod; 0 without a launcher."""
    return _first_number(environment, _LOCAL_RANK_VARIABLES, 0)


def read_local_size(environment: Mapping[str, str]) -> int:
    """Return the number of ranks on this machine, or in this pod; 1 without a launcher."""
    return _first_number(environment, _LOCAL_SIZE_VARIABLES, 1)


def is_rank(names: Iterable[str]) -> bool:
    """Return whether a process with variables of these names was started as a rank."""
    return not set(_RANK_VARIABLES).isdisjoint(names)


def _first_number(environment: Mapping[str, str], names: tuple[str, ...], default: int) -> int:
    # A variable that holds something else is skipped, not an error: it is not ours, and MPI_Init will complain.
    return next((int(environment[name]) for name in names if environment.get(name, "").isdecimal()), default)
