"""What ``bert-data inspect`` counts is what the shards hold, in any layout and with any number of processes."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from any_layout import shard_name, write_shard
from bert_trainer.dataset.__main__ import main
from bert_trainer.dataset.quality.sample_statistics import NGRAM_TOKENS, DistinctCounts, SampleStatistics
from bert_trainer.dataset.shards import LAYOUTS, LayoutName, read_ragged
from bert_trainer.dataset.shards.ragged import RaggedSamples
from bert_trainer.dataset.shards.samples import Samples
from random_rows import random_samples
from relayout import relayout

SHAPE = (48, 8)


def inspected(capsys: pytest.CaptureFixture[str], *arguments: object) -> list[dict[str, Any]]:
    capsys.readouterr()
    assert main(["inspect", "--json", *map(str, arguments)]) == 0
    groups: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["groups"]
    return groups


def draw(rows: int, seed: int = 1) -> Samples:
    lengths = np.random.default_rng(seed).integers(9, SHAPE[0] + 1, rows).tolist()
    return random_samples(lengths, sequence_length=SHAPE[0], predictions=SHAPE[1], vocabulary_size=200, seed=seed)


def write(path: Path, samples: Samples | RaggedSamples, layout: LayoutName = "compact", *, masked: bool = True) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    shape = SHAPE
    path = path.with_name(shard_name(path.name, layout))
    write_shard(
        path, samples, vocabulary_sha256=None, generator_version=None, layout=layout, shape=shape, masked=masked
    )
    return path


def count(samples: Samples) -> SampleStatistics:
    ragged = RaggedSamples.from_padded(samples)
    return SampleStatistics.of([ragged], sequence_length=SHAPE[0], max_predictions=SHAPE[1], mask_id=4)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_numbers_are_those_of_the_rows_in_every_layout(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], layout: LayoutName
) -> None:
    samples = draw(500)
    (group,) = inspected(capsys, write(tmp_path / "part_0.hdf5", samples, layout))
    lengths = samples.input_mask.sum(axis=1)
    predicted = samples.masked_lm_positions > 0
    shown = np.take_along_axis(samples.input_ids, samples.masked_lm_positions, axis=1)[predicted]
    assert (group["layout"], group["samples"], group["tokens"]) == (layout, 500, int(lengths.sum()))
    assert group["samples_by_tokens"] == np.bincount(lengths, minlength=SHAPE[0] + 1).tolist()
    assert group["samples_by_predictions"] == np.bincount(predicted.sum(axis=1), minlength=SHAPE[1] + 1).tolist()
    assert group["padding_share"] == pytest.approx(1 - lengths.sum() / samples.input_ids.size)
    assert group["predictions_shown_as_mask"] == (shown == 4).sum()
    assert group["predictions_unchanged"] == (shown == samples.masked_lm_ids[predicted]).sum()
    assert group["random_next"] == samples.next_sentence_labels.sum()
    assert (group["duplicate_samples"], group["duplicate_texts"]) == (0, 0)


def test_any_number_of_processes_counts_the_same(
    tmp_path: Path, write_corpus: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--length", "32:5", "--length", "64:10", "--vocabulary-size", "120", "--shards", "4", "--processes", "1"]
    assert main(["build", "--text", str(write_corpus()), "--output", str(tmp_path / "data"), *options]) == 0
    one = inspected(capsys, tmp_path / "data", "--processes", 1)
    assert one == inspected(capsys, tmp_path / "data", "--processes", 3)
    assert [(group["split"], group["files"]) for group in one] == [("held_out", 1), ("training", 4)] * 2
    each = inspected(capsys, tmp_path / "data", "--each")
    assert len(each) == 10
    assert sum(group["tokens"] for group in each) == sum(group["tokens"] for group in one)


def test_files_of_other_folders_layouts_and_shapes_are_counted_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "a" / "part_0.hdf5", draw(10))
    write(tmp_path / "a" / "part_1.hdf5", draw(20, seed=2))
    write(tmp_path / "a" / "part_2.hdf5", draw(30, seed=3), "intel")
    write(tmp_path / "b" / "part_0.hdf5", draw(40, seed=4))
    groups = inspected(capsys, tmp_path / "b", tmp_path / "a", tmp_path / "a" / "part_0.hdf5")
    assert [(Path(group["folder"]).name, group["samples"]) for group in groups] == [("b", 40), ("a", 30), ("a", 30)]


def test_equal_samples_and_equal_texts_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    samples = RaggedSamples.from_padded(draw(50))
    other = samples.unmasked()
    write(tmp_path / "part_0.hdf5", samples)
    write(tmp_path / "part_1.hdf5", samples.take(np.arange(7)))
    (group,) = inspected(capsys, tmp_path)
    assert (group["duplicate_samples"], group["duplicate_texts"], group["duplicates_exact"]) == (7, 7, True)
    # The same rows with one prediction less: other samples of the same text.
    padded = other.to_padded(*SHAPE)
    padded.masked_lm_positions[:, 0], padded.masked_lm_ids[:, 0] = 1, padded.input_ids[:, 1]
    write(tmp_path / "part_2.hdf5", padded)
    (group,) = inspected(capsys, tmp_path)
    assert (group["duplicate_samples"], group["duplicate_texts"]) == (7, 57)


def test_segments_and_labels_tell_samples_apart() -> None:
    samples = draw(20)
    moved = Samples(*(getattr(samples, name).copy() for name in Samples.__slots__))
    moved.next_sentence_labels[:] = 1 - moved.next_sentence_labels
    assert count(Samples.concatenate([samples, moved])).samples.duplicate_share == 0
    assert count(Samples.concatenate([samples, moved])).texts.duplicate_share == 0.5
    moved.segment_ids[:, 1] = 1 - moved.segment_ids[:, 1]
    moved.segment_ids[:, 1:] *= moved.input_mask[:, 1:]
    moved.segment_ids[:] = np.maximum.accumulate(moved.segment_ids, axis=1) * moved.input_mask
    assert count(Samples.concatenate([samples, moved])).texts.duplicate_share < 0.5


def test_ngrams_are_found_at_any_position() -> None:
    rng = np.random.default_rng(3)
    text = rng.integers(5, 30000, 40_000)

    def rows(starts: list[int], length: int) -> RaggedSamples:
        tokens = np.concatenate([[2, *text[at : at + length // 2], 3, *text[at + length // 2 : at + length], 3]
                                 for at in starts])  # fmt: skip
        counts = np.full(len(starts), length + 3)
        empty = np.zeros(len(starts), np.int64)
        return RaggedSamples(tokens.astype(np.uint16), counts, np.full(len(starts), length // 2 + 2),
                             empty.astype(np.int8), empty, np.zeros(0, np.uint16), np.zeros(0, np.uint16))  # fmt: skip

    def times(*files: RaggedSamples) -> tuple[float, float]:
        parts = [SampleStatistics.of([file], sequence_length=403, max_predictions=1, mask_id=None) for file in files]
        merged = SampleStatistics.merged(parts)
        return merged.ngrams.mean_count, merged.mean_count_per_file

    first = rows(list(range(0, 20_000, 400)), 400)
    elsewhere = rows(list(range(20_000, 40_000, 400)), 400)
    shifted = rows(list(range(200, 20_200, 400)), 400)
    assert times(first, elsewhere) == (1, 1)
    assert times(first, first) == (2, 1)
    # Cut at other places, the halves of the segments that both hold are the same n-grams.
    assert times(first, shifted)[0] > 1.5
    assert times(shifted)[0] == 1
    assert times(rows([0, 0, 400, 400], 400)) == (2, 2)
    assert NGRAM_TOKENS < 200


@pytest.mark.parametrize("most", [1 << 20, 1000])
def test_repetitions_are_exact_or_estimated_in_bounded_memory(most: int) -> None:
    rng = np.random.default_rng(5)
    different = rng.integers(0, 1 << 63, 40_000, np.uint64) << np.uint64(1)
    hashes = rng.permutation(np.repeat(different, rng.integers(1, 6, len(different))))
    parts = [DistinctCounts.of(part, most=most) for part in np.array_split(hashes, 7)]
    forwards, backwards = DistinctCounts.merged(parts, most=most), DistinctCounts.merged(parts[::-1], most=most)
    assert (forwards.keys == backwards.keys).all()
    assert (forwards.counts == backwards.counts).all()
    assert len(forwards.keys) <= most
    true = len(hashes) / len(different)
    # The counts have a variance of 2; five standard errors of their mean.
    assert (
        forwards.mean_count == true
        if forwards.is_exact
        else abs(forwards.mean_count - true) < 5 * (2 / most * 2) ** 0.5
    )
    assert forwards.is_exact == (most > 40_000)


def test_counts_of_few_and_of_many_hashes_add_up_to_those_of_all() -> None:
    """The few are all kept, the many are a sample: together both are as strict as the many."""
    hashes = np.random.default_rng(5).integers(0, 1 << 63, 40_000, np.uint64) << np.uint64(1)
    few, many = (DistinctCounts.of(part, most=1000) for part in (hashes[:50], hashes[50:]))
    assert few.is_exact
    assert not many.is_exact
    both, wanted = DistinctCounts.merged([few, many], most=1000), DistinctCounts.of(hashes, most=1000)
    assert (both.shift, both.keys.tolist()) == (wanted.shift, wanted.keys.tolist())


def test_samples_without_masks_are_counted_and_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    unmasked = RaggedSamples.from_padded(draw(30)).unmasked()
    path = write(tmp_path / "part_0.hdf5", unmasked, masked=False)
    (group,) = inspected(capsys, path)
    assert (group["masked"], group["predictions"], group["samples"]) == (False, 0, 30)
    assert main(["inspect", str(path)]) == 0
    assert "no masks" in capsys.readouterr().out


def test_a_file_without_samples_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "part_0.hdf5", draw(3).take(slice(0, 0)))
    assert main(["inspect", str(path)]) == 0
    assert "0 samples of 48 tokens" in capsys.readouterr().out


@pytest.mark.parametrize(("ending", "groups"), [("png", 8), ("svg", 1)])
def test_a_plot_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str], ending: str, groups: int) -> None:
    for number in range(groups):
        write(tmp_path / f"folder_{number}" / "part_0.hdf5", draw(20 + number, seed=number))
    target = tmp_path / f"picture.{ending}"
    assert main(["inspect", str(tmp_path), "--plot", str(target)]) == 0
    content = target.read_bytes()
    assert content.startswith(b"\x89PNG") if ending == "png" else b"<svg" in content
    assert f"drawn in {target}" in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == [target.name]


def test_an_unknown_plot_format_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "part_0.hdf5", draw(5))
    assert main(["inspect", str(path), "--plot", str(tmp_path / "picture.doc")]) == 2
    assert "allowed endings: " in capsys.readouterr().err


def test_missing_matplotlib_is_an_error_that_names_the_extra(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "part_0.hdf5", draw(5))
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert main(["inspect", str(path), "--plot", str(tmp_path / "picture.png")]) == 2
    assert "pip install 'bert-pretrain-operator[trainer]'" in capsys.readouterr().err


def test_a_bar_shows_rate_and_time_left_on_a_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    path = write(tmp_path / "part_0.hdf5", draw(2000))
    for command in ("inspect", "verify"):
        capsys.readouterr()
        assert main([command, str(path)]) in (0, 1)
        shown = capsys.readouterr().err
        assert command in shown
        assert "MB/s of shards" in shown
        assert "0:00:00" in shown


def test_documents_of_a_dataset_are_described_from_dataset_json(
    tmp_path: Path, write_corpus: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    text = write_corpus()
    (text / "c.txt").write_text((text / "a.txt").read_text().split("\n\n")[0])
    options = ["--length", "32:5", "--vocabulary-size", "120", "--shards", "2", "--processes", "1"]
    assert main(["build", "--text", str(text), "--output", str(tmp_path / "data"), *options]) == 0
    folder = tmp_path / "data" / "seq_len_32_max_pred_5"
    for path in folder.iterdir():
        relayout(path)
    capsys.readouterr()
    assert main(["inspect", str(folder), "--published"]) == 0
    shown = capsys.readouterr().out
    assert "41 documents read, 1 of them dropped as near-duplicates" in shown
    assert "predictions shown as [MASK]" in shown
    assert read_ragged(folder / "training_0000.hdf5").token_counts.max() <= 32
