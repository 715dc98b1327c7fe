"""A gap in a numbered set of shards is found before training, by the names of the files that are not there."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from bert_trainer.dataset.__main__ import main
from bert_trainer.dataset.shards import ShardFolder, Split, find_shard_folder, select_split, write_shard
from bert_trainer.errors import InputError
from tiny_run import make_samples

T, P = 12, 2


def write(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    samples = make_samples(4, np.random.default_rng(0), sequence_length=T, predictions=P)
    write_shard(path, samples, vocabulary_sha256=None, generator_version=None, layout="intel")


def open_folder(folder: Path, split: Split = "training") -> ShardFolder:
    return ShardFolder.open(folder, split=split, sequence_length=T, max_predictions=P, vocabulary=None)


@pytest.mark.parametrize(
    ("names", "missing"),
    [
        (["part_{}_of_12"] * 12, "part_7_of_12.hdf5"),
        (["part-{:05d}-of-00012"] * 12, "part-00007-of-00012.hdf5"),
        (["part_{:05d}_of_00012"] * 12, "part_00007_of_00012.hdf5"),
        (["hdf5_training_shard_{}"] * 12, "hdf5_training_shard_7.hdf5"),
        (["training_{:04d}"] * 12, "training_0007.hdf5"),
        (["wikicorpus_en_training_{}"] * 12, "wikicorpus_en_training_7.hdf5"),
        (["wiki_test_{}"] * 12, "wiki_test_7.hdf5"),
    ],
)
def test_one_missing_file_is_named(tmp_path: Path, names: list[str], missing: str) -> None:
    for number, name in enumerate(names):
        write(tmp_path / f"{name.format(number)}.hdf5")
    split: Split = "held_out" if "test" in missing else "training"
    assert len(open_folder(tmp_path, split).paths) == 12
    (tmp_path / missing).unlink()
    with pytest.raises(InputError, match=rf"got 11 of 12 shards .*; missing {re.escape(missing)}; allowed") as error:
        open_folder(tmp_path, split)
    assert str(tmp_path) in str(error.value)
    assert "copy or build what is missing" in str(error.value)


def test_the_first_and_the_last_of_a_counted_set_are_missed_too(tmp_path: Path) -> None:
    for number in range(3):
        write(tmp_path / f"part_{number}_of_4.hdf5")
    with pytest.raises(InputError, match="missing part_3_of_4"):
        open_folder(tmp_path)
    write(tmp_path / "part_3_of_4.hdf5")
    (tmp_path / "part_0_of_4.hdf5").unlink()
    with pytest.raises(InputError, match="missing part_0_of_4"):
        open_folder(tmp_path)


def test_numbers_may_start_at_1(tmp_path: Path) -> None:
    for number in (1, 2, 3):
        write(tmp_path / "counted" / f"part_{number}_of_3.hdf5")
        write(tmp_path / "plain" / f"training_{number}.hdf5")
    assert len(open_folder(tmp_path / "counted").paths) == len(open_folder(tmp_path / "plain").paths) == 3


def test_many_missing_files_are_counted_and_three_are_named(tmp_path: Path) -> None:
    write(tmp_path / "part_0_of_2048.hdf5")
    with pytest.raises(InputError, match=r"got 1 of 2048 .* part_1_of_2048\.hdf5, part_2\S+, part_3\S+ \.\.\.;"):
        open_folder(tmp_path)


def test_sets_of_several_corpora_are_checked_apart(tmp_path: Path) -> None:
    for name in ("books_training_0", "books_training_1", "wiki_training_0", "one_training_77", "training_of_mine"):
        write(tmp_path / f"{name}.hdf5")
    assert len(open_folder(tmp_path).paths) == 5


def test_two_sets_in_one_folder_are_refused(tmp_path: Path) -> None:
    for name in ("part_0_of_1", "part_0_of_2", "part_1_of_2"):
        write(tmp_path / f"{name}.hdf5")
    with pytest.raises(InputError, match=r"holds files part_\* of 1 and of 2; allowed: one set"):
        open_folder(tmp_path)


def test_chopping_an_incomplete_folder_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in (0, 2):
        write(tmp_path / "in" / f"part_{number}_of_3.hdf5")
    assert main(["chop", str(tmp_path / "in"), str(tmp_path / "out"), "--shards", "2"]) == 2
    assert "missing part_1_of_3.hdf5" in capsys.readouterr().err


def test_a_gap_is_a_problem_for_verify_where_the_whole_folder_is_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in (0, 2):
        write(tmp_path / f"part_{number}_of_3.hdf5")
    assert main(["verify", str(tmp_path)]) == 1
    shown = capsys.readouterr()
    assert "missing part_1_of_3.hdf5" in shown.out + shown.err
    assert main(["verify", str(tmp_path / "part_0_of_3.hdf5")]) == 0


def test_the_last_known_word_of_a_name_decides_the_split() -> None:
    names = ["test_training_0", "training_test_0", "part_eval_10k", "part_0_of_2", "latest_training_1", "held_out_0"]
    files = [Path(f"{name}.hdf5") for name in names]
    assert [path.stem for path in select_split(files, "training")] == ["test_training_0", "latest_training_1"]
    assert [path.stem for path in select_split(files, "held_out")] == ["training_test_0", "part_eval_10k", "held_out_0"]


def test_balanced_shards_are_preferred_to_their_parts(tmp_path: Path) -> None:
    parts, cut = tmp_path / "hdf5_seq_12", tmp_path / "2048_shards_uncompressed_12"
    write(parts / "part-00000-of-00001.hdf5")
    write(parts / "held_out_0000.hdf5")
    write(cut / "part_0_of_1.hdf5")
    assert find_shard_folder(tmp_path, T, P) == cut
    assert find_shard_folder(tmp_path, T, P, "held_out") == parts
    (parts / "held_out_0000.hdf5").unlink()
    with pytest.raises(InputError, match="no held_out shards; found part_0_of_1"):
        open_folder(find_shard_folder(tmp_path, T, P, "held_out"), "held_out")


def test_the_folders_of_nvidia_s_mlperf_recipe_are_recognised(tmp_path: Path) -> None:
    training, held_out = tmp_path / "hdf5_4320_shards_varlength", tmp_path / "eval_varlength"
    write(training / "part_00000_of_00001.hdf5")
    write(held_out / "part_eval_10k.hdf5")
    assert find_shard_folder(tmp_path, T, P) == training
    assert find_shard_folder(tmp_path, T, P, "held_out") == held_out
    assert open_folder(held_out, "held_out").num_samples == 4


def test_nvidia_s_test_files_are_held_out(tmp_path: Path) -> None:
    folder = tmp_path / "hdf5_lower_case_1_seq_len_12_max_pred_2_masked_lm_prob_0.15" / "wikicorpus_en"
    for name in ("wikicorpus_en_training_0", "wikicorpus_en_test_0"):
        write(folder / f"{name}.hdf5")
    for split in ("training", "held_out"):
        found = find_shard_folder(tmp_path, T, P, split)  # type: ignore[arg-type]
        assert len(open_folder(found, split).paths) == 1  # type: ignore[arg-type]
