"""``events``: what has happened to a job, its children and its pods."""

from __future__ import annotations

from collections.abc import Sequence

from bert_operator.plugin.job import Json, last_seen_s
from bert_operator.plugin.terminal import Cell, Ink, printable, table
from bert_operator.plugin.views.phases import age


def show_events(events: Sequence[Json], ink: Ink, now_s: float) -> list[str]:
    """Return a table, in the order of the Events. now_s: seconds since 1970, from which ages count."""
    return table(["AGO", "TIMES", "TYPE", "OBJECT", "REASON", "MESSAGE"], [_row(event, now_s) for event in events], ink)


def _row(event: Json, now_s: float) -> list[Cell]:
    about = event.get("involvedObject") or event.get("regarding") or {}
    kind = printable(event.get("type", ""))
    times = (event.get("series") or {}).get("count") or event.get("count") or 1
    return [
        age(last_seen_s(event), now_s),
        str(times),
        (kind, "yellow") if kind == "Warning" else kind,
        printable(f"{about.get('kind')}/{about.get('name')}"),
        printable(event.get("reason", "")),
        printable(event.get("message") or event.get("note") or ""),
    ]
