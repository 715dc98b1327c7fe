"""What a case of ``rule_cases`` consists of."""

from __future__ import annotations

from dataclasses import dataclass

from job_changes import Change


@dataclass(frozen=True, slots=True)
class RuleCase:
    """What keeps a rule, what breaks it, and how it is reported then."""

    keeps: Change
    breaks: Change
    path: str
    """Where ``breaks`` is wrong; the one problem that it has."""
    words: tuple[str, ...] = ()
    """What the message says beside that."""
