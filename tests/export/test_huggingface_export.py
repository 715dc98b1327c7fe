"""An exported model loads in transformers and gives the same logits; its tokenizer gives the same ids."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoConfig, AutoModelForMaskedLM, AutoModelForPreTraining, AutoTokenizer

from bert_job.model import ARCHITECTURES
from bert_job.run_config import ModelConfig
from bert_trainer.checkpoints import huggingface_export
from bert_trainer.checkpoints.model_export import export_model
from bert_trainer.dataset.shards.samples import Samples
from bert_trainer.dataset.tokens.wordpiece import Encoder, Vocabulary, read_vocabulary, train_vocabulary
from bert_trainer.errors import TrainerError
from bert_trainer.model.batch import Batch, make_batch
from bert_trainer.model.bert import Bert
from random_rows import model_config, modern_config, random_model, random_samples
from tensorflow_cases import OURS

LENGTHS = [24, 5, 17]
TEXT = [
    "The quick brown fox jumps over the lazy dog; the dog sleeps on.",
    "Café, naïve and coördinate are words with accents, UPPER and lower case.",
    "Brown dogs jump quickly over lazier foxes, don't they? They do (sometimes).",
    "東京 is written without spaces.",
    "the the dog dog fox fox quick quick brown brown lazy lazy",
]
SENTENCES = [
    *TEXT,
    "A lazy DOG's café at 東京!",
    "words with   odd\tspaces and a zebra-unknown ☃",
    "naïve NAÏVE naive",
    "x" * 101,
]
CONFIGS = {
    "bert": model_config(32),
    "bert, gelu_new": model_config(32, hidden_activation="gelu_new"),
    "mlm only": model_config(32, objective="mlm"),
    "distilbert": model_config(32, architecture="distilbert", objective="mlm"),
    "modernbert": modern_config(),
}


def export(model: Bert, vocabulary: Vocabulary, target: Path, *, lower_case: bool) -> None:
    export_model("huggingface", model, vocabulary, target, lower_case=lower_case, card="# A model\n")


def vocabulary_file(folder: Path, *, lower_case: bool) -> Path:
    path = folder / "given.txt"
    path.write_bytes(train_vocabulary(TEXT, size=90, lower_case=lower_case))
    return path


def random_rows(vocabulary_size: int) -> Samples:
    return random_samples(LENGTHS, sequence_length=24, predictions=4, vocabulary_size=vocabulary_size, seed=1)


def our_logits(model: Bert, batch: Batch) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return (M, V) and (B, 2) without dropout."""
    with torch.no_grad():
        hidden_ND = model.encode(batch)
        logits_MV = model.masked_lm_logits(hidden_ND[batch.masked_index_M])[:, : model.vocabulary_size]
        return logits_MV, None if model.nsp is None else model.next_sentence_logits(hidden_ND, batch)


def check_same_logits(model: Bert, folder: Path) -> None:
    samples = random_rows(model.vocabulary_size)
    batch = make_batch(samples, np.arange(len(LENGTHS)))
    expected_MV, expected_B2 = our_logits(model.float(), batch)
    kind: Any = AutoModelForMaskedLM if expected_B2 is None else AutoModelForPreTraining
    theirs, loading = kind.from_pretrained(folder, output_loading_info=True)
    assert not any(loading[name] for name in loading), "nothing is missing, unexpected or of another shape"
    inputs = {
        "input_ids": torch.from_numpy(samples.input_ids).long(),
        "attention_mask": torch.from_numpy(samples.input_mask).long(),
    }
    if model.config.architecture == "bert":
        inputs["token_type_ids"] = torch.from_numpy(samples.segment_ids).long()
    with torch.no_grad():
        result = theirs.eval()(**inputs)
    logits_BTV = result.logits if expected_B2 is None else result.prediction_logits
    masked_row, column = np.nonzero(samples.masked_lm_positions)
    position = samples.masked_lm_positions[masked_row, column]
    torch.testing.assert_close(logits_BTV[masked_row, position], expected_MV, rtol=1e-4, atol=1e-5)
    if expected_B2 is not None:
        torch.testing.assert_close(result.seq_relationship_logits, expected_B2, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["fp32", "fp64"])
def test_transformers_loads_it_and_gives_the_same_logits(
    tmp_path: Path, config: ModelConfig, dtype: torch.dtype
) -> None:
    vocabulary = read_vocabulary(vocabulary_file(tmp_path, lower_case=True))
    model = random_model(config, vocabulary.size, seed=1, dtype=dtype)
    assert vocabulary.size % 8, "the token table is longer than the vocabulary"
    export(model, vocabulary, tmp_path / "export", lower_case=True)
    assert AutoConfig.from_pretrained(tmp_path / "export").vocab_size == vocabulary.size
    check_same_logits(model, tmp_path / "export")


@pytest.mark.parametrize("lower_case", [True, False])
@pytest.mark.parametrize("config", [CONFIGS[name] for name in ARCHITECTURES], ids=ARCHITECTURES)
def test_its_tokenizer_gives_the_ids_that_training_saw(tmp_path: Path, config: ModelConfig, lower_case: bool) -> None:
    vocabulary = read_vocabulary(vocabulary_file(tmp_path, lower_case=lower_case))
    export(Bert(config, vocabulary.size), vocabulary, tmp_path / "export", lower_case=lower_case)
    theirs = AutoTokenizer.from_pretrained(tmp_path / "export")
    ours = Encoder(vocabulary, lower_case=lower_case)
    for sentence, ids in zip(SENTENCES, ours.encode(SENTENCES), strict=True):
        assert theirs(sentence)["input_ids"] == [vocabulary.cls_id, *ids, vocabulary.sep_id], sentence
    assert theirs.model_max_length == config.max_position_embeddings
    special = (theirs.pad_token_id, theirs.unk_token_id, theirs.mask_token_id)
    assert special == (vocabulary.pad_id, vocabulary.unk_id, vocabulary.mask_id)
    # DistilBERT has no segments: what its tokenizer returns is what its model takes.
    assert ("token_type_ids" in theirs("a")) == (config.architecture == "bert")
    assert (
        AutoModelForMaskedLM.from_pretrained(tmp_path / "export")(**theirs("a", return_tensors="pt")).logits.ndim == 3
    )


@pytest.mark.parametrize("lower_case", [True, False])
def test_the_tokenizers_library_alone_gives_the_same_ids(tmp_path: Path, lower_case: bool) -> None:
    vocabulary = read_vocabulary(vocabulary_file(tmp_path, lower_case=lower_case))
    export(Bert(CONFIGS["bert"], vocabulary.size), vocabulary, tmp_path / "export", lower_case=lower_case)
    theirs = Tokenizer.from_file(str(tmp_path / "export" / "tokenizer.json"))
    ours = Encoder(vocabulary, lower_case=lower_case)
    for sentence, ids in zip(SENTENCES, ours.encode(SENTENCES), strict=True):
        assert theirs.encode(sentence).ids == [vocabulary.cls_id, *ids, vocabulary.sep_id], sentence
    pair = theirs.encode("the [MASK]", "the")
    assert pair.tokens == ["[CLS]", "the", "[MASK]", "[SEP]", "the", "[SEP]"]
    assert pair.type_ids == [0, 0, 0, 0, 1, 1]


def test_a_sentence_survives_the_tokenizers_round_trip(tmp_path: Path) -> None:
    vocabulary = read_vocabulary(vocabulary_file(tmp_path, lower_case=True))
    export(Bert(CONFIGS["bert"], vocabulary.size), vocabulary, tmp_path / "export", lower_case=True)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "export")
    ids = tokenizer("The quick brown fox jumps over the lazy dog")["input_ids"]
    assert tokenizer.decode(ids, skip_special_tokens=True) == "the quick brown fox jumps over the lazy dog"
    pair = tokenizer("the dog", "a fox")
    assert pair["token_type_ids"] == [0] * 4 + [1] * (len(pair["input_ids"]) - 4)


def test_a_second_export_replaces_the_first(tmp_path: Path) -> None:
    vocabulary = read_vocabulary(vocabulary_file(tmp_path, lower_case=True))
    (tmp_path / "export").mkdir()
    (tmp_path / "export" / "left-over").write_text("old")
    for seed in (1, 2):
        model = random_model(CONFIGS["bert"], vocabulary.size, seed=seed, dtype=torch.float32)
        export(model, vocabulary, tmp_path / "export", lower_case=True)
        check_same_logits(model, tmp_path / "export")
    assert not (tmp_path / "export" / "left-over").exists()
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_a_full_disk_is_named_and_the_earlier_export_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vocabulary = read_vocabulary(vocabulary_file(tmp_path, lower_case=True))
    model = random_model(CONFIGS["bert"], vocabulary.size, seed=1, dtype=torch.float32)
    export(model, vocabulary, tmp_path / "export", lower_case=True)

    def fail(_tensors: object, path: Path) -> None:
        path.write_text("half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(huggingface_export, "save_tensors", fail)
    with pytest.raises(TrainerError, match="export: cannot be written, the disk is full") as full:
        export(model, vocabulary, tmp_path / "export", lower_case=True)
    needed = sum(weights.nbytes for weights in model.parameters()) / 1e6
    assert f"({needed:.1f} MB at least are needed, " in str(full.value)
    check_same_logits(model, tmp_path / "export")
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_the_config_is_the_one_that_was_trained(tmp_path: Path) -> None:
    vocabulary = read_vocabulary(vocabulary_file(tmp_path, lower_case=True))
    config = model_config(32, hidden_dropout=0.2, attention_dropout=0.3, layer_norm_epsilon=1e-9)
    export(Bert(config, vocabulary.size), vocabulary, tmp_path / "export", lower_case=True)
    written = json.loads((tmp_path / "export" / "config.json").read_text())
    assert written["model_type"] == "bert"
    assert written["architectures"] == ["BertForPreTraining"]
    same = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
    same += ("max_position_embeddings", "initializer_range")
    for name in (*same, *OURS.keys() - {"vocab_size"}):
        assert written[name] == getattr(config, OURS.get(name, name)), name
    assert written["layer_norm_eps"] == config.layer_norm_epsilon
