"""What is done about training that goes wrong: a policy for each finding, and the limits that make one.

Every field has a default, since the operator renders those alone that a job sets.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from bert_trainer.config.section import Positive, PositiveFloat, Section

FindingName = Literal["notFinite", "gradientNorm", "loss", "lossScale"]
Remedy = Literal["Skip", "Rollback", "Stop"]
Action = Literal["Report", "Skip", "Rollback", "Stop"]


class HealthConfig(Section):
    """Policies and thresholds of health findings."""

    on_unhealthy: Remedy | None = None
    """For every finding that has no policy of its own below. Empty: ``Stop`` for those that leave nothing to train
    with (not finite, loss scale), ``Report`` for the others."""
    on_not_finite: Remedy | None = None
    """Gradients or a loss that are not finite. Without fp16, whose overflows are no finding."""
    on_gradient_norm: Action | None = None
    """A gradient norm above ``gradient_norm_factor`` times its running median."""
    on_loss: Action | None = None
    """A loss above its running mean by ``loss_deviations`` standard deviations, ``loss_steps`` steps in a row. Pretrain
    stages only."""
    on_loss_scale: Remedy | None = None
    """A loss scale of fp16 below ``smallest_loss_scale``."""
    gradient_norm_factor: Annotated[float, Field(gt=1)] = 100.0
    loss_deviations: PositiveFloat = 6.0
    loss_steps: Positive = 5
    smallest_loss_scale: PositiveFloat = 1.0
    window_steps: Annotated[int, Field(ge=8, le=4096)] = 128
    """Steps that median, mean and standard deviation are taken over; nothing is judged by less than a quarter of
    them."""
    max_skipped_steps: Positive = 10
    """Updates in a row that findings may skip; the next one stops the run."""
    max_rollbacks: Positive = 3
    """Rollbacks in a row to the same checkpoint, or to an earlier one; the next one stops the run."""

    def action(self, finding: FindingName) -> Action:
        """Return the action for a finding."""
        match finding:
            case "notFinite":
                return self.on_not_finite or self.on_unhealthy or "Stop"
            case "gradientNorm":
                return self.on_gradient_norm or self.on_unhealthy or "Report"
            case "loss":
                return self.on_loss or self.on_unhealthy or "Report"
            case "lossScale":
                return self.on_loss_scale or self.on_unhealthy or "Stop"
