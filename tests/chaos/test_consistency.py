"""A status says what is, or it is told in what it does not."""

from __future__ import annotations

from typing import Any

import pytest

from consistency import Truth, inconsistency

STAGES = ("phase1", "phase2")
RUNNING: dict[str, Any] = {"phase": "Running", "attempt": 1, "stage": "phase1", "progress": {"step": 40}}
BLOCKED = {"type": "Blocked", "status": "True", "reason": "PodNotReady", "message": "not ready"}


@pytest.mark.parametrize(
    ("status", "truth", "wrong"),
    [
        (RUNNING, Truth(1, True, ("phase1", 40), 1), ""),
        (RUNNING, Truth(1, True, ("phase1", 41), 1), "step 41 of phase1 was trained, and the status says 40"),
        (RUNNING, Truth(1, True, ("phase2", 1), 1), "and the status says 40 of phase1"),
        ({**RUNNING, "stage": "phase2", "progress": {"step": 1}}, Truth(1, True, ("phase1", 90), 1), ""),
        (RUNNING, Truth(1, True, ("", 0), 1), ""),
        (RUNNING, Truth(2, True, ("phase1", 40), 1), "attempt 2 is the newest child's, and the status says 1"),
        (RUNNING, Truth(1, True, ("phase1", 40), 2), "2 children have not ended"),
        (RUNNING, Truth(1, False, ("phase1", 40), 1), "no pod runs yet, and the phase is Running"),
        (RUNNING, Truth(0, False), "no child is left, and the phase is Running"),
        ({**RUNNING, "conditions": [BLOCKED]}, Truth(1, True, ("phase1", 40), 1), "it is Blocked: not ready"),
        ({**RUNNING, "conditions": [{**BLOCKED, "status": "False"}]}, Truth(1, True, ("phase1", 40), 1), ""),
        ({**RUNNING, "phase": "Pending"}, Truth(1, True, ("phase1", 40), 1), "its pods run, and the phase is Pending"),
        ({**RUNNING, "phase": "Pending"}, Truth(1, False, ("phase1", 40), 1), ""),
        ({**RUNNING, "phase": "Succeeded"}, Truth(0, False), ""),
        ({**RUNNING, "phase": "Stopped"}, Truth(0, False), ""),
        ({**RUNNING, "phase": "Pending", "reason": "BackingOff"}, Truth(0, False), ""),
        ({**RUNNING, "phase": "Pending", "reason": "RetryingAtOnce"}, Truth(0, False), "the phase is Pending"),
        ({**RUNNING, "phase": "Pending", "reason": "RetryingAtOnce"}, Truth(0, False, leaving=1), ""),
        ({}, Truth(0, False), "no child is left, and the phase is None"),
    ],
)
def test_a_status_is_right_or_it_is_told_what_is_wrong(status: dict[str, Any], truth: Truth, wrong: str) -> None:
    found = inconsistency(status, truth, STAGES)
    assert bool(found) == bool(wrong), found
    assert wrong in found
