"""What a Kubernetes Event says, whichever of its two APIs it was written by."""

from __future__ import annotations

from dataclasses import dataclass

from bert_operator.plugin.job import Json, last_seen_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A Kubernetes Event."""

    last_seen_s: float | None
    """When it happened last, in seconds since 1970; None where the Event has no time."""
    times: int
    """How often it has happened."""
    type: str
    """``Normal`` or ``Warning``."""
    object: str
    """What it is about, as ``Pod/corpus-a3-launcher-x``."""
    reason: str
    """What happened, as a name."""
    message: str
    """What happened, as a sentence."""


def read_event(document: Json) -> Event:
    """Return an Event out of the API server's document."""
    about = document.get("involvedObject") or document.get("regarding") or {}
    return Event(
        last_seen_s=last_seen_s(document),
        times=int((document.get("series") or {}).get("count") or document.get("count") or 1),
        type=str(document.get("type", "")),
        object=f"{about.get('kind')}/{about.get('name')}",
        reason=str(document.get("reason", "")),
        message=str(document.get("message") or document.get("note") or ""),
    )
