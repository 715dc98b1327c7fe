"""What comes next for a job: by itself, or by somebody's hand."""

from __future__ import annotations

from bert_job.foreign_text import one_line
from bert_operator.plugin.job import Job


def next_step(job: Job, where: str = "") -> str:
    """Return the next step for a job as a sentence. where: options for commands, such as `` -n team``."""
    match job.phase:
        case "Running":
            return _while_running(job, where)
        case "Pending":
            return _while_pending(job)
        case "Queued":
            return (
                "A queue holds the job back and starts it when its turn comes: kubectl get workloads shows the queue."
            )
        case "Stopping":
            return f"The pods save a checkpoint and leave. {one_line(job.message)}".strip()
        case "Stopped":
            return f"kubectl bert resume {job.name}{where} continues {from_checkpoint(job)}."
        case "Succeeded":
            return "Nothing: every stage is done. Results, logs and report.json lie in the output folder."
        case "Failed":
            return _after_failure(job, where)
        case "Invalid":
            return f"Correct the spec as the message says and apply it again: kubectl edit bpj {job.name}{where}."
        case "Unseen":
            return "Waits for the operator: kubectl bert doctor finds out why none has looked at it."
        case "Elsewhere":
            manager = one_line(job.spec.get("managedBy"))
            return f"Whatever {manager} does with it (spec.managedBy); the operator of this cluster leaves it alone."
    return one_line(job.message) or "-"


def _while_running(job: Job, where: str) -> str:
    if job.reason == "NoProgress":
        return one_line(job.message)
    names = [stage.name for stage in job.stages() if stage.state == "waiting"]
    if job.status.get("stage") is None:
        return f"The first report of attempt {job.attempt}; kubectl bert logs -f {job.name}{where} shows what it does."
    return f"{', then '.join(names)}." if names else "This is the last stage."


def _while_pending(job: Job) -> str:
    if job.reason in ("WaitingToStart", "RetryingAtOnce", "RemovingPrevious", "BackingOff", ""):
        return one_line(job.message) or "The operator creates the first attempt."
    # A blocker: its message ends with the remedy.
    return "The job goes on by itself once what is named above is fixed."


def _after_failure(job: Job, where: str) -> str:
    name = f"{job.name}{where}"
    if job.reason == "InvalidInput":
        return f"Correct what the message names, then: kubectl bert delete {name} and kubectl bert submit JOB.yaml."
    return f"Once the cause is fixed, kubectl bert retry {name} starts the same job again {from_checkpoint(job)}."


def from_checkpoint(job: Job) -> str:
    """Return where the next attempt starts from."""
    checkpoint = job.status.get("checkpoint")
    return f"from {one_line(checkpoint['stage'])} step {checkpoint['step']}" if checkpoint else "from its beginning"
