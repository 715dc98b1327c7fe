"""What follows from a finding: a report, a skipped update, or the end of the run."""

from __future__ import annotations

from collections.abc import Callable

from bert_trainer.errors import TrainingUnhealthy
from bert_trainer.optim.optimizer import LossScaler
from bert_trainer.training.health import HINT, Finding


def unhealthy(finding: Finding) -> TrainingUnhealthy:
    """Return the error that ends a run for a finding."""
    return TrainingUnhealthy(f"{finding.stage}: {finding.message}", hint=HINT)


def apply_remedy(finding: Finding | None, report: Callable[..., None], scaler: LossScaler | None = None) -> None:
    """Report a finding, if any, and act on its policy; skipped updates have been skipped already.

    Args:
        finding: What ``Health`` returned.
        report: Writes an event.
        scaler: Of a finding about a step; a skipped one with too low a scale leaves it at the limit.

    Raises:
        TrainingUnhealthy: the policy says Stop; on every rank alike.
    """
    if finding is None:
        return
    report(
        "unhealthy",
        stage=finding.stage,
        step=finding.last_step,
        finding=finding.name,
        action=finding.action,
        message=finding.message,
    )
    if finding.action == "Stop":
        raise unhealthy(finding)
    if finding.name == "lossScale" and scaler is not None:
        scaler.scale *= 2  # what the overflow has halved it from: lower, it would lose more than it saves
