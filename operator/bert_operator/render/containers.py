"""The containers of a job's pod, as kubelet tells of them: the trainer's, and those that others have added. Pure.

Service meshes, secret injectors and log shippers add containers to any pod: ordinary ones, init containers, and init
containers that go on running (``restartPolicy: Always``). kubelet lists their states by name, so that the first one may
be anybody's. What the trainer did is read from its own; the others count only where they keep it from starting, or keep
the pod after it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from bert_operator.names import CONTAINER

Document = Mapping[str, Any]

_STARTING = (None, "", "ContainerCreating", "PodInitializing")
"""Reasons of containers that wait as all do for a moment."""


class Waiting(NamedTuple):
    """A container that cannot start."""

    container: str
    """Its name; empty: the trainer's."""
    reason: str
    message: str


class Ended(NamedTuple):
    """A container not of the operator whose end made its pod fail."""

    container: str
    exit_code: int
    reason: str
    message: str
    is_init: bool
    """Whether the trainer's was still to start."""


def find_trainer(containers: Any) -> Document:
    """Return the trainer's entry in a list of containers or container states; empty if absent."""
    return next((item for item in _items(containers) if item.get("name") == CONTAINER), {})


def find_waiting(pod: Document) -> Waiting | None:
    """Return what keeps a pod from starting, in the order: init containers, trainer, other containers."""
    status = pod.get("status") or {}
    inits, ordinary = _items(status.get("initContainerStatuses")), _items(status.get("containerStatuses"))
    trainer, others = find_trainer(ordinary), [item for item in ordinary if item.get("name") != CONTAINER]
    for item in (*inits, trainer, *others):
        waiting = (item.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") not in _STARTING:
            name = "" if item is trainer else str(item.get("name"))
            return Waiting(name, str(waiting["reason"]), str(waiting.get("message") or ""))
    return None


def find_foreign_end(pod: Document) -> Ended | None:
    """Return the first injected container that failed in a pod; init containers come first."""
    status, lasting = pod.get("status") or {}, set(_lasting(pod))
    for field, is_init in (("initContainerStatuses", True), ("containerStatuses", False)):
        for item in _items(status.get(field)):
            name, ended = str(item.get("name")), (item.get("state") or {}).get("terminated") or {}
            if name != CONTAINER and name not in lasting and (code := ended.get("exitCode")):
                return Ended(name, code, str(ended.get("reason") or ""), str(ended.get("message") or ""), is_init)
    return None


def list_unended_beside(pod: Document) -> list[str]:
    """Return the injected containers that still run or wait: the pod does not end with the trainer.

    Those that are init containers and go on running are ended by kubelet.
    """
    states = _items((pod.get("status") or {}).get("containerStatuses"))
    return [str(item.get("name")) for item in states if item.get("name") != CONTAINER and not _has_ended(item)]


def _has_ended(state: Document) -> bool:
    return (state.get("state") or {}).get("terminated") is not None


def _lasting(pod: Document) -> Iterator[str]:
    for item in _items((pod.get("spec") or {}).get("initContainers")):
        if item.get("restartPolicy") == "Always":
            yield str(item.get("name"))


def _items(containers: Any) -> list[Document]:
    return [item for item in containers or () if isinstance(item, Mapping)]
