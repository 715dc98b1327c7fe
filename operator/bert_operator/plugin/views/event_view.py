"""``events``: what has happened to a job, its children and its pods."""

from __future__ import annotations

from collections.abc import Sequence

from bert_job.foreign_text import one_line
from bert_operator.plugin.event import Event
from bert_operator.plugin.terminal import Cell, Ink, table
from bert_operator.plugin.views.phases import age


def show_events(events: Sequence[Event], ink: Ink, now_s: float) -> list[str]:
    """Return a table, in the order of the Events. now_s: seconds since 1970, from which ages count."""
    return table(["AGO", "TIMES", "TYPE", "OBJECT", "REASON", "MESSAGE"], [_row(event, now_s) for event in events], ink)


def _row(event: Event, now_s: float) -> list[Cell]:
    kind = one_line(event.type)
    return [
        age(event.last_seen_s, now_s),
        str(event.times),
        (kind, "yellow") if kind == "Warning" else kind,
        one_line(event.object),
        one_line(event.reason),
        one_line(event.message),
    ]
