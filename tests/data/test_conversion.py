"""``bert-data convert`` and ``chop`` neither lose nor repeat a sample, in any layout, and resume where they stopped."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from any_layout import write_shard
from bert_trainer.dataset.__main__ import main
from bert_trainer.dataset.shards import (
    WRITTEN_LAYOUTS,
    LayoutName,
    list_shards,
    read_header,
    read_shard,
    shards_below,
)
from tiny_run import make_samples, write_dataset

T, P = 32, 5


def rows_below(folder: Path) -> list[tuple[bytes, ...]]:
    """Return every sample as bytes, in the order of the files."""
    found = []
    for path in shards_below(folder):
        samples = read_shard(path)
        arrays = [getattr(samples, field.name) for field in fields(samples)]
        found += [tuple(array[row].tobytes() for array in arrays) for row in range(len(samples))]
    return found


def write_parts(folder: Path, rows: tuple[int, ...], layout: LayoutName = "nvidia") -> Path:
    folder.mkdir()
    for number, count in enumerate(rows):
        samples = make_samples(count, np.random.default_rng(number), sequence_length=T, predictions=P)
        path = folder / f"part-{number:05d}.hdf5"
        write_shard(path, samples, vocabulary_sha256=None, generator_version=None, layout=layout)
    return folder


@pytest.mark.parametrize("layout", WRITTEN_LAYOUTS)
def test_convert_keeps_every_sample_in_both_directions(tmp_path: Path, layout: LayoutName) -> None:
    dataset = write_dataset(tmp_path / "data")
    assert main(["convert", str(dataset), str(tmp_path / "there"), "--layout", layout, "--processes", "1"]) == 0
    assert {read_header(path).layout for path in shards_below(tmp_path / "there")} == {layout}
    assert (tmp_path / "there" / "vocab.txt").read_bytes() == (dataset / "vocab.txt").read_bytes()
    there = [str(tmp_path / "there"), str(tmp_path / "back")]
    assert main(["convert", *there, "--layout", "compact", "--processes", "1"]) == 0
    assert sorted(rows_below(tmp_path / "back")) == sorted(rows_below(dataset))


@pytest.mark.parametrize(
    ("source", "written"), [("intel", "intel"), ("mlperf-variable", "compact"), ("mlperf-packed", "compact")]
)
def test_chop_keeps_the_layout_of_its_sources_where_it_writes_it(
    tmp_path: Path, source: LayoutName, written: LayoutName
) -> None:
    parts = write_parts(tmp_path / "in", (30, 12), source)
    assert main(["chop", str(parts), str(tmp_path / "out"), "--shards", "4", "--processes", "1"]) == 0
    assert {read_header(path).layout for path in list_shards(tmp_path / "out")} == {written}
    assert rows_below(tmp_path / "out") == rows_below(parts)


def test_a_layout_that_is_read_alone_cannot_be_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parts = write_parts(tmp_path / "in", (3,))
    with pytest.raises(SystemExit, match="2"):
        main(["convert", str(parts), str(tmp_path / "out"), "--layout", "tfrecord"])
    assert "invalid choice: 'tfrecord'" in capsys.readouterr().err


# Cases that the original script loses samples on or fails at.
@pytest.mark.parametrize(("rows", "shards"), [((60, 41), 10), ((50, 59), 10), ((7, 5), 10), ((40, 60), 10), ((3,), 3)])
def test_chop_writes_shards_of_equal_size_in_order(tmp_path: Path, rows: tuple[int, ...], shards: int) -> None:
    source = write_parts(tmp_path / "in", rows)
    assert main(["chop", str(source), str(tmp_path / "out"), "--shards", str(shards), "--processes", "1"]) == 0
    sizes = [read_header(tmp_path / "out" / f"part_{index}_of_{shards}.hdf5").rows for index in range(shards)]
    assert sum(sizes) == sum(rows)
    assert max(sizes) - min(sizes) <= 1
    found = []
    for index in range(shards):
        samples = read_shard(tmp_path / "out" / f"part_{index}_of_{shards}.hdf5")
        found += [samples.input_ids[row].tobytes() for row in range(len(samples))]
    assert found == [row[0] for row in rows_below(source)]


def test_chop_accepts_an_empty_file_of_any_layout(tmp_path: Path) -> None:
    # Gzip needs chunks, which an empty dataset has not: NVIDIA's layout cannot be told then.
    source = write_parts(tmp_path / "in", (0, 30, 0))
    assert main(["chop", str(source), str(tmp_path / "out"), "--shards", "4", "--processes", "1"]) == 0
    assert {read_header(path).layout for path in list_shards(tmp_path / "out")} == {"nvidia"}
    assert sorted(rows_below(tmp_path / "out")) == sorted(rows_below(source))


def test_an_interrupted_chop_resumes_with_the_missing_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write_parts(tmp_path / "in", (30, 30))
    command = ["chop", str(source), str(tmp_path / "out"), "--shards", "6", "--processes", "1"]
    assert main(command) == 0
    before = {path: path.stat().st_mtime_ns for path in list_shards(tmp_path / "out")}
    (tmp_path / "out" / "part_2_of_6.hdf5").write_bytes(b"cut")
    assert main(command) == 0
    assert "5 of them made before" in capsys.readouterr().out
    after = {path: path.stat().st_mtime_ns for path in list_shards(tmp_path / "out")}
    assert [path.name for path in before if before[path] != after[path]] == ["part_2_of_6.hdf5"]


def test_convert_refuses_to_write_into_its_source(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write_parts(tmp_path / "in", (5,))
    for target in (source, source / "deeper" / "out"):
        assert main(["convert", str(source), str(target), "--layout", "compact"]) == 2
    errors = capsys.readouterr().err
    assert "in: is the source, too" in errors
    assert f"out: lies in the source, {source}" in errors
    assert [path.name for path in source.rglob("*")] == ["part-00000.hdf5"]


def test_chop_refuses_what_it_cannot_cut(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write_parts(tmp_path / "in", (5,))
    assert main(["chop", str(source), str(tmp_path / "out"), "--shards", "6"]) == 2
    assert "got 6 shards; allowed: 1 to its 5 samples" in capsys.readouterr().err
    assert main(["chop", str(source), str(tmp_path / "out"), "--shards", "0"]) == 2
    assert "got 0 shards; allowed: 1 to its 5 samples" in capsys.readouterr().err
    write_parts(tmp_path / "busy", (3,))
    assert main(["chop", str(source), str(tmp_path / "busy"), "--shards", "2"]) == 2
    assert "holds other shards, the first is part-00000.hdf5" in capsys.readouterr().err
    assert main(["chop", str(source), str(source), "--shards", "2"]) == 2
    assert "is the source, too" in capsys.readouterr().err
