"""Weights from elsewhere: another run's checkpoint, or a Hugging Face model folder.

Only for the start of a run; a run that resumes has weights of its own. What the source does not hold keeps its
random start and is named. Sizes that differ are an error, never a silent cut.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from bert_trainer.checkpoint import Checkpoint, find_newest_good, read_checkpoint
from bert_trainer.config import InitialCheckpoint
from bert_trainer.errors import InputError, TrainerError
from bert_trainer.huggingface import huggingface_name
from bert_trainer.model import Bert
from bert_trainer.optimizer import FlatParameters, Optimizer

# Heads: a model that was saved without them is as good a start as one with them.
_OPTIONAL = ("pooler.", "mlm_transform.", "mlm_norm.", "mlm_bias", "nsp.")
# Copies of tied weights, and buffers.
_COPIES = (
    "cls.predictions.decoder.weight",
    "cls.predictions.decoder.bias",
    "vocab_projector.weight",
    "embeddings.position_ids",
)

# Heads of theirs that a model trained on masked words alone has no use for.
_UNUSED = ("pooler.", "bert.pooler.", "cls.seq_relationship.")


def load(start: InitialCheckpoint, model: Bert, parameters: FlatParameters, optimizer: Optimizer) -> str:
    """Load what ``start`` names and return what was loaded, as a sentence.

    Raises:
        InputError: there is nothing to load there, or it is not of this model's shape.
    """
    path = Path(start.path)
    if start.format == "huggingface":
        tensors = _read_model_folder(path)
        if start.load == "none":
            return f"{path} can be read; nothing was loaded"
        fresh = _copy_huggingface(tensors, model, path)
        left = f"; left as drawn: {', '.join(fresh)}" if fresh else ""
        return f"Started from the weights of {path}{left}"
    checkpoint = _find_checkpoint(path)
    if start.load == "none":
        return f"{checkpoint.path} is whole; nothing was loaded"
    with_moments = start.load == "weights_and_optimizer"
    load_state(checkpoint, parameters, optimizer, with_moments=with_moments)
    return f"Started from the weights {'and moments ' if with_moments else ''}of {checkpoint.path}"


def load_state(
    checkpoint: Checkpoint, parameters: FlatParameters, optimizer: Optimizer, *, with_moments: bool = True
) -> None:
    """Copy a checkpoint's tensors into the flat buffers.

    Raises:
        InputError: they are another model's.
    """
    loaded = checkpoint.load()
    flats = {"model": parameters.values}
    if with_moments:
        flats |= {"first_moment": optimizer.first_moment, "second_moment": optimizer.second_moment}
    for part, flat in flats.items():
        views = parameters.named(flat)
        if views.keys() != loaded[part].keys():
            raise InputError(
                f"{checkpoint.path}: its tensors are not this model's",
                hint="use the model section that it was trained with",
            )
        for name, view in views.items():
            _copy(loaded[part][name], view, name, checkpoint.path)


def _find_checkpoint(path: Path) -> Checkpoint:
    """Return the checkpoint at a path: itself, or the newest good one of a run or of its checkpoints folder."""
    if (path / "manifest.json").exists():
        try:
            return read_checkpoint(path)
        except TrainerError as error:
            raise InputError(f"initial_checkpoint.path: {error}") from error
    for root in (path / "checkpoints", path):
        if root.is_dir() and (found := find_newest_good(root)) is not None:
            return found
    raise InputError(
        f"initial_checkpoint.path: {path}: no whole checkpoint there",
        hint="name a folder <stage>-<step> below checkpoints/, or the output folder of a run",
    )


def _read_model_folder(path: Path) -> dict[str, Tensor]:
    """Return the weights of a Hugging Face model folder."""
    try:
        json.loads((path / "config.json").read_text())
        if (path / "model.safetensors").exists():
            return load_file(path / "model.safetensors")
        if (path / "pytorch_model.bin").exists():
            loaded: Any = torch.load(path / "pytorch_model.bin", map_location="cpu", weights_only=True)
            return dict(loaded)
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise InputError(f"initial_checkpoint.path: {path}: cannot be read ({error})") from error
    raise InputError(
        f"initial_checkpoint.path: {path}: no model.safetensors and no pytorch_model.bin",
        hint="name a folder that AutoModel.save_pretrained has written",
    )


def _copy_huggingface(tensors: Mapping[str, Tensor], model: Bert, path: Path) -> list[str]:
    """Copy what is there; return the names of ours that are not."""
    architecture = model.config.architecture
    prefix = f"{architecture}."
    # A bare encoder (BertModel) leaves the first word of every name out.
    bare = not any(name.startswith(prefix) for name in tensors)
    left, fresh = dict(tensors), []
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            theirs = huggingface_name(name, architecture)
            tensor = left.pop(theirs.removeprefix(prefix) if bare else theirs, None)
            if tensor is None:
                if not name.startswith(_OPTIONAL):
                    raise InputError(
                        f"{path}: has no tensor {theirs}",
                        hint=f"it is not a {architecture} model, or has fewer layers than model.num_hidden_layers",
                    )
                fresh.append(name)
            elif name in ("embeddings.tokens.weight", "mlm_bias"):
                # Rows beyond the vocabulary only round the size up.
                _copy(tensor, parameter[: model.vocabulary_size], theirs, path)
            else:
                _copy(tensor, parameter, theirs, path)
    unknown = sorted(name for name in left if not name.endswith(_COPIES) and not name.startswith(_UNUSED))
    if unknown:
        raise InputError(
            f"{path}: this model has no place for {', '.join(unknown[:5])}{' ...' if len(unknown) > 5 else ''}",
            hint="use the model section (layers, architecture) that it was trained with",
        )
    return fresh


def _copy(source: Tensor, target: Tensor, name: str, path: Path) -> None:
    if source.shape != target.shape:
        raise InputError(
            f"{path}: {name}: got shape {list(source.shape)}; allowed: {list(target.shape)}, this model's",
            hint="use the model section and the vocabulary that it was trained with",
        )
    with torch.no_grad():
        target.copy_(source)
