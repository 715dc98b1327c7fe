"""A training step of BERT-base's layers at every precision of CPUs, one line each: how fast, and by which kernel.

    python benchmarks/trainer/precisions.py [--layers 2] [--rows 8]

Each precision runs in a process of its own, since oneDNN reads its cap once; the cap is the one that the operator sets.
A precision that the processor refuses is said to be refused, and one that it lacks instructions for to be emulated.
Part of ``make bench-trainer``.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import torch

from bert_trainer.dataset.shards.ragged import RaggedSamples
from bert_trainer.errors import UnsupportedPrecision
from bert_trainer.model.backends.cpu.capability import prepare_processor
from bert_trainer.model.backends.processor import ask_kernel
from bert_trainer.model.batch import make_batch
from bert_trainer.model.bert import Bert
from bert_trainer.system.processor import read_model_name, read_text

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests/support"))

from whole_configs import model_settings  # noqa: E402 - after the path

PRECISIONS = ("fp32", "avx-fp32", "bf32", "bf16", "fp16")
CAPS = {"fp32": "AVX512_CORE_AMX", "bf32": "AVX512_CORE_AMX", "bf16": "AVX512_CORE_AMX", "fp16": "AVX512_CORE_AMX_FP16"}
"""As the operator's render/processors.py sets them; none for avx-fp32."""
TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
LENGTH, PREDICTIONS, ENTRIES = 128, 20, 30522


def draw_rows(rows: int) -> RaggedSamples:
    """Return full rows, which need no padding."""
    rng = np.random.default_rng(1)
    positions = np.concatenate([1 + np.sort(rng.permutation(LENGTH - 1)[:PREDICTIONS]) for _ in range(rows)])
    lengths = np.full(rows, LENGTH)
    return RaggedSamples(
        rng.integers(1000, ENTRIES, rows * LENGTH),
        lengths,
        lengths // 2,
        rng.integers(0, 2, rows, np.int8),
        np.full(rows, PREDICTIONS),
        positions,
        rng.integers(1000, ENTRIES, rows * PREDICTIONS),
    )


def measure(precision: str, layers: int, rows: int) -> str:
    """Return the sequences/s of forward and backward passes, and what computed them."""
    try:
        warning = prepare_processor(precision)
    except UnsupportedPrecision as refused:
        return f"refused: {refused}".splitlines()[0]
    if warning:
        rows = max(1, rows // 8)  # emulated: a rate for comparison, not worth minutes
    model = Bert(
        model_settings(hidden_size=768, num_hidden_layers=layers, num_attention_heads=12, intermediate_size=3072),
        ENTRIES,
    )
    model.initialize(1)
    batch = make_batch(draw_rows(rows), np.arange(rows))
    times_s = []
    for step in range(2 if warning else 4):
        began_at_s = time.perf_counter()
        dtype = TYPES.get(precision, torch.bfloat16)
        with torch.autocast("cpu", dtype=dtype, enabled=precision in TYPES):
            sums = model(batch, batch.dropout_keys(1, step))
        (sums.masked_lm / batch.num_masked + sums.next_sentence / rows).backward()
        times_s.append(time.perf_counter() - began_at_s)
    emulated = ", emulated" if warning else ""
    return f"{rows / statistics.median(times_s[1:]):.3g} sequences/s by {ask_kernel(precision)}{emulated}"


def main() -> int:
    """Print a line for every precision."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=2, help="of 12; default: %(default)s")
    parser.add_argument("--rows", type=int, default=8, help="of 128 tokens; default: %(default)s")
    parser.add_argument("--only", choices=PRECISIONS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.only:
        print(measure(arguments.only, arguments.layers, arguments.rows))
        return 0
    name = read_model_name(read_text("/proc/cpuinfo"))
    print(f"precisions on {name}, {arguments.layers} of BERT-base's 12 layers:", flush=True)
    for precision in PRECISIONS:
        cap = {"DNNL_MAX_CPU_ISA": CAPS[precision]} if precision in CAPS else {}
        command = [sys.executable, __file__, "--only", precision]
        command += ["--layers", str(arguments.layers), "--rows", str(arguments.rows)]
        done = subprocess.run(command, env={**os.environ, **cap}, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"precisions: {precision} failed\n{done.stderr[-2000:]}")
        print(f"  {precision}: {done.stdout.strip()}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
