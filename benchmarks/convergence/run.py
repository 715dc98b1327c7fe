"""What two cores learn within an hour, beside the published curve: ``make bench-convergence``.

Trains ``job.yaml`` on the docstrings of everything that requirements.lock installs, then prints one line of
figures and draws ``docs/images/convergence.png``. Not a test: it takes an hour and asserts nothing.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
from installed_docs import write_installed_docs

from bert_trainer.config.checks import load_run_config
from bert_trainer.dataset.shards import ShardFolder, find_shard_folder
from bert_trainer.output.metrics import read_metrics

HERE = Path(__file__).parent
TEXT, OUTPUT, PICTURE = Path("runs/convergence-text"), Path("runs/convergence"), Path("docs/images/convergence.png")

# Read off NVIDIA's published plot of phase 1 (BERT-large, batches of 65,536): step and loss.
PUBLISHED_BATCH = 65_536
PUBLISHED = (
    (1, 11.0), (200, 7.8), (400, 7.2), (650, 6.4), (1000, 3.6), (1500, 2.5), (2000, 2.05), (3000, 1.75),
    (5000, 1.5), (7038, 1.4),
)  # fmt: skip

PLATEAU_MARGIN = 0.9
"""The plateau counts as left where the masked-LM loss stays below this share of the unigram loss."""


def main() -> int:
    """Return the exit code of the job, or 0."""
    if not TEXT.exists():
        write_installed_docs(TEXT)
    finished = subprocess.run(
        [str(Path(sys.executable).with_name("bert-operator")), "local", str(HERE / "job.yaml")], check=False
    )
    if finished.returncode != 0:
        return finished.returncode
    intervals = [r for r in read_metrics(OUTPUT) if r["event"] == "progress" and r.get("loss") is not None]
    samples = np.array([int(r["step"] or 0) for r in intervals]) * _global_batch()
    losses = np.array([float(r["mlm_loss"] or 0) for r in intervals])
    unigram = _unigram_loss()
    report = json.loads((OUTPUT / "report.json").read_text())
    _draw(samples, np.array([float(r["loss"] or 0) for r in intervals]), unigram, report["seconds"] / 60)
    print(_figures(report, samples, losses, unigram))
    return 0


def _global_batch() -> int:
    stage = next(stage for stage in load_run_config(OUTPUT / "run-config.json").stages if stage.kind == "pretrain")
    return stage.global_batch_size


def _unigram_loss() -> float:
    """Return the held-out cross-entropy, in nats, of naming tokens by their frequency in training."""
    folder = find_shard_folder(OUTPUT / "data", 128, 20)
    labels: dict[str, np.ndarray] = {}
    for split in ("training", "held_out"):
        shards = ShardFolder.open(folder, split=split, sequence_length=128, max_predictions=20, vocabulary=None)
        parts = [shards.read_ragged(number) for number in range(len(shards.rows))]
        labels[split] = np.concatenate([part.masked_lm_ids for part in parts])
    entries = int(max(part.max() for part in labels.values())) + 1
    counts = np.bincount(labels["training"], minlength=entries) + 1.0
    return float(-np.log(counts / counts.sum())[labels["held_out"]].mean())


def _figures(report: dict[str, Any], samples: np.ndarray, losses: np.ndarray, unigram: float) -> str:
    above = np.nonzero(losses > PLATEAU_MARGIN * unigram)[0]
    left = int(samples[above[-1] + 1]) if above[-1] + 1 < len(samples) else None
    held_out, stage = report["heldOut"], report["stages"][0]
    text_mb = sum(path.stat().st_size for path in TEXT.glob("*.txt")) / 1e6
    return (
        f"bench-convergence: minutes={report['seconds'] / 60:.1f} cpu_minutes={report['cpuSeconds'] / 60:.1f} "
        f"text_mb={text_mb:.1f} samples={samples[-1]} samples_per_s={stage['samplesPerSecond']:.1f} "
        f"mlm_loss_first={losses[0]:.2f} unigram_loss={unigram:.2f} mlm_loss_last={losses[-10:].mean():.2f} "
        f"left_plateau_at_samples={left} held_out_mlm_loss={held_out['maskedLmLoss']:.2f} "
        f"held_out_accuracy={held_out['maskedLmAccuracy']:.3f} unigram_baseline={held_out['unigramBaseline']:.3f} "
        f"nsp_accuracy={held_out['nextSentenceAccuracy']:.3f}"
    )


def _draw(samples: np.ndarray, losses: np.ndarray, unigram: float, minutes: float) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    FigureCanvasAgg(figure)
    published, ours = figure.subplots(1, 2, sharey=True)
    steps, values = zip(*PUBLISHED, strict=True)
    published.plot(np.array(steps) * PUBLISHED_BATCH, values, marker="o")
    published.set(title="published: BERT-large, phase 1", xlabel="sequences", ylabel="loss, nats", xscale="log")
    ours.plot(samples, losses)
    ours.axhline(unigram + np.log(2), color="0.5", linestyle="--", label="unigram + chance")
    ours.set(title=f"here: 4 layers x 256, {minutes:.0f} minutes on two cores", xlabel="sequences", xscale="log")
    ours.legend()
    for axes in (published, ours):
        axes.grid(alpha=0.3)
    PICTURE.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(PICTURE, dpi=110)


if __name__ == "__main__":
    sys.exit(main())
