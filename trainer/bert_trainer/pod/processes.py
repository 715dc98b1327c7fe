"""The processes of a pod: its one child and everything below it, started, stopped, waited for and cleaned up.

As process 1 of a container this process inherits every orphan in it and has to reap them. On a stop request the child
gets SIGUSR1 first, on which ranks save and leave, and SIGTERM later: mpirun forwards SIGUSR1 to its ranks and waits
for them, while on SIGTERM it would kill them. Descendants are found through /proc (procfs(5)).

Each child gets a fresh temporary folder: Open MPI names its own after a process id (/tmp/prted.209) and fails
silently where that exists, and in a container process ids repeat while a volume at /tmp outlives the process.
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
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import IO, Literal, Self

from bert_trainer.errors import InputError
from bert_trainer.system.mpi_variables import is_rank

Stream = Literal["stdout", "stderr"]

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
"""Ask for a stop. The image's ``bert-pod`` holds them back from its first instruction on."""

_KILL_AFTER_S = 5.0
_PIPE_TIMEOUT_S = 5.0
_MAX_PIECE_BYTES = 65_536  # bytes; a longer line comes in pieces

_PROC = Path("/proc")
_ATTEMPT_VARIABLE = "BERT_ATTEMPT"
# They stand between a launcher and a rank, or are the launcher; a signal would only end them.
_NOT_RANKS = frozenset(
    {"sh", "bash", "dash", "ash", "busybox", "ksh", "zsh", "ssh", "sshd", "sshd-session", "sshd-auth"}
    | {"mpirun", "mpiexec", "mpiexec.hydra", "prte", "prted", "prterun", "orted", "hydra_pmi_proxy"}
)
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_LIBC = ctypes.CDLL(None, use_errno=True)


class StopForwarder:
    """Counts SIGTERM and SIGINT and passes them on to one child."""

    def __init__(self) -> None:
        """Handlers are installed while the object is entered."""
        self.count = 0
        self.has_started: Callable[[], bool] = lambda: True
        """Whether the child's ranks can be asked: what mpirun forwards before they are there reaches nobody. Until
        then a stop ends the child."""
        self.ended_before_start = False
        """The child was ended because its ranks were not there yet."""
        self._child: int | None = None
        self._sent = 0

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._on_signal) for number in STOP_SIGNALS}
        unblock_stop_signals()
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def forward_to(self, child: int | None) -> None:
        """Name the process that is told from now on, also of what came before; None: nobody."""
        self._child = child
        self._forward()

    def end_child(self, after_s: float = 0.0) -> None:
        """End the child without a chance to save, unless it has ended by itself until then."""
        for wait_s, number in ((after_s, signal.SIGTERM), (after_s + _KILL_AFTER_S, signal.SIGKILL)):
            timer = threading.Timer(wait_s, self._kill_child, (number,))
            timer.daemon = True
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
    """Run it to its end and return its exit code, -n for signal n.

    take: called from two threads with output as it comes, at most one line at a time, line end included.

    Raises:
        InputError: it cannot be started.
    """
    try:
        # A session of its own: Ctrl-C in a terminal reaches this process alone, which knows how to stop.
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
    readers = [threading.Thread(target=_read, args=(pipe, name, take), daemon=True) for name, pipe in streams]
    for reader in readers:
        reader.start()
    stop.forward_to(process.pid)
    process.returncode = _wait_for(process.pid, stop)
    for reader in readers:
        # Somebody whom it has left behind may hold the pipe for ever.
        reader.join(_PIPE_TIMEOUT_S)
    return process.returncode


def _wait_for(child: int, stop: StopForwarder) -> int:
    while True:
        # Looked at before it is reaped: until then nobody else can get its number, and a signal goes to it or nowhere.
        ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
        assert ended is not None, "WNOHANG was not asked for"
        if ended.si_pid == child:
            stop.forward_to(None)
        _, status = os.waitpid(ended.si_pid, 0)
        if ended.si_pid == child:
            return os.waitstatus_to_exitcode(status)


def _read(pipe: IO[bytes], name: Stream, take: Callable[[Stream, str], None]) -> None:
    with pipe:
        while data := pipe.readline(_MAX_PIECE_BYTES):
            take(name, data.decode("utf-8", errors="surrogateescape"))


def unblock_stop_signals() -> None:
    """Let those through that ask for a stop, also what has come so far: handlers are there, or none is wanted."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)


def signal_process(process: int, number: int) -> None:
    """Send a signal to a process that may have ended."""
    try:
        os.kill(process, number)
    except (ProcessLookupError, PermissionError):
        return


def adopt_orphans() -> None:
    """Become the parent of every orphan below this process, as process 1 of a container is anyway.

    mpirun's helper on a worker leaves the session that started it; it is to stay a descendant.
    """
    _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with_parent() -> None:
    """Be killed when the parent ends."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def find_descendants(root: int) -> dict[int, list[int]]:
    """Return the children of every process that descends from root, root included; the dead are left out."""
    children: dict[int, list[int]] = defaultdict(list)
    for folder in _PROC.iterdir():
        if folder.name.isdecimal() and (parent := _parent(folder)) is not None:
            children[parent].append(int(folder.name))
    found, queue = {}, [root]
    while queue:
        process = queue.pop()
        found[process] = children.get(process, [])
        queue += found[process]
    return found


def find_ranks(root: int) -> list[int]:
    """Return the ranks below root.

    A rank's own children have its variables too; they are its business.
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


def _parent(folder: Path) -> int | None:
    try:
        # PID (NAME) STATE PARENT ...; the name may hold anything.
        state, parent = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()[:2]
    except (OSError, ValueError):
        return None  # it has just ended
    return None if state in "ZX" else int(parent)


def _is_rank(folder: Path) -> bool:
    try:
        if (folder / "comm").read_text(errors="replace").strip() in _NOT_RANKS:
            return False
        names = {entry.partition("=")[0] for entry in (folder / "environ").read_text(errors="replace").split("\0")}
    except OSError:
        return False
    return _ATTEMPT_VARIABLE in names and is_rank(names)


def check_user() -> None:
    """Make sure that ssh will work for whoever this process runs as.

    Raises:
        InputError: the user id has no name.
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
    """Make a folder that nobody else can read, below TMPDIR or /tmp.

    Hand a folder inside of it on as TMPDIR to what is started.
    """
    # Whoever is still ending may write into it while it is taken away.
    with tempfile.TemporaryDirectory(prefix="bert-pod-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        (folder / "tmp").mkdir(mode=0o700)
        yield folder
