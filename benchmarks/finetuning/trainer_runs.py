"""Run configurations of finetune stages, and ``bert-train`` on them."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bert_trainer.output.metrics import read_metrics
from bert_trainer.system.processor import read_flags, read_text

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/support"))

from whole_configs import ADAMW, whole_document  # noqa: E402 - after the path

Document = dict[str, Any]

TINY = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 512}
BASE = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072}
LARGE = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
DISTIL = {**BASE, "architecture": "distilbert", "num_hidden_layers": 6, "objective": "mlm"}


def finetune_stage(name: str, data: Document, **settings: Any) -> Document:
    """Return a finetune stage; ``learning_rate`` and ``warmup`` make its schedule."""
    schedule = {
        "learning_rate": settings.pop("learning_rate"),
        "warmup": settings.pop("warmup", {"proportion": 0.1}),
        "decay": "linear",
        "after_warmup": "continuous",
    }
    stage = {"task": "classification", "optimizer": ADAMW, "run_seeds": [1], "lower_case": True, **settings}
    stage.setdefault("micro_batch_size", stage["global_batch_size"])
    return {"kind": "finetune", "name": name, "data": data, **schedule, **stage}


def table(folder: Path, **columns: str) -> Document:
    """Return the data of a stage: a folder's ``train.tsv`` and ``validation.tsv``."""
    columns = columns or {"text": "text", "label": "label"}
    return {
        "train": str(folder / "train.tsv"),
        "validation": str(folder / "validation.tsv"),
        "columns": columns,
    }


def run_document(output: Path, vocabulary: Path, stages: Sequence[Document], **settings: Any) -> Document:
    """Return a whole run configuration of one process."""
    document = {
        "job": {"name": "bench", "uid": "bench"},
        "output_folder": str(output),
        "seed": 1,
        "device": "cpu",
        "precision": "fp32",
        "optimizer": ADAMW,
        "dataset": {"folder": str(vocabulary.parent), "vocabulary_file": str(vocabulary)},
        "checkpoint": {"every_seconds": 3600, "keep": 1},
        "logging": {"every_steps": 1, "tensorboard": False},
        **settings,
        "stages": [],
    }
    return {**whole_document(document), "stages": list(stages)}


@dataclass(slots=True)
class Trainer:
    """``bert-train`` as a process of its own; ``wait`` returns what it recorded."""

    document: Document
    threads: int
    _process: subprocess.Popen[bytes] = field(init=False)

    def __post_init__(self) -> None:
        output = Path(self.document["output_folder"])
        output.parent.mkdir(parents=True, exist_ok=True)
        file = output.with_suffix(".json")
        file.write_text(json.dumps(self.document))
        with output.with_suffix(".log").open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "bert_trainer", "--config", str(file)],
                env={**os.environ, "OMP_NUM_THREADS": str(self.threads)},
                stdout=log,
                stderr=subprocess.STDOUT,
                # Ctrl-C reaches this process alone, which then ends that one.
                start_new_session=True,
            )

    def wait(self) -> list[Document]:
        """Return the records of the run once it has ended."""
        output = Path(self.document["output_folder"])
        if self._process.wait():
            raise SystemExit(f"{output.name}: bert-train failed\n{output.with_suffix('.log').read_text()[-3000:]}")
        return list(read_metrics(output))

    def stop(self) -> None:
        """End the process if it still runs."""
        if self._process.poll() is None:
            self._process.terminate()
            self._process.wait()


def train(document: Document, threads: int | None = None) -> list[Document]:
    """Run ``bert-train`` and return its records. threads: of its one process; empty: one per core."""
    trainer = Trainer(document, threads or num_cores())
    try:
        return trainer.wait()
    finally:
        trainer.stop()


def result_of(records: Sequence[Document], stage: str) -> Document:
    """Return the record of a stage's end."""
    return next(it for it in records if (it["event"], it.get("stage"), it.get("when")) == ("evaluated", stage, "after"))


def training_rate(records: Sequence[Document], stage: str) -> float:
    """Return sequences/s of the steps of a stage, evaluations excluded, without the first step.

    Every step has a record of its own; the first one allocates memory.
    """
    rates = [it["sequences_per_s"] for it in records if (it["event"], it.get("stage")) == ("progress", stage)]
    return statistics.harmonic_mean(rates[1:] or rates)


def stage_seconds(records: Sequence[Document], stage: str) -> float:
    """Return the seconds of a whole stage: steps, evaluations, best weights, predictions."""
    return float(next(it for it in records if (it["event"], it.get("stage")) == ("stage_finished", stage))["seconds"])


def num_cores() -> int:
    """Return the cores that this process may use."""
    return len(os.sched_getaffinity(0))


def describe_machine() -> str:
    """Name the processor, its cores, whether it computes bf16 itself, and who else uses it."""
    text = read_text("/proc/cpuinfo")
    names = [line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name")]
    kind = "with" if has_bf16() else "without"
    return f"{num_cores()} cores of {names[0] if names else 'a processor'}, {kind} bf16 instructions, load {load():.1f}"


def has_bf16() -> bool:
    """Return whether the processor multiplies bf16 itself; otherwise it is emulated, and slower than fp32."""
    return bool({"avx512_bf16", "amx_bf16"} & set(read_flags(read_text("/proc/cpuinfo"))))


def load() -> float:
    """Return the processes that wanted to run in the last minute, on average."""
    return os.getloadavg()[0]


def spread(values: Sequence[float]) -> str:
    """Return median, smallest and largest."""
    return f"{statistics.median(values):.3g} ({min(values):.3g} to {max(values):.3g})"
