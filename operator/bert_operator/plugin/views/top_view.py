"""``top``: what the pods of jobs use, beside what they asked for."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from bert_operator.plugin.job import Json
from bert_operator.plugin.terminal import Cell, Ink, table
from bert_operator.render.containers import find_trainer
from bert_operator.render.names import JOB_LABEL, ROLE_LABEL

_QUANTITY = re.compile(r"([0-9.]+)([a-zA-Z]*)")
# Kubernetes' units (resource.Quantity).
_UNITS = {
    "": 1.0, "n": 1e-9, "u": 1e-6, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15,
    "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50,
}  # fmt: skip
_NEARLY_FULL = 0.9
"""Share of its limit from which on a pod's memory is shown in red: the kernel ends it at 1."""


def show_top(pods: Iterable[Json], usage: Iterable[Json], ink: Ink) -> list[str]:
    """Return a table of the pods that run.

    Args:
        pods: As the API server has them.
        usage: Of metrics.k8s.io, by pod.
        ink: How to write.
    """
    by_name = {(_metadata(item).get("namespace"), _metadata(item).get("name")): item for item in usage}
    rows = [
        _row(pod, by_name.get((_metadata(pod).get("namespace"), _metadata(pod).get("name"))))
        for pod in pods
        if (pod.get("status") or {}).get("phase") == "Running"
    ]
    return table(["JOB", "POD", "ROLE", "NODE", "CPU", "OF", "MEMORY", "OF", "DEVICES"], rows, ink)


def parse_quantity(text: object) -> float | None:
    """Return an amount such as ``250m`` or ``2Gi`` in its base unit (cores, bytes); None if it is none."""
    found = _QUANTITY.fullmatch(str(text))
    if found is None or found[2] not in _UNITS:
        return None
    try:
        return float(found[1]) * _UNITS[found[2]]
    except ValueError:
        return None


def _row(pod: Json, usage: Json | None) -> Sequence[Cell]:
    labels, spec = _metadata(pod).get("labels") or {}, pod.get("spec") or {}
    resources = find_trainer(spec.get("containers")).get("resources") or {}
    requests, limits = resources.get("requests") or {}, resources.get("limits") or {}
    used = _used(usage)
    memory, bound = used.get("memory"), parse_quantity(limits.get("memory", requests.get("memory")))
    shown = _gibibytes(memory)
    is_full = memory is not None and bound is not None and memory > _NEARLY_FULL * bound
    devices = [f"{amount} {name}" for name, amount in limits.items() if "/" in name]
    return [
        str(labels.get(JOB_LABEL, "-")),
        str(_metadata(pod).get("name")),
        str(labels.get(ROLE_LABEL, "-")),
        str(spec.get("nodeName") or "-"),
        "-" if "cpu" not in used else f"{used['cpu']:.2f}",
        _cores(limits.get("cpu", requests.get("cpu"))),
        (shown, "red") if is_full else shown,
        _gibibytes(bound),
        ", ".join(devices) or "-",
    ]


def _used(usage: Json | None) -> dict[str, float]:
    """Return what a pod's trainer uses: cores and bytes. Its limit holds for it alone."""
    used = find_trainer((usage or {}).get("containers")).get("usage") or {}
    return {name: amount for name, text in used.items() if (amount := parse_quantity(text)) is not None}


def _metadata(document: Json) -> Json:
    return document.get("metadata") or {}


def _cores(text: object) -> str:
    amount = parse_quantity(text)
    return "-" if amount is None else f"{amount:g}"


def _gibibytes(amount: float | None) -> str:
    return "-" if amount is None else f"{amount / 2**30:.2f} GiB"
