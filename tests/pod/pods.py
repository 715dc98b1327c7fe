"""Processes of ``bert-pod`` for tests: started with a clean environment, watched with deadlines, never left behind."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from cluster_api import wait_until
from patience import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = PATIENCE_S
SSHD = shutil.which("sshd") or "/usr/sbin/sshd"
POD = (sys.executable, "-m", "bert_trainer.pod")

WAITS = "time.sleep(300)"
"""The last line of PATIENT, for tests that put something before it."""

# Says that it is there, leaves with 3 on SIGUSR1 as the trainer does, and gives up after a while.
PATIENT = (
    """
import os, signal, socket, sys, time
rank = os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ.get("PMI_RANK", "0")
def leave(number, frame):
    if rank == "0":  # by os.write: the signal may come in the middle of a print
        os.write(1, b'bert-trainer/1 event=checkpoint stage=phase1 step=7 path=/out/phase1-7\\n')
        os.write(1, b'bert-trainer/1 event=stopped stage=phase1 step=7 message="stopped on request"\\n')
    time.sleep(0.2)  # the first rank to leave makes mpirun end the others
    sys.exit(3)
signal.signal(signal.SIGUSR1, leave)
if rank == "0":
    print("bert-trainer/1 event=progress stage=phase1 step=6 steps=10", flush=True)
print("rank", rank, "on", socket.gethostname(), "with", repr(os.environ.get("TOKEN")), flush=True)
"""
    + WAITS
)


def environment(**variables: str) -> dict[str, str]:
    """Return this process's environment without what concerns a job."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("BERT_", "OMPI_", "PRTE_", "I_MPI_", "HYDRA_"))
    }
    kept.pop("PYTHONUNBUFFERED", None)
    return {**kept, "PYTHONPATH": f"{ROOT}/trainer", **variables}


class Running:
    """A process that writes to a file, in a session of its own."""

    def __init__(self, command: Sequence[str], log: Path, variables: dict[str, str]) -> None:
        """Start it."""
        self.log = log
        with log.open("wb") as file:
            self.process = subprocess.Popen(
                command,
                # What a killed process leaves behind goes with the test's folder.
                env=environment(**{"TMPDIR": str(log.parent), **variables}),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )

    @property
    def output(self) -> str:
        return self.log.read_text(errors="replace")

    @property
    def lines(self) -> list[str]:
        return self.output.splitlines()

    def wait_for(self, text: str, count: int = 1) -> None:
        """Wait until the output holds a text that often."""
        wait_until(lambda: self.output.count(text) >= count, lambda: f"{text!r} in:\n{self.output}")

    def end(self) -> int:
        """Wait for its end and return the code."""
        return self.process.wait(DEADLINE_S)

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@contextlib.contextmanager
def running(command: Sequence[str], log: Path, **variables: str) -> Iterator[Running]:
    """Start a process and end it in any case."""
    process = Running(command, log, variables)
    try:
        yield process
    finally:
        process.kill()


def missing_openssh() -> list[str]:
    """Return what of OpenSSH this machine lacks; sshd is often outside of PATH."""
    lacking = [name for name in ("ssh", "ssh-keygen") if shutil.which(name) is None]
    return lacking if os.access(SSHD, os.X_OK) else [*lacking, "sshd"]


def make_keys(folder: Path) -> Path:
    """Write a key as mpi-operator mounts it; return its folder. Skips the test where nobody could use it."""
    if lacking := missing_openssh():
        pytest.skip(f"requires {', '.join(lacking)}")
    keys = folder / "keys"
    keys.mkdir()
    key = keys / "id_rsa"
    subprocess.run(["ssh-keygen", "-q", "-t", "ecdsa", "-N", "", "-f", str(key)], check=True, capture_output=True)
    (keys / "authorized_keys").write_bytes((keys / "id_rsa.pub").read_bytes())
    return keys
