"""Command lines, environments and host files for three MPIs: Open MPI, MPICH and Intel MPI.

Pure functions, except ``find_launcher``, which looks for programs. Tested with Open MPI 4.1.4 and 5.0.11, MPICH 5.0.2
and Intel MPI 2021.17 (tests/pod/test_flavours.py). MPICH and Intel MPI share their launcher, Hydra, and most options.
Variables that launchers set for ranks are in ``system/mpi_variables.py``.
"""

from __future__ import annotations

import ipaddress
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bert_trainer.errors import InputError, WrongMPI

Mpi = Literal["OpenMPI", "Intel", "MPICH"]
MPIS: tuple[Mpi, ...] = ("OpenMPI", "Intel", "MPICH")

# mpi-operator writes ``NAME slots=S`` for Open MPI and ``NAME:S`` for the others. Names are restricted to what ssh
# cannot take for an option or for another user.
_HOST = r"[A-Za-z0-9](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?"
_HOST_LINES = (
    re.compile(rf"(?P<name>{_HOST})(?:\s+slots\s*=\s*(?P<slots>[0-9]+))?"),
    re.compile(rf"(?P<name>{_HOST}):(?P<slots>[0-9]+)"),
)

# Every MPI installs an mpirun, and most of them an mpiexec as well: whose it is, only its ``--version`` tells.
_PROGRAMS: dict[Mpi, tuple[str, ...]] = {
    "OpenMPI": ("mpirun", "mpiexec"),
    "Intel": ("mpiexec.hydra", "mpiexec", "mpirun"),
    "MPICH": ("mpiexec.hydra", "mpiexec", "mpirun"),
}
_ALL_PROGRAMS = ("mpirun", "mpiexec", "mpiexec.hydra")
_HOME_VARIABLES = ("MPI_HOME", "I_MPI_ROOT")
_VERSIONS: tuple[tuple[Mpi, str, re.Pattern[str]], ...] = (
    # Debian's mpirun.openmpi prints the name of its runtime, OpenRTE.
    ("OpenMPI", "Open MPI", re.compile(r"\((?:Open MPI|OpenRTE)\) (\d+[^\s]*)")),
    ("Intel", "Intel MPI", re.compile(r"Intel\(R\) MPI Library.*Version (\d+[^\s]*)")),
    ("MPICH", "MPICH", re.compile(r"HYDRA build details:\s+Version:\s+(\d+[^\s]*)")),
)
_VERSION_TIMEOUT_S = 20

# Variables with options for ssh. Open MPI 5 (PRRTE) reads the first and silently ignores Open MPI 4's, the second;
# MPICH has renamed its own. All of an MPI's are set, whatever its version.
_SSH_VARIABLES: dict[Mpi, tuple[str, ...]] = {
    "OpenMPI": ("PRTE_MCA_plm_ssh_args", "OMPI_MCA_plm_rsh_args"),
    "Intel": ("I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS",),
    "MPICH": ("HYDRA_LAUNCHER_EXTRA_ARGS", "HYDRA_LAUNCH_EXTRA_ARGS"),
}
_OPEN_MPI_SETTINGS = {
    # Otherwise worker-0.job.namespace.svc is shortened to worker-0, a name that only its own pod can resolve.
    "OMPI_MCA_orte_keep_fqdn_hostnames": "true",
    "PRTE_MCA_prte_keep_fqdn_hostnames": "true",
    # Otherwise workers start further workers by ssh, from the 65th on, and for that Open MPI 5.0.11 cuts ssh's options
    # after a "=".
    "OMPI_MCA_plm_rsh_no_tree_spawn": "1",
    "PRTE_MCA_plm_ssh_no_tree_spawn": "1",
}
_NEVER_FORWARDED = frozenset(
    # mpi-operator sets them empty in the launcher, which needs no GPU; a rank that got them would see no GPU either.
    {"NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES"}
    # Paths of this pod.
    | {"BERT_TERMINATION_LOG", "TMPDIR"}
)

# What launchers put before a rank's output. Tags also appear in the middle of lines, hence search and not match. Open
# MPI's first number is the job's; job 0 is mpirun itself, whose lines are no rank's. Its versions differ in the blank,
# which must not be taken off a rank's own indent.
OPEN_MPI_4_TAG = re.compile(r"\[[1-9]\d*,(\d{1,9})\]<std(?:out|err)>:")
OPEN_MPI_5_TAG = re.compile(r"\[[1-9]\d*,(\d{1,9})\]<std(?:out|err)>: ?")
_HYDRA_PATTERN = "<rank %r>:"  # Hydra's own -prepend-rank writes "[0] ", which a program may print as well
HYDRA_TAG = re.compile(r"<rank (\d{1,9})>:")


@dataclass(frozen=True, slots=True)
class Host:
    """One line of the host file."""

    name: str
    slots: int
    """Ranks that run there."""

    @property
    def pod(self) -> str:
        """The pod's name, for messages."""
        return short_name(self.name)


@dataclass(frozen=True, slots=True)
class InstalledMpi:
    """An mpirun and the MPI that it belongs to."""

    program: str
    mpi: Mpi
    name: str
    """The MPI's, with its version."""
    major: int


@dataclass(frozen=True, slots=True)
class Launcher:
    """An mpirun and the tags of its output."""

    mpi: Mpi
    program: str
    tag_options: tuple[str, ...]
    tag: re.Pattern[str]
    """The tag before a rank's output; the group is the rank."""
    name: str = ""
    """The MPI's, with its version."""

    @property
    def banner_names_killed(self) -> bool:
        """Whether its banner also names ranks that the launcher killed itself, in the order of their numbers."""
        return self.mpi != "OpenMPI"

    @property
    def combines_codes(self) -> bool:
        """Whether its exit code is the bitwise OR of all ranks' codes."""
        return self.mpi == "MPICH"


def short_name(name: str) -> str:
    """Return the first label of a host name; an IP address unchanged."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return name.partition(".")[0]
    return name


def parse_hostfile(text: str, *, source: str, slots: int) -> tuple[Host, ...]:
    """Return the hosts in their order, each once; none if the file is still empty.

    Args:
        text: The file.
        source: Its path, for messages.
        slots: Ranks per worker that the job asks for; also those of a line without a number.

    Raises:
        InputError: A line is no host, or has other slots.
    """
    hosts: dict[str, Host] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.partition("#")[0].strip()
        if not words:
            continue
        match = next((found for pattern in _HOST_LINES if (found := pattern.fullmatch(words))), None)
        if match is None:
            raise InputError(
                f"{source}:{number}: got {words!r}; allowed: NAME slots=S, or NAME:S",
                hint="mpi-operator writes this file; mount nothing else there",
            )
        found_slots = int(match["slots"] or slots)
        # Evenly: launcher_log takes rank // slots for the host of a rank.
        if found_slots != slots:
            raise InputError(
                f"{source}:{number}: got {found_slots} slots; allowed: {slots}, as --slots says",
                hint="give spec.slotsPerWorker of the MPIJob and --slots the same value",
            )
        hosts[match["name"]] = Host(match["name"], slots)
    return tuple(hosts.values())


def render_hostfile(hosts: tuple[Host, ...], *, is_open_mpi: bool) -> str:
    """Return the host file in an MPI's own form: neither accepts the other's."""
    return "".join(
        f"{host.name} slots={host.slots}\n" if is_open_mpi else f"{host.name}:{host.slots}\n" for host in hosts
    )


def find_launcher(mpi: Mpi, environment: Mapping[str, str] | None = None) -> Launcher:
    """Find an MPI's mpirun: in MPI_HOME and I_MPI_ROOT, beside the interpreter, in PATH, in this order.

    Raises:
        WrongMPI: It is not installed; the message names the MPIs that are.
    """
    environment = os.environ if environment is None else environment
    others: dict[str, InstalledMpi] = {}
    for program in _candidates(_PROGRAMS[mpi], environment):
        found = _identify(program)
        if found is not None and found.mpi == mpi:
            return _make_launcher(found)
    for program in _candidates(_ALL_PROGRAMS, environment):
        if found := _identify(program):
            others.setdefault(found.name, found)
    if not others:
        raise WrongMPI(
            f"--mpi {mpi}: none of its launchers is installed: {', '.join(_PROGRAMS[mpi])}",
            hint="use an image that has this MPI, or set spec.mpi.implementation to the one that the image has",
        )
    installed = ", ".join(f"{found.name} ({found.program})" for found in others.values())
    raise WrongMPI(
        f"--mpi {mpi}: not installed; found: {installed}",
        hint=f"write spec.mpi.implementation: {next(iter(others.values())).mpi}, or use an image that has {mpi}",
    )


def find_program(name: str) -> str | None:
    """Return the path of a program, from beside the interpreter (a virtual environment) or from PATH."""
    beside = Path(sys.executable).parent / name
    return str(beside) if os.access(beside, os.X_OK) else shutil.which(name)


def read_version(program: str, answer: str) -> InstalledMpi | None:
    """Return the MPI whose mpirun gave this answer to ``--version``; None if it is not known."""
    for mpi, name, pattern in _VERSIONS:
        if match := pattern.search(answer):
            return InstalledMpi(program, mpi, f"{name} {match[1]}", int(match[1].partition(".")[0]))
    return None


def _make_launcher(found: InstalledMpi) -> Launcher:
    if found.mpi != "OpenMPI":
        return Launcher(found.mpi, found.program, ("-prepend-pattern", _HYDRA_PATTERN), HYDRA_TAG, found.name)
    options, tag = (("--tag-output",), OPEN_MPI_4_TAG) if found.major < 5 else (("--output", "tag"), OPEN_MPI_5_TAG)
    return Launcher(found.mpi, found.program, options, tag, found.name)


def _candidates(names: Iterable[str], environment: Mapping[str, str]) -> tuple[str, ...]:
    homes = [Path(environment[variable], "bin") for variable in _HOME_VARIABLES if environment.get(variable)]
    folders = [*homes, Path(sys.executable).parent, *map(Path, environment.get("PATH", "").split(os.pathsep))]
    places = (folder / name for folder in folders for name in names)
    # is_file: folders are executable, too.
    return tuple(dict.fromkeys(str(place) for place in places if os.access(place, os.X_OK) and place.is_file()))


def _identify(program: str) -> InstalledMpi | None:
    """Return the MPI that a program belongs to; None if it cannot be run or is not known."""
    try:
        answer = subprocess.run(
            [program, "--version"], capture_output=True, text=True, timeout=_VERSION_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return read_version(program, answer.stdout)


def render_local_command(launcher: Launcher, *, ranks: int, is_root: bool, program: Iterable[str]) -> tuple[str, ...]:
    """Return the command for ranks that all run in this pod."""
    if launcher.mpi != "OpenMPI":
        unbound = _hydra_binding(launcher)
        return (launcher.program, "-n", str(ranks), *unbound, *launcher.tag_options, *program)
    # By default Open MPI binds each rank to one core, and all threads of the rank would share it; and it refuses more
    # ranks than the pod has cores. Ranks bind themselves (``binding``), and OMP_NUM_THREADS limits the threads.
    unbound = ("--bind-to", "none", "--map-by", ":OVERSUBSCRIBE")
    return (launcher.program, *_as_root(is_root), "-np", str(ranks), *unbound, *launcher.tag_options, *program)


def render_remote_command(
    launcher: Launcher,
    *,
    ranks: int,
    slots: int,
    hostfile: str,
    exports: Iterable[str],
    is_root: bool,
    program: Iterable[str],
) -> tuple[str, ...]:
    """Return the command for ranks that run in other pods.

    Args:
        launcher: The mpirun to call.
        ranks: Of the whole job.
        slots: Ranks per worker.
        hostfile: Path, in this MPI's form. Always given: without one Open MPI 5 starts all ranks in this pod.
        exports: Variables that ranks get from here. All others they get from the pod that they run in.
        is_root: Open MPI refuses to run as root unless it is asked to.
        program: What each rank runs.
    """
    where: tuple[str, ...]
    forwarded: tuple[str, ...]
    if launcher.mpi == "OpenMPI":
        where = ("--hostfile", hostfile, "-np", str(ranks), "--map-by", "slot", "--bind-to", "none")
        forwarded = tuple(word for name in exports for word in ("-x", name))
        return (launcher.program, *_as_root(is_root), *where, *forwarded, *launcher.tag_options, *program)
    names = ",".join(exports)
    where = ("-f", hostfile, "-n", str(ranks), "-ppn", str(slots), *_hydra_binding(launcher))
    # By default Hydra forwards the whole environment of this pod, and it would replace the workers' own.
    forwarded = ("-genvlist", names) if names else ("-genvnone",)
    return (launcher.program, *where, *forwarded, *launcher.tag_options, *program)


def _hydra_binding(launcher: Launcher) -> tuple[str, ...]:
    # Intel MPI binds by default, MPICH does not.
    return ("-genv", "I_MPI_PIN", "off") if launcher.mpi == "Intel" else ()


def _as_root(is_root: bool) -> tuple[str, ...]:
    return ("--allow-run-as-root",) if is_root else ()


def choose_exports(environment: Mapping[str, str], wanted: Iterable[str]) -> tuple[str, ...]:
    """Return the names of variables that ranks in other pods get: those asked for and BERT_*, if they are set."""
    names = {name for name in environment if name.startswith("BERT_")} | (set(wanted) & set(environment))
    return tuple(sorted(names - _NEVER_FORWARDED))


def ssh_options(mpi: Mpi, environment: Mapping[str, str], port: int | None) -> str:
    """Return ssh's options as one text; the user's come first, because ssh takes the first value of each option.

    Args:
        mpi: Whose variables hold the user's options.
        environment: Of the launcher.
        port: Of the workers' sshd; None: as in ssh's own configuration.
    """
    own = next((environment[name] for name in _SSH_VARIABLES[mpi] if environment.get(name)), "")
    if mpi == "OpenMPI" and own and own == environment.get("OMPI_MCA_plm_rsh_args") == "-o ConnectionAttempts=10":
        own = ""  # mpi-operator sets this in every launcher; it is no choice of the user, and one of ours as well
    # Host keys are not checked: workers' addresses change with every attempt, and all workers show the one key that was
    # made for this job alone. BatchMode: nobody could answer a question.
    ours = "-o BatchMode=yes -o ConnectionAttempts=10 -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null"
    return " ".join(word for word in (own, ours, "-o LogLevel=ERROR", f"-p {port}" if port else "") if word)


def launcher_environment(mpi: Mpi, base: Mapping[str, str], options: str) -> dict[str, str]:
    """Return mpirun's environment.

    Args:
        mpi: Which one.
        base: Of this process.
        options: For ssh, from ``ssh_options``.
    """
    environment = {name: value for name, value in base.items() if name not in _NEVER_FORWARDED}
    environment |= dict.fromkeys(_SSH_VARIABLES[mpi], options)
    if mpi == "OpenMPI":
        environment |= _OPEN_MPI_SETTINGS
    return environment
