"""Command lines and environments of children that run without a cluster. Pure functions.

``programs`` finds the programs of this machine, ``processes`` runs what is built here.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from bert_operator.api.schema.cluster import CpuSpec
from bert_operator.errors import LaunchError
from bert_operator.local.guard import TERMINATION_LOG_VARIABLE
from bert_operator.local.programs import Programs

LauncherName = Literal["alone", "open-mpi", "gloo", "torchrun"]
MpiChoice = Literal["auto", "open-mpi", "gloo"]
Collectives = Literal["horovod", "torch"]

ATTEMPT_VARIABLE = "BERT_ATTEMPT"
CONFIG_VARIABLE = "BERT_RUN_CONFIG"
"""Where a program of the user's own finds the run configuration."""

_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
# Nobody is there to answer: an unknown host is accepted once, a changed key refused, a password never asked for.
_SSH_OPTIONS = "-o BatchMode=yes -o StrictHostKeyChecking=accept-new -o ConnectTimeout=20"
# Open MPI 4 reads the first; Open MPI 5 (PRRTE) reads the second and silently ignores the first.
_SSH_VARIABLES = ("OMPI_MCA_plm_rsh_args", "PRTE_MCA_plm_ssh_args")
# Ranks on other machines start from a clean environment: sshd and mpirun pass on only what -x names.
_EXPORTED_NAMES = frozenset({"PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "LD_PRELOAD", "HOME", "TMPDIR", "TZ"})
_EXPORTED_FAMILIES = (
    "BERT_",
    "CUDA_",
    "DNNL_",
    "GLOO_",
    "HF_",
    "HOROVOD_",
    "KMP_",
    "MALLOC_",
    "MKL_",
    "NCCL_",
    "OMP_",
    "ONEDNN_",
    "PYTHON",
    "TORCH",
    "UCX_",
)
_GLOO_PREFIX = re.compile(r"^\[\d+\]<(?:stdout|stderr)>: ?")
_TORCHRUN_PREFIX = "torchrun: "  # of bert_trainer.parallel.torchrun
_SHELL_WORDS = ("Killed", "Terminated")  # printed by the shell in which horovodrun starts every rank
_GLOO_EXIT = re.compile(r"^(?:Process \d+ exit with status code (-?\d{1,9})\.|Exit code: (-?\d{1,9}))$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Hosts that ranks run on; empty: this machine."""

    ranks: int
    ranks_per_node: int
    hosts: tuple[str, ...] = ()
    hostfile: str | None = None
    """The same hosts as a file for mpirun."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """Binding of ranks to sockets, NUMA nodes or cores."""

    place: Literal["core", "socket", "numa"]
    ranks_per_place: int
    """Of a socket or NUMA node."""
    cores_per_rank: int | None

    def options(self) -> tuple[str, ...]:
        """Return the options of ``bert-pod rank``, which binds itself."""
        cores = () if self.cores_per_rank is None else ("--cores-per-rank", str(self.cores_per_rank))
        return ("--bind", self.place, "--ranks-per-place", str(self.ranks_per_place), *cores)


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Command line and environment of a child."""

    command: tuple[str, ...]
    environment: Mapping[str, str]
    launcher: LauncherName
    program: tuple[str, ...]
    """The tail of ``command``, by which ranks are recognized among the processes of a child."""
    is_local: bool = True
    """All of its processes are on this machine."""


def choose_collectives(
    option: Collectives | None, asked: Collectives | None, ranks: int, programs: Programs
) -> Collectives | None:
    """Return the library for collectives; None: the run configuration's default, Horovod.

    Nobody who asks for neither needs Horovod: where it is not installed, several ranks take torch.distributed.

    Args:
        option: Of the command line.
        asked: The job's; a job that asks for Horovod gets nothing else.
        ranks: All of them.
        programs: Of this machine.
    """
    if option is None and asked is None and ranks > 1 and not programs.has_horovod and programs.torchrun:
        return "torch"
    return option or asked


def choose_launcher(
    choice: MpiChoice, placement: Placement, programs: Programs, collectives: Collectives = "horovod"
) -> LauncherName:
    """Return what starts the ranks: nothing for a single local one, else Open MPI's mpirun where it is installed.

    Where it is not, or not wanted: horovodrun for Horovod, torchrun for torch.distributed.

    Raises:
        LaunchError: The requested launcher, or every suitable one, is not installed, or the library is not.
    """
    if placement.ranks == 1 and not placement.hosts:
        return "alone"
    if collectives == "horovod" and placement.ranks > 1 and not programs.has_horovod:
        raise LaunchError(
            f"{placement.ranks} ranks sum gradients through Horovod, which is not installed",
            hint="use torch.distributed in its place (--collectives torch, or spec.collectives: torch), or install "
            "Horovod: BERT_COLLECTIVES=horovod make setup, which needs a C++ compiler",
        )
    if choice in ("auto", "open-mpi") and programs.mpirun is not None:
        return "open-mpi"
    if collectives == "torch":
        return _choose_torchrun(choice, placement, programs)
    if choice in ("auto", "gloo") and programs.horovodrun is not None:
        return "gloo"
    wanted = {"auto": "neither Open MPI nor horovodrun", "open-mpi": "no Open MPI", "gloo": "no horovodrun"}[choice]
    raise LaunchError(
        f"{placement.ranks} rank(s) need a launcher, and {wanted} is installed",
        hint="install the mpi extra (Open MPI from PyPI) or Horovod, or use a single rank: slotsPerWorker: 1",
    )


def _choose_torchrun(choice: MpiChoice, placement: Placement, programs: Programs) -> LauncherName:
    if placement.hosts:
        # torchrun would have to be started on every machine; mpirun gets there by ssh.
        wanted = "of a host file need Open MPI, which is not installed" if choice != "gloo" else "need --mpi open-mpi"
    elif choice == "open-mpi":
        wanted = "need a launcher, and no Open MPI is installed"
    elif not programs.torchrun:
        wanted = "need a launcher, and neither Open MPI nor PyTorch is installed"
    else:
        return "torchrun"
    raise LaunchError(
        f"{placement.ranks} rank(s) {wanted}",
        hint="install the mpi extra (Open MPI from PyPI), or use ranks of this machine alone, without --hostfile",
    )


def choose_binding(cpu: CpuSpec, placement: Placement, cores: int) -> Binding | None:
    """Return the binding of ranks; None if the job sets none, or the machine is too small.

    A job for a cluster's nodes has to run on a laptop, too.

    Args:
        cpu: The job's.
        placement: Of the ranks.
        cores: Physical ones of a machine.
    """
    if cpu.pinning == "none" or (cpu.cores_per_rank or 1) * placement.ranks_per_node > cores:
        return None
    ranks, places = placement.ranks_per_node, cpu.places if cpu.pinning != "core" else None
    return Binding(place=cpu.pinning, ranks_per_place=ranks // (places or ranks), cores_per_rank=cpu.cores_per_rank)


def fit_environment(variables: Mapping[str, str], binding: Binding | None, *, threads: int) -> dict[str, str]:
    """Return the environment variables that follow from a job, without those unsuitable for this machine.

    threads: Most threads per rank.
    """
    fitting = dict(variables)
    if int(fitting.get("OMP_NUM_THREADS", 0)) > threads:
        del fitting["OMP_NUM_THREADS"]
    if binding is None:
        # It binds threads by core number within what the rank is bound to: unbound ranks would all take the same cores.
        fitting.pop("KMP_AFFINITY", None)
    return fitting


def build_environment(
    base: Mapping[str, str],
    *,
    attempt: int,
    termination_log: str,
    threads: int | None,
    processors: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Return a child's environment.

    Args:
        base: The user's; it overrides ``processors`` and ``threads``.
        attempt: Number of the attempt.
        termination_log: File for its termination record.
        threads: Of every process; None: not limited.
        processors: Variables that follow from the job.
    """
    environment = {
        **(processors or {}),
        **base,
        ATTEMPT_VARIABLE: str(attempt),
        TERMINATION_LOG_VARIABLE: termination_log,
    }
    # Ranks write into a pipe: what is printed without a flush would come in blocks of 8 KiB.
    environment["PYTHONUNBUFFERED"] = "1"
    if threads is not None:
        for name in _THREAD_VARIABLES:
            environment.setdefault(name, str(threads))
    return environment


def threads_per_rank(cores: int, ranks_on_this_machine: int) -> int:
    """Return the cores divided by the ranks; more threads than cores slow down all ranks."""
    return max(1, cores // ranks_on_this_machine)


def launch_prepare(
    programs: Programs, config: str, environment: Mapping[str, str], placement: Placement | None = None
) -> Launch:
    """Return the launch of data preparation: one process with a pool of its own, or ranks on several machines.

    placement: Of several machines, under Open MPI; None: this machine.
    """
    program = (*programs.prepare, "--config", config)
    if placement is None:
        return Launch(command=program, environment=environment, launcher="alone", program=program)
    return _launch_ranks(programs, "open-mpi", placement, environment, program, program)


def launch_training(
    programs: Programs,
    launcher: LauncherName,
    placement: Placement,
    config: str,
    environment: Mapping[str, str],
    *,
    through: tuple[str, ...] = (),
    own: tuple[str, ...] = (),
) -> Launch:
    """Return the launch of training: every rank runs the same program.

    Args:
        programs: Of this machine.
        launcher: Of the ranks.
        placement: Of the ranks.
        config: The run configuration's file.
        environment: Of every rank.
        through: Program that starts the trainer as a rank and is replaced by it (exec).
        own: The job's own program in place of the trainer; empty: the trainer.
    """
    program = (*programs.train, "--config", config)
    if own:
        # As in a pod: ``python`` is the one that has the trainer's packages, also where no environment is activated.
        path = os.pathsep.join(filter(None, (programs.folder, environment.get("PATH"))))
        environment = {**environment, CONFIG_VARIABLE: config, "PATH": path}
        program = own
    return _launch_ranks(programs, launcher, placement, environment, program, (*through, *program))


def _launch_ranks(
    programs: Programs,
    launcher: LauncherName,
    placement: Placement,
    environment: Mapping[str, str],
    program: tuple[str, ...],
    command: tuple[str, ...],
) -> Launch:
    extra = dict(environment)
    if launcher == "open-mpi":
        if placement.hosts:
            extra = {**dict.fromkeys(_SSH_VARIABLES, _SSH_OPTIONS), **extra}
        command = (*_mpirun(programs, placement, extra), *command)
    elif launcher == "gloo":
        command = (*_horovodrun(programs, placement), *command)
    elif launcher == "torchrun":
        command = (*programs.torchrun, str(placement.ranks), *command)
    return Launch(command=command, environment=extra, launcher=launcher, program=program, is_local=not placement.hosts)


def exported_names(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of the variables that ranks on other machines need."""
    return tuple(sorted(name for name in environment if name in _EXPORTED_NAMES or name.startswith(_EXPORTED_FAMILIES)))


def split_prefix(line: str, launcher: LauncherName) -> tuple[str, bool]:
    """Return a line without the launcher's prefix, and whether a rank wrote it.

    horovodrun prefixes ranks' lines with ``[rank]<stdout>:``; torchrun, as it is started here, its own one. mpirun adds
    no prefix, so all lines count as ranks'.
    """
    if launcher == "torchrun":
        return line, not line.startswith(_TORCHRUN_PREFIX)
    if launcher != "gloo":
        return line, True
    stripped, found = _GLOO_PREFIX.subn("", line)
    return stripped, bool(found) and stripped not in _SHELL_WORDS


def read_gloo_exit(lines: Iterable[str]) -> int | None:
    """Return the exit code of the rank that failed first: horovodrun prints it and always exits with 1 itself."""
    codes = (int(match[1] or match[2]) for line in lines if (match := _GLOO_EXIT.match(line)))
    return next((code for code in codes if code != 0), None)


def _mpirun(programs: Programs, placement: Placement, environment: Mapping[str, str]) -> tuple[str, ...]:
    assert programs.mpirun is not None, "choose_launcher checks it"
    where: tuple[str, ...] = ("--hostfile", placement.hostfile) if placement.hostfile else ()
    # By default mpirun binds up to two ranks to one core each, on which all of their threads would run; ranks bind
    # themselves, and threads are limited by OMP_NUM_THREADS. Oversubscribing is allowed on one machine: a laptop may
    # try out what a cluster will run.
    unbound = ("--bind-to", "none", "--map-by", "slot" if placement.hostfile else ":OVERSUBSCRIBE")
    exports = (word for name in exported_names(environment) for word in ("-x", name))
    return (
        programs.mpirun,
        # Open MPI refuses root otherwise; in containers there is often no other user.
        *(("--allow-run-as-root",) if programs.is_root else ()),
        "-np",
        str(placement.ranks),
        *where,
        *unbound,
        *exports,
    )


def _horovodrun(programs: Programs, placement: Placement) -> tuple[str, ...]:
    assert programs.horovodrun is not None, "choose_launcher checks it"
    hosts = placement.hosts or ("localhost",)
    places = ",".join(f"{host}:{placement.ranks_per_node}" for host in hosts)
    return (programs.horovodrun, "--gloo", "-np", str(placement.ranks), "-H", places)
