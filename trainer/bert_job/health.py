"""What is done about training that goes wrong: an action for each finding, and the limits that make one."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from bert_job.section import Section

FindingName = Literal["notFinite", "gradientNorm", "loss", "lossScale"]
Remedy = Literal["Skip", "Stop"]
Action = Literal["Report", "Skip", "Stop"]


class HealthSpec(Section):
    """What to do when a step is not finite or spikes. Every finding is logged and counted in the metrics."""

    on_unhealthy: Remedy | None = None
    """Action for every finding below that has none of its own. ``Skip``: do not apply the update; ``Stop``: fail the
    job. Empty: ``Stop`` for onNotFinite and onLossScale, ``Report`` for the others."""
    on_not_finite: Remedy | None = None
    """Action for gradients with a NaN or Inf; with fp16 see onLossScale."""
    on_gradient_norm: Action | None = None
    """Action for a gradient norm above gradientNormFactor times its running median. ``Report``: only log and count
    it."""
    on_loss: Action | None = None
    """Action for a loss above its running mean by lossDeviations standard deviations, for lossSteps steps in a row.
    ``Skip`` skips updates until the loss has come down again, which helps if batches are at fault; if the weights are,
    stop and resume from an earlier checkpoint. Pretrain stages only."""
    on_loss_scale: Remedy | None = None
    """Action for an fp16 loss scale below smallestLossScale."""
    gradient_norm_factor: Annotated[float, Field(gt=1, le=1e9)] = 100.0
    """Multiple of the running median above which onGradientNorm applies. Default: 100."""
    loss_deviations: Annotated[float, Field(gt=0, le=1000)] = 6.0
    """Standard deviations above the running mean from which a loss counts for onLoss. Default: 6."""
    loss_steps: Annotated[int, Field(ge=1, le=10_000)] = 5
    """Steps in a row with such a loss before onLoss applies. Default: 5."""
    smallest_loss_scale: Annotated[float, Field(gt=0, le=65536)] = 1.0
    """Loss scale below which onLossScale applies. Default: 1."""
    window_steps: Annotated[int, Field(ge=8, le=4096)] = 128
    """Window in steps of median, mean and deviation; nothing is judged before a quarter of it. Default: 128."""
    max_skipped_steps: Annotated[int, Field(ge=1, le=1_000_000)] = 10
    """Maximum number of updates skipped in a row; the next one stops the job. Default: 10."""

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
