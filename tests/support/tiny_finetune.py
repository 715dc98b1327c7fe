"""A task small enough to learn in a second: single texts, and a rule that was planted in them.

A text is labelled ``yes`` if the word w5 is in it. Its words are those of the toy vocabulary (``tiny_run``).
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from tiny_run import run_document, write_vocabulary
from whole_configs import whole_stage

SEQUENCE_LENGTH = 16
TRAIN_ROWS = 50


def write_task(
    folder: Path, *, train: int = TRAIN_ROWS, validation: int = 24, test: int = 6, seed: int = 3, lengths: int = 6
) -> Path:
    """Write a dataset folder with a vocabulary, and the tables ``train.tsv``, ``validation.tsv`` and ``test.tsv``."""
    write_vocabulary(folder)
    rng = random.Random(seed)
    for name, rows in (("train", train), ("validation", validation), ("test", test)):
        lines = ["sentence\tanswer" if name != "test" else "sentence"]
        for row in range(rows):
            words = [f"w{rng.randrange(6, 40)}" for _ in range(rng.randrange(2, lengths))]
            label = "yes" if row % 2 else "no"
            if label == "yes":
                words[rng.randrange(len(words))] = "w5"
            lines.append(" ".join(words) + (f"\t{label}" if name != "test" else ""))
        (folder / f"{name}.tsv").write_text("\n".join(lines) + "\n")
    return folder


def finetune_stage(folder: Path, name: str = "rule", **changes: Any) -> dict[str, Any]:
    """Return a finetune stage over the tables of a folder: 50 rows, so 5 steps of 11 rows in an epoch."""
    stage = {
        "kind": "finetune",
        "name": name,
        "data": {
            "train": str(folder / "train.tsv"),
            "validation": str(folder / "validation.tsv"),
            "test": str(folder / "test.tsv"),
            "columns": {"text": "sentence", "label": "answer"},
        },
        "start_from": "random",
        "lower_case": True,
        "sequence_length": SEQUENCE_LENGTH,
        "global_batch_size": 11,
        "micro_batch_size": 4,
        "epochs": 2,
        "learning_rate": 3e-3,
        "warmup": {"proportion": 0.1},
    }
    return whole_stage({**stage, **changes})


def finetune_document(folder: Path, task: Path, *stages: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """Return a run configuration of finetune stages alone."""
    settings = {"checkpoint": {"every_steps": 2, "keep": 9}, **changes}
    return run_document(folder, task, stages=list(stages), **settings)
