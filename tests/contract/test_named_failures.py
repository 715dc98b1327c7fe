"""What the trainer calls a failure by name, the operator's reference knows by the same name."""

from __future__ import annotations

import json

import pytest

from bert_operator.api.conditions import FailureReason
from bert_operator.observe import EXIT_BAD_INPUT, read_ending
from bert_trainer.errors import NAMED
from bert_trainer.last_words import render_error
from bert_trainer.pod.lines import Line
from bert_trainer.pod.story import Story, build_record, render_record


@pytest.mark.parametrize("name", sorted(NAMED))
def test_a_named_failure_of_any_rank_reaches_the_status(name: str) -> None:
    error = NAMED[name]("spec.x: got 1; allowed: 2", hint="write 2")
    story = Story()
    for line in render_error("bert-train", error).splitlines():
        story.note(Line(3, line))
    record = json.loads(render_record(build_record(error.exit_code, story, None, None)))
    ending = read_ending(error.exit_code, record)
    assert (ending.state, ending.exit_code) == ("Failed", EXIT_BAD_INPUT)
    assert ending.reason in {reason.value for reason in FailureReason}
    assert ending.message == "spec.x: got 1; allowed: 2\nhint: write 2"
