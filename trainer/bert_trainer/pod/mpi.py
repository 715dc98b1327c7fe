"""Command lines, environments, host files and rank binding for three MPIs: Open MPI, MPICH and Intel MPI.

Pure, except ``find_launcher``, which looks for programs. Tried with Open MPI 4.1.4 and 5.0.11, MPICH 5.0.2 and Intel
MPI 2021.17 (tests/pod/test_flavours.py). mpi-operator mounts the host file: ``NAME slots=S`` for Open MPI, ``NAME:S``
for the others. Binding options were checked against what Open MPI 5.0.11 and MPICH 5.0.2 do with them, the latter on
a simulated node of two sockets with hyperthreads; Intel MPI's follow its reference, as it accepts no simulated node.
Cores are physical cores.
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
Place = Literal["core", "socket", "numa"]
PLACES: tuple[Place, ...] = ("core", "socket", "numa")

_HOST = r"[A-Za-z0-9](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?"
_HOST_LINES = (
    re.compile(rf"(?P<name>{_HOST})(?:\s+slots\s*=\s*(?P<slots>[0-9]+))?"),
    re.compile(rf"(?P<name>{_HOST}):(?P<slots>[0-9]+)"),
)

# Every MPI installs an mpirun, and most of them an mpiexec: which one it is, only the program itself can say.
_PROGRAMS: dict[Mpi, tuple[str, ...]] = {
    "OpenMPI": ("mpirun", "mpiexec"),
    "Intel": ("mpiexec.hydra", "mpiexec", "mpirun"),
    "MPICH": ("mpiexec.hydra", "mpiexec", "mpirun"),
}
_ALL_PROGRAMS = ("mpirun", "mpiexec", "mpiexec.hydra")
_HOME_VARIABLES = ("MPI_HOME", "I_MPI_ROOT")
_VERSIONS: tuple[tuple[Mpi, str, re.Pattern[str]], ...] = (
    # Debian's mpirun.openmpi calls itself after its runtime.
    ("OpenMPI", "Open MPI", re.compile(r"\((?:Open MPI|OpenRTE)\) (\d+[^\s]*)")),
    ("Intel", "Intel MPI", re.compile(r"Intel\(R\) MPI Library.*Version (\d+[^\s]*)")),
    ("MPICH", "MPICH", re.compile(r"HYDRA build details:\s+Version:\s+(\d+[^\s]*)")),
)
_VERSION_TIMEOUT_S = 20

# Which variables hold options for ssh. Open MPI 5 (PRRTE) reads its own and silently ignores Open MPI 4's; MPICH has
# renamed its one.
_SSH_VARIABLES: dict[Mpi, tuple[str, ...]] = {
    "OpenMPI": ("PRTE_MCA_plm_ssh_args", "OMPI_MCA_plm_rsh_args"),
    "Intel": ("I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS",),
    "MPICH": ("HYDRA_LAUNCHER_EXTRA_ARGS", "HYDRA_LAUNCH_EXTRA_ARGS"),
}
_OPEN_MPI_SETTINGS = {
    # Otherwise worker-0.job.namespace.svc is called worker-0, a name that only its own pod knows.
    "OMPI_MCA_orte_keep_fqdn_hostnames": "true",
    "PRTE_MCA_prte_keep_fqdn_hostnames": "true",
    # Otherwise workers start workers from the 65th on, and Open MPI 5.0.11 cuts ssh's options for that after a "=".
    "OMPI_MCA_plm_rsh_no_tree_spawn": "1",
    "PRTE_MCA_plm_ssh_no_tree_spawn": "1",
}
_NEVER_FORWARDED = frozenset(
    # Empty in a launcher, which needs no GPU (mpi-operator sets them so); a rank that got them would see none either.
    {"NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES"}
    # Places that exist in this pod alone.
    | {"BERT_TERMINATION_LOG", "TMPDIR"}
)

# The first number is the job's; 0 is mpirun's own.
OPEN_MPI_4_TAG = re.compile(r"\[[1-9]\d*,(\d{1,9})\]<std(?:out|err)>:")
OPEN_MPI_5_TAG = re.compile(r"\[[1-9]\d*,(\d{1,9})\]<std(?:out|err)>: ?")
_HYDRA_PATTERN = "<rank %r>:"  # its own -prepend-rank writes "[0] ", which a program may write as well
HYDRA_TAG = re.compile(r"<rank (\d{1,9})>:")


@dataclass(frozen=True, slots=True)
class Host:
    """One line."""

    name: str
    slots: int
    """Ranks that it takes."""

    @property
    def pod(self) -> str:
        """The name of the pod."""
        return short_name(self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """What every rank is bound to."""

    place: Place
    ranks_per_place: int
    """Of a socket or NUMA node; ranks bound to cores are placed one after another."""
    cores_per_rank: int | None
    """None: all cores of the socket or NUMA node, one core otherwise."""


@dataclass(frozen=True, slots=True)
class InstalledMpi:
    """An mpirun, and whose it is."""

    program: str
    mpi: Mpi
    name: str
    """Of the MPI, with its version."""
    major: int


@dataclass(frozen=True, slots=True)
class Launcher:
    """An mpirun that can be called."""

    mpi: Mpi
    program: str
    tag_options: tuple[str, ...]
    tag: re.Pattern[str]
    """What it puts before a rank's output; the group is the rank. Some put it inside of lines as well."""
    name: str = ""
    """Of the MPI, with its version."""

    @property
    def banner_names_killed(self) -> bool:
        """Whether its last words also name ranks that it has ended itself, in the order of their numbers."""
        return self.mpi != "OpenMPI"

    @property
    def combines_codes(self) -> bool:
        """Whether its exit code is a mixture of the ranks' codes."""
        return self.mpi == "MPICH"


def short_name(name: str) -> str:
    """Return the first part of a host name; an address as it stands."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return name.partition(".")[0]
    return name


def parse_hostfile(text: str, *, source: str, slots: int) -> tuple[Host, ...]:
    """Return the hosts in their order, each once; none if the file holds none yet.

    slots: of every worker, as the job says; a line without a number has as many.

    Raises:
        InputError: a line is no host, or has other slots.
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
                hint="this file is mpi-operator's; let nothing else be mounted there",
            )
        found_slots = int(match["slots"] or slots)
        if found_slots != slots:
            raise InputError(
                f"{source}:{number}: got {found_slots} slots; allowed: {slots}, as --slots says",
                hint="give spec.slotsPerWorker of the MPIJob and --slots the same value",
            )
        hosts[match["name"]] = Host(match["name"], slots)
    return tuple(hosts.values())


def render_hostfile(hosts: tuple[Host, ...], *, is_open_mpi: bool) -> str:
    """Return the host file as an MPI reads it: none takes the other's form."""
    return "".join(
        f"{host.name} slots={host.slots}\n" if is_open_mpi else f"{host.name}:{host.slots}\n" for host in hosts
    )


def find_launcher(mpi: Mpi, environment: Mapping[str, str] | None = None) -> Launcher:
    """Look in MPI_HOME and I_MPI_ROOT first, then beside the running interpreter, then in PATH.

    Raises:
        WrongMPI: it is not installed; the message says what is.
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
        f"--mpi {mpi}: is not installed; found: {installed}",
        hint=f"write spec.mpi.implementation: {next(iter(others.values())).mpi}, or use an image that has {mpi}",
    )


def find_program(name: str) -> str | None:
    """Return the path of a program; in a virtual environment they stand beside the interpreter."""
    beside = Path(sys.executable).parent / name
    return str(beside) if os.access(beside, os.X_OK) else shutil.which(name)


def read_version(program: str, answer: str) -> InstalledMpi | None:
    """Return whose mpirun gave this answer to ``--version``."""
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
    return tuple(dict.fromkeys(str(place) for place in places if os.access(place, os.X_OK) and place.is_file()))


def _identify(program: str) -> InstalledMpi | None:
    """Ask it for its version; None if it gives no answer that we know."""
    try:
        answer = subprocess.run(
            [program, "--version"], capture_output=True, text=True, timeout=_VERSION_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return read_version(program, answer.stdout)


def render_local_command(
    launcher: Launcher, *, ranks: int, is_root: bool, program: Iterable[str], binding: Binding | None = None
) -> tuple[str, ...]:
    """Return the command for ranks that all run in this pod."""
    if launcher.mpi != "OpenMPI":
        bound = _hydra_binding(launcher, binding)
        return (launcher.program, "-n", str(ranks), *bound, *launcher.tag_options, *program)
    # Bound ranks would share one core; threads are limited by OMP_NUM_THREADS instead.
    bound = open_mpi_binding(binding) if binding else ("--bind-to", "none", "--map-by", ":OVERSUBSCRIBE")
    return (launcher.program, *_as_root(is_root), "-np", str(ranks), *bound, *launcher.tag_options, *program)


def render_remote_command(
    launcher: Launcher,
    *,
    ranks: int,
    slots: int,
    hostfile: str,
    exports: Iterable[str],
    is_root: bool,
    program: Iterable[str],
    binding: Binding | None = None,
) -> tuple[str, ...]:
    """Return the command for ranks that run in other pods.

    exports: variables that they get from here; everything else they have of the pod that they run in.
    """
    where: tuple[str, ...]
    forwarded: tuple[str, ...]
    if launcher.mpi == "OpenMPI":
        bound = open_mpi_binding(binding) if binding else ("--map-by", "slot", "--bind-to", "none")
        where = ("--hostfile", hostfile, "-np", str(ranks), *bound)
        forwarded = tuple(word for name in exports for word in ("-x", name))
        return (launcher.program, *_as_root(is_root), *where, *forwarded, *launcher.tag_options, *program)
    names = ",".join(exports)
    where = ("-f", hostfile, "-n", str(ranks), "-ppn", str(slots), *_hydra_binding(launcher, binding))
    # By default it would forward all of this pod's environment.
    forwarded = ("-genvlist", names) if names else ("-genvnone",)
    return (launcher.program, *where, *forwarded, *launcher.tag_options, *program)


def open_mpi_binding(binding: Binding) -> tuple[str, ...]:
    """Return options of mpirun; version 5 still takes ``socket`` for what it calls a package."""
    cores = binding.cores_per_rank
    if binding.place == "core":
        return ("--map-by", f"slot:PE={cores or 1}", "--bind-to", "core")
    mapping = f"ppr:{binding.ranks_per_place}:{binding.place}"
    if cores is None:
        return ("--map-by", mapping, "--bind-to", binding.place)
    return ("--map-by", f"{mapping}:PE={cores}", "--bind-to", "core")


def mpich_binding(binding: Binding) -> tuple[str, ...]:
    """Return options of mpiexec, which deals ranks out to sockets in turn: as many on each."""
    cores = binding.cores_per_rank
    if binding.place == "core":
        return ("-bind-to", f"core:{cores or 1}")
    if cores is None:
        return ("-bind-to", binding.place)
    return ("-bind-to", f"core:{cores}", "-map-by", binding.place)


def intel_binding(binding: Binding) -> tuple[str, ...]:
    """Return variables as options: mpiexec.hydra takes -bind-to, and does nothing about it."""
    cores = binding.cores_per_rank
    if binding.place != "core" and cores is None:
        return ("-genv", "I_MPI_PIN_DOMAIN", binding.place)
    # Counts hyperthreads otherwise. Bunch fills sockets evenly, compact one after another.
    order = "compact" if binding.place == "core" else "bunch"
    domain = ("-genv", "I_MPI_PIN_DOMAIN", f"{cores or 1}:compact")
    return (*domain, "-genv", "I_MPI_PIN_CELL", "core", "-genv", "I_MPI_PIN_ORDER", order)


def _hydra_binding(launcher: Launcher, binding: Binding | None) -> tuple[str, ...]:
    if binding is None:
        # Intel's binds unless told otherwise.
        return ("-genv", "I_MPI_PIN", "off") if launcher.mpi == "Intel" else ()
    return intel_binding(binding) if launcher.mpi == "Intel" else mpich_binding(binding)


def _as_root(is_root: bool) -> tuple[str, ...]:
    return ("--allow-run-as-root",) if is_root else ()


def choose_exports(environment: Mapping[str, str], wanted: Iterable[str]) -> tuple[str, ...]:
    """Return the names that ranks in other pods get: those asked for and BERT_*, of those that are set."""
    names = {name for name in environment if name.startswith("BERT_")} | (set(wanted) & set(environment))
    return tuple(sorted(names - _NEVER_FORWARDED))


def ssh_options(mpi: Mpi, environment: Mapping[str, str], port: int | None) -> str:
    """Return the options of ssh as one text: the user's first, for ssh takes the first value of each.

    port: None leaves it to ssh's own configuration.
    """
    own = next((environment[name] for name in _SSH_VARIABLES[mpi] if environment.get(name)), "")
    if mpi == "OpenMPI" and own and own == environment.get("OMPI_MCA_plm_rsh_args") == "-o ConnectionAttempts=10":
        own = ""  # mpi-operator's, and among ours
    # The workers' key is the job's own, made for it alone; their addresses change with every attempt.
    ours = "-o BatchMode=yes -o ConnectionAttempts=10 -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null"
    return " ".join(word for word in (own, ours, "-o LogLevel=ERROR", f"-p {port}" if port else "") if word)


def launcher_environment(mpi: Mpi, base: Mapping[str, str], options: str) -> dict[str, str]:
    """Return mpirun's environment. options: of ssh."""
    environment = {name: value for name, value in base.items() if name not in _NEVER_FORWARDED}
    environment |= dict.fromkeys(_SSH_VARIABLES[mpi], options)
    if mpi == "OpenMPI":
        environment |= _OPEN_MPI_SETTINGS
    return environment
