"""``bert-pod rank``: between mpirun and a rank's program; a few checks and the environment, then exec.

The memory allocator, the OpenMP runtime and the number of threads depend on the machine that the rank runs on, so
they are chosen there. The job selects libraries by ``BERT_ALLOCATOR`` and ``BERT_OPENMP`` (spec.cpu.allocator,
spec.cpu.openmp); they are preloaded, since a process can have only one of each.
"""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from bert_trainer.errors import InputError, TrainerError, WrongTopology
from bert_trainer.output.termination import tell_error
from bert_trainer.pod.processes import die_with_parent
from bert_trainer.pod.rendezvous import render_announcement, render_rank_end
from bert_trainer.system.machine import Machine, bound_processors, quota_cores, read_machine
from bert_trainer.system.mpi_variables import read_local_size

_LIBRARIES = {
    ("BERT_ALLOCATOR", "jemalloc"): "libjemalloc.so.2",
    ("BERT_ALLOCATOR", "tcmalloc"): "libtcmalloc_minimal.so.4",
    ("BERT_OPENMP", "intel"): "libiomp5.so",
}
_CHOICES = {"BERT_ALLOCATOR": ("system", "jemalloc", "tcmalloc"), "BERT_OPENMP": ("gnu", "intel")}
_LIBRARY_FOLDERS = tuple(
    Path(folder)
    for folder in (
        f"{sys.prefix}/lib",
        *("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu"),  # Debian
        *("/usr/lib64", "/usr/lib"),
    )
)
_FORWARDED_SIGNALS = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredTopology:
    """What the job says of its machines; None: nothing."""

    sockets: int | None = None
    numa_nodes: int | None = None

    def options(self) -> tuple[str, ...]:
        """Return it as options of ``bert-pod``."""
        named = (("--sockets", self.sockets), ("--numa-nodes", self.numa_nodes))
        return tuple(word for name, value in named if value is not None for word in (name, str(value)))


def rank_command(program: tuple[str, ...], declared: DeclaredTopology, *, reports_end: bool = False) -> tuple[str, ...]:
    """Return the command by which a launcher starts a program as a rank."""
    report_end = ("--tell-end",) if reports_end else ()
    return (sys.executable, "-m", "bert_trainer.pod", "rank", *report_end, *declared.options(), "--", *program)


def run_rank(program: tuple[str, ...], declared: DeclaredTopology, *, reports_end: bool, is_quiet: bool = False) -> int:
    """Become the program, or wait for it and report how it ended; returns the exit code.

    Args:
        program: What runs as a rank.
        declared: Sockets and NUMA nodes that the job expects of this machine.
        reports_end: Stay as its parent and print a line for ``bert-pod launcher`` or ``single`` when it ends. Some
            mpiruns do not notice a rank that fails before MPI_Init, and none says how every rank ended.
        is_quiet: Do not announce the rank: no launcher of ours counts them.
    """
    try:
        host = socket.gethostname()
        machine = read_machine()
        if not is_quiet:
            sys.stdout.write(render_announcement(os.environ, host) + "\n")
            sys.stdout.flush()
        check_topology(machine, declared, host)
        extra = {**choose_preload(os.environ), **choose_threads(os.environ, machine, bound_processors(), quota_cores())}
        try:
            if reports_end:
                return _run_child(program, {**os.environ, **extra})
            os.execvpe(program[0], program, {**os.environ, **extra})
        except OSError as error:
            raise InputError(
                f"{program[0]}: cannot be started ({error.strerror})",
                hint="name a program that the image has, after --",
            ) from error
    except TrainerError as error:
        tell_error("bert-pod", error)
        return error.exit_code


def _run_child(program: tuple[str, ...], environment: Mapping[str, str]) -> int:
    child: subprocess.Popen[bytes] | None = None
    early: list[int] = []

    def forward(number: int, _frame: FrameType | None) -> None:
        if child is None:
            early.append(number)
        elif child.returncode is None:
            child.send_signal(number)

    for number in _FORWARDED_SIGNALS:
        signal.signal(number, forward)
    # Descriptors stay open: by one of them it talks to the launcher. A group of its own: some launchers signal this
    # process's whole group, and it would be asked twice. It must not outlive this process, the one that they kill.
    child = subprocess.Popen(
        program, env=dict(environment), close_fds=False, process_group=0, preexec_fn=die_with_parent
    )
    for received in early:
        child.send_signal(received)
    code = child.wait()
    sys.stdout.write(render_rank_end(os.environ, code) + "\n")
    sys.stdout.flush()
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the program has left its own
        if -code in _FORWARDED_SIGNALS:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code if code >= 0 else 128 - code


def check_topology(machine: Machine, declared: DeclaredTopology, host: str) -> None:
    """Make sure that the machine is what the job takes it for: ranks would be bound to the wrong cores.

    Raises:
        WrongTopology: it is not.
    """
    for path, declared_count, found in (
        ("spec.cpu.sockets", declared.sockets, machine.sockets),
        ("spec.cpu.numaNodes", declared.numa_nodes, machine.numa_nodes),
    ):
        if declared_count is not None and declared_count != found:
            raise WrongTopology(
                f"{path}: got {declared_count}; allowed: {found}, as many as {host} has",
                hint="correct it in the job or its profile, or choose other nodes with spec.scheduling.nodeSelector",
            )


def choose_preload(environment: Mapping[str, str], folders: Sequence[Path] = _LIBRARY_FOLDERS) -> dict[str, str]:
    """Return ``LD_PRELOAD`` for the ranks; empty where the system's own libraries are wanted.

    Raises:
        InputError: a choice is unknown, or the image does not hold what was chosen.
    """
    found = []
    for variable, allowed in _CHOICES.items():
        choice = environment.get(variable) or allowed[0]
        if choice not in allowed:
            raise InputError(f"{variable}: got {choice!r}; allowed: {', '.join(allowed)}")
        library = _LIBRARIES.get((variable, choice))
        if library is None:
            continue
        path = next((folder / library for folder in folders if (folder / library).exists()), None)
        if path is None:
            raise InputError(
                f"{variable}: {choice}: the image has no {library}",
                hint=f"install it into the image, or leave {'spec.cpu.' + variable[5:].lower()} out",
            )
        found.append(str(path))
    if not found:
        return {}
    given = environment.get("LD_PRELOAD")
    return {"LD_PRELOAD": ":".join([*found, *([given] if given else [])])}


def choose_threads(
    environment: Mapping[str, str], machine: Machine, processors: tuple[int, ...], quota_cores: float | None
) -> dict[str, str]:
    """Return OMP_NUM_THREADS for this rank where nobody has set it: the cores that it is bound to.

    Ranks that are bound to nothing share the machine's cores, or the container's, with those beside them.
    quota_cores: how many cores' time the container gets; None: no limit.
    """
    if environment.get("OMP_NUM_THREADS"):
        return {}
    local_size = read_local_size(environment)
    cores = machine.count_cores(processors)
    is_bound = local_size > 1 and len(processors) < len(machine.core_of)
    if not is_bound:
        cores //= local_size
    if quota_cores is not None:
        cores = min(cores, int(quota_cores) // local_size)
    return {"OMP_NUM_THREADS": str(max(1, cores))}
