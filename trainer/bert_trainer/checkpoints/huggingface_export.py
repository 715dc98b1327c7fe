"""The trained model as Hugging Face stores one, and the mapping of parameter names.

``config.json`` and ``model.safetensors``, which ``transformers`` loads as ``BertForPreTraining`` (or
``BertForMaskedLM``, ``DistilBertForMaskedLM``). Does not import transformers; ``tokenizer_files`` writes what belongs
beside them.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bert_trainer.checkpoints.checkpoint import save_tensors
from bert_trainer.dataset.tokens.wordpiece import Vocabulary
from bert_trainer.model.bert import Bert

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


def huggingface_name(name: str, architecture: str) -> str:
    """Translate one of our parameter names, for example ``layers.3.ffn_in.weight``."""
    distilbert = architecture == "distilbert"
    names, layer_names, layers = (
        (_DISTILBERT_NAMES, _DISTILBERT_LAYER_NAMES, "distilbert.transformer.layer")
        if distilbert
        else (_BERT_NAMES, _BERT_LAYER_NAMES, "bert.encoder.layer")
    )
    if name in names:  # a bare parameter, without .weight or .bias of its own
        return names[name]
    stem, kind = name.rsplit(".", 1)
    match = re.fullmatch(r"layers\.(\d+)\.(\w+)", stem)
    if match is None:
        return f"{names[stem]}.{kind}"
    return f"{layers}.{match[1]}.{layer_names[match[2]]}.{kind}"


def huggingface_tensors(model: Bert) -> dict[str, Tensor]:
    """Return the weights under Hugging Face's names, the vocabulary's padding rows cut off."""
    return {
        huggingface_name(name, model.config.architecture): tensor.cpu().contiguous().clone()
        for name, tensor in model.unpadded_weights().items()
    }


def huggingface_config(model: Bert) -> dict[str, Any]:
    """Return the content of ``config.json``."""
    config = model.config
    if config.architecture == "distilbert":
        return {
            "architectures": ["DistilBertForMaskedLM"],
            "model_type": "distilbert",
            "activation": config.hidden_act,
            "attention_dropout": config.attention_probs_dropout_prob,
            "dim": config.hidden_size,
            "dropout": config.hidden_dropout_prob,
            "hidden_dim": config.intermediate_size,
            "initializer_range": config.initializer_range,
            "max_position_embeddings": config.max_position_embeddings,
            "n_heads": config.num_attention_heads,
            "n_layers": config.num_hidden_layers,
            "sinusoidal_pos_embds": False,
            "vocab_size": model.vocabulary_size,
        }
    return {
        "architectures": ["BertForPreTraining" if model.nsp is not None else "BertForMaskedLM"],
        "model_type": "bert",
        "attention_probs_dropout_prob": config.attention_probs_dropout_prob,
        "hidden_act": config.hidden_act,
        "hidden_dropout_prob": config.hidden_dropout_prob,
        "hidden_size": config.hidden_size,
        "initializer_range": config.initializer_range,
        "intermediate_size": config.intermediate_size,
        "layer_norm_eps": config.layer_norm_eps,
        "max_position_embeddings": config.max_position_embeddings,
        "num_attention_heads": config.num_attention_heads,
        "num_hidden_layers": config.num_hidden_layers,
        "type_vocab_size": config.type_vocab_size,
        "vocab_size": model.vocabulary_size,
    }


def write_config(model: Bert, vocabulary: Vocabulary, folder: Path) -> None:
    """Write ``config.json``."""
    config = {**huggingface_config(model), "pad_token_id": vocabulary.pad_id}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def write_weights(model: Bert, folder: Path) -> None:
    """Write ``model.safetensors``, fp32."""
    tensors = {
        name: tensor.float() if tensor.dtype == torch.float64 else tensor
        for name, tensor in huggingface_tensors(model).items()
    }
    save_tensors(tensors, folder / "model.safetensors")
