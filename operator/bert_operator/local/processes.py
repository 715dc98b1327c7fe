"""One child on this machine: a launcher and its ranks, started, read, stopped, and never left behind.

It knows nothing about jobs. The child runs in a session of its own, so Ctrl-C in a terminal does not reach it: stopping
is up to the caller.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO

import psutil

from bert_operator.local.guard import TERMINATION_LOG_VARIABLE, find_members, kill_all
from bert_operator.local.launch import Launch, split_prefix

_MAX_LINE = 65_536
_LAST_OUTPUT_S = 5.0


@dataclass(frozen=True, slots=True)
class Line:
    """A line of output, standard error included."""

    child: ChildProcess
    text: str
    from_rank: bool
    """False: the launcher itself wrote it."""


@dataclass(frozen=True, slots=True)
class Exited:
    """The launcher has exited; some of its ranks may still be running."""

    child: ChildProcess


class ChildProcess:
    """A launcher and everything it started.

    ``put`` is called from other threads: with any number of ``Line``, and one ``Exited``. ``finish`` must always be
    called; afterwards no process of the child is left.
    """

    def __init__(self, launch: Launch, put: Callable[[Line | Exited], None]) -> None:
        """Start the launcher. Raises OSError if it cannot be started."""
        self._launch = launch
        self._put = put
        self._marker = launch.environment.get(TERMINATION_LOG_VARIABLE)
        self._started_at_s = time.time() - 1.0  # psutil's create times are rounded
        environment = dict(launch.environment)
        # Open MPI names its session folder after a process id, and fails if one that was killed left the same name.
        self._temporary = tempfile.TemporaryDirectory(prefix="bert-", ignore_cleanup_errors=True)
        if launch.is_local:
            environment["TMPDIR"] = self._temporary.name
        self._process = subprocess.Popen(
            launch.command,
            env=environment,
            # mpirun reads its standard input to pass it on to rank 0: it would take what the user types.
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            # One pipe for both, so that a traceback stands where it happened among the other lines.
            stderr=subprocess.STDOUT,
            # Its process group cannot be signalled from the terminal, and its session finds its descendants.
            start_new_session=True,
        )
        assert self._process.stdout is not None, "a pipe was asked for"
        # Daemons: finish waits for the reader for a limited time only, and what is left must not keep the command from
        # ending.
        self._reader = threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True)
        self._reader.start()
        threading.Thread(target=self._wait, daemon=True).start()

    def request_stop(self) -> None:
        """Send SIGUSR1, on which ranks write a checkpoint and exit.

        mpirun forwards it to all ranks. horovodrun and torchrun do not, so local ranks are found by their command line.
        """
        if self._launch.launcher not in ("gloo", "torchrun"):
            self._signal_launcher(signal.SIGUSR1)
            return
        for member in self._look()[0]:
            with contextlib.suppress(psutil.Error):
                # The shells between horovodrun and a rank have the program in their command lines too, but not as the
                # whole.
                if tuple(member.cmdline()) == self._launch.program:
                    member.send_signal(signal.SIGUSR1)

    def terminate(self) -> None:
        """Send SIGTERM to the launcher, which then kills its ranks."""
        self._signal_launcher(signal.SIGTERM)

    def kill(self) -> None:
        """Kill every process of the child. Return when they are gone, or after ten seconds."""
        kill_all(self._look)

    def finish(self) -> int:
        """Make sure that no process is left and every line was put; return the launcher's return code."""
        self.kill()
        return_code = self._process.wait()
        # A process that is neither in the session nor marked may hold the pipe open for ever.
        self._reader.join(_LAST_OUTPUT_S)
        self._temporary.cleanup()
        return return_code

    def _look(self) -> tuple[list[psutil.Process], bool]:
        """Return the living processes of the child, and whether there can be no others.

        Its session holds most of them, but horovodrun and torchrun open sessions of their own.
        """
        return find_members(lambda path: path == self._marker, self._process.pid, self._started_at_s)

    def _signal_launcher(self, number: signal.Signals) -> None:
        # Not Popen.send_signal, which polls and thereby reaps a launcher that has exited: waitid in ``_wait`` would
        # then fail, and no Exited be put.
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._process.pid, number)

    def _wait(self) -> None:
        if hasattr(os, "waitid"):
            # WNOWAIT leaves a zombie until ``finish``: as long as it exists, its pid, which is the session id that
            # ``_look`` searches for, cannot be reused by a foreign process.
            os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
        else:
            self._process.wait()
        self._put(Exited(self))

    def _read(self, stream: IO[bytes]) -> None:
        with stream:
            while data := stream.readline(_MAX_LINE):
                text = data.decode("utf-8", errors="replace").rstrip("\r\n")
                self._put(Line(self, *split_prefix(text, self._launch.launcher)))
