"""How a local job ended: exit code and closing remarks with the next step. Pure."""

from __future__ import annotations

import signal
from dataclasses import dataclass

from bert_operator.api.schema.bert_pretrain_job import BertPretrainJob
from bert_operator.api.schema.conditions import Reason
from bert_operator.api.schema.status import Failure, JobStatus
from bert_operator.errors import EXIT_BAD_INPUT, EXIT_FAILED, EXIT_SUCCEEDED
from bert_operator.foreign_text import tame


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOutcome:
    """The outcome of a job, once its last child has exited."""

    status: JobStatus
    last_lines: tuple[str, ...] = ()
    """Of the newest attempt's plain output, oldest first."""
    checkpoint: str | None = None
    """Stage and step of the newest checkpoint that was reported."""
    stop_signal: int | None = None
    """The first stop signal."""


def exit_code(outcome: JobOutcome) -> int:
    """Return 0 done, 1 failed, 2 bad input, 128 + n stopped by signal n (130 after Ctrl-C)."""
    if outcome.status.phase == "Succeeded":
        return EXIT_SUCCEEDED
    if outcome.status.phase == "Stopped":
        return 128 + (outcome.stop_signal or signal.SIGINT)
    return EXIT_BAD_INPUT if _failed_by(outcome, Reason.INVALID_INPUT) else EXIT_FAILED


def describe_outcome(job: BertPretrainJob, outcome: JobOutcome) -> list[str]:
    """Return the closing remarks; none after success, which has a summary instead."""
    if outcome.status.phase == "Succeeded":
        return []
    if outcome.status.phase == "Stopped":
        return [f"Stopped{_at(outcome)}.", _how_to_resume(job, "again")]
    failures = outcome.status.failures
    lines = []
    if outcome.last_lines and failures:
        lines.append(f"Last lines of attempt {outcome.status.attempt} ({outcome.status.run}):")
        lines += [f"  | {tame(line)}" for line in outcome.last_lines]
    message = next((item.message for item in outcome.status.conditions if item.type == "Failed"), "")
    lines.append(f"Failed: {message}")
    if _failed_by(outcome, Reason.INVALID_INPUT):
        lines.append(_how_to_resume(job, "after correcting what is named above"))
    elif _failed_by(outcome, Reason.DEADLINE_EXCEEDED):
        lines.append(_how_to_resume(job, "with a later spec.runPolicy.activeDeadlineSeconds"))
    elif failures and failures[-1].signal is not None:
        lines += [_explain_signal(failures[-1]), _how_to_resume(job, "then")]
    else:
        lines.append(_how_to_resume(job, "once the cause is removed"))
    return lines


def _failed_by(outcome: JobOutcome, reason: Reason) -> bool:
    return any(item.type == "Failed" and item.reason == reason for item in outcome.status.conditions)


def _at(outcome: JobOutcome) -> str:
    if outcome.checkpoint is None:
        return " before the first checkpoint" if outcome.status.run == "training" else ""
    return f" with a checkpoint at {outcome.checkpoint}"


def _how_to_resume(job: BertPretrainJob, when: str) -> str:
    command = f"Run the same command {when}"
    match job.spec.output.if_exists:
        case "Resume":
            return f"{command} to resume from there; nothing that was finished is repeated."
        case "Fail":
            return f"{command} with spec.output.ifExists: Resume to resume from there."
        case _:
            return f"{command} to start over, or with spec.output.ifExists: Resume to resume from there."


def _explain_signal(failure: Failure) -> str:
    number = failure.signal or 0
    name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
    if number == signal.SIGKILL:
        return f"A process was killed by {name}, most often for lack of memory: lower microBatchSize or slotsPerWorker."
    return f"A process was killed by {name}."
