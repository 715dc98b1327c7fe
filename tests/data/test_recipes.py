"""Published builds by name: their settings, and the names that their loaders look for."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from bert_trainer.dataset.__main__ import main
from bert_trainer.dataset.shards import ShardFolder, find_shard_folder, read_shard
from bert_trainer.dataset.wordpiece import read_vocabulary


def build(text: Path, root: Path, *options: str) -> dict[str, object]:
    base = ["build", "--text", str(text), "--output", str(root), "--vocabulary-size", "120", "--processes", "1"]
    assert main([*base, *options]) == 0
    record: dict[str, object] = json.loads((root / "dataset.json").read_text())
    return record


def settings_of(record: dict[str, object]) -> dict[str, object]:
    settings = record["settings"]
    assert isinstance(settings, dict)
    return settings


def test_nvidia_s_recipe_has_its_settings_and_its_loader_s_names(
    tmp_path: Path, write_corpus: Callable[..., Path]
) -> None:
    root = tmp_path / "data"
    settings = settings_of(build(write_corpus(), root, "--recipe", "nvidia"))
    assert (settings["dupe_factor"], settings["seed"], settings["masked_lm_probability"]) == (5, 12345, 0.15)
    for tokens, predictions in ((128, 20), (512, 80)):
        folder = root / (
            f"hdf5_lower_case_1_seq_len_{tokens}_max_pred_{predictions}"
            "_masked_lm_prob_0.15_random_seed_12345_dupe_factor_5"
        )
        assert find_shard_folder(root, tokens, predictions) == folder
        files = [path.name for path in folder.iterdir() if "training" in path.name]
        assert len(files) == 8
        vocabulary = read_vocabulary(root / "vocab.txt")
        opened = ShardFolder.open(
            folder, split="held_out", sequence_length=tokens, max_predictions=predictions, vocabulary=vocabulary
        )
        assert opened.num_samples > 0


def test_mlperf_s_recipe_has_76_predictions_and_numbered_parts(
    tmp_path: Path, write_corpus: Callable[..., Path]
) -> None:
    root = tmp_path / "data"
    # Forty documents cannot fill 500 parts.
    settings = settings_of(build(write_corpus(), root, "--recipe", "mlperf", "--shards", "3", "--length", "128:76"))
    assert (settings["dupe_factor"], settings["num_shards"], settings["recipe"]) == (10, 3, "mlperf")
    parts = sorted(path.name for path in (root / "hdf5_seq_128").glob("part*"))
    assert parts == [f"part-{number:05d}-of-00003.hdf5" for number in range(3)]
    assert read_shard(root / "hdf5_seq_128" / parts[0]).masked_lm_positions.shape[1] == 76
    assert find_shard_folder(root, 128, 76) == root / "hdf5_seq_128"


def test_a_dataset_of_one_recipe_is_not_mixed_with_another(
    tmp_path: Path, write_corpus: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    text, root = write_corpus(), tmp_path / "data"
    build(text, root, "--recipe", "nvidia", "--length", "128:20")
    base = ["build", "--text", str(text), "--output", str(root), "--vocabulary-size", "120", "--length", "128:20"]
    assert main(base) == 2
    assert "recipe: was nvidia, is None" in capsys.readouterr().err


def test_whole_word_masking_masks_the_pieces_of_a_word_together(
    tmp_path: Path, write_corpus: Callable[..., Path]
) -> None:
    root = tmp_path / "data"
    settings = settings_of(build(write_corpus(), root, "--length", "64:10", "--whole-word-masking"))
    assert settings["whole_word_masking"] is True
    continuations = read_vocabulary(root / "vocab.txt").continuations
    broken = words = 0
    for path in sorted((root / "seq_len_64_max_pred_10").glob("training*")):
        samples = read_shard(path)
        for row in range(len(samples)):
            chosen = {int(position) for position in samples.masked_lm_positions[row] if position}
            tokens = samples.input_ids[row].copy()
            for position, label in zip(samples.masked_lm_positions[row], samples.masked_lm_ids[row], strict=True):
                if position:
                    tokens[position] = label
            for position in range(1, 64):
                if continuations[tokens[position]] and tokens[position - 1] not in (2, 3):
                    words += 1
                    broken += (position in chosen) != (position - 1 in chosen)
    assert words > 1000
    assert broken == 0
