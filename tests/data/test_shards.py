"""Shards are written and read in NVIDIA's layout, found by name, and refused with a reason."""

from __future__ import annotations

import errno
import os
from dataclasses import fields
from pathlib import Path

import h5py
import numpy as np
import pytest

from bert_trainer.dataset.shards import LayoutName, ShardFolder, find_shard_folder, read_shard, write_shard
from bert_trainer.dataset.shards.ragged import RaggedSamples
from bert_trainer.dataset.shards.samples import Samples
from bert_trainer.dataset.tokens.wordpiece import Vocabulary
from bert_trainer.errors import InputError, TrainerError

TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{number}" for number in range(5, 60)))
VOCABULARY = Vocabulary(TOKENS, "a" * 64, 0, 1, 2, 3, 4)
T, P = 12, 2


def make_samples(rows: int, first_token: int = 10) -> Samples:
    """Rows [CLS] x x x [SEP] y y [SEP] with a prediction at 2 and one at 6."""
    ids = np.zeros((rows, T), np.int32)
    ids[:, :8] = [2, 10, 4, 12, 3, 13, 14, 3]
    ids[:, 1] = first_token + np.arange(rows)
    positions = np.tile(np.array([2, 6], np.int32), (rows, 1))
    labels = np.tile(np.array([11, 14], np.int32), (rows, 1))
    mask, segments = np.zeros((rows, T), np.int8), np.zeros((rows, T), np.int8)
    mask[:, :8] = 1
    segments[:, 5:8] = 1
    return Samples(ids, mask, segments, positions, labels, (np.arange(rows) % 2).astype(np.int8))


def write(path: Path, rows: int = 4, sha256: str = VOCABULARY.sha256, layout: LayoutName = "nvidia") -> None:
    write_shard(path, make_samples(rows), vocabulary_sha256=sha256, generator_version=1, layout=layout)


def open_folder(folder: Path, split: str = "training", length: int = T, predictions: int = P) -> ShardFolder:
    return ShardFolder.open(
        folder,
        split=split,  # type: ignore[arg-type]
        sequence_length=length,
        max_predictions=predictions,
        vocabulary=VOCABULARY,
    )


def write_foreign(path: Path, kind: str, leave_out: str = "") -> None:
    """Write what other projects write: no attributes, no compression, other integers."""
    samples = make_samples(3)
    with h5py.File(path, "w") as file:
        for field in fields(samples):
            if field.name != leave_out:
                file[field.name] = getattr(samples, field.name).astype(kind)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    write(tmp_path / "training_0000.hdf5")
    found, expected = read_shard(tmp_path / "training_0000.hdf5", VOCABULARY.size), make_samples(4)
    for field in fields(expected):
        array = getattr(found, field.name)
        np.testing.assert_array_equal(array, getattr(expected, field.name))
        assert array.dtype == getattr(expected, field.name).dtype


def test_the_layout_is_nvidia_s(tmp_path: Path) -> None:
    write(tmp_path / "training_0000.hdf5")
    with h5py.File(tmp_path / "training_0000.hdf5") as file:
        kinds = {name: (dataset.dtype.str, dataset.shape, dataset.compression) for name, dataset in file.items()}
        assert dict(file.attrs) == {
            "sequence_length": 12,
            "max_predictions": 2,
            "vocabulary_sha256": b"a" * 64,
            "generator_version": 1,
        }
    assert kinds == {
        "input_ids": ("<i4", (4, 12), "gzip"),
        "input_mask": ("|i1", (4, 12), "gzip"),
        "segment_ids": ("|i1", (4, 12), "gzip"),
        "masked_lm_positions": ("<i4", (4, 2), "gzip"),
        "masked_lm_ids": ("<i4", (4, 2), "gzip"),
        "next_sentence_labels": ("|i1", (4,), "gzip"),
    }


def test_the_same_samples_give_the_same_bytes(tmp_path: Path) -> None:
    write(tmp_path / "one.hdf5", rows=700)
    write(tmp_path / "two.hdf5", rows=700)
    assert (tmp_path / "one.hdf5").read_bytes() == (tmp_path / "two.hdf5").read_bytes()


def test_a_folder_lists_the_shards_of_one_split_in_order(tmp_path: Path) -> None:
    for name, rows in (("training_0001", 2), ("training_0000", 3), ("held_out_0000", 5)):
        write(tmp_path / f"{name}.hdf5", rows)
    (tmp_path / ".training_0002.hdf5.77.partial").touch()
    training, held_out = open_folder(tmp_path), open_folder(tmp_path, "held_out")
    assert [path.name for path in training.paths] == ["training_0000.hdf5", "training_0001.hdf5"]
    assert training.rows == (3, 2)
    assert training.num_samples == 5
    assert held_out.rows == (5,)
    assert len(training.read_ragged(1)) == 2


@pytest.mark.parametrize("kind", ["i2", "i4", "u2", "i8"])
def test_foreign_shards_of_any_integers_are_read(tmp_path: Path, kind: str) -> None:
    write_foreign(tmp_path / "part_00000_of_00001.hdf5", kind)
    samples = open_folder(tmp_path).read_ragged(0).to_padded(T, P)
    assert samples.input_ids.dtype == np.int32
    assert samples.input_mask.dtype == np.int8
    np.testing.assert_array_equal(samples.input_ids, make_samples(3).input_ids)


def test_files_are_closed_after_every_call(tmp_path: Path) -> None:
    write(tmp_path / "training_0000.hdf5")
    folder = open_folder(tmp_path)
    folder.read_ragged(0)
    open_files = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if fd.isdigit()
                  and os.path.islink(f"/proc/self/fd/{fd}")]  # fmt: skip
    assert not any(name.endswith(".hdf5") for name in open_files)


def test_a_wrong_shape_names_file_dataset_found_and_wanted(tmp_path: Path) -> None:
    write(tmp_path / "training_0000.hdf5")
    with pytest.raises(
        InputError, match=r"training_0000\.hdf5: dataset 'input_ids' has shape \(4, 12\), wanted \(4, 16\)"
    ):
        open_folder(tmp_path, length=16)
    with pytest.raises(InputError, match=r"dataset 'masked_lm_positions' has shape \(4, 2\), wanted \(4, 3\)"):
        open_folder(tmp_path, predictions=3)


def test_unequal_rows_are_refused(tmp_path: Path) -> None:
    write_foreign(tmp_path / "training_0.hdf5", "i4", leave_out="segment_ids")
    with h5py.File(tmp_path / "training_0.hdf5", "a") as file:
        file["segment_ids"] = np.zeros((2, T), np.int8)
    with pytest.raises(InputError, match=r"dataset 'segment_ids' has shape \(2, 12\), wanted \(3, 12\)") as error:
        open_folder(tmp_path)
    assert "delete the bad file and build again" in str(error.value)


def test_missing_datasets_and_other_layouts_are_told_apart(tmp_path: Path) -> None:
    write_foreign(tmp_path / "training_0.hdf5", "i4", leave_out="masked_lm_ids")
    with pytest.raises(InputError, match=r"lacks the dataset\(s\) masked_lm_ids; found input_ids, input_mask") as error:
        open_folder(tmp_path)
    assert "take files of other programs out of the folder" in str(error.value)
    write_foreign(tmp_path / "training_0.hdf5", "i4", leave_out="input_mask")
    with pytest.raises(InputError, match=r"lacks the dataset\(s\) input_mask; found input_ids"):
        open_folder(tmp_path)


def test_datasets_must_hold_integers_in_the_right_dimensions(tmp_path: Path) -> None:
    write_foreign(tmp_path / "training_0.hdf5", "f4")
    with pytest.raises(InputError, match="dataset 'input_ids' has type float32, wanted integers") as error:
        open_folder(tmp_path)
    assert "delete the bad file and build again" in str(error.value)
    write_foreign(tmp_path / "training_0.hdf5", "i4", leave_out="next_sentence_labels")
    with h5py.File(tmp_path / "training_0.hdf5", "a") as file:
        file["next_sentence_labels"] = np.zeros((3, 1), np.int8)
    with pytest.raises(InputError, match=r"'next_sentence_labels' has 2 dimension\(s\), wanted 1"):
        open_folder(tmp_path)


@pytest.mark.parametrize("keep", [0, 100, 2000, -100])
def test_a_truncated_file_is_named_with_a_remedy(tmp_path: Path, keep: int) -> None:
    path = tmp_path / "training_0000.hdf5"
    write(path, rows=500)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(InputError, match=r"(?s)training_0000\.hdf5: damaged or not an HDF5.*bert-data verify"):
        open_folder(tmp_path)


def test_damage_inside_the_rows_is_found_when_they_are_read(tmp_path: Path) -> None:
    path = tmp_path / "training_0000.hdf5"
    write(path, rows=500)
    content = bytearray(path.read_bytes())
    with h5py.File(path) as file:
        chunk = file["input_ids"].id.get_chunk_info(0)
    content[chunk.byte_offset + 10 : chunk.byte_offset + 40] = b"\xff" * 30
    path.write_bytes(content)
    folder = open_folder(tmp_path)
    with pytest.raises(InputError, match=r"training_0000\.hdf5: damaged or not an HDF5 file"):
        folder.read_ragged(0)


def test_a_vocabulary_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "training_0000.hdf5", sha256="b" * 64)
    with pytest.raises(InputError, match=r"(?s)a vocabulary that does not fit: SHA-256 b{64}.* has a{64}"):
        open_folder(tmp_path)


def test_token_ids_beyond_the_vocabulary_are_refused(tmp_path: Path) -> None:
    samples = make_samples(4, first_token=90)
    write_shard(
        tmp_path / "training_0.hdf5", samples, vocabulary_sha256=VOCABULARY.sha256, generator_version=1, layout="nvidia"
    )
    with pytest.raises(
        InputError,
        match=r"training_0\.hdf5: .*does not fit: the largest token id in 'input_ids' is 93.* 60 en",
    ):
        open_folder(tmp_path).read_ragged(0)


def test_numbers_out_of_range_are_refused(tmp_path: Path) -> None:
    samples = make_samples(4)
    samples.masked_lm_positions[1, 1] = T
    write_shard(tmp_path / "a.hdf5", samples, vocabulary_sha256="", generator_version=1, layout="nvidia")
    with pytest.raises(InputError, match="dataset 'masked_lm_positions' holds 2 to 12, allowed 0 to 11"):
        read_shard(tmp_path / "a.hdf5")


def test_padding_before_tokens_and_predictions_in_padding_are_refused(tmp_path: Path) -> None:
    holed, pointing = make_samples(4), make_samples(4)
    holed.input_mask[2, 3] = 0
    pointing.masked_lm_positions[3, 1] = 8
    for name, samples, row in (("holed", holed, 2), ("pointing", pointing, 3)):
        write_shard(tmp_path / f"{name}.hdf5", samples, vocabulary_sha256="", generator_version=1, layout="nvidia")
        with pytest.raises(InputError, match=rf"{name}\.hdf5: row {row} has padding before a token"):
            read_shard(tmp_path / f"{name}.hdf5")


def test_a_folder_without_the_split_lists_its_files(tmp_path: Path) -> None:
    write(tmp_path / "training_0000.hdf5")
    with pytest.raises(InputError, match=r"no held_out shards; found training_0000\.hdf5"):
        open_folder(tmp_path, "held_out")
    with pytest.raises(InputError, match="none: no such folder of shards"):
        open_folder(tmp_path / "none")


def test_a_full_disk_is_named_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(TrainerError, match=r"(?s)training_0000\.hdf5: cannot be written, the disk is full.*hint"):
        write(tmp_path / "training_0000.hdf5")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "name",
    [
        "seq_len_12_max_pred_2",
        "hdf5_lower_case_1_seq_len_12_max_pred_2_masked_lm_prob_0.15_random_seed_12345_dupe_factor_5",
        "hdf5_seq_12",
        "2048_shards_uncompressed_12",
    ],
)
def test_folders_are_recognised_by_name(tmp_path: Path, name: str) -> None:
    for other in ("seq_len_12_max_pred_20", "seq_len_128_max_pred_2", "seq_len_112_max_pred_2"):
        (tmp_path / other).mkdir()
        write(tmp_path / other / "training_0000.hdf5")
    (tmp_path / name).mkdir()
    write(tmp_path / name / "training_0000.hdf5")
    assert find_shard_folder(tmp_path, 12, 2) == tmp_path / name


def test_nvidia_s_corpus_folder_is_looked_into(tmp_path: Path) -> None:
    folder = tmp_path / "hdf5_lower_case_1_seq_len_12_max_pred_2_masked_lm_prob_0.15" / "wikicorpus_en"
    folder.mkdir(parents=True)
    write(folder / "wikicorpus_en_training_0.hdf5")
    assert find_shard_folder(tmp_path, 12, 2) == folder
    (folder.parent / "books").mkdir()
    write(folder.parent / "books" / "books_training_0.hdf5")
    with pytest.raises(InputError, match="2 folders hold shards of 12 tokens"):
        find_shard_folder(tmp_path, 12, 2)


def test_a_missing_folder_lists_those_that_exist(tmp_path: Path) -> None:
    (tmp_path / "seq_len_128_max_pred_20").mkdir()
    with pytest.raises(InputError, match="no shards of 512 tokens and 80 predictions; found seq_len_128_max_pred_20"):
        find_shard_folder(tmp_path, 512, 80)
    with pytest.raises(InputError, match="none: no such dataset folder"):
        find_shard_folder(tmp_path / "none", 512, 80)


@pytest.mark.parametrize("kind", [np.uint16, np.int32])
def test_rows_are_taken_in_any_order_with_what_belongs_to_them(kind: type[np.integer]) -> None:
    counts, predictions = np.array([3, 0, 5, 1]), np.array([1, 0, 2, 0])
    samples = RaggedSamples(
        tokens=np.array([2, 10, 3, 2, 11, 3, 12, 3, 2], kind),
        token_counts=counts,
        first_segment_counts=counts,
        next_sentence_labels=np.array([0, 1, 1, 0], np.int8),
        prediction_counts=predictions,
        masked_lm_positions=np.array([1, 1, 3], np.uint16),
        masked_lm_ids=np.array([20, 21, 22], kind),
    )
    taken = samples.take(np.array([2, 1, 0, 2]))
    assert taken.tokens.tolist() == [2, 11, 3, 12, 3, 2, 10, 3, 2, 11, 3, 12, 3]
    assert taken.tokens.dtype == kind
    assert taken.token_counts.tolist() == [5, 0, 3, 5]
    assert taken.masked_lm_positions.tolist() == [1, 3, 1, 1, 3]
    assert taken.masked_lm_ids.tolist() == [21, 22, 20, 21, 22]
    taken.tokens[0] = 0  # rows of their own: writing into them leaves the others as they are
    assert samples.tokens.tolist() == [2, 10, 3, 2, 11, 3, 12, 3, 2]
    assert len(samples.take(np.zeros(0, np.int64)).tokens) == 0
