"""Each kernel by itself computes what plain operations compute, forward and backward, and drops the same elements.

Inputs: random, rows of 1 to 1,100 tokens, heads of 32 features. Reference: plain operations in fp64 on the same
numbers. Measured: fp32 within 6e-7 of a result's norm, bf16 within 0.4 %.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - the name everybody knows it by
from torch import Tensor, nn

from bert_trainer.model.backends.cpu import functions
from bert_trainer.model.backends.cpu.functions import Drop
from bert_trainer.model.backends.cpu.library import Library
from bert_trainer.model.dropout import DropoutKeys

pytestmark = pytest.mark.usefixtures("flavour")
BOTH_TYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
DROPS = pytest.mark.parametrize("drops", [False, True], ids=["whole", "dropped"])
LENGTHS = [1, 2, 70, 16, 17, 1, 33, 5, 256, 257, 390]
HEADS, SIZE, SITE, PROBABILITY = 2, 64, 4, 0.2
Computes = Callable[..., Tensor | tuple[Tensor, ...]]


def draw(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def keys_of(lengths: Sequence[int]) -> DropoutKeys:
    rows = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))
    positions = torch.cat([torch.arange(length) for length in lengths])
    return DropoutKeys(torch.arange(len(lengths), dtype=torch.int32) * 7919, rows, positions)


def starts_of(lengths: Sequence[int]) -> Tensor:
    return torch.tensor([0, *lengths]).cumsum(0)[:-1]


def results(compute: Computes, inputs: Sequence[Tensor]) -> list[Tensor]:
    """Return outputs, then the gradients of inputs for random gradients of outputs."""
    inputs = [x.detach().clone().requires_grad_() for x in inputs]
    # Kernels that work in place take a fresh product, not a leaf.
    outputs = compute(*(x * 1 for x in inputs))
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    grads = [draw(*y.shape, seed=7 + place).to(y.dtype) for place, y in enumerate(outputs)]
    torch.autograd.backward(outputs, grads)
    return [*(y.detach() for y in outputs), *(x.grad for x in inputs if x.grad is not None)]


def assert_same(kernel: Computes, plain: Computes, inputs: Sequence[Tensor], dtype: torch.dtype) -> None:
    """Inputs of one dimension are parameters, fp32 for the kernel."""
    inputs = [x if x.ndim == 1 else x.to(dtype) for x in inputs]
    tolerance = 5e-6 if dtype == torch.float32 else 1e-2
    expected = results(plain, [x.double() for x in inputs])
    for place, (mine, reference) in enumerate(zip(results(kernel, inputs), expected, strict=True)):
        error = float((mine.double() - reference).norm() / (reference.norm() + 1e-12))
        assert error < tolerance, f"result {place} is off by {error:.1e} of its norm"


def attend_plainly(qkv: Tensor, lengths: Sequence[int], reach: int | None, keys: DropoutKeys | None) -> Tensor:
    longest = max(lengths)
    rows = nn.utils.rnn.pad_sequence(list(qkv.split(list(lengths))), batch_first=True)
    q, k, v = rows.view(len(lengths), longest, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
    place = torch.arange(longest)
    seen = (place < torch.tensor(lengths)[:, None])[:, None, None, :]
    if reach is not None:
        seen = seen & ((place[:, None] - place).abs() <= reach)
    scores = (q @ k.transpose(-1, -2)) / math.sqrt(q.shape[-1])
    # A finite number: what pads a row sees nothing.
    weights = scores.masked_fill(~seen, -1e30).softmax(-1)
    if keys is not None:
        weights = keys.attention(weights, PROBABILITY, SITE)
    y = (weights @ v).transpose(1, 2).flatten(2)
    return torch.cat([row[:length] for row, length in zip(y, lengths, strict=True)])


def check_attention(
    library: Library, lengths: Sequence[int], reach: int | None, *, dtype: torch.dtype, drops: bool
) -> None:
    keys = keys_of(lengths)
    drop = Drop(keys.row_keys(SITE), PROBABILITY) if drops else None
    assert_same(
        lambda qkv: functions.attention(library, qkv, starts_of(lengths), HEADS, drop, reach),
        lambda qkv: attend_plainly(qkv, lengths, reach, keys if drops else None),
        [draw(sum(lengths), 3 * SIZE)],
        dtype,
    )


@BOTH_TYPES
@DROPS
@pytest.mark.parametrize("reach", [None, 0, 1, 7, 64, 1000])
def test_a_token_attends_to_those_within_reach(
    library: Library, reach: int | None, dtype: torch.dtype, drops: bool
) -> None:
    check_attention(library, LENGTHS, reach, dtype=dtype, drops=drops)


@BOTH_TYPES
@pytest.mark.parametrize("reach", [None, 64, 600, 1098, 1099])
def test_long_rows_are_attended_to_in_blocks(library: Library, reach: int | None, dtype: torch.dtype) -> None:
    check_attention(library, [1100, 3], reach, dtype=dtype, drops=True)


@BOTH_TYPES
def test_a_reach_beyond_the_row_changes_no_bit(library: Library, dtype: torch.dtype) -> None:
    qkv = draw(sum(LENGTHS), 3 * SIZE).to(dtype)
    whole, reaching = (
        results(lambda x, reach=reach: functions.attention(library, x, starts_of(LENGTHS), HEADS, None, reach), [qkv])
        for reach in (None, max(LENGTHS) - 1)
    )
    assert all(map(torch.equal, whole, reaching))


def test_what_is_out_of_reach_has_no_effect(library: Library) -> None:
    """Scores are computed by whole vectors, of keys that a query does not see too."""
    reach, changed, places = 20, 150, torch.arange(300)
    qkv = draw(300, 3 * SIZE)
    other = qkv.clone()
    other[changed] = 1e30
    far = (places - changed).abs() > reach
    (output, grad), (found, found_grad) = (
        results(lambda x: functions.attention(library, x, starts_of([300]), HEADS, None, reach)[far], [some])
        for some in (qkv, other)
    )
    assert torch.equal(found, output)
    # What some that see the changed one see too has another gradient.
    farther = (places - changed).abs() > 2 * reach
    assert torch.equal(found_grad[farther], grad[farther])


@BOTH_TYPES
@DROPS
def test_residuals_are_added_and_normalised(library: Library, dtype: torch.dtype, drops: bool) -> None:
    keys = keys_of(LENGTHS)
    drop = Drop(keys.token_keys(SITE), PROBABILITY) if drops else None

    def kernel(y: Tensor, x: Tensor, gain: Tensor) -> tuple[Tensor, Tensor]:
        return functions.add_norm(library, y, x, norm_with(gain), drop)

    def plain(y: Tensor, x: Tensor, gain: Tensor) -> tuple[Tensor, Tensor]:
        total = x + (keys.hidden(y, PROBABILITY, SITE) if drops else y)
        return total, F.layer_norm(total, gain.shape, gain, None, 1e-5)

    tokens = sum(LENGTHS)
    assert_same(kernel, plain, [draw(tokens, SIZE, seed=2), draw(tokens, SIZE, seed=3) + 0.5, draw(SIZE) + 1], dtype)


@BOTH_TYPES
def test_the_normalised_residual_is_that_of_the_sum_as_rounded(library: Library, dtype: torch.dtype) -> None:
    norm = nn.LayerNorm(SIZE, bias=False)
    y, x = draw(50, SIZE, seed=2).to(dtype), draw(50, SIZE, seed=3).to(dtype)
    total, out = functions.add_norm(library, y, x, norm, None)
    assert torch.equal(total, x + y)
    assert torch.equal(out, functions.norm(library, total, norm))


@BOTH_TYPES
def test_biases_are_added_as_torch_adds_them_to_the_bit(library: Library, dtype: torch.dtype) -> None:
    x, one, two = draw(70, 48).to(dtype), draw(17), draw(31, seed=2)
    assert torch.equal(functions.add_bias(library, x.clone(), one, two), x.clone().add_(torch.cat([one, two])))
    assert_same(
        lambda x, one, two: functions.add_bias(library, x, one, two),
        lambda x, one, two: x + torch.cat([one, two]),
        [draw(70, 48), one, two],
        dtype,
    )


@BOTH_TYPES
def test_rows_are_normalised(library: Library, dtype: torch.dtype) -> None:
    assert_same(
        lambda x, gain: functions.norm(library, x, norm_with(gain)),
        lambda x, gain: F.layer_norm(x, gain.shape, gain, None, 1e-5),
        [draw(70, SIZE) - 0.5, draw(SIZE) + 1],
        dtype,
    )


def norm_with(gain: Tensor) -> nn.LayerNorm:
    """Return a LayerNorm whose gain is a tensor with a history, not a parameter."""
    norm = nn.LayerNorm(SIZE, bias=False)
    del norm.weight
    norm.weight = gain
    return norm


@BOTH_TYPES
@pytest.mark.parametrize("heads", [2, 4, 32])
def test_queries_and_keys_are_rotated_by_the_angles_of_their_positions(
    library: Library, dtype: torch.dtype, heads: int
) -> None:
    half = SIZE // heads // 2
    angles = torch.arange(40)[:, None] * 100 ** -(torch.arange(half) / half)
    positions = torch.tensor([*range(40), 5, 0, 39, 39])

    def plain(qkv: Tensor) -> Tensor:
        *turned, v = qkv.view(len(positions), 3, heads, 2, half).unbind(1)
        cosines, sines = (table.double()[positions][:, None] for table in (angles.cos(), angles.sin()))
        pairs = [(x[:, :, 0], x[:, :, 1]) for x in turned]
        parts = [torch.stack([a * cosines - b * sines, b * cosines + a * sines], 2) for a, b in pairs]
        return torch.stack([*parts, v], 1).flatten(1)

    assert_same(
        lambda qkv: functions.rotate(library, qkv, angles.cos(), angles.sin(), positions, heads),
        plain,
        [draw(len(positions), 3 * SIZE)],
        dtype,
    )


@BOTH_TYPES
@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu_is_gated(library: Library, dtype: torch.dtype, approximate: str) -> None:
    def plain(y: Tensor) -> Tensor:
        inner, gate = y.chunk(2, -1)
        return F.gelu(inner, approximate=approximate) * gate

    assert_same(
        lambda y: functions.gated_gelu(library, y, by_tanh=approximate == "tanh"),
        plain,
        [2 * draw(70, 2 * 88)],
        dtype,
    )


@BOTH_TYPES
def test_the_same_call_gives_the_same_bits(library: Library, threads: int, dtype: torch.dtype) -> None:
    keys = keys_of(LENGTHS)
    starts, positions = starts_of(LENGTHS), keys.token_position_N
    tables = draw(max(LENGTHS), SIZE // HEADS // 2), draw(max(LENGTHS), SIZE // HEADS // 2, seed=2)

    def layer(x: Tensor, gain: Tensor) -> Tensor:
        norm = norm_with(gain)
        qkv = functions.norm(library, x, norm).repeat(1, 3)
        qkv = functions.rotate(library, qkv, *tables, positions, HEADS)
        y = functions.attention(library, qkv, starts, HEADS, Drop(keys.row_keys(SITE), PROBABILITY), 64)
        total, y = functions.add_norm(library, y, x, norm, Drop(keys.token_keys(SITE + 1), PROBABILITY))
        return total + functions.gated_gelu(library, y.repeat(1, 2), by_tanh=False)

    inputs = [draw(sum(LENGTHS), SIZE).to(dtype), draw(SIZE)]
    first = results(layer, inputs)
    for _ in range(3):
        assert all(map(torch.equal, results(layer, inputs), first))
