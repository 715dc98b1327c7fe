"""Shards of more rows than fit into memory hold the same samples and are written atomically."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import h5py
import numpy as np
import pytest

from bert_trainer.dataset.__main__ import main
from bert_trainer.dataset.sampling import shard_samples
from bert_trainer.dataset.shards import WRITTEN_LAYOUTS, LayoutName, read_header, read_ragged, shards_below
from bert_trainer.dataset.shards.ragged import RaggedSamples
from bert_trainer.errors import EXIT_INFRASTRUCTURE

OPTIONS = ["--length", "32:5", "--length", "64:10", "--vocabulary-size", "120", "--shards", "2", "--processes", "1"]


def build(text: Path, root: Path, *options: str) -> None:
    assert main(["build", "--text", str(text), "--output", str(root), *OPTIONS, *options]) == 0


@pytest.fixture
def on_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take all shards for large ones, of about ten blocks."""
    monkeypatch.setattr(shard_samples, "IN_MEMORY_TOKENS", 1)
    monkeypatch.setattr(shard_samples, "BLOCK_TOKENS", 2500)


def shards(root: Path) -> dict[str, Path]:
    return {str(path.relative_to(root)): path for path in shards_below(root)}


def same(first: RaggedSamples, second: RaggedSamples) -> bool:
    pairs = ((getattr(first, field.name), getattr(second, field.name)) for field in fields(first))
    return all(one.dtype == other.dtype and np.array_equal(one, other) for one, other in pairs)


def test_a_shard_that_waits_on_disk_holds_the_same_samples(
    tmp_path: Path, write_corpus: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = write_corpus()
    build(text, tmp_path / "memory")
    monkeypatch.setattr(shard_samples, "IN_MEMORY_TOKENS", 1)
    for name, block_tokens in (("many", 640), ("few", 20_000), ("one", 1 << 23)):
        monkeypatch.setattr(shard_samples, "BLOCK_TOKENS", block_tokens)
        build(text, tmp_path / name)
        wanted, found = shards(tmp_path / "memory"), shards(tmp_path / name)
        assert list(found) == list(wanted)
        assert len(wanted) == 6
        for shard, path in found.items():
            assert read_header(path) == read_header(wanted[shard])
            assert same(read_ragged(path), read_ragged(wanted[shard]))
            with h5py.File(path) as one, h5py.File(wanted[shard]) as other:
                assert {name: (values.dtype, values.shape) for name, values in one.items()} == {
                    name: (values.dtype, values.shape) for name, values in other.items()
                }
        assert not (tmp_path / name / ".work").exists()
        assert main(["verify", str(tmp_path / name)]) == 0


def test_a_large_shard_without_masks_holds_the_same_rows(
    tmp_path: Path, write_corpus: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = write_corpus()
    build(text, tmp_path / "memory", "--masking", "dynamic")
    with monkeypatch.context() as patched:
        patched.setattr(shard_samples, "IN_MEMORY_TOKENS", 1)
        patched.setattr(shard_samples, "BLOCK_TOKENS", 2500)
        build(text, tmp_path / "disk", "--masking", "dynamic")
    wanted, found = shards(tmp_path / "memory"), shards(tmp_path / "disk")
    assert list(found) == list(wanted)
    for shard, path in found.items():
        assert read_header(path) == read_header(wanted[shard])
        assert read_header(path).masked == ("held_out" in shard)
        assert same(read_ragged(path), read_ragged(wanted[shard]))
    assert main(["verify", str(tmp_path / "disk")]) == 0


def test_large_shards_of_recipes_are_the_same_with_several_processes(
    tmp_path: Path, write_corpus: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    # NVIDIA's folders of both lengths end in the same name, that of the text.
    text, lengths = write_corpus(), ["--length", "32:5", "--length", "64:10"]
    nvidia = [*lengths, "--recipe", "nvidia", "--layout", "compact"]
    mlperf = [*lengths, "--recipe", "mlperf", "--balanced-shards", "3"]
    for name, options in (("nvidia", nvidia), ("mlperf", mlperf)):
        build(text, tmp_path / name / "memory", *options)
        with monkeypatch.context() as patched:
            patched.setattr(shard_samples, "IN_MEMORY_TOKENS", 1)
            patched.setattr(shard_samples, "BLOCK_TOKENS", 2500)
            build(text, tmp_path / name / "disk", *options, "--processes", "3")
        wanted, found = shards(tmp_path / name / "memory"), shards(tmp_path / name / "disk")
        assert list(found) == list(wanted)
        assert all(same(read_ragged(path), read_ragged(wanted[shard])) for shard, path in found.items())
        assert main(["verify", str(tmp_path / name / "disk")]) == 0


@pytest.mark.parametrize("layout", WRITTEN_LAYOUTS)
def test_a_large_shard_has_the_bytes_of_one_that_fits_into_memory(
    tmp_path: Path, write_corpus: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, layout: LayoutName
) -> None:
    text = write_corpus()
    build(text, tmp_path / "memory", "--layout", layout)
    monkeypatch.setattr(shard_samples, "IN_MEMORY_TOKENS", 1)
    monkeypatch.setattr(shard_samples, "BLOCK_TOKENS", 2500)
    build(text, tmp_path / "disk", "--layout", layout)
    memory, disk = shards(tmp_path / "memory"), shards(tmp_path / "disk")
    assert {read_header(path).layout for path in disk.values()} == {layout}
    assert [path.read_bytes() for path in memory.values()] == [path.read_bytes() for path in disk.values()]
    assert not (tmp_path / "disk" / ".work").exists()


@pytest.mark.usefixtures("on_disk")
def test_the_same_build_gives_the_same_bytes(tmp_path: Path, write_corpus: Callable[..., Path]) -> None:
    text = write_corpus()
    for name in ("one", "two"):
        build(text, tmp_path / name)
    one, two = shards(tmp_path / "one"), shards(tmp_path / "two")
    assert [path.read_bytes() for path in one.values()] == [path.read_bytes() for path in two.values()]


@pytest.mark.usefixtures("on_disk")
def test_a_changed_byte_of_such_a_shard_is_found(tmp_path: Path, write_corpus: Callable[..., Path]) -> None:
    build(write_corpus(), tmp_path / "data")
    path = shards(tmp_path / "data")["seq_len_32_max_pred_5/training_0000.hdf5"]
    with h5py.File(path) as file:
        places = [(values.id.get_offset(), values.nbytes) for values in file.values()]
    content = path.read_bytes()
    for start, size in places:
        changed = bytearray(content)
        changed[start + size // 2] ^= 1
        path.write_bytes(changed)
        assert main(["verify", str(path)]) == 1
    path.write_bytes(content)
    assert main(["verify", str(path)]) == 0


@pytest.mark.usefixtures("on_disk")
def test_a_full_disk_is_named_and_nothing_is_left(
    tmp_path: Path,
    write_corpus: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    text = write_corpus()
    with monkeypatch.context() as patched:
        patched.setattr(os, "posix_fallocate", full)
        assert main(["build", "--text", str(text), "--output", str(tmp_path / "data"), *OPTIONS]) == EXIT_INFRASTRUCTURE
    assert "training_0000.hdf5: cannot be written, the disk is full" in capsys.readouterr().err
    left = [path.name for path in (tmp_path / "data").rglob("*") if "shuffle" in path.name or ".partial" in path.name]
    assert left == []
    assert shards(tmp_path / "data") == {}
    build(text, tmp_path / "data")
    assert main(["verify", str(tmp_path / "data")]) == 0


_ON_A_FULL_DISK = """
import resource, sys
from bert_trainer.dataset.__main__ import main
from bert_trainer.dataset.sampling import shard_samples
shard_samples.IN_MEMORY_TOKENS, shard_samples.BLOCK_TOKENS = 1, 2500
root, limits, *command = sys.argv[1:]
for limit in limits.split():
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit), resource.RLIM_INFINITY))
    status = main(["build", "--output", f"{root}/{limit}", *command])
    print(f"end: {status}", file=sys.stderr)
"""


@pytest.mark.parametrize("layout", ["compact", "nvidia"])
def test_a_disk_that_is_full_at_any_moment_is_named_with_the_remedy(
    tmp_path: Path, write_corpus: Callable[..., Path], layout: str
) -> None:
    build(write_corpus(), tmp_path / "whole", "--layout", layout)
    limits = ("0", "2000", "6000", "30000")
    command = [sys.executable, "-c", _ON_A_FULL_DISK, str(tmp_path), " ".join(limits)]
    # A vocabulary of their own would be the first that does not fit.
    command += ["--text", str(tmp_path / "text"), "--vocabulary", str(tmp_path / "whole" / "vocab.txt")]
    environment = {**os.environ, "PYTHONPATH": ":".join(sys.path)}
    run = subprocess.run(
        [*command, "--layout", layout, *OPTIONS], stderr=subprocess.PIPE, text=True, timeout=60, env=environment
    )
    assert "Traceback" not in run.stderr
    *each, last = run.stderr.split("end: 1\n")
    assert (len(each), last) == (len(limits), ""), run.stderr
    for limit, said in zip(limits, each, strict=True):
        assert "cannot be written, the disk is full (File too large)" in said, limit
        assert "hint: free space or choose another folder, then start again" in said, limit
        names = [path.name for path in (tmp_path / limit).rglob("*")]
        assert [name for name in names if "shuffle" in name or ".partial" in name] == []
