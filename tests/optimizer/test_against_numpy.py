"""LAMB and AdamW against references in NumPy and fp64, written from the formulas.

With g the gradient after clipping by the global norm, t the updates so far and this one, per tensor:

    m <- b1 m + (1 - b1) g          m' = m / (1 - b1^t)      (no division without bias correction)
    v <- b2 v + (1 - b2) g^2        v' = v / (1 - b2^t)
    u = m' / (sqrt(v') + e) + d w   d = 0 for biases and LayerNorm
    w <- w - rate * r * u           r = |w| / |u|; 1 for AdamW, biases, LayerNorm, and where a norm is 0

You et al. 2020, algorithm 2 (LAMB), Loshchilov and Hutter 2019, algorithm 2 (AdamW); clipping, bias
correction and exclusions as in apex's FusedLAMB. Here tensors are told apart by name, as the original scripts
do, with a trust ratio for what is decayed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn
from torch.optim.adamw import adamw

from bert_trainer.optim.optimizer import Optimizer
from bert_trainer.parallel.flat_parameters import FlatParameters
from whole_configs import optimizer_settings

Arrays = dict[str, NDArray[np.float64]]
STEPS = 20
WORST = {torch.float64: 1e-13, torch.float32: 1e-5}
EXCLUDED = ("bias", "LayerNorm")


class Model(nn.Module):
    """Tensors of odd sizes, in an order that mixes decayed and undecayed ones."""

    def __init__(self, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        self.dense = nn.Linear(5, 7)
        self.LayerNorm = nn.LayerNorm(7)
        self.table = nn.Embedding(11, 3)
        self.untouched = nn.Linear(4, 4)
        self.starts_at_zero = nn.Linear(3, 3)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator))
            self.starts_at_zero.weight.zero_()
        self.to(dtype)


@dataclass
class Reference:
    """The formulas above, one tensor at a time."""

    weights: Arrays
    name: str = "lamb"
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-6
    weight_decay: float = 0.01
    bias_correction: bool = True
    max_gradient_norm: float = 1.0
    t: int = 0
    m: Arrays = field(init=False)
    v: Arrays = field(init=False)

    def __post_init__(self) -> None:
        self.m = {name: np.zeros_like(weight) for name, weight in self.weights.items()}
        self.v = {name: np.zeros_like(weight) for name, weight in self.weights.items()}

    def step(self, gradients: Arrays, rate: float) -> float:
        """Update the weights; return the global norm before clipping."""
        norm = float(np.sqrt(sum((gradient**2).sum() for gradient in gradients.values())))
        clip = 1.0
        if self.max_gradient_norm and norm > self.max_gradient_norm:
            clip = self.max_gradient_norm / norm
        self.t += 1
        for name, weight in self.weights.items():
            gradient = gradients[name] * clip
            self.m[name] = self.beta1 * self.m[name] + (1 - self.beta1) * gradient
            self.v[name] = self.beta2 * self.v[name] + (1 - self.beta2) * gradient**2
            m, v = self.m[name], self.v[name]
            if self.bias_correction:
                m, v = m / (1 - self.beta1**self.t), v / (1 - self.beta2**self.t)
            excluded = any(part in name for part in EXCLUDED)
            update = m / (np.sqrt(v) + self.epsilon) + (0.0 if excluded else self.weight_decay) * weight
            ratio = 1.0
            if self.name == "lamb" and not excluded and weight.any() and update.any():
                ratio = float(np.linalg.norm(weight) / np.linalg.norm(update))
            self.weights[name] = weight - rate * ratio * update
        return norm


@dataclass
class Pair:
    """Optimizer and reference that are given the same gradients."""

    optimizer: Optimizer
    reference: Reference
    rng: np.random.Generator

    @classmethod
    def create(cls, dtype: torch.dtype = torch.float64, **settings: Any) -> Pair:
        model = Model(dtype)
        weights = {name: parameter.detach().double().numpy().copy() for name, parameter in model.named_parameters()}
        optimizer = Optimizer(optimizer_settings(**settings), FlatParameters(model))
        return cls(optimizer, Reference(weights, **settings), np.random.default_rng(2))

    def gradients(self, norm: float) -> Arrays:
        """Draw gradients of a given global norm; one tensor gets none."""
        drawn = {name: self.rng.normal(size=weight.shape) for name, weight in self.reference.weights.items()}
        drawn["untouched.weight"] *= 0
        total = float(np.sqrt(sum((gradient**2).sum() for gradient in drawn.values())))
        return {name: gradient * (norm / total) for name, gradient in drawn.items()}

    def hand_over(self, gradients: Arrays, *, loss_scale: float = 1.0) -> None:
        parameters = self.optimizer.parameters
        parameters.gradients.zero_()
        for name, view in parameters.named(parameters.gradients).items():
            view.copy_(torch.from_numpy(gradients[name] * loss_scale))

    def step(self, norm: float, rate: float, *, loss_scale: float = 1.0) -> None:
        gradients = self.gradients(norm)
        self.hand_over(gradients, loss_scale=loss_scale)
        result = self.optimizer.step(rate, loss_scale=loss_scale)
        expected_norm = self.reference.step(gradients, rate)
        assert result.applied
        assert result.gradient_norm == pytest.approx(expected_norm, rel=1e-6)

    def run(self, *, norm: float, steps: int = STEPS, loss_scale: float = 1.0) -> None:
        for step in range(steps):
            # Norms vary around the given one and rates rise and fall, as they do in a run.
            wobble = 0.5 + float(self.rng.random())
            self.step(norm * wobble, 1e-2 * (1 + step % 5) / 5, loss_scale=loss_scale)

    def worst_error(self) -> float:
        """Return the largest relative error of a tensor, over weights and both moments."""
        optimizer, worst = self.optimizer, 0.0
        for flat, expected in (
            (optimizer.parameters.values, self.reference.weights),
            (optimizer.first_moment, self.reference.m),
            (optimizer.second_moment, self.reference.v),
        ):
            for name, found in optimizer.parameters.named(flat).items():
                size = np.linalg.norm(expected[name]) or 1.0
                worst = max(worst, float(np.linalg.norm(found.double().numpy() - expected[name]) / size))
        return worst


SMALL, LARGE, AROUND_THE_LIMIT = 0.1, 30.0, 1.0


@pytest.mark.parametrize("norm", [SMALL, LARGE, AROUND_THE_LIMIT], ids=["unclipped", "clipped", "now and then"])
@pytest.mark.parametrize("bias_correction", [True, False], ids=["corrected", "uncorrected"])
@pytest.mark.parametrize("name", ["lamb", "adamw"])
@pytest.mark.parametrize("dtype", WORST, ids=["fp64", "fp32"])
def test_twenty_steps_are_the_formulas(dtype: torch.dtype, name: str, bias_correction: bool, norm: float) -> None:
    pair = Pair.create(dtype, name=name, bias_correction=bias_correction)
    pair.run(norm=norm)
    assert pair.optimizer.num_applied == STEPS
    assert pair.worst_error() < WORST[dtype]


@pytest.mark.parametrize("name", ["lamb", "adamw"])
def test_every_setting_reaches_the_formulas(name: str) -> None:
    settings = {"beta1": 0.6, "beta2": 0.85, "epsilon": 1e-2, "weight_decay": 0.3, "max_gradient_norm": 0.05}
    pair = Pair.create(name=name, **settings)
    pair.run(norm=AROUND_THE_LIMIT)
    assert pair.worst_error() < WORST[torch.float64]


def test_no_limit_means_no_clipping() -> None:
    pair = Pair.create(max_gradient_norm=0.0)
    pair.run(norm=LARGE)
    assert pair.worst_error() < WORST[torch.float64]


def test_a_loss_scale_changes_nothing_and_the_limit_is_on_true_gradients() -> None:
    pair = Pair.create()
    pair.run(norm=AROUND_THE_LIMIT, loss_scale=2.0**16)
    assert pair.worst_error() < WORST[torch.float64]


def test_a_tensor_of_zeros_has_trust_ratio_1() -> None:
    pair = Pair.create(max_gradient_norm=0.0, weight_decay=0.0)
    gradients = pair.gradients(SMALL)
    pair.hand_over(gradients)
    before = {n: v.clone() for n, v in pair.optimizer.parameters.named(pair.optimizer.parameters.values).items()}
    pair.optimizer.step(0.25)
    after = pair.optimizer.parameters.named(pair.optimizer.parameters.values)
    # The first corrected update is g / (|g| + e).
    g = gradients["starts_at_zero.weight"]
    np.testing.assert_allclose(after["starts_at_zero.weight"].numpy(), -0.25 * g / (np.abs(g) + 1e-6), rtol=1e-12)
    # Without gradient and decay the update is 0, and 0 / 0 must not come of it.
    assert torch.equal(after["untouched.weight"], before["untouched.weight"])


def test_a_decayed_tensor_moves_by_the_rate_times_its_own_length() -> None:
    """What LAMB is for, whatever the size of the gradient; biases and LayerNorm move like Adam's."""
    for norm in (1e-3, 1e3):
        pair = Pair.create(max_gradient_norm=0.0)
        views = pair.optimizer.parameters.named(pair.optimizer.parameters.values)
        before = {name: view.clone() for name, view in views.items()}
        pair.hand_over(pair.gradients(norm))
        pair.optimizer.step(0.1)
        moved = {name: float((view - before[name]).norm()) for name, view in views.items()}
        assert moved["dense.weight"] == pytest.approx(0.1 * float(before["dense.weight"].norm()))
        assert moved["dense.bias"] == pytest.approx(0.1 * 7**0.5, rel=0.1)
        assert moved["LayerNorm.weight"] == pytest.approx(0.1 * 7**0.5, rel=0.1)


@pytest.mark.parametrize("name", ["lamb", "adamw"])
def test_phase_2_starts_with_warm_moments_and_step_0(name: str) -> None:
    pair = Pair.create(name=name)
    pair.run(norm=AROUND_THE_LIMIT)
    pair.optimizer.start_stage(keep_moments=True)
    pair.reference.t = 0
    pair.run(norm=AROUND_THE_LIMIT)
    assert pair.worst_error() < WORST[torch.float64]


@pytest.mark.parametrize("name", ["lamb", "adamw"])
def test_phase_2_may_go_on_with_the_step_count_of_its_moments(name: str) -> None:
    pair = Pair.create(name=name)
    pair.run(norm=AROUND_THE_LIMIT)
    pair.optimizer.start_stage(keep_moments=True, keep_step_count=True)
    pair.run(norm=AROUND_THE_LIMIT)
    assert (pair.optimizer.num_applied, pair.optimizer.moment_steps) == (STEPS, 2 * STEPS)
    assert pair.worst_error() < WORST[torch.float64]


@pytest.mark.parametrize(("keep_step_count", "size"), [(False, 0.153), (True, 1.0)])
def test_adamw_s_tenth_update_of_phase_2(keep_step_count: bool, size: float) -> None:
    """Of a constant gradient, with moments of 10,000 steps: 1 / (1 - 0.9^10) over the root of 1 / (1 - 0.999^10)."""
    pair = Pair.create(name="adamw", epsilon=1e-12, weight_decay=0.0, max_gradient_norm=0.0)
    optimizer = pair.optimizer
    constant = {name: np.full_like(weight, 1e-3) for name, weight in pair.reference.weights.items()}
    optimizer.first_moment.fill_(1e-3)
    optimizer.second_moment.fill_(1e-6)
    optimizer.moment_steps = 10_000
    optimizer.start_stage(keep_moments=True, keep_step_count=keep_step_count)
    bias = optimizer.parameters.named(optimizer.parameters.values)["dense.bias"]
    for _ in range(10):
        before = bias.clone()
        pair.hand_over(constant)
        optimizer.step(1.0)
    np.testing.assert_allclose((before - bias).numpy(), size, rtol=0.01)


def test_phase_2_may_start_with_cold_moments() -> None:
    pair = Pair.create()
    pair.run(norm=AROUND_THE_LIMIT)
    pair.optimizer.start_stage(keep_moments=False)
    pair.reference.t = 0
    pair.reference.__post_init__()
    pair.run(norm=AROUND_THE_LIMIT)
    assert pair.worst_error() < WORST[torch.float64]


def test_the_first_step_of_phase_2_moves_biases_by_a_third_of_the_rate() -> None:
    """Warm moments divided by the first step's corrections, 0.1 and 0.001, move 10 / sqrt(1000)."""
    pair = Pair.create(epsilon=1e-12, max_gradient_norm=0.0)
    optimizer = pair.optimizer
    constant = {name: np.full_like(weight, 1e-3) for name, weight in pair.reference.weights.items()}
    optimizer.first_moment.fill_(1e-3)
    optimizer.second_moment.fill_(1e-6)
    optimizer.start_stage(keep_moments=True)
    bias = optimizer.parameters.named(optimizer.parameters.values)["dense.bias"]
    before = bias.clone()
    pair.hand_over(constant)
    optimizer.step(1.0)
    np.testing.assert_allclose((before - bias).numpy(), 0.3162, atol=1e-4)


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("name", ["lamb", "adamw"])
def test_gradients_that_are_not_finite_change_nothing(name: str, poison: float) -> None:
    pair = Pair.create(name=name)
    pair.run(norm=AROUND_THE_LIMIT, steps=3)
    state = (pair.optimizer.parameters.values, pair.optimizer.first_moment, pair.optimizer.second_moment)
    before = [tensor.clone() for tensor in state]
    gradients = pair.gradients(SMALL)
    gradients["dense.bias"][3] = poison
    pair.hand_over(gradients)
    result = pair.optimizer.step(0.1)
    assert not result.applied
    assert not np.isfinite(result.gradient_norm)
    assert pair.optimizer.num_applied == 3
    assert all(torch.equal(tensor, saved) for tensor, saved in zip(state, before, strict=True))
    pair.run(norm=AROUND_THE_LIMIT, steps=3)
    assert pair.worst_error() < WORST[torch.float64]


def test_adamw_is_torchs_adamw() -> None:
    """By its functional form: the optimizer class imports torch's compiler, which takes seconds."""
    pair = Pair.create(name="adamw", max_gradient_norm=0.0)
    theirs = {name: torch.from_numpy(weight.copy()) for name, weight in pair.reference.weights.items()}
    moments = {name: (torch.zeros_like(weight), torch.zeros_like(weight)) for name, weight in theirs.items()}
    steps = {name: torch.tensor(0.0) for name in theirs}
    for _ in range(STEPS):
        gradients = pair.gradients(SMALL)
        pair.hand_over(gradients)
        pair.optimizer.step(1e-2)
        for name, weight in theirs.items():
            first, second = moments[name]
            adamw(
                [weight], [torch.from_numpy(gradients[name])], [first], [second], [], [steps[name]],
                foreach=False, amsgrad=False, maximize=False, lr=1e-2, beta1=0.9, beta2=0.999, eps=1e-6,
                weight_decay=0.0 if any(part in name for part in EXCLUDED) else 0.01,
            )  # fmt: skip
    ours = pair.optimizer.parameters.named(pair.optimizer.parameters.values)
    for name, weight in theirs.items():
        torch.testing.assert_close(ours[name], weight, rtol=1e-12, atol=1e-14)
