"""ModernBERT-base's training step on this machine's processors beside Hugging Face's, in one process tree.

    python benchmarks/trainer/modernbert.py [--rounds 3] [--no-compile] [--no-peer] [--precision fp32]

A step takes one micro-batch of full rows of 512 tokens, or three of rows of real text of up to 1,024, some 5,000 real
tokens in all: 30 % of them masked, no dropout, a fused AdamW. Both sides take the same rows in turns; figures are
medians over rounds, with the smallest and the largest. Useful work counts real tokens, masked positions and pairs of
tokens inside a layer's window alone, and is compared with the rate of large products of the same precision measured in
the same rounds. The peer is ``transformers``' ModernBertForMaskedLM with its default attention, on padded rows, with
logits at all positions, as its own scripts run it. Part of ``make bench-trainer``.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import ModernBertConfig, ModernBertForMaskedLM

from bert_job.model import ModelSpec
from bert_job.resolve import resolve_model
from bert_job.run_config import ModelConfig
from bert_trainer.checkpoints.huggingface_export import encoder_settings
from bert_trainer.model.backends.cpu.capability import prepare_processor
from bert_trainer.model.bert import Bert
from bert_trainer.system.processor import read_flags, read_text
from run import Ours, Peer, Rows, full_rows, make_rows, product_rate, real_rows, seconds, spread

ENTRIES, SHARE = 50_368, 0.3
ROWS = {512: 8, 1024: 4}
"""Of a micro-batch: 4,096 padded tokens."""


def useful_flop(config: ModelConfig, lengths: np.ndarray, masked: int) -> float:
    """Return 6 P N + 12 D S + 6 (D^2 + D V) K: P encoder weights, N tokens, S pairs of all layers, K predictions."""
    width, layers = config.hidden_size, config.num_hidden_layers
    weights = layers * (4 * width**2 + 3 * width * config.intermediate_size)
    pairs = 0
    for number in range(layers):
        reach = config.attention_window // 2 if number % config.global_attention_every else int(lengths.max())
        for length in lengths:
            places = np.arange(length)
            pairs += int((np.minimum(places + reach, length - 1) - np.maximum(places - reach, 0) + 1).sum())
    return float(6 * weights * lengths.sum() + 12 * width * pairs + 6 * (width**2 + width * ENTRIES) * masked)


class ModernOurs(Ours):
    """This project's step."""

    def step(self, *batches: Rows) -> None:
        """Forward and backward of every micro-batch, update."""
        self.parameters.gradients.zero_()
        with (
            self.model.backend.step_context(),
            torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.is_bf16),
        ):
            for rows in batches:
                sums = self.model(rows.ours, None)
                (sums.masked_lm / rows.ours.num_masked).backward()
        self.optimizer.step(1e-5)


def make_peer(config: ModelConfig, precision: str, *, compiled: bool = False) -> Peer:
    """Return Hugging Face's step. precision: bf16 or fp32."""
    with torch.device("meta"):
        settings = encoder_settings(Bert(config, ENTRIES))
    return Peer(precision, compiled=compiled, model=ModernBertForMaskedLM(ModernBertConfig(**settings)))


def rows_of(config: ModelConfig, folder: Path, length: int) -> list[Rows]:
    """Return micro-batches: full rows of 512, or rows of real text of up to 1,024 tokens."""
    samples = [full_rows(ROWS[512], 512, round(SHARE * 512))] if length == 512 else real_rows(folder, length, 307, 4)
    found = []
    for some in samples:
        rows = make_rows(some, length)
        for name in ("token_type_ids", "next_sentence_label"):
            del rows.peer[name]
        rows.flop = useful_flop(config, some.token_counts, rows.ours.num_masked)
        found.append(rows)
    return found


def compare(
    name: str, sides: dict[str, Any], batches: list[Rows], precision: str, rounds: int
) -> dict[str, list[float]]:
    """Take steps in turns with large products; return every side's useful work as a share of their rate."""
    for side in sides.values():
        side.step(*batches)
    shares: dict[str, list[float]] = {side: [] for side in sides}
    for _ in range(rounds):
        before = product_rate(precision)
        times = {side: seconds(lambda own=own: own.step(*batches)) for side, own in sides.items()}  # type: ignore[misc]
        rate = (before + product_rate(precision)) / 2
        for side, taken_s in times.items():
            shares[side].append(sum(rows.flop for rows in batches) / taken_s / rate)
    print(
        f"{name}, {precision}, of {rate / 1e9:.4g} GFLOP/s of large products: "
        + ", ".join(f"{side} {spread(values)}" for side, values in shares.items()),
        flush=True,
    )
    return shares


def main() -> int:
    """Print every comparison and the joint line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--no-compile", action="store_true", help="leave the compiled peer out")
    parser.add_argument("--no-peer", action="store_true", help="measure this project's step alone")
    fast = {"amx_bf16", "avx512_bf16"} & read_flags(read_text("/proc/cpuinfo"))
    parser.add_argument("--precision", choices=("bf16", "fp32"), default="bf16" if fast else "fp32")
    arguments = parser.parse_args()
    precision = arguments.precision
    prepare_processor(precision)
    config = resolve_model(ModelSpec(preset="modernbert-base"), lambda path: path)
    assert isinstance(config, ModelConfig), "presets have sizes"
    ours = ModernOurs(precision, config, ENTRIES)
    print(ours.model.backend.describe(0, precision), flush=True)
    sides: dict[str, Any] = {"ours": ours}
    if not arguments.no_peer:
        sides["eager"] = make_peer(config, precision)
    if not (arguments.no_peer or arguments.no_compile):
        sides["compile"] = make_peer(config, precision, compiled=True)
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="bench-trainer-") as name:
        command = [sys.executable, "-m", "bert_trainer.dataset", "build", "--text", "builtin:python-docs"]
        options = ["--output", name, "--length", "1024:307", "--shards", "1"]
        subprocess.run([*command, *options], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for length, rows, suffix in ((512, "full rows of 512", ""), (1024, "real text of up to 1,024", "_real1024")):
            shares = compare(rows, sides, rows_of(config, Path(name), length), precision, arguments.rounds)
            figures[f"of_matmul{suffix}"] = statistics.median(shares.pop("ours"))
            for side, values in shares.items():
                figures[f"{side}{suffix}"] = figures[f"of_matmul{suffix}"] / statistics.median(values)
    print("bench-trainer: " + " ".join(f"modernbert_{key}={value:.3g}" for key, value in figures.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
