"""Datasets of a few documents, built in a second, and what is in their folders."""

from __future__ import annotations

from pathlib import Path

from bert_job.run_config import DatasetConfig
from bert_job.run_stages import PrepareStage
from bert_trainer.dataset.build.pipeline import build_dataset
from bert_trainer.dataset.shards.dataset_info import DatasetInfo
from silent import Silent

LENGTHS = [(32, 5), (64, 10)]


def build(text: Path, root: Path, *, vocabulary_file: str | None = None, **settings: object) -> DatasetInfo:
    """Build a dataset of two lengths with settings of the smallest size; return its record."""
    dataset = DatasetConfig(folder=str(root), vocabulary_file=vocabulary_file)
    return build_dataset(stage_of(text, **settings), dataset, LENGTHS, Silent())


def stage_of(text: Path, **settings: object) -> PrepareStage:
    """Return a stage for a small text: few tokens, three shards, one process."""
    chosen = {"text": str(text), "vocabulary_size": 120, "num_shards": 3, "num_processes": 1, **settings}
    return PrepareStage.model_validate(chosen)


def contents(root: Path) -> dict[str, bytes]:
    """All files but the times in dataset.json."""
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and path.name not in ("dataset.json", ".lock")
    }
