"""Shards of any size are converted, chopped and checked in blocks: the same bytes, in bounded memory."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import tracemalloc
import zlib
from dataclasses import fields
from pathlib import Path

import h5py
import numpy as np
import pytest
from numpy.typing import NDArray

from any_layout import shard_name, write_shard
from bert_trainer.dataset.build import conversion
from bert_trainer.dataset.build.conversion import chop, convert
from bert_trainer.dataset.shards import (
    LAYOUTS,
    WRITTEN_LAYOUTS,
    LayoutName,
    WrittenLayout,
    read_header,
    read_ragged,
    read_ragged_blocks,
    row_blocks,
    shards_below,
    variable,
)
from bert_trainer.dataset.shards.ragged import RaggedSamples
from bert_trainer.errors import InputError, Stopped
from random_rows import random_samples

T, P = 32, 5


def write(path: Path, rows: int, layout: LayoutName, *, vocabulary_size: int = 30_000) -> Path:
    """Write a shard of random rows."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path = path.with_name(shard_name(path.name, layout))
    lengths = np.random.default_rng(rows).integers(9, T + 1, rows).tolist()
    samples = random_samples(lengths, sequence_length=T, predictions=P, vocabulary_size=vocabulary_size, seed=3)
    write_shard(path, samples, vocabulary_sha256="a" * 64, generator_version=1, layout=layout)
    return path


def take_for_large(patched: pytest.MonkeyPatch, *, rows: int, block_rows: int) -> None:
    """Take files of more rows for large ones, and read them so many rows at a time."""
    patched.setattr(conversion, "IN_MEMORY_TOKENS", rows * T)
    patched.setattr(row_blocks, "BLOCK_ROWS", block_rows)


def bytes_below(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in shards_below(folder)}


def layout_pairs() -> list[object]:
    """Every layout to every one that is written; each is read once and written at least once without the marker."""
    short = set(zip(LAYOUTS, itertools.cycle([*WRITTEN_LAYOUTS[1:], WRITTEN_LAYOUTS[0]]), strict=False))
    pairs = list(itertools.product(LAYOUTS, WRITTEN_LAYOUTS))
    return [pytest.param(*pair, marks=() if pair in short else pytest.mark.long) for pair in pairs]


@pytest.mark.parametrize(("source", "layout"), layout_pairs())
def test_a_file_in_blocks_has_the_bytes_of_one_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: LayoutName, layout: WrittenLayout
) -> None:
    for number, rows in enumerate((75, 1, 26)):
        write(tmp_path / "in" / f"part_{number}.hdf5", rows, source)
    for name, blocks in (("memory", False), ("blocks", True)):
        with monkeypatch.context() as patched:
            if blocks:
                take_for_large(patched, rows=25, block_rows=7)
            shape = (T, P)
            convert(tmp_path / "in", tmp_path / name / "same", layout, shape=shape, num_processes=1)
            chop(tmp_path / "in", tmp_path / name / "cut", 3, layout=layout, shape=shape, num_processes=1)
    wanted, found = bytes_below(tmp_path / "memory"), bytes_below(tmp_path / "blocks")
    assert len(wanted) == 6
    assert [name for name in wanted if wanted[name] != found[name]] == []
    assert set(found) == set(wanted)
    assert [path.name for path in tmp_path.rglob(".*") if path.name != ".lock"] == []


@pytest.mark.parametrize("layout", [*WRITTEN_LAYOUTS, "tfrecord"])
def test_memory_does_not_grow_with_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: LayoutName) -> None:
    take_for_large(monkeypatch, rows=200, block_rows=200)
    # Both ways: whatever reads the layout, and whatever writes it.
    other: WrittenLayout = "intel" if layout == "compact" else "compact"
    back = next((written for written in WRITTEN_LAYOUTS if written == layout), "compact")

    def peak_bytes(rows: int) -> int:
        folder = tmp_path / str(rows)
        source = write(folder / "part_0.hdf5", rows, layout)
        tracemalloc.start()
        try:
            convert(source, folder / "other", other, shape=(T, P), num_processes=1)
            convert(folder / "other" / "part_0.hdf5", folder / "back", back, num_processes=1)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak_bytes(100)  # what is made once
    assert peak_bytes(2400) < 1.4 * peak_bytes(800)


@pytest.mark.parametrize("layout", ["mlperf-variable", "mlperf-packed"])
def test_no_more_rows_of_variable_length_are_taken_than_a_block_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: LayoutName
) -> None:
    # Heaps of a file differ in size, and what is noted of them with them: rows are counted in place of bytes.
    take_for_large(monkeypatch, rows=100, block_rows=100)
    read: list[int] = []
    read_values = variable.read_values

    def read_and_count(dataset: h5py.Dataset, rows: slice) -> tuple[NDArray[np.integer], NDArray[np.int64]]:
        values, counts = read_values(dataset, rows)
        read.append(len(counts))
        return values, counts

    write(tmp_path / "in" / "part_0.hdf5", 1500, layout)
    monkeypatch.setattr(variable, "read_values", read_and_count)
    chop(tmp_path / "in", tmp_path / "cut", 2, shape=(T, P), num_processes=1)
    assert max(read) <= 100
    assert sum(read) >= 4 * 1500 / 3
    assert sum(read_header(path).rows for path in (tmp_path / "cut").glob("*.hdf5")) == 1500


@pytest.mark.parametrize("layout", LAYOUTS)
def test_any_range_of_rows_is_read_in_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: LayoutName
) -> None:
    path = write(tmp_path / "part_0.hdf5", 60, layout)
    whole = read_ragged(path)
    monkeypatch.setattr(row_blocks, "BLOCK_ROWS", 7)
    for first, stop in ((0, 60), (0, 7), (6, 8), (13, 60), (59, 60), (30, 30), (60, 60), (0, 1)):
        blocks = list(read_ragged_blocks(path, rows=slice(first, stop)))
        found = RaggedSamples.concatenate([RaggedSamples.empty(), *blocks])
        wanted = whole.take(slice(first, stop))
        for field in fields(found):
            assert np.array_equal(getattr(found, field.name), getattr(wanted, field.name)), (first, stop, field.name)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_bad_row_in_a_later_block_is_named_by_its_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: LayoutName
) -> None:
    path = write(tmp_path / "part_0.hdf5", 60, layout, vocabulary_size=20_000)
    monkeypatch.setattr(row_blocks, "BLOCK_ROWS", 7)
    largest = int(read_ragged(path).tokens.max())
    with pytest.raises(InputError, match=r"part_0\.\w+: made with a vocabulary that does not fit"):
        list(read_ragged_blocks(path, largest))
    if layout == "compact":
        with h5py.File(path, "r+") as file:
            file["first_segment_counts"][40] = 200
            file["first_segment_counts"].attrs["crc32"] = np.uint32(zlib.crc32(file["first_segment_counts"][...]))
        with pytest.raises(InputError, match=r"part_0\.hdf5: row 40 has a first segment longer than itself"):
            list(read_ragged_blocks(path))


def test_a_changed_byte_anywhere_in_a_large_file_is_found_before_a_row_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "in" / "part_0.hdf5", 60, "compact")
    take_for_large(monkeypatch, rows=10, block_rows=7)
    with h5py.File(path) as file:
        places = [(name, values.id.get_offset(), values.nbytes) for name, values in file.items()]
    content = path.read_bytes()
    for name, start, size in places:
        changed = bytearray(content)
        changed[start + size // 2] ^= 1
        path.write_bytes(changed)
        with pytest.raises(InputError, match=rf"part_0\.hdf5: damaged: dataset '{name}' does not match its checksum"):
            chop(tmp_path / "in", tmp_path / "out", 3, num_processes=1)
        assert bytes_below(tmp_path / "out") == {}


class Reported:
    """Takes reports and keeps what they say of progress."""

    def __init__(self) -> None:
        self.progress: list[tuple[object, ...]] = []

    def report(self, event: str, **fields: str | int | float | None) -> None:
        """Take one report."""
        if event == "progress":
            self.progress.append(tuple(fields[name] for name in ("stage", "step", "steps", "unit")))


def test_progress_is_reported_within_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write(tmp_path / "part_0.hdf5", 45, "compact")
    take_for_large(monkeypatch, rows=10, block_rows=20)
    reported = Reported()
    convert(source, tmp_path / "out", "nvidia", num_processes=4, reporter=reported)
    rows = [("convert", done, 45, "samples") for done in (20, 40, 45)]
    assert reported.progress == [("look at files", 1, 1, "files"), *rows]


def test_a_stop_within_a_file_leaves_nothing_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write(tmp_path / "part_0.hdf5", 45, "compact")
    take_for_large(monkeypatch, rows=10, block_rows=20)
    asked: list[int] = []

    def check() -> None:
        asked.append(1)
        if len(asked) > 3:  # of a look at the file, the beginning, and a block
            raise Stopped("stop")

    with pytest.raises(Stopped):
        convert(source, tmp_path / "out", "nvidia", num_processes=1, check=check)
    assert [path.name for path in (tmp_path / "out").iterdir()] == [".lock"]


_ON_A_FULL_DISK = """
import resource, sys
from pathlib import Path
from bert_trainer.dataset.__main__ import main
from bert_trainer.dataset.build import conversion
from bert_trainer.dataset.shards import WRITTEN_LAYOUTS, row_blocks
conversion.IN_MEMORY_TOKENS, row_blocks.BLOCK_ROWS = 1, 50
source, target = Path(sys.argv[1]), Path(sys.argv[2])
for limit in map(int, sys.argv[3:]):
    # What a file may be large: beyond it the kernel answers as a full disk does, with another number.
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    for layout in WRITTEN_LAYOUTS:
        command = ["convert", str(source), str(target / layout), "--layout", layout, "--processes", "1"]
        print(layout, limit, main(command), flush=True)
"""


def test_a_full_disk_is_named_and_no_file_is_left(tmp_path: Path) -> None:
    source = write(tmp_path / "part_0.hdf5", 900, "compact")
    unlimited = str(1 << 40)
    limits = ["0", "3000", "40000", "150000", unlimited]
    command = [sys.executable, "-c", _ON_A_FULL_DISK, str(source), str(tmp_path / "out"), *limits]
    environment = {**os.environ, "PYTHONPATH": ":".join(sys.path)}
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
    assert run.returncode == 0, run.stderr
    ended = [line.split() for line in run.stdout.splitlines() if line.split()[0] in WRITTEN_LAYOUTS]
    assert len(ended) == len(limits) * len(WRITTEN_LAYOUTS)
    # Rows of the compact layout fit sooner than those of others; in the end all do.
    assert {code for layout, limit, code in ended if limit in ("0", "3000", "40000")} == {"1"}
    assert {code for layout, limit, code in ended if limit == unlimited} == {"0"}
    failed = [line for line in run.stderr.splitlines() if line.startswith("bert-data: ")]
    assert len(failed) == sum(code == "1" for _, _, code in ended)
    assert all("cannot be written, the disk is full (File too large)" in line for line in failed)
    written = {path.relative_to(tmp_path / "out").as_posix() for path in shards_below(tmp_path / "out")}
    assert written == {f"{layout}/{source.name}" for layout in WRITTEN_LAYOUTS}
    assert {path.name for path in (tmp_path / "out").rglob(".*")} == {".lock"}
