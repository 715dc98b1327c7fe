"""Import of a Hugging Face model folder, the inverse of ``huggingface_export``.

Reads ``config.json`` with ``model.safetensors`` or ``pytorch_model.bin``, as ``save_pretrained`` of
``BertForPreTraining``, ``BertForMaskedLM``, ``BertModel`` or ``DistilBertForMaskedLM`` writes them. Downloads
nothing, runs no code that a file may hold, and leaves it to ``initial_weights`` whether the tensors fit.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from bert_trainer.checkpoints.huggingface_export import huggingface_config, huggingface_name
from bert_trainer.errors import InputError
from bert_trainer.model.bert import Bert

_WEIGHTS, _OLD_WEIGHTS = "model.safetensors", "pytorch_model.bin"

# What models converted from TensorFlow call LayerNorm's parameters, bert-base-uncased among them.
_OLD_ENDINGS = {".gamma": ".weight", ".beta": ".bias"}
# Tensors that are stored twice: the copy and what it is tied to.
_TIED = {
    "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
    "vocab_projector.weight": "distilbert.embeddings.word_embeddings.weight",
}
_POSITION_NUMBERS = "embeddings.position_ids"
# Heads that a model of ours may lack: their names are translated all the same.
_NEXT_SENTENCE = ("pooler.weight", "pooler.bias", "nsp.weight", "nsp.bias")
# Settings that change what the same tensors compute.
_SETTINGS = {
    "model_type": "model.architecture",
    "num_attention_heads": "model.num_attention_heads",
    "n_heads": "model.num_attention_heads",
    "hidden_act": "model.hidden_act",
    "activation": "model.hidden_act",
}
_SAME_ACTIVATION = {"gelu_python": "gelu", "gelu_pytorch_tanh": "gelu_new", "gelu_fast": "gelu_new"}


def read_model_folder(path: Path, model: Bert) -> tuple[dict[str, Tensor], Callable[[str], str]]:
    """Return the folder's tensors by our names, and a function that translates our names into the folder's.

    A tensor without a counterpart here keeps its own name.

    Raises:
        InputError: no such folder, an unreadable file, or settings that are not this model's.
    """
    _check_settings(path / "config.json", model)
    tensors = _without_copies(path, _read_tensors(path))
    architecture = model.config.architecture
    # A bare encoder (BertModel) leaves the first word of every name out.
    prefix = f"{architecture}."
    bare = not any(name.startswith(prefix) for name in tensors)

    def spell(name: str) -> str:
        theirs = huggingface_name(name, architecture)
        return theirs.removeprefix(prefix) if bare else theirs

    names = [name for name, _ in model.named_parameters()]
    if architecture == "bert":
        names = [*dict.fromkeys((*names, *_NEXT_SENTENCE))]
    ours = {spell(name): name for name in names}
    return {ours.get(name, name): tensor for name, tensor in tensors.items()}, spell


def _check_settings(path: Path, model: Bert) -> None:
    try:
        settings = json.loads(path.read_text())
    except OSError as error:
        raise InputError(
            f"initial_checkpoint.path: {path}: cannot be read ({error.strerror})",
            hint="name a folder on disk that save_pretrained has written; nothing is downloaded",
        ) from error
    except ValueError as error:
        raise InputError(f"initial_checkpoint.path: {path}: not a JSON document ({error})") from error
    if not isinstance(settings, dict):
        raise InputError(f"initial_checkpoint.path: {path}: got a {type(settings).__name__}; allowed: a JSON object")
    wanted = huggingface_config(model)
    for key in _SETTINGS.keys() & wanted.keys() & settings.keys():
        got = _SAME_ACTIVATION.get(str(settings[key]), settings[key])
        if got != wanted[key]:
            raise InputError(
                f"initial_checkpoint.path: {path}: {key}: got {settings[key]!r}; allowed: {wanted[key]!r}, this run's",
                hint=f"set {_SETTINGS[key]} to what that model was trained with, or start from another one",
            )


def _read_tensors(path: Path) -> dict[str, Tensor]:
    file = path / _WEIGHTS
    try:
        if file.exists():
            return load_file(file)
        file = path / _OLD_WEIGHTS
        if file.exists():
            # weights_only: a pickle runs code otherwise.
            loaded: Any = torch.load(file, map_location="cpu", weights_only=True)
            if isinstance(loaded, Mapping) and all(isinstance(tensor, Tensor) for tensor in loaded.values()):
                return dict(loaded)
            raise InputError(f"initial_checkpoint.path: {file}: got something other than tensors by name")
    except (OSError, RuntimeError, EOFError, SafetensorError, pickle.UnpicklingError) as error:
        # PyTorch's messages go on for paragraphs.
        reason = (str(error) or repr(error)).splitlines()[0]
        raise InputError(
            f"initial_checkpoint.path: {file}: cannot be read ({reason})",
            hint="copy it again, or save the model anew with save_pretrained",
        ) from error
    raise InputError(
        f"initial_checkpoint.path: {path}: got neither {_WEIGHTS} nor {_OLD_WEIGHTS}; allowed: a model in one file",
        hint="save the model with save_pretrained; a model in several parts fits one with a larger max_shard_size",
    )


def _without_copies(path: Path, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors under today's names, without the copies of tied ones.

    Raises:
        InputError: what this model ties together is not the same.
    """
    renamed = {}
    for name, tensor in tensors.items():
        stem, dot, ending = name.rpartition(".")
        is_norm = stem.lower().endswith("norm")
        renamed[stem + _OLD_ENDINGS.get(dot + ending, dot + ending) if is_norm else name] = tensor
    for copy, original in _TIED.items():
        if copy not in renamed:
            continue
        tensor = renamed.pop(copy)
        if not torch.equal(renamed.setdefault(original, tensor), tensor):
            raise InputError(
                f"initial_checkpoint.path: {path}: {copy}: got other values than {original}; allowed: the same, "
                "which this trainer's model holds once",
                hint="start from a model that was trained with tie_word_embeddings",
            )
    return {name: tensor for name, tensor in renamed.items() if not name.endswith(_POSITION_NUMBERS)}
