"""The output folder of a run that nobody has trained: files as a trainer writes them, with figures that can be checked.

Two pretrain stages and an evaluation; attempt 2 of the job trained, was killed in phase 1, and attempt 3 went on.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from tiny_run import TWO_LAYERS, pretrain_stage, run_document
from whole_configs import whole_stage

Record = dict[str, Any]

EVALUATE = {"kind": "evaluate", "sequence_length": 32, "max_predictions_per_sequence": 5}
ENVIRONMENT = {"processor": "A processor", "world_size": 2, "precision": "fp32", "versions": {"torch": "2.15.0"}}
MASK = {"before": "The file is", "after": "again.", "truth": "closed", "guesses": [["open", 0.5], ["closed", 0.25]]}


def document(folder: Path, **changes: Any) -> dict[str, Any]:
    """Return the run configuration."""
    stages = [pretrain_stage("phase1"), pretrain_stage("phase2"), whole_stage(EVALUATE)]
    return run_document(folder, folder / "data", **{"model": TWO_LAYERS, "stages": stages, **changes})


def progress(stage: str, step: int, **changes: Any) -> Record:
    """Return the record of an interval of 2 seconds."""
    record: Record = {
        "event": "progress",
        "stage": stage,
        "step": step,
        "steps": 40,
        "loss": 9.0 * math.exp(-step / 30),
        "mlm_accuracy": 0.2 * (1 - math.exp(-step / 30)),
        "learning_rate": 1e-3 * step / 40,
        "gradient_norm": 1.0 + 1.0 / step,
        "interval_s": 2.0,
        "interval_sequences": 128,
        "interval_tokens": 10_000,
        "real_tokens_per_s": 5000.0,
        "data_wait_share": 0.125,
        "memory_bytes": 1.5e9,
    }
    return {**record, **changes}


def records() -> list[Record]:
    """Return the records of both attempts."""
    first = [progress("phase1", step) for step in range(2, 22, 2)]
    then: list[Record] = [
        {"event": "resumed", "stage": "phase1", "step": 20, "path": "p", "message": "Resumed, bit-identical"}
    ]
    then += [progress("phase1", step) for step in range(22, 42, 2)]
    then += [{"event": "checkpoint", "stage": "phase1", "step": 40, "path": "p", "seconds": 0.5}]
    then += [progress("phase2", step) for step in range(2, 42, 2)]
    evaluated = {"event": "evaluated", "stage": "evaluate", "samples": 1234, "unigram_baseline": 0.054}
    then += [
        {**evaluated, "when": "before", "mlm_accuracy": 0.001, "nsp_accuracy": 0.5, "mlm_loss": 9.0},
        {
            **evaluated,
            "when": "after",
            "mlm_accuracy": 0.137,
            "nsp_accuracy": 0.619,
            "nsp_baseline": 0.531,
            "mlm_loss": 5.5,
        },
        {"event": "succeeded", "message": "tiny is trained"},
    ]
    of_attempt = [{"attempt_uid": "uid-1", "attempt": 2, "run_s": 30.0, "cpu_s": 55.0}]
    of_attempt += [{"attempt_uid": "uid-1", "attempt": 3, "run_s": 90.0, "cpu_s": 170.0}]
    return [{**record, **of_attempt[0]} for record in first] + [{**record, **of_attempt[1]} for record in then]


def write_run(folder: Path, told: list[Record] | None = None, **changes: Any) -> Path:
    """Write the folder and return it. told: records in place of ``records()``; changes: of the run configuration."""
    (folder / "data").mkdir(parents=True)
    (folder / "run-config.json").write_text(json.dumps(document(folder, **changes)))
    lines = [json.dumps(record) for record in (records() if told is None else told)]
    (folder / "metrics.jsonl").write_text("".join(f"{line}\n" for line in lines))
    (folder / "environment.json").write_text(json.dumps(ENVIRONMENT))
    (folder / "filled-masks.json").write_text(json.dumps({"format": 1, "masks": [MASK]}))
    dataset = {
        "source": "a text",
        "corpus_sha256": "ab" * 32,
        "vocabulary_sha256": "cd" * 32,
        "vocabulary_entries": 4096,
        "counts": {"documents_read": 560, "duplicates_dropped": 7, "tokens_training": 500_000},
        "lengths": [{"sequence_length": 32, "max_predictions": 5, "samples_training": 9000, "training": {"a": 9000}}],
        "seconds": 12.5,
    }
    (folder / "data" / "dataset.json").write_text(json.dumps(dataset))
    files = {"training_0000.hdf5": {"rows": 9000, "bytes": 99, "content": "1234"}}
    shards = {"format": 1, "stages": {"phase1": {"folder": "s", "files": files}}}
    (folder / "shards.json").write_text(json.dumps(shards))
    return folder
