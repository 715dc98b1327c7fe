"""What is done about training that goes wrong."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from bert_operator.api.schema.section import Section

Remedy = Literal["Skip", "Rollback", "Stop"]
Action = Literal["Report", "Skip", "Rollback", "Stop"]


class HealthSpec(Section):
    """What follows where a step is not finite, or spikes. Every finding is logged and counted in the metrics."""

    on_unhealthy: Remedy | None = None
    """For every finding below that has no policy of its own. ``Skip``: the update is not applied; ``Rollback``: the run
    goes back to the newest checkpoint before these steps and leaves their samples out; ``Stop``: the job fails. Empty:
    ``Stop`` for onNotFinite and onLossScale, ``Report`` for the others."""
    on_not_finite: Remedy | None = None
    """Gradients with a NaN or Inf; with fp16 see onLossScale."""
    on_gradient_norm: Action | None = None
    """The gradient norm is above gradientNormFactor times its running median. ``Report``: only logged and counted."""
    on_loss: Action | None = None
    """The loss is above its running mean by lossDeviations standard deviations, for lossSteps steps in a row. ``Skip``
    holds updates back until it has returned, which it does where batches are at fault; where the weights are, only
    ``Rollback`` helps. Pretrain stages only."""
    on_loss_scale: Remedy | None = None
    """The loss scale of fp16 is below smallestLossScale."""
    gradient_norm_factor: Annotated[float, Field(gt=1, le=1e9)] | None = None
    """Default: 100."""
    loss_deviations: Annotated[float, Field(gt=0, le=1000)] | None = None
    """Default: 6."""
    loss_steps: Annotated[int, Field(ge=1, le=10_000)] | None = None
    """Default: 5."""
    smallest_loss_scale: Annotated[float, Field(gt=0, le=65536)] | None = None
    """Default: 1."""
    window_steps: Annotated[int, Field(ge=8, le=4096)] | None = None
    """Steps that median, mean and deviation are taken over; nothing is judged before a quarter of them. Default:
    128."""
    max_skipped_steps: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """Updates in a row that may be skipped; the next one stops the job. Default: 10."""
    max_rollbacks: Annotated[int, Field(ge=1, le=1000)] | None = None
    """Rollbacks in a row without a new checkpoint; the next one stops the job. Default: 3."""
