"""``bert-pod worker``: a private sshd, through which mpirun starts ranks in this pod, until the pod is deleted.

sshd starts sessions with a clean environment, while a job's settings and secrets are variables of the container. So
they are written into sshd's configuration (sshd_config(5); quoting rules of OpenSSH 8.7 and later). When the pod is
deleted, its ranks are asked to stop before sshd ends: all ranks of the job agree on a step, save and leave together.
"""

from __future__ import annotations

import os
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Self

from bert_trainer.errors import EXIT_INFRASTRUCTURE, InputError
from bert_trainer.pod.processes import (
    STOP_SIGNALS,
    adopt_orphans,
    check_user,
    find_ranks,
    signal_process,
    temporary_folder,
    unblock_stop_signals,
)
from bert_trainer.system.process_tree import find_descendants

# What sshd sets for every session itself, and what concerns this process or its terminal alone.
_NOT_FORWARDED = frozenset(
    {"_", "HOME", "HOSTNAME", "LOGNAME", "OLDPWD", "PWD", "SHELL", "SHLVL", "TERM", "USER"}
    | {"BERT_TERMINATION_LOG", "K_MPI_JOB_ROLE"}
)
_SERVICE_PORT = re.compile(r"(.+)_SERVICE_PORT")
_LINE_ENDS = ("\n", "\r", "\0")

_POLL_S = 0.2
# Together well below a pod's grace period, most of which belongs to the ranks' last checkpoint.
_SESSIONS_TIMEOUT_S = 5.0
_SSHD_TIMEOUT_S = 5.0
_WAKING_SIGNALS = (*STOP_SIGNALS, signal.SIGCHLD)


def run_worker(*, port: int, key_folder: Path) -> int:
    """Serve until the pod is stopped; return the container's exit code: 0 after a stop, 4 if sshd ended by itself.

    Raises:
        InputError: The user has no passwd entry, or the key or sshd is missing.
    """
    check_user()
    check_keys(key_folder)
    sshd = find_sshd()
    environment, skipped = choose_environment(os.environ)
    for name in skipped:
        sys.stderr.write(f"bert-pod: {name}: contains line breaks, so ranks do not get it; mount it as a file\n")
    sys.stderr.flush()
    if os.geteuid() == 0:
        # sshd that runs as root needs its privilege separation folder. Debian's service creates it; nothing does here.
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    adopt_orphans()
    with SignalWaiter() as signals, temporary_folder() as folder:
        config = folder / "sshd_config"
        environment["TMPDIR"] = str(folder / "tmp")
        text = render_config(port=port, key_folder=key_folder, environment=environment)
        # The variables in it include secrets: created with mode 0600, not changed to it later.
        with open(os.open(config, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", errors="surrogateescape") as file:
            file.write(text)
        # -D: stay in the foreground as our child. -e: errors to the pod's log.
        server = subprocess.Popen([sshd, "-D", "-e", "-f", str(config)], stdin=subprocess.DEVNULL)
        return _watch(server, signals)


def _watch(server: subprocess.Popen[bytes], signals: SignalWaiter) -> int:
    while not signals.stop_count:
        if _reap(server):
            sys.stderr.write(f"bert-pod: sshd exited with {server.returncode}; its own message is above\n")
            return EXIT_INFRASTRUCTURE
        signals.wait(None)
    _stop_ranks(server, signals)
    _end_sessions(server, signals)
    server.send_signal(signal.SIGTERM)
    deadline_s = time.monotonic() + _SSHD_TIMEOUT_S
    while not _reap(server):
        if time.monotonic() > deadline_s:
            server.kill()
        signals.wait(_POLL_S)
    return 0


def _stop_ranks(server: subprocess.Popen[bytes], signals: SignalWaiter) -> None:
    """Send SIGUSR1 to every rank once and wait until all are gone; on a second stop request SIGTERM.

    The pod's own SIGTERM reaches process 1 alone. Waiting has no limit of its own: the pod's grace period is one, and
    ranks that make no progress any more are ended by their watchers (``hang_watch``).
    """
    asked: set[int] = set()
    while ranks := find_ranks(os.getpid()):
        if signals.stop_count > 1:
            for rank in ranks:
                signal_process(rank, signal.SIGTERM)
            return
        for rank in set(ranks) - asked:
            signal_process(rank, signal.SIGUSR1)
        asked |= set(ranks)  # ranks that are still starting appear later, and are asked then
        _reap(server)
        signals.wait(_POLL_S)


def _end_sessions(server: subprocess.Popen[bytes], signals: SignalWaiter) -> None:
    """Give mpirun's daemons time to report how the ranks ended: to mpirun one that vanishes is a lost worker."""
    deadline_s = time.monotonic() + _SESSIONS_TIMEOUT_S
    while others := set(find_descendants(os.getpid())) - {os.getpid(), server.pid}:
        if time.monotonic() > deadline_s or signals.stop_count > 1:
            for process in others:
                signal_process(process, signal.SIGTERM)
            return
        _reap(server)
        signals.wait(_POLL_S)


def _reap(server: subprocess.Popen[bytes]) -> bool:
    """Reap every child that has ended, adopted orphans included; return whether sshd has ended."""
    while server.returncode is None:
        ended, status = os.waitpid(-1, os.WNOHANG)
        if ended == 0:
            return False
        if ended == server.pid:
            server.returncode = os.waitstatus_to_exitcode(status)
    return True


class SignalWaiter:
    """Waits for signals: a request to stop, or the end of a child.

    Through a pipe that Python's signal handler writes to (set_wakeup_fd): a signal that arrives between a check of
    ``stop_count`` and the wait is in the pipe and ends the wait. With ``signal.pause`` it would be lost.
    """

    def __init__(self) -> None:
        """Install no handlers yet; ``with`` does."""
        self.stop_count = 0

    def __enter__(self) -> Self:
        self._reader, self._writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._before = {number: signal.signal(number, self._on_signal) for number in _WAKING_SIGNALS}
        self._wakeup = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        unblock_stop_signals()
        return self

    def __exit__(self, *_: object) -> None:
        signal.set_wakeup_fd(self._wakeup)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        os.close(self._reader)
        os.close(self._writer)

    def wait(self, limit_s: float | None) -> None:
        """Wait for the next signal, limit_s at most; None: without limit."""
        if select.select([self._reader], [], [], limit_s)[0]:
            os.read(self._reader, 4096)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if number != signal.SIGCHLD:
            self.stop_count += 1


def choose_environment(environment: Mapping[str, str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the variables for sessions, and the names of those that a configuration line cannot hold.

    Left out are variables for the services of the namespace: Kubernetes adds seven or more for each, and nothing here
    needs them.
    """
    services = {
        match[1]
        for name in environment
        if (match := _SERVICE_PORT.fullmatch(name)) and f"{match[1]}_SERVICE_HOST" in environment
    }
    chosen, skipped = {}, []
    for name, value in sorted(environment.items()):
        if name in _NOT_FORWARDED or name.startswith("KUBERNETES_") or _is_of_service(name, services):
            continue
        if any(end in value for end in _LINE_ENDS):
            skipped.append(name)
        else:
            chosen[name] = value
    return chosen, tuple(skipped)


def _is_of_service(name: str, services: set[str]) -> bool:
    return any(
        name in (f"{service}_SERVICE_HOST", f"{service}_SERVICE_PORT", f"{service}_PORT")
        or name.startswith((f"{service}_SERVICE_PORT_", f"{service}_PORT_"))
        for service in services
    )


def render_config(*, port: int, key_folder: Path, environment: Mapping[str, str]) -> str:
    """Return a configuration for sshd that accepts the job's key and nothing else.

    Args:
        port: To listen on.
        key_folder: With ``id_rsa``, which is the host key as well, and ``authorized_keys``.
        environment: Of the sessions; without line ends in its values.
    """
    lines = [
        f"Port {port}",
        "PidFile none",
        f"HostKey {quote(str(key_folder / 'id_rsa'))}",
        f"AuthorizedKeysFile {quote(str(key_folder / 'authorized_keys'))}",
        # A mounted secret belongs to root and may be readable by a group.
        "StrictModes no",
        "UsePAM no",
        "PubkeyAuthentication yes",
        "PasswordAuthentication no",
        "KbdInteractiveAuthentication no",
        "PermitRootLogin prohibit-password",
        "AllowTcpForwarding no",
        "X11Forwarding no",
        "PrintMotd no",
        # The default (10:30:100) drops connections at random when many arrive at once, as they do when mpirun starts.
        "MaxStartups 1000",
        "LogLevel ERROR",
    ]
    if environment:
        # sshd takes the first SetEnv line alone, so all variables stand in one.
        lines.append("SetEnv " + " ".join(quote(f"{name}={value}") for name, value in environment.items()))
    return "\n".join(lines) + "\n"


def quote(word: str) -> str:
    """Return a word of a configuration line, quoted; it may hold anything but line ends."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def check_keys(folder: Path) -> None:
    """Check that the job's key is there; what sshd itself reports names no remedy.

    Raises:
        InputError: A file is missing or cannot be read.
    """
    for name in ("id_rsa", "authorized_keys"):
        path = folder / name
        if not os.access(path, os.R_OK):
            state = "cannot be read" if path.exists() else "is missing"
            raise InputError(
                f"{path}: {state}; sshd needs it",
                hint="set spec.sshAuthMountPath of the MPIJob to this folder, and fsGroup to the user's group",
            )


def find_sshd() -> str:
    """Return sshd's absolute path: sshd executes itself again for every connection, and refuses a relative path.

    Raises:
        InputError: It is not installed.
    """
    found = shutil.which("sshd", path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"]))
    if found is None:
        raise InputError("sshd: is not installed", hint="use an image with the OpenSSH client and server")
    return os.path.abspath(found)
