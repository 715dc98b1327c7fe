"""How fast one GPU pretrains BERT, beside Hugging Face: ``python benchmarks/gpu.py``.

Needs torch (2.11 or newer) and the two files beside it, ``gpu_step.py`` and ``gpu_peer.py``, nothing else. With
``transformers`` the peer is Hugging Face's ``BertForPreTraining`` under torch.compile with SDPA, without it a plain
padded BERT; the table says which. Both sides train the same sequences, whose lengths follow English Wikipedia, in
turn; each turn is timed between two waits for the device. On a CPU (``--device cpu --preset tiny``) it checks itself;
such a table says nothing of speed.
"""

from __future__ import annotations

import argparse
import datetime
import math
import os
import platform
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
import torch.nn.functional as F  # noqa: N812 - the name everybody knows it by
from gpu_peer import PaddedRows, pad_rows, sum_padded_losses
from gpu_step import (
    ATTENTION,
    DENSE_HALF_TFLOPS,
    DROPOUT,
    PRESETS,
    Attend,
    Kernels,
    Lamb,
    Micro,
    Preset,
    Weights,
    count_flop,
    make_rows,
    plan_micros,
    sum_losses,
)
from torch import Tensor

SEQUENCES_PER_STEP = {512: 2048, 128: 4096}


class Side(Protocol):
    """One of the two that take turns."""

    name: str

    def step(self, number: int) -> Tensor:
        """Train on the step of that number; returns its mean loss, on the device."""


# --- The fast side ----------------------------------------------------------------------------------------------------


class RealTokens:
    """Flat micro-batches, compiled layers, fp32 masters, LAMB over flat buffers."""

    def __init__(
        self,
        preset: Preset,
        steps: list[list[Micro]],
        longest: int,
        device: torch.device,
        attention: str,
        *,
        backend: str | None,
        graphs: bool,
    ) -> None:
        """steps: on the host; pinned here for a GPU. backend: of torch.compile, or None. graphs: CUDA graphs."""
        self.device = device
        self.name = f"real tokens, {attention}" + (", CUDA graphs" if graphs else "")
        self.preset, self.longest = preset, longest
        self.attend, _ = ATTENTION[attention]
        pin = self.device.type == "cuda"
        self.steps = [[micro.pinned() if pin else micro for micro in step] for step in steps]
        # On a CPU in fp32: there it is a check, and bf16 would only blur it.
        self.weights = Weights(preset, self.device, torch.bfloat16 if pin else torch.float32)
        self.kernels = Kernels.make(backend)
        self.lamb = Lamb(self.weights, compiled=backend == "inductor")
        self.loss = torch.zeros((), device=self.device)
        self.graphs: dict[int, tuple[torch.cuda.CUDAGraph, Micro]] | None = {} if graphs and pin else None
        # One pool: the graphs of all buckets run one after the other and leave nothing in it.
        self.pool = torch.cuda.graph_pool_handle() if self.graphs is not None else None

    def step(self, number: int) -> Tensor:
        """Train on one step's micro-batches."""
        self.weights.gradients.zero_()
        self.loss.zero_()
        for micro in self.steps[number]:
            if self.graphs is None:
                self._accumulate(micro.to(self.device))
            else:
                self._replay(micro)
        self.lamb.step()
        return self.loss

    def _accumulate(self, micro: Micro) -> None:
        seen = self.weights.seen
        sums = sum_losses(seen, self.preset, micro, self.longest, DROPOUT, self.attend, self.kernels)
        loss = (sums * micro.scales).sum()
        gradients = torch.autograd.grad(loss, list(seen.values()))
        torch._foreach_add_(self.weights.gradient_views, list(gradients))
        self.loss += loss.detach()

    def _replay(self, micro: Micro) -> None:
        assert self.graphs is not None
        bucket = len(micro.tokens_N)
        if bucket not in self.graphs:
            self.graphs[bucket] = self._capture(micro.to(self.device))
        graph, static = self.graphs[bucket]
        for kept, new in zip(static.tensors(), micro.tensors(), strict=True):
            kept.copy_(new, non_blocking=True)
        graph.replay()

    def _capture(self, static: Micro) -> tuple[torch.cuda.CUDAGraph, Micro]:
        """Record one micro-batch of this size. Gradients and loss are as before when it returns."""
        kept, loss = self.weights.gradients.clone(), self.loss.clone()
        side_stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side_stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side_stream):
            for _ in range(2):
                self._accumulate(static)
        torch.cuda.current_stream().wait_stream(side_stream)
        torch.cuda.empty_cache()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool):
            self._accumulate(static)
        self.weights.gradients.copy_(kept)
        self.loss.copy_(loss)
        return graph, static


# --- Checks and clocks ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Agreement:
    """How near the fast side comes to plain fp32 on padded rows, without dropout."""

    loss: float
    plain_loss: float
    least_cosine: float
    """Between both gradients of a matrix, the least of all matrices."""

    @property
    def holds(self) -> bool:
        """Whether all that differs is rounding: bf16 lands at 0.998, rows that see each other below 0.2."""
        return abs(self.loss / self.plain_loss - 1) < 1e-2 and self.least_cosine > 0.97


def compare_with_plain(preset: Preset, longest: int, device: torch.device, attend: Attend) -> Agreement:
    """Compute losses and gradients of 24 sequences both ways, on a model of two such layers.

    With weights so large that attention matters: at BERT's own 0.02 it is all but an average, and a row that sees
    another would change nothing to speak of.
    """
    preset = replace(preset, layers=2)
    generator = torch.Generator().manual_seed(1)
    rows = make_rows(24, longest, preset.vocabulary, generator)
    planned, _ = plan_micros([rows], longest, micro_tokens=24 * longest)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    weights = Weights(preset, device, dtype, deviation=2 * preset.hidden**-0.5)
    micro = planned[0][0].to(device)
    sums = sum_losses(weights.seen, preset, micro, longest, 0.0, attend, Kernels.make(None))
    found = torch.autograd.grad((sums * micro.scales).sum(), list(weights.seen.values()))
    plain = {name: value.detach().float().requires_grad_() for name, value in weights.seen.items()}
    plain_sums = sum_padded_losses(plain, preset, pad_rows(rows, longest).to(device), 0.0)
    expected = torch.autograd.grad((plain_sums * micro.scales).sum(), list(plain.values()))
    cosines = [
        float(F.cosine_similarity(one.float().flatten(), other.flatten(), dim=0))
        for one, other in zip(found, expected, strict=True)
        if one.ndim == 2
    ]
    losses = [float((part.detach() * micro.scales).sum()) for part in (sums, plain_sums)]
    return Agreement(losses[0], losses[1], min(cosines))


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def time_step(side: Side, number: int, device: torch.device) -> tuple[float, float]:
    """Return seconds and mean loss of one step."""
    _wait(device)
    start = time.perf_counter()
    loss = side.step(number)
    _wait(device)
    return time.perf_counter() - start, float(loss)


def measure_products(device: torch.device) -> float:
    """Return TFLOP/s of a large square matrix product in the type that is trained with, the median of ten."""
    size, dtype = (8192, torch.bfloat16) if device.type == "cuda" else (512, torch.float32)
    a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    seconds = []
    for _ in range(13):
        _wait(device)
        start = time.perf_counter()
        a @ b
        _wait(device)
        seconds.append(time.perf_counter() - start)
    return 2 * size**3 / statistics.median(seconds[3:]) / 1e12


def find_waits(side: Side, device: torch.device) -> str:
    """Return whether a warmed-up step makes the host wait for the device, as torch's own detector sees it."""
    if device.type != "cuda":
        return "not looked for on a CPU"
    torch.cuda.set_sync_debug_mode("error")
    try:
        side.step(0)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        return f"found: {error}"
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return "none"


@dataclass(frozen=True, slots=True)
class Result:
    """What one side did in one phase."""

    name: str
    longest: int
    seconds: list[float]
    sequences: int
    real_tokens: int
    flop: float
    """Of one step, by ``count_flop``; mean over steps."""
    peak_gib: float
    computed_share: float
    """Computed tokens over real ones."""
    last_loss: float


def measure_phase(options: argparse.Namespace, preset: Preset, longest: int, device: torch.device) -> list[Result]:
    """Warm both sides up, then let them take turns; the last result is the peer's."""
    sequences = options.sequences or SEQUENCES_PER_STEP[longest]
    generator = torch.Generator().manual_seed(longest)
    steps = [make_rows(sequences, longest, preset.vocabulary, generator) for _ in range(options.rounds)]
    planned, filler = plan_micros(steps, longest, options.micro_tokens)
    backend = "inductor" if options.compiled else None
    makers: list[tuple[Any, float]] = [
        (
            lambda name=name: RealTokens(
                preset, planned, longest, device, name, backend=backend, graphs=options.cuda_graphs
            ),
            1 / (1 - filler),
        )
        for name in options.attention
    ]
    lengths = [len(row.tokens) for step in steps for row in step]
    micro_rows = max(1, options.peer_micro_tokens // longest)
    makers.append(
        (
            lambda: PaddedRows(preset, steps, longest, micro_rows, device, options.compiled),
            longest * len(lengths) / sum(lengths),
        )
    )
    sides: list[Side] = []
    peaks: list[float] = []
    for maker, _ in makers:
        before = torch.cuda.memory_allocated() if device.type == "cuda" else 0
        sides.append(maker())
        peaks.append(_warm_up(sides[-1], options.rounds, device, before))
    seconds: list[list[float]] = [[] for _ in sides]
    losses = [math.nan] * len(sides)
    for number in range(options.rounds):
        order = list(range(len(sides)))
        for index in order if number % 2 == 0 else order[::-1]:
            taken, losses[index] = time_step(sides[index], number, device)
            seconds[index].append(taken)
    flop = sum(count_flop(preset, len(row.tokens), len(row.labels)) for step in steps for row in step) / len(steps)
    return [
        Result(side.name, longest, taken, sequences, sum(lengths) // len(steps), flop, peak, share, loss)
        for side, taken, peak, (_, share), loss in zip(sides, seconds, peaks, makers, losses, strict=True)
    ]


def _warm_up(side: Side, num_steps: int, device: torch.device, before: int) -> float:
    """Compile for every shape of the plan, look for waits, and return the side's peak memory in GiB.

    before: bytes that were allocated before the side was made.
    """
    for number in range(num_steps):
        side.step(number)
    if isinstance(side, RealTokens):
        print(f"  {side.name}: host waits inside a step: {find_waits(side, device)}", flush=True)
    if device.type != "cuda":
        return math.nan
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    side.step(0)
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated() - before
    torch.cuda.empty_cache()
    return peak / 2**30


# --- The table --------------------------------------------------------------------------------------------------------


def describe_spread(values: list[float]) -> str:
    """Return median and range."""
    return f"{statistics.median(values):,.4g} ({min(values):,.4g}-{max(values):,.4g})"


def find_peak_tflops(device_name: str) -> float | None:
    """Return the data sheet's bf16 rate, or None for a device that is not listed."""
    return next((float(rate) for name, rate in DENSE_HALF_TFLOPS.items() if name in device_name), None)


def render_rows(results: list[Result], peak_tflops: float | None, products_tflops: float) -> list[list[str]]:
    """Return a phase's lines of the table; the last result is the peer's, whom ratios are taken to, round by round."""
    peer = results[-1]
    rows = []
    for result in results:
        median = statistics.median(result.seconds)
        tflops = result.flop / median / 1e12
        ratios = [theirs / ours for ours, theirs in zip(result.seconds, peer.seconds, strict=True)]
        rows.append(
            [
                str(result.longest),
                result.name,
                describe_spread([result.sequences / seconds for seconds in result.seconds]),
                f"{result.real_tokens / median:,.0f}",
                f"{tflops:.4g}",
                f"{tflops / peak_tflops:.1%}" if peak_tflops else "-",
                f"{tflops / products_tflops:.1%}",
                "1" if result is peer else describe_spread(ratios),
                "-" if math.isnan(result.peak_gib) else f"{result.peak_gib:.1f}",
                f"{result.computed_share:.3f}",
                f"{result.last_loss:.2f}",
            ]
        )
    return rows


COLUMNS = (
    "phase",
    "side",
    "sequences/s: median (range)",
    "real tokens/s",
    "TFLOP/s",
    "MFU",
    "of products",
    "x peer",
    "peak GiB",
    "computed/real",
    "loss",
)


def render_table(rows: list[list[str]]) -> str:
    """Return a Markdown table."""
    lines = [COLUMNS, ["---"] * len(COLUMNS), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def render_summary(results: dict[int, list[Result]], peak_tflops: float | None) -> str:
    """Return the figures that are compared between runs, of the first fast side, in one line."""
    words = []
    for longest, (fast, *_, peer) in results.items():
        median = statistics.median(fast.seconds)
        ratio = statistics.median(theirs / ours for ours, theirs in zip(fast.seconds, peer.seconds, strict=True))
        words += [f"real{longest}={fast.sequences / median:.4g}", f"ratio{longest}={ratio:.3g}"]
        if peak_tflops:
            words.append(f"mfu{longest}={fast.flop / median / 1e12 / peak_tflops:.3f}")
    return "bench-gpu: " + " ".join(words)


def describe_dropout(attention: Sequence[str]) -> str:
    """Say what is dropped on which side."""
    without = [name for name in attention if not ATTENTION[name][1]]
    words = f"dropout {DROPOUT} after embeddings, attention and feed-forward on both sides; of attention weights "
    words += f"{DROPOUT} at the peer"
    if len(without) < len(attention):
        words += " and with " + ", ".join(name for name in attention if name not in without)
    return words + (f", none with {', '.join(without)}, which has none" if without else "")


def choose_attention(asked: str, device: torch.device) -> list[str]:
    """Return the ways of attention to measure.

    Raises:
        ValueError: unknown, not installed, or not for this device.
    """
    names = asked.split(",") if asked != "auto" else (["flash", "varlen"] if device.type == "cuda" else ["rows"])
    for name in names:
        if name not in ATTENTION:
            raise ValueError(f"--attention: got {name!r}; allowed: auto or some of {', '.join(ATTENTION)}")
        if name != "rows" and device.type != "cuda":
            raise ValueError(f"--attention: got {name!r}, which needs a GPU; allowed on a CPU: rows")
        if name == "rows" and device.type == "cuda":
            raise ValueError("--attention: got 'rows', which waits for the device at every layer; allowed: the others")
    return names


def check_capability(capability: tuple[int, int], device_name: str) -> None:
    """Refuse GPUs that this benchmark's type and attention are not for.

    Raises:
        ValueError: bf16 and FlashAttention begin with sm_80.
    """
    if capability < (8, 0):
        got = f"sm_{capability[0]}{capability[1]} ({device_name})"
        raise ValueError(f"--device: got {got}; allowed: sm_80 (A100) or newer, since bf16 is what is measured")


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--preset", choices=tuple(PRESETS), default="large")
    parser.add_argument("--phases", type=int, nargs="+", choices=(128, 512), default=[512, 128])
    parser.add_argument("--attention", default="auto", help="auto, or some of " + ",".join(ATTENTION))
    parser.add_argument("--rounds", type=int, default=5, help="steps of each side, every one with data of its own")
    parser.add_argument("--sequences", type=int, help="per step; otherwise 2,048 at 512 and 4,096 at 128")
    parser.add_argument("--micro-tokens", type=int, default=65536, help="tokens of a flat micro-batch, about")
    parser.add_argument(
        "--peer-micro-tokens", type=int, default=32768, help="tokens and padding of a peer's micro-batch"
    )
    parser.add_argument("--no-compile", dest="compiled", action="store_false", help="both sides eager")
    parser.add_argument("--cuda-graphs", action="store_true", help="replay a recorded micro-batch on the fast side")
    options = parser.parse_args(arguments)
    if options.device == "cpu":
        options.compiled = False
    return options


def main() -> None:
    """Check, measure, print."""
    options = parse_options()
    # Buckets differ by a few megabytes; segments that grow take one after the other.
    os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    device = torch.device(options.device)
    name = torch.cuda.get_device_name() if device.type == "cuda" else f"{platform.machine()} CPU"
    try:
        if device.type == "cuda":
            check_capability(torch.cuda.get_device_capability(), name)
        options.attention = choose_attention(options.attention, device)
    except ValueError as error:
        sys.exit(str(error))
    preset, peak = PRESETS[options.preset], find_peak_tflops(name)
    products = measure_products(device)
    print(f"{name}, torch {torch.__version__}, {datetime.date.today()}, BERT-{options.preset}, ", end="")
    print("bf16" if device.type == "cuda" else "fp32")
    print(f"  large products: {products:.4g} TFLOP/s measured, {peak or 'unknown'} by the data sheet")
    print(f"  {describe_dropout(options.attention)}")
    for attention in options.attention:
        agreement = compare_with_plain(preset, 128, device, ATTENTION[attention][0])
        print(f"  {attention} against plain fp32: {agreement}", flush=True)
        if not agreement.holds:
            sys.exit(f"{attention}: the fast side computes something else than the plain model")
    results: dict[int, list[Result]] = {}
    try:
        for longest in options.phases:
            results[longest] = measure_phase(options, preset, longest, device)
            print(render_table(render_rows(results[longest], peak, products)), flush=True)
    except torch.OutOfMemoryError as error:
        sys.exit(
            f"out of memory: {error}\nuse fewer --micro-tokens (got {options.micro_tokens}) or --peer-micro-tokens"
        )
    if device.type == "cpu":
        print("CHECK ONLY: a CPU, fp32, eager; these figures say nothing of a GPU")
    print(render_summary(results, peak))


if __name__ == "__main__":
    main()
