"""Every MPI starts ranks on two hosts, passes variables on, forwards stop requests, and reports failures.

The hosts are namespaces of this machine behind real ssh. ``flavours`` says which MPIs there are.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import flavours
import pods
import ssh_hosts
from flavours import FLAVOURS, Flavour

PROGRAM = (sys.executable, "-c", pods.PATIENT)


@pytest.fixture(params=FLAVOURS, ids=lambda flavour: flavour.name.replace(" ", "-"))
def flavour(request: pytest.FixtureRequest) -> Flavour:
    found: Flavour = request.param
    found.require()
    return found


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ssh_hosts.Cluster]:
    if lacking := ssh_hosts.missing():
        pytest.skip(f"requires {lacking}")
    with ssh_hosts.started_cluster(tmp_path, 2) as started:
        yield started


def launcher_options(tmp_path: Path, flavour: Flavour, ranks: int = 2) -> list[str]:
    words = ["--mpi", flavour.mpi, "--ranks", str(ranks), "--workers", "2", "--slots", str(ranks // 2)]
    return [*words, "--wait-seconds", "20", "--export", "GREETING", "--termination-log", str(tmp_path / "record.json")]


def read_record(tmp_path: Path) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((tmp_path / "record.json").read_text())
    return record


def single(tmp_path: Path, flavour: Flavour, program: str, mpi: str | None = None) -> subprocess.CompletedProcess[str]:
    words = ["single", "--ranks", "2", "--mpi", mpi or flavour.mpi]
    words += ["--termination-log", str(tmp_path / "record.json"), "--", sys.executable, "-c", program]
    return subprocess.run(
        [*pods.POD, *words],
        env=pods.environment(TMPDIR=str(tmp_path), **flavour.variables()),
        capture_output=True,
        text=True,
        timeout=pods.DEADLINE_S,
        check=False,
    )


@pytest.mark.slow
def test_ranks_run_on_both_hosts_and_leave_together(
    flavour: Flavour, cluster: ssh_hosts.Cluster, tmp_path: Path
) -> None:
    own = flavour.variables()
    command = PROGRAM[:2] + (
        pods.PATIENT.replace(
            pods.WAITS,
            "print('greeting', os.environ.get('GREETING'), os.environ['OMP_NUM_THREADS'], flush=True)\n" + pods.WAITS,
        ),
    )
    variables = {"GREETING": "a 'b' $c", "OMP_NUM_THREADS": "3", "BERT_ATTEMPT": "1", **own}
    options = launcher_options(tmp_path, flavour)
    options[options.index("GREETING")] = "GREETING,OMP_NUM_THREADS"
    with (
        cluster.worker(0, TOKEN="t0", **own),
        cluster.worker(1, TOKEN="t1", **own),
        cluster.launcher(options, command, **variables) as launcher,
    ):
        launcher.wait_for("2 ranks on 2 hosts: 0 on run-worker-0, 1 on run-worker-1")
        launcher.wait_for("rank 0 on run-worker-0 with 't0'")
        launcher.wait_for("[1] rank 1 on run-worker-1 with 't1'")
        launcher.wait_for("greeting a 'b' $c 3", count=2)
        launcher.process.terminate()
        assert launcher.end() == 3, launcher.output
    assert re.search(f"^Starting 2 ranks with {flavour.name}", launcher.output, re.MULTILINE)
    record = read_record(tmp_path)
    assert (record["reason"], record["exitCode"], record["checkpoint"]) == ("Stopped", 3, "/out/phase1-7")


@pytest.mark.slow
def test_a_drained_host_s_rank_is_asked_to_leave(flavour: Flavour, cluster: ssh_hosts.Cluster, tmp_path: Path) -> None:
    # As the trainer's ranks do, these agree to leave: here by a file.
    agreed = tmp_path / "agreed"
    program = pods.PATIENT.replace(
        pods.WAITS,
        f"path = {str(agreed)!r}\nwhile rank == '0' and not os.path.exists(path): time.sleep(0.05)\n"
        "if rank == '0': leave(0, None)\n" + pods.WAITS,
    ).replace("def leave(number, frame):", f"def leave(number, frame):\n    open({str(agreed)!r}, 'w').close()")
    own = {"BERT_ATTEMPT": "1", **flavour.variables()}
    with (
        cluster.worker(0, **own),
        cluster.worker(1, **own) as drained,
        cluster.launcher(launcher_options(tmp_path, flavour), (*PROGRAM[:2], program), **own) as launcher,
    ):
        launcher.wait_for("[1] rank 1 on run-worker-1")
        launcher.wait_for("rank 0 on run-worker-0")
        ssh_hosts.end_process_1(drained)
        assert launcher.end() == 3, launcher.output
        assert drained.end() == 0, drained.output
    assert read_record(tmp_path)["reason"] == "Stopped"


@pytest.mark.slow
def test_a_host_that_vanishes_is_named(flavour: Flavour, cluster: ssh_hosts.Cluster, tmp_path: Path) -> None:
    own = flavour.variables()
    with (
        cluster.worker(0, **own),
        cluster.worker(1, **own) as lost,
        cluster.launcher(launcher_options(tmp_path, flavour), PROGRAM, **own) as launcher,
    ):
        launcher.wait_for("[1] rank 1 on run-worker-1")
        launcher.wait_for("rank 0 on run-worker-0")
        lost.kill()
        assert launcher.end() == 4, launcher.output
    assert read_record(tmp_path)["reason"] == "WorkerLost"


@pytest.mark.slow
def test_two_slots_of_a_host_are_filled_before_the_next(
    flavour: Flavour, cluster: ssh_hosts.Cluster, tmp_path: Path
) -> None:
    text = cluster.hostfile.read_text()
    # As mpi-operator writes it: NAME:S for all but Open MPI.
    written = "slots=2" if flavour.mpi == "OpenMPI" else ":2"
    text = text.replace("slots=1", written) if flavour.mpi == "OpenMPI" else text.replace(" slots=1", written)
    cluster.hostfile.write_text(text)
    own = flavour.variables()
    program = (*PROGRAM[:2], "import os, sys; print('here', len(os.sched_getaffinity(0)))")
    with (
        cluster.worker(0, **own),
        cluster.worker(1, **own),
        cluster.launcher(launcher_options(tmp_path, flavour, ranks=4), program, **own) as launcher,
    ):
        assert launcher.end() == 0, launcher.output
    assert "4 ranks on 2 hosts: 0, 1 on run-worker-0, 2, 3 on run-worker-1" in launcher.lines
    assert launcher.output.count("here") == 4


def test_a_rank_s_exit_code_and_name_are_reported(flavour: Flavour, tmp_path: Path) -> None:
    code = "import os, sys, time\nrank = os.environ.get('PMI_RANK') or os.environ['OMPI_COMM_WORLD_RANK']\n"
    ended = single(tmp_path, flavour, code + "if rank == '1': raise ValueError('no such row')\ntime.sleep(20)")
    assert ended.returncode == 1, ended.stderr
    record = read_record(tmp_path)
    assert (record["reason"], record["message"]) == ("ValueError", "no such row")


def test_a_killed_rank_counts_as_killed(flavour: Flavour, tmp_path: Path) -> None:
    code = "import os, sys, time\nrank = os.environ.get('PMI_RANK') or os.environ['OMPI_COMM_WORLD_RANK']\n"
    ended = single(tmp_path, flavour, code + "if rank == '1': os.kill(os.getpid(), 9)\ntime.sleep(20)")
    assert ended.returncode == 137, ended.stderr
    assert read_record(tmp_path)["reason"] == "SIGKILL"


@pytest.mark.parametrize("asked", FLAVOURS, ids=lambda flavour: flavour.name.replace(" ", "-"))
def test_another_mpi_than_the_image_s_is_refused_by_name(asked: Flavour, tmp_path: Path, flavour: Flavour) -> None:
    if asked.mpi == flavour.mpi:
        pytest.skip("the same MPI")
    if asked.mpi == "OpenMPI":
        pytest.skip("the tests' own environment always has Open MPI")
    ended = single(tmp_path, flavour, "print('started')", mpi=asked.mpi)
    assert ended.returncode == 2
    assert "started" not in ended.stdout
    record = read_record(tmp_path)
    assert record["reason"] == "WrongMPI"
    assert f"found: {flavour.name}" in record["message"] or f", {flavour.name}" in record["message"]


@pytest.mark.slow
def test_a_launcher_that_keeps_all_ranks_to_itself_ends_before_they_begin(
    cluster: ssh_hosts.Cluster, tmp_path: Path
) -> None:
    # What Open MPI 5 does where it is given nothing but Open MPI 4's variables: it never sees the host file.
    flavour = FLAVOURS[0]
    flavour.require()
    home = tmp_path / "home"
    (home / "bin").mkdir(parents=True)
    deaf = home / "bin" / "mpirun"
    deaf.write_text(
        f"#!{sys.executable}\nimport os, sys\nwords = sys.argv[1:]\n"
        "if '--hostfile' in words:\n    at = words.index('--hostfile')\n    del words[at : at + 2]\n"
        "    words[words.index('--map-by') + 1] = ':OVERSUBSCRIBE'\n"
        f"real = {str(flavour.prefix / 'bin' / 'mpirun')!r}\nos.execv(real, [real, *words])\n"
    )
    deaf.chmod(0o755)
    begun = tmp_path / "begun"
    program = (sys.executable, "-c", f"import time; time.sleep(15); open({str(begun)!r}, 'w')")
    with (
        cluster.worker(0),
        cluster.worker(1),
        cluster.launcher(launcher_options(tmp_path, flavour), program, MPI_HOME=str(home)) as launcher,
    ):
        assert launcher.end() == 2, launcher.output
    assert not begun.exists()
    record = read_record(tmp_path)
    assert (record["reason"], record["exitCode"]) == ("WrongWorld", 2)
    assert "on 1 host (run-launcher), the job asks for 2 ranks on 2 hosts" in record["message"]


def test_worlds_of_a_single_rank_are_refused(tmp_path: Path) -> None:
    # A launcher whose MPI is not the program's: each rank believes that it is alone.
    home = tmp_path / "home"
    (home / "bin").mkdir(parents=True)
    stranger = home / "bin" / "mpirun"
    stranger.write_text(
        "#!/bin/sh\n"
        'if [ "$1" = --version ]; then echo "mpirun (Open MPI) 5.0.11"; exit; fi\n'
        'while [ "$1" != tag ]; do shift; done; shift\n'
        '("$@" | sed "s/^/[1,0]<stdout>:/") & ("$@" | sed "s/^/[1,1]<stdout>:/") & wait\n'
    )
    stranger.chmod(0o755)
    words = ["single", "--ranks", "2", "--termination-log", str(tmp_path / "record.json"), "--", "sleep", "1"]
    environment = pods.environment(TMPDIR=str(tmp_path), MPI_HOME=str(home))
    ended = subprocess.run([*pods.POD, *words], env=environment, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2, ended.stderr
    record = read_record(tmp_path)
    assert record["reason"] == "WrongWorld"
    assert "started 1 rank, the job asks for 2 ranks" in record["message"]


def test_the_flavours_are_all_that_a_job_may_name() -> None:
    from bert_trainer.pod.mpi import MPIS

    assert {flavour.mpi for flavour in flavours.FLAVOURS} == set(MPIS)
