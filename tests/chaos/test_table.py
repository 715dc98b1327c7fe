"""The table of a campaign and its last line, from records made of literals."""

from __future__ import annotations

import pytest

from fault import Fault
from table import fill_page, findings, last_line, table

KILLED = Fault(name="SIGKILL of a rank", group="training", inject=lambda scene: None)
ENDED = Fault(name="a shard removed", group="training", inject=lambda scene: None, ends="Failed")


def job(verdict: str, *recoveries: float | None, **more: object) -> dict[str, object]:
    moments = [
        {"step": 20 + number, "recovery_s": s, "trained_again": 5, "settled_s": 1.25 if number == 1 else None}
        for number, s in enumerate(recoveries)
    ]
    empty = {"findings": [], "notes": [], "lost_samples": 0, "doubled_samples": 0, "reasons": [], "phase": "Succeeded"}
    return {**empty, "verdict": verdict, "moments": moments, **more}


RECORDS = {
    "a shard removed": {"jobs": [job("resilient", None, reasons=["RefusedInput"], notes=["training.hdf5 removed"])]},
    "SIGKILL of a rank": {
        "jobs": [job("resilient", 12.0, 14.04), job("degraded", 50.0, findings=["late"], lost_samples=3)]
    },
}


def test_faults_stand_in_the_order_of_the_catalog() -> None:
    assert table([KILLED, ENDED], RECORDS).splitlines()[2:] == [
        "| SIGKILL of a rank | 20, 21, 20 | degraded | 12.0 s, 14.0 s, 50.0 s | 1.2 s | 5, 5, 5 | 3, 0 |",
        "| a shard removed | 20 | resilient | ends: RefusedInput | - | 5 | 0, 0 |",
    ]


def test_the_last_line_counts_faults_not_jobs() -> None:
    line = "chaos: faults=2 passed=1 worst_recovery_s=50.0 lost_samples=3 doubled_samples=0"
    assert last_line(RECORDS) == line


def test_findings_and_notes_are_said_with_their_fault() -> None:
    assert findings(RECORDS) == ["a shard removed: training.hdf5 removed", "SIGKILL of a rank: late"]


def test_a_page_keeps_everything_but_what_stands_between_its_marks() -> None:
    page = "# Title\n<!-- chaos:training -->\nold\n<!-- /chaos:training -->\nend\n"
    filled = fill_page(page, [KILLED, ENDED], RECORDS)
    assert filled.startswith("# Title\n<!-- chaos:training -->\n\n| fault |")
    assert filled.endswith("| 0, 0 |\n\n<!-- /chaos:training -->\nend\n")
    assert fill_page(filled, [KILLED, ENDED], RECORDS) == filled
    with pytest.raises(ValueError, match="without"):
        fill_page("<!-- chaos:training -->", [KILLED], RECORDS)
