"""How return codes and termination records are read."""

from __future__ import annotations

import pytest

from bert_operator.state.observed import read_outcome


@pytest.mark.parametrize(
    ("return_code", "record", "state", "exit_code", "signal"),
    [
        (0, None, "Succeeded", 0, None),
        (1, None, "Failed", 1, None),
        (2, None, "Failed", 2, None),
        (3, None, "Stopped", 3, None),
        (137, None, "Failed", 137, 9),
        (-9, None, "Failed", None, 9),
        (-10, None, "Failed", None, 10),
        (255, None, "Failed", 255, None),
        # A launcher that knows nothing but 1 is overruled by what rank 0 wrote.
        (1, {"exitCode": 2}, "Failed", 2, None),
        (1, {"exitCode": 3}, "Stopped", 3, None),
        (1, {"exitCode": 0}, "Failed", 1, None),
        (1, {"exitCode": "2"}, "Failed", 1, None),
        # A rank that was killed is the cause, whatever rank 0 made of it.
        (137, {"exitCode": 2}, "Failed", 137, 9),
    ],
)
def test_a_return_code_is_read(
    return_code: int, record: dict[str, object] | None, state: str, exit_code: int | None, signal: int | None
) -> None:
    outcome = read_outcome(return_code, record)
    assert (outcome.state, outcome.exit_code, outcome.signal) == (state, exit_code, signal)


def test_reason_and_message_of_a_child_are_bounded() -> None:
    outcome = read_outcome(1, {"reason": "OutOfMemory", "message": "m" * 5000})
    assert (outcome.reason, len(outcome.message)) == ("OutOfMemory", 1024)


def test_a_record_of_other_types_is_passed_over() -> None:
    outcome = read_outcome(1, {"reason": ["x"], "message": 7})
    assert (outcome.reason, outcome.message) == (None, "")
