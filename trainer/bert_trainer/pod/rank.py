"""``bert-pod rank``: what mpirun starts; checks machine and network, binds itself and runs its program.

The memory allocator, the OpenMP runtime and the number of threads depend on the machine that the rank runs on, so
they are chosen there, and mpirun itself is not affected. The job selects libraries by ``BERT_ALLOCATOR`` and
``BERT_OPENMP`` (spec.cpu.allocator, spec.cpu.openmp). Every rank pays for what this module imports: the standard
library only.
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

from bert_job.progress import ATTEMPT_VARIABLE
from bert_trainer.errors import EXIT_INFRASTRUCTURE, InputError, TrainerError, WrongTopology
from bert_trainer.output.termination import report_error
from bert_trainer.pod.binding import Binding, choose_processors
from bert_trainer.pod.hang_watch import HangWatch, read_action
from bert_trainer.pod.processes import die_with_parent
from bert_trainer.pod.rank_pipes import RankPipes
from bert_trainer.pod.rendezvous import render_announcement, render_keepalive, render_rank_end
from bert_trainer.pod.transport_check import check_transports
from bert_trainer.pod.transports import describe_transports, read_transports
from bert_trainer.system.machine import Machine, bound_processors, quota_cores, read_machine
from bert_trainer.system.mpi_variables import read_local_rank, read_local_size, read_size

# Preloaded, because a process can have only one allocator and one OpenMP runtime, and linking has chosen already.
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
# What launchers forward or send to end ranks. SIGKILL cannot be forwarded: see die_with_parent.
_FORWARDED_SIGNALS = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredTopology:
    """What the job expects of every machine; None: any number."""

    sockets: int | None = None
    numa_nodes: int | None = None
    threads_per_core: int | None = None

    def options(self) -> tuple[str, ...]:
        """Return the options of ``bert-pod rank`` for it."""
        named = (
            ("--sockets", self.sockets),
            ("--numa-nodes", self.numa_nodes),
            ("--threads-per-core", self.threads_per_core),
        )
        return tuple(word for name, value in named if value is not None for word in (name, str(value)))


def rank_command(program: tuple[str, ...], declared: DeclaredTopology, binding: Binding | None) -> tuple[str, ...]:
    """Return the command that a launcher starts for each rank, or a pod for its only one."""
    options = (*declared.options(), *(binding.options() if binding else ()))
    return (sys.executable, "-m", "bert_trainer.pod", "rank", "--tell-end", *options, "--", *program)


def run_rank(
    program: tuple[str, ...],
    declared: DeclaredTopology,
    binding: Binding | None,
    *,
    reports_end: bool,
    is_quiet: bool = False,
) -> int:
    """Become the program, or wait for it and report how it ended; returns the exit code.

    Args:
        program: What runs as a rank.
        declared: Sockets, NUMA nodes and hardware threads that the job expects of this machine.
        binding: What the rank is bound to; None: it runs on all processors of its pod.
        reports_end: Stay as its parent and print a line for ``bert-pod launcher`` or ``single`` when it ends. Some
            mpiruns do not notice a rank that fails before MPI_Init, and none says how every rank ended.
        is_quiet: Do not announce the rank: no launcher of ours counts them.
    """
    try:
        host = socket.gethostname()
        machine = read_machine()
        if not is_quiet:
            # Before the checks, so that the launcher can name the host of a failure. Flushed: exec drops buffers.
            sys.stdout.write(render_announcement(os.environ, host) + "\n")
            sys.stdout.flush()
        check_topology(machine, declared, host)
        if read_size(os.environ) > 1:
            transports = read_transports()
            # Once per pod.
            if not is_quiet and read_local_rank(os.environ) == 0:
                sys.stdout.write(describe_transports(transports, host) + "\n")
                sys.stdout.flush()
            check_transports(transports, os.environ, host)
        processors = bound_processors()
        if binding is not None:
            processors = choose_processors(
                binding,
                machine,
                processors,
                local_rank=read_local_rank(os.environ),
                local_size=read_local_size(os.environ),
                threads_per_core=declared.threads_per_core,
            )
            os.sched_setaffinity(0, processors)  # what it starts inherits this
        threads = choose_threads(os.environ, machine, processors, quota_cores(), is_bound=binding is not None)
        extra = {**choose_preload(os.environ), **threads}
        try:
            if reports_end:
                # The launcher reads its records, by hand too.
                return _run_child(program, {ATTEMPT_VARIABLE: "1", **os.environ, **extra})
            os.execvpe(program[0], program, {**os.environ, **extra})
        except OSError as error:
            raise InputError(
                f"{program[0]}: cannot be started ({error.strerror})",
                hint="name a program that the image has, after --",
            ) from error
    except TrainerError as error:
        report_error("bert-pod", error)
        return error.exit_code


def _run_child(program: tuple[str, ...], environment: Mapping[str, str]) -> int:
    pipes = RankPipes()
    keepalive = render_keepalive(environment) if read_local_rank(environment) == 0 else None
    watch = HangWatch(read_action(environment), environment, pipes.write, keepalive)
    # Signals that arrive before the child exists are kept for it.
    child: subprocess.Popen[bytes] | None = None
    early: list[int] = []

    def forward(number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGUSR1:
            watch.note_stop_request()
        if child is None:
            early.append(number)
        elif child.returncode is None:
            child.send_signal(number)

    for number in _FORWARDED_SIGNALS:
        signal.signal(number, forward)
    # close_fds=False: the program talks to the launcher and to the watch through inherited descriptors. process_group:
    # some launchers signal the whole group of what they started, and the program would be asked twice. die_with_parent:
    # launchers kill only what they started, and the program must not outlive it.
    child = subprocess.Popen(
        program,
        env={**environment, **watch.environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        close_fds=False,
        process_group=0,
        preexec_fn=die_with_parent,
    )
    assert child.stdout is not None, "a pipe was asked for"
    assert child.stderr is not None, "a pipe was asked for"
    pipes.forward(child.stdout, child.stderr)
    watch.start(child.pid)
    for received in early:
        child.send_signal(received)
    code = child.wait()
    watch.stop()
    pipes.finish()
    pipes.write(render_rank_end(os.environ, code, has_hung=watch.has_ended_rank))
    if watch.has_ended_rank:
        return EXIT_INFRASTRUCTURE
    if code < 0:
        # End by the same signal, so that the launcher's banner names it; without a second core file.
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if -code in _FORWARDED_SIGNALS:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code if code >= 0 else 128 - code


def check_topology(machine: Machine, declared: DeclaredTopology, host: str) -> None:
    """Check that the machine has what the job declares: binding and the pods' requests rely on it.

    Raises:
        WrongTopology: It has others.
    """
    for path, declared_count, found in (
        ("spec.cpu.sockets", declared.sockets, machine.sockets),
        ("spec.cpu.numaNodes", declared.numa_nodes, machine.numa_nodes),
        ("spec.cpu.threadsPerCore", declared.threads_per_core, machine.threads_per_core),
    ):
        if declared_count is not None and declared_count != found:
            raise WrongTopology(
                f"{path}: got {declared_count}; allowed: {found}, as many as {host} has",
                hint="correct it in the job or its profile, or choose other nodes with spec.scheduling.nodeSelector",
            )


def choose_preload(environment: Mapping[str, str], folders: Sequence[Path] = _LIBRARY_FOLDERS) -> dict[str, str]:
    """Return ``LD_PRELOAD`` with the chosen libraries before the user's own; empty if the system's are chosen.

    Raises:
        InputError: A choice is unknown, or the image lacks the library.
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
            # Intel's licence keeps it out of published images.
            add = "build the image with OPENMP=intel" if variable == "BERT_OPENMP" else "install it into the image"
            raise InputError(
                f"{variable}: got {choice!r}, but the image has no {library}",
                hint=f"{add}, or leave {'spec.cpu.' + variable[5:].lower()} out",
            )
        found.append(str(path))
    if not found:
        return {}
    given = environment.get("LD_PRELOAD")
    return {"LD_PRELOAD": ":".join([*found, *([given] if given else [])])}


def choose_threads(
    environment: Mapping[str, str],
    machine: Machine,
    processors: tuple[int, ...],
    quota_cores: float | None,
    *,
    is_bound: bool,
) -> dict[str, str]:
    """Return OMP_NUM_THREADS for this rank unless it is set: the physical cores that it is bound to, or its share.

    Args:
        environment: This rank's, for OMP_NUM_THREADS and the number of ranks beside it.
        machine: Cores of the machine.
        processors: Processors that this process may run on.
        quota_cores: CPU limit of the container, in CPUs of Kubernetes, which are hardware threads; None: no limit.
        is_bound: The processors are this rank's own; otherwise the ranks beside it share them.
    """
    if environment.get("OMP_NUM_THREADS"):
        return {}
    local_size = read_local_size(environment)
    cores = machine.count_cores(processors)
    if not is_bound:
        cores //= local_size
    if quota_cores is not None:
        cores = min(cores, int(quota_cores) // local_size)
    return {"OMP_NUM_THREADS": str(max(1, cores))}
