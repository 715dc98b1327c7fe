"""How a pretraining step scales over GPUs and Xeons, modelled from its parts: ``python benchmarks/scaling.py``.

Prints the tables of docs/concepts/scaling.md: published runs beside what the model says of them, and what it expects of
this project. ``--measure`` measures the parts that two ranks on this machine can show: reductions of several sizes, and
the optimizer's step beside a copy of memory. docs/concepts/scaling.md says what each number rests on.
"""

from __future__ import annotations

import argparse
import heapq
import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from gpu_step import draw_lengths

PARAMETERS = {"large": 336_000_000, "base": 110_000_000}
"""With the masked-LM bias, pooler and next-sentence head, to the million."""
BACKWARD_SHARE = 2 / 3
"""Of a micro-batch's time: two products in the backward pass for one in the forward pass."""
LINE_SHARE = 0.85
"""Of a network's line rate that a large reduction is assumed to get."""
JITTER = 0.01
"""Standard deviation of a rank's step time for reasons that are not its tokens, as a share of it; assumed."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """What a rank computes with and talks over. Rates in bytes/s, times in s."""

    name: str
    ranks_per_node: int
    inside_bytes_per_s: float
    """Bus bandwidth of a reduction inside a node (bytes times 2 (n - 1) / n over time)."""
    network_bytes_per_s: float
    """Line rate of one node, all its adapters together."""
    memory_bytes_per_s: float
    """Of one rank, for the optimizer's step."""
    inside_latency_s: float = 10e-6
    network_latency_s: float = 20e-6
    optimizer_bytes: float = 38.0
    """Of memory traffic for one parameter's LAMB step. 38 if fused: weights, gradient and both moments read, three of
    them written, the update written and read again (fp32), and a half-precision copy."""


V100_TF = Cluster("16 x V100, 8 x 100 Gb/s InfiniBand", 16, 120e9, 100e9, 0.8e12)
A100 = Cluster("8 x A100, 8 x 200 Gb/s InfiniBand", 8, 230e9, 200e9, 1.7e12)
H100 = Cluster("8 x H100, 8 x 400 Gb/s InfiniBand", 8, 460e9, 400e9, 2.8e12)
H100_ROCE = replace(H100, name="8 x H100, 2 x 100 Gb/s RoCE", network_bytes_per_s=25e9)
H100_ETHERNET = replace(H100, name="8 x H100, 25 Gb/s Ethernet, TCP", network_bytes_per_s=3.1e9, network_latency_s=1e-4)
XEON = Cluster("2 x Xeon 8480+, 4 ranks, 200 Gb/s", 4, 20e9, 25e9, 0.12e12, optimizer_bytes=100.0)
XEON_ETHERNET = replace(XEON, name="2 x Xeon 8480+, 4 ranks, 25 Gb/s Ethernet", network_bytes_per_s=3.1e9)


@dataclass(frozen=True, slots=True)
class Job:
    """What is computed in a step."""

    global_batch: int
    """Sequences per step over all ranks."""
    micro_rows: int
    """Sequences of a micro-batch; the last one's backward pass is what a reduction can hide behind."""
    wire_bytes: int = 2
    """Bytes of one gradient on the wire: 2 for fp16, 4 for fp32."""
    parameters: int = PARAMETERS["large"]
    chunks: int = 16
    """Pieces that the gradients are reduced in."""
    overlapped: bool = True
    partitioned: bool = False
    """ZeRO-1: every rank updates its part, then all gather; the same bytes on the wire."""
    longest: int = 512
    tokens: str = "padded"
    """padded: all rows cost the same; real: cost follows tokens, rows stay with their rank; balanced: dealt out."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step's seconds by where they go."""

    compute: float
    waiting: float
    """For the slowest rank: its tokens and its jitter."""
    reduction: float
    exposed: float
    """The part of the reduction that no backward pass hides."""
    optimizer: float

    @property
    def seconds(self) -> float:
        """All of it."""
        return self.compute + self.waiting + self.exposed + self.optimizer


def ring_bytes(num_ranks: int, num_bytes: float) -> float:
    """Return what each rank sends (and receives) when a ring reduces so many bytes: 2 (N - 1) / N of them."""
    return 2 * (num_ranks - 1) / num_ranks * num_bytes


def time_reduction(cluster: Cluster, num_ranks: int, num_bytes: float, chunks: int = 1) -> float:
    """Return seconds of a hierarchical allreduce: scatter inside nodes, reduce between them, gather inside.

    Every chunk pays the latency of a ring inside the node and of a tree between nodes.
    """
    inside = min(num_ranks, cluster.ranks_per_node)
    nodes = math.ceil(num_ranks / cluster.ranks_per_node)
    seconds = ring_bytes(inside, num_bytes) / cluster.inside_bytes_per_s
    seconds += ring_bytes(nodes, num_bytes) / (cluster.network_bytes_per_s * LINE_SHARE)
    latency = 2 * (inside - 1) * cluster.inside_latency_s
    latency += 2 * math.ceil(math.log2(nodes)) * cluster.network_latency_s
    return seconds + chunks * latency


def expected_maximum(count: int) -> float:
    """Return the expected maximum of ``count`` standard normal numbers (Blom 1958)."""
    return 0.0 if count == 1 else statistics.NormalDist().inv_cdf((count - 0.375) / (count + 0.25))


def slowest_rank(lengths: Sequence[int], num_ranks: int, *, balanced: bool) -> float:
    """Return the tokens of the fullest rank over those of the mean one, rows dealt in order or by length."""
    loads = [0] * num_ranks
    if balanced:
        emptiest = [(0, rank) for rank in range(num_ranks)]
        for length in sorted(lengths, reverse=True):
            load, rank = heapq.heappop(emptiest)
            loads[rank] = load + length
            heapq.heappush(emptiest, (loads[rank], rank))
    else:
        for index, length in enumerate(lengths):
            loads[index % num_ranks] += length
    return max(loads) * num_ranks / sum(lengths)


def draw_imbalance(num_ranks: int, global_batch: int, longest: int, *, balanced: bool, draws: int = 5) -> float:
    """Return the mean of ``slowest_rank`` over steps drawn from Wikipedia's lengths, always the same ones."""
    generator = torch.Generator().manual_seed(1)
    return statistics.mean(
        slowest_rank(draw_lengths(global_batch, longest, generator), num_ranks, balanced=balanced) for _ in range(draws)
    )


def model_step(cluster: Cluster, job: Job, num_ranks: int, sequence_s: float) -> Step:
    """Return where one step's time goes.

    sequence_s: seconds that one rank needs for one sequence, forward and backward, on average.
    """
    compute = job.global_batch / num_ranks * sequence_s
    slowest = 1.0
    if job.tokens != "padded":
        slowest = draw_imbalance(num_ranks, job.global_batch, job.longest, balanced=job.tokens == "balanced")
    waiting = compute * (slowest * (1 + JITTER * expected_maximum(num_ranks)) - 1)
    num_bytes = job.parameters * job.wire_bytes
    reduction = time_reduction(cluster, num_ranks, num_bytes, job.chunks) if num_ranks > 1 else 0.0
    hidden = 0.0
    if job.overlapped:
        last_rows = min(job.micro_rows, job.global_batch / num_ranks)
        # The last chunk begins when the backward pass has ended.
        hidden = min(reduction * (1 - 1 / job.chunks), last_rows * sequence_s * BACKWARD_SHARE)
    optimizer = (
        job.parameters * cluster.optimizer_bytes / cluster.memory_bytes_per_s / (num_ranks if job.partitioned else 1)
    )
    return Step(compute, waiting, reduction, reduction - hidden, optimizer)


def infer_sequence_s(cluster: Cluster, job: Job, num_ranks: int, sequences_per_s: float) -> float:
    """Return the seconds per sequence and rank with which the model gives a known rate; by bisection."""
    low, high = 0.0, num_ranks / sequences_per_s
    for _ in range(40):
        middle = (low + high) / 2
        if model_step(cluster, job, num_ranks, middle).seconds * sequences_per_s > job.global_batch:
            high = middle
        else:
            low = middle
    return low


# --- Published runs ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Run:
    """Rates of one system at growing sizes; the first sets the model's seconds per sequence."""

    source: str
    cluster: Cluster
    job: Job
    points: tuple[tuple[int, int, float], ...]
    """Ranks, global batch, sequences/s of the whole system."""


_PHASE1 = Job(65536, 256, longest=128, overlapped=False, chunks=1)
_PHASE2 = Job(32768, 64, overlapped=False, chunks=1)
_MLPERF = Job(448, 56, tokens="balanced", partitioned=True)
PUBLISHED = (
    Run(
        "NVIDIA DeepLearningExamples 2022, PyTorch, A100, 128",
        A100,
        _PHASE1,
        ((8, 65536, 4591.0), (64, 65536, 35774.0), (256, 65536, 138294.0)),
    ),
    Run(
        "the same, 512 in bins",
        A100,
        _PHASE2,
        ((8, 32768, 1657.0), (64, 32768, 13005.0), (256, 32768, 49663.0)),
    ),
    Run("TensorFlow 2 + Horovod, A100, 128", A100, _PHASE1, ((8, 65536, 3799.0), (256, 65536, 110281.0))),
    Run("TensorFlow 2 + Horovod, V100, 128", V100_TF, _PHASE1, ((16, 65536, 3078.0), (512, 65536, 84223.0))),
    Run("the same, 512", V100_TF, _PHASE2, ((16, 32768, 615.0), (512, 32768, 18787.0))),
    Run("MLPerf 2.1, A100, 512 on real tokens", A100, _MLPERF, ((8, 448, 2420.0), (64, 3072, 18213.0))),
    Run("MLPerf 3.1, H100, 512 on real tokens", H100, _MLPERF, ((8, 768, 7790.0), (64, 4608, 54900.0))),
    Run("MLPerf 3.1, 8 and 16 two-socket Xeons, 512", XEON, _MLPERF, ((32, 2048, 540.0), (64, 3072, 1024.0))),
)


def check_run(run: Run) -> list[tuple[int, float, float]]:
    """Return ranks, published and modelled sequences/s for every size after the first."""
    ranks, batch, rate = run.points[0]
    sequence_s = infer_sequence_s(run.cluster, replace(run.job, global_batch=batch), ranks, rate)
    checked = []
    for ranks, batch, rate in run.points[1:]:
        step = model_step(run.cluster, replace(run.job, global_batch=batch), ranks, sequence_s)
        checked.append((ranks, rate, batch / step.seconds))
    return checked


# --- Measured parts ---------------------------------------------------------------------------------------------------


def fit_line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return latency (s) and bytes/s for which latency + bytes / rate comes nearest to (bytes, seconds) points.

    Nearest in relative terms, so that small messages count as much as large ones.
    """
    rows = torch.tensor([[1 / seconds, num_bytes / seconds] for num_bytes, seconds in points], dtype=torch.float64)
    latency, per_byte = (
        torch.linalg.lstsq(rows, torch.ones(len(points), 1, dtype=torch.float64)).solution[:, 0].tolist()
    )
    return latency, 1 / per_byte


def measure_rank() -> None:
    """Reduce tensors of several sizes with Horovod; rank 0 prints (bytes, seconds of the fastest of 40) as JSON."""
    import horovod.torch as hvd

    hvd.init()
    torch.set_num_threads(1)
    points = []
    for elements in (2**16, 2**18, 2**20, 2**22, 2**24):
        tensor, seconds = torch.ones(elements), []
        for round_number in range(40):
            hvd.barrier()
            start = time.perf_counter()
            hvd.allreduce_(tensor, name=f"{elements}-{round_number}", op=hvd.Sum)
            seconds.append(time.perf_counter() - start)
        points.append((4 * elements, min(seconds)))
    if hvd.rank() == 0:
        print(json.dumps(points))


def measure_optimizer(num_parameters: int = 2**25) -> tuple[float, float]:
    """Return seconds of the trainer's LAMB step and of copying as many fp32 values, the fastest of ten turns."""
    from bert_trainer.optim.optimizer import Optimizer
    from bert_trainer.parallel.flat_parameters import FlatParameters

    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests/support"))
    from whole_configs import optimizer_settings  # after the path

    width = 2048
    model = torch.nn.Linear(width, num_parameters // width, bias=False)
    parameters = FlatParameters(model)
    optimizer = Optimizer(optimizer_settings(), parameters)
    source, target = torch.ones(num_parameters), torch.empty(num_parameters)
    steps, copies = [], []
    for _ in range(10):
        parameters.gradients.fill_(1e-4)
        start = time.perf_counter()
        optimizer.step(1e-4)
        between = time.perf_counter()
        target.copy_(source)
        steps.append(between - start)
        copies.append(time.perf_counter() - between)
    return min(steps), min(copies)


def render_measured(points: Sequence[tuple[float, float]], step_s: float, copy_s: float, num_parameters: int) -> str:
    """Measured reductions beside the fitted line, and the optimizer's traffic."""
    latency, rate = fit_line(points)
    rows = [
        [f"{num_bytes / 2**20:g}", f"{1000 * s:.2f}", f"{1000 * (latency + num_bytes / rate):.2f}"]
        for num_bytes, s in points
    ]
    table = render_table(("MiB, two local ranks", "measured ms", "latency + bytes / rate, ms"), rows)
    copied = 8 * num_parameters / copy_s
    return (
        f"{table}\n\nlatency {1e6 * latency:.0f} us, bus bandwidth {rate / 1e9:.2f} GB/s; "
        f"copy of memory {copied / 1e9:.1f} GB/s; LAMB's step {1e9 * step_s / num_parameters:.2f} ns per parameter, "
        f"as long as {step_s / num_parameters * copied:.0f} bytes of copying"
    )


def measure() -> str:
    """Start two ranks on this machine, then measure the optimizer."""
    mpirun = Path(sys.prefix) / "bin/mpirun"
    command = [str(mpirun), "--allow-run-as-root", "--oversubscribe", "-n", "2", sys.executable, __file__, "--as-rank"]
    printed = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300).stdout
    points = [tuple(point) for line in printed.splitlines() if line.startswith("[[") for point in json.loads(line)]
    step_s, copy_s = measure_optimizer()
    return render_measured(points, step_s, copy_s, 2**25)


# --- Tables -----------------------------------------------------------------------------------------------------------


def render_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def render_checks() -> str:
    """Published beside modelled."""
    rows = []
    for run in PUBLISHED:
        base_ranks, _, base_rate = run.points[0]
        for ranks, published, modelled in check_run(run):
            linear = base_rate / base_ranks * ranks
            cells = [run.source, f"{base_ranks} to {ranks}", f"{published:,.0f}", f"{modelled:,.0f}"]
            shares = [f"{published / linear:.1%}", f"{modelled / linear:.1%}", f"{modelled / published - 1:+.1%}"]
            rows.append(cells + shares)
    columns = ("run", "ranks", "published sequences/s", "modelled", "published efficiency", "modelled", "error")
    return render_table(columns, rows)


def render_forecast(cluster: Cluster, job: Job, rank_rate: float, counts: Sequence[int]) -> str:
    """What the model expects of this project at growing numbers of ranks."""
    sequence_s, rows, first = 1 / rank_rate, [], 0.0
    for ranks in counts:
        step = model_step(cluster, job, ranks, sequence_s)
        rate = job.global_batch / step.seconds
        first = first or rate / ranks
        unbalanced = model_step(cluster, replace(job, tokens="real"), ranks, sequence_s)
        parts = (step.compute, step.waiting, step.reduction, step.exposed, step.optimizer)
        rows.append(
            [str(ranks), f"{rate:,.0f}", f"{rate / ranks / first:.1%}"]
            + [f"{1000 * part:,.1f}" for part in parts]
            + [f"{step.seconds / unbalanced.seconds:.1%}"]
        )
    columns = ["ranks", "sequences/s", "efficiency", "compute ms", "waiting ms", "reduction ms", "of it exposed ms"]
    return render_table([*columns, "optimizer ms", "speed without balancing"], rows)


def render_imbalance(counts: Sequence[int], rows_per_rank: Sequence[int]) -> str:
    """The fullest rank over the mean one, in order and dealt by length."""
    rows = []
    for ranks in counts:
        cells = [str(ranks)]
        for per_rank in rows_per_rank:
            pair = [draw_imbalance(ranks, ranks * per_rank, 512, balanced=balanced) for balanced in (False, True)]
            cells.append(f"{pair[0]:.3f} / {pair[1]:.3f}")
        rows.append(cells)
    return render_table(("ranks", *(f"{count} rows per rank" for count in rows_per_rank)), rows)


def main() -> None:
    """Print every table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpu-rate", type=float, default=974.0, help="sequences/s of one GPU at 512, without waiting")
    parser.add_argument("--xeon-rate", type=float, default=17.0, help="sequences/s of one rank of a Xeon at 512")
    parser.add_argument("--global-batch", type=int, default=32768)
    parser.add_argument("--measure", action="store_true", help="measure parts on this machine and stop")
    parser.add_argument("--as-rank", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.as_rank:
        measure_rank()
        return
    if options.measure:
        print(measure())
        return
    print("Published runs\n\n" + render_checks())
    gpus = Job(options.global_batch, 64, tokens="balanced")
    for cluster in (H100, H100_ROCE, H100_ETHERNET):
        print(f"\n{cluster.name}: {options.gpu_rate:g} sequences/s of one GPU alone\n")
        print(render_forecast(cluster, gpus, options.gpu_rate, (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)))
    xeons = Job(options.global_batch, 16, tokens="balanced")
    for cluster in (XEON, XEON_ETHERNET):
        print(f"\n{cluster.name}: {options.xeon_rate:g} sequences/s of one rank alone\n")
        print(render_forecast(cluster, xeons, options.xeon_rate, (4, 8, 16, 32, 64, 128, 256)))
    print("\nTokens of the fullest rank over the mean: in order / dealt by length\n")
    print(render_imbalance((2, 8, 64, 512), (8, 32, 64, 256)))


if __name__ == "__main__":
    main()
