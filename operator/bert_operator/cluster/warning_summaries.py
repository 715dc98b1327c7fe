"""Summaries of Warning events: what controllers, the scheduler and kubelets say of children and pods. Pure."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

from bert_operator.timestamps import time_of

Document = Mapping[str, Any]

_MAX_NOTE = 500
_MAX_REASON = 200
_MAX_NAME = 253


class WarningSummary(NamedTuple):
    """A Warning event about a child or a pod."""

    reason: str
    message: str
    seen_at_s: float
    uid: str
    """Of its subject: names are used again."""


def read_warning(body: Document) -> tuple[str, str, WarningSummary] | None:
    """Return kind and name of the subject of a Warning event, and its summary; None for other events."""
    subject = body.get("involvedObject") or {}
    if body.get("type") != "Warning" or subject.get("kind") not in ("Job", "MPIJob", "Pod"):
        return None
    # Events that were written through events.k8s.io, as the scheduler's are, have no lastTimestamp.
    when = body.get("lastTimestamp") or body.get("eventTime") or body.get("metadata", {}).get("creationTimestamp")
    # Whoever may write Events writes what they like there: a reason may have any length, and so may a subject's name.
    name = subject.get("name") or ""
    if len(name) > _MAX_NAME:
        return None
    warning = WarningSummary(
        reason=sys.intern((body.get("reason") or "")[:_MAX_REASON]),
        message=(body.get("message") or "")[:_MAX_NOTE],
        seen_at_s=time_of(when) or 0.0,
        uid=sys.intern((subject.get("uid") or "")[:_MAX_NAME]),
    )
    return subject["kind"], name, warning
