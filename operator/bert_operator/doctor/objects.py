"""Small questions to Kubernetes' objects as JSON: names, conditions, images, amounts, times. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from fractions import Fraction
from typing import Any

from bert_operator.json_paths import Json, dig, entries, mapping

_AMOUNT = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(?:e([+-]?\d+)|([munkMGTPE]|[KMGTPE]i)?)")
_UNITS = {"": Fraction(1), "n": Fraction(1, 10**9), "u": Fraction(1, 10**6), "m": Fraction(1, 1000)}
_UNITS |= {unit: Fraction(1000**power) for power, unit in enumerate("kMGTPE", start=1)}
_UNITS |= {f"{unit}i": Fraction(1024**power) for power, unit in enumerate("KMGTPE", start=1)}
_RELEASE = re.compile(r"v?(\d+)\.(\d+)(?:\.(\d+))?(?:[-+].*)?")


SHOWN = 3
"""Names of a list in a sentence."""


def some(names: Iterable[str], shown: int = SHOWN) -> str:
    """Return the first few distinct names and the number of others, in order."""
    found = list(dict.fromkeys(names))
    listed = ", ".join(found[:shown])
    return f"{listed} and {len(found) - shown} more" if len(found) > shown else listed


def name_of(document: Json) -> str:
    """Return an object's name."""
    return str(dig(document, "metadata", "name") or "")


def namespace_of(document: Json) -> str:
    """Return an object's namespace; empty where it has none."""
    return str(dig(document, "metadata", "namespace") or "")


def place_of(document: Json) -> str:
    """Return ``namespace/name``, or the name of an object that is in no namespace."""
    return "/".join(part for part in (namespace_of(document), name_of(document)) if part)


def condition(document: Json, kind: str) -> Json:
    """Return a condition of an object's status; empty where it has none of that type."""
    return next((item for item in entries(document, "status", "conditions") if item.get("type") == kind), {})


def containers(pod_spec: Json) -> Iterator[Json]:
    """Yield the containers of a pod's spec, those that run first included."""
    yield from entries(pod_spec, "initContainers")
    yield from entries(pod_spec, "containers")


def template_of(workload: Json) -> Json:
    """Return the pod spec of a Deployment or DaemonSet."""
    return mapping(workload, "spec", "template", "spec")


def images(workload: Json) -> list[str]:
    """Return the images of a Deployment or DaemonSet."""
    return [str(container.get("image", "")) for container in containers(template_of(workload))]


def tag_of(image: str) -> str:
    """Return an image's tag; empty where it has none."""
    name, _, tag = image.partition("@")[0].rpartition(":")
    return tag if name and "/" not in tag else ""


def release_of(version: str) -> tuple[int, int, int] | None:
    """Return the numbers of ``v1.36.3`` and the like; None where it is none."""
    found = _RELEASE.fullmatch(version)
    return (int(found[1]), int(found[2]), int(found[3] or 0)) if found else None


def amount(text: Any) -> Fraction:
    """Parse a Kubernetes quantity (``500m``, ``64Gi``, ``1e3``) as a number; 0 if invalid."""
    found = _AMOUNT.fullmatch(str(text))
    if found is None:
        return Fraction(0)
    return Fraction(found[1]) * (Fraction(10) ** int(found[2]) if found[2] else _UNITS[found[3] or ""])


def render_amount(resource: str, value: Fraction) -> str:
    """Format an amount for people: GiB for memory and disk, else a plain number."""
    if resource in {"memory", "ephemeral-storage"} or resource.startswith("hugepages-"):
        return f"{float(value / 1024**3):.4g}Gi"
    return f"{float(value):g}"
