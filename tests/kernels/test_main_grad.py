"""Gradients of weights that kernels add up themselves: autograd's sums, and reported when they are whole.

A model of two layers with a tied token table, two micro-batches, in bf16 and in fp32. Reference: the same kernels, with
gradients that autograd adds up.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

from bert_trainer.model.backends.cpu.library import Library
from bert_trainer.model.backends.cpu.linear import attach_main_grad, look_up, main_grad, side_by_side
from bert_trainer.model.batch import Batch
from bert_trainer.model.bert import Bert
from bert_trainer.optim.optimizer import Optimizer
from bert_trainer.parallel import zero1
from bert_trainer.parallel.flat_parameters import FlatParameters
from bert_trainer.parallel.reduction import GradientReduction
from bert_trainer.parallel.world import Done, Pending, SingleRank
from random_rows import random_batch
from whole_configs import model_settings, optimizer_settings

pytestmark = pytest.mark.usefixtures("flavour")
VOCABULARY = 101


def make_model() -> Bert:
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 176}
    model = Bert(model_settings(**sizes), VOCABULARY)
    model.initialize(1)
    return model


def make_batches() -> list[Batch]:
    return [
        random_batch([2, 40, 17, 33], sequence_length=40, predictions=6, vocabulary_size=VOCABULARY, seed=seed)
        for seed in (3, 4)
    ]


def run_backward(model: Bert, batch: Batch, *, half: bool = True) -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=half):
        sums = model(batch, batch.dropout_keys(7, 1))
    (sums.masked_lm + sums.next_sentence).backward()


def test_sums_are_those_of_autograd_to_the_bit() -> None:
    plain, flat = make_model(), make_model()
    parameters = FlatParameters(flat)
    assert main_grad(flat.layers[0].query.weight) is not None
    assert main_grad(plain.layers[0].query.weight) is None
    for batch in make_batches():
        run_backward(plain, batch)
        run_backward(flat, batch)
    found = parameters.named(parameters.gradients)
    for name, parameter in plain.named_parameters():
        assert parameter.grad is not None
        if name == "embeddings.tokens.weight":  # of two gradients, which autograd adds to each other first
            torch.testing.assert_close(found[name], parameter.grad, rtol=1e-5, atol=1e-6)
        else:
            assert torch.equal(found[name], parameter.grad), name


@pytest.mark.parametrize("num_batches", [1, 2])
def test_sums_of_products_in_single_precision_are_those_of_autograd(num_batches: int) -> None:
    """To the bit for one micro-batch; a product that adds itself to another rounds in another order."""
    plain, flat = make_model(), make_model()
    parameters = FlatParameters(flat)
    for batch in make_batches()[:num_batches]:
        run_backward(plain, batch, half=False)
        run_backward(flat, batch, half=False)
    found = parameters.named(parameters.gradients)
    for name, parameter in plain.named_parameters():
        assert parameter.grad is not None
        if num_batches == 1 and name != "embeddings.tokens.weight":
            assert torch.equal(found[name], parameter.grad), name
        else:
            torch.testing.assert_close(found[name], parameter.grad, rtol=1e-5, atol=1e-6)


@pytest.mark.usefixtures("threads")
def test_gradients_of_rows_looked_up_are_those_of_autograd_to_the_bit(library: Library) -> None:
    generator = torch.Generator().manual_seed(1)
    # Some many times, most never.
    index = torch.cat([torch.randint(0, 40, (300,), generator=generator), torch.full((500,), 7), torch.tensor([100])])
    plain, summed = (torch.randn(VOCABULARY, 48, generator=generator).requires_grad_() for _ in range(2))
    grads = [torch.randn(len(index), 48, generator=generator) for _ in range(2)]
    total = torch.randn(VOCABULARY, 48, generator=generator)
    plain.grad = total.clone()
    summed.grad = total.clone()
    attach_main_grad(summed, summed.grad)
    for grad in grads:
        torch.nn.functional.embedding(index, plain).backward(grad)
        rows = look_up(library, summed, index)
        assert torch.equal(rows, summed[index])
        rows.backward(grad)
    assert torch.equal(summed.grad, plain.grad)


def test_weights_that_lie_side_by_side_are_multiplied_where_they_lie() -> None:
    plain, flat = make_model(), make_model()
    FlatParameters(flat)
    for model, is_copied in ((plain, True), (flat, False)):
        layer = model.layers[1]
        weights = [layer.query.weight, layer.key.weight, layer.value.weight]
        found = side_by_side(weights)
        assert torch.equal(found, torch.cat(weights))
        assert (found.data_ptr() == weights[0].data_ptr()) is not is_copied
    other_order = side_by_side([flat.layers[0].value.weight, flat.layers[0].key.weight])
    assert torch.equal(other_order, torch.cat([flat.layers[0].value.weight, flat.layers[0].key.weight]))


@dataclass(slots=True)
class Snapshots(SingleRank):
    """Two ranks of which the other has nothing to add; keeps what it is given at that moment."""

    size: int = 2
    taken: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)

    def start_all_reduce_(self, tensor: Tensor, name: str) -> Pending:
        self.taken[name] = tensor.clone(), tensor
        return Done(tensor)


class _GivesNone(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: Tensor, weight: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: object, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


def tells_of_gradients_that_are_none() -> bool:
    """Return whether this torch runs hooks of a parameter whose gradient a kernel has added itself; 2.7 does not."""
    seen: list[Tensor] = []
    weight = torch.nn.Parameter(torch.ones(2))
    weight.register_post_accumulate_grad_hook(seen.append)
    _GivesNone.apply(torch.ones(2, requires_grad=True), weight).sum().backward()
    return bool(seen)


@pytest.mark.parametrize("half", [True, False], ids=["bf16", "fp32"])
def test_a_bucket_is_reduced_when_its_sums_are_whole_and_before_the_pass_ends(
    half: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if half and not tells_of_gradients_that_are_none():
        pytest.skip("requires a newer torch; with this one buckets start after the pass")
    monkeypatch.setattr(zero1, "BUCKET_ROWS", 1)
    model, world = make_model(), Snapshots()
    parameters = FlatParameters(model)
    optimizer = Optimizer(
        optimizer_settings(), parameters, zero1.Zero1Partition(parameters.num_rows, world, split=False)
    )
    reduction = GradientReduction(parameters, optimizer.gradients, optimizer.partition, world, compressed=False)
    first, last = make_batches()
    run_backward(model, first, half=half)
    assert not world.taken
    reduction.watch()
    run_backward(model, last, half=half)
    assert len(world.taken) == len(reduction.buckets)
    reduction.finish()
    for name, (then, now) in world.taken.items():
        assert torch.equal(then, now), name
    assert parameters.gradients.any()
