"""The host file that mpi-operator mounts into a launcher: ``NAME slots=S`` for Open MPI, ``NAME:S`` for the others."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

from bert_trainer.errors import InputError

_HOST = r"[A-Za-z0-9](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?"
_FORMS = (
    re.compile(rf"(?P<name>{_HOST})(?:\s+slots\s*=\s*(?P<slots>[0-9]+))?"),
    re.compile(rf"(?P<name>{_HOST}):(?P<slots>[0-9]+)"),
)


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
        match = next((found for form in _FORMS if (found := form.fullmatch(words))), None)
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
