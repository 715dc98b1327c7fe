"""``bert-data verify`` finds what is wrong in many shards, with any number of processes, and nothing in good ones."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest

from bert_trainer.dataset.__main__ import main
from bert_trainer.dataset.shards import LAYOUTS, LayoutName, find_shard_folder, read_ragged, write_shard
from bert_trainer.dataset.shards.ragged import RaggedSamples
from relayout import relayout

FOLDER = "seq_len_32_max_pred_5"

# Two would take longer to start than the build takes.
ONE_PROCESS = ["--processes", "1"]


@pytest.fixture
def dataset(tmp_path: Path, write_corpus: Callable[..., Path]) -> Path:
    options = ["--length", "32:5", "--vocabulary-size", "120", "--shards", "5", *ONE_PROCESS]
    assert main(["build", "--text", str(write_corpus()), "--output", str(tmp_path / "data"), *options]) == 0
    return tmp_path / "data"


def verified(capsys: pytest.CaptureFixture[str], path: Path, *options: str) -> tuple[int, str]:
    capsys.readouterr()
    return main(["verify", str(path), *options]), capsys.readouterr().out


def change(path: Path, dataset: str, index: tuple[int, int], value: int) -> None:
    with h5py.File(relayout(path), "a") as file:
        file[dataset][index] = value


@pytest.mark.parametrize("processes", ["1", "3"])
def test_bad_shards_are_listed_in_order_and_the_others_are_checked_all_the_same(
    dataset: Path, capsys: pytest.CaptureFixture[str], processes: str
) -> None:
    for number in (1, 3):
        change(dataset / FOLDER / f"training_{number:04d}.hdf5", "input_ids", (3, 0), 7)
    (dataset / FOLDER / "training_0002.hdf5").write_bytes(b"no HDF5")
    code, shown = verified(capsys, dataset, "--processes", processes)
    assert code == 1
    bad = [Path(line.removeprefix("BAD ")).name for line in shown.splitlines() if line.startswith("BAD")]
    assert bad == ["training_0001.hdf5", "training_0002.hdf5", "training_0003.hdf5"]
    assert shown.endswith("6 shard(s) checked, 3 bad\n")


# A dataset.json lists HDF5 files.
@pytest.mark.parametrize("layout", [layout for layout in LAYOUTS if layout != "tfrecord"])
def test_good_shards_of_every_layout_pass(
    dataset: Path, capsys: pytest.CaptureFixture[str], layout: LayoutName
) -> None:
    for path in (dataset / FOLDER).iterdir():
        relayout(path, layout)
    assert verified(capsys, dataset) == (0, "6 shard(s) checked, nothing bad\n")


def test_samples_without_masks_pass(tmp_path: Path, dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    samples = read_ragged(dataset / FOLDER / "training_0000.hdf5").unmasked()
    path = tmp_path / "part_0.hdf5"
    write_shard(path, samples, vocabulary_sha256=None, generator_version=None, shape=(32, 5), masked=False)
    assert verified(capsys, path) == (0, "1 shard(s) checked, nothing bad\n")


def test_literal_special_tokens_in_the_text_are_no_violation(
    tmp_path: Path, write_corpus: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    text = write_corpus()
    path = text / "a.txt"
    path.write_text(path.read_text().replace("river", "[MASK] [CLS] [PAD]"))
    options = ["--length", "32:5", "--vocabulary-size", "120", "--shards", "2", *ONE_PROCESS]
    assert main(["build", "--text", str(text), "--output", str(tmp_path / "data"), *options]) == 0
    assert verified(capsys, tmp_path / "data")[0] == 0


def test_whole_words_are_allowed_other_numbers_of_predictions(
    tmp_path: Path, write_corpus: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--length", "32:5", "--vocabulary-size", "64", "--shards", "2", "--whole-word-masking", *ONE_PROCESS]
    assert main(["build", "--text", str(write_corpus()), "--output", str(tmp_path / "data"), *options]) == 0
    assert verified(capsys, tmp_path / "data")[0] == 0


def test_a_number_of_predictions_that_does_not_match_the_share_is_found(
    dataset: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = dataset / FOLDER / "training_0000.hdf5"
    samples = read_ragged(path)
    row = int(np.flatnonzero(samples.prediction_counts > 1)[0])
    kept = np.delete(np.arange(len(samples.masked_lm_ids)), samples.prediction_starts[row] + 1)
    place = samples.prediction_places()[samples.prediction_starts[row] + 1]
    tokens, counts = samples.tokens.copy(), samples.prediction_counts.copy()
    tokens[place], counts[row] = samples.masked_lm_ids[samples.prediction_starts[row] + 1], counts[row] - 1
    changed = RaggedSamples(
        tokens,
        samples.token_counts,
        samples.first_segment_counts,
        samples.next_sentence_labels,
        counts,
        samples.masked_lm_positions[kept],
        samples.masked_lm_ids[kept],
    )
    write_shard(path, changed, vocabulary_sha256=None, generator_version=2, shape=(32, 5))
    code, shown = verified(capsys, path)
    assert code == 1
    assert f"1 row(s), the first is {row}: has another number of predictions than 0.15 of its tokens" in shown


def test_an_unlabelled_mask_is_found_in_what_this_project_made(
    dataset: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = dataset / FOLDER / "training_0000.hdf5"
    samples = read_ragged(path)
    free = np.setdiff1d(np.arange(1, int(samples.token_counts[0]) - 1), samples.masked_lm_positions[
        : int(samples.prediction_counts[0])])  # fmt: skip
    place = int(next(at for at in free if samples.tokens[at] > 4))
    change(path, "input_ids", (0, place), 4)
    assert "1 row(s), the first is 0: holds [CLS], [PAD] or [MASK] inside its text" in verified(capsys, path)[1]


@pytest.mark.parametrize("second", [False, True])
def test_an_empty_segment_is_found(dataset: Path, capsys: pytest.CaptureFixture[str], second: bool) -> None:
    path = dataset / FOLDER / "training_0000.hdf5"
    with h5py.File(relayout(path), "a") as file:
        ids, segments = file["input_ids"][...], file["segment_ids"][...]
        length = int(file["input_mask"][0].sum())
        first = length - 1 if second else 2
        segments[0] = 0
        segments[0, first:length] = 1
        ids[0, first - 1] = 3
        file["input_ids"][...], file["segment_ids"][...] = ids, segments
    assert "has an empty segment" in verified(capsys, path)[1]


def test_violations_in_later_blocks_are_numbered_from_the_first_row(
    tmp_path: Path, dataset: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    samples = read_ragged(dataset / FOLDER / "training_0000.hdf5")
    many = samples.take(np.arange(9000) % len(samples))
    path = tmp_path / "part_0.hdf5"
    write_shard(path, many, vocabulary_sha256=None, generator_version=None, shape=(32, 5), layout="intel")
    with h5py.File(path, "a") as file:
        for row in (4095, 4096, 8999):
            file["input_ids"][row, 0] = 7
    assert "3 row(s), the first is 4095: does not begin with [CLS]" in verified(capsys, path)[1]


def test_a_file_with_other_samples_than_dataset_json_counts_is_found(
    dataset: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = json.loads((dataset / "dataset.json").read_text())
    counts = record["lengths"][0]["training"]
    counts["training_0002.hdf5"] += 1
    (dataset / "dataset.json").write_text(json.dumps(record))
    wanted = counts["training_0002.hdf5"]
    assert f"holds {wanted - 1} samples, dataset.json counts {wanted}" in verified(capsys, dataset)[1]


def test_files_that_do_not_belong_to_a_dataset_are_found(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = dataset / FOLDER
    shutil.copy(folder / "training_0004.hdf5", folder / "training_0009.hdf5")
    code, shown = verified(capsys, dataset)
    assert code == 1
    assert "1 shard(s) that dataset.json does not list, first training_0009.hdf5" in shown
    assert "holds the same samples as training_0004.hdf5" in shown


def test_files_of_another_shape_than_those_beside_them_are_found(
    tmp_path: Path, dataset: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(3):
        samples = read_ragged(dataset / FOLDER / f"training_000{number}.hdf5")
        shape = (32, 5) if number else (40, 6)
        path = tmp_path / "others" / f"part_{number}.hdf5"
        path.parent.mkdir(exist_ok=True)
        write_shard(path, samples, vocabulary_sha256=None, generator_version=None, shape=shape)
    code, shown = verified(capsys, tmp_path / "others")
    assert code == 1
    assert "part_0.hdf5" in shown
    assert "has rows of 40 tokens, 6 predictions, with masks; most files beside it of 32, 5, with" in shown
    assert shown.endswith("3 shard(s) checked, 1 bad\n")


def test_a_vocabulary_that_was_replaced_is_found(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = dataset / "vocab.txt"
    lines = path.read_text().split("\n")
    lines[50], lines[51] = lines[51], lines[50]
    path.write_text("\n".join(lines))
    code, shown = verified(capsys, dataset)
    assert code == 1
    assert f"{path} is not the vocabulary that dataset.json names" in shown
    assert shown.count("made with another vocabulary") == 6


def test_shards_of_a_dataset_s_own_masking_pass_beside_held_out_ones(
    tmp_path: Path, write_corpus: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "data"
    options = ["--length", "32:5", "--vocabulary-size", "120", "--shards", "3", "--masking", "dynamic", *ONE_PROCESS]
    assert main(["build", "--text", str(write_corpus()), "--output", str(root), *options]) == 0
    assert verified(capsys, root) == (0, "4 shard(s) checked, nothing bad\n")
    path = root / FOLDER / "training_0001.hdf5"
    with h5py.File(path, "a") as file:
        del file.attrs["masking"]
    code, shown = verified(capsys, root)
    assert code == 1
    assert "training_0001.hdf5" in shown
    assert "with masks; most files beside it of 32, 5, without" in shown


@pytest.mark.parametrize(("recipe", "strange"), [("nvidia", "text_training_9.hdf5"), ("mlperf", "part_0_of_9.hdf5")])
def test_the_folders_of_a_recipe_are_compared_with_dataset_json(
    tmp_path: Path, write_corpus: Callable[..., Path], capsys: pytest.CaptureFixture[str], recipe: str, strange: str
) -> None:
    root = tmp_path / "data"
    options = ["--length", "32:5", "--vocabulary-size", "120", "--shards", "3", "--recipe", recipe, *ONE_PROCESS]
    options += ["--balanced-shards", "4"] if recipe == "mlperf" else []
    assert main(["build", "--text", str(write_corpus()), "--output", str(root), *options]) == 0
    assert verified(capsys, root)[0] == 0
    folder = find_shard_folder(root, 32, 5)
    copied = sorted(folder.glob("*_0*"))[-1]
    shutil.copy(copied, folder / strange)
    code, shown = verified(capsys, root)
    assert code == 1
    assert f"BAD {folder}\n    1 shard(s) that dataset.json does not list, first {strange}" in shown
    capsys.readouterr()
    assert main(["inspect", str(folder), "--samples", "0"]) == 0
    shown = capsys.readouterr().out
    assert f"{root}: " in shown
    assert "documents read" in shown
    if recipe == "nvidia":
        assert "text_test_0.hdf5: " in shown


def test_several_paths_are_checked_in_one_go(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = sorted((dataset / FOLDER).iterdir())[:2]
    capsys.readouterr()
    assert main(["verify", *map(str, files), str(files[0])]) == 0
    assert capsys.readouterr().out == "2 shard(s) checked, nothing bad\n"
