"""What a campaign has found, as a table for people and as one line for programs. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from fault import GROUPS, Fault
from verdict import worst

BEGIN, END = "<!-- chaos:{} -->", "<!-- /chaos:{} -->"
Record = Mapping[str, Any]
"""Of one fault: ``jobs``, as ``verdict.as_json`` has them; the keys of ``results.json`` are names of faults."""


def last_line(records: Mapping[str, Record]) -> str:
    """Return the line that a campaign ends with. A fault has passed that is resilient."""
    jobs = [job for record in records.values() for job in record["jobs"]]
    recoveries = [moment["recovery_s"] for job in jobs for moment in job["moments"] if moment["recovery_s"] is not None]
    figures = {
        "faults": len(records),
        "passed": sum(verdict_of(record) == "resilient" for record in records.values()),
        "worst_recovery_s": f"{max(recoveries, default=0.0):.1f}",
        "lost_samples": sum(job["lost_samples"] for job in jobs),
        "doubled_samples": sum(job["doubled_samples"] for job in jobs),
    }
    return "chaos: " + " ".join(f"{name}={value}" for name, value in figures.items())


def verdict_of(record: Record) -> str:
    """Return the verdict on a fault: the worst of its jobs'."""
    return worst([job["verdict"] for job in record["jobs"]])


def table(faults: Sequence[Fault], records: Mapping[str, Record]) -> str:
    """Return the faults that have been tried, in the catalog's order, as a table of Markdown."""
    lines = [
        "| fault | at steps | verdict | a step again after | status right after | trained again | lost, doubled |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    lines += [_row(fault, records[fault.name]) for fault in faults if fault.name in records]
    return "\n".join(lines)


def findings(records: Mapping[str, Record]) -> list[str]:
    """Return what was found at faults that are not resilient, and every note, once each."""
    found = []
    for name, record in records.items():
        for job in record["jobs"]:
            found += [f"{name}: {text}" for text in (*job["findings"], *job["notes"])]
    return list(dict.fromkeys(found))


def fill_page(page: str, faults: Sequence[Fault], records: Mapping[str, Record]) -> str:
    """Return a page with a new table between the two marks of every group that it has.

    Raises:
        ValueError: the page has a first mark without its second one.
    """
    for group in GROUPS:
        begin, end = BEGIN.format(group), END.format(group)
        if begin in page:
            head, _, rest = page.partition(begin)
            _, mark, tail = rest.partition(end)
            if not mark:
                raise ValueError(f"the page has {begin} without {end} behind it; add that")
            own = [fault for fault in faults if fault.group == group]
            page = f"{head}{begin}\n\n{table(own, records)}\n\n{end}{tail}"
    return page


def _row(fault: Fault, record: Record) -> str:
    jobs = record["jobs"]
    moments = [moment for job in jobs for moment in job["moments"]]
    lost, doubled = (sum(job[key] for job in jobs) for key in ("lost_samples", "doubled_samples"))
    cells = [
        fault.name,
        ", ".join(str(moment["step"]) for moment in moments),
        verdict_of(record),
        _recoveries(fault, jobs, moments),
        ", ".join(f"{moment['settled_s']:.1f} s" for moment in moments if moment["settled_s"] is not None) or "-",
        ", ".join(str(moment["trained_again"]) for moment in moments) or "-",
        f"{lost}, {doubled}",
    ]
    return f"| {' | '.join(cells)} |"


def _recoveries(fault: Fault, jobs: Sequence[Record], moments: Sequence[Record]) -> str:
    if fault.ends == "Failed":
        reasons = dict.fromkeys(job["reasons"][-1] if job["reasons"] else job["phase"] for job in jobs)
        return f"ends: {', '.join(reasons)}"
    times = [moment["recovery_s"] for moment in moments if moment["recovery_s"] is not None]
    return ", ".join("never" if math.isinf(seconds) else f"{seconds:.1f} s" for seconds in times) or "-"
