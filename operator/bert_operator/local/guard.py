"""Kills what ``bert-operator local`` has started if that is killed itself: a watchdog process beside it.

It blocks on a pipe whose other end closes with the command, whatever ends that, SIGKILL included; launchers do not
notice. Run as a file, ``guard.py FOLDER``, it imports nothing of this package: it is in memory as long as the command.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

TERMINATION_LOG_VARIABLE = "BERT_TERMINATION_LOG"
"""Its value, which is unique to a child, marks the processes of that child: ranks inherit it, across sessions, too."""

_DONE = b"done"
_KILL_S = 10.0
_KILL_PAUSE_S = 0.02
_UNCERTAIN_S = 0.5
_REMOTE_S = 2.0
"""What a launcher gets to stop its ranks on other machines."""
_EXIT_S = 5.0
_KERNEL_PARENTS = (0, 2)  # of Linux's kernel threads, which have no environment at all


@contextlib.contextmanager
def guarded(folder: Path) -> Iterator[None]:
    """Kill the processes whose termination record is in this folder if this process dies inside the block."""
    command = [sys.executable, "-P", __file__, str(folder)]
    nothing = subprocess.DEVNULL
    # A session of its own: a signal to the terminal's foreground group (Ctrl-C), or to our process group, must not kill
    # the guard before it has done its work.
    guard = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=nothing, stderr=nothing, start_new_session=True)
    try:
        yield
    finally:
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            guard.communicate(_DONE, timeout=_EXIT_S)
        guard.kill()
        guard.wait()


def kill_all(look: Callable[[], tuple[list[psutil.Process], bool]]) -> None:
    """Kill processes repeatedly until none is found, for at most ten seconds. look: as ``find_members``.

    In a loop: a process may fork between being listed and being killed.
    """
    began_at_s = time.monotonic()
    while (elapsed_s := time.monotonic() - began_at_s) < _KILL_S:
        members, is_certain = look()
        if not members and (is_certain or elapsed_s > _UNCERTAIN_S):
            return
        for member in members:
            with contextlib.suppress(psutil.Error):
                member.kill()
        time.sleep(_KILL_PAUSE_S)


def find_members(
    is_marked: Callable[[str], bool], session: int | None, since_s: float
) -> tuple[list[psutil.Process], bool]:
    """Return the live processes of a session or with a marker, and whether the search was complete.

    Args:
        is_marked: Takes the value of ``BERT_TERMINATION_LOG``.
        session: Session id; None: only the mark counts.
        since_s: When the first of them was started. A process in the middle of exec has no environment for a moment;
            if it is younger than this, the answer is uncertain and the caller has to look again.
    """
    members, is_certain = [], True
    for pid in psutil.pids():
        with contextlib.suppress(psutil.Error, OSError):
            # Not process_iter, which keeps what it found for the next call: it takes a process whose number is used
            # again for the old one, and that cannot be signalled.
            process = psutil.Process(pid)
            if process.pid == os.getpid() or process.status() == psutil.STATUS_ZOMBIE:
                continue
            if session is not None and os.getsid(process.pid) == session:
                members.append(process)
            elif environment := process.environ():
                if is_marked(environment.get(TERMINATION_LOG_VARIABLE, "")):
                    members.append(process)
            elif process.uids().real == os.getuid() and process.ppid() not in _KERNEL_PARENTS:
                is_certain = is_certain and process.create_time() < since_s
    return members, is_certain


def _end_all(folder: str, since_s: float) -> None:
    def look() -> tuple[list[psutil.Process], bool]:
        return find_members(lambda path: path.startswith(f"{folder}{os.sep}"), None, since_s)

    members, _ = look()
    if any(_name_of(member) == "ssh" for member in members):
        # Ranks on other machines are stopped by their launcher. If ssh died first, nothing would reach them any more:
        # SIGTERM to everything but ssh, and time to pass it on.
        for member in members:
            with contextlib.suppress(psutil.Error):
                if _name_of(member) != "ssh":
                    member.terminate()
        psutil.wait_procs(members, timeout=_REMOTE_S)
    kill_all(look)


def _name_of(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return process.name()
    return ""


if __name__ == "__main__":
    started_at_s = time.time()
    if sys.stdin.buffer.read() != _DONE:
        _end_all(sys.argv[1], started_at_s)
