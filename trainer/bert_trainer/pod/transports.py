"""What ranks of this pod may talk over, before MPI or NCCL starts: InfiniBand, TCP, shared memory; told in one line.

InfiniBand takes four things, any of which a pod may lack: the card in sysfs, which a container sees whether or not the
card is its own; a device file of it that this user may open; the libraries that UCX, libfabric and NCCL load at run
time and do without in silence; and locked memory. Judging what a job asks for is ``transport_check``'s part.
"""

from __future__ import annotations

import ctypes
import os
import resource
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bert_trainer.system.network_interfaces import read_interfaces

# Of rdma-core. libmlx5 stands for the providers, which come in one package.
VERBS_LIBRARIES = ("libibverbs.so.1", "librdmacm.so.1", "libmlx5.so.1")
MIN_LOCKED_BYTES = 64 * 2**20
"""A bucket of gradients is 16 MiB, sent and received at once, and UCX and NCCL register buffers of their own."""

_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - looked at
_GPU_DRIVER = Path("/dev/nvidiactl")
_IPC_LOCK = 1 << 14  # capability bit (capabilities(7))


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """An InfiniBand or RoCE device that sysfs shows."""

    name: str
    active_ports: tuple[int, ...] = (1,)
    ports: tuple[int, ...] = (1,)
    trouble: str | None = None
    """Why ranks cannot use it; None: they can."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transports:
    """Network transports available in this pod."""

    cards: tuple[Card, ...] = ()
    device_trouble: str | None = None
    """Why not one device file of a card can be used; None: there is one."""
    missing_libraries: Mapping[str, str] = field(default_factory=dict)
    """Of ``VERBS_LIBRARIES``, with what the loader says."""
    locked_bytes: int | None = None
    """How much memory a rank may lock; None: any."""
    interfaces: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Names, with their addresses."""
    shared_bytes: int = 0
    """Size of /dev/shm."""
    has_gpu: bool = False
    """NVIDIA's driver has put its devices into the pod; without them nothing here uses NCCL."""

    @property
    def usable_cards(self) -> tuple[Card, ...]:
        """Cards that ranks can send over."""
        if self.verbs_trouble is not None:
            return ()
        return tuple(card for card in self.cards if card.trouble is None and card.active_ports)

    @property
    def usable_ports(self) -> tuple[str, ...]:
        """Active ports of cards that ranks can use, as UCX and NCCL name them: mlx5_0:1."""
        return tuple(f"{card.name}:{port}" for card in self.usable_cards for port in card.active_ports)

    @property
    def verbs_trouble(self) -> str | None:
        """Why ranks cannot use any card, apart from the locked-memory limit; None if they can."""
        if self.device_trouble is not None:
            return self.device_trouble
        if self.missing_libraries:
            return "; ".join(self.missing_libraries.values())
        return None

    @property
    def locks_too_little(self) -> bool:
        """Whether the locked-memory limit is too low for RDMA."""
        return self.locked_bytes is not None and self.locked_bytes < MIN_LOCKED_BYTES


def read_transports(root: Path = Path("/")) -> Transports:
    """Detect the transports of this pod. root: of sysfs and the device files."""
    verbs = _read_device_files(root)
    return Transports(
        cards=_read_cards(root, verbs),
        device_trouble=_find_device_trouble(verbs),
        missing_libraries=find_missing(VERBS_LIBRARIES),
        locked_bytes=_read_locked_bytes(),
        interfaces=read_interfaces(root),
        shared_bytes=_read_size(_SHARED_MEMORY),
        has_gpu=(root / _GPU_DRIVER.relative_to("/")).exists(),
    )


def find_missing(libraries: Iterable[str]) -> dict[str, str]:
    """Return the libraries that cannot be loaded, with what the loader says."""
    missing = {}
    for name in libraries:
        try:
            ctypes.CDLL(name)
        except OSError as error:
            missing[name] = str(error)
    return missing


def describe_transports(found: Transports, host: str) -> str:
    """Return one line of a pod's log."""
    ways = [f"shared memory ({format_bytes(found.shared_bytes)} in /dev/shm)"]
    networks = [name for name, addresses in found.interfaces.items() if name != "lo" and addresses]
    if networks:
        ways.append(f"TCP over {', '.join(networks)}")
    cards = found.usable_cards
    if cards:
        limit = "any memory" if found.locked_bytes is None else format_bytes(found.locked_bytes)
        ways.append(f"InfiniBand over {', '.join(card.name for card in cards)}, locking {limit}")
    text = f"{host}: ranks can use {'; '.join(ways)}"
    if not cards:
        return f"{text}; no InfiniBand: {found.verbs_trouble or _describe_cards(found.cards)}"
    if found.locks_too_little:
        return f"{text}, of which InfiniBand needs {format_bytes(MIN_LOCKED_BYTES)} or more"
    return text


def _describe_cards(cards: tuple[Card, ...]) -> str:
    return "; ".join(card.trouble or f"no port of {card.name} is active" for card in cards) or "no card in sysfs"


def format_bytes(amount: int) -> str:
    """Return an amount of memory in words."""
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if amount >= size:
            return f"{amount / size:.1f} {unit}".replace(".0 ", " ")
    return f"{amount} bytes"


def _read_device_files(root: Path) -> dict[str, str | None]:
    """Return every card's device file by its number (uverbs0), with why it cannot be opened."""
    found: dict[str, str | None] = {}
    for path in sorted((root / "dev/infiniband").glob("uverbs*")):
        try:
            # Opening makes a context of the driver's; nothing is sent.
            os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC))
            found[path.name] = None
        except OSError as error:
            found[path.name] = f"/dev/infiniband/{path.name} cannot be opened ({error.strerror})"
    return found


def _find_device_trouble(verbs: Mapping[str, str | None]) -> str | None:
    if not verbs:
        return "/dev/infiniband holds no device (uverbs*)"
    troubles = list(verbs.values())
    return None if None in troubles else troubles[0]


def _read_cards(root: Path, verbs: Mapping[str, str | None]) -> tuple[Card, ...]:
    sysfs = root / "sys/class"
    files = {_read(folder / "ibdev"): folder.name for folder in (sysfs / "infiniband_verbs").glob("uverbs*")}
    cards = []
    for folder in sorted((sysfs / "infiniband").glob("*")):
        states = {
            int(port.name): _read(port / "state") for port in (folder / "ports").glob("*") if port.name.isdecimal()
        }
        own = files.get(folder.name)
        if own is None or own not in verbs:
            trouble: str | None = f"the device file of {folder.name} is not in the pod"
        else:
            trouble = verbs[own]
        cards.append(
            Card(
                name=folder.name,
                ports=tuple(sorted(states)),
                active_ports=tuple(sorted(port for port, state in states.items() if state.endswith("ACTIVE"))),
                trouble=trouble,
            )
        )
    return tuple(cards)


def _read_locked_bytes() -> int | None:
    capabilities = next(
        (line.split()[1] for line in _read(Path("/proc/self/status")).splitlines() if line.startswith("CapEff:")), "0"
    )
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    # The capability counts where the process has it in effect, which a user other than root does not get by its pod.
    return None if limit == resource.RLIM_INFINITY or int(capabilities, 16) & _IPC_LOCK else limit


def _read_size(folder: Path) -> int:
    try:
        system = os.statvfs(folder)
    except OSError:
        return 0
    return system.f_blocks * system.f_frsize


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
