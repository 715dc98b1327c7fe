"""How ranks that mpirun started learn one address: a broadcast by MPI, which does nothing else for them.

MPI stays initialized until the ranks leave, which is what a launcher goes by. Measured with one of two ranks killed, or
ended with an exit code, after MPI_Finalize: Open MPI 5.0.11 ends the other one, MPICH 5.0.2 ends it after a kill alone,
Intel MPI 2021.17 in neither case. Before MPI_Finalize each of them ends it in all cases.
"""

from __future__ import annotations

from typing import Any

from bert_trainer.errors import InputError


class MpiRendezvous:
    """This process as an MPI rank, from initialization to ``leave``."""

    def __init__(self) -> None:
        """Initialize MPI.

        Raises:
            InputError: there is no mpi4py, or no MPI that it fits.
        """
        try:
            # MPI is started and ended here, not as the module is imported and as the process exits: an exit without
            # ``leave`` is then a failure to the launcher, which ends the other ranks.
            import mpi4py

            mpi4py.rc.initialize = mpi4py.rc.finalize = False
            from mpi4py import MPI
        except (ImportError, RuntimeError) as error:
            raise InputError(
                f"collectives: got 'torch'; mpirun has started the ranks, and mpi4py, by which they would tell each "
                f"other where they are, cannot be used ({error})",
                hint="set MASTER_ADDR and MASTER_PORT to an address and a free port of rank 0's machine, the same for "
                "all ranks (mpirun -x MASTER_ADDR=... -x MASTER_PORT=...), or start them by torchrun",
            ) from error
        self._mpi: Any = MPI
        MPI.Init()

    def share(self, value: tuple[str, int] | None) -> tuple[str, int]:
        """Broadcast rank 0's value and return it."""
        shared: tuple[str, int] = self._mpi.COMM_WORLD.bcast(value)
        return shared

    def leave(self) -> None:
        """Finalize MPI on this rank, which may wait for the others."""
        self._mpi.Finalize()
