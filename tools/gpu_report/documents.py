"""Run configurations of the report's runs, and the trainer as a process that lasts no longer than it may."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gpu_report.dataset import MadeDataset
from whole_configs import whole_document, whole_stage

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Run:
    """One run of the trainer on made data."""

    data: MadeDataset
    layers: int
    hidden: int
    heads: int
    steps: int
    global_batch_size: int
    micro_batch_size: int | str
    """Rows of one pass, or ``auto``."""
    device: str
    precision: str
    learning_rate: float = 1e-3
    attention_dropout: float = 0.1
    report_steps: int = 10
    """Steps of a logging interval."""
    checkpoint_steps: int | None = None
    profile: tuple[int, int] | None = None
    """First and last step to trace."""
    ranks: int = 1

    def with_(self, **changes: Any) -> Run:
        """Return the same with other settings."""
        return replace(self, **changes)

    def document(self, folder: Path) -> Document:
        """Return the run configuration. folder: of its output."""
        stage = {
            "kind": "pretrain",
            "name": "phase",
            "sequence_length": self.data.length,
            "max_predictions_per_sequence": self.data.predictions,
            "global_batch_size": self.global_batch_size,
            "micro_batch_size": self.micro_batch_size,
            "length": {"steps": self.steps},
            "learning_rate": self.learning_rate,
            "warmup": {"steps": self.steps // 10},
        }
        model = {
            "num_hidden_layers": self.layers,
            "hidden_size": self.hidden,
            "num_attention_heads": self.heads,
            "intermediate_size": 4 * self.hidden,
            "max_position_embeddings": 512,
            "vocabulary_pad_multiple": 64,
            "attention_dropout": self.attention_dropout,
        }
        profile = None if self.profile is None else {"first": self.profile[0], "last": self.profile[1]}
        return whole_document(
            {
                "job": {"name": "gpu-report", "uid": "gpu-report"},
                "output_folder": str(folder),
                "if_exists": "Resume",
                "world": {"ranks": self.ranks},
                "collectives": "torch",
                "device": self.device,
                "precision": self.precision,
                "model": model,
                "dataset": {"folder": str(self.data.folder)},
                "profile_steps": profile,
                "stages": [whole_stage(stage)],
                "checkpoint": {"every_steps": self.checkpoint_steps, "keep": 2},
                "logging": {"every_steps": self.report_steps, "tensorboard": False},
            }
        )


def start_trainer(run: Run, folder: Path, *arguments: str, environment: dict[str, str] | None = None) -> Any:
    """Start the trainer on a run; returns its ``Popen``. arguments: of ``gpu_report.trainer_process``."""
    folder.mkdir(parents=True, exist_ok=True)
    configuration = folder.with_name(folder.name + ".json")
    configuration.write_text(json.dumps(run.document(folder)))
    command = [sys.executable, "-m", "gpu_report.trainer_process", *arguments, "--config", str(configuration)]
    return subprocess.Popen(command, env={**os.environ, **(environment or {})})


@contextmanager
def ended(process: subprocess.Popen[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """End a process with the block, however the block ends."""
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def run_trainer(run: Run, folder: Path, *arguments: str, environment: dict[str, str] | None = None) -> int:
    """Run the trainer to its end; return its exit code."""
    with ended(start_trainer(run, folder, *arguments, environment=environment)) as process:
        return int(process.wait())


def read_records(folder: Path, event: str = "progress") -> list[Document]:
    """Return a run's records of one kind so far."""
    from bert_trainer.output.metrics import read_metrics

    return [record for record in read_metrics(folder) if record.get("event") == event]
