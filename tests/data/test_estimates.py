"""A build that cannot fit is refused before anything is written, with what it needs and what there is."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from bert_job.run_config import DatasetConfig
from bert_job.run_stages import PrepareStage
from bert_trainer.dataset.build.estimates import Estimate, check_estimate, estimate_build, free_disk
from bert_trainer.dataset.build.pipeline import build_dataset
from bert_trainer.errors import InputError
from silent import Silent

MEGABYTE = 1_000_000


def estimate(text_bytes: int, **changes: object) -> Estimate:
    settings: dict[str, object] = {
        "text_bytes": text_bytes,
        "lengths": [(128, 20)],
        "draws": 5,
        "num_shards": None,
        "num_processes": 1,
        "vocabulary_size": 30522,
    }
    return estimate_build(**{**settings, **changes})  # type: ignore[arg-type]


def test_memory_does_not_grow_with_the_text_where_shards_are_not_counted() -> None:
    assert estimate(200 * MEGABYTE).memory == estimate(2000 * MEGABYTE).memory < 500 * MEGABYTE
    # 313 million tokens to a shard, 3.75 million rows: the tokens are in memory, the rows (3.5 GB) are not.
    assert 1700 * MEGABYTE < estimate(2000 * MEGABYTE, num_shards=8).memory < 2500 * MEGABYTE
    assert estimate(200 * MEGABYTE, num_processes=4).memory == 4 * estimate(200 * MEGABYTE).memory


def test_disk_grows_with_text_repetitions_and_lengths() -> None:
    one = estimate(100 * MEGABYTE).disk
    assert estimate(200 * MEGABYTE).disk == pytest.approx(2 * one, abs=2)
    # Some 13,500 rows of phase 1 come from a megabyte drawn five times; a full one has 343 bytes. Scratch: 1.8 MB.
    assert (13_500 * 343 + 1.8 * MEGABYTE) * 100 < one < 8 * 100 * MEGABYTE
    assert estimate(100 * MEGABYTE, draws=10).disk > 1.7 * one
    assert estimate(100 * MEGABYTE, lengths=[(128, 20), (512, 80)]).disk > 1.7 * one
    assert estimate(100 * MEGABYTE, vocabulary_size=100_000).disk > 1.5 * one
    # The rows of large shards wait on disk: once more for each process.
    few = estimate(100 * MEGABYTE, num_shards=4).disk
    assert few == pytest.approx(one + (one - 180 * MEGABYTE) / 4, rel=0.01)
    assert estimate(100 * MEGABYTE, num_shards=4, num_processes=4).disk == pytest.approx(
        2 * one - 180 * MEGABYTE, rel=0.01
    )


def test_other_layouts_need_other_disk_and_the_same_memory() -> None:
    compact = estimate(2000 * MEGABYTE, num_shards=8)
    whole = estimate(2000 * MEGABYTE, num_shards=8, layouts=["nvidia"])
    assert whole == compact
    parts = estimate(2000 * MEGABYTE, num_shards=8, layouts=["compact", "intel"])
    assert parts.memory == compact.memory
    # 30 million rows more, of (4 + 2) * 128 + 2 * 4 * 20 + 1 bytes.
    assert parts.disk - compact.disk == pytest.approx(30 * MEGABYTE * 929, rel=0.02)


def test_resharding_counts() -> None:
    layouts = ["compact", "intel"]
    first = estimate(2000 * MEGABYTE, num_shards=500, layouts=layouts)
    # 30 million rows in 2,048 files: less than a part of 500 holds.
    assert estimate(2000 * MEGABYTE, num_shards=500, layouts=layouts, num_balanced=2048) == first
    # In 4 files each holds 7.5 million, which wait on disk; 94 thousand of 929 bytes are in memory, with copies.
    few = estimate(2000 * MEGABYTE, num_shards=500, layouts=layouts, num_balanced=4)
    assert few.disk - first.disk == pytest.approx(7.5 * MEGABYTE * 343, rel=0.02)
    assert few.memory - 250 * MEGABYTE == pytest.approx(2.5 * 93_750 * 929 + 30 * MEGABYTE, rel=0.01)
    assert few.memory > first.memory
    assert estimate(2000 * MEGABYTE, num_shards=500, layouts=layouts, num_balanced=4, num_processes=3).memory == (
        3 * few.memory
    )


def test_what_does_not_fit_is_named_with_what_is_needed_and_free() -> None:
    folder = Path("/data/wiki")
    check_estimate(Estimate(10, 10), folder, free_disk=10, free_memory=10)
    with pytest.raises(
        InputError, match=r"/data/wiki: the build needs about 12\.5 GB of disk, 800 MB are free"
    ) as disk:
        check_estimate(Estimate(12_500 * MEGABYTE, 10), folder, free_disk=800 * MEGABYTE, free_memory=10)
    assert "larger disk" in str(disk.value)
    with pytest.raises(InputError, match=r"/data/wiki: the build needs about 4\.0 GB of memory, 2\.0 GB are free"):
        check_estimate(Estimate(10, 4000 * MEGABYTE), folder, free_disk=10, free_memory=2000 * MEGABYTE)


def test_free_space_is_found_for_a_folder_that_does_not_exist_yet(tmp_path: Path) -> None:
    assert 0 < free_disk(tmp_path / "a" / "b") <= shutil.disk_usage(tmp_path).total


def test_a_build_on_a_full_disk_is_refused_before_it_starts(
    tmp_path: Path, write_corpus: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    text, root = write_corpus(), tmp_path / "data"
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
    stage = PrepareStage(text=str(text), num_processes=1)
    with pytest.raises(InputError, match=r"data: the build needs about \d+ kB of disk, 1 kB are free"):
        build_dataset(stage, DatasetConfig(folder=str(root)), [(32, 5)], Silent())
    assert not root.exists()
