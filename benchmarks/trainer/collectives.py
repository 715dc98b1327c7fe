"""A training step on two ranks of this machine, joined by Horovod and by torch.distributed.

    python benchmarks/trainer/collectives.py [--rounds 3] [--steps 6] [--preset base|small] [--precision bf16|fp32]

Each round starts two ranks by one library and two by the other, in turns about which is first: threads of a library
that only wait would cost the other one's ranks. Every rank trains on full rows, then sums 100 MB, on one thread.
Figures are medians of the rounds' medians, with the smallest and the largest; ratios are those of one round's
neighbours. The last line holds the seconds of a step. Takes five minutes with BERT-base on two cores.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/support"), str(ROOT / "trainer")]

from bert_trainer.model.backends.cpu.capability import prepare_processor  # noqa: E402 - after the path
from bert_trainer.model.bert import Bert  # noqa: E402
from bert_trainer.optim.optimizer import Optimizer  # noqa: E402
from bert_trainer.parallel.connection import connect  # noqa: E402
from bert_trainer.parallel.flat_parameters import FlatParameters  # noqa: E402
from bert_trainer.parallel.reduction import GradientReduction  # noqa: E402
from bert_trainer.parallel.world import World  # noqa: E402
from bert_trainer.parallel.zero1 import Zero1Partition  # noqa: E402
from bert_trainer.system.processor import read_text  # noqa: E402
from random_rows import random_batch  # noqa: E402
from whole_configs import model_settings, optimizer_settings  # noqa: E402

LIBRARIES = ("horovod", "torch")
RANKS, LENGTH, ROWS, PREDICTIONS, ENTRIES = 2, 128, 8, 20, 30522
PRESETS = {"base": (12, 768, 12, 3072), "small": (4, 512, 8, 2048)}
"""Layers, hidden size, heads, inner size."""
SUMMED_BYTES = 100_000_000
WARM_UP = 2

Timings = dict[str, float]


def time_steps(world: World, options: argparse.Namespace) -> Timings:
    """Train a few steps on this rank; return medians in seconds: step, reduction (and what of it nothing hides)."""
    layers, size, heads, inner = PRESETS[options.preset]
    settings = model_settings(
        hidden_size=size, num_hidden_layers=layers, num_attention_heads=heads, intermediate_size=inner
    )
    model = Bert(settings, ENTRIES)
    model.initialize(1)
    parameters = FlatParameters(model)
    optimizer = Optimizer(
        optimizer_settings(name="adamw"), parameters, Zero1Partition(parameters.num_rows, world, split=False)
    )
    reduction = GradientReduction(parameters, optimizer.gradients, optimizer.partition, world, compressed=False)
    batch = random_batch(
        [LENGTH] * ROWS, seed=world.rank, sequence_length=LENGTH, predictions=PREDICTIONS, vocabulary_size=ENTRIES
    )
    bf16 = options.precision == "bf16"
    steps, exposed = [], []
    for _ in range(WARM_UP + options.steps):
        world.sum_numbers([0.0])  # as a step begins, and both ranks at once
        started_at_s = time.perf_counter()
        with torch.autocast("cpu", torch.bfloat16) if bf16 else contextlib.nullcontext():
            sums = model(batch)
        reduction.watch()
        ((sums.masked_lm + sums.next_sentence) / (RANKS * batch.num_masked)).backward()
        times = reduction.finish()
        optimizer.step(1e-5)
        steps.append(time.perf_counter() - started_at_s)
        exposed.append(times.exposed_s)
    return {"step": statistics.median(steps[WARM_UP:]), "exposed": statistics.median(exposed[WARM_UP:])}


def time_sum(world: World, options: argparse.Namespace, dtype: torch.dtype) -> float:
    """Return the median seconds in which both ranks sum a tensor of 25 million elements, 100 MB in fp32."""
    flat = torch.ones(SUMMED_BYTES // 4, dtype=dtype)
    seconds = []
    for _ in range(WARM_UP + 2 * options.steps):
        world.sum_numbers([0.0])
        started_at_s = time.perf_counter()
        world.all_reduce_(flat)
        seconds.append(time.perf_counter() - started_at_s)
        flat.fill_(1)
    return statistics.median(seconds[WARM_UP:])


def run_rank(options: argparse.Namespace) -> None:
    """Be one of the ranks; rank 0 prints what it measured."""
    torch.set_num_threads(1)
    prepare_processor(options.precision)
    world = connect(RANKS, 1, options.as_rank, may_use_gpus=False)
    measured = time_steps(world, options)
    measured["sum"] = time_sum(world, options, torch.float32)
    measured["sum fp16"] = time_sum(world, options, torch.float16)
    if world.rank == 0:
        print(json.dumps(measured), flush=True)
    world.close()


def start_ranks(library: str, options: argparse.Namespace) -> Timings:
    """Run two ranks to their end; return rank 0's medians."""
    mpirun = Path(sys.executable).with_name("mpirun")
    command = [str(mpirun), "--bind-to", "none", "--map-by", ":OVERSUBSCRIBE", "-np", str(RANKS)]
    if os.getuid() == 0:
        command.append("--allow-run-as-root")
    if not mpirun.exists():
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)]
        command.append("--no-python")
    settings = ["--steps", str(options.steps), "--preset", options.preset, "--precision", options.precision]
    done = subprocess.run(
        [*command, sys.executable, __file__, "--as-rank", library, *settings],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=1800,
    )
    found: Timings = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))
    return found


def spread(values: list[float], form: Callable[[float], str]) -> str:
    """Return the median, the smallest and the largest."""
    return f"{form(statistics.median(values))} ({form(min(values))} to {form(max(values))})"


def report(rounds: list[dict[str, Timings]], options: argparse.Namespace) -> None:
    """Print a table, its units, and the line that others read."""
    libraries = list(rounds[0])
    rows = {
        "step, s": ("step", 1.0, "{:.3f}"),
        "reduction that nothing hides, s": ("exposed", 1.0, "{:.3f}"),
        "sum of 25 million elements in fp32, ms": ("sum", 1e3, "{:.0f}"),
        "the same in fp16, ms": ("sum fp16", 1e3, "{:.0f}"),
    }
    name = re.search(r"model name\s*: (.*)", read_text("/proc/cpuinfo"))
    print(f"{name[1] if name else platform.machine()}, {os.cpu_count()} cores")
    print(f"| | {' | '.join(libraries)} | torch / horovod |\n|{'---|' * (len(libraries) + 2)}")
    for what, (key, scale, form) in rows.items():
        cells = [spread([scale * one[library][key] for one in rounds], form.format) for library in libraries]
        ratios = [one["torch"][key] / one["horovod"][key] for one in rounds] if len(libraries) == 2 else []
        cells.append(spread(ratios, "{:.2f}".format) if ratios else "")
        print(f"| {what} | {' | '.join(cells)} |")
    print(
        f"seconds of a step, median of {len(rounds)} rounds: {options.preset}, {options.precision}, {RANKS} ranks of "
        f"{ROWS} rows of {LENGTH} tokens, one thread each"
    )
    medians: dict[str, Any] = dict.fromkeys(LIBRARIES, "not-installed")
    for library in libraries:
        medians[library] = f"{statistics.median(one[library]['step'] for one in rounds):.3f}"
    print(f"bench-collectives: horovod={medians['horovod']} torch={medians['torch']}")


def main() -> None:
    """Measure in rounds and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=6, help="that are counted, after two that are not")
    parser.add_argument("--preset", choices=tuple(PRESETS), default="base")
    parser.add_argument("--precision", choices=("bf16", "fp32"), default="bf16")
    parser.add_argument("--as-rank", choices=LIBRARIES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.as_rank is not None:
        run_rank(options)
        return
    has_horovod = importlib.util.find_spec("horovod") is not None
    libraries = LIBRARIES if has_horovod else ("torch",)
    rounds = []
    for number in range(options.rounds):
        in_turn = libraries if number % 2 == 0 else libraries[::-1]
        found = {library: start_ranks(library, options) for library in in_turn}
        rounds.append({library: found[library] for library in libraries})
        told = ", ".join(f"{library} {found[library]['step']:.3f} s" for library in libraries)
        print(f"round {number + 1}: {told}", flush=True)
    report(rounds, options)


if __name__ == "__main__":
    main()
