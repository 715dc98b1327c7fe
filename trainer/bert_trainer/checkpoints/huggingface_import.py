"""Import of a Hugging Face model folder, the inverse of ``huggingface_export``.

Reads ``config.json`` with ``model.safetensors`` or ``pytorch_model.bin``, whole or in parts, as ``save_pretrained`` of
``BertForPreTraining``, ``BertForMaskedLM``, ``BertModel``, ``DistilBertForMaskedLM`` or ``ModernBertForMaskedLM``
writes them, or one of the fine-tuned classes in ``fine_tuned_import``. Downloads nothing, runs no code that a file may
hold, and leaves it to ``weight_matching`` whether the tensors fit.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from bert_job.foreign_text import printable
from bert_trainer.checkpoints.foreign_formats import HUGGINGFACE_FILES
from bert_trainer.checkpoints.huggingface_export import encoder_settings, naming_of
from bert_trainer.checkpoints.tensor_files import read_pickled_tensors, read_safetensors
from bert_trainer.checkpoints.weight_matching import NEXT_SENTENCE, by_our_names, max_elements
from bert_trainer.config.json_files import read_json_file
from bert_trainer.config.model_file import fixed_settings, read_activation, read_modern_attention
from bert_trainer.errors import InputError
from bert_trainer.model.layers import EncoderParameters

# What models converted from TensorFlow call LayerNorm's parameters, bert-base-uncased among them.
_OLD_ENDINGS = {".gamma": ".weight", ".beta": ".bias"}
# Tensors that are stored twice: the copy and what it is tied to.
_TIED = {
    "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
    "vocab_projector.weight": "distilbert.embeddings.word_embeddings.weight",
    "decoder.weight": "model.embeddings.tok_embeddings.weight",
}


@dataclass(frozen=True, slots=True)
class _Layout:
    """Where the tensors of one architecture stand in a file of transformers."""

    prefix: str
    """Of the encoder's names."""
    modules: Collection[str]
    """First words of them behind it."""
    table: str = "embeddings.word_embeddings.weight"
    """The token table, behind the prefix."""


_LAYOUTS = {
    "bert": _Layout("bert.", ("embeddings", "encoder", "pooler")),
    "distilbert": _Layout("distilbert.", ("embeddings", "transformer")),
    "modernbert": _Layout("model.", ("embeddings", "layers", "final_norm"), "embeddings.tok_embeddings.weight"),
}
_OURS = (
    *("bert.", "cls.predictions.", "cls.seq_relationship."),
    *("distilbert.", "vocab_transform.", "vocab_layer_norm.", "vocab_projector."),
    *("model.", "head.", "decoder."),
)
"""How names begin that no other head has."""
_POSITION_NUMBERS = "embeddings.position_ids"
# Settings that change what the same tensors compute.
_SETTINGS = {
    "model_type": "model.architecture",
    "num_attention_heads": "model.num_attention_heads",
    "n_heads": "model.num_attention_heads",
    "hidden_act": "model.hidden_activation",
    "activation": "model.hidden_activation",
    "hidden_activation": "model.hidden_activation",
    "layer_norm_eps": "model.layer_norm_epsilon",
    "local_attention": "model.attention_window",
    "norm_eps": "model.layer_norm_epsilon",
}

_ACTIVATIONS = ("activation", "hidden_act", "hidden_activation")


def read_model_folder(path: Path, model: EncoderParameters) -> tuple[dict[str, Tensor], Callable[[str], str]]:
    """Return the folder's tensors by our names, and a function that translates our names into the folder's.

    A tensor without a counterpart here keeps its own name.

    Raises:
        InputError: no such folder, an unreadable file, or settings that are not this model's.
    """
    check_settings(path / "config.json", model)
    tensors, wrapping = unwrap(path, _read_tensors(path), model.config.architecture)
    named = translate(without_copies(path, tensors, model), model)
    spell = naming_of(model)
    return named, lambda name: wrapping.spell(spell(name))


@dataclass(frozen=True, slots=True)
class Wrapping:
    """Prefix of a model's tensor names in a file, from the program that wrapped the model; may be empty."""

    prefix: str
    """Of the encoder's names in a file of transformers, such as ``bert.``"""
    root: str
    """Of the encoder's names in this file; empty where the encoder was saved alone."""
    outer: str
    """Of all other names of the model."""
    modules: Collection[str]
    """First words of the encoder's names behind the root."""

    @classmethod
    def find(cls, path: Path, names: Iterable[str], architecture: str) -> Wrapping:
        """Detect the prefix by the token table's name. Raises InputError if there are several encoders."""
        layout = _LAYOUTS[architecture]
        prefix, table = layout.prefix, layout.table
        found = [name.removesuffix(table) for name in names if f".{name}".endswith(f".{table}")]
        # Where nothing is found, all that is missing is named.
        root = next((known for known in (prefix, "") if known in found), found[0] if len(found) == 1 else prefix)
        if len(found) > 1 and root not in found:
            listed = ", ".join(printable(f"{name}{table}")[:200] for name in found[:5])
            raise InputError(
                f"{path}: got {len(found)} token tables ({listed}); allowed: one, of the encoder to start from",
                hint="save that encoder alone, with save_pretrained",
            )
        return cls(prefix, root, root.removesuffix(prefix), layout.modules)

    def unwrap(self, name: str) -> str:
        """Return the transformers name of a tensor in this file; one outside the model keeps its name."""
        rest = name.removeprefix(self.root)
        if name.startswith(self.root) and rest.partition(".")[0] in self.modules:
            return self.prefix + rest
        return name.removeprefix(self.outer)

    def spell(self, name: str) -> str:
        """Return the name in this file of a tensor with a transformers name."""
        if name.startswith(self.prefix):
            return self.root + name.removeprefix(self.prefix)
        return self.outer + name


def unwrap(path: Path, tensors: Mapping[str, Tensor], architecture: str) -> tuple[dict[str, Tensor], Wrapping]:
    """Return tensors by transformers' names, without what wrappers such as DistributedDataParallel put before them.

    Raises:
        InputError: two tensors would get one name, or there are several encoders.
    """
    wrapping = Wrapping.find(path, tensors, architecture)
    unwrapped = {name: wrapping.unwrap(name) for name in tensors}
    if len(set(unwrapped.values())) != len(unwrapped):
        first: dict[str, str] = {}
        both = next((first[new], old) for old, new in unwrapped.items() if first.setdefault(new, old) != old)
        raise InputError(
            f"{path}: got both {printable(both[0])[:200]} and {printable(both[1])[:200]}; allowed: one of them",
            hint="save one model alone",
        )
    return {unwrapped[name]: tensor for name, tensor in tensors.items()}, wrapping


def translate(tensors: Mapping[str, Tensor], model: EncoderParameters) -> dict[str, Tensor]:
    """Rename tensors from Hugging Face's names to ours."""
    names = [name for name, _ in model.named_parameters()]
    if model.config.architecture == "bert":
        names = [*dict.fromkeys((*names, *NEXT_SENTENCE))]
    spell = naming_of(model)
    named = by_our_names(tensors, {spell(name): name for name in names})
    return {named[name]: tensor for name, tensor in tensors.items()}


def is_foreign_head(name: str) -> bool:
    """Return whether a transformers tensor belongs to a head that is not one of ours.

    A parameter of a module outside the encoder and the heads of pretraining: those are whole, or refused.
    """
    return "." in name and not name.startswith((*_OURS, "'"))


def check_settings(path: Path, model: EncoderParameters) -> None:
    """Refuse a model whose settings, at ``path``, say that the same tensors compute something else.

    Raises:
        InputError: they do, or cannot be read.
    """
    settings = read_json_file(path)
    for key, allowed in fixed_settings(model.config.architecture).items():
        if settings.get(key, allowed) != allowed:
            raise InputError(
                f"{path}: {key}: got {settings[key]!r:.100}; allowed: {allowed!r}, which is all that is computed here",
                hint="start from another model",
            )
    wanted = encoder_settings(model)
    for key in _SETTINGS.keys() & wanted.keys() & settings.keys():
        got = read_activation(settings, key) if key in _ACTIVATIONS else settings[key]
        if got != wanted[key]:
            raise InputError(
                f"{path}: {key}: got {got!r:.100}; allowed: {wanted[key]!r}, this run's",
                hint=f"set {_SETTINGS[key]} to what that model was trained with, or start from another one",
            )
    if model.config.architecture == "modernbert":
        _check_attention(path, settings, model)


def _check_attention(path: Path, settings: Mapping[str, Any], model: EncoderParameters) -> None:
    try:
        found = _attention_of_layers(read_modern_attention(settings), model)
    except ValueError as error:
        raise InputError(f"{path}: {printable(str(error))}", hint="start from another model") from None
    for number, (got, wanted) in enumerate(zip(found, _attention_of_layers(dict(model.config), model), strict=True)):
        if got != wanted:
            raise InputError(
                f"{path}: layer {number}: got {got}; allowed: {wanted}, this run's",
                hint="set globalAttentionEvery, globalRopeTheta and localRopeTheta of model to that model's, "
                "or start from another one",
            )


def _attention_of_layers(config: Mapping[str, Any], model: EncoderParameters) -> list[str]:
    """Return for every layer whether it has a window, and its rotary base."""
    every = config["global_attention_every"]
    return [
        f"a window, theta {config['local_rope_theta']:g}"
        if number % every
        else f"theta {config['global_rope_theta']:g}"
        for number in range(model.config.num_hidden_layers)
    ]


def _read_tensors(path: Path) -> dict[str, Tensor]:
    for name in HUGGINGFACE_FILES:
        file = path / name
        if file.exists():
            return _read_parts(path, file) if file.suffix == ".json" else _READERS[file.suffix](file)
    raise InputError(
        f"{path}: got none of {', '.join(HUGGINGFACE_FILES)}; allowed: a folder with one of them",
        hint="save the model with save_pretrained",
    )


def _read_parts(folder: Path, index_file: Path) -> dict[str, Tensor]:
    """Return the tensors of a model in several files, whose index says which file holds which.

    Raises:
        InputError: the index names anything but files of the folder, or they hold other tensors than it says.
    """
    places = read_json_file(index_file).get("weight_map")
    if not isinstance(places, dict) or not places or not all(isinstance(part, str) for part in places.values()):
        raise InputError(
            f"{index_file}: weight_map: got {places!r:.100}; allowed: the name of a file for each tensor",
            hint="copy the folder again, or save the model anew with save_pretrained",
        )
    suffix = Path(index_file.name.removesuffix(".index.json")).suffix
    parts = sorted(set(places.values()))
    for part in parts:
        if not re.fullmatch(rf"\w[\w.-]*{re.escape(suffix)}", part, re.ASCII):
            raise InputError(
                f"{index_file}: weight_map: got the file {part!r:.200}; allowed: the plain name of a {suffix} file in "
                "this folder",
                hint="copy the folder again from its origin; nothing outside it is read",
            )
    tensors: dict[str, Tensor] = {}
    for part in parts:
        held = _READERS[suffix](folder / part)
        listed = {name for name, place in places.items() if place == part}
        if strays := sorted(held.keys() ^ listed):
            named = ", ".join(printable(name)[:200] for name in strays[:5])
            raise InputError(
                f"{folder / part}: holds other tensors than {index_file.name} says: {named} ({len(strays)} in all)",
                hint="copy the folder again: its files are not of one model",
            )
        tensors |= held
    return tensors


_READERS: Mapping[str, Callable[[Path], dict[str, Tensor]]] = MappingProxyType(
    {".safetensors": read_safetensors, ".bin": read_pickled_tensors}
)


def current_name(name: str) -> str:
    """Return the current transformers name for a name of older conversions."""
    stem, dot, ending = name.rpartition(".")
    is_norm = stem.lower().endswith("norm")
    return stem + _OLD_ENDINGS.get(dot + ending, dot + ending) if is_norm else name


def without_copies(path: Path, tensors: Mapping[str, Tensor], model: EncoderParameters) -> dict[str, Tensor]:
    """Return the tensors under current names, without copies of tied weights.

    What is larger than the model's own is not compared with its copy: it fits no model of these sizes.

    Raises:
        InputError: what this model ties together is not the same, or one tensor stands there under both names.
    """
    renamed: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        today = current_name(name)
        if today in renamed:
            older = next(other for other in tensors if other != today and current_name(other) == today)
            raise InputError(
                f"{path}: got both {printable(today)[:200]} and {printable(older)[:200]}; allowed: one of them",
                hint="save one model alone",
            )
        renamed[today] = tensor
    for copy, original in _TIED.items():
        if copy not in renamed:
            continue
        tensor = renamed.pop(copy)
        first = renamed.setdefault(original, tensor)
        if first.shape == tensor.shape and first.numel() > max_elements(model):
            continue
        if not torch.equal(first, tensor):
            raise InputError(
                f"{path}: {copy}: got other values than {original}; allowed: the same, "
                "which this trainer's model holds once",
                hint="start from a model that was trained with tie_word_embeddings",
            )
    return {name: tensor for name, tensor in renamed.items() if not name.endswith(_POSITION_NUMBERS)}
