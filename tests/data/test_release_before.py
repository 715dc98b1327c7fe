"""A dataset that the release before has made of plain text stays what it is: not refused, not read, not built again.

Input: the dataset and its text as that release left them (tools/keep_release.py). Observed: files, info.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from bert_job.run_config import DatasetConfig
from bert_job.run_stages import PrepareStage
from bert_trainer.dataset.build.pipeline import build_dataset
from bert_trainer.dataset.shards.dataset_info import DatasetInfo, read_dataset_info
from kept_release import TEXT_TIME_NS, release_before
from silent import Silent

LENGTH = (32, 5)


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """Return a copy of what was kept, its text as old as it was."""
    shutil.copytree(release_before().dataset, tmp_path / "kept")
    for path in (tmp_path / "kept/text").rglob("*.txt"):
        os.utime(path, ns=(TEXT_TIME_NS, TEXT_TIME_NS))
    return tmp_path / "kept"


def build(kept: Path) -> DatasetInfo:
    stage = PrepareStage(text=str(kept / "text"), vocabulary_size=120, num_shards=2, num_processes=1)
    return build_dataset(stage, DatasetConfig(folder=str(kept / "data")), [LENGTH], Silent())


def contents(kept: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in sorted((kept / "data").rglob("*")) if path.is_file()}


def test_its_fingerprint_stands_for_the_same_text(kept: Path) -> None:
    before, files = read_dataset_info(kept / "data"), contents(kept)
    assert before is not None
    for path in (kept / "text").rglob("*.txt"):
        # Nobody looks into files whose names, sizes and times are the same.
        path.write_bytes(b"." * path.stat().st_size)
        os.utime(path, ns=(TEXT_TIME_NS, TEXT_TIME_NS))
    assert build(kept).fingerprint == before.fingerprint
    assert contents(kept) == files


def test_a_copy_of_its_text_is_read_and_found_to_be_the_same(kept: Path) -> None:
    before, files = read_dataset_info(kept / "data"), contents(kept)
    assert before is not None
    os.utime(kept / "text/a.txt")
    info = build(kept)
    assert (info.complete, info.corpus_sha256) == (True, before.corpus_sha256)
    assert info.fingerprint != before.fingerprint
    assert contents(kept) == files
