"""Fine-tuning's speed beside transformers' Trainer on this machine's processors: ``make bench-finetune-speed``.

    python benchmarks/finetuning/speed.py [--rounds 3] [--rows 256] [--quick]

BERT-base with random weights is trained on the same pairs of texts with MRPC's lengths, batches of 32, dropout 0.1,
AdamW and one epoch, in processes of their own with the same threads: ``bert-train`` before and after the Trainer with
dynamic padding, then after the Trainer with padding to 128, so that both neighbours of a peer are ours. Both sides
evaluate at the end of the epoch and keep the best weights. A ratio is the peer's time by ours; the figures are medians
over rounds with the smallest and the largest. ``ratio_dynamic`` and ``ratio_padded`` compare steps and the loading of
their batches, without evaluation; whole runs are compared beside them, and the processor time of both processes, start
included, which other programs on the machine disturb least. The first step of every run is left out.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from generated import MRPC_LENGTHS, draw_lengths, write_rows, write_word_vocabulary
from trainer_runs import (
    BASE,
    TINY,
    Document,
    describe_machine,
    finetune_stage,
    has_bf16,
    load,
    num_cores,
    run_document,
    spread,
    stage_seconds,
    table,
    train,
    training_rate,
)

BATCH, LENGTH, ENTRIES = 32, 128, 30522
LEARNING_RATE = 2e-5
KINDS = ("training", "whole", "processor")


@dataclass(frozen=True, slots=True)
class Measured:
    """One training run."""

    training: float
    """Sequences per second of steps alone."""
    whole: float
    """Sequences per second of the run with its evaluation and the weights that it keeps."""
    processor: float
    """Sequences per second of processor time of the process, its start included."""


@dataclass
class Sides:
    """Runs both sides on the same files."""

    folder: Path
    rows: int
    precision: str
    model: Document
    threads: int = field(default_factory=num_cores)
    _runs: int = 0

    def write_data(self) -> None:
        """Write vocabulary and tables, and print the lengths."""
        write_word_vocabulary(self.folder / "vocab.txt", ENTRIES)
        for name, rows, seed in (("train", self.rows, 1), ("validation", BATCH, 2)):
            lengths = draw_lengths(MRPC_LENGTHS, rows, seed)
            write_rows(self.folder / f"{name}.tsv", lengths, pairs=True, vocabulary_size=ENTRIES, seed=seed)
            print(
                f"{name}: {rows} pairs, word pieces: mean {statistics.mean(lengths):.1f}, median "
                f"{statistics.median(lengths):.0f}, {min(lengths)} to {max(lengths)}",
                flush=True,
            )

    def ours(self) -> Measured:
        """Train with ``bert-train``."""
        self._runs += 1
        stage = finetune_stage(
            "mrpc",
            table(self.folder, text="text", text_pair="pair", label="label"),
            start_from="random",
            sequence_length=LENGTH,
            global_batch_size=BATCH,
            learning_rate=LEARNING_RATE,
            warmup={"steps": 0},
            epochs=1,
        )
        document = run_document(
            self.folder / f"ours-{self._runs}",
            self.folder / "vocab.txt",
            [stage],
            model=self.model,
            precision=self.precision,
        )
        before_s = _children_cpu_s()
        records = train(document, self.threads)
        used_s = _children_cpu_s() - before_s
        return Measured(training_rate(records, "mrpc"), self.rows / stage_seconds(records, "mrpc"), self.rows / used_s)

    def peer(self, *, is_padded: bool) -> Measured:
        """Train with transformers' Trainer."""
        self._runs += 1
        settings = {
            "vocabulary": str(self.folder / "vocab.txt"),
            "vocabulary_size": ENTRIES,
            "train": str(self.folder / "train.tsv"),
            "validation": str(self.folder / "validation.tsv"),
            "output": str(self.folder / f"peer-{self._runs}"),
            "model": self.model,
            "precision": self.precision,
            "threads": self.threads,
            "batch": BATCH,
            "length": LENGTH,
            "epochs": 1,
            "learning_rate": LEARNING_RATE,
            "is_padded": is_padded,
            "seed": self._runs,
        }
        file = self.folder / f"peer-{self._runs}.json"
        file.write_text(json.dumps(settings))
        command = [sys.executable, str(Path(__file__).with_name("peer.py")), str(file)]
        before_s = _children_cpu_s()
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"bench-finetune-speed: the peer failed\n{done.stderr[-3000:]}")
        found = json.loads(done.stdout.splitlines()[-1])
        steps_s = found["steps_s"]
        used_s = _children_cpu_s() - before_s
        return Measured((self.rows - BATCH) / sum(steps_s[1:]), self.rows / found["whole_s"], self.rows / used_s)


def _children_cpu_s() -> float:
    """Return the processor time of all processes that were waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def compare(sides: Sides, rounds: int) -> dict[str, float]:
    """Take turns and print the figures of one precision."""
    ratios: dict[str, list[float]] = {}
    rates: dict[str, list[float]] = {}
    for number in range(rounds):
        before, dynamic, between, padded, after = (
            sides.ours(),
            sides.peer(is_padded=False),
            sides.ours(),
            sides.peer(is_padded=True),
            sides.ours(),
        )
        for name, peer, own in (("dynamic", dynamic, (before, between)), ("padded", padded, (between, after))):
            for what in KINDS:
                ours = statistics.harmonic_mean([getattr(it, what) for it in own])
                ratios.setdefault(f"{name} {what}", []).append(ours / getattr(peer, what))
                rates.setdefault(f"{name} {what}", []).append(getattr(peer, what))
                rates.setdefault(f"ours {what}", []).append(ours)
        print(
            f"round {number + 1}: "
            + ", ".join(f"{name} {values[-1]:.2f}" for name, values in ratios.items())
            + f", load {load():.1f}",
            flush=True,
        )
    for what in KINDS:
        print(f"{sides.precision}, {what}: ours {spread(rates[f'ours {what}'])} sequences/s")
        for name in ("dynamic", "padded"):
            rate, ratio = spread(rates[f"{name} {what}"]), spread(ratios[f"{name} {what}"])
            print(f"{sides.precision}, {what}: Trainer, {name} padding, {rate} sequences/s, ratio {ratio}")
    dynamic = ratios["dynamic training"]
    return {
        "dynamic": statistics.median(dynamic),
        "padded": statistics.median(ratios["padded training"]),
        "whole_dynamic": statistics.median(ratios["dynamic whole"]),
        "whole_padded": statistics.median(ratios["padded whole"]),
        "cpu_dynamic": statistics.median(ratios["dynamic processor"]),
        "cpu_padded": statistics.median(ratios["padded processor"]),
        "spread": max(dynamic) - min(dynamic),
    }


def main() -> int:
    """Print every comparison and the joint line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=256, help="pairs of an epoch")
    parser.add_argument("--quick", action="store_true", help="a rehearsal: a tiny model and one round")
    arguments = parser.parse_args()
    print(describe_machine(), flush=True)
    model, rounds = (TINY, 1) if arguments.quick else (BASE, arguments.rounds)
    # Emulated, bf16 products say nothing about a processor that has them.
    found = {}
    for precision in ("fp32", "bf16") if has_bf16() else ("fp32",):
        with tempfile.TemporaryDirectory(prefix="bench-finetune-speed-") as name:
            sides = Sides(Path(name), arguments.rows, precision, model)
            sides.write_data()
            found[precision] = compare(sides, rounds)
    line = " ".join(f"{name}={found['fp32'][key]:.2f}" for name, key in _FIGURES.items())
    if "bf16" in found:
        line += f" ratio_dynamic_bf16={found['bf16']['dynamic']:.2f} ratio_padded_bf16={found['bf16']['padded']:.2f}"
    print(f"bench-finetune-speed: {line}")
    return 0


_FIGURES = {
    "ratio_dynamic": "dynamic",
    "ratio_padded": "padded",
    "spread": "spread",
    "whole_dynamic": "whole_dynamic",
    "whole_padded": "whole_padded",
    "cpu_dynamic": "cpu_dynamic",
    "cpu_padded": "cpu_padded",
}


if __name__ == "__main__":
    sys.exit(main())
