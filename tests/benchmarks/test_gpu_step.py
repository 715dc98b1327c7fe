"""The GPU benchmark's step against a plain one, and the shapes of what only a GPU can compute."""

from __future__ import annotations

import dataclasses

import gpu
import gpu_peer
import gpu_step
import pytest
import torch
from gpu_step import Kernels, Micro, Preset
from torch import Tensor, nn

from bert_trainer.optim.optimizer import Optimizer
from bert_trainer.parallel.flat_parameters import FlatParameters
from whole_configs import optimizer_settings

SMALL = Preset(layers=2, hidden=32, heads=2, vocabulary=150, positions=64)
CPU = torch.device("cpu")


def small_step(count: int = 12, micro_tokens: int = 200) -> tuple[list[gpu_step.Row], list[Micro]]:
    """Some rows of up to 64 tokens and their micro-batches."""
    rows = gpu_step.make_rows(count, 64, SMALL.vocabulary, torch.Generator().manual_seed(5))
    return rows, gpu_step.plan_micros([rows], 64, micro_tokens)[0][0]


def gradients_of(weights: gpu_step.Weights, micro: Micro) -> tuple[float, list[Tensor]]:
    sums = gpu_step.sum_losses(weights.seen, SMALL, micro, 64, 0.0, gpu_step.attend_rows, Kernels.make(None))
    loss = (sums * micro.scales).sum()
    return float(loss.detach()), list(torch.autograd.grad(loss, list(weights.seen.values())))


def test_micro_batches_of_real_tokens_give_the_loss_and_gradients_of_padded_rows() -> None:
    rows, micros = small_step()
    assert len(micros) > 1
    weights = gpu_step.Weights(SMALL, CPU, torch.float32)
    found = [gradients_of(weights, micro) for micro in micros]
    plain = {name: value.detach().clone().requires_grad_() for name, value in weights.seen.items()}
    sums = gpu_peer.sum_padded_losses(plain, SMALL, gpu_peer.pad_rows(rows, 64), 0.0)
    loss = (sums * micros[0].scales).sum()
    expected = torch.autograd.grad(loss, list(plain.values()))
    assert sum(part for part, _ in found) == pytest.approx(float(loss.detach()), rel=1e-6)
    for name, want, parts in zip(plain, expected, zip(*(parts for _, parts in found), strict=True), strict=True):
        torch.testing.assert_close(
            sum(parts), want, rtol=1e-4, atol=1e-7, msg=lambda text, name=name: f"{name}: {text}"
        )


def test_filler_changes_neither_loss_nor_gradients() -> None:
    _, micros = small_step()
    weights = gpu_step.Weights(SMALL, CPU, torch.float32)
    micro = micros[0]
    filler = micro.next_sentence_B == gpu_step.IGNORED
    first = int(micro.row_starts_B[filler][0])
    other = dataclasses.replace(micro, tokens_N=micro.tokens_N.clone())
    other.tokens_N[first:] = 9
    for one, two in zip(gradients_of(weights, micro)[1], gradients_of(weights, other)[1], strict=True):
        torch.testing.assert_close(one, two)


def test_the_agreement_that_a_run_begins_with_notices_attention_across_rows() -> None:
    def attend_everything(qkv: Tensor, bounds: Tensor, longest: int, dropout: float) -> Tensor:
        return gpu_step.attend_rows(qkv, torch.tensor([0, len(qkv)]), longest, dropout)

    assert gpu.compare_with_plain(SMALL, 64, CPU, gpu_step.attend_rows).holds
    assert not gpu.compare_with_plain(SMALL, 64, CPU, attend_everything).holds


def test_dropout_drops_a_tenth_and_differs_between_calls() -> None:
    x = torch.randn(64, 32)
    tables = (x, torch.zeros(64, 32), torch.zeros(2, 32))
    index = torch.arange(64)
    norm = (torch.ones(32), torch.zeros(32))
    drawn = [gpu_step.embed((index, index, torch.zeros(64).long()), tables, norm, 0.1) for _ in range(2)]
    assert [(part == 0).float().mean().item() for part in drawn] == pytest.approx([0.1, 0.1], abs=0.03)
    assert not torch.equal(drawn[0], drawn[1])


@pytest.mark.parametrize("name", ["flash", "varlen"])
def test_a_layer_with_gpu_attention_is_one_graph_per_bucket_of_tokens(name: str) -> None:
    # On the meta device: shapes and types of the real operators, forward and backward, without their values.
    torch._dynamo.reset()
    graphs = []

    def count(graph: torch.fx.GraphModule, _: object) -> object:
        graphs.append(graph)
        return graph.forward

    weights = [
        weight.to("meta", torch.bfloat16 if weight.ndim == 2 else torch.float32).requires_grad_()
        for weight in gpu_step.layer_weights({k: torch.zeros(v) for k, v in gpu_step.list_parameters(SMALL).items()}, 0)
    ]
    bounds = torch.empty(9, dtype=torch.int32, device="meta")
    layer = torch.compile(gpu_step.encode_layer, backend=count, dynamic=False, fullgraph=True)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION):
        for tokens in (256, 256, 320):
            x = torch.empty(tokens, 32, dtype=torch.bfloat16, device="meta", requires_grad=True)
            y = layer(x, bounds, weights, SMALL.heads, 64, 0.1, gpu_step.ATTENTION[name][0])
            assert (y.shape, y.dtype) == (x.shape, x.dtype)
            gradients = torch.autograd.grad(y.sum(), [x, *weights])
            assert [g.shape for g in gradients] == [x.shape, *(w.shape for w in weights)]
    assert len(graphs) == 2
    torch._dynamo.reset()


class _Named(nn.Module):
    """The benchmark's parameters under the names that they have there."""

    def __init__(self, seen: dict[str, Tensor]) -> None:
        super().__init__()
        for name, value in seen.items():
            self.register_parameter(name.replace(".", "_"), nn.Parameter(value.detach().clone()))


def test_lamb_is_that_of_the_trainer() -> None:
    weights = gpu_step.Weights(SMALL, CPU, torch.float32)
    model = _Named(weights.seen)
    config = optimizer_settings(name="lamb", weight_decay=0.01, beta1=0.9, beta2=0.999, epsilon=1e-6)
    reference = Optimizer(config, FlatParameters(model))
    lamb = gpu_step.Lamb(weights, compiled=False, learning_rate=0.01, decay=0.01)
    generator = torch.Generator().manual_seed(2)
    for _ in range(3):
        for view, parameter in zip(weights.gradient_views, model.parameters(), strict=True):
            drawn = torch.randn(view.shape, generator=generator)
            view.copy_(drawn)
            parameter.grad.copy_(drawn)
        lamb.step()
        reference.step(0.01)
    for value, parameter in zip(weights.seen.values(), model.parameters(), strict=True):
        torch.testing.assert_close(value.detach(), parameter.detach(), rtol=1e-5, atol=1e-7)


def test_half_precision_copies_follow_the_masters() -> None:
    weights = gpu_step.Weights(SMALL, CPU, torch.bfloat16)
    assert weights.seen["0.in.w"].dtype == torch.bfloat16
    assert weights.seen["0.in.b"].dtype == torch.float32
    for view in weights.gradient_views:
        view.fill_(1.0)
    before = weights.seen["0.in.w"].detach().clone()
    gpu_step.Lamb(weights, compiled=False, learning_rate=0.1).step()
    masters = weights.values.view(-1)[: weights.working.numel()].to(torch.bfloat16)
    assert torch.equal(weights.working.view(-1), masters)
    assert not torch.equal(weights.seen["0.in.w"], before)


def test_a_step_adds_its_micro_batches_up_and_learns() -> None:
    _, micros = small_step()
    side = gpu.RealTokens(SMALL, [micros], 64, CPU, "rows", backend=None, graphs=False)
    side.lamb.learning_rate = 0.02
    losses = [float(side.step(0)) for _ in range(15)]
    assert losses[-1] < losses[0] - 0.5


def attend_blocks(qkv: Tensor, bounds: Tensor, longest: int, dropout: float) -> Tensor:
    """Rows told apart by a mask: slow, but a graph without a break, as attention on a GPU is."""
    place = torch.arange(len(qkv))
    row = torch.searchsorted(bounds.long(), place, right=True)
    q, k, v = (part.transpose(0, 1) for part in qkv.unbind(1))
    mask = row[:, None] == row[None, :]
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(0, 1)


@pytest.mark.slow
@pytest.mark.timeout(300)
# Dynamo itself looks at the .grad of a layer's input, which is no leaf.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
def test_compiled_functions_are_single_graphs_and_give_the_eager_losses_and_gradients() -> None:
    torch._dynamo.reset()
    _, micros = small_step()
    weights = gpu_step.Weights(SMALL, CPU, torch.float32)
    found = []
    for kernels in (Kernels.make(None), Kernels.make("aot_eager")):
        sums = gpu_step.sum_losses(weights.seen, SMALL, micros[0], 64, 0.0, attend_blocks, kernels)
        found.append([sums, *torch.autograd.grad(sums.sum(), list(weights.seen.values()))])
    for eager, compiled in zip(*found, strict=True):
        torch.testing.assert_close(compiled, eager, rtol=1e-4, atol=1e-6)
    torch._dynamo.reset()
