"""What the report computes itself: shares of a card's rate, kernels by time, waits, the rows that it makes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from gpu_step import PRESETS, count_flop

from bert_trainer.dataset.shards import ShardFolder
from gpu_report.benchmark import PEER, read_table
from gpu_report.dataset import MadeDataset, make_dataset
from gpu_report.part import Result
from gpu_report.profile_table import add_kernels, add_waits
from gpu_report.resume import compare_checkpoints
from gpu_report.tests_on_card import read_outcome
from gpu_report.training import SIZES


def made(**changes: Any) -> MadeDataset:
    fields = {
        "folder": Path(), "length": 512, "predictions": 80, "vocabulary": 30522, "rows": 1, "mean_tokens": 300.0,
        "mean_squared_tokens": 300.0**2, "mean_predictions": 45.0, "sha256": "",
    }  # fmt: skip
    return MadeDataset(**(fields | changes))


def test_operations_of_a_row_are_those_of_the_benchmark() -> None:
    layers, hidden, _ = SIZES["large"]
    assert made().flop_per_sequence(layers, hidden) == pytest.approx(count_flop(PRESETS["large"], 300, 45))


def test_rows_that_it_makes_are_read_by_the_trainer_and_are_the_same_every_time(tmp_path: Path) -> None:
    one, other = (
        make_dataset(tmp_path / name, length=128, rows=300, vocabulary=200, seed=5) for name in ("one", "other")
    )
    assert one.sha256 == other.sha256
    folder = ShardFolder.open(
        one.folder / "seq_len_128_max_pred_20",
        split="training",
        sequence_length=128,
        max_predictions=20,
        vocabulary=None,
    )
    assert folder.num_samples == 300
    # Shares of Wikipedia cut at 128: 17.6 % up to 64 tokens, 63.1 % cut.
    assert one.mean_tokens == pytest.approx(105, abs=4)
    assert one.mean_predictions == pytest.approx(0.15 * one.mean_tokens, rel=0.05)


def event(cat: str, name: str, ts: float, dur: float, tid: int = 1) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "tid": tid}


def test_kernels_are_summed_by_name_and_waits_by_the_part_that_they_are_in() -> None:
    result = Result()
    events = [
        event("kernel", "gemm", 0, 6000), event("kernel", "gemm", 6000, 2000), event("kernel", "gelu", 9000, 1000),
        event("user_annotation", "optimizer", 100, 50), event("cuda_runtime", "cudaStreamSynchronize", 110, 20),
        event("cuda_runtime", "cudaLaunchKernel", 120, 20), event("cuda_runtime", "cudaStreamSynchronize", 400, 10),
    ]  # fmt: skip
    add_kernels(result, events)
    add_waits(result, events)
    kernels, waits = result.tables
    assert kernels.rows == [["gemm", 0.2, 0.8, "88.9%"], ["gelu", 0.1, 0.1, "11.1%"]]
    assert waits.rows == [
        ["optimizer", "cudaStreamSynchronize", 0.1, 0.002],
        ["other", "cudaStreamSynchronize", 0.1, 0.001],
    ]
    assert result.figures["card idle within the traced steps"] == "10.0%"
    assert result.figures["host synchronisations per step"] == 0.2


OPERATORS = (("linear", 0, 10_000), ("mm", 1_000, 8_000), ("add", 20_000, 500))


def test_without_kernels_operators_are_summed_by_their_own_time() -> None:
    result = Result()
    add_kernels(
        result, [event("cpu_op", "linear", 0, 100), event("cpu_op", "mm", 10, 80), event("cpu_op", "add", 200, 5)]
    )
    assert [row[:3] for row in result.tables[0].rows] == [
        ["mm", 0.1, 0.008],
        ["linear", 0.1, 0.002],
        ["add", 0.1, 0.001],
    ]


TABLE = """
| phase | side | sequences/s: median (range) | x peer | peak GiB |
| --- | --- | --- | --- | --- |
| 512 | real tokens, flash, CUDA graphs | 1,034 (1,001-1,050) | 3.1 (3-3.2) | 40.1 |
| 512 | Hugging Face, SDPA, torch.compile | 333.5 (330-340) | 1 | 61.2 |
"""


def test_the_benchmarks_table_is_read_and_judged_on_a_card_alone() -> None:
    result = Result(notes=["command"])
    read_table(TABLE.splitlines(), 512, result, judged=True)
    assert result.figures == {"sequences/s": 1034.0, "times the peer": 3.1, PEER: 333.5}
    assert [(one.wanted, one.got, one.holds) for one in result.verdicts] == [
        ("≥ 800", "1,034", True),
        ("≥ 2.5", "3.10", True),
    ]
    read_table(TABLE.splitlines(), 512, result, judged=False)
    assert [one.holds for one in result.verdicts] == [None, None]


@pytest.mark.parametrize(
    ("line", "outcome"),
    [
        ("tests/gpu/test_update.py::test_it[a b] PASSED                 [ 10%]", "PASSED"),
        ("tests/gpu/test_on_a_gpu.py::test_it SKIPPED (requires a CUDA device)  [  1%]", "SKIPPED"),
        ("[gw1] [ 50%] FAILED tests/gpu/test_on_a_gpu.py::test_it[flash-bfloat16-32] ", "FAILED"),
        ("[gw1] [ 50%] ERROR tests/gpu/test_update.py::test_it ", "ERROR"),
        ("tests/gpu/test_update.py::test_it ", None),
        ("FAILED tests/gpu/test_update.py::test_it - AssertionError", None),
        ("=== 24 passed in 13.41s ===", None),
    ],
)
def test_outcomes_are_read_from_one_process_and_from_several(line: str, outcome: str | None) -> None:
    found = read_outcome(line)
    assert (found and found[1]) == outcome


def test_checkpoints_differ_by_bits_and_by_how_much(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    for run, value in (("one", 1.0), ("other", 1.5), ("zero", -0.0), ("minus", 0.0)):
        folder = tmp_path / run / "checkpoints" / "phase-12"
        folder.mkdir(parents=True)
        (folder / "manifest.json").write_text("{}")
        save_file({"w": torch.tensor([value, 2.0]), "b": torch.zeros(())}, folder / "model.safetensors")
        save_file({"m": torch.ones(3)}, folder / "optimizer.safetensors")
    assert compare_checkpoints(tmp_path / "one", tmp_path / "one") == (0, 0.0)
    assert compare_checkpoints(tmp_path / "one", tmp_path / "other") == (1, 0.5)
    assert compare_checkpoints(tmp_path / "zero", tmp_path / "minus") == (1, 0.0)
