"""Ranks under the launchers themselves: signals and exit codes go through mpirun, horovodrun and torchrun.

Each shows an exit code of a rank and a signal. Starting horovodrun or torchrun costs three seconds, so under horovodrun
the code is the 3 of a stop (others are read in test_launch), and the stop under torchrun is in test_torch_ranks.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from queue import SimpleQueue

import pytest

from bert_operator.local import launch
from bert_operator.local.launch import LauncherName, Placement
from bert_operator.local.processes import ChildProcess, Exited, Line
from bert_operator.local.programs import find_programs
from bert_operator.state.observed import ChildOutcome, read_outcome
from patience import PATIENCE_S

PROGRAMS = find_programs()
WORLD = Placement(ranks=2, ranks_per_node=2)

RANK = """
import os, signal, sys
rank = next(os.environ[name] for name in ("OMPI_COMM_WORLD_RANK", "HOROVOD_RANK", "RANK") if name in os.environ)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
print(f"rank {rank} attempt {os.environ['BERT_ATTEMPT']} threads {os.environ['OMP_NUM_THREADS']}", flush=True)
what = sys.argv[1]
if what == "wait":
    signal.sigwait({signal.SIGUSR1})
    sys.exit(3)
if rank == "1":
    os.kill(os.getpid(), signal.SIGKILL) if what == "die" else sys.exit(int(what))
signal.sigwait({signal.SIGUSR1})
"""


def run_ranks(
    tmp_path: Path, launcher: LauncherName, what: str, *, stop: bool = False
) -> tuple[ChildOutcome, list[str]]:
    script = tmp_path / "rank.py"
    script.write_text(RANK)
    program = (sys.executable, str(script), what)
    programs = type(PROGRAMS)(
        prepare=(),
        train=program,
        mpirun=PROGRAMS.mpirun,
        horovodrun=PROGRAMS.horovodrun,
        torchrun=PROGRAMS.torchrun,
        is_root=PROGRAMS.is_root,
    )
    environment = launch.build_environment(
        os.environ, attempt=1, termination_log=str(tmp_path / "record.json"), threads=1
    )
    events: SimpleQueue[Line | Exited] = SimpleQueue()
    child = ChildProcess(launch.launch_training(programs, launcher, WORLD, "c.json", environment), events.put)
    lines: list[Line] = []
    try:
        while isinstance(event := events.get(timeout=PATIENCE_S), Line):
            lines.append(event)
            ready = [line for line in lines if line.text.startswith("rank ")]
            if stop and len(ready) == WORLD.ranks:
                child.request_stop()
                stop = False
    finally:
        return_code = child.finish()
    launcher_lines = [line.text for line in lines if not line.from_rank]
    first = launch.read_gloo_exit(launcher_lines) if return_code == 1 else None
    return read_outcome(first or return_code, None), [line.text for line in lines if line.from_rank]


OPEN_MPI = pytest.param(
    "open-mpi", marks=pytest.mark.skipif(PROGRAMS.mpirun is None, reason="requires Open MPI's mpirun")
)
GLOO = pytest.param(
    "gloo",
    marks=[
        pytest.mark.horovod,
        pytest.mark.slow,
        pytest.mark.skipif(PROGRAMS.horovodrun is None, reason="requires horovodrun"),
    ],
)
TORCHRUN = pytest.param("torchrun", marks=pytest.mark.slow)


@pytest.mark.parametrize("launcher", [OPEN_MPI, GLOO])
def test_ranks_are_stopped_gracefully(tmp_path: Path, launcher: LauncherName) -> None:
    outcome, lines = run_ranks(tmp_path, launcher, "wait", stop=True)
    assert outcome.state == "Stopped"
    assert {line for line in lines if line.startswith("rank")} == {
        "rank 0 attempt 1 threads 1",
        "rank 1 attempt 1 threads 1",
    }


@pytest.mark.parametrize("launcher", [OPEN_MPI, TORCHRUN])
def test_bad_input_of_one_rank_is_the_run_s(tmp_path: Path, launcher: LauncherName) -> None:
    outcome, _ = run_ranks(tmp_path, launcher, "2")
    assert (outcome.state, outcome.exit_code) == ("Failed", 2)


@pytest.mark.parametrize("launcher", [OPEN_MPI, GLOO, TORCHRUN])
def test_a_rank_that_is_killed_takes_the_run_with_it(tmp_path: Path, launcher: LauncherName) -> None:
    outcome, _ = run_ranks(tmp_path, launcher, "die")
    assert (outcome.state, outcome.signal) == ("Failed", 9)
