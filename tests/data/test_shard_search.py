"""Shards are found below a folder as recipes leave them, by what the files hold; what cannot be decided is said.

Inputs: folders and file names of NVIDIA's, Intel's and MLPerf's scripts around shards of two lengths, and trees made to
mislead. Observed: the folder that is found, and the words of the error.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import h5py
import numpy as np
import pytest

from any_layout import write_shard
from bert_trainer.dataset.shards import (
    LayoutName,
    ShardFolder,
    Split,
    find_named_shards,
    find_shard_folder,
    search,
)
from bert_trainer.errors import InputError
from tiny_run import make_samples

SHORT, LONG = (12, 2), (24, 4)


def write(path: Path, shape: tuple[int, int] = SHORT, layout: LayoutName = "intel") -> Path:
    """Write a shard, under a name with or without a suffix; return its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    samples = make_samples(4, np.random.default_rng(0), sequence_length=shape[0], predictions=shape[1])
    written = path if path.suffix else path.with_suffix(".hdf5")
    write_shard(written, samples, vocabulary_sha256=None, generator_version=None, layout=layout)
    written.rename(path)
    return path.parent


def find(root: Path, shape: tuple[int, int] = SHORT, split: Split = "training") -> Path:
    return find_shard_folder(root, *shape, split)


def num_samples(folder: Path, shape: tuple[int, int] = SHORT) -> int:
    opened = ShardFolder.open(
        folder, split="training", sequence_length=shape[0], max_predictions=shape[1], vocabulary=None
    )
    return opened.num_samples


NVIDIA = "hdf5_lower_case_1_seq_len_{0}_max_pred_{1}_masked_lm_prob_0.15_random_seed_12345_dupe_factor_5/wikicorpus_en"


LEFT_BY = {
    "NVIDIA, below hdf5": [f"hdf5/{NVIDIA}/wikicorpus_en_training_0.hdf5"] * 2,
    "MLPerf's parts": ["hdf5/hdf5_seq_{0}/part-00000-of-00001.hdf5"] * 2,
    "no length in any name": [f"phase{number}/hdf5/training/part_00000_of_00001.hdf5" for number in (1, 2)],
    "no suffix": ["a/part-00000-of-00001", "b/part-00000-of-00001"],
    "Intel's cut shards": [
        "x/2048_shards_uncompressed/part_0_of_1.hdf5",
        "2048_shards_uncompressed_{0}/part_0_of_1.hdf5",
    ],
    "folders named like files": ["training_128/a_training_0.hdf5", "department42/part1/part-00000-of-00001"],
    "a length and a word in the folder's name": ["training_seq_len_{0}_max_pred_{1}/a_training_0.hdf5"] * 2,
    "no word in the files' names": ["short/output_00000.hdf5", "long/output_00000.hdf5"],
}


@pytest.mark.parametrize("names", LEFT_BY.values(), ids=LEFT_BY.keys())
def test_the_length_of_the_rows_decides(tmp_path: Path, names: list[str]) -> None:
    shapes = zip((SHORT, LONG), names, strict=True)
    folders = {shape: write(tmp_path / name.format(*shape), shape) for shape, name in shapes}
    for shape, folder in folders.items():
        assert find(tmp_path, shape) == folder
        assert num_samples(folder, shape) == 4


def test_the_folder_of_the_shards_itself_may_be_named(tmp_path: Path) -> None:
    folder = write(tmp_path / "hdf5" / "part_0_of_1.hdf5")
    assert find(folder) == find(folder.parent) == find_named_shards(folder, *SHORT) == folder
    assert find_named_shards(folder.parent, *SHORT) == folder
    # What a stage names is opened as it is; the error is that of the files.
    assert find_named_shards(folder, *LONG) == folder


def test_cut_shards_are_preferred_to_their_parts_at_any_depth(tmp_path: Path) -> None:
    write(tmp_path / "data/hdf5_seq_12/part-00000-of-00001.hdf5")
    cut = write(tmp_path / "data/2048_shards_uncompressed_12/part_0_of_1.hdf5")
    assert find(tmp_path) == cut


def test_an_evaluation_set_is_not_trained_on(tmp_path: Path) -> None:
    write(tmp_path / "bert/eval_set_10k/part_0_of_1.hdf5")
    training = write(tmp_path / "bert/training/part_0_of_1.hdf5")
    held_out = write(tmp_path / "bert/mine/eval_10000.hdf5")
    assert find(tmp_path) == training
    assert find(tmp_path, split="held_out") == held_out


def test_rows_without_a_stated_length_are_measured(tmp_path: Path) -> None:
    for shape, name in ((SHORT, "one"), (LONG, "two")):
        write(tmp_path / name / "part_00000_of_00001.hdf5", shape, "mlperf-variable")
        # As MLPerf's own script leaves them.
        with h5py.File(tmp_path / name / "part_00000_of_00001.hdf5", "r+") as file:
            for key in list(file.attrs):
                del file.attrs[key]
    assert find(tmp_path) == tmp_path / "one"
    assert find(tmp_path, LONG) == tmp_path / "two"


def test_a_name_that_lies_does_not_count(tmp_path: Path) -> None:
    write(tmp_path / "seq_len_12_max_pred_2/training_0000.hdf5", LONG)
    folder = write(tmp_path / "other/training_0000.hdf5", SHORT)
    assert find(tmp_path) == folder


def test_what_is_ambiguous_is_listed(tmp_path: Path) -> None:
    one, two = (write(tmp_path / name / "part_0_of_1.hdf5") for name in ("one", "two"))
    with pytest.raises(InputError) as refused:
        find(tmp_path)
    assert f"2 folders hold shards of 12 tokens and 2 predictions: {one}, {two}" in str(refused.value)
    assert "name one of them as the stage's shards (spec.stages[].pretrain.shards" in str(refused.value)


@pytest.mark.parametrize(
    ("wanted", "hint"),
    [
        ((12, 3), "set maxPredictionsPerSequence: 2, which these files have"),
        ((10, 2), "set sequenceLength: 12, which these files have"),
    ],
)
def test_other_numbers_are_those_to_set(tmp_path: Path, wanted: tuple[int, int], hint: str) -> None:
    folder = write(tmp_path / "hdf5_seq_12" / "part_0_of_1.hdf5")
    with pytest.raises(InputError) as refused:
        find(tmp_path, wanted)
    assert f"found {folder} (12 tokens, 2 predictions)" in str(refused.value)
    assert hint in str(refused.value)
    named = f"set the stage's {hint.removeprefix('set ').split(',')[0]}, which the file has"
    with pytest.raises(InputError, match=re.escape(named)):
        num_samples(folder, wanted)


def test_where_nothing_is_found_the_fields_are_named_that_say_where(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "notes.hdf5").write_bytes(b"not HDF5")
    with pytest.raises(InputError) as refused:
        find(tmp_path)
    assert "found empty; unusable: " in str(refused.value)
    assert "notes.hdf5" in str(refused.value)
    assert "spec.dataset.path" in str(refused.value)
    assert "spec.stages[].pretrain.shards" in str(refused.value)
    write(tmp_path / "hdf5" / "part_0_of_1.hdf5")
    with pytest.raises(InputError, match="these have no held-out files"):
        find(tmp_path, split="held_out")


def test_hostile_trees_end_in_an_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "root"
    folder = write(root / "a/part_0_of_1.hdf5")
    (root / "loop").symlink_to(root)
    (root / "itself").symlink_to("itself")
    (root / "nowhere").symlink_to("gone")
    # The same folder by another way is not a second one.
    (root / "again").symlink_to(folder)
    (root / "pipes").mkdir()
    os.mkfifo(root / "pipes/training_0.hdf5")
    deep = root.joinpath(*(f"d{number}" for number in range(40)))
    write(deep / "training_0.hdf5")
    assert find(root) == folder
    with pytest.raises(InputError, match="no shards of 24 tokens"):
        find(root, LONG)
    monkeypatch.setattr(search, "_MAX_ENTRIES", 5)
    with pytest.raises(InputError, match=r"more than 5 files and folders to search for shards(?s:.*)pretrain\.shards"):
        find(root)


def test_an_unreadable_folder_is_named_where_nothing_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "open/part_0_of_1.hdf5")
    write(tmp_path / "closed/part_0_of_1.hdf5", LONG)
    scandir = os.scandir

    def refuse(path: Path) -> object:
        if Path(path).name == "closed":
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    # By hand: root may read what nobody may.
    monkeypatch.setattr(os, "scandir", refuse)
    assert find(tmp_path) == tmp_path / "open"
    with pytest.raises(InputError, match=f"not readable: {tmp_path / 'closed'}"):
        find(tmp_path, LONG)


def test_a_dataset_s_own_folder_is_found_without_looking_into_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write(tmp_path / "seq_len_12_max_pred_2/training_0000.hdf5")
    write(tmp_path / "corpora/training_0000.hdf5", LONG)
    listed: list[str] = []
    scandir = os.scandir

    def count(path: Path) -> object:
        listed.append(Path(path).name)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", count)
    assert find(tmp_path) == folder
    assert listed == [tmp_path.name, folder.name]
