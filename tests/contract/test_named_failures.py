"""What the trainer calls a failure by name, the operator's reference knows by the same name."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import bert_trainer
from bert_operator.api.schema.conditions import FailureReason
from bert_operator.cluster.metrics import KNOWN_REASONS, Metrics
from bert_operator.state.observed import read_outcome
from bert_trainer.errors import NAMED
from bert_trainer.output.termination import render_error
from bert_trainer.pod.exit_codes import build_record, render_record
from bert_trainer.pod.launcher_log import LauncherLog
from bert_trainer.pod.rank_output import Line


@pytest.mark.parametrize("name", sorted(NAMED))
def test_a_named_failure_of_any_rank_reaches_the_status(name: str) -> None:
    error = NAMED[name]("spec.x: got 1; allowed: 2", hint="write 2")
    log = LauncherLog()
    for line in render_error("bert-train", error).splitlines():
        log.note(Line(3, line))
    record = json.loads(render_record(build_record(error.exit_code, log, None, None)))
    outcome = read_outcome(error.exit_code, record)
    assert (outcome.state, outcome.exit_code) == ("Failed", error.exit_code)
    assert outcome.reason in {reason.value for reason in FailureReason}
    assert outcome.message == "spec.x: got 1; allowed: 2\nhint: write 2"


def test_every_error_of_the_trainer_is_a_label_of_its_own() -> None:
    errors = re.compile(r"^class (\w+)\((?:TrainerError|InputError|FencedError|Stopped)\):", re.MULTILINE)
    sources = Path(bert_trainer.__file__).parent.rglob("*.py")
    names = {name for path in sources for name in errors.findall(path.read_text())}
    assert {"InputError", "WorkersUnreachable", "FencedError"} <= names
    assert names <= KNOWN_REASONS


def test_reasons_that_programs_make_up_are_no_labels() -> None:
    metrics = Metrics()
    for number in range(10_000):
        metrics.attempt_failed("Application", f"Reason{number}")
    metrics.attempt_failed("Application", "OOMKilled")
    series = [line for line in metrics.render().decode().splitlines() if "attempt_failures_total{" in line]
    assert sorted(series) == [
        'bert_operator_attempt_failures_total{kind="Application",reason="OOMKilled"} 1.0',
        'bert_operator_attempt_failures_total{kind="Application",reason="Other"} 10000.0',
    ]
