"""How a local job ended: exit code and closing remarks with the next step. Pure."""

from __future__ import annotations

import signal
from dataclasses import dataclass

from bert_operator.api.schema.bert_pretrain_job import BertPretrainJob
from bert_operator.api.schema.conditions import Reason
from bert_operator.api.schema.status import Failure, JobStatus
from bert_operator.errors import EXIT_BAD_INPUT, EXIT_FAILED, EXIT_SUCCEEDED


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOutcome:
    """The outcome of a job, once its last child has exited."""

    status: JobStatus
    checkpoint: str | None = None
    """Stage and step of the newest checkpoint that was reported."""
    stop_signal: int | None = None
    """The first stop signal."""


def exit_code(outcome: JobOutcome) -> int:
    """Return the exit code: 0 done, 1 failed, 2 bad input, 128 + n stopped by signal n (130 after Ctrl-C)."""
    if outcome.status.phase == "Succeeded":
        return EXIT_SUCCEEDED
    if outcome.status.phase == "Stopped":
        return 128 + (outcome.stop_signal or signal.SIGINT)
    return EXIT_BAD_INPUT if _failed_by(outcome, Reason.INVALID_INPUT) else EXIT_FAILED


def describe_outcome(job: BertPretrainJob, outcome: JobOutcome, command: str, job_file: str | None) -> list[str]:
    """Return the closing remarks; none after success, which has a summary instead.

    Args:
        job: As it ran.
        outcome: Of it.
        command: The command line that ran it.
        job_file: The file that says ``output.ifExists``; None: it was no file.
    """
    if outcome.status.phase == "Succeeded":
        return []
    if outcome.status.phase == "Stopped":
        return [f"Stopped{_at(outcome)}.", _how_to_go_on(job, outcome, command, job_file, "To go on")]
    message = next((item.message for item in outcome.status.conditions if item.type == "Failed"), "")
    lines = [f"Failed: {message}"]
    failures = outcome.status.failures
    if _failed_by(outcome, Reason.INVALID_INPUT):
        # A hint is what to do next. A run without a checkpoint has given its folder up: nothing has to be resumed.
        if outcome.checkpoint:
            lines.append(_how_to_go_on(job, outcome, command, job_file, "With that corrected, to go on"))
        elif "\nhint: " not in message:
            lines.append(f"With that corrected: {command}")
    elif _failed_by(outcome, Reason.DEADLINE_EXCEEDED):
        later = "With a later spec.runPolicy.activeDeadlineSeconds, to go on"
        lines.append(_how_to_go_on(job, outcome, command, job_file, later))
    else:
        if failures and failures[-1].signal is not None:
            lines.append(_explain_signal(failures[-1]))
        lines.append(_how_to_go_on(job, outcome, command, job_file, "With the cause removed, to go on"))
    return lines


def _failed_by(outcome: JobOutcome, reason: Reason) -> bool:
    return any(item.type == "Failed" and item.reason == reason for item in outcome.status.conditions)


def _at(outcome: JobOutcome) -> str:
    if outcome.checkpoint is None:
        return " before the first checkpoint" if outcome.status.run == "training" else ""
    return f" with a checkpoint at {outcome.checkpoint}"


def _how_to_go_on(job: BertPretrainJob, outcome: JobOutcome, command: str, job_file: str | None, when: str) -> str:
    """Return the one command that goes on from what is saved, and the setting without which it would not."""
    where = f" from {outcome.checkpoint}" if outcome.checkpoint else ""
    if job.spec.output.if_exists == "Resume":
        return f"{when}{where}: {command}"
    return f"{when}{where}, set spec.output.ifExists: Resume{f' in {job_file}' if job_file else ''}, then: {command}"


def _explain_signal(failure: Failure) -> str:
    number = failure.signal or 0
    name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
    if number == signal.SIGKILL:
        return f"A process was killed by {name}, most often for lack of memory: lower microBatchSize or slotsPerWorker."
    return f"A process was killed by {name}."
