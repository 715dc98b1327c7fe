"""One pretraining step of BERT on real tokens only, as ``gpu.py`` beside this file measures it.

A micro-batch is a flat run of tokens with row boundaries; a few filler tokens bring it up to one of a few sizes, so
that torch.compile and CUDA graphs see shapes that come back. Needs torch (2.11 or newer) and nothing else. What it does
not do: read data, save checkpoints, or talk to other GPUs.

Letters: N tokens of a micro-batch with its filler, B rows, T longest row, M masked positions, D hidden size, H heads,
E = D / H, V vocabulary entries.
"""

from __future__ import annotations

import bisect
import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

import torch
import torch.nn.functional as F  # noqa: N812 - the name everybody knows it by
from torch import Tensor

Attend = Callable[[Tensor, Tensor, int, float], Tensor]


@dataclass(frozen=True, slots=True)
class Preset:
    """Sizes of one model (Devlin et al. 2019)."""

    layers: int
    hidden: int
    heads: int
    vocabulary: int = 30522
    positions: int = 512

    @property
    def padded_vocabulary(self) -> int:
        """Rows of the token table: tensor cores want multiples of 64."""
        return _round_up(self.vocabulary, 64)


PRESETS = {"large": Preset(24, 1024, 16), "base": Preset(12, 768, 12), "tiny": Preset(2, 128, 2, vocabulary=2000)}
MAX_PREDICTIONS = {128: 20, 512: 80}
"""Masked positions of one sequence at most, by phase: 15 % of its tokens, as NVIDIA's recipes cap them."""
DROPOUT = 0.1
IGNORED = -100
MASK = 103
DENSE_HALF_TFLOPS = {"H200": 989, "H100 PCIe": 756, "H100": 989, "A100": 312, "A800": 312, "L40S": 362, "B200": 2250}
"""bf16 without sparsity, from NVIDIA's data sheets; the first name found in the device's name counts."""

# Shares of Wikipedia sequences no longer than so many tokens, when cut at 512 (Krell et al. 2021, the histogram of
# 16.3 million sequences); 23.4 % are cut. The exponent bends each piece a little towards its short end, which
# brings the mean to the histogram's 255.8 tokens. Cut at 128, 17.8 % of a padded row is padding; 17 % is published.
LENGTH_SHARES = ((0.0, 4), (0.176, 64), (0.369, 128), (0.566, 256), (0.684, 384), (0.766, 511))
LENGTH_BEND = 1.035


def length_at(share: float, longest: int) -> int:
    """Return the length below which a share (0 to 1) of all sequences lie, in tokens, cut at ``longest``."""
    index = bisect.bisect_right([at for at, _ in LENGTH_SHARES], share)
    if index == len(LENGTH_SHARES):
        return longest
    (low_share, low), (high_share, high) = LENGTH_SHARES[index - 1], LENGTH_SHARES[index]
    place = ((share - low_share) / (high_share - low_share)) ** LENGTH_BEND
    return min(longest, low + math.ceil((high - low) * place) if place else low + 1)


def draw_lengths(count: int, longest: int, generator: torch.Generator) -> list[int]:
    """Draw independent sequence lengths, in tokens."""
    return [length_at(share, longest) for share in torch.rand(count, generator=generator, dtype=torch.float64).tolist()]


def count_predictions(length: int, longest: int) -> int:
    """Return how many positions of a sequence are masked."""
    return min(MAX_PREDICTIONS.get(longest, math.ceil(0.15 * longest)), max(1, round(0.15 * length)))


def count_flop(preset: Preset, length: int, predictions: int) -> float:
    """Return the floating-point operations that training one sequence needs, forward and backward.

    Matrix products on real tokens and masked positions only: 6 for each weight and token, 12 for each layer, feature
    and pair of tokens. Embeddings, LayerNorm, the next-sentence head and anything computed twice count nothing.
    """
    width = preset.hidden
    encoder = 6.0 * 12 * width**2 * preset.layers * length + 12.0 * preset.layers * width * length**2
    return encoder + 6.0 * (width**2 + width * preset.vocabulary) * predictions


# --- Micro-batches --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Row:
    """One sequence on the host, int64."""

    tokens: Tensor
    first_segment: int
    masked_places: Tensor
    labels: Tensor
    next_sentence: int


@dataclass(frozen=True, slots=True)
class Micro:
    """A flat micro-batch; int64 unless said otherwise."""

    tokens_N: Tensor
    positions_N: Tensor
    segments_N: Tensor
    bounds: Tensor
    """int32, (B + 1,): where rows begin, and the end."""
    row_starts_B: Tensor
    masked_index_M: Tensor
    labels_M: Tensor
    next_sentence_B: Tensor
    scales: Tensor
    """fp32, (2,): one over the step's masked positions and rows, which make sums of losses a mean."""

    def tensors(self) -> list[Tensor]:
        """Return the tensors in the order of the fields."""
        return [getattr(self, field.name) for field in fields(self)]

    def to(self, device: torch.device) -> Micro:
        """Copy to a device without waiting for it."""
        return Micro(*(tensor.to(device, non_blocking=True) for tensor in self.tensors()))

    def pinned(self) -> Micro:
        """Copy to memory that a GPU can read while the host goes on."""
        return Micro(*(tensor.pin_memory() for tensor in self.tensors()))


@dataclass(frozen=True, slots=True)
class Shape:
    """What torch.compile sees of a micro-batch."""

    tokens: int
    rows: int
    masked: int


def _round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def make_rows(count: int, longest: int, vocabulary: int, generator: torch.Generator) -> list[Row]:
    """Draw sequences: real lengths, tokens as rare as their number (Zipf), 15 % of places masked and to predict.

    How often a token comes matters: gradients of the token table are added up where it comes twice.
    """
    rows = []
    for length in draw_lengths(count, longest, generator):
        tokens = vocabulary ** torch.rand(length, generator=generator, dtype=torch.float64)
        tokens = tokens.long().clamp(max=vocabulary - 1)
        places = torch.randperm(length, generator=generator)[: count_predictions(length, longest)].sort().values
        labels = tokens[places]
        tokens[places] = MASK
        next_sentence = int(torch.randint(2, (), generator=generator))
        rows.append(Row(tokens, length // 2, places, labels, next_sentence))
    return rows


def deal_rows(rows: Sequence[Row], num_micros: int) -> list[list[Row]]:
    """Deal a step's rows over micro-batches so that tokens are nearly equal: longest first, to the emptiest."""
    emptiest = [(0, index) for index in range(num_micros)]
    dealt: list[list[Row]] = [[] for _ in range(num_micros)]
    for row in sorted(rows, key=lambda row: -len(row.tokens)):
        tokens, index = heapq.heappop(emptiest)
        dealt[index].append(row)
        heapq.heappush(emptiest, (tokens + len(row.tokens), index))
    return dealt


def choose_shapes(steps: Sequence[Sequence[Sequence[Row]]], longest: int, granularity: int) -> list[Shape]:
    """Return one shape per step: rows and masked positions the same in all, tokens a multiple of the granularity.

    Every shape leaves room for a filler row of at least one token, and for filler rows to take all that is left over.
    """
    micros = [micro for step in steps for micro in step]
    spare_rows = _round_up(2 * granularity, longest) // longest + 1
    num_rows = _round_up(max(len(micro) for micro in micros) + spare_rows, 32)
    masked = _round_up(max(sum(len(row.labels) for row in micro) for micro in micros), 128)
    shapes = []
    for step in steps:
        needed = max(sum(len(row.tokens) for row in micro) + num_rows - len(micro) for micro in step)
        shapes.append(Shape(_round_up(needed, granularity), num_rows, masked))
    return shapes


def make_micro(rows: Sequence[Row], shape: Shape, scales: tuple[float, float]) -> Micro:
    """Lay rows end to end; filler rows, which no loss looks at, take the places that are left.

    Raises:
        ValueError: the rows do not fit.
    """
    lengths = [len(row.tokens) for row in rows]
    rest, num_filler = shape.tokens - sum(lengths), shape.rows - len(rows)
    num_masked = sum(len(row.labels) for row in rows)
    if rest < num_filler or num_filler < (rest > 0) or num_masked > shape.masked:
        raise ValueError(f"rows: got {len(rows)} with {sum(lengths)} tokens and {num_masked} masked; allowed: {shape}")
    lengths += [rest // num_filler + (index < rest % num_filler) for index in range(num_filler)]
    bounds = torch.tensor([0, *lengths]).cumsum(0)
    starts = bounds.tolist()
    filler = torch.zeros(rest, dtype=torch.int64)
    unused = shape.masked - num_masked
    halves = [torch.arange(len(row.tokens)) >= row.first_segment for row in rows]
    return Micro(
        tokens_N=torch.cat([*(row.tokens for row in rows), filler]),
        positions_N=torch.cat([torch.arange(length) for length in lengths]),
        segments_N=torch.cat([*(half.long() for half in halves), filler]),
        bounds=bounds.int(),
        row_starts_B=bounds[:-1].clone(),
        masked_index_M=torch.cat(
            [*(row.masked_places + starts[i] for i, row in enumerate(rows)), torch.zeros(unused).long()]
        ),
        labels_M=torch.cat([*(row.labels for row in rows), torch.full((unused,), IGNORED)]),
        next_sentence_B=torch.tensor([row.next_sentence for row in rows] + [IGNORED] * num_filler),
        scales=torch.tensor(scales),
    )


def plan_micros(steps: Sequence[Sequence[Row]], longest: int, micro_tokens: int) -> tuple[list[list[Micro]], float]:
    """Return every step's micro-batches, of about ``micro_tokens`` tokens each, and the share of filler in them."""
    real = max(sum(len(row.tokens) for row in step) for step in steps)
    num_micros = max(1, round(real / micro_tokens))
    dealt = [deal_rows(step, num_micros) for step in steps]
    shapes = choose_shapes(dealt, longest, max(16, micro_tokens // 64))
    planned = []
    for step, shape in zip(dealt, shapes, strict=True):
        rows = [row for micro in step for row in micro]
        scales = (1.0 / sum(len(row.labels) for row in rows), 1.0 / len(rows))
        planned.append([make_micro(micro, shape, scales) for micro in step])
    computed = sum(len(micro.tokens_N) for step in planned for micro in step)
    return planned, 1 - sum(len(row.tokens) for step in steps for row in step) / computed


# --- Attention inside rows: q, k, v packed (N, 3, H, E), bounds (B + 1,), T, dropout to (N, H, E) --------------------


def attend_flash(qkv: Tensor, bounds: Tensor, longest: int, dropout: float) -> Tensor:
    """FlashAttention as torch brings it, with dropout: the operator that torch's own nested tensors call."""
    q, k, v = qkv.unbind(1)
    forward = torch.ops.aten._flash_attention_forward
    return forward(q, k, v, bounds, bounds, longest, longest, dropout, False, False)[0]  # type: ignore[no-any-return]


def attend_varlen(qkv: Tensor, bounds: Tensor, longest: int, dropout: float) -> Tensor:
    """The public function of torch, which takes cuDNN on Hopper and has no dropout (as of torch 2.15)."""
    from torch.nn.attention.varlen import varlen_attn

    q, k, v = qkv.unbind(1)
    return varlen_attn(q, k, v, bounds, bounds, longest, longest)  # type: ignore[return-value]


def attend_package(qkv: Tensor, bounds: Tensor, longest: int, dropout: float) -> Tensor:
    """The package ``flash_attn``, with dropout."""
    from flash_attn import flash_attn_varlen_qkvpacked_func  # type: ignore[import-not-found]

    return flash_attn_varlen_qkvpacked_func(qkv, bounds, longest, dropout_p=dropout)  # type: ignore[no-any-return]


def attend_rows(qkv: Tensor, bounds: Tensor, longest: int, dropout: float) -> Tensor:
    """Row by row with plain operators, on any device: what the others are held against."""
    q, k, v = (part.transpose(0, 1) for part in qkv.unbind(1))
    starts = bounds.tolist()
    spans = [slice(start, stop) for start, stop in zip(starts, starts[1:], strict=False)]
    rows = [F.scaled_dot_product_attention(q[:, s], k[:, s], v[:, s], dropout_p=dropout) for s in spans]
    return torch.cat(rows, dim=1).transpose(0, 1)


ATTENTION: dict[str, tuple[Attend, bool]] = {
    "flash": (attend_flash, True),
    "varlen": (attend_varlen, False),
    "flash_attn": (attend_package, True),
    "rows": (attend_rows, True),
}
"""Each with whether it drops attention weights."""


# --- The model -------------------------------------------------------------------------------------------------------

LAYER_PARTS = ("qkv", "out", "in", "fed")


def list_parameters(preset: Preset) -> dict[str, tuple[int, ...]]:
    """Return the shapes of all parameters by name; matrices first, then biases and LayerNorm."""
    width = preset.hidden
    sizes = {"qkv": (3 * width, width), "out": (width, width), "in": (4 * width, width), "fed": (width, 4 * width)}
    matrices: dict[str, tuple[int, ...]] = {"tokens": (preset.padded_vocabulary, width)}
    matrices |= {"positions": (preset.positions, width), "segments": (2, width)}
    vectors: dict[str, tuple[int, ...]] = {"norm.g": (width,), "norm.b": (width,)}
    for layer in range(preset.layers):
        matrices |= {f"{layer}.{part}.w": sizes[part] for part in LAYER_PARTS}
        vectors |= {f"{layer}.{part}.b": sizes[part][:1] for part in LAYER_PARTS}
        vectors |= {f"{layer}.{name}": (width,) for name in ("norm1.g", "norm1.b", "norm2.g", "norm2.b")}
    matrices |= {"transform.w": (width, width), "pooler.w": (width, width), "nsp.w": (2, width)}
    vectors |= {"transform.b": (width,), "pooler.b": (width,), "nsp.b": (2,), "mlm.b": (preset.padded_vocabulary,)}
    vectors |= {"transform_norm.g": (width,), "transform_norm.b": (width,)}
    return matrices | vectors


def _linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.linear(x, weight, bias.to(x.dtype))


def _norm(x: Tensor, gain: Tensor, bias: Tensor, dtype: torch.dtype) -> Tensor:
    return F.layer_norm(x.float(), gain.shape, gain, bias, 1e-12).to(dtype)


def embed(micro: Sequence[Tensor], tables: Sequence[Tensor], norm: Sequence[Tensor], dropout: float) -> Tensor:
    """Tokens, positions, segments (N,) and their tables to (N, D).

    The two segments are told apart by arithmetic: the gradient of a look-up would add 65,536 tokens up in two rows.
    """
    tokens_ND, positions_ND = F.embedding(micro[0], tables[0]), F.embedding(micro[1], tables[1])
    first, second = tables[2].float()
    segments_ND = first + micro[2][:, None] * (second - first)
    x_ND = _norm(tokens_ND.float() + positions_ND.float() + segments_ND, norm[0], norm[1], tokens_ND.dtype)
    return F.dropout(x_ND, dropout)


def encode_layer(
    x_ND: Tensor, bounds: Tensor, w: Sequence[Tensor], heads: int, longest: int, dropout: float, attend: Attend
) -> Tensor:
    """One post-LayerNorm layer. w: weights and biases by LAYER_PARTS, then both LayerNorms' gains and biases."""
    qkv = _linear(x_ND, w[0], w[1]).view(x_ND.shape[0], 3, heads, -1)
    attended_ND = _linear(attend(qkv, bounds, longest, dropout).flatten(1), w[2], w[3])
    x_ND = _norm(x_ND + F.dropout(attended_ND, dropout), w[8], w[9], x_ND.dtype)
    fed_ND = _linear(F.gelu(_linear(x_ND, w[4], w[5])), w[6], w[7])
    return _norm(x_ND + F.dropout(fed_ND, dropout), w[10], w[11], x_ND.dtype)


def masked_lm_loss(x_MD: Tensor, labels_M: Tensor, w: Sequence[Tensor], vocabulary: int) -> Tensor:
    """Sum of cross-entropies in nats. w: transform, its LayerNorm, the token table and its bias."""
    x_MD = _norm(F.gelu(_linear(x_MD, w[0], w[1])), w[2], w[3], x_MD.dtype)
    logits_MV = _linear(x_MD, w[4], w[5]).float()
    beyond = torch.arange(logits_MV.shape[1], device=x_MD.device) >= vocabulary
    return F.cross_entropy(logits_MV.masked_fill(beyond, -math.inf), labels_M, ignore_index=IGNORED, reduction="sum")


def next_sentence_loss(x_BD: Tensor, labels_B: Tensor, w: Sequence[Tensor]) -> Tensor:
    """Sum of cross-entropies in nats over rows. w: pooler and classifier."""
    logits_B2 = _linear(torch.tanh(_linear(x_BD, w[0], w[1])), w[2], w[3]).float()
    return F.cross_entropy(logits_B2, labels_B, ignore_index=IGNORED, reduction="sum")


@dataclass(frozen=True, slots=True)
class Kernels:
    """The functions that a step is made of, compiled or not. One layer is compiled and serves all."""

    embed: Callable[..., Tensor]
    layer: Callable[..., Tensor]
    masked_lm: Callable[..., Tensor]
    next_sentence: Callable[..., Tensor]

    @classmethod
    def make(cls, backend: str | None) -> Kernels:
        """backend: of torch.compile, or None for eager."""
        functions = (embed, encode_layer, masked_lm_loss, next_sentence_loss)
        if backend is None:
            return cls(*functions)
        # One entry per bucket of tokens; the default of 8 would fall back to eager without a word.
        torch._dynamo.config.recompile_limit = 64
        return cls(*(torch.compile(function, backend=backend, dynamic=False, fullgraph=True) for function in functions))


def layer_weights(w: dict[str, Tensor], layer: int) -> list[Tensor]:
    """Return a layer's weights in the order of ``encode_layer``."""
    products = [w[f"{layer}.{part}.{kind}"] for part in LAYER_PARTS for kind in "wb"]
    return products + [w[f"{layer}.{name}"] for name in ("norm1.g", "norm1.b", "norm2.g", "norm2.b")]


def sum_losses(
    w: dict[str, Tensor], preset: Preset, micro: Micro, longest: int, dropout: float, attend: Attend, kernels: Kernels
) -> Tensor:
    """Return the masked-LM and the next-sentence loss, summed: fp32, (2,)."""
    tables = (w["tokens"], w["positions"], w["segments"])
    x_ND = kernels.embed(
        (micro.tokens_N, micro.positions_N, micro.segments_N), tables, (w["norm.g"], w["norm.b"]), dropout
    )
    for layer in range(preset.layers):
        weights = layer_weights(w, layer)
        x_ND = kernels.layer(x_ND, micro.bounds, weights, preset.heads, longest, dropout, attend)
    head = [
        w[name] for name in ("transform.w", "transform.b", "transform_norm.g", "transform_norm.b", "tokens", "mlm.b")
    ]
    masked_lm = kernels.masked_lm(x_ND[micro.masked_index_M], micro.labels_M, head, preset.vocabulary)
    pair = [w[name] for name in ("pooler.w", "pooler.b", "nsp.w", "nsp.b")]
    return torch.stack([masked_lm, kernels.next_sentence(x_ND[micro.row_starts_B], micro.next_sentence_B, pair)])


# --- Weights and LAMB over flat buffers -------------------------------------------------------------------------------

BLOCK = 1024


class Weights:
    """fp32 masters, gradients and moments, each one tensor of (blocks, BLOCK); parameters begin at blocks.

    What the model sees (``seen``) are views: of a copy in the compute type for matrices, of the masters for biases and
    LayerNorm.
    """

    def __init__(self, preset: Preset, device: torch.device, dtype: torch.dtype, deviation: float = 0.02) -> None:
        """Draw weights from N(0, deviation)."""
        shapes = list_parameters(preset)
        counts = [_round_up(math.prod(shape), BLOCK) // BLOCK for shape in shapes.values()]
        self.block_counts = torch.tensor(counts, device=device)
        self.values = torch.zeros(sum(counts), BLOCK, device=device)
        self.gradients = torch.zeros_like(self.values)
        num_matrices = sum(len(shape) == 2 for shape in shapes.values())
        self.num_matrix_blocks = sum(counts[:num_matrices])
        matrices = self.values[: self.num_matrix_blocks]
        self.working = matrices if dtype == torch.float32 else torch.zeros_like(matrices, dtype=dtype)
        self.is_matrix = torch.arange(len(counts), device=device) < num_matrices
        generator = torch.Generator(device).manual_seed(0)
        self.seen: dict[str, Tensor] = {}
        self.gradient_views: list[Tensor] = []
        start = 0
        for (name, shape), count in zip(shapes.items(), counts, strict=True):
            span = slice(start * BLOCK, start * BLOCK + math.prod(shape))
            master = self.values.view(-1)[span].view(shape)
            if len(shape) == 2:
                master.normal_(0, deviation, generator=generator)
            elif name.endswith(".g"):
                master.fill_(1.0)
            source = self.working if len(shape) == 2 else self.values
            self.seen[name] = source.view(-1)[span].view(shape).detach().requires_grad_()
            self.gradient_views.append(self.gradients.view(-1)[span].view(shape))
            start += count
        self.refresh()

    def refresh(self) -> None:
        """Copy the matrices' masters to what the model sees."""
        if self.working.dtype != torch.float32:
            self.working.copy_(self.values[: self.num_matrix_blocks])


def update_moments(
    values: Tensor, gradients: Tensor, first: Tensor, second: Tensor, decay: Tensor, step: Tensor
) -> Tensor:
    """Clip to a global norm of 1, update both moments, and write LAMB's update over the gradients.

    values, gradients, first, second: (blocks, BLOCK); decay: (blocks, 1); step: scalar, counted from 1. Returns the
    sums of squares of values and updates per block, (2, blocks). Betas 0.9 and 0.999, epsilon 1e-6.
    """
    clipped = gradients / gradients.square().sum().sqrt().clamp(min=1.0)
    first.lerp_(clipped, 0.1)
    second.mul_(0.999).addcmul_(clipped, clipped, value=0.001)
    update = first / (1 - 0.9**step) / ((second / (1 - 0.999**step)).sqrt() + 1e-6) + decay * values
    gradients.copy_(update)
    return torch.stack([values.square().sum(1), update.square().sum(1)])


def apply_update(values: Tensor, update: Tensor, ratio: Tensor, learning_rate: float) -> None:
    """values, update: (blocks, BLOCK); ratio: trust ratio of each block's parameter, (blocks,)."""
    values.sub_(update * (learning_rate * ratio)[:, None])


class Lamb:
    """LAMB as apex's FusedLAMB has it, in two passes over flat buffers; nothing in it waits for the device."""

    def __init__(self, weights: Weights, *, compiled: bool, learning_rate: float = 1e-4, decay: float = 0.01) -> None:
        """decay: for matrices; biases and LayerNorm have neither decay nor trust ratio."""
        self.weights, self.learning_rate = weights, learning_rate
        self.first, self.second = torch.zeros_like(weights.values), torch.zeros_like(weights.values)
        self.owner = torch.repeat_interleave(weights.block_counts)
        self.decay = (weights.is_matrix[self.owner] * decay)[:, None]
        self.num_steps = torch.zeros((), device=weights.values.device)
        self.update_moments = torch.compile(update_moments, dynamic=False) if compiled else update_moments
        self.apply_update = torch.compile(apply_update, dynamic=False) if compiled else apply_update

    @torch.no_grad()
    def step(self) -> None:
        """Use the gradients up."""
        w = self.weights
        self.num_steps += 1
        squares = self.update_moments(w.values, w.gradients, self.first, self.second, self.decay, self.num_steps)
        # unsafe: without it torch would look at the counts on the host.
        counts = w.block_counts
        norms = [torch.segment_reduce(sums, "sum", lengths=counts, unsafe=True).sqrt() for sums in squares]
        usable = w.is_matrix & (norms[0] > 0) & (norms[1] > 0)
        ratio = torch.where(usable, norms[0] / norms[1], 1.0)
        self.apply_update(w.values, w.gradients, ratio[self.owner], self.learning_rate)
        w.refresh()
