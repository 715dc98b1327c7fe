"""What the doctor says: lines for people, a document for programs, an exit code. Prints nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bert_job.foreign_text import one_line
from bert_operator.doctor.catalog import Outcome
from bert_operator.doctor.finding import Level

FINE, WRONG = 0, 1

_COLOURS = {Level.ERROR: "31;1", Level.WARNING: "33;1", Level.NOTE: "36"}
_NOT_LOOKED_AT = "not looked at"
_MAX_CHARACTERS = 500
"""Characters of one line: names of nodes and messages of a kubelet fit."""


@dataclass(frozen=True)
class Report:
    """Results of all checks."""

    outcomes: Sequence[Outcome]
    """In the order in which they are shown."""

    def count(self, level: Level) -> int:
        """Return the number of findings of a level."""
        return sum(finding.level is level for outcome in self.outcomes for finding in outcome.findings)

    @property
    def unseen(self) -> list[Outcome]:
        """Checks that could not read what they need."""
        return [outcome for outcome in self.outcomes if outcome.missing]

    @property
    def exit_code(self) -> int:
        """0 if every check ran and found nothing worse than a warning, else 1."""
        return WRONG if self.count(Level.ERROR) or self.unseen else FINE

    def lines(self, colour: bool = False) -> list[str]:
        """Return the report for people: errors, warnings, notes, checks that did not run, and a summary."""
        shown: list[str] = []
        for level in Level:
            for outcome in self.outcomes:
                for finding in outcome.findings:
                    if finding.level is level:
                        mark = _paint(f"{level:<7}", _COLOURS[level]) if colour else f"{level:<7}"
                        shown += [f"{mark} {outcome.check}: {shorten(finding.problem)}"]
                        shown += [f"        why:  {shorten(finding.why)}", f"        next: {shorten(finding.remedy)}"]
        for outcome in self.unseen:
            shown.append(f"{_NOT_LOOKED_AT}: {outcome.check}: needs {shorten('; '.join(outcome.missing))}")
        fine = [outcome.check for outcome in self.outcomes if not outcome.findings and not outcome.missing]
        if fine:
            shown.append(f"nothing found: {', '.join(fine)}")
        return [*shown, self.summary()]

    def summary(self) -> str:
        """Return the summary line."""
        counts = [_counted(self.count(level), level.value) for level in Level]
        return f"{len(self.outcomes)} checks: {', '.join(counts)}; {len(self.unseen)} {_NOT_LOOKED_AT}"

    def document(self) -> dict[str, Any]:
        """Return the report as a JSON document."""
        found = [
            {
                "check": outcome.check,
                "level": finding.level.value,
                "problem": finding.problem,
                "why": finding.why,
                "remedy": finding.remedy,
            }
            for outcome in self.outcomes
            for finding in outcome.findings
        ]
        unseen = [{"check": outcome.check, "needs": list(outcome.missing)} for outcome in self.unseen]
        return {"checks": len(self.outcomes), "findings": found, "notLookedAt": unseen}


def shorten(text: str) -> str:
    """Return text on one line in which nothing controls a terminal: images, names and messages are tenants' words."""
    shown = one_line(text[: _MAX_CHARACTERS + 1])
    return shown if len(shown) <= _MAX_CHARACTERS else f"{shown[:_MAX_CHARACTERS]}…"


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _paint(text: str, code: str) -> str:
    return f"\x1b[{code}m{text}\x1b[0m"
