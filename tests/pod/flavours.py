"""The MPIs that tests of launchers run with, and where they are.

Open MPI 5 comes with ``make setup``. The others are used where a variable names their prefix, the folder that holds
``bin`` and ``lib``::

    BERT_TEST_MPICH      a virtual environment with mpich (5.0.2)
    BERT_TEST_INTEL_MPI  a virtual environment with impi-rt (2021.17.2)
    BERT_TEST_OPEN_MPI_4 Open MPI 4, for example usr of Debian's openmpi-bin, libopenmpi3 and what they depend on

Training needs a Horovod that was built for the MPI as well (tools/horovod_wheel.sh), unpacked below the prefix in
``lib/python3.X/site-packages``. MPICH's also runs with Intel MPI.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from bert_trainer.pod.mpi import Mpi


@dataclass(frozen=True)
class Flavour:
    """One MPI."""

    name: str
    mpi: Mpi
    variable: str | None
    """That names the prefix; None: the one beside the interpreter."""

    @property
    def prefix(self) -> Path:
        return Path(sys.prefix) if self.variable is None else Path(os.environ.get(self.variable, ""))

    @property
    def horovod(self) -> Path | None:
        """Where its Horovod is; None: beside the interpreter's other packages."""
        if self.variable is None:
            return None
        return next((path.parent for path in self.prefix.glob("lib/python3.*/site-packages/horovod")), Path("/missing"))

    def require_horovod(self) -> None:
        """Skip the test where there is no Horovod for it."""
        self.require()
        if self.horovod == Path("/missing"):
            pytest.skip(f"requires a Horovod for {self.name} below {self.prefix}/lib")

    def require(self) -> None:
        """Skip the test where this MPI is not there."""
        if self.variable is not None and not os.environ.get(self.variable):
            pytest.skip(f"requires {self.name}; {self.variable} names its prefix")
        if not (self.prefix / "bin" / "mpirun").exists():
            pytest.skip(f"requires {self.prefix}/bin/mpirun")

    def variables(self) -> dict[str, str]:
        """Return the variables of an image that holds it."""
        if self.variable is None:
            return {}
        prefix = str(self.prefix)
        found = {"MPI_HOME": prefix, "LD_LIBRARY_PATH": f"{prefix}/lib", "MPI4PY_LIBMPI": f"{prefix}/lib"}
        if self.mpi == "Intel":
            found |= {"I_MPI_ROOT": prefix, "FI_PROVIDER_PATH": f"{prefix}/lib", "FI_PROVIDER": "tcp"}
        if self.mpi == "OpenMPI":
            found["OPAL_PREFIX"] = prefix  # it may not lie where it was made for
        return found


FLAVOURS = (
    Flavour("Open MPI 5", "OpenMPI", None),
    Flavour("Open MPI 4", "OpenMPI", "BERT_TEST_OPEN_MPI_4"),
    Flavour("MPICH", "MPICH", "BERT_TEST_MPICH"),
    Flavour("Intel MPI", "Intel", "BERT_TEST_INTEL_MPI"),
)
