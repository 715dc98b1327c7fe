"""The trained model as Hugging Face stores one, and the mapping of parameter names.

``config.json`` and ``model.safetensors``, which ``transformers`` loads as ``BertForPreTraining`` (or
``BertForMaskedLM``, ``DistilBertForMaskedLM``, ``ModernBertForMaskedLM``), and a fine-tuned model as
``...ForSequenceClassification`` or ``...ForQuestionAnswering``. Does not import transformers; ``tokenizer_files``
writes what belongs beside them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from bert_job.tasks import Kind
from bert_trainer.checkpoints.checkpoint import save_tensors
from bert_trainer.dataset.tokens.wordpiece import Vocabulary
from bert_trainer.model.bert import Bert
from bert_trainer.model.layers import EncoderParameters
from bert_trainer.model.task_model import TaskModel

# Ours to theirs; a layer's names are the part behind "layers.<i>.".
_BERT_NAMES = {
    "embeddings.tokens": "bert.embeddings.word_embeddings",
    "embeddings.positions": "bert.embeddings.position_embeddings",
    "embeddings.segments": "bert.embeddings.token_type_embeddings",
    "embeddings.norm": "bert.embeddings.LayerNorm",
    "pooler": "bert.pooler.dense",
    "mlm_transform": "cls.predictions.transform.dense",
    "mlm_norm": "cls.predictions.transform.LayerNorm",
    "mlm_bias": "cls.predictions.bias",
    "nsp": "cls.seq_relationship",
    "head": "classifier",
}
_BERT_LAYER_NAMES = {
    "query": "attention.self.query",
    "key": "attention.self.key",
    "value": "attention.self.value",
    "attention_output": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "ffn_in": "intermediate.dense",
    "ffn_out": "output.dense",
    "ffn_norm": "output.LayerNorm",
}
_DISTILBERT_NAMES = {
    "embeddings.tokens": "distilbert.embeddings.word_embeddings",
    "embeddings.positions": "distilbert.embeddings.position_embeddings",
    "embeddings.norm": "distilbert.embeddings.LayerNorm",
    "mlm_transform": "vocab_transform",
    "mlm_norm": "vocab_layer_norm",
    "mlm_bias": "vocab_projector.bias",
    "pooler": "pre_classifier",
    "head": "classifier",
}
_DISTILBERT_LAYER_NAMES = {
    "query": "attention.q_lin",
    "key": "attention.k_lin",
    "value": "attention.v_lin",
    "attention_output": "attention.out_lin",
    "attention_norm": "sa_layer_norm",
    "ffn_in": "ffn.lin1",
    "ffn_out": "ffn.lin2",
    "ffn_norm": "output_layer_norm",
}
_MODERNBERT_NAMES = {
    "embeddings.tokens": "model.embeddings.tok_embeddings",
    "embeddings.norm": "model.embeddings.norm",
    "final_norm": "model.final_norm",
    "mlm_transform": "head.dense",
    "mlm_norm": "head.norm",
    "mlm_bias": "decoder.bias",
    "head": "classifier",
}
_MODERNBERT_LAYER_NAMES = {
    "attention_norm": "attn_norm",
    "qkv": "attn.Wqkv",
    "attention_output": "attn.Wo",
    "ffn_norm": "mlp_norm",
    "ffn_in": "mlp.Wi",
    "ffn_out": "mlp.Wo",
}


@dataclass(frozen=True, slots=True)
class _Family:
    """How transformers names one architecture's classes and parameters."""

    classes: str
    """How the names of its classes begin."""
    names: Mapping[str, str]
    layer_names: Mapping[str, str]
    layers: str
    spans_head: str = "qa_outputs"


_FAMILIES: Mapping[str, _Family] = MappingProxyType(
    {
        "bert": _Family("Bert", _BERT_NAMES, _BERT_LAYER_NAMES, "bert.encoder.layer"),
        "distilbert": _Family("DistilBert", _DISTILBERT_NAMES, _DISTILBERT_LAYER_NAMES, "distilbert.transformer.layer"),
        "modernbert": _Family(
            "ModernBert", _MODERNBERT_NAMES, _MODERNBERT_LAYER_NAMES, "model.layers", spans_head="classifier"
        ),
    }
)
CLASS_PREFIXES = tuple(family.classes for family in _FAMILIES.values())
_PROBLEMS: dict[Kind, str] = {"classification": "single_label_classification", "regression": "regression"}
_RATING = "rating"
"""What the one number of a regression is called; pipelines print it."""


def huggingface_name(name: str, architecture: str, *, spans: bool = False) -> str:
    """Translate one of our parameter names, for example ``layers.3.ffn_in.weight``. spans: the head is one of spans."""
    family = _FAMILIES[architecture]
    if name in family.names:  # a bare parameter, without .weight or .bias of its own
        return family.names[name]
    stem, kind = name.rsplit(".", 1)
    match = re.fullmatch(r"layers\.(\d+)\.(\w+)", stem)
    if match is None:
        return f"{family.spans_head if spans and stem == 'head' else family.names[stem]}.{kind}"
    return f"{family.layers}.{match[1]}.{family.layer_names[match[2]]}.{kind}"


def naming_of(model: EncoderParameters) -> Callable[[str], str]:
    """Return what translates the names of a model's parameters, its head's among them, as ``huggingface_name`` does."""
    spans = isinstance(model, TaskModel) and model.head_config.kind == "spans"
    return partial(huggingface_name, architecture=model.config.architecture, spans=spans)


def huggingface_tensors(model: Bert | TaskModel, left_out: Collection[str] = ()) -> dict[str, Tensor]:
    """Return the weights under Hugging Face's names, the vocabulary's padding rows cut off. left_out: by our names."""
    spell = naming_of(model)
    return {
        spell(name): tensor.cpu().contiguous().clone()
        for name, tensor in model.unpadded_weights().items()
        if name not in left_out
    }


def huggingface_config(model: Bert | TaskModel, labels: Sequence[str] = ()) -> dict[str, Any]:
    """Return the content of ``config.json``. labels: the classes' names by number, of a fine-tuned classifier."""
    if isinstance(model, TaskModel):
        purpose = "QuestionAnswering" if model.head_config.kind == "spans" else "SequenceClassification"
        return _of_class(purpose, model) | _head_config(model, labels)
    return _of_class("MaskedLM" if model.nsp is None else "PreTraining", model)


def _of_class(purpose: str, model: EncoderParameters) -> dict[str, Any]:
    name = f"{_FAMILIES[model.config.architecture].classes}For{purpose}"
    return {"architectures": [name], **encoder_settings(model)}


def _head_config(model: TaskModel, labels: Sequence[str]) -> dict[str, Any]:
    """Return what a fine-tuned model's configuration says of its head."""
    kind, dropout = model.head_config.kind, model.head_config.dropout
    if model.config.architecture == "distilbert":
        settings: dict[str, Any] = {"qa_dropout" if kind == "spans" else "seq_classif_dropout": dropout}
    else:
        is_of_bert = model.config.architecture == "bert"
        settings = {} if kind == "spans" and is_of_bert else {"classifier_dropout": dropout}
    if kind == "spans":
        return settings
    if model.config.architecture == "modernbert":
        settings["classifier_pooling"] = model.head_config.pooling
    names = [_RATING] if kind == "regression" else list(labels)
    if len(set(names)) != model.head_config.num_outputs:
        raise ValueError(f"labels: got {names}; allowed: {model.head_config.num_outputs} different ones")
    return settings | {
        "problem_type": _PROBLEMS[kind],
        "id2label": {str(number): name for number, name in enumerate(names)},
        "label2id": {name: number for number, name in enumerate(names)},
    }


def encoder_settings(model: EncoderParameters) -> dict[str, Any]:
    """Return what ``config.json`` says of the encoder."""
    config = model.config
    if config.architecture == "distilbert":
        return {
            "model_type": "distilbert",
            "activation": config.hidden_activation,
            "attention_dropout": config.attention_dropout,
            "dim": config.hidden_size,
            "dropout": config.hidden_dropout,
            "hidden_dim": config.intermediate_size,
            "initializer_range": config.initializer_range,
            "max_position_embeddings": config.max_position_embeddings,
            "n_heads": config.num_attention_heads,
            "n_layers": config.num_hidden_layers,
            "sinusoidal_pos_embds": False,
            "vocab_size": model.vocabulary_size,
        }
    if config.architecture == "modernbert":
        return _modernbert_settings(model)
    return {
        "model_type": "bert",
        "attention_probs_dropout_prob": config.attention_dropout,
        "hidden_act": config.hidden_activation,
        "hidden_dropout_prob": config.hidden_dropout,
        "hidden_size": config.hidden_size,
        "initializer_range": config.initializer_range,
        "intermediate_size": config.intermediate_size,
        "layer_norm_eps": config.layer_norm_epsilon,
        "max_position_embeddings": config.max_position_embeddings,
        "num_attention_heads": config.num_attention_heads,
        "num_hidden_layers": config.num_hidden_layers,
        "type_vocab_size": config.segment_types,
        "vocab_size": model.vocabulary_size,
    }


def _modernbert_settings(model: EncoderParameters) -> dict[str, Any]:
    """Return the same of ModernBERT: attention in the words of transformers 5, and in those of 4.48 and later."""
    config = model.config
    every = config.global_attention_every or 1
    kinds = ["sliding_attention" if number % every else "full_attention" for number in range(config.num_hidden_layers)]
    thetas = {"full_attention": config.global_rope_theta, "sliding_attention": config.local_rope_theta}
    return {
        "model_type": "modernbert",
        "attention_bias": False,
        "attention_dropout": config.attention_dropout,
        "classifier_activation": config.hidden_activation,
        "classifier_bias": False,
        "classifier_pooling": "cls",
        "decoder_bias": True,
        "embedding_dropout": config.hidden_dropout,
        "global_attn_every_n_layers": every,
        "global_rope_theta": config.global_rope_theta,
        "hidden_activation": config.hidden_activation,
        "hidden_size": config.hidden_size,
        "initializer_cutoff_factor": 2.0,
        "initializer_range": config.initializer_range,
        "intermediate_size": config.intermediate_size,
        "layer_types": kinds,
        "local_attention": config.attention_window,
        "local_rope_theta": config.local_rope_theta,
        "max_position_embeddings": config.max_position_embeddings,
        "mlp_bias": False,
        "mlp_dropout": config.hidden_dropout,
        "norm_bias": False,
        "norm_eps": config.layer_norm_epsilon,
        "num_attention_heads": config.num_attention_heads,
        "num_hidden_layers": config.num_hidden_layers,
        "rope_parameters": {kind: {"rope_type": "default", "rope_theta": theta} for kind, theta in thetas.items()},
        "tie_word_embeddings": True,
        "vocab_size": model.vocabulary_size,
    }


def write_config(
    model: Bert | TaskModel,
    vocabulary: Vocabulary,
    folder: Path,
    labels: Sequence[str] = (),
    left_out: Collection[str] = (),
) -> None:
    """Write ``config.json``. labels: as for ``huggingface_config``; left_out: as for ``write_weights``."""
    config = {**huggingface_config(model, labels), "pad_token_id": vocabulary.pad_id}
    if model.config.architecture == "modernbert":
        # Its class has numbers of its own for them, which a smaller vocabulary does not have.
        config |= dict.fromkeys(("bos_token_id", "cls_token_id"), vocabulary.cls_id)
        config |= dict.fromkeys(("eos_token_id", "sep_token_id"), vocabulary.sep_id)
    if "mlm_bias" in left_out:
        config["architectures"] = [f"{_FAMILIES[model.config.architecture].classes}Model"]
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def write_weights(model: Bert | TaskModel, folder: Path, left_out: Collection[str] = ()) -> None:
    """Write ``model.safetensors``, fp32. left_out: parameters by our names, the heads that an encoder does not have."""
    tensors = {
        name: tensor.float() if tensor.dtype == torch.float64 else tensor
        for name, tensor in huggingface_tensors(model, left_out).items()
    }
    save_tensors(tensors, folder / "model.safetensors")
