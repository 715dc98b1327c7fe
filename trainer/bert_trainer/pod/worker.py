"""A worker's pod: sshd, through which mpirun starts ranks here, until somebody ends the pod.

Before that the ranks of this pod are asked to stop: they agree with all others on a step, save and leave together.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Self

from bert_trainer.errors import EXIT_INFRASTRUCTURE
from bert_trainer.pod.endings import check_user
from bert_trainer.pod.ranks import adopt_orphans, find_descendants, find_ranks, signal_process
from bert_trainer.pod.scratch import fresh_folder
from bert_trainer.pod.sshd import check_keys, choose_environment, find_sshd, render_config
from bert_trainer.pod.stopping import SIGNALS, release_signals

_LOOK_S = 0.2
_SESSIONS_S = 5.0
_SSHD_S = 5.0
_SIGNALS = (*SIGNALS, signal.SIGCHLD)


class Alarm:
    """Sleeps until a signal comes: a wish to stop, or the end of a child."""

    def __init__(self) -> None:
        """Handlers are installed while the object is entered."""
        self.stops = 0

    def __enter__(self) -> Self:
        self._reader, self._writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._before = {number: signal.signal(number, self._receive) for number in _SIGNALS}
        self._wakeup = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        release_signals()
        return self

    def __exit__(self, *_: object) -> None:
        signal.set_wakeup_fd(self._wakeup)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        os.close(self._reader)
        os.close(self._writer)

    def sleep(self, limit_s: float | None) -> None:
        """Sleep until the next signal, limit_s at most."""
        if select.select([self._reader], [], [], limit_s)[0]:
            os.read(self._reader, 4096)

    def _receive(self, number: int, _frame: FrameType | None) -> None:
        if number != signal.SIGCHLD:
            self.stops += 1


def run_worker(*, port: int, key_folder: Path) -> int:
    """Return the container's exit code: 0 after a stop, 4 if sshd ended by itself.

    Raises:
        InputError: the user, the key or sshd is missing.
    """
    check_user()
    check_keys(key_folder)
    sshd = find_sshd()
    environment, skipped = choose_environment(os.environ)
    for name in skipped:
        sys.stderr.write(f"bert-pod: {name}: has several lines and does not reach the ranks; mount it as a file\n")
    sys.stderr.flush()
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # root's sshd insists on it
    adopt_orphans()
    with Alarm() as alarm, fresh_folder() as folder:
        config = folder / "sshd_config"
        environment["TMPDIR"] = str(folder / "tmp")
        text = render_config(port=port, key_folder=key_folder, environment=environment)
        # It holds secrets.
        with open(os.open(config, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", errors="surrogateescape") as file:
            file.write(text)
        server = subprocess.Popen([sshd, "-D", "-e", "-f", str(config)], stdin=subprocess.DEVNULL)
        return _watch(server, alarm)


def _watch(server: subprocess.Popen[bytes], alarm: Alarm) -> int:
    while not alarm.stops:
        if _reap(server):
            sys.stderr.write(f"bert-pod: sshd has ended with {server.returncode}; its own message stands above\n")
            return EXIT_INFRASTRUCTURE
        alarm.sleep(None)
    _stop_ranks(server, alarm)
    _end_sessions(server, alarm)
    server.send_signal(signal.SIGTERM)
    deadline_s = time.monotonic() + _SSHD_S
    while not _reap(server):
        if time.monotonic() > deadline_s:
            server.kill()
        alarm.sleep(_LOOK_S)
    return 0


def _stop_ranks(server: subprocess.Popen[bytes], alarm: Alarm) -> None:
    """Ask every rank once, and wait until they are gone or somebody insists."""
    asked: set[int] = set()
    while ranks := find_ranks(os.getpid()):
        if alarm.stops > 1:
            for rank in ranks:
                signal_process(rank, signal.SIGTERM)
            return
        for rank in set(ranks) - asked:
            signal_process(rank, signal.SIGUSR1)
        asked |= set(ranks)
        _reap(server)
        alarm.sleep(_LOOK_S)


def _end_sessions(server: subprocess.Popen[bytes], alarm: Alarm) -> None:
    """Let mpirun's helpers report how the ranks ended: one that vanishes is a lost worker to mpirun."""
    deadline_s = time.monotonic() + _SESSIONS_S
    while others := set(find_descendants(os.getpid())) - {os.getpid(), server.pid}:
        if time.monotonic() > deadline_s or alarm.stops > 1:
            for process in others:
                signal_process(process, signal.SIGTERM)
            return
        _reap(server)
        alarm.sleep(_LOOK_S)


def _reap(server: subprocess.Popen[bytes]) -> bool:
    """Take note of every child that has ended, adopted ones too; return whether sshd is among them."""
    while server.returncode is None:
        ended, status = os.waitpid(-1, os.WNOHANG)
        if ended == 0:
            return False
        if ended == server.pid:
            server.returncode = os.waitstatus_to_exitcode(status)
    return True
