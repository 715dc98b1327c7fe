"""Judges every step of a stage by its gradient norm, loss and loss scale: what is wrong, and which policy follows.

Pure: it sees numbers that are the same on every rank, so all ranks come to the same verdict. Median, mean and standard
deviation are over a window of steps that a checkpoint holds, and are rounded exactly (``math.fsum``), so a resumed run
and processors of another kind judge alike. What follows from a verdict is done by ``loop``.

The norm of a step is known before its update, which it can prevent. Verdict and loss go to the other ranks with the
numbers that they exchange at the start of the next step: nothing waits for them. Only then anything is done about the
step: ranks that disagree, since a bit has changed in the memory of one, end the run before its state is saved.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from bert_job.health import Action, FindingName, HealthSpec
from bert_trainer.errors import RanksDisagree
from bert_trainer.optim.optimizer import LossScaler, StepResult

_MIN_DEVIATION = 1e-3
"""Of the mean: the standard deviation of a loss that hardly moves would make a spike of every rounding."""

HINT = (
    "lower the learning rate or lengthen the warm-up; with fp16, use bf16 or fp32. Or let the run go on without such "
    "steps: health.onUnhealthy: Skip"
)


@dataclass(frozen=True, slots=True)
class Finding:
    """Something wrong with training. Steps are those of the stage, counted from 1."""

    name: FindingName
    action: Action
    stage: str
    first_step: int
    last_step: int
    message: str


class Health:
    """State of a stage's health checks; in a finetune stage, of a run's."""

    def __init__(self, config: HealthSpec, stage: str, *, finetuning: bool = False) -> None:
        """finetuning: losses are not judged."""
        self.config = config
        self.stage = stage
        self.findings = 0
        """Findings so far."""
        self.skipped_steps = 0
        """Steps so far whose update was not applied, overflows of fp16 included."""
        self._own_loss = 0.0
        self._unjudged_step: int | None = None
        self._found: Finding | None = None
        self._verdict = 0
        self._finetuning = finetuning
        self._norms: deque[float] = deque(maxlen=config.window_steps)
        self._losses: deque[float] = deque(maxlen=config.window_steps)
        self._num_high = 0
        self._num_overflows = 0
        self._skipped_in_a_row = 0
        self._why_skipped: str | None = None

    def state(self) -> dict[str, Any]:
        """Return a JSON object for checkpoints. Every loss must have been judged."""
        assert self._unjudged_step is None, "the loss of the last step is not in it"
        return {
            "stage": self.stage,
            "findings": self.findings,
            "skipped_steps": self.skipped_steps,
            "norms": list(self._norms),
            "losses": list(self._losses),
            "high": self._num_high,
            "overflows": self._num_overflows,
            "skipped_in_a_row": self._skipped_in_a_row,
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore the state from a checkpoint of this stage; start afresh if it has none."""
        if state.get("stage") != self.stage:
            return
        self.findings, self.skipped_steps = state["findings"], state["skipped_steps"]
        self._norms.extend(state["norms"])
        self._losses.extend(state["losses"])
        self._num_high, self._num_overflows = state["high"], state["overflows"]
        self._skipped_in_a_row = state["skipped_in_a_row"]

    def figures(self) -> dict[str, int]:
        """Return the health metrics of the stage."""
        return {"unhealthy_findings": self.findings, "skipped_steps": self.skipped_steps}

    @property
    def own_numbers(self) -> list[float]:
        """This rank's contribution to the sums that ``judge_last_step`` takes: verdict, its square, loss part."""
        return [self._verdict, self._verdict**2, self._own_loss]

    def judge_last_step(self, summed: Sequence[float], ranks: int) -> list[Finding]:
        """Return the findings on the last step in the order to act on them; once per step.

        Args:
            summed: All ranks' ``own_numbers``.
            ranks: How many.

        Raises:
            RanksDisagree: about whether its update is to be applied, or why not.
        """
        verdict, squares, loss = summed
        # Numbers are equal if and only if their variance is 0; these are whole and small, so nothing is rounded.
        if verdict * verdict != ranks * squares:
            raise RanksDisagree(
                f"{self.stage}: ranks have made different things of the last step's gradients",
                hint="if it happens again on the same machines, look at their memory and devices",
            )
        found, self._found, self._verdict = self._found, None, 0
        return [it for it in (found, self.judge_loss(loss)) if it is not None]

    @property
    def largest_norm(self) -> float:
        """Gradient norm above which the next update is skipped."""
        if self._holds:
            return -math.inf
        return math.inf if self.config.action("gradientNorm") == "Report" else self._norm_limit

    @property
    def why_skipped(self) -> str | None:
        """Why the last update was skipped; None if it was applied."""
        return self._why_skipped

    @property
    def _holds(self) -> bool:
        """Whether updates wait for the loss to come back."""
        return self.config.action("loss") == "Skip" and self._num_high >= self.config.loss_steps

    @property
    def _norm_limit(self) -> float:
        return self.config.gradient_norm_factor * _median(self._norms) if self._knows(self._norms) else math.inf

    def judge_step(self, step: int, result: StepResult, scaler: LossScaler) -> Finding | None:
        """Record a step and return the finding on its gradients.

        Args:
            step: Of the stage, counted from 1.
            result: What became of it.
            scaler: After the step.
        """
        self._own_loss, self._unjudged_step = (0.0, None) if self._finetuning else (result.loss, step)
        found: Finding | None = None
        norm, limit = result.gradient_norm, self._norm_limit
        is_held = self._holds
        if math.isfinite(norm):
            self._num_overflows = 0
            if norm > limit:
                found = self._find("gradientNorm", step, step, self._describe_norm(step, norm))
            self._norms.append(norm)
        elif scaler.enabled:
            self._num_overflows += 1
            if scaler.scale < self.config.smallest_loss_scale:
                message = (
                    f"{_not_finite(step, norm)}, and the loss scale is {scaler.scale:g}; allowed: "
                    f"{self.config.smallest_loss_scale:g} or more"
                )
                found = self._find("lossScale", step - self._num_overflows + 1, step, message)
        else:
            found = self._find("notFinite", step, step, _not_finite(step, norm))
        self._found = self._count_skipped(step, result, found, is_held=is_held)
        self._verdict = _number_of(self._found, applied=result.applied)
        return self._found

    def judge_loss(self, loss: float) -> Finding | None:
        """Record the last step's loss over all ranks and return the finding on it."""
        step, self._unjudged_step, self._own_loss = self._unjudged_step, None, 0.0
        if step is None or not math.isfinite(loss):
            return None  # the gradients of such a loss are not finite either
        limit = self._loss_limit()
        if loss <= limit:
            self._num_high = 0
            self._losses.append(loss)
            return None
        self._num_high += 1
        if self._num_high < self.config.loss_steps:
            return None
        first = step - self._num_high + 1
        message = (
            f"the loss of steps {first} to {step} is above its mean by more than {self.config.loss_deviations:g} "
            f"standard deviations: {loss:.4g} in the last of them, {limit:.4g} is the limit and "
            f"{math.fsum(self._losses) / len(self._losses):.4g} the mean of {len(self._losses)} steps"
        )
        was_known = self._num_high > self.config.loss_steps
        found = None if was_known else self._find("loss", first, step, message)
        if self.config.action("loss") == "Report":
            # Reported once. Where the loss stays so high, that is what the next one is compared with.
            self._losses.clear()
            self._num_high = 0
        return found

    def _count_skipped(self, step: int, result: StepResult, found: Finding | None, *, is_held: bool) -> Finding | None:
        """Return what was found, or that the run has to stop, since it has skipped too many updates."""
        if result.applied:
            self._skipped_in_a_row, self._why_skipped = 0, None
            return found
        self.skipped_steps += 1
        if found is None and not is_held:
            self._why_skipped = "the gradients overflowed fp16"
            return None
        self._why_skipped = found.message if found else "the loss has not come back"
        self._skipped_in_a_row += 1
        most = self.config.max_skipped_steps
        if self._skipped_in_a_row <= most or (found is not None and found.action == "Stop"):
            return found
        message = f"{self._why_skipped}; {self._skipped_in_a_row} updates in a row were skipped, allowed: {most}"
        return Finding(found.name if found else "loss", "Stop", self.stage, step, step, message)

    def _find(self, name: FindingName, first: int, last: int, message: str) -> Finding:
        self.findings += 1
        return Finding(name, self.config.action(name), self.stage, first, last, message)

    def _describe_norm(self, step: int, norm: float) -> str:
        return (
            f"the gradient norm of step {step} is {norm:.4g}, more than {self.config.gradient_norm_factor:g} times "
            f"{_median(self._norms):.4g}, the median of {len(self._norms)} steps"
        )

    def _loss_limit(self) -> float:
        if not self._knows(self._losses):
            return math.inf
        mean = math.fsum(self._losses) / len(self._losses)
        # A product, not a power, which the C library need not round alike everywhere.
        squares = ((loss - mean) * (loss - mean) for loss in self._losses)
        deviation = math.sqrt(math.fsum(squares) / len(self._losses))
        return mean + self.config.loss_deviations * max(deviation, _MIN_DEVIATION * abs(mean))

    def _knows(self, window: deque[float]) -> bool:
        return len(window) >= self.config.window_steps // 4


def _number_of(found: Finding | None, *, applied: bool) -> int:
    """Return a verdict as a number: another one for every finding and action, and for an update that was skipped."""
    names, actions = get_args(FindingName), get_args(Action)
    number = 0 if found is None else 1 + names.index(found.name) * len(actions) + actions.index(found.action)
    return 2 * number + (not applied)


def _median(values: deque[float]) -> float:
    middle, ordered = len(values) // 2, sorted(values)
    return ordered[middle] if len(values) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def _not_finite(step: int, norm: float) -> str:
    return f"the gradients of step {step} are not finite (norm {norm})"
