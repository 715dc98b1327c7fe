"""A worker's pod: a private sshd, through which mpirun starts ranks here, until the pod is deleted.

A session of sshd starts with a clean environment, while a job's settings and secrets are variables of the container:
they are written into sshd's configuration (syntax: sshd_config(5), ssh's quoting rules since OpenSSH 8.7). When the
pod is deleted, its ranks are asked to stop first: all ranks agree on a step, save and leave together.
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
    find_descendants,
    find_ranks,
    signal_process,
    temporary_folder,
    unblock_stop_signals,
)

# What every session has of its own, what concerns this process alone, and what names its terminal.
_NOT_FORWARDED = frozenset(
    {"_", "HOME", "HOSTNAME", "LOGNAME", "OLDPWD", "PWD", "SHELL", "SHLVL", "TERM", "USER"}
    | {"BERT_TERMINATION_LOG", "K_MPI_JOB_ROLE"}
)
_SERVICE_PORT = re.compile(r"(.+)_SERVICE_PORT")
_LINE_ENDS = ("\n", "\r", "\0")

_POLL_S = 0.2
_SESSIONS_TIMEOUT_S = 5.0
_SSHD_TIMEOUT_S = 5.0
_WAKING_SIGNALS = (*STOP_SIGNALS, signal.SIGCHLD)


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
    with SignalWaiter() as signals, temporary_folder() as folder:
        config = folder / "sshd_config"
        environment["TMPDIR"] = str(folder / "tmp")
        text = render_config(port=port, key_folder=key_folder, environment=environment)
        # It holds secrets.
        with open(os.open(config, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", errors="surrogateescape") as file:
            file.write(text)
        server = subprocess.Popen([sshd, "-D", "-e", "-f", str(config)], stdin=subprocess.DEVNULL)
        return _watch(server, signals)


def _watch(server: subprocess.Popen[bytes], signals: SignalWaiter) -> int:
    while not signals.stop_count:
        if _reap(server):
            sys.stderr.write(f"bert-pod: sshd has ended with {server.returncode}; its own message stands above\n")
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
    """Ask every rank once, and wait until they are gone or somebody insists."""
    asked: set[int] = set()
    while ranks := find_ranks(os.getpid()):
        if signals.stop_count > 1:
            for rank in ranks:
                signal_process(rank, signal.SIGTERM)
            return
        for rank in set(ranks) - asked:
            signal_process(rank, signal.SIGUSR1)
        asked |= set(ranks)
        _reap(server)
        signals.wait(_POLL_S)


def _end_sessions(server: subprocess.Popen[bytes], signals: SignalWaiter) -> None:
    """Let mpirun's helpers report how the ranks ended: one that vanishes is a lost worker to mpirun."""
    deadline_s = time.monotonic() + _SESSIONS_TIMEOUT_S
    while others := set(find_descendants(os.getpid())) - {os.getpid(), server.pid}:
        if time.monotonic() > deadline_s or signals.stop_count > 1:
            for process in others:
                signal_process(process, signal.SIGTERM)
            return
        _reap(server)
        signals.wait(_POLL_S)


def _reap(server: subprocess.Popen[bytes]) -> bool:
    """Take note of every child that has ended, adopted ones too; return whether sshd is among them."""
    while server.returncode is None:
        ended, status = os.waitpid(-1, os.WNOHANG)
        if ended == 0:
            return False
        if ended == server.pid:
            server.returncode = os.waitstatus_to_exitcode(status)
    return True


class SignalWaiter:
    """Sleeps until a signal comes: a wish to stop, or the end of a child."""

    def __init__(self) -> None:
        """Handlers are installed while the object is entered."""
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
        """Sleep until the next signal, limit_s at most."""
        if select.select([self._reader], [], [], limit_s)[0]:
            os.read(self._reader, 4096)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if number != signal.SIGCHLD:
            self.stop_count += 1


def choose_environment(environment: Mapping[str, str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the variables that a session gets, and the names of those that cannot be carried: several lines.

    Kubernetes adds seven or more variables for every service of the namespace; nobody here needs them.
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
    """Return a configuration for sshd that lets in whoever has the job's key, and nobody else.

    environment: of the sessions; its values hold no line ends.
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
        # The default turns connections away at random when many come at once, as at the start of a job they do.
        "MaxStartups 1000",
        "LogLevel ERROR",
    ]
    if environment:
        # Only the first SetEnv counts, so all of them stand in one.
        lines.append("SetEnv " + " ".join(quote(f"{name}={value}") for name, value in environment.items()))
    return "\n".join(lines) + "\n"


def quote(word: str) -> str:
    """Return one word of a configuration line, whatever characters it has."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def check_keys(folder: Path) -> None:
    """Make sure that the job's key is there.

    Raises:
        InputError: a file is missing or cannot be read.
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
    """Return sshd's path, which has to be absolute: sshd starts itself again for every connection.

    Raises:
        InputError: it is not installed.
    """
    found = shutil.which("sshd", path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"]))
    if found is None:
        raise InputError("sshd: is not installed", hint="use an image with the OpenSSH client and server")
    return os.path.abspath(found)
