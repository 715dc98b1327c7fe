"""Which rank of how many a launcher has started this process as: mpirun of any MPI, torchrun or horovodrun.

``mpi_variables`` tells of MPI alone, which is what those need to know that are about to load MPI.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from bert_trainer.system import mpi_variables

Launcher = Literal["MPI", "torchrun", "horovodrun"]

# torchrun sets all of them for its ranks (torch.distributed.run, "Environment Variables"). The first is its alone: the
# others are also set by hand, and by whoever else starts one process per rank for torch.distributed.
_TORCHRUN_ONLY = "TORCHELASTIC_RUN_ID"
_TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
# Of horovodrun with Gloo; with MPI it calls mpirun.
_HOROVODRUN = ("HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_SIZE")


@dataclass(frozen=True, slots=True)
class LaunchedRank:
    """A process's place among the ranks that its launcher started."""

    launcher: Launcher
    rank: int
    size: int
    local_size: int
    """Ranks on this machine, or in this pod; 1 if the launcher does not say."""


def read_launched(environment: Mapping[str, str]) -> LaunchedRank | None:
    """Return what the environment says of this process's launcher; None if there was none.

    The innermost launcher counts: torchrun, where it was started inside an allocation whose variables of MPI are still
    there, and mpirun, where somebody has also set WORLD_SIZE.
    """
    if _TORCHRUN_ONLY in environment and (found := _read("torchrun", environment, _TORCHRUN)) is not None:
        return found
    if any(name in environment for name in mpi_variables.SIZE_VARIABLES):
        return LaunchedRank(
            "MPI",
            mpi_variables.read_rank(environment),
            mpi_variables.read_size(environment),
            mpi_variables.read_local_size(environment),
        )
    return _read("horovodrun", environment, _HOROVODRUN) or _read("torchrun", environment, _TORCHRUN)


def _read(launcher: Launcher, environment: Mapping[str, str], names: tuple[str, str, str]) -> LaunchedRank | None:
    rank, size, local_size = (_number(environment, name) for name in names)
    return None if rank is None or size is None else LaunchedRank(launcher, rank, size, local_size or 1)


def _number(environment: Mapping[str, str], name: str) -> int | None:
    value = environment.get(name, "")
    return int(value) if value.isdecimal() else None
