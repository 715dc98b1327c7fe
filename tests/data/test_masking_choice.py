"""Masks in the files, or left to the trainer: what ``bert-data build --masking`` writes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from bert_trainer.dataset.__main__ import main
from bert_trainer.dataset.shards import read_header, read_ragged
from bert_trainer.dataset.tokens.wordpiece import read_vocabulary

LENGTH = "seq_len_64_max_pred_10"


def build(text: Path, root: Path, *options: str) -> int:
    base = ["build", "--text", str(text), "--output", str(root), "--vocabulary-size", "120", "--processes", "1"]
    return main([*base, "--shards", "2", "--length", "64:10", *options])


def test_without_masks_the_training_files_hold_the_same_rows_as_they_were(
    tmp_path: Path, write_corpus: Callable[..., Path]
) -> None:
    text = write_corpus()
    for masking in ("static", "dynamic"):
        assert build(text, tmp_path / masking, "--masking", masking) == 0
    mask_id = read_vocabulary(tmp_path / "dynamic" / "vocab.txt").mask_id
    files = sorted((tmp_path / "dynamic" / LENGTH).glob("training_*"))
    assert len(files) == 2
    for path in files:
        assert not read_header(path).masked
        bare, masked = read_ragged(path), read_ragged(tmp_path / "static" / LENGTH / path.name)
        assert not bare.prediction_counts.any()
        assert not (bare.tokens == mask_id).any()
        np.testing.assert_array_equal(bare.tokens, masked.unmasked().tokens)
        np.testing.assert_array_equal(bare.next_sentence_labels, masked.next_sentence_labels)


def test_held_out_files_hold_the_same_masks_either_way(tmp_path: Path, write_corpus: Callable[..., Path]) -> None:
    text = write_corpus()
    for masking in ("static", "dynamic"):
        assert build(text, tmp_path / masking, "--masking", masking) == 0
    one, other = (tmp_path / masking / LENGTH / "held_out_0000.hdf5" for masking in ("static", "dynamic"))
    assert one.read_bytes() == other.read_bytes()


def test_files_without_masks_pass_the_check_of_all_rows(
    tmp_path: Path, write_corpus: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "data"
    assert build(write_corpus(), root, "--masking", "dynamic") == 0
    assert main(["verify", str(root)]) == 0
    assert "3 shard(s) checked, nothing bad" in capsys.readouterr().out


def test_a_dataset_of_one_masking_is_not_mixed_with_another(
    tmp_path: Path, write_corpus: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    text, root = write_corpus(), tmp_path / "data"
    assert build(text, root) == 0
    assert build(text, root, "--masking", "dynamic") == 2
    assert "masking: was static, is dynamic" in capsys.readouterr().err


def test_what_an_earlier_build_made_with_masks_is_not_kept_for_one_without(
    tmp_path: Path, write_corpus: Callable[..., Path]
) -> None:
    text, root = write_corpus(), tmp_path / "data"
    assert build(text, root, "--masking", "dynamic") == 0
    assert build(text, tmp_path / "static") == 0
    name = "training_0001.hdf5"
    wanted = (root / LENGTH / name).read_bytes()
    (root / LENGTH / name).write_bytes((tmp_path / "static" / LENGTH / name).read_bytes())
    (root / LENGTH / "training_0000.hdf5").unlink()
    assert build(text, root, "--masking", "dynamic") == 0
    assert (root / LENGTH / name).read_bytes() == wanted
