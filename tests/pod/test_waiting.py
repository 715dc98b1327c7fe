"""Waiting for workers: what is reported meanwhile, what ends it, and how ssh's failures are named."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

import pods
from bert_trainer.errors import Stopped
from bert_trainer.pod.launcher import (
    WATCHED_VARIABLE,
    Deadline,
    WorkersUnreachable,
    explain_ssh,
    find_ssh,
    probe_name,
    probe_ssh,
    wait_for_hostfile,
    wait_for_probes,
)
from bert_trainer.pod.processes import StopForwarder
from cluster_api import wait_until
from component import free_ports

NOWHERE = "no-such-worker.invalid"  # RFC 2606: never resolves


def listens(port: int) -> str | None:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return None
    return "connection refused"


@contextlib.contextmanager
def starting(action: Callable[[], None]) -> Iterator[None]:
    thread = threading.Thread(target=action)
    thread.start()
    yield
    thread.join()


def test_a_worker_that_appears_late_is_waited_for() -> None:
    port, said = free_ports(1)[0], list[str]()
    listener = socket.socket()

    def appear() -> None:
        wait_until(lambda: said, "something to be said")
        listener.bind(("127.0.0.1", port))
        listener.listen()

    deadline = Deadline(pods.DEADLINE_S, StopForwarder(), said.append, report_every_s=0.2)
    with listener, starting(appear):
        wait_for_probes({"worker-0": lambda: None, "worker-1": partial(listens, port)}, deadline)
    assert said[0] == "Waiting for worker-1: connection refused"
    assert set(said) == {said[0]}


def test_a_report_is_short_however_many_are_missing() -> None:
    said: list[str] = []
    deadline = Deadline(0.4, StopForwarder(), said.append, report_every_s=0.2)
    with pytest.raises(WorkersUnreachable) as ended:
        wait_for_probes({f"worker-{number}": partial(probe_name, NOWHERE) for number in range(10)}, deadline)
    assert said[0] == "Waiting for worker-0: name not resolved"
    assert said[8] == "Waiting for 2 more"
    assert len(ended.value.silent) == 10
    assert "after 0.4 s still waiting for worker-0 (name not resolved), " in str(ended.value)
    assert "worker-7 (name not resolved) and 2 more\nhint: " in str(ended.value)


def test_the_host_file_may_grow_while_it_is_waited_for(tmp_path: Path) -> None:
    path, said = tmp_path / "hostfile", list[str]()

    def grow() -> None:
        wait_until(lambda: said, "something to be said")
        path.write_text("a:2\n")
        wait_until(lambda: "names 1 of 2" in said[-1], lambda: f"the first name, not {said}")
        path.write_text("a:2\nb:2\n")

    deadline = Deadline(pods.DEADLINE_S, StopForwarder(), said.append, report_every_s=0.2)
    with starting(grow):
        hosts = wait_for_hostfile(path, workers=2, slots=2, deadline=deadline)
    assert [host.name for host in hosts] == ["a", "b"]
    assert said[0] == f"Waiting for {path}: cannot be read (No such file or directory)"
    assert said[-1] == f"Waiting for {path}: names 1 of 2 workers"


def test_a_stop_ends_the_waiting() -> None:
    with StopForwarder() as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(Stopped, match="before the ranks were started"):
            wait_for_probes({"worker-0": lambda: "silent"}, Deadline(9, stop, lambda _: None))


@pytest.mark.parametrize(
    ("code", "message", "expected"),
    [
        (255, "ssh: connect to host w port 2222: Connection refused\r\n", "connection refused"),
        (255, "ssh: connect to host w port 2222: Connection timed out", "connection timed out"),
        (255, "ssh: Could not resolve hostname w: Name or service not known", "name not resolved"),
        (255, "Warning: x\nme@w: Permission denied (publickey).", "ssh key rejected"),
        (255, "Bad owner or permissions on /k", "ssh: Bad owner or permissions on /k"),
        (255, "", "ssh failed"),
        (127, "sh: true: not found", "ssh works, but the remote shell exited with 127 (sh: true: not found)"),
    ],
)
def test_ssh_s_failures_have_short_names(code: int, message: str, expected: str) -> None:
    assert explain_ssh(code, message) == expected


@pytest.mark.skipif(shutil.which("ssh") is None, reason="requires ssh")
def test_a_port_without_sshd_refuses() -> None:
    options = ["-o", "BatchMode=yes", "-p", str(free_ports(1)[0])]
    assert probe_ssh(find_ssh(), options, "127.0.0.1") == "connection refused"
    assert probe_ssh("ssh", options, NOWHERE) == "name not resolved"


@pytest.mark.skipif(shutil.which("ssh") is None, reason="requires ssh")
def test_silent_workers_end_the_launcher_with_4_and_are_named(tmp_path: Path) -> None:
    hostfile, record = tmp_path / "hostfile", tmp_path / "record.json"
    hostfile.write_text(f"{NOWHERE} slots=1\n127.0.0.1 slots=1\n")
    options = ["launcher", "--ranks", "2", "--workers", "2", "--slots", "1", "--wait-seconds", "1"]
    options += ["--ssh-port", str(free_ports(1)[0]), "--hostfile", str(hostfile), "--termination-log", str(record)]
    ended = subprocess.run(
        [*pods.POD, *options, "--", sys.executable],
        env=pods.environment(TMPDIR=str(tmp_path)),
        capture_output=True,
        text=True,
        timeout=pods.DEADLINE_S,
        check=False,
    )
    assert ended.returncode == 4, ended.stderr
    assert ended.stderr.startswith("Waiting for 2 workers, 1 s at most\n")
    assert "no-such-worker (name not resolved)" in ended.stderr
    assert '"silentWorkers": ["no-such-worker", "127.0.0.1"]' in record.read_text()


@pytest.mark.skipif(shutil.which("ssh") is None, reason="requires ssh")
def test_under_an_operator_that_sees_pods_the_launcher_has_no_limit_and_says_for_whom_it_waits(tmp_path: Path) -> None:
    hostfile, config = tmp_path / "hostfile", tmp_path / "run.json"
    hostfile.write_text(f"{NOWHERE} slots=1\n")
    config.write_text('{"job": {"uid": "uid-1"}}')
    options = ["launcher", "--ranks", "1", "--workers", "1", "--slots", "1", "--wait-seconds", "1"]
    options += ["--hostfile", str(hostfile), "--termination-log", str(tmp_path / "record.json")]
    known = {"BERT_RUN_CONFIG": str(config), "BERT_ATTEMPT": "2", WATCHED_VARIABLE: "true"}
    with pods.running([*pods.POD, *options, "--", sys.executable], tmp_path / "log", **known) as pod:
        pod.wait_for('bert-trainer/1 event=unreached message="no-such-worker (name not resolved)" job=uid-1 attempt=2')
        with pytest.raises(subprocess.TimeoutExpired):
            pod.process.wait(2)
        pod.process.terminate()
        assert pod.end() == 3
    assert "Waiting for 1 worker, 1 s at most from the moment in which all pods run" in pod.log.read_text()


@pytest.mark.skipif(shutil.which("ssh") is None, reason="requires ssh")
def test_a_launcher_that_waits_stops_on_request(tmp_path: Path) -> None:
    hostfile, record = tmp_path / "hostfile", tmp_path / "record.json"
    hostfile.write_text("127.0.0.1 slots=1\n")
    options = ["launcher", "--ranks", "1", "--workers", "1", "--slots", "1", "--ssh-port", str(free_ports(1)[0])]
    options += ["--hostfile", str(hostfile), "--termination-log", str(record)]
    with pods.running([*pods.POD, *options, "--", sys.executable], tmp_path / "log") as pod:
        pod.wait_for("Waiting for 1 worker")
        pod.process.terminate()
        assert pod.end() == 3
    assert '"reason": "Stopped"' in record.read_text()
