"""How many ranks and devices a Job or an MPIJob of ours takes, read from the object itself. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

Document = Mapping[str, Any]

_CLAIM = "resource claims"
"""Stands among devices for what comes by claims; no resource has a blank in its name."""
_OTHERS = "other resources"
_MAX_NAMED = 16
"""Resources that are told apart. Ours have one, and those of a profile; anybody's Job may have ten thousand."""


class Demand(NamedTuple):
    """Ranks and devices that an attempt uses while it runs."""

    ranks: int = 0
    devices: tuple[tuple[str, int], ...] = ()
    """Extended resources, and how many of each on all workers together. Every resource claim counts as one."""

    def count_devices(self, without: frozenset[str]) -> int:
        """Return the number of devices. without: resources that do not count."""
        return sum(number for name, number in self.devices if name not in without)

    def at_least(self, other: Demand) -> Demand:
        """Return the elementwise maximum of two demands."""
        devices = dict(self.devices)
        for name, number in other.devices:
            devices[name] = max(number, devices.get(name, 0))
        return Demand(max(self.ranks, other.ranks), _bounded(devices))


def read_demand(body: Document) -> Demand:
    """Return the demand of a Job or MPIJob; as much as can be read if it is malformed."""
    spec = _section(body, "spec")
    replicas = _section(spec, "mpiReplicaSpecs")
    if not replicas:
        return Demand(_ranks(_section(spec, "template")), _devices(_section(spec, "template"), 1))
    workers = _section(replicas, "Worker")
    return Demand(
        _ranks(_section(replicas, "Launcher", "template")),
        _devices(_section(workers, "template"), _number(workers.get("replicas"))),
    )


def _ranks(template: Document) -> int:
    """Return the ranks that ``bert-pod`` is told to start."""
    containers = _section(template, "spec").get("containers")
    arguments = _first(containers).get("args")
    if not isinstance(arguments, list) or "--ranks" not in arguments[:-1]:
        return 0
    return _number(arguments[arguments.index("--ranks") + 1])


def _devices(template: Document, pods: int) -> tuple[tuple[str, int], ...]:
    pod = _section(template, "spec")
    limits = _section(_first(pod.get("containers")), "resources", "limits")
    # Kubernetes' own resources have no domain; those of device plugins do.
    found = {str(name): pods * _number(amount) for name, amount in limits.items() if "/" in str(name)}
    claims = pod.get("resourceClaims")
    if isinstance(claims, list) and claims:
        found[_CLAIM] = pods * len(claims)
    return _bounded(found)


def _bounded(devices: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    """Return devices by name; beyond so many names those with fewest of them as one, so that all of them count."""
    if len(devices) <= _MAX_NAMED:
        return tuple(sorted(devices.items()))
    by_number = sorted(devices.items(), key=lambda item: (item[0] == _OTHERS, -item[1], item[0]))
    named, rest = by_number[: _MAX_NAMED - 1], by_number[_MAX_NAMED - 1 :]
    return tuple(sorted([*named, (_OTHERS, sum(number for _, number in rest))]))


def _first(items: Any) -> Document:
    first = items[0] if isinstance(items, list) and items else {}
    return first if isinstance(first, Mapping) else {}


def _section(document: Any, *path: str) -> Document:
    for name in path:
        document = document.get(name) if isinstance(document, Mapping) else None
    return document if isinstance(document, Mapping) else {}


def _number(value: Any) -> int:
    text = str(value)
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else 0
