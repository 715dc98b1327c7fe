"""BERT-base's training step on this machine's processors beside Hugging Face's, in one process tree.

    python benchmarks/trainer/run.py [--rounds 3] [--no-compile] [--no-ranks] [--evaluation-alone]

Both sides train the same rows with dropout 0.1 and a fused AdamW, their steps taken in turns; figures are medians over
rounds of the ratio of neighbours, with the smallest and the largest. The peer is ``transformers``' BertForPreTraining
under bf16 autocast, on rows padded to their full length, with logits at all positions, as its own scripts run it.
Useful work counts real tokens and masked positions alone, by one formula for both sides, and is compared with the rate
of large bf16 products measured in the same rounds. What an evaluation costs is compared with the same forward passes on
batches that are ready in memory. Takes a quarter of an hour on two cores, most of it the peer's.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from transformers import BertConfig, BertForPreTraining

from bert_job.run_config import ModelConfig
from bert_trainer.dataset.shards import ShardFolder
from bert_trainer.dataset.shards.ragged import RaggedSamples
from bert_trainer.model.backends.choice import choose_backend
from bert_trainer.model.backends.cpu.capability import prepare_processor
from bert_trainer.model.backends.cpu.encoder import find
from bert_trainer.model.batch import Batch, make_batch
from bert_trainer.model.bert import Bert
from bert_trainer.optim.optimizer import Optimizer
from bert_trainer.parallel.flat_parameters import FlatParameters
from bert_trainer.parallel.world import SingleRank
from bert_trainer.system.processor import read_flags, read_text
from bert_trainer.training.evaluation import EvaluationSet, evaluate

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/support"))

from whole_configs import model_settings, optimizer_settings, whole_document  # noqa: E402 - after the path

LAYERS, SIZE, HEADS, INNER, ENTRIES = 12, 768, 12, 3072, 30522
ACCUMULATION = 128
"""Micro-batches of a step in NVIDIA's recipe: 8,192 sequences per GPU in micro-batches of 64."""
ROWS = {128: 32, 512: 8}
"""Of a micro-batch: 4,096 padded tokens."""


@dataclass
class Rows:
    """A micro-batch as both sides take it."""

    ours: Batch
    peer: dict[str, torch.Tensor]
    flop: float
    """Of forward and backward pass, counted once for both sides."""

    @property
    def num_rows(self) -> int:
        """Sequences."""
        return self.ours.num_rows


def make_rows(samples: RaggedSamples, length: int) -> Rows:
    """Lay samples out for both sides."""
    batch = make_batch(samples, np.arange(len(samples)))
    rows = batch.num_rows
    ids, labels, mask, segments = (torch.zeros(rows, length, dtype=torch.int64) for _ in range(4))
    labels -= 100
    places = (batch.token_row_N, batch.positions_N)
    ids[places], mask[places], segments[places] = batch.tokens_N, torch.ones_like(batch.tokens_N), batch.segments_N
    masked = (batch.token_row_N[batch.masked_index_M], batch.positions_N[batch.masked_index_M])
    labels[masked] = batch.masked_labels_M
    peer = {
        "input_ids": ids,
        "attention_mask": mask,
        "token_type_ids": segments,
        "labels": labels,
        "next_sentence_label": batch.next_sentence_B,
    }
    return Rows(batch, peer, useful_flop(samples.token_counts, batch.num_masked))


def useful_flop(lengths: np.ndarray, masked: int) -> float:
    """Return 6 P N + 12 L D sum(T^2) + 6 (D^2 + D V) K: P encoder weights, N tokens, T rows' lengths, K predictions."""
    weights = LAYERS * (4 * SIZE * SIZE + 2 * SIZE * INNER)
    head = 6 * (SIZE * SIZE + SIZE * ENTRIES) * masked
    return float(6 * weights * lengths.sum() + 12 * LAYERS * SIZE * (lengths.astype(float) ** 2).sum() + head)


def full_rows(rows: int, length: int, predicted: int) -> RaggedSamples:
    """Draw rows without padding. predicted: positions of each that are to be predicted."""
    rng = np.random.default_rng(1)
    predictions = np.full(rows, predicted)
    positions = np.concatenate([1 + np.sort(rng.permutation(length - 1)[:count]) for count in predictions])
    tokens = rng.integers(1000, ENTRIES, rows * length)
    labels = rng.integers(1000, ENTRIES, predictions.sum())
    lengths = np.full(rows, length)
    return RaggedSamples(
        tokens, lengths, lengths // 2, rng.integers(0, 2, rows, np.int8), predictions, positions, labels
    )


def real_rows(folder: Path, length: int, predictions: int, rows: int) -> list[RaggedSamples]:
    """Return three micro-batches of so many rows drawn from a dataset of real text."""
    shards = ShardFolder.open(
        folder / f"seq_len_{length}_max_pred_{predictions}",
        split="training",
        sequence_length=length,
        max_predictions=predictions,
        vocabulary=None,
    )
    samples = shards.read_ragged(0)
    order = np.random.default_rng(2).permutation(len(samples))
    return [samples.take(np.sort(order[i * rows : (i + 1) * rows])) for i in range(3)]


class Ours:
    """This project's step."""

    def __init__(self, precision: str, config: ModelConfig | None = None, entries: int = ENTRIES) -> None:
        """precision: bf16 or fp32. config: None for BERT-base."""
        config = config or model_settings(
            hidden_size=SIZE, num_hidden_layers=LAYERS, num_attention_heads=HEADS, intermediate_size=INNER
        )
        self.model = Bert(config, entries)
        self.model.initialize(1)
        self.model.use(choose_backend(self.model, "eager", precision))
        self.parameters = FlatParameters(self.model)
        self.optimizer = Optimizer(optimizer_settings(name="adamw"), self.parameters)
        self.is_bf16 = precision == "bf16"
        self.optimizer_s = 0.0

    def step(self, rows: Rows) -> None:
        """Forward, backward, update."""
        self.parameters.gradients.zero_()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.is_bf16):
            sums = self.model(rows.ours, rows.ours.dropout_keys(1, self.optimizer.num_applied))
        (sums.masked_lm / rows.ours.num_masked + sums.next_sentence / rows.num_rows).backward()
        began_at_s = time.perf_counter()
        self.optimizer.step(1e-5)
        self.optimizer_s = time.perf_counter() - began_at_s


class Peer:
    """Hugging Face's step."""

    def __init__(self, precision: str, *, compiled: bool = False, model: torch.nn.Module | None = None) -> None:
        """precision: bf16 or fp32. model: None for BERT-base."""
        config = BertConfig(
            vocab_size=ENTRIES,
            hidden_size=SIZE,
            num_hidden_layers=LAYERS,
            num_attention_heads=HEADS,
            intermediate_size=INNER,
        )
        self.model = model or BertForPreTraining(config)
        self.model.train()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-5, fused=True)
        self.run = torch.compile(self.model) if compiled else self.model
        self.is_bf16 = precision == "bf16"

    def step(self, *batches: Rows) -> None:
        """Forward and backward of every micro-batch, update."""
        self.optimizer.zero_grad(set_to_none=True)
        for rows in batches:
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.is_bf16):
                loss = self.run(**rows.peer).loss
            loss.backward()
        self.optimizer.step()


def seconds(action: Callable[[], object]) -> float:
    """Return how long it takes."""
    began_at_s = time.perf_counter()
    action()
    return time.perf_counter() - began_at_s


def product_rate(precision: str = "bf16") -> float:
    """Return FLOP/s of a large product, the best of three. In fp32 by whichever library is faster here."""
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    a, b = (torch.randn(4096, 4096, dtype=dtype) for _ in range(2))
    ways: list[Callable[[], object]] = [lambda: a @ b]
    if precision == "fp32" and torch.backends.mkldnn.is_available():
        ways.append(lambda: torch.ops.mkldnn._linear_pointwise(a, b, None, "none", [], ""))
    return 2 * 4096**3 / min(seconds(way) for way in ways for _ in range(3))


def spread(values: Sequence[float]) -> str:
    """Return median, smallest and largest."""
    return f"{statistics.median(values):.3g} ({min(values):.3g} to {max(values):.3g})"


def compare(name: str, ours: Ours, peer: Peer, batches: Sequence[Rows], rounds: int) -> tuple[float, list[float]]:
    """Take steps in turns; return the median ratio and our FLOP/s of each round."""
    for rows in batches:
        ours.step(rows)
    peer.step(batches[0])
    ratios, rates, speeds, peer_speeds = [], [], [], []
    for _ in range(rounds):
        own_s = sum(seconds(lambda rows=rows: ours.step(rows)) for rows in batches)  # type: ignore[misc]
        peer_s = sum(seconds(lambda rows=rows: peer.step(rows)) for rows in batches)  # type: ignore[misc]
        own_s = (own_s + sum(seconds(lambda rows=rows: ours.step(rows)) for rows in batches)) / 2  # type: ignore[misc]
        sequences = sum(rows.num_rows for rows in batches)
        ratios.append(peer_s / own_s)
        speeds.append(sequences / own_s)
        peer_speeds.append(sequences / peer_s)
        rates.append(sum(rows.flop for rows in batches) / own_s)
    print(
        f"{name}: {spread(speeds)} sequences/s, peer {spread(peer_speeds)}, ratio {spread(ratios)}, "
        f"useful {statistics.median(rates) / 1e12:.3g} TFLOP/s",
        flush=True,
    )
    return statistics.median(ratios), rates


def build_dataset(folder: Path) -> None:
    """Make shards of both lengths from text that every machine has."""
    command = [sys.executable, "-m", "bert_trainer.dataset", "build", "--text", "builtin:python-docs"]
    options = ["--output", str(folder), "--length", "128:20", "--length", "512:76", "--shards", "1"]
    subprocess.run([*command, *options], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def evaluation_costs(folder: Path, rounds: int, num_samples: int = 128) -> list[float]:
    """Return the ratios of evaluations to the same number of bare forward passes, the two in turns."""
    shards = ShardFolder.open(
        folder / "seq_len_128_max_pred_20",
        split="held_out",
        sequence_length=128,
        max_predictions=20,
        vocabulary=None,
    )
    data = EvaluationSet.of(shards, micro_batch_size=ROWS[128], max_samples=num_samples)
    samples = shards.read_ragged(0, slice(data.first, data.last))
    starts = range(0, len(samples), ROWS[128])
    batches = [make_batch(samples.take(slice(at, at + ROWS[128])), np.arange(ROWS[128])) for at in starts]
    # Without bf16 instructions these products are emulated, and one evaluation takes minutes.
    precision = "bf16" if "avx512_bf16" in read_flags(read_text("/proc/cpuinfo")) else "fp32"
    ours = Ours(precision)

    def evaluation() -> None:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=ours.is_bf16):
            evaluate(ours.model, data, SingleRank(), torch.device("cpu"))

    @torch.no_grad()
    def passes() -> None:
        ours.model.eval()
        with ours.model.backend.step_context(), torch.autocast("cpu", dtype=torch.bfloat16, enabled=ours.is_bf16):
            for batch in batches:
                ours.model(batch)
        ours.model.train()

    evaluation(), passes()
    ratios = []
    for _ in range(rounds):
        # Forth and back, so that a machine that slows down in between slows both.
        whole_s, bare_s = seconds(evaluation), seconds(passes)
        bare_s, whole_s = bare_s + seconds(passes), whole_s + seconds(evaluation)
        ratios.append(whole_s / bare_s)
    print(
        f"evaluation of {len(samples)} sequences, {precision}: {spread(ratios)} of its {len(batches)} forward passes, "
        f"load {os.getloadavg()[0]:.1f}",
        flush=True,
    )
    return ratios


def rank_rates(folder: Path, rounds: int) -> list[float]:
    """Return the ratios of two ranks with one thread each to one process with two, whole runs of the trainer."""
    ratios = []
    for number in range(rounds):
        one = train_rate(folder, folder / f"one-{number}", ranks=1, threads=2)
        two = train_rate(folder, folder / f"two-{number}", ranks=2, threads=1)
        ratios.append(two / one)
    print(f"two ranks: {spread(ratios)} of one process with two threads", flush=True)
    return ratios


def train_rate(dataset: Path, output: Path, *, ranks: int, threads: int) -> float:
    """Train BERT-base some steps at length 128 and return the median sequences/s after the first steps."""
    stage = {
        "kind": "pretrain",
        "name": "phase1",
        "sequence_length": 128,
        "max_predictions_per_sequence": 20,
        "global_batch_size": 64,
        "micro_batch_size": 16,
        "length": {"steps": 5},
        "learning_rate": 1e-5,
        "warmup": {"steps": 1},
        "decay": "linear",
    }
    document = {
        "job": {"name": "bench", "uid": "bench"},
        "output_folder": str(output),
        "world": {"ranks": ranks, "hosts": 1},
        "seed": 7,
        "device": "cpu",
        "precision": "bf16",
        "model": {
            "hidden_size": SIZE,
            "num_hidden_layers": LAYERS,
            "num_attention_heads": HEADS,
            "intermediate_size": INNER,
        },
        "optimizer": {"name": "lamb"},
        "dataset": {"folder": str(dataset)},
        "stages": [stage],
        "checkpoint": {"every_steps": 1000, "keep": 1},
        "logging": {"every_steps": 1, "tensorboard": False},
    }
    file = output.with_suffix(".json")
    file.write_text(json.dumps(whole_document(document)))
    command = [sys.executable, "-m", "bert_trainer", "--config", str(file)]
    if ranks > 1:
        mpirun = Path(sys.executable).with_name("mpirun")
        root = ["--allow-run-as-root"] if os.getuid() == 0 else []
        command = [str(mpirun), *root, "--bind-to", "none", "-np", str(ranks), *command]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"bench-trainer: training with {ranks} rank(s) failed\n{done.stderr[-3000:]}")
    lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    rates = [line["sequences_per_s"] for line in lines if line.get("event") == "progress"]
    return statistics.median(rates[1:])


def main() -> int:
    """Print every comparison and the joint line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--no-compile", action="store_true", help="leave the compiled peer out")
    parser.add_argument("--no-ranks", action="store_true", help="leave the runs of two ranks out")
    parser.add_argument("--evaluation-alone", action="store_true", help="only compare evaluation and forward passes")
    arguments = parser.parse_args()
    names = ("eager", "compile", "of_matmul", "real128", "real512", "fp32", "optimizer_share", "evaluation", "ranks2")
    figures = dict.fromkeys(names, float("nan"))
    prepare_processor("bf16")
    print(find(torch.device("cpu"), torch.bfloat16, SIZE // HEADS).describe(0, "bf16"), flush=True)
    if not arguments.evaluation_alone:
        subprocess.run([sys.executable, str(Path(__file__).with_name("precisions.py"))], check=True)
    with tempfile.TemporaryDirectory(prefix="bench-trainer-") as name:
        folder = Path(name) / "data"
        build_dataset(folder)
        # The most rounds: it is the one figure with a bar of a few percent.
        figures["evaluation"] = statistics.median(evaluation_costs(folder, 3 * arguments.rounds))
        if arguments.evaluation_alone:
            print(f"bench-trainer: evaluation={figures['evaluation']:.3g}")
            return 0
        full = [make_rows(full_rows(ROWS[128], 128, 20), 128)]
        ours, peer = Ours("bf16"), Peer("bf16")
        before = product_rate()
        figures["eager"], rates = compare("length 128, full rows", ours, peer, full, arguments.rounds)
        products = statistics.median([before, product_rate()])
        figures["of_matmul"] = statistics.median(rates) / products
        print(f"large bf16 products: {products / 1e12:.3g} TFLOP/s, of which {figures['of_matmul']:.1%} is useful work")
        micro_s = statistics.median(seconds(lambda: ours.step(full[0])) - ours.optimizer_s for _ in range(3))
        figures["optimizer_share"] = ours.optimizer_s / (ACCUMULATION * micro_s + ours.optimizer_s)
        print(f"optimizer {ours.optimizer_s:.3f} s, micro-batch {micro_s:.3f} s")
        for length, predictions in ((128, 20), (512, 76)):
            batches = [make_rows(samples, length) for samples in real_rows(folder, length, predictions, ROWS[length])]
            padded = 1 - sum(rows.ours.num_tokens for rows in batches) / sum(rows.num_rows * length for rows in batches)
            print(f"real text at {length}: {padded:.0%} padding")
            figures[f"real{length}"], _ = compare(f"length {length}, real text", ours, peer, batches, arguments.rounds)
        if not arguments.no_compile:
            figures["compile"], _ = compare(
                "length 128, full rows, peer compiled", ours, Peer("bf16", compiled=True), full, arguments.rounds
            )
        figures["fp32"], _ = compare("length 128, full rows, fp32", Ours("fp32"), Peer("fp32"), full, arguments.rounds)
        if not arguments.no_ranks:
            figures["ranks2"] = statistics.median(rank_rates(folder, arguments.rounds))
    print("bench-trainer: " + " ".join(f"{key}={value:.3g}" for key, value in figures.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
