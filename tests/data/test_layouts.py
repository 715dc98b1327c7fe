"""All layouts hold the same samples: written, told apart, read back, and refused by name where they cannot."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from any_layout import shard_name, write_shard
from bert_trainer.dataset.shards import (
    LAYOUTS,
    WRITTEN_LAYOUTS,
    LayoutName,
    ShardFolder,
    read_header,
    read_ragged,
    read_shard,
)
from bert_trainer.dataset.shards.ragged import RaggedSamples
from bert_trainer.dataset.shards.samples import Samples
from bert_trainer.errors import InputError
from tiny_run import make_samples

T, P = 32, 5


def samples_of(rows: int, seed: int = 3) -> Samples:
    return make_samples(rows, np.random.default_rng(seed), sequence_length=T, predictions=P)


def write(path: Path, samples: Samples | RaggedSamples, layout: LayoutName, masked: bool = True) -> Path:
    path = path.with_name(shard_name(path.name, layout))
    write_shard(
        path,
        samples,
        vocabulary_sha256="a" * 64,
        generator_version=1,
        layout=layout,
        shape=(T, P),
        masked=masked,
    )
    return path


def rows_of(samples: Samples) -> list[tuple[bytes, ...]]:
    arrays = [getattr(samples, field.name) for field in fields(samples)]
    return [tuple(array[row].tobytes() for array in arrays) for row in range(len(samples))]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_returns_the_samples_that_were_written(tmp_path: Path, layout: LayoutName) -> None:
    path = write(tmp_path / "training_0.hdf5", samples_of(300), layout)
    header = read_header(path)
    assert (header.rows, header.sequence_length, header.max_predictions) == (300, T, P)
    assert (header.layout, header.masked) == (layout, True)
    # Records hold no attributes.
    assert header.vocabulary_sha256 == (None if layout == "tfrecord" else "a" * 64)
    found, wanted = rows_of(read_shard(path)), rows_of(samples_of(300))
    # Packing puts samples that fill a row side by side.
    assert sorted(found) == sorted(wanted) if layout == "mlperf-packed" else found == wanted


@pytest.mark.parametrize("layout", WRITTEN_LAYOUTS)
def test_the_same_samples_give_the_same_bytes(tmp_path: Path, layout: LayoutName) -> None:
    one = write(tmp_path / "one.hdf5", samples_of(100), layout).read_bytes()
    assert write(tmp_path / "two.hdf5", samples_of(100), layout).read_bytes() == one


@pytest.mark.parametrize("layout", LAYOUTS)
def test_any_range_of_rows_can_be_read(tmp_path: Path, layout: LayoutName) -> None:
    path = write(tmp_path / "training_0.hdf5", samples_of(50), layout)
    whole = read_ragged(path).to_padded(T, P)
    for span in (slice(0, 0), slice(7, 31), slice(49, 50), slice(50, 50)):
        part = read_ragged(path, rows=span).to_padded(T, P)
        assert rows_of(part) == rows_of(whole)[span]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("rows", [1, 2])
def test_rows_of_one_length_are_written_and_read(tmp_path: Path, layout: LayoutName, rows: int) -> None:
    samples = samples_of(300)
    lengths, predictions = samples.input_mask.sum(axis=1), (samples.masked_lm_positions > 0).sum(axis=1)
    alike = np.flatnonzero((lengths == lengths[0]) & (predictions == predictions[0]))[:rows]
    assert len(alike) == rows
    path = write(tmp_path / "training_0.hdf5", samples.take(alike), layout)
    assert sorted(rows_of(read_shard(path))) == sorted(rows_of(samples.take(alike)))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_file_without_samples_is_written_and_read(tmp_path: Path, layout: LayoutName) -> None:
    path = write(tmp_path / "training_0.hdf5", samples_of(0), layout)
    assert read_header(path).rows == len(read_shard(path)) == len(read_ragged(path)) == 0


def test_datasets_and_types_are_those_of_the_original_scripts(tmp_path: Path) -> None:
    kinds = {}
    for layout in (layout for layout in LAYOUTS if layout != "tfrecord"):
        with h5py.File(write(tmp_path / f"{layout}.hdf5", samples_of(4), layout)) as file:
            for name, dataset in file.items():
                base = h5py.check_vlen_dtype(dataset.dtype)
                kinds[layout, name] = (f"{np.dtype(base).str}*" if base else dataset.dtype.str, dataset.compression)
    assert kinds["nvidia", "input_ids"] == ("<i4", "gzip")
    assert kinds["intel", "input_ids"] == ("<i4", None)
    assert kinds["mlperf", "input_ids"] == ("<i2", None)
    assert kinds["mlperf-variable", "input_ids"] == ("<i2*", None)
    assert kinds["mlperf-variable", "segment_ids"] == ("|i1*", None)
    assert kinds["mlperf-variable", "next_sentence_labels"] == ("|i1", None)
    assert kinds["mlperf-packed", "next_sentence_labels"] == ("|i1*", None)
    assert kinds["mlperf-packed", "packed_input_len"] == ("<i2*", None)
    assert kinds["compact", "tokens"] == ("<u2", None)
    assert ("mlperf-variable", "input_mask") not in kinds


def test_positions_of_a_packed_row_count_from_its_beginning(tmp_path: Path) -> None:
    samples = samples_of(60)
    with h5py.File(write(tmp_path / "packed.hdf5", samples, "mlperf-packed")) as file:
        assert max(len(row) for row in file["packed_input_len"][...]) in (2, 3)
        originals = RaggedSamples.from_padded(samples).unmasked()
        seen = 0
        for ids, positions, labels in zip(
            file["input_ids"][...], file["masked_lm_positions"][...], file["masked_lm_ids"][...], strict=True
        ):
            assert len(ids) <= T
            ids[positions] = labels
            assert 4 not in ids  # no [MASK] is left once every label is back in its place
            seen += len(ids)
        assert seen == len(originals.tokens)


def test_token_ids_that_a_layout_cannot_hold_are_refused_by_name(tmp_path: Path) -> None:
    samples = samples_of(4)
    samples.input_ids[2, 1] = 40_000
    with pytest.raises(InputError, match="layout mlperf: got the token id 40000; allowed: up to 32767"):
        write(tmp_path / "training_0.hdf5", samples, "mlperf")
    assert not list(tmp_path.iterdir())


def test_large_vocabularies_keep_their_ids_in_the_compact_layout(tmp_path: Path) -> None:
    for token in (65_535, 65_536, 250_000):
        samples = samples_of(4)
        samples.input_ids[2, 1] = token
        assert read_shard(write(tmp_path / "a.hdf5", samples, "compact")).input_ids[2, 1] == token


def test_samples_without_masks_are_held_by_the_compact_layout_alone(tmp_path: Path) -> None:
    bare = RaggedSamples.from_padded(samples_of(9)).unmasked()
    folder = tmp_path / "seq"
    folder.mkdir()
    path = write(folder / "training_0.hdf5", bare, "compact", masked=False)
    assert not read_header(path).masked
    with pytest.raises(InputError, match="layout nvidia cannot hold samples without masks; allowed: compact"):
        write(tmp_path / "b.hdf5", bare, "nvidia", masked=False)

    def open_it(masked: bool) -> ShardFolder:
        return ShardFolder.open(
            folder, split="training", sequence_length=T, max_predictions=P, vocabulary=None, masked=masked
        )

    assert open_it(masked=False).rows == (9,)
    with pytest.raises(InputError, match="(?s)hold no masks.*whose masks are in the file"):
        open_it(masked=True)


def test_segments_that_fall_again_are_refused_rather_than_changed(tmp_path: Path) -> None:
    samples = samples_of(4)
    samples.segment_ids[2, :4] = [0, 1, 0, 1]
    with pytest.raises(InputError, match=r"layout compact cannot hold it: row 2 has segments other than 0"):
        write(tmp_path / "a.hdf5", samples, "compact")
    path = write(tmp_path / "b.hdf5", samples, "nvidia")
    with pytest.raises(InputError, match=r"b\.hdf5: from row 0 on, row 2 has segments other than 0"):
        read_ragged(path)


def test_a_variable_length_file_that_states_no_length_is_checked_by_its_rows(tmp_path: Path) -> None:
    path = write(tmp_path / "part_0.hdf5", samples_of(40), "mlperf-variable")
    with h5py.File(path, "a") as file:
        for name in list(file.attrs):
            del file.attrs[name]
    assert read_header(path).sequence_length is None

    def open_it(length: int, predictions: int) -> ShardFolder:
        return ShardFolder.open(
            tmp_path, split="training", sequence_length=length, max_predictions=predictions, vocabulary=None
        )

    assert open_it(T, P).read_ragged(0).to_padded(T, P).input_ids.shape == (40, T)
    with pytest.raises(InputError, match=r"a row has \d+ tokens, another 5 predictions; allowed: 8 and 5 at most"):
        open_it(8, P)
    with pytest.raises(InputError, match="allowed: 32 and 2 at most"):
        open_it(T, 2)


@pytest.mark.parametrize("dataset", ["tokens", "token_counts", "masked_lm_ids", "next_sentence_labels"])
def test_one_changed_byte_of_a_compact_file_is_found(tmp_path: Path, dataset: str) -> None:
    path = write(tmp_path / "training_0.hdf5", samples_of(100), "compact")
    content = bytearray(path.read_bytes())
    with h5py.File(path) as file:
        content[file[dataset].id.get_offset() + 5] ^= 1
    path.write_bytes(content)
    with pytest.raises(InputError, match=rf"training_0\.hdf5: damaged: dataset '{dataset}' does not match"):
        read_shard(path)


@given(rows=st.integers(1, 40), seed=st.integers(0, 1000))
@settings(max_examples=60)
def test_any_selection_of_rows_is_the_same_with_and_without_padding(rows: int, seed: int) -> None:
    samples = samples_of(rows, seed)
    order = np.random.default_rng(seed).integers(0, rows, rows + 3)
    ragged = RaggedSamples.from_padded(samples)
    assert rows_of(ragged.take(order).to_padded(T, P)) == rows_of(samples.take(order))
    halves = [ragged.take(slice(0, rows // 2)), ragged.take(slice(rows // 2, rows))]
    assert rows_of(RaggedSamples.concatenate(halves).to_padded(T, P)) == rows_of(samples)
