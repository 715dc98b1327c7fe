"""Server processes of a test bench: started with a deadline, ended by process id, gone when their parent is.

What they print goes to a file; its end is shown where a start fails. Linux only (parent-death signal).
"""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from cluster_api import POLL_S, wait_until

START_DEADLINE_S = 60.0
STOP_DEADLINE_S = 10.0
TAIL_LINES = 30

# Asks the kernel to kill the process when its parent dies, however that dies, then becomes the program. Not done in
# Popen's preexec_fn: Python 3.12 warns about that one in a process with threads, and warnings are failures here.
_LEASH = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 9)
if os.getppid() != int(sys.argv[1]):
    sys.exit("the parent is gone")
os.execv(sys.argv[2], sys.argv[2:])
"""
# The kernel means the parent's thread, not its process. So one thread, which lives as long as the interpreter,
# starts them all; a server that a short-lived thread of a test restarts would die with that thread otherwise.
_SPAWNER = ThreadPoolExecutor(max_workers=1, thread_name_prefix="component-spawner")


class StartFailed(AssertionError):
    """A component ended before it was ready; the text holds the end of its log."""


class Component:
    """One server process, always with the same command line, so that it can end and come back."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        log: Path,
        is_ready: Callable[[], bool],
        *,
        environment: Mapping[str, str] | None = None,
        before_launch: Callable[[], None] | None = None,
        relaunch: bool = False,
    ) -> None:
        """Prepare it.

        Args:
            name: How messages call it.
            command: Program and arguments.
            log: Where its output is appended.
            is_ready: Asked until it says yes; an OSError means not yet.
            environment: Added to what this process has.
            before_launch: Called before every start of the process.
            relaunch: Start it again when it ends by itself, as a Deployment would.
        """
        self.name, self.command, self.log_file = name, tuple(command), log
        self._is_ready, self._before_launch, self._relaunch = is_ready, before_launch, relaunch
        self._environment = {**os.environ, **(environment or {})}
        self._process: subprocess.Popen[bytes] | None = None
        self._wanted = False
        self._lock = threading.Lock()
        self.relaunches = 0

    def __enter__(self) -> Self:
        """Start it."""
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        if problem is not None:
            print(f"The end of {self.log_file}:\n{self.tail()}")  # noqa: T201 - pytest shows it on failure
        self.kill()

    @property
    def pid(self) -> int:
        """Its process id; 0 while it does not run."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else 0

    @property
    def resident_bytes(self) -> int:
        """The memory that it holds now."""
        pages = Path(f"/proc/{self.pid}/statm").read_text().split()[1] if self.pid else "0"
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    def launch(self) -> None:
        """Start the process without waiting; does nothing while it runs."""
        self._wanted = True
        self._bring_up()

    def wait_ready(self, deadline_s: float = START_DEADLINE_S) -> None:
        """Return when it answers. Raises StartFailed where it ended, TimeoutError where it is too slow."""

        def is_ready() -> bool:
            with suppress(OSError):  # refused, reset, closed: it does not listen yet
                if self._is_ready():
                    return True
            if not self.pid and not self._relaunch:
                raise StartFailed(f"{self.name} ended while starting; the end of {self.log_file}:\n{self.tail()}")
            return False

        wait_until(is_ready, lambda: f"{self.name}; the end of {self.log_file}:\n{self.tail()}", timeout_s=deadline_s)

    def start(self) -> None:
        """Start it and return when it answers."""
        self.launch()
        self.wait_ready()

    def stop(self) -> None:
        """Ask it to end (SIGTERM), insist after a while (SIGKILL), and return when it is gone."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it at once, as a machine that loses power does."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Stop it and start it, on the same port and with the same data."""
        self.stop()
        self.start()

    def tail(self) -> str:
        """Return the end of what it printed."""
        return "\n".join(self.log().splitlines()[-TAIL_LINES:]) or "(it printed nothing)"

    def log(self) -> str:
        """Return everything that it has printed."""
        return self.log_file.read_text(errors="replace") if self.log_file.exists() else ""

    def _bring_up(self) -> None:
        if self._before_launch and not self.pid:
            self._before_launch()
        with self._lock:
            if self._wanted and not self.pid:
                self._process = _SPAWNER.submit(self._spawn).result()
                if self._relaunch:
                    threading.Thread(target=self._watch, args=(self._process,), daemon=True).start()

    def _spawn(self) -> subprocess.Popen[bytes]:
        with self.log_file.open("ab") as log:
            # A session of its own: Ctrl-C reaches the test run alone, which then ends these in order.
            return subprocess.Popen(
                [sys.executable, "-ISc", _LEASH, str(os.getpid()), *self.command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment,
                start_new_session=True,
            )

    def _end(self, kind: signal.Signals) -> None:
        with self._lock:
            self._wanted, process, self._process = False, self._process, None
        if process is None:
            return
        process.send_signal(kind)
        try:
            process.wait(STOP_DEADLINE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _watch(self, process: subprocess.Popen[bytes]) -> None:
        process.wait()
        while self._wanted and self._process is process:  # it ended by itself
            try:
                self._bring_up()
            except OSError:  # what it needs is away
                time.sleep(POLL_S)
            else:
                self.relaunches += 1


def free_ports(count: int) -> list[int]:
    """Return ports of 127.0.0.1 that nobody listens on.

    From below the range out of which the kernel serves outgoing connections: a port from that range might be
    taken while its owner restarts.
    """
    found: list[int] = []
    for port in random.sample(range(20_000, 32_000), k=12_000):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        found.append(port)
        if len(found) == count:
            return found
    raise OSError(f"fewer than {count} of the ports from 20000 to 32000 are free; end what listens on them")
