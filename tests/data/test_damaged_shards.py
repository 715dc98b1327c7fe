"""A file with changed or missing bytes gives rows or an error that names it; reading never hangs or crashes."""

from __future__ import annotations

import multiprocessing
import struct
import zlib
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from any_layout import shard_name, write_shard
from bert_trainer.dataset.shards import (
    LAYOUTS,
    LayoutName,
    read_header,
    read_ragged,
    read_shard,
)
from bert_trainer.dataset.shards.vlen_reader import read_values
from bert_trainer.errors import InputError
from shard_child import read_in_child
from tiny_run import make_samples

T, P = 32, 5
NUM_CASES = 60
DEADLINE_S = 60.0
"""For one file of 60 rows, on the busiest of machines."""


def damaged(content: bytes, rng: np.random.Generator) -> bytes:
    """Return a file with one to five bytes changed, a block zeroed, or its end missing."""
    changed = bytearray(content)
    kind = int(rng.integers(0, 8))
    if kind == 0:
        return content[: int(rng.integers(0, len(content)))]
    if kind == 1:
        at = int(rng.integers(0, len(content)))
        changed[at : at + 512] = bytes(len(changed[at : at + 512]))
        return bytes(changed)
    for _ in range(int(rng.integers(1, 6))):
        changed[int(rng.integers(0, len(changed)))] = int(rng.integers(0, 256))
    return bytes(changed)


class Child:
    """The process that reads, and another in its place after one that died or hung."""

    def __init__(self) -> None:
        self._start()

    def _start(self) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._ours, theirs = spawn.Pipe()
        self._process = spawn.Process(target=read_in_child, args=(theirs,))
        self._process.start()
        theirs.close()

    def read(self, path: Path) -> tuple[str, Any]:
        """Return how reading a file went, and the rows or what was said instead."""
        self._ours.send(path)
        answer: tuple[str, Any] | None = None
        try:
            assert self._ours.poll(DEADLINE_S), "no answer"
            answer = self._ours.recv()  # a child that died is an EOFError here
            return answer
        finally:
            if answer is None:
                self.kill()
                self._start()

    def end(self) -> int | None:
        """Let the process end, and return its exit code."""
        self._ours.send(None)
        self._process.join(DEADLINE_S)
        return self._process.exitcode

    def kill(self) -> None:
        """End the process, whatever it does."""
        self._process.kill()
        self._process.join()
        self._ours.close()


@pytest.fixture(scope="module")
def child() -> Iterator[Child]:
    """Return the process that reads the files of all layouts, which ends by itself."""
    child = Child()
    try:
        yield child
        assert child.end() == 0
    finally:
        child.kill()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_no_damage_makes_a_reader_hang_or_die(tmp_path: Path, layout: LayoutName, child: Child) -> None:
    rng = np.random.default_rng([LAYOUTS.index(layout), 7])
    path = tmp_path / shard_name("training_0.hdf5", layout)
    write_shard(
        path,
        make_samples(60, rng, sequence_length=T, predictions=P),
        vocabulary_sha256="a" * 64,
        generator_version=1,
        layout=layout,
    )
    content, wanted = path.read_bytes(), read_shard(path)
    refused = 0
    for case in range(NUM_CASES):
        path.write_bytes(damaged(content, rng))
        kind, result = child.read(path)
        assert kind != "failed", f"case {case}: {result}"
        if kind == "refused":
            refused += 1
            assert str(path) in result, f"case {case}: {result}"
        elif layout in ("compact", "tfrecord"):
            for name in ("input_ids", "segment_ids", "masked_lm_positions", "masked_lm_ids"):
                assert np.array_equal(getattr(result, name), getattr(wanted, name)), f"case {case}"
        else:
            # Without checksums a changed number can be one that is allowed, never one out of bounds.
            assert result.masked_lm_positions.max(initial=0) < result.input_ids.shape[1], f"case {case}"
    assert refused, "no damage was found, so none was done"


@pytest.mark.parametrize("layout", ["mlperf-variable", "mlperf-packed"])
def test_a_damaged_heap_is_named_and_never_loops(tmp_path: Path, layout: LayoutName) -> None:
    path = tmp_path / "training_0.hdf5"
    samples = make_samples(60, np.random.default_rng(3), sequence_length=T, predictions=P)
    write_shard(path, samples, vocabulary_sha256=None, generator_version=None, layout=layout)
    content = bytearray(path.read_bytes())
    heap = content.index(b"GCOL\x01")
    # An object without number and size: HDF5 itself never gets past it.
    content[heap + 16 : heap + 32] = bytes(16)
    path.write_bytes(content)
    with pytest.raises(InputError, match=rf"training_0\.hdf5: damaged.*the heap at byte {heap} holds no object 1"):
        read_shard(path)


@pytest.mark.parametrize("compression", [None, "gzip"])
@pytest.mark.parametrize("shuffle", [False, True])
def test_chunked_rows_of_variable_length_are_read(tmp_path: Path, compression: str | None, shuffle: bool) -> None:
    path = tmp_path / "part_0.hdf5"
    samples = make_samples(60, np.random.default_rng(3), sequence_length=T, predictions=P)
    write_shard(path, samples, vocabulary_sha256=None, generator_version=None, layout="mlperf-variable", shape=(T, P))
    wanted = read_shard(path)
    with h5py.File(path, "r+") as file:
        for name in list(file):
            values, kind = file[name][...], file[name].dtype
            del file[name]
            file.create_dataset(name, data=values, dtype=kind, chunks=(7,), compression=compression, shuffle=shuffle)
    found = read_shard(path)
    for field in fields(wanted):
        assert np.array_equal(getattr(found, field.name), getattr(wanted, field.name))
    assert len(read_ragged(path, rows=slice(10, 33))) == 23


def variable_runs(path: Path, rows: list[int]) -> int:
    """Write a dataset whose rows have so many values; return where its references are in the file."""
    with h5py.File(path, "w") as file:
        dataset = file.create_dataset("runs", (len(rows),), h5py.vlen_dtype(np.dtype("<i2")))
        for row, count in enumerate(rows):
            dataset[row] = np.ones(count, np.int16)
        return int(dataset.id.get_offset())


def read_runs(path: Path) -> None:
    with h5py.File(path, "r") as file:
        read_values(file["runs"])


def test_rows_that_share_one_object_are_refused_before_memory_is_allocated(tmp_path: Path) -> None:
    path = tmp_path / "training_0.hdf5"
    offset = variable_runs(path, [1 << 19] + [1] * 399)
    content = bytearray(path.read_bytes())
    content[offset : offset + 400 * 16] = bytes(content[offset : offset + 16]) * 400
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"would hold 209715200 values, more than the file has room for"):
        read_runs(path)


def test_overlapping_heaps_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "training_0.hdf5"
    heaps = 600
    offset = variable_runs(path, [8] * heaps)
    content = bytearray(path.read_bytes())
    end = len(content) + 32 * heaps + 16
    # Each object's values are the head of the next heap, which holds all objects behind it.
    for heap in range(heaps):
        start = len(content)
        reference = struct.pack("<IQI", 8, start, heap + 1)
        content[offset + 16 * heap : offset + 16 * (heap + 1)] = reference
        content += struct.pack("<4sB3xQ", b"GCOL", 1, end - start) + struct.pack("<HHIQ", heap + 1, 1, 0, 16)
    content += bytes(16)
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"the heap at byte \d+ overlaps others"):
        read_runs(path)


def test_chunks_that_would_fill_the_memory_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "training_0.hdf5"
    samples = make_samples(6, np.random.default_rng(3), sequence_length=T, predictions=P)
    write_shard(path, samples, vocabulary_sha256=None, generator_version=None, layout="nvidia")
    with h5py.File(path, "r+") as file:
        del file["segment_ids"]
        file.create_dataset("segment_ids", (6, T), "|i1", chunks=(1 << 22, T), maxshape=(None, T), compression="gzip")
        file["segment_ids"].id.write_direct_chunk((0, 0), zlib.compress(bytes(1 << 27)))
    with pytest.raises(InputError, match=r"'segment_ids' has chunks of 134217728 bytes; allowed: up to 67108864"):
        read_header(path)
