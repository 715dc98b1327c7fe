"""Data wait share: the part of a training run's time that it waits for batches.

Trains on generated shards in the default layout with ``bert-train`` on one rank, and reads ``data_wait_share`` from its
metrics. On a CPU the model is the smallest published one (BERT-tiny, 2 layers x 128: Turc et al. 2019), which consumes
the most samples per second; on a GPU it is BERT-large. The corpus is small, so its shards are read again every few
steps, as often per sample as those of a large one. The first interval is left out, since nothing was prefetched for it.
The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from loading import ENTRIES, draw_samples

from bert_trainer.dataset.shards import WRITTEN_LAYOUTS, shard_folder_name, write_shard
from bert_trainer.dataset.tokens.wordpiece import SPECIAL_TOKENS
from bert_trainer.output.metrics import read_metrics

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/support"))

from whole_configs import whole_document  # noqa: E402 - after the path

LENGTH, PREDICTIONS = 128, 20
SHARDS, ROWS_PER_SHARD = 4, 512
_EVERY_STEPS = 5
MODELS: dict[str, dict[str, int]] = {
    "tiny": {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 512},
    "large": {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096},
}


def main() -> int:
    """Train, then print the wait share."""
    on_gpu = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS, default="large" if on_gpu else "tiny", help="(%(default)s)")
    parser.add_argument("--steps", type=int, default=150, help="of training (%(default)s)")
    parser.add_argument("--batch", type=int, default=64, help="sequences per step (%(default)s)")
    parser.add_argument("--layout", choices=WRITTEN_LAYOUTS, default="compact", help="of the shards (%(default)s)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _write_dataset(folder / "data", arguments.layout)
        config = _configuration(folder, arguments, on_gpu=on_gpu)
        (folder / "run.json").write_text(json.dumps(config))
        command = [sys.executable, "-m", "bert_trainer", "--config", str(folder / "run.json")]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        records = [record for record in read_metrics(folder / "run") if record["event"] == "progress"]
    first, *others = ({name: float(value or 0) for name, value in _numbers(record).items()} for record in records)
    seconds = sum(record["interval_s"] for record in others)
    waited_s = sum(record["interval_s"] * record["data_wait_share"] for record in others)
    figures = {
        "wait_share": waited_s / seconds,
        "first_interval_wait_s": first["interval_s"] * first["data_wait_share"],
        "training_samples_per_s": sum(record["interval_sequences"] for record in others) / seconds,
        "training_s": seconds,
        "load_average": os.getloadavg()[0],
    }
    print(f"{arguments.model}, {arguments.layout}: waited {waited_s:.3f} s of {seconds:.1f} s", flush=True)
    print(json.dumps({name: float(f"{value:.4g}") for name, value in figures.items()}))
    return 0


def _numbers(record: dict[str, Any]) -> dict[str, Any]:
    return {name: record[name] for name in ("interval_s", "data_wait_share", "interval_sequences")}


def _write_dataset(root: Path, layout: Any) -> None:
    folder = root / shard_folder_name(LENGTH, PREDICTIONS)
    folder.mkdir(parents=True)
    words = (f"w{number}" for number in range(ENTRIES - len(SPECIAL_TOKENS)))
    (root / "vocab.txt").write_text("\n".join([*SPECIAL_TOKENS, *words]) + "\n")
    samples = draw_samples(SHARDS * ROWS_PER_SHARD, LENGTH, PREDICTIONS)
    for number in range(SHARDS):
        rows = samples.take(slice(number * ROWS_PER_SHARD, (number + 1) * ROWS_PER_SHARD))
        write_shard(
            folder / f"training_{number}.hdf5",
            rows,
            vocabulary_sha256=None,
            generator_version=None,
            layout=layout,
            shape=(LENGTH, PREDICTIONS),
        )


def _configuration(folder: Path, arguments: argparse.Namespace, *, on_gpu: bool) -> dict[str, Any]:
    document = {
        "job": {"name": "waiting", "uid": "bench"},
        "output_folder": str(folder / "run"),
        "device": "auto",
        "precision": "bf16" if on_gpu else "fp32",
        "model": MODELS[arguments.model],
        "dataset": {"folder": str(folder / "data")},
        "stages": [
            {
                "kind": "pretrain",
                "name": "phase1",
                "sequence_length": LENGTH,
                "max_predictions_per_sequence": PREDICTIONS,
                "global_batch_size": arguments.batch,
                "micro_batch_size": min(64, arguments.batch),
                "length": {"steps": arguments.steps},
                "learning_rate": 1e-4,
                "warmup": {"steps": 10},
                "decay": "linear",
            }
        ],
        "checkpoint": {},
        "logging": {"every_steps": _EVERY_STEPS, "tensorboard": False},
    }
    return whole_document(document)


if __name__ == "__main__":
    sys.exit(main())
