"""Real weights that sentence-transformers has saved are imported and fine-tuned as transformers has them.

Inputs: all-MiniLM-L6-v2 in the folder that ``tools/minilm.sh`` prints, named by BERT_TEST_MINILM; skipped without it.
It has a ``tokenizer.json`` and no ``vocab.txt``, names without ``bert.``, a pooler and no head.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForSequenceClassification, AutoTokenizer, BertModel

from bert_job.run_config import ModelFile
from bert_trainer.__main__ import main
from bert_trainer.config.model_file import read_model_file
from bert_trainer.dataset.tokens.wordpiece import Encoder, read_vocabulary
from task_rows import CLASSES, random_task_model, task_rows

FOLDER = os.environ.get("BERT_TEST_MINILM", "")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not FOLDER, reason="BERT_TEST_MINILM names no folder; tools/minilm.sh fetches it (80 MB)"),
]
ENTRIES = 30522
TEXTS = [
    "The quick brown fox \u2013 jumped!",
    "Na\u00efve caf\u00e9s in \u4e1c\u4eac",
    "unhappiness [x] 3.14",
    "\u0130\u00df\ufb01\u200b x",
]


def write_tables(folder: Path) -> list[str]:
    for name in ("train", "validation"):
        lines = [f"a text of number {row},{'abc'[row % CLASSES]}" for row in range(24)]
        (folder / f"{name}.csv").write_text("\n".join(["body,label", *lines]) + "\n")
    files = [f"--train={folder}/train.csv", f"--validation={folder}/validation.csv"]
    return ["--task=classification", *files, "--text=body", "--label=label"]


def test_an_import_is_the_same_encoder(tmp_path: Path) -> None:
    assert main(["import", FOLDER, "--format=huggingface", f"--output={tmp_path}/out"]) == 0
    theirs, ours = (BertModel.from_pretrained(folder).eval() for folder in (FOLDER, tmp_path / "out"))
    inputs = AutoTokenizer.from_pretrained(FOLDER)(TEXTS, padding=True, return_tensors="pt")
    with torch.no_grad():
        assert torch.equal(ours(**inputs).pooler_output, theirs(**inputs).pooler_output)
    assert AutoTokenizer.from_pretrained(tmp_path / "out")(TEXTS).input_ids == (
        AutoTokenizer.from_pretrained(FOLDER)(TEXTS, padding=False, truncation=False).input_ids
    )


def test_texts_become_the_same_tokens() -> None:
    vocabulary = read_vocabulary(Path(FOLDER) / "tokenizer.json")
    wanted = AutoTokenizer.from_pretrained(FOLDER)(TEXTS, add_special_tokens=False, padding=False, truncation=False)
    assert Encoder(vocabulary, lower_case=True).encode(TEXTS) == wanted.input_ids


def test_a_fine_tuned_model_has_the_logits_of_transformers(tmp_path: Path) -> None:
    output = tmp_path / "out"
    options = ["--epochs=1", "--batch-size=12", "--sequence-length=16", "--export=huggingface"]
    assert main(["finetune", *write_tables(tmp_path), f"--model={FOLDER}", f"--output={output}", *options]) == 0
    config = read_model_file(
        ModelFile(
            config_file=f"{FOLDER}/config.json", layer_norm_epsilon=1e-12, vocabulary_pad_multiple=8, objective=None
        )
    )
    ours = random_task_model(config, "classification", ENTRIES).eval()
    best = load_file(output / "finetune/classification/best/model.safetensors")
    with torch.no_grad():
        for name, parameter in ours.named_parameters():
            parameter.copy_(best[name])
        rows = task_rows("classification", (16, 9, 31), vocabulary_size=ENTRIES, seed=3)
        theirs = AutoModelForSequenceClassification.from_pretrained(output / "export/huggingface").eval()
        found = ours.logits(rows.batch(range(3))[0])
        wanted = theirs(**rows.padded(range(3), segments=True)).logits
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    # They were trained, from these weights.
    before = load_file(Path(FOLDER) / "model.safetensors")["encoder.layer.0.output.dense.weight"]
    distance = (best["layers.0.ffn_out.weight"] - before).abs().max()
    assert 0 < distance < 1e-3
    assert json.loads((output / "export/huggingface/config.json").read_text())["num_hidden_layers"] == 6
