"""Host files: which machines ranks are spread over. Parsing and rendering only; no machine is contacted."""

from __future__ import annotations

import ipaddress
import re

from bert_operator.errors import LaunchError

_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,251}[A-Za-z0-9])?")
_IGNORED = re.compile(r"(slots|max_slots|max-slots)\s*=\s*[0-9]+")


def parse_hostfile(text: str, *, source: str) -> tuple[str, ...]:
    """Return the distinct hosts of a host file in order of appearance.

    One name or address per line; empty lines, ``#`` comments and Open MPI's ``slots=N`` are ignored: the command line
    gives the number of ranks per machine.

    Raises:
        LaunchError: A line is no host, or there is none.
    """
    hosts: dict[str, None] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        words = _IGNORED.sub("", line.partition("#")[0]).split()
        if not words:
            continue
        if len(words) > 1 or not _is_host(words[0]):
            raise LaunchError(
                f"{source}:{number}: {line.strip()!r} is not a host",
                hint="write one host name or address per line, and the ranks of each as --ranks-per-node N",
            )
        hosts[words[0]] = None
    if not hosts:
        raise LaunchError(f"{source}: holds no host", hint="write one host name or address per line")
    return tuple(hosts)


def render_hostfile(hosts: tuple[str, ...], *, slots: int) -> str:
    """Return a host file as Open MPI reads it."""
    return "".join(f"{host} slots={slots}\n" for host in hosts)


def _is_host(word: str) -> bool:
    try:
        ipaddress.ip_address(word)
    except ValueError:
        return _NAME.fullmatch(word) is not None
    return True
