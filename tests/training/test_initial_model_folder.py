"""A run can start from a model that transformers has saved, and refuses one that does not fit by its name.

Inputs: the toy data set, models of the run's sizes as transformers saves them, and such folders with one thing damaged.
Observed: the loss of the same rows as transformers computes it; the line that says what was loaded; the refusals.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - the name everybody knows it by
from safetensors.torch import load_file, save_file
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForPreTraining,
    BertModel,
    DistilBertConfig,
    ModernBertConfig,
    ModernBertForMaskedLM,
    ModernBertForSequenceClassification,
    ModernBertModel,
)
from transformers import DistilBertForMaskedLM as DistilBert

from bert_trainer.checkpoints.huggingface_export import write_weights
from bert_trainer.dataset.tokens.wordpiece import SPECIAL_TOKENS
from bert_trainer.errors import InputError
from initial_weights import (
    DISTILBERT,
    MASKED_WORDS,
    MODEL,
    MODERNBERT,
    SAMPLES,
    loss,
    open_session,
    start_from,
    told,
)
from tiny_run import VOCABULARY_SIZE, write_dataset

BERT_SIZES = (
    "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "max_position_embeddings"
)  # fmt: skip


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_dataset(tmp_path_factory.mktemp("dataset"))


def save_huggingface(folder: Path, kind: Any, *, safe: bool = True, **changes: Any) -> Any:
    """Save a model of the tiny run's sizes as transformers does; no parameter is at its start value."""
    if kind is DistilBert:
        config = DistilBertConfig(
            vocab_size=VOCABULARY_SIZE, dim=32, n_layers=2, n_heads=2, hidden_dim=64, max_position_embeddings=64
        )
    elif kind in (ModernBertForMaskedLM, ModernBertForSequenceClassification, ModernBertModel):
        same = {key: MODERNBERT[key] for key in BERT_SIZES}
        special = dict.fromkeys([f"{role}_token_id" for role in ("pad", "bos", "eos", "cls", "sep")], 0)
        config = ModernBertConfig(**same, **special, vocab_size=VOCABULARY_SIZE, local_attention=16)
    else:
        same = {key: MODEL[key] for key in BERT_SIZES}
        config = BertConfig(**{"vocab_size": VOCABULARY_SIZE, **same, **changes})
    torch.manual_seed(3)
    model = kind(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape))
    model.save_pretrained(folder)
    if not safe:
        (folder / "model.safetensors").unlink()
        torch.save(model.state_dict(), folder / "pytorch_model.bin")
    return model


def huggingface_loss(model: Any) -> torch.Tensor:
    """Return what ``loss`` does, as transformers computes it."""
    inputs = {
        "input_ids": torch.from_numpy(SAMPLES.input_ids).long(),
        "attention_mask": torch.from_numpy(SAMPLES.input_mask).long(),
    }
    if not isinstance(model, DistilBert | ModernBertForMaskedLM):
        inputs["token_type_ids"] = torch.from_numpy(SAMPLES.segment_ids).long()
    labels_BT = torch.full(inputs["input_ids"].shape, -100)
    rows, columns = np.nonzero(SAMPLES.masked_lm_positions)
    labels_BT[rows, SAMPLES.masked_lm_positions[rows, columns]] = torch.from_numpy(
        SAMPLES.masked_lm_ids[rows, columns]
    ).long()
    with torch.no_grad():
        result = model(**inputs)
    both = isinstance(model, BertForPreTraining)
    logits_BTV = result.prediction_logits if both else result.logits
    total = F.cross_entropy(logits_BTV.flatten(0, 1), labels_BT.flatten())
    if both:
        pairs_B = torch.from_numpy(SAMPLES.next_sentence_labels).long()
        total = total + F.cross_entropy(result.seq_relationship_logits, pairs_B)
    return total


@pytest.mark.parametrize("safe", [True, False], ids=["safetensors", "bin"])
@pytest.mark.parametrize(
    ("kind", "model"),
    [
        (BertForPreTraining, MODEL),
        (BertForMaskedLM, MASKED_WORDS),
        (DistilBert, DISTILBERT),
        (ModernBertForMaskedLM, MODERNBERT),
    ],
)
def test_the_first_loss_is_what_transformers_computes(
    tmp_path: Path, dataset: Path, kind: Any, model: dict[str, Any], safe: bool
) -> None:
    theirs = save_huggingface(tmp_path / "model", kind, safe=safe)
    start = start_from(tmp_path / "model", format="huggingface")
    session = open_session(tmp_path / "run", dataset, {"model": model, **start})
    torch.testing.assert_close(loss(session.learner.model), huggingface_loss(theirs), rtol=1e-6, atol=1e-6)
    assert told(tmp_path / "run") == f"Started from the weights of {tmp_path / 'model'}"


OLD_WORDS: dict[str, Any] = {
    "global_attn_every_n_layers": 3,
    "global_rope_theta": 160_000,
    "local_rope_theta": 10_000,
}


@pytest.mark.parametrize("kind", [ModernBertForMaskedLM, ModernBertModel])
@pytest.mark.parametrize("words", ["as transformers 5 writes them", "of transformers 4.48"])
def test_a_modernbert_comes_out_with_the_bits_that_came_in(
    tmp_path: Path, dataset: Path, kind: Any, words: str
) -> None:
    theirs = save_huggingface(tmp_path / "model", kind)
    if words == "of transformers 4.48":
        settings = json.loads((tmp_path / "model/config.json").read_text())
        for new in ("layer_types", "rope_parameters"):
            del settings[new]
        (tmp_path / "model/config.json").write_text(json.dumps(settings | OLD_WORDS))
    start = start_from(tmp_path / "model", format="huggingface")
    session = open_session(tmp_path / "run", dataset, {"model": MODERNBERT, **start})
    left_out = () if kind is ModernBertForMaskedLM else ("mlm_transform.weight", "mlm_norm.weight", "mlm_bias")
    write_weights(session.learner.model, tmp_path, left_out)
    prefix = "" if kind is ModernBertForMaskedLM else "model."
    expected = {f"{prefix}{name}": tensor for name, tensor in theirs.state_dict().items() if name != "decoder.weight"}
    found = load_file(tmp_path / "model.safetensors")
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


def test_a_fine_tuned_modernbert_lacks_the_decoder_s_bias_alone(tmp_path: Path, dataset: Path) -> None:
    theirs = save_huggingface(tmp_path / "model", ModernBertForSequenceClassification)
    start = start_from(tmp_path / "model", format="huggingface")
    session = open_session(tmp_path / "run", dataset, {"model": MODERNBERT, **start})
    ours = dict(session.learner.model.named_parameters())
    assert torch.equal(ours["mlm_transform.weight"], theirs.head.dense.weight)
    assert not ours["mlm_bias"].any()
    assert "left as drawn: mlm_bias" in told(tmp_path / "run")


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"local_attention": 32}, "local_attention: got 32; allowed: 16"),
        ({"layer_types": ["full_attention"] * 4}, "layer 1: got theta 160000; allowed: a window, theta 10000"),
        ({"rope_parameters": {"sliding_attention": {"rope_theta": 5.0}}}, "layer 1: got a window, theta 5;"),
        ({"rope_parameters": {"full_attention": {"rope_type": "yarn"}}}, "positions that are not scaled"),
        ({"decoder_bias": False}, "decoder_bias: got False"),
    ],
    ids=lambda value: "" if isinstance(value, str) else "-".join(value),
)
def test_a_modernbert_of_other_attention_is_refused(
    tmp_path: Path, dataset: Path, changes: dict[str, Any], problem: str
) -> None:
    save_huggingface(tmp_path / "model", ModernBertForMaskedLM)
    settings = json.loads((tmp_path / "model/config.json").read_text())
    (tmp_path / "model/config.json").write_text(json.dumps(settings | changes))
    start = start_from(tmp_path / "model", format="huggingface")
    with pytest.raises(InputError, match=re.escape(problem)):
        open_session(tmp_path / "run", dataset, {"model": MODERNBERT, **start})


def test_a_bare_encoder_is_taken_and_the_heads_stay_as_drawn(tmp_path: Path, dataset: Path) -> None:
    theirs = save_huggingface(tmp_path / "model", BertModel)
    fresh = open_session(tmp_path / "fresh", dataset, {})
    session = open_session(tmp_path / "run", dataset, start_from(tmp_path / "model", format="huggingface"))
    ours = dict(session.learner.model.named_parameters())
    assert torch.equal(ours["layers.1.ffn_in.weight"], theirs.encoder.layer[1].intermediate.dense.weight)
    assert torch.equal(ours["pooler.weight"], theirs.pooler.dense.weight)
    assert torch.equal(ours["mlm_transform.weight"], fresh.learner.model.mlm_transform.weight)
    assert told(tmp_path / "run").endswith(
        "; left as drawn: mlm_bias, mlm_transform.weight, mlm_transform.bias, mlm_norm.weight, mlm_norm.bias, "
        "nsp.weight, nsp.bias"
    )


def test_names_of_old_conversions_are_understood(tmp_path: Path, dataset: Path) -> None:
    theirs = save_huggingface(tmp_path / "model", BertForPreTraining)
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor
        for name, tensor in load_file(tmp_path / "model" / "model.safetensors").items()
    }
    old["cls.predictions.decoder.bias"] = old.pop("cls.predictions.bias")
    old["cls.predictions.decoder.weight"] = old["bert.embeddings.word_embeddings.weight"].clone()
    old["bert.embeddings.position_ids"] = torch.arange(64)[None]
    save_file(old, tmp_path / "model" / "model.safetensors")
    session = open_session(tmp_path / "run", dataset, start_from(tmp_path / "model", format="huggingface"))
    torch.testing.assert_close(loss(session.learner.model), huggingface_loss(theirs), rtol=1e-6, atol=1e-6)


def test_a_padded_table_is_taken_where_the_folder_s_vocabulary_says_which_rows_count(
    tmp_path: Path, dataset: Path
) -> None:
    save_huggingface(tmp_path / "model", BertForPreTraining, vocab_size=64)
    options = start_from(tmp_path / "model", format="huggingface")
    with pytest.raises(InputError, match="got 64 vocabulary entries in 64 rows; allowed: 61"):
        open_session(tmp_path / "refused", dataset, options)
    shutil.copy(dataset / "vocab.txt", tmp_path / "model")
    session = open_session(tmp_path / "run", dataset, options)
    table = load_file(tmp_path / "model" / "model.safetensors")["bert.embeddings.word_embeddings.weight"]
    assert torch.equal(session.learner.model.embeddings.tokens.weight[:VOCABULARY_SIZE], table[:VOCABULARY_SIZE])
    assert not session.learner.model.embeddings.tokens.weight[VOCABULARY_SIZE:].any()


def change_tensors(change: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        change(tensors)
        save_file(tensors, folder / "model.safetensors")

    return apply


def replace_text(name: str, old: str, new: str) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        text = (folder / name).read_text()
        assert old in text
        (folder / name).write_text(text.replace(old, new))

    return apply


def set_key(key: str, value: object) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))

    return apply


TABLE, FFN = "bert.embeddings.word_embeddings.weight", "bert.encoder.layer.1.intermediate.dense.weight"
DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "a size": (
        change_tensors(lambda t: t.update({FFN: t[FFN][:48].clone()})),
        r"1 of another shape\n.*layer.1.intermediate.dense.weight: got \[48, 32\]; allowed: \[64, 32\]",
    ),
    "a missing tensor of the encoder": (
        change_tensors(lambda t: t.pop(FFN)),
        r"1 missing\n.*missing: bert.encoder.layer.1.intermediate.dense.weight \[64, 32\]",
    ),
    "a layer too many": (
        change_tensors(lambda t: t.update({FFN.replace("1", "2"): t[FFN].clone()})),
        r"1 left over\n.*left over: bert.encoder.layer.2.intermediate.dense.weight",
    ),
    "a tensor of no module": (
        change_tensors(lambda t: t.update({"stray": torch.zeros(3, 32)})),
        "1 left over\n  left over: stray",
    ),
    "fewer words": (
        change_tensors(lambda t: t.update({TABLE: t[TABLE][:60].clone()})),
        "word_embeddings.weight: got 60 vocabulary entries in 60 rows; allowed: 61",
    ),
    "a bias too short": (
        change_tensors(lambda t: t.update({"cls.predictions.bias": torch.zeros(60)})),
        r"cls.predictions.bias: got \[60\]; allowed: \[61\]",
    ),
    "numbers that are none": (
        change_tensors(lambda t: t[FFN].fill_(float("nan"))),
        "not finite numbers: bert.encoder.layer.1.intermediate.dense.weight(.|\n)*has diverged",
    ),
    "an output layer of its own": (
        change_tensors(lambda t: t.update({"cls.predictions.decoder.weight": t[TABLE] + 1})),
        "decoder.weight: got other values than bert.embeddings.word_embeddings.weight",
    ),
    "other heads": (
        replace_text("config.json", '"num_attention_heads": 2', '"num_attention_heads": 4'),
        "num_attention_heads: got 4; allowed: 2(.|\n)*set model.num_attention_heads",
    ),
    "another activation": (
        replace_text("config.json", '"hidden_act": "gelu"', '"hidden_act": "relu"'),
        "hidden_act: got 'relu'; allowed: 'gelu'",
    ),
    "another epsilon": (
        set_key("layer_norm_eps", 1e-3),
        "layer_norm_eps: got 0.001; allowed: 1e-12(.|\n)*set model.layer_norm_eps",
    ),
    "a decoder": (set_key("is_decoder", True), "is_decoder: got True; allowed: False"),
    "attention to another text": (
        set_key("add_cross_attention", True),
        "add_cross_attention: got True; allowed: False",
    ),
    "relative positions": (
        set_key("position_embedding_type", "relative_key"),
        "position_embedding_type: got 'relative_key'; allowed: 'absolute'",
    ),
    "another kind of model": (
        replace_text("config.json", '"model_type": "bert"', '"model_type": "gpt2"'),
        "model_type: got 'gpt2'; allowed: 'bert'",
    ),
    "other words": (
        lambda folder: (folder / "vocab.txt").write_text("\n".join([*SPECIAL_TOKENS, *"abcdefgh"])),
        "vocab.txt: got 13 entries for embeddings.tokens.weight; allowed: 61",
    ),
    "as many, but other words": (
        lambda folder: (folder / "vocab.txt").write_text(
            "\n".join([*SPECIAL_TOKENS, "w0", *(f"v{number}" for number in range(VOCABULARY_SIZE - 6))])
        ),
        "vocab.txt: entry 6: got 'v0'; allowed: 'w1', as in this run's vocabulary",
    ),
    "no settings": (lambda folder: (folder / "config.json").unlink(), "config.json: cannot be read"),
    "settings cut": (replace_text("config.json", "}", ""), "config.json: not a JSON document"),
    "no weights": (
        lambda folder: (folder / "model.safetensors").unlink(),
        "got none of model.safetensors, pytorch_model.bin",
    ),
    "weights cut": (
        lambda folder: (folder / "model.safetensors").write_bytes(b"cut"),
        "model.safetensors: cannot be read",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_model_folder_that_does_not_fit_is_refused_by_name(tmp_path: Path, dataset: Path, damage: str) -> None:
    apply, words = DAMAGES[damage]
    save_huggingface(tmp_path / "model", BertForPreTraining)
    apply(tmp_path / "model")
    with pytest.raises(InputError, match=words) as error:
        open_session(tmp_path / "run", dataset, start_from(tmp_path / "model", format="huggingface"))
    assert error.value.exit_code == 2
    assert str(tmp_path / "model") in str(error.value)


class Planted:
    """What runs code when it is unpickled."""

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return (exec, ("raise SystemExit('this code has run')",))


@pytest.mark.parametrize("content", [{"x": Planted()}, {"x": "text"}, [torch.zeros(1)]], ids=["code", "text", "list"])
def test_a_bin_file_holds_tensors_and_nothing_else(tmp_path: Path, dataset: Path, content: object) -> None:
    save_huggingface(tmp_path / "model", BertForPreTraining, safe=False)
    torch.save(content, tmp_path / "model" / "pytorch_model.bin")
    with pytest.raises(InputError, match=r"pytorch_model.bin: (cannot be read|(x: )?got something other)"):
        open_session(tmp_path / "run", dataset, start_from(tmp_path / "model", format="huggingface"))
