"""A stop that arrives while a pod starts is not lost: process 1 of a container ignores what it has no handler for.

Process 1 is that of a namespace, where signals behave as in a container, and it is started as the image starts it.
``BERT_TEST_STOPS`` says how many moments between 0 and 6 s are tried; ``make test-stops`` tries 40.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import flavours
import pods
from cluster_api import wait_until
from component import free_ports

START = pods.ROOT / "images/trainer/bin/bert-pod"
LAST_S = 6.0
MOMENTS = int(os.environ.get("BERT_TEST_STOPS", "0"))
# As a training: it takes a while until it listens, then until it leaves, and longer than any grace period to its end.
PROGRAM = "import time\ntime.sleep(1)\n" + pods.PATIENT


@pytest.fixture(autouse=True)
def _namespaces() -> None:
    if shutil.which("unshare") is None:
        pytest.skip("requires unshare")
    if subprocess.run(["unshare", "--pid", "--fork", "true"]).returncode != 0:
        pytest.skip("requires the right to make process namespaces")


def _hears(status: str) -> bool:
    """Tell whether a container's process holds SIGTERM back or has a handler for it. status: of /proc."""
    if status.startswith("Name:\tunshare\n"):
        return False
    masks = dict(line.split(":\t") for line in status.splitlines() if line.startswith(("SigBlk", "SigCgt")))
    return any(int(mask, 16) >> (signal.SIGTERM - 1) & 1 for mask in masks.values())


@contextmanager
def container(tmp_path: Path, *words: str, **variables: str) -> Iterator[tuple[pods.Running, int]]:
    """Start ``bert-pod`` as process 1; yields it with its number outside, once signals reach it."""
    start = tmp_path / "bert-pod"
    start.write_text(START.read_text().replace("/opt/bert/bin/python3", sys.executable))
    start.chmod(0o755)
    # Without --kill-child a test that fails would leave it behind.
    namespace = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    with pods.running([*namespace, str(start), *words], tmp_path / "log", **variables) as running:
        children = Path(f"/proc/{running.process.pid}/task/{running.process.pid}/children")
        wait_until(children.read_text, "process 1")
        process_1 = int(children.read_text())
        status = Path(f"/proc/{process_1}/status")
        # What comes before its first instructions is lost; in a pod the second of the preStop hook is for that.
        wait_until(lambda: _hears(status.read_text()), "an ear for signals")
        yield running, process_1


def stop_after(tmp_path: Path, moment_s: float, *words: str, **variables: str) -> float:
    """Stop a container a while after its start; returns how long it takes to go, once it has gone as it should."""
    record = tmp_path / "record.json"
    options = ["--termination-log", str(record), "--", sys.executable, "-c", PROGRAM]
    with container(tmp_path, *words, *options, **variables) as (running, process_1):
        threading.Event().wait(moment_s)  # what is tried, not something that is waited for
        began_at_s = time.monotonic()
        os.kill(process_1, signal.SIGTERM)
        code = running.process.wait(pods.DEADLINE_S)
        took_s = time.monotonic() - began_at_s
        assert code == 3, f"after {moment_s:.2f} s: {code}\n{running.output}"
    assert json.loads(record.read_text())["reason"] == "Stopped"
    return took_s


@pytest.mark.parametrize("moment_s", [0.0, 0.2])
def test_a_worker_stops_at_any_moment(tmp_path: Path, moment_s: float) -> None:
    options = ["worker", "--port", str(free_ports(1)[0]), "--key-folder", str(pods.make_keys(tmp_path))]
    with container(tmp_path, *options) as (running, process_1):
        threading.Event().wait(moment_s)
        os.kill(process_1, signal.SIGTERM)
        assert running.process.wait(pods.DEADLINE_S) == 0, running.output


def test_a_launcher_that_waits_for_workers_stops_at_once(tmp_path: Path) -> None:
    record = tmp_path / "record.json"
    words = ["launcher", "--ranks", "1", "--workers", "1", "--slots", "1", "--hostfile", str(tmp_path / "none")]
    with container(tmp_path, *words, "--termination-log", str(record), "--", "true") as (running, process_1):
        os.kill(process_1, signal.SIGTERM)
        assert running.process.wait(pods.DEADLINE_S) == 3, running.output
    assert json.loads(record.read_text())["reason"] == "Stopped"


def test_a_launcher_that_has_no_ranks_yet_is_ended(tmp_path: Path) -> None:
    # It would forward the request to nobody, then start its ranks.
    home = tmp_path / "home"
    (home / "bin").mkdir(parents=True)
    slow = home / "bin" / "mpirun"
    slow.write_text(
        "#!/bin/sh\n"
        'if [ "$1" = --version ]; then echo "mpirun (Open MPI) 5.0.11"; exit; fi\n'
        f"trap '' USR1; echo up > {tmp_path}/up; exec sleep 300\n"
    )
    slow.chmod(0o755)
    record = tmp_path / "record.json"
    words = ["single", "--ranks", "2", "--termination-log", str(record), "--", "true"]
    with container(tmp_path, *words, MPI_HOME=str(home)) as (running, process_1):
        wait_until((tmp_path / "up").exists, "the launcher")
        os.kill(process_1, signal.SIGTERM)
        assert running.process.wait(pods.DEADLINE_S) == 3, running.output
    assert json.loads(record.read_text())["reason"] == "Stopped"


def moments(chosen: list[float]) -> list[float]:
    # Most of a start happens in its first second.
    return [LAST_S * (number / (MOMENTS - 1)) ** 2 for number in range(MOMENTS)] if MOMENTS > 1 else chosen


@pytest.mark.parametrize("moment_s", moments([0.0, 0.05, 0.5]))
def test_a_pod_with_one_rank_stops_at_any_moment(tmp_path: Path, moment_s: float) -> None:
    took_s = stop_after(tmp_path, moment_s, "single", "--ranks", "1")
    sys.stdout.write(f"one rank, stopped at {moment_s:.2f} s: gone after {took_s:.2f} s\n")


@pytest.mark.parametrize("flavour", flavours.FLAVOURS, ids=lambda flavour: flavour.name.replace(" ", "-"))
@pytest.mark.parametrize("moment_s", moments([0.0, 0.5, 1.0]))
def test_ranks_of_every_mpi_stop_at_any_moment(tmp_path: Path, moment_s: float, flavour: flavours.Flavour) -> None:
    flavour.require()
    took_s = stop_after(tmp_path, moment_s, "single", "--ranks", "2", "--mpi", flavour.mpi, **flavour.variables())
    sys.stdout.write(f"{flavour.name}, stopped at {moment_s:.2f} s: gone after {took_s:.2f} s\n")
