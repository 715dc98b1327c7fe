"""Two recipes run at laptop size as a person runs them, on data that is there: real processes, real files.

Without data the builtin text is prepared first, which takes seconds that other tests spend (test_small_job has what is
prepared then).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from bert_trainer.dataset.shards import write_shard
from bert_trainer.dataset.shards.samples import Samples
from tiny_run import make_samples, write_vocabulary

ROOT = Path(__file__).parents[2]
TASKS = ROOT / "tests/fixtures/tasks"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


def run_small(example: str, folder: Path) -> dict[str, Any]:
    """Run an example in a folder with one rank, and return its report."""
    command = [sys.executable, "-m", "bert_operator", "local", str(ROOT / "examples" / example), "--small", "--plain"]
    # Threads that wait for each other on a busy machine spin: three times the processor time.
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    answer = subprocess.run(
        [*command, "--ranks-per-node", "1"], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
    (output,) = folder.glob("*-small")
    report: dict[str, Any] = json.loads((output / "report.json").read_text())
    assert report["ranks"] == 1
    return report


def make_short_samples(length: int, predictions: int) -> Samples:
    """Return rows of a length with few real tokens, which alone take time."""
    short = make_samples(12, np.random.default_rng(0), sequence_length=32, predictions=5)

    def widen(rows: NDArray[Any], width: int) -> NDArray[Any]:
        return np.pad(rows, ((0, 0), (0, width - rows.shape[1])))

    return Samples(
        widen(short.input_ids, length),
        widen(short.input_mask, length),
        widen(short.segment_ids, length),
        widen(short.masked_lm_positions, predictions),
        widen(short.masked_lm_ids, predictions),
        short.next_sentence_labels,
    )


def test_a_pretraining_recipe_runs_on_its_own_shards(tmp_path: Path) -> None:
    write_vocabulary(tmp_path)
    for length, predictions in ((128, 20), (512, 80)):
        shards = tmp_path / f"hdf5/seq_len_{length}_max_pred_{predictions}"
        shards.mkdir(parents=True)
        samples = make_short_samples(length, predictions)
        write_shard(
            shards / "training_0.hdf5", samples, vocabulary_sha256=None, generator_version=None, layout="nvidia"
        )
    report = run_small("10-nvidia/8-gpus.yaml", tmp_path)
    assert [(stage["name"], stage["steps"]) for stage in report["stages"]] == [("phase1", 4), ("phase2", 4)]
    assert report["export"] == str(tmp_path / "nvidia-8-gpus-small/export/huggingface")


def test_a_fine_tuning_recipe_runs_on_its_own_files(tmp_path: Path) -> None:
    write_vocabulary(tmp_path)
    shutil.copytree(TASKS / "glue", tmp_path / "glue")
    report = run_small("16-azure-cola/base.yaml", tmp_path)
    (stage,) = report["stages"]
    assert (stage["name"], stage["kind"], stage["steps"], stage["result"]["runs"]) == ("cola", "finetune", 1, 1)
    assert set(stage["result"]["metrics"]) == {"matthews_correlation", "accuracy"}
    (page,) = tmp_path.glob("*-small/report.html")
    assert "Succeeded" in page.read_text()
    assert "matthews_correlation" in page.read_text()
