"""``bert-pod launcher``: waits for the workers, starts mpirun, forwards its output and decides how the run ended.

mpirun fails at once if it cannot reach a host, while pods, their DNS names and their sshd come up in any order over a
minute or more. So each of them is probed first, and a launcher that waits reports for whom and why.
"""

from __future__ import annotations

import math
import os
import shlex
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bert_trainer.errors import EXIT_INFRASTRUCTURE, InputError, Stopped, TrainerError
from bert_trainer.pod.binding import Binding
from bert_trainer.pod.exit_codes import Evidence, build_record, decide_exit_code, shell_exit_code, write_record
from bert_trainer.pod.keepalives import keepalives
from bert_trainer.pod.launcher_log import LauncherLog, find_first_failure, read_record_source
from bert_trainer.pod.mpi import (
    Host,
    Launcher,
    Mpi,
    choose_exports,
    find_launcher,
    find_program,
    launcher_environment,
    parse_hostfile,
    render_hostfile,
    render_remote_command,
    ssh_options,
)
from bert_trainer.pod.processes import StopForwarder, check_user, run_child, temporary_folder
from bert_trainer.pod.rank import DeclaredTopology, rank_command
from bert_trainer.pod.rank_logs import RankLogFiles
from bert_trainer.pod.rank_output import OutputForwarder
from bert_trainer.pod.rendezvous import LaunchMonitor, join_names

Probe = Callable[[], str | None]
"""Returns None if a host answers, else why not."""

WATCHED_VARIABLE = "BERT_WORKERS_WATCHED"
"""Set by an operator that ends an attempt whose pods all run and whose launcher does not reach its workers. It sees
pods; from here a worker that waits for a node, or for its image, looks like one that does not answer."""

_REPORT_EVERY_S = 10.0
_FIRST_TOLD_S = 1.0
_REPORT_RARELY = 6  # times as long: workers may be waited for for days

_FIRST_PAUSE_S = 0.2
_MAX_PAUSE_S = 3.0
_POLL_S = 0.1
_MAX_CONCURRENT_PROBES = 32  # ssh processes; each takes a few MB
_PROBE_TIMEOUT_S = 20  # for what ConnectTimeout does not cover: a shell that hangs after the connection
_MAX_REPORTED_HOSTS = 8
# Before the job's own options, since ssh takes the first value of each: mpirun shall try ten times, a probe once.
_PROBE_OPTIONS = ("-n", "-o", "ConnectTimeout=5", "-o", "ConnectionAttempts=1")

# Parts of OpenSSH's messages, in lower case.
_SSH_REASONS = {
    "connection refused": "connection refused",
    "timed out": "connection timed out",
    "no route to host": "no route to host",
    "permission denied": "ssh key rejected",
    "host key verification failed": "unknown host key",
    "could not resolve hostname": "name not resolved",
    "connection closed": "connection closed",
    "connection reset": "connection closed",
}


class WorkersUnreachable(TrainerError):
    """Some workers could not be reached in time."""

    exit_code = EXIT_INFRASTRUCTURE

    def __init__(self, message: str, *, silent: tuple[str, ...] = (), hint: str | None = None) -> None:
        """silent: hosts that did not answer."""
        super().__init__(message, hint=hint)
        self.silent = silent


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Options of ``bert-pod launcher``."""

    mpi: Mpi
    ranks: int
    workers: int
    slots: int
    """Ranks per worker."""
    hostfile: Path
    wait_s: float
    ssh_port: int | None
    """None: the port in ssh's own configuration."""
    exports: tuple[str, ...]
    binding: Binding | None
    declared: DeclaredTopology
    program: tuple[str, ...]
    termination_log: Path


def run_launcher(job: Job) -> int:
    """Run the job and return the container's exit code.

    Raises:
        InputError: A program is missing, the user or the host file is invalid, or ranks started somewhere else.
        Stopped: On request, before mpirun was started.
        WorkersUnreachable: Not all workers answered in time.
    """
    with StopForwarder() as stop, temporary_folder() as folder:
        # What can be wrong in this pod fails before the minutes of waiting.
        check_user()
        launcher = find_launcher(job.mpi)
        options = ssh_options(job.mpi, os.environ, job.ssh_port)
        hosts = _wait_for_workers(job, stop, find_ssh(), shlex.split(options))
        # A copy of mpi-operator's file in the form that this MPI reads.
        hostfile = folder / "hostfile"
        hostfile.write_text(render_hostfile(hosts, is_open_mpi=job.mpi == "OpenMPI"))
        report(f"Starting {job.ranks} ranks with {launcher.name}")
        command = render_remote_command(
            launcher,
            ranks=job.ranks,
            slots=job.slots,
            hostfile=str(hostfile),
            exports=choose_exports(os.environ, job.exports),
            is_root=os.geteuid() == 0,
            program=rank_command(job.program, job.declared, job.binding),
        )
        environment = launcher_environment(job.mpi, os.environ, options) | {"TMPDIR": str(folder / "tmp")}
        return _run(job, launcher, command, environment, tuple(host.pod for host in hosts), stop)


def _wait_for_workers(job: Job, stop: StopForwarder, ssh: str, options: Sequence[str]) -> tuple[Host, ...]:
    workers = "1 worker" if job.workers == 1 else f"{job.workers} workers"
    source = read_record_source(job.program, os.environ)
    is_watched = os.environ.get(WATCHED_VARIABLE) == "true" and source.job is not None

    def tell(missing: Mapping[str, str]) -> None:
        """Tell the operator that the limit may count, once all pods run."""
        message = join_names(f"{name} ({reason})" for name, reason in missing.items())
        sys.stdout.write(source.render_record("unreached", message=message) + "\n")
        sys.stdout.flush()

    limit = f"{job.wait_s:g} s at most" + (" from the moment in which all pods run" if is_watched else "")
    report(f"Waiting for {workers}, {limit}")
    deadline = Deadline(
        math.inf if is_watched else job.wait_s, stop, report, tell=tell if is_watched else lambda missing: None
    )
    hosts = wait_for_hostfile(job.hostfile, workers=job.workers, slots=job.slots, deadline=deadline)
    # With some MPIs workers connect back to this pod by its name, so that name has to resolve as well.
    own = socket.gethostname()
    probes: dict[str, Probe] = {f"this pod's own name {own}": partial(probe_name, own)}
    probes |= {host.pod: partial(probe_ssh, ssh, options, host.name) for host in hosts}
    wait_for_probes(probes, deadline)
    all_answer = "The worker answers" if job.workers == 1 else f"All {workers} answer"
    report(f"{all_answer} after {deadline.waited_s:.1f} s")
    return hosts


def _run(
    job: Job,
    launcher: Launcher,
    command: Sequence[str],
    environment: Mapping[str, str],
    hosts: tuple[str, ...],
    stop: StopForwarder,
) -> int:
    log = LauncherLog(read_record_source(job.program, os.environ))
    monitor = LaunchMonitor.of(log, stop, os.environ, ranks=job.ranks, hosts=job.workers, report=report)
    forwarder = OutputForwarder(launcher.tag, RankLogFiles(os.environ, ranks=job.ranks), monitor.take)
    with keepalives(log.source, os.environ), monitor.watching(forwarder.is_stuck):
        code = shell_exit_code(run_child(command, environment, stop, forwarder.take))
    forwarder.finish()
    # After the last lines, which may be announcements.
    monitor.check()
    reported, no_progress = monitor.rendezvous.failures, monitor.no_progress
    failure = find_first_failure(
        reported, log, hosts=hosts, slots=job.slots, banner_names_killed=launcher.banner_names_killed
    )
    if no_progress is not None:
        failure = no_progress.failure
    evidence = Evidence(
        combines_codes=launcher.combines_codes,
        failed_by_signal=failure.signal if failure else None,
        # Exact only where the rank itself reported it: a banner's code may be that of a rank which failed later.
        rank_exit_code=failure.exit_code if failure in reported else None,
        made_no_progress=no_progress is not None,
        lost_worker=log.has_lost_worker,
        lost_peer=log.has_lost_peer,
        ended_midway=log.ended_midway,
        reported_stop=log.has_stopped(code, stop_requested=stop.count > 0),
        rank_0_exit_code=log.rank_0_exit_code,
        stop_requested=stop.count > 0,
        never_started=stop.ended_before_start or not monitor.has_started,
    )
    code = decide_exit_code(code, evidence)
    # None: ranks run in other pods, so there is no record of theirs here.
    write_record(job.termination_log, build_record(code, log, failure, None, no_progress=no_progress))
    return code


def report(text: str) -> None:
    """Write a line to the pod's log."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


class Deadline:
    """One deadline for the host file and all workers, with a report of what is missing at intervals."""

    def __init__(
        self,
        limit_s: float,
        stop: StopForwarder,
        report: Callable[[str], None],
        report_every_s: float = _REPORT_EVERY_S,
        tell: Callable[[Mapping[str, str]], None] = lambda missing: None,
    ) -> None:
        """Start now.

        Args:
            limit_s: Seconds to wait altogether; infinite where somebody else ends the wait.
            stop: Ends the wait on request.
            report: Takes lines for the log.
            report_every_s: Seconds between the first reports; later ones come up to six times as far apart.
            tell: Takes what is missing, with the reasons, soon and then at every report.
        """
        self._began_at_s = time.monotonic()
        self._limit_s, self._stop, self._report, self._every_s = limit_s, stop, report, report_every_s
        self._reported_at_s = self._began_at_s
        self._tell, self._has_told, self._rarest_s = tell, False, _REPORT_RARELY * report_every_s

    @property
    def waited_s(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._began_at_s

    def wait(self, describe: Callable[[], Mapping[str, str]]) -> None:
        """Sleep for one poll interval.

        Args:
            describe: Returns what is missing, with the reason; called for every report.

        Raises:
            Stopped: On request.
            WorkersUnreachable: The deadline has passed.
        """
        # No child runs yet that a request could be forwarded to, so this loop has to look.
        if self._stop.count:
            raise Stopped("stopped on request before the ranks were started")
        if self.waited_s > self._limit_s:
            missing = describe()
            reasons = [f"{name} ({reason})" for name, reason in missing.items()]
            raise WorkersUnreachable(
                f"after {self._limit_s:g} s still waiting for {join_names(reasons)}",
                silent=tuple(missing),
                hint="check that these pods are scheduled and running, and that no network policy keeps the launcher "
                "from reaching them",
            )
        if self.waited_s >= _FIRST_TOLD_S and not self._has_told:
            self._has_told = True
            self._tell(describe())
        if time.monotonic() - self._reported_at_s >= self._every_s:
            self._reported_at_s = time.monotonic()
            self._every_s = min(1.5 * self._every_s, self._rarest_s)
            missing = describe()
            for name, reason in list(missing.items())[:_MAX_REPORTED_HOSTS]:
                self._report(f"Waiting for {name}: {reason}")
            if len(missing) > _MAX_REPORTED_HOSTS:
                self._report(f"Waiting for {len(missing) - _MAX_REPORTED_HOSTS} more")
            self._tell(missing)
        time.sleep(_POLL_S)


def wait_for_hostfile(path: Path, *, workers: int, slots: int, deadline: Deadline) -> tuple[Host, ...]:
    """Read the host file until it names every worker; it may appear, and grow, while it is waited for.

    Raises:
        InputError: It holds something else than hosts.
        Stopped, WorkersUnreachable: see ``Deadline.wait``.
    """
    while True:
        try:
            hosts = parse_hostfile(path.read_text(), source=str(path), slots=slots)
            reason = f"names {len(hosts)} of {workers} workers"
        except OSError as error:
            hosts, reason = (), f"cannot be read ({error.strerror})"
        if len(hosts) == workers:
            return hosts
        missing = {str(path): reason}
        deadline.wait(lambda missing=missing: missing)  # type: ignore[misc]


def wait_for_probes(probes: Mapping[str, Probe], deadline: Deadline) -> None:
    """Repeat each probe, with growing pauses, until it has succeeded once.

    Args:
        probes: By the name that reports show.
        deadline: Ends the wait.

    Raises:
        Stopped, WorkersUnreachable: see ``Deadline.wait``.
    """
    missing = dict.fromkeys(probes, "not asked yet")
    slots = threading.Semaphore(_MAX_CONCURRENT_PROBES)
    closing = threading.Event()

    def retry(name: str, probe: Probe) -> None:
        pause_s = _FIRST_PAUSE_S
        while not closing.is_set():
            with slots:
                reason = probe()
            if reason is None:
                del missing[name]  # no lock: one thread per key, and copying a dict is atomic
                return
            missing[name] = reason
            closing.wait(pause_s)
            pause_s = min(pause_s * 1.5, _MAX_PAUSE_S)

    # A thread each, so that one host that hangs does not delay the others; daemons, so that none outlives a stop.
    for item in probes.items():
        threading.Thread(target=retry, args=item, daemon=True).start()
    try:
        while missing:
            deadline.wait(lambda: dict(missing))
    finally:
        closing.set()


def probe_name(name: str) -> str | None:
    """Resolve a host name. Return None if it resolves, else the reason."""
    try:
        socket.getaddrinfo(name, None)
    except (OSError, UnicodeError):  # UnicodeError: a label of more than 63 characters
        return "name not resolved"
    return None


def probe_ssh(ssh: str, options: Sequence[str], name: str) -> str | None:
    """Resolve a host name and run ``true`` there by ssh: as mpirun will, with the same key and options."""
    if reason := probe_name(name):
        return reason
    command = [ssh, *_PROBE_OPTIONS, *options, name, "true"]
    try:
        answer = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_PROBE_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return "ssh timed out"
    except OSError as error:
        return f"ssh cannot be started ({error.strerror})"
    return None if answer.returncode == 0 else explain_ssh(answer.returncode, answer.stderr.decode(errors="replace"))


def explain_ssh(return_code: int, message: str) -> str:
    """Return why ssh failed, in few words. 255 is a failure of ssh, anything else that of the remote command."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    if return_code == 255:
        known = next((reason for text, reason in _SSH_REASONS.items() if text in message.lower()), None)
        return known or (f"ssh: {lines[-1][:120]}" if lines else "ssh failed")
    return f"ssh works, but the remote shell exited with {return_code}" + (f" ({lines[-1][:120]})" if lines else "")


def find_ssh() -> str:
    """Return ssh's path.

    Raises:
        InputError: there is none.
    """
    path = find_program("ssh")
    if path is None:
        raise InputError("ssh: is not installed", hint="use an image with the OpenSSH client and server")
    return path
