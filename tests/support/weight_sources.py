"""A small BERT, its vocabulary, and weights of it as other programs write them; loading without a run around it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bert_job.weights import InitialCheckpointSpec
from bert_trainer.checkpoints import initial_weights
from bert_trainer.checkpoints.huggingface_export import huggingface_tensors
from bert_trainer.checkpoints.model_export import export_model
from bert_trainer.dataset.tokens.wordpiece import SPECIAL_TOKENS, Vocabulary, read_vocabulary
from bert_trainer.model.bert import Bert
from bert_trainer.parallel.flat_parameters import FlatParameters
from whole_configs import model_settings

VOCABULARY_SIZE = 13
SIZES = {
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "max_position_embeddings": 10,
}


def small_model(seed: int = 0, **settings: Any) -> Bert:
    """Return a model in which no parameter has the value that it starts with in training."""
    model = Bert(model_settings(**{**SIZES, **settings}), VOCABULARY_SIZE)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 1, generator=generator)
        model.embeddings.tokens.weight[VOCABULARY_SIZE:] = 0
        model.mlm_bias[VOCABULARY_SIZE:] = 0
    return model


def write_vocabulary(folder: Path, *, last: str = "g") -> Vocabulary:
    """Write the model's vocabulary and read it."""
    words = [*(f"w{number}" for number in range(VOCABULARY_SIZE - len(SPECIAL_TOKENS) - 1)), last]
    path = folder / "vocab.txt"
    path.write_text("\n".join([*SPECIAL_TOKENS, *words]) + "\n")
    return read_vocabulary(path)


def write_huggingface(folder: Path, model: Bert) -> Path:
    """Write the model as a folder of Hugging Face."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    export_model("huggingface", model, write_vocabulary(folder.parent), folder, lower_case=True)
    return folder


def nvidia_tensors(model: Bert) -> dict[str, Tensor]:
    """Return the weights by NVIDIA's names, in the order of its model, the tied copy and padding rows included."""
    tensors = {}
    for name, tensor in huggingface_tensors(model).items():
        if name in ("bert.embeddings.word_embeddings.weight", "cls.predictions.bias"):
            padding = torch.zeros(16 - VOCABULARY_SIZE, *tensor.shape[1:])
            tensor = torch.cat([tensor, padding])
        for fused in ("intermediate.dense.", "pooler.dense.", "transform.dense."):
            name = name.replace(fused, fused.replace("dense", "dense_act"))
        tensors[name] = tensor
    # Where the decoder stands in the state dictionary of a tied model.
    tensors["cls.predictions.decoder.weight"] = tensors["bert.embeddings.word_embeddings.weight"]
    return tensors


def load(
    path: Path, kind: str, model: Bert, vocabulary: Vocabulary, *, what: str = "weights"
) -> tuple[str, int, Mapping[str, Tensor], Mapping[str, Mapping[str, Tensor]]]:
    """Load initial weights; return the sentence, the step count, the parameters and the moments by name."""
    parameters = FlatParameters(model)
    moments = {part: torch.zeros_like(parameters.values) for part in ("first_moment", "second_moment")}
    start = InitialCheckpointSpec(path=str(path), format=kind, load=what)  # type: ignore[arg-type]
    message, steps = initial_weights.load(start, model, vocabulary, parameters, moments)
    named = {part: parameters.named(flat) for part, flat in moments.items()}
    return message, steps, parameters.named(parameters.values), named
