"""LAMB and AdamW over flat buffers, as NVIDIA's trainer runs them.

LAMB: You et al. 2020, algorithm 2, with what apex's FusedLAMB adds: gradients scaled to a global norm of at
most 1, bias correction, and neither decay nor trust ratio for biases and LayerNorm parameters. AdamW is the
same update without the trust ratio (Loshchilov and Hutter 2019, algorithm 2). The formulas are spelled out in
``update``; tests hold them to a NumPy reference.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from bert_job.run_config import UpdateRule
from bert_trainer.optim.update import Coefficients, apply_update_, gradients_to_update_, row_norms
from bert_trainer.parallel.flat_parameters import ROW, FlatParameters
from bert_trainer.parallel.world import World
from bert_trainer.parallel.zero1 import Zero1Partition


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one call of ``Optimizer.step`` did."""

    gradient_norm: float
    """Global L2 norm before clipping, loss scale taken out."""
    applied: bool
    """False where the gradients were not finite or too large: nothing was changed."""
    loss: float = 0.0
    """What this rank has contributed to the step's loss."""

    @property
    def is_finite(self) -> bool:
        """Whether the gradients were finite."""
        return math.isfinite(self.gradient_norm)


class Optimizer:
    """Moments and the update of one run; the state is both moments, ``num_applied`` and ``moment_steps``.

    Works on this rank's rows of the flat buffers: all of them, or a share where the state is partitioned (ZeRO-1).
    """

    def __init__(self, config: UpdateRule, parameters: FlatParameters, partition: Zero1Partition | None = None) -> None:
        """Moments start at zero in the parameters' type. partition: this rank's rows; None for all."""
        self.config = config
        self.parameters = parameters
        self.partition = partition or Zero1Partition.whole(parameters.num_rows)
        self.num_applied = 0
        """Updates applied in this stage; the schedule counts them."""
        self.moment_steps = 0
        """Updates that bias correction takes the moments to hold."""
        self.gradients = self.partition.own_part(parameters.gradients)
        """This rank's rows of the reduced gradients, (rows, ROW); a view of the flat ones where it has all."""
        own = self.partition.num_own * ROW
        self.first_moment = torch.zeros(own, dtype=parameters.values.dtype, device=parameters.values.device)
        """This rank's, flat."""
        self.second_moment = torch.zeros_like(self.first_moment)
        self._decayed_own = self.partition.num_own_below(parameters.num_decayed // ROW)
        self._tensor_of_row = parameters.decayed_tensor_of_row()
        self._row_counts = torch.bincount(self._tensor_of_row)

    @property
    def state_bytes(self) -> int:
        """Memory of this rank's moments."""
        return self.first_moment.nbytes + self.second_moment.nbytes

    def gather_moments(self) -> dict[str, Tensor] | None:
        """Return both moments whole and flat, None on other ranks than 0 where they are split.

        Collective where they are split; then they are copies on the CPU, otherwise the moments themselves.
        """
        if not self.partition.is_split:
            return {"first_moment": self.first_moment, "second_moment": self.second_moment}
        first, second = (
            self.partition.gather_to_rank_0(self.first_moment),
            self.partition.gather_to_rank_0(self.second_moment),
        )
        return None if first is None or second is None else {"first_moment": first, "second_moment": second}

    def moments_to_load(self, rank: int) -> dict[str, Tensor]:
        """Return buffers for whole moments, to be filled on rank 0 and then given to ``scatter_moments``."""
        if not self.partition.is_split:
            return {"first_moment": self.first_moment, "second_moment": self.second_moment}
        if rank != 0:
            return {}
        shape, dtype = self.parameters.values.shape, self.first_moment.dtype
        return {name: torch.zeros(shape, dtype=dtype) for name in ("first_moment", "second_moment")}

    def scatter_moments(self, loaded: dict[str, Tensor], world: World) -> None:
        """Send rank 0's moments to where they belong. Collective. loaded: from ``moments_to_load``."""
        for name, own in (("first_moment", self.first_moment), ("second_moment", self.second_moment)):
            if self.partition.is_split:
                self.partition.scatter_from_rank_0_(loaded.get(name), own)
            else:
                world.broadcast_(own)

    def start_stage(self, *, keep_moments: bool, keep_step_count: bool = False) -> None:
        """Set the step to 0, as the recipes do at phase 2.

        Args:
            keep_moments: whether the moments stay warm.
            keep_step_count: whether bias correction goes on counting; only with warm moments.
        """
        self.num_applied = 0
        # From 0, bias correction divides warm moments as if they were cold: AdamW's updates are 0.32 of what they
        # should be at step 1 and 0.15 at step 10, a second warm-up. LAMB's trust ratio takes that out, but for biases
        # and LayerNorms.
        if not (keep_moments and keep_step_count):
            self.moment_steps = 0
        if not keep_moments:
            self.first_moment.zero_()
            self.second_moment.zero_()

    @torch.no_grad()
    def step(
        self,
        learning_rate: float,
        *,
        loss_scale: float = 1.0,
        largest_norm: float = math.inf,
        loss: Tensor | None = None,
    ) -> StepResult:
        """Clip and apply ``gradients``, which are used up (their values are undefined after).

        Collective where the state is partitioned.

        Args:
            learning_rate: Of this step.
            loss_scale: The factor that the gradients still carry.
            largest_norm: Above it nothing is applied, as where the gradients are not finite.
            loss: This rank's part of the step's loss, (); read together with the norm.
        """
        config, gradients = self.config, self.gradients
        # By row, on the rank that holds it, and combined in the order of rows: the norm is the same to the bit however
        # the rows are split over ranks, so that ranks agree on clipping and on skipping the step.
        norms_R = self.partition.gather_by_row(row_norms(gradients))
        scaled_norm = torch.linalg.vector_norm(norms_R.double())
        # In one copy: the host waits for a GPU once in every step, here.
        numbers_2 = torch.stack([scaled_norm, torch.zeros_like(scaled_norm) if loss is None else loss.double()])
        scaled, own_loss = numbers_2.tolist()
        norm = scaled / loss_scale
        if not math.isfinite(norm) or norm > largest_norm:
            return StepResult(norm, applied=False, loss=own_loss)
        # Unscaling and clipping are one factor, applied by the pass that updates the moments.
        factor = 1.0 / loss_scale
        if 0 < config.max_gradient_norm < norm:
            factor *= config.max_gradient_norm / norm

        self.num_applied += 1
        self.moment_steps += 1
        numbers = Coefficients.of(config, self.moment_steps, factor)
        first, second = self.first_moment.view(-1, ROW), self.second_moment.view(-1, ROW)
        values = self.partition.own_part(self.parameters.values)
        norms = gradients_to_update_(gradients, first, second, values, numbers, self._decayed_own)
        ratios = self._trust_ratios(norms) if config.name == "lamb" else None
        apply_update_(values, gradients, learning_rate, ratios)
        self.partition.all_gather_(values, self.parameters.values)
        return StepResult(norm, applied=True, loss=own_loss)

    def _trust_ratios(self, norms: Tensor) -> Tensor:
        """Return ||w|| / ||u|| of the tensor that each of this rank's decayed rows belongs to; 1 where either is 0.

        norms: of values and updates of those rows, (rows, 2). Returns (rows,), in their type.
        """
        all_R2 = self.partition.gather_by_row(norms)[: len(self._tensor_of_row)].double()
        # unsafe: without it torch would look at the counts on the host, and wait for a GPU.
        sums = torch.segment_reduce(all_R2.square(), "sum", lengths=self._row_counts, axis=0, unsafe=True)
        value_norms, update_norms = sums.sqrt().unbind(1)
        usable = (value_norms > 0) & (update_norms > 0)
        ratios = torch.where(usable, value_norms / update_norms, torch.ones_like(value_norms))
        own_tensors = self._tensor_of_row[self.partition.own_rows(norms.device)[: len(norms)]]
        return ratios[own_tensors].to(norms.dtype)


class LossScaler:
    """Dynamic loss scale for fp16: halved at an overflow, doubled after a run of finite steps."""

    def __init__(self, *, enabled: bool, scale: float = 2.0**16, growth_interval: int = 2000) -> None:
        """enabled: otherwise the scale is 1 always. growth_interval: finite steps before doubling."""
        self.enabled = enabled
        self.scale = scale if enabled else 1.0
        self.growth_interval = growth_interval
        self.finite_steps = 0

    def update(self, *, finite: bool) -> None:
        """Take note of whether a step's gradients were finite."""
        if not self.enabled:
            return
        if not finite:
            self.scale, self.finite_steps = self.scale / 2, 0
            return
        self.finite_steps += 1
        if self.finite_steps == self.growth_interval:
            self.scale, self.finite_steps = self.scale * 2, 0
