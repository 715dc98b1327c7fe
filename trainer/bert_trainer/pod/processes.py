"""The processes of a pod: start one child, forward stop requests to it, reap it and every orphan, find ranks.

``bert-pod`` is process 1 of its container, which has three duties that no other process has: signals without a handler
are ignored, orphans become its children and stay zombies until it reaps them, and when it ends the kernel kills
everything that is left. Descendants are found through /proc (procfs(5)).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pwd
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import IO, Literal, Self

from bert_trainer.errors import InputError
from bert_trainer.system.mpi_variables import is_rank
from bert_trainer.system.process_tree import find_descendants

Stream = Literal["stdout", "stderr"]

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
"""Requests to stop. The image starts ``bert-pod`` with them blocked, so that none is lost before Python has a handler:
as process 1 it would ignore them."""

_KILL_AFTER_S = 5.0  # between SIGTERM and SIGKILL
_PIPE_TIMEOUT_S = 5.0  # for output that is still in a pipe after the child's end
_MAX_PIECE_BYTES = 65_536  # a longer line comes in pieces: output without line ends must not fill the memory

_PROC = Path("/proc")
_ATTEMPT_VARIABLE = "BERT_ATTEMPT"
# They stand between a launcher and its ranks, and may have a rank's variables; a signal would end them instead of
# asking the rank. These are names of /proc/PID/comm, which the kernel cuts at 15 characters.
_NOT_RANKS = frozenset(
    {"sh", "bash", "dash", "ash", "busybox", "ksh", "zsh", "ssh", "sshd", "sshd-session", "sshd-auth"}
    | {"mpirun", "mpiexec", "mpiexec.hydra", "prte", "prted", "prterun", "orted", "hydra_pmi_proxy"}
)
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_LIBC = ctypes.CDLL(None, use_errno=True)


class StopForwarder:
    """Counts requests to stop and forwards them to one child: the first as SIGUSR1, later ones as SIGTERM.

    On SIGUSR1 mpirun of each MPI forwards the signal to its ranks and waits: they agree on a step, save and leave. On
    SIGTERM it kills them at once, so only a second request, from somebody who insists, is forwarded as that.
    """

    def __init__(self) -> None:
        """Install no handlers yet; ``with`` does."""
        self.count = 0
        self.has_started: Callable[[], bool] = lambda: True
        """Whether the child's ranks run. Before that a request ends the child: mpirun would forward SIGUSR1 to nobody,
        and then start ranks that never learn of it."""
        self.ended_before_start = False
        """The child was ended because its ranks did not run yet."""
        self._child: int | None = None
        self._sent = 0

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._on_signal) for number in STOP_SIGNALS}
        unblock_stop_signals()  # after the handlers are there: a signal that is pending arrives right now
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def forward_to(self, child: int | None) -> None:
        """Set the process that gets the requests, earlier ones included; None: nobody."""
        self._child = child
        self._forward()

    def end_child(self, after_s: float = 0.0) -> None:
        """Send SIGTERM after a while, and SIGKILL 5 s later, unless the child has ended by then."""
        for wait_s, number in ((after_s, signal.SIGTERM), (after_s + _KILL_AFTER_S, signal.SIGKILL)):
            timer = threading.Timer(wait_s, self._kill_child, (number,))
            timer.daemon = True  # bert-pod ends when its child does, not when the timer has run out
            timer.start()

    def _kill_child(self, number: signal.Signals) -> None:
        if self._child is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._child, number)

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self.count += 1
        self._forward()

    def _forward(self) -> None:
        while self._child is not None and self._sent < self.count:
            self._sent += 1
            if not self.has_started():
                self.ended_before_start = True
                self.end_child()
                continue
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._child, signal.SIGUSR1 if self._sent == 1 else signal.SIGTERM)


def run_child(
    command: Sequence[str],
    environment: Mapping[str, str],
    stop: StopForwarder,
    take: Callable[[Stream, str], None],
) -> int:
    """Run a command to its end and return its exit code, -n for signal n.

    Args:
        command: Program and arguments.
        environment: All variables that it gets.
        stop: Forwards requests to it from now on.
        take: Called from two threads with output as it comes: at most one line at a time, line end included.

    Raises:
        InputError: It cannot be started.
    """
    try:
        # In a session of its own: Ctrl-C in a terminal would reach every process of the group, and end mpirun before
        # this process has asked for a stop.
        process = subprocess.Popen(
            command,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        raise InputError(
            f"{command[0]}: cannot be started ({error.strerror})", hint="name a program that the image has, after --"
        ) from error
    assert process.stdout is not None, "a pipe was asked for"
    assert process.stderr is not None, "a pipe was asked for"
    streams: tuple[tuple[Stream, IO[bytes]], ...] = (("stdout", process.stdout), ("stderr", process.stderr))
    readers = [threading.Thread(target=_read_pipe, args=(pipe, name, take), daemon=True) for name, pipe in streams]
    for reader in readers:
        reader.start()
    stop.forward_to(process.pid)
    process.returncode = _wait_for(process.pid, stop)
    for reader in readers:
        # A process that the child left behind may hold the other end of the pipe for ever.
        reader.join(_PIPE_TIMEOUT_S)
    return process.returncode


def _wait_for(child: int, stop: StopForwarder) -> int:
    # Not Popen.wait: it waits for the child alone, and every orphan of the container would stay a zombie.
    while True:
        # WNOWAIT looks before it reaps: while the child is a zombie its process id is not reused, so a request that
        # arrives now is sent to the zombie, or after forward_to(None) to nobody, but never to a stranger.
        ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
        assert ended is not None, "WNOHANG was not asked for"
        if ended.si_pid == child:
            stop.forward_to(None)
        _, status = os.waitpid(ended.si_pid, 0)
        if ended.si_pid == child:
            return os.waitstatus_to_exitcode(status)


def _read_pipe(pipe: IO[bytes], name: Stream, take: Callable[[Stream, str], None]) -> None:
    with pipe:
        while data := pipe.readline(_MAX_PIECE_BYTES):
            # Bytes that are no UTF-8 survive the round trip to the log and to files unchanged.
            take(name, data.decode("utf-8", errors="surrogateescape"))


def unblock_stop_signals() -> None:
    """Let stop signals through, pending ones at once. Call it once handlers are installed, or if none are wanted."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)


def signal_process(process: int, number: int) -> None:
    """Send a signal to a process that may have ended."""
    try:
        os.kill(process, number)
    except (ProcessLookupError, PermissionError):
        return


def adopt_orphans() -> None:
    """Become the parent of every orphan below this process, as process 1 of a container is anyway.

    mpirun's daemon on a worker leaves the ssh session that started it. It and its ranks have to stay descendants, or
    ``find_ranks`` misses them where ``bert-pod`` is not process 1, as on bare metal.
    """
    _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with_parent() -> None:
    """Get SIGKILL when the parent ends, also if that was killed itself. Called between fork and exec."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def find_ranks(root: int) -> list[int]:
    """Return the ranks below root: the topmost processes with a rank's variables.

    What a rank starts inherits these variables. It gets no signal: it may have no handler, and is the rank's business.
    """
    tree = find_descendants(root)
    ranks, queue = [], list(tree[root])
    while queue:
        process = queue.pop()
        if _is_rank(_PROC / str(process)):
            ranks.append(process)
        else:
            queue += tree[process]
    return ranks


def _is_rank(folder: Path) -> bool:
    try:
        if (folder / "comm").read_text(errors="replace").strip() in _NOT_RANKS:
            return False
        names = {entry.partition("=")[0] for entry in (folder / "environ").read_text(errors="replace").split("\0")}
    except OSError:
        return False  # it has just ended, or belongs to another user
    return _ATTEMPT_VARIABLE in names and is_rank(names)


def check_user() -> None:
    """Check that the user id has a passwd entry: ssh and sshd refuse users without one.

    Raises:
        InputError: It has none.
    """
    user = os.getuid()
    try:
        pwd.getpwuid(user)
    except KeyError:
        raise InputError(
            f"/etc/passwd: has no entry for user id {user}; ssh refuses unknown users",
            hint=f"set spec.securityContext.runAsUser: {user}, for which the operator mounts a passwd file",
        ) from None


@contextlib.contextmanager
def temporary_folder() -> Iterator[Path]:
    """Make a private folder below TMPDIR or /tmp, with a folder ``tmp`` for what is started to use as TMPDIR.

    Open MPI names its session folder after a process id (/tmp/prted.209) and fails silently if it exists. In a
    container process ids repeat, while a volume at /tmp outlives the container: so TMPDIR is fresh each time.
    """
    # A process that is still ending may write into it while it is being removed.
    with tempfile.TemporaryDirectory(prefix="bert-pod-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        (folder / "tmp").mkdir(mode=0o700)
        yield folder
