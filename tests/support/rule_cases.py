"""For every rule between fields one change to the sample job that keeps it and one that breaks it, and no other.

The cases are data, in ``fixtures/jobs/rules``, one file for each subject; their changes are patches (``job_changes``).
"""

from __future__ import annotations

from dataclasses import dataclass

from job_changes import JOBS, LARGE_ENV, Change, load_entries, patched, put


@dataclass(frozen=True, slots=True)
class RuleCase:
    """What keeps a rule, what breaks it, and how it is reported then."""

    keeps: Change
    breaks: Change
    path: str
    """Where ``breaks`` is wrong; the one problem that it has."""
    words: tuple[str, ...] = ()
    """What the message says beside that."""


def _load(subject: str) -> dict[str, RuleCase]:
    entries = load_entries(JOBS / f"rules/{subject}.yaml").items()
    return {
        name: RuleCase(patched(case["keeps"]), patched(case["breaks"]), case["at"], tuple(case.get("says", ())))
        for name, case in entries
    }


CONTROLLER_CASES: dict[str, RuleCase] = _load("operator-alone")
"""Rules that the operator alone checks; why CEL cannot stands at each of them."""

FINETUNE_CASES: dict[str, RuleCase] = _load("finetuning")

RULE_CASES: dict[str, RuleCase] = {
    **_load("data"),
    **_load("evaluation"),
    **FINETUNE_CASES,
    **_load("sections"),
    "size": RuleCase(
        put("env", value=[{"name": "NCCL_DEBUG", "value": ""}]),
        put("env", value=LARGE_ENV),
        "spec",
        ("at most 256 KiB as a whole",),
    ),
    **_load("pods"),
    **CONTROLLER_CASES,
}
