"""With a held-out fraction of 0 all text is trained on, and what would evaluate on none of it is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from bert_trainer.dataset.__main__ import main
from bert_trainer.dataset.shards import ShardFolder, list_shards, read_header
from bert_trainer.dataset.shards.dataset_info import read_dataset_info
from bert_trainer.errors import InputError

OPTIONS = ["--length", "32:5", "--vocabulary-size", "120", "--shards", "2", "--processes", "1", "--dupe-factor", "1"]


def build(text: Path, root: Path, *options: str) -> int:
    return main(["build", "--text", str(text), "--output", str(root), *OPTIONS, "--held-out-fraction", "0", *options])


def test_every_document_is_trained_on(
    tmp_path: Path, write_corpus: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "data"
    text = write_corpus(documents=20)
    assert build(text, root) == 0
    assert "20 documents to train on, 0 held out" in capsys.readouterr().out
    folder = root / "seq_len_32_max_pred_5"
    assert [path.name for path in list_shards(folder)] == ["training_0000.hdf5", "training_0001.hdf5"]
    info = read_dataset_info(root)
    assert info
    assert info.counts
    assert (info.counts.documents_training, info.counts.documents_held_out, info.counts.tokens_held_out) == (20, 0, 0)
    assert (info.lengths[0].held_out, info.lengths[0].samples_held_out) == ({}, 0)
    # Again, changed, and looked at.
    before = {path: path.stat().st_mtime_ns for path in list_shards(folder)}
    assert build(text, root) == 0
    assert {path: path.stat().st_mtime_ns for path in list_shards(folder)} == before
    assert main(["verify", str(root)]) == main(["inspect", str(root)]) == 0
    assert main(["chop", str(folder), str(tmp_path / "cut"), "--shards", "3", "--processes", "1"]) == 0
    assert main(["eval", str(folder), str(tmp_path / "eval"), "--samples", "5"]) == 0
    assert read_header(tmp_path / "eval" / "eval_5.hdf5").rows == 5
    with pytest.raises(InputError, match="no held_out shards; found training_0000"):
        ShardFolder.open(folder, split="held_out", sequence_length=32, max_predictions=5, vocabulary=None)


def test_another_fraction_is_another_dataset(
    tmp_path: Path, write_corpus: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    text = write_corpus(documents=10)
    assert build(text, tmp_path / "data") == 0
    assert build(text, tmp_path / "data", "--held-out-fraction", "0.1") == 2
    assert "held_out_fraction: was 0.0, is 0.1" in capsys.readouterr().err


def test_a_single_document_is_enough(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = tmp_path / "one.txt"
    text.write_text("\n".join(f"The river number {number} reads a letter." for number in range(40)))
    assert build(text, tmp_path / "data", "--masking", "dynamic") == 0
    assert "1 documents to train on, 0 held out" in capsys.readouterr().out


@pytest.mark.parametrize("fraction", ["-0.1", "1"])
def test_other_fractions_are_refused(
    tmp_path: Path, write_corpus: Callable[..., Path], capsys: pytest.CaptureFixture[str], fraction: str
) -> None:
    text = write_corpus(documents=4)
    assert build(text, tmp_path / "data", f"--held-out-fraction={fraction}") == 2
    assert "--held-out-fraction: got " in capsys.readouterr().err
