"""Weights whose tokenizer is byte-level BPE: import, fine-tuning, predictions and exports split text as it does.

Inputs: a folder of weights with a ``tokenizer.json``, and a task of two classes that differ by a sign. Observed:
what was learnt, the tokenizers that are written, and ids of plain transformers.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer

from bert_trainer.__main__ import main
from bert_trainer.checkpoints.model_export import export_model
from bert_trainer.checkpoints.weight_matching import _has_same_vocabulary
from bert_trainer.dataset.tokens.wordpiece import Encoder, read_vocabulary
from bert_trainer.errors import InputError
from byte_bpe_files import SAMPLES, learnt, like_modernbert
from random_rows import model_config, random_model

TEXTS = (*SAMPLES, "two  spaces, |||IP_ADDRESS|||", "Caf\u00e9 e\u0301", "")
CLASSES = ("say \U0001f469", "say \U0001f467")


def write_weights(folder: Path, *, prefix_space: bool = False) -> Path:
    """Write a small model with a tokenizer as ModernBERT's."""
    folder.mkdir()
    document = like_modernbert()
    document["pre_tokenizer"]["add_prefix_space"] = prefix_space
    (folder / "tokenizer.json").write_text(json.dumps(document))
    vocabulary = read_vocabulary(folder / "tokenizer.json")
    model = random_model(model_config(32), vocabulary.size, seed=1, dtype=torch.float32)
    export_model("huggingface", model, vocabulary, folder / "model", lower_case=True, card="")
    return folder / "model"


@pytest.mark.parametrize("prefix_space", [False, True])
def test_transformers_gives_the_ids_that_training_saw(tmp_path: Path, prefix_space: bool) -> None:
    weights = write_weights(tmp_path / "weights", prefix_space=prefix_space)
    assert (weights / "tokenizer.json").read_bytes() == (tmp_path / "weights" / "tokenizer.json").read_bytes()
    assert not (weights / "vocab.txt").exists()
    vocabulary = read_vocabulary(weights / "tokenizer.json")
    theirs = AutoTokenizer.from_pretrained(weights)
    for text, ids in zip(TEXTS, Encoder(vocabulary, lower_case=True).encode(TEXTS), strict=True):
        assert theirs(text)["input_ids"] == [vocabulary.cls_id, *ids, vocabulary.sep_id], text
    assert theirs.mask_token_id == vocabulary.mask_id
    assert theirs.model_max_length == 64
    assert "token_type_ids" in theirs("a")


def test_a_task_whose_classes_differ_by_a_sign_is_learnt(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weights, output = write_weights(tmp_path / "weights"), tmp_path / "out"
    for name, rows in (("train", 48), ("validation", 16)):
        lines = [f"{CLASSES[row % 2]},{('no', 'yes')[row % 2]}" for row in range(rows)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["body,label", *lines]) + "\n")
    options = ["--task=classification", f"--train={tmp_path}/train.csv", f"--validation={tmp_path}/validation.csv"]
    options += ["--text=body", "--label=label", "--epochs=6", "--learning-rate=0.01", "--batch-size=16"]
    options += ["--sequence-length=16", "--export=huggingface", f"--model={weights}", f"--output={output}"]
    assert main(["finetune", *options]) == 0
    result = json.loads((output / "finetune/classification/best/result.json").read_text())
    assert result["metrics"]["accuracy"] == 1.0
    exported = output / "export" / "huggingface"
    assert (exported / "tokenizer.json").read_bytes() == (weights / "tokenizer.json").read_bytes()
    assert "Text is byte-level BPE." in (exported / "README.md").read_text()
    capsys.readouterr()
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"body": text}) + "\n" for text in CLASSES))
    words = ["predict", f"--model={exported}", f"--data={tmp_path}/rows.jsonl", f"--output={tmp_path}/found.jsonl"]
    assert main([*words, "--text=body", "--json"]) == 0
    found = [json.loads(line) for line in (tmp_path / "found.jsonl").read_text().splitlines()]
    assert [row["label"] for row in found] == ["no", "yes"]


def test_an_import_writes_the_same_tokenizer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weights, output = write_weights(tmp_path / "weights"), tmp_path / "out"
    assert main(["import", str(weights), "--format=huggingface", f"--output={output}"]) == 0
    assert "  text: byte-level BPE, as the tokenizer's files say" in capsys.readouterr().out
    assert (output / "tokenizer.json").read_bytes() == (weights / "tokenizer.json").read_bytes()


def test_rows_of_other_tokens_are_refused(tmp_path: Path) -> None:
    weights = write_weights(tmp_path / "weights")
    own = read_vocabulary(weights / "tokenizer.json")
    assert _has_same_vocabulary(weights / "tokenizer.json", own)
    (tmp_path / "tokenizer.json").write_bytes(learnt())
    with pytest.raises(InputError, match=f"tokenizer.json: got 900 entries .*; allowed: {own.size}, as in this run"):
        _has_same_vocabulary(tmp_path / "tokenizer.json", own)
