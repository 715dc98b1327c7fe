"""Ranks are bound as the job says, by the options of each MPI; with Open MPI the result is checked as well."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

import pods
from bert_trainer.pod.mpi import (
    Binding,
    Launcher,
    Place,
    intel_binding,
    mpich_binding,
    open_mpi_binding,
    render_local_command,
    render_remote_command,
)

ANY = re.compile("x(1)")


def binding(place: Place, ranks_per_place: int = 1, cores: int | None = None) -> Binding:
    return Binding(place=place, ranks_per_place=ranks_per_place, cores_per_rank=cores)


@pytest.mark.parametrize(
    ("asked", "open_mpi", "mpich", "intel"),
    [
        (
            binding("core", cores=8),
            "--map-by slot:PE=8 --bind-to core",
            "-bind-to core:8",
            "-genv I_MPI_PIN_DOMAIN 8:compact -genv I_MPI_PIN_CELL core -genv I_MPI_PIN_ORDER compact",
        ),
        (
            binding("socket", 2),
            "--map-by ppr:2:socket --bind-to socket",
            "-bind-to socket",
            "-genv I_MPI_PIN_DOMAIN socket",
        ),
        (
            binding("socket", 2, 14),
            "--map-by ppr:2:socket:PE=14 --bind-to core",
            "-bind-to core:14 -map-by socket",
            "-genv I_MPI_PIN_DOMAIN 14:compact -genv I_MPI_PIN_CELL core -genv I_MPI_PIN_ORDER bunch",
        ),
        (
            binding("numa", 1, 6),
            "--map-by ppr:1:numa:PE=6 --bind-to core",
            "-bind-to core:6 -map-by numa",
            "-genv I_MPI_PIN_DOMAIN 6:compact -genv I_MPI_PIN_CELL core -genv I_MPI_PIN_ORDER bunch",
        ),
    ],
)
def test_every_mpi_has_options_for_it(asked: Binding, open_mpi: str, mpich: str, intel: str) -> None:
    assert " ".join(open_mpi_binding(asked)) == open_mpi
    assert " ".join(mpich_binding(asked)) == mpich
    assert " ".join(intel_binding(asked)) == intel


def test_binding_options_precede_the_program_and_replace_no_binding() -> None:
    launcher = Launcher("OpenMPI", "/bin/mpirun", ("--output", "tag"), ANY)
    local = render_local_command(launcher, ranks=2, is_root=False, program=("t",), binding=binding("core", cores=4))
    assert " ".join(local) == "/bin/mpirun -np 2 --map-by slot:PE=4 --bind-to core --output tag t"
    for mpi, words in (("MPICH", mpich_binding), ("Intel", intel_binding)):
        hydra = Launcher(mpi, "/bin/mpiexec", (), ANY)  # type: ignore[arg-type]
        spread = render_remote_command(
            hydra, ranks=4, slots=2, hostfile="/h", exports=("A",), is_root=False, program=("t",),
            binding=binding("socket", 2),
        )  # fmt: skip
        bound = words(binding("socket", 2))
        assert spread == ("/bin/mpiexec", "-f", "/h", "-n", "4", "-ppn", "2", *bound, "-genvlist", "A", "t")


@pytest.mark.horovod
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="requires two cores")
@pytest.mark.parametrize(
    ("options", "cores"), [(["--bind", "core", "--cores-per-rank", "1"], 1), (["--bind", "none"], 2)]
)
def test_open_mpi_binds_ranks_as_asked(options: list[str], cores: int) -> None:
    code = "import os; print('cores', sorted(os.sched_getaffinity(0)))"
    program = ["--", sys.executable, "-c", code]
    command = [*pods.POD, "single", "--ranks", "2", *options, *program]
    ended = subprocess.run(command, capture_output=True, text=True, env=pods.environment())
    assert ended.returncode == 0, ended.stderr
    seen = re.findall(r"cores \[(.*?)\]", ended.stdout)
    assert len(seen) == 2
    assert all(len(line.split(",")) >= cores for line in seen)
    assert len(set(seen)) == (2 if cores == 1 else 1)
