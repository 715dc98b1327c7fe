"""``bert-data eval`` picks samples by MLPerf's rule from shards of any layout."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from any_layout import shard_name, write_shard
from bert_trainer.dataset.__main__ import main
from bert_trainer.dataset.build.evaluation_set import picked_rows
from bert_trainer.dataset.shards import LayoutName, ShardFolder, list_shards, read_header, read_shard
from tiny_run import make_samples

T, P = 32, 5
KEPT = Path(__file__).parents[1] / "fixtures" / "tensorflow-records"


def write_parts(folder: Path, rows: tuple[int, ...], layout: LayoutName = "nvidia") -> Path:
    folder.mkdir()
    for number, count in enumerate(rows):
        samples = make_samples(count, np.random.default_rng(number), sequence_length=T, predictions=P)
        path = folder / shard_name(f"part-{number:05d}.hdf5", layout)
        write_shard(path, samples, vocabulary_sha256="b" * 64, generator_version=1, layout=layout)
    return folder


def ids(folder: Path) -> list[list[int]]:
    return [row for path in list_shards(folder) for row in read_shard(path).input_ids.tolist()]


def test_the_rule_is_mlperf_s() -> None:
    assert picked_rows(25, 10).tolist() == [0, 2, 5, 7, 10, 12, 15, 17, 20, 22]
    assert picked_rows(7, 7).tolist() == [0, 1, 2, 3, 4, 5, 6]
    # In floating point: 7 * (122 / 14) is a bit less than 61.
    assert picked_rows(122, 14)[7] == 60
    assert picked_rows(10_013, 10_000)[[0, 769, 770, 9_999]].tolist() == [0, 769, 771, 10_011]
    rows = picked_rows(1_234_567, 10_000)
    assert rows.tolist() == [int(number * (1_234_567 / 10_000)) for number in range(10_000)]


@pytest.mark.parametrize(
    ("source", "layout"), [("nvidia", "mlperf"), ("tfrecord", "compact"), ("mlperf-packed", "intel")]
)
def test_the_picked_samples_are_those_of_the_files_in_order(
    tmp_path: Path, source: LayoutName, layout: LayoutName, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = write_parts(tmp_path / "in", (30, 0, 12), source)
    out = tmp_path / "out"
    assert main(["eval", str(parts), str(out), "--samples", "9", "--layout", layout]) == 0
    assert "9 samples in 1 shard(s)" in capsys.readouterr().out
    every = ids(parts)
    assert ids(out) == [every[int(number * (42 / 9))] for number in range(9)]
    # An evaluate stage takes it for held out; a second run replaces it.
    folder = ShardFolder.open(out, split="held_out", sequence_length=T, max_predictions=P, vocabulary=None)
    assert folder.rows == (9,)
    assert [path.name for path in folder.paths] == ["eval_9.hdf5"]
    assert read_header(folder.paths[0]).layout == layout
    assert main(["eval", str(parts), str(out), "--samples", "9", "--layout", layout]) == 0


def test_records_of_tensorflow_are_picked_from_as_they_are(tmp_path: Path) -> None:
    assert main(["eval", str(KEPT / "part-00000-of-00001"), str(tmp_path), "--samples", "7"]) == 0
    assert [path.name for path in list_shards(tmp_path)] == ["eval_7.hdf5"]
    assert read_header(tmp_path / "eval_7.hdf5").layout == "compact"  # records are not written
    every = read_shard(KEPT / "part-00000-of-00001").masked_lm_ids.tolist()
    assert read_shard(tmp_path / "eval_7.hdf5").masked_lm_ids.tolist() == [
        every[int(number * (40 / 7))] for number in range(7)
    ]


def test_what_is_no_evaluation_set_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parts = write_parts(tmp_path / "in", (5, 4))

    def refused(*arguments: str) -> str:
        assert main(["eval", *arguments]) == 2
        return capsys.readouterr().err

    out = str(tmp_path / "out")
    assert "got 10000 samples to pick from 9; allowed: 1 to as many as there are" in refused(str(parts), out)
    assert "got 0 samples to pick" in refused(str(parts), out, "--samples", "0")
    assert "no such shard or folder" in refused(str(tmp_path / "none"), out)
    shutil.copy(parts / "part-00000.hdf5", parts / "held_out_0.hdf5")
    assert "holds training shards and held-out ones, as held_out_0.hdf5" in refused(str(parts), out, "--samples", "3")
    (parts / "held_out_0.hdf5").unlink()
    assert main(["eval", str(parts), out, "--samples", "3"]) == 0
    assert "holds other shards, the first is eval_3.hdf5" in refused(str(parts), out, "--samples", "4")
    assert not (tmp_path / "none").exists()
