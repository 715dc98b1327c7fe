"""Import of a TensorFlow 1 checkpoint of BERT, the inverse of ``tensorflow_export``.

Reads ``bert_config.json`` and the checkpoint beside it: Google's of 2018 (``bert_model.ckpt``), MLPerf's
(``model.ckpt-28252``) and others with their names. What belongs to an optimizer is left on the disk. Needs no
TensorFlow, and leaves it to ``initial_weights`` whether the tensors are complete.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from bert_trainer.checkpoints.description import MAX_PADDING_ROWS
from bert_trainer.checkpoints.huggingface_import import check_settings
from bert_trainer.checkpoints.tensorflow_bundle import Bundle, index_path, open_bundle
from bert_trainer.checkpoints.tensorflow_names import find_training_state, is_transposed, tensorflow_name
from bert_trainer.checkpoints.tensorflow_prefix import find_prefix
from bert_trainer.checkpoints.weight_matching import NEXT_SENTENCE, by_our_names
from bert_trainer.errors import InputError
from bert_trainer.model.bert import Bert
from bert_trainer.model.layers import BY_ENTRY

_CONFIG_FILE = "bert_config.json"
_TABLE = "bert/embeddings/word_embeddings"

_OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"


def read_tensorflow_checkpoint(path: Path, model: Bert) -> tuple[dict[str, Tensor], Callable[[str], str]]:
    """Return the checkpoint's tensors by our names, and a function that translates our names into the checkpoint's.

    A tensor without a counterpart here keeps its own name. It is not read, nor is one of another shape than the
    model's: they come without values, on the device ``meta``. Token table and masked-LM bias keep their padding rows.

    Args:
        path: A folder with ``bert_config.json`` and a checkpoint, or the prefix of a checkpoint in such a folder.
        model: What is to be initialized.

    Raises:
        InputError: nothing to read there, a damaged file, settings that are not this model's, or too many rows.
        OSError: a file cannot be read.
    """
    if model.config.architecture != "bert":
        raise InputError(
            f"{path}: got model.architecture {model.config.architecture!r}; allowed: 'bert', for which alone there are "
            "TensorFlow checkpoints",
            hint="start from a Hugging Face folder",
        )
    prefix = find_prefix(path)
    check_settings(prefix.parent / _CONFIG_FILE, model)
    bundle, spelled = _open(prefix)
    if _OBJECT_GRAPH in bundle.entries:
        raise InputError(
            f"{index_path(prefix)}: got a checkpoint of TensorFlow 2, which names variables after Python objects; "
            "allowed: one of TensorFlow 1, with names such as bert/embeddings/word_embeddings",
            hint="convert it, for example with transformers, and start from a Hugging Face folder",
        )
    return _read_tensors(bundle, model), lambda name: spelled.get(tensorflow_name(name), tensorflow_name(name))


def list_optimizer_state(path: Path, model: Bert) -> list[str]:
    """Return the names of the variables that are not read: those of the training.

    Raises:
        InputError: as ``read_tensorflow_checkpoint``.
        OSError: as ``read_tensorflow_checkpoint``.
    """
    bundle, spelled = _open(find_prefix(path))
    return sorted(spelled[name] for name in _training_state(bundle, model))


def _open(prefix: Path) -> tuple[Bundle, dict[str, str]]:
    """Return a checkpoint without the scope in which a program may have built BERT, and the names with it."""
    bundle = open_bundle(prefix)
    scopes = [name.removesuffix(_TABLE) for name in bundle.entries if f"/{name}".endswith(f"/{_TABLE}")]
    # Of several encoders Google's own is meant, if it is there; else all that is missing is named.
    scope = scopes[0] if len(scopes) == 1 else ""
    spelled = {name.removeprefix(scope): name for name in bundle.entries}
    if len(spelled) < len(bundle.entries):  # one of two would be lost
        spelled = {name: name for name in bundle.entries}
    return replace(bundle, entries={name: bundle.entries[theirs] for name, theirs in spelled.items()}), spelled


def _training_state(bundle: Bundle, model: Bert) -> set[str]:
    names = dict.fromkeys((*(name for name, _ in model.named_parameters()), *NEXT_SENTENCE))
    shapes = {name: entry.shape for name, entry in bundle.entries.items()}
    return find_training_state(shapes, set(map(tensorflow_name, names)))


def _read_tensors(bundle: Bundle, model: Bert) -> dict[str, Tensor]:
    shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
    named = by_our_names(bundle.entries, {tensorflow_name(name): name for name in (*shapes, *NEXT_SENTENCE)})
    tensors, not_read = {}, _training_state(bundle, model)
    for theirs, entry in bundle.entries.items():
        if theirs in not_read:
            continue
        name = named[theirs]
        shape = entry.shape[::-1] if is_transposed(theirs) else entry.shape
        if name in BY_ENTRY:
            is_read = True
            _check_rows(bundle, theirs, shape, tuple(shapes[name]), model.vocabulary_size)
        else:
            # Anything else would be taken into memory only to be refused, at whatever size it claims.
            is_read = shape == shapes.get(name)
        if not is_read:
            tensors[name] = torch.empty(shape, device="meta")
            continue
        tensor = torch.from_numpy(bundle.read(theirs))
        tensors[name] = tensor.t().contiguous() if is_transposed(theirs) else tensor
    return tensors


def _check_rows(
    bundle: Bundle, theirs: str, shape: tuple[int, ...], wanted: tuple[int, ...], vocabulary_size: int
) -> None:
    """Refuse a table by entry that cannot be this model's with other padding.

    Raises:
        InputError: rows of another width, fewer than entries, or so many that they cannot be padding.
    """
    allowed = [vocabulary_size, *wanted[1:]]
    fits = bool(shape) and vocabulary_size <= shape[0] <= vocabulary_size + MAX_PADDING_ROWS
    if not fits or list(shape[1:]) != allowed[1:]:
        raise InputError(
            f"{index_path(bundle.prefix)}: {theirs}: got shape {list(shape)}; allowed: {allowed}, this run's, and at "
            f"most {MAX_PADDING_ROWS} rows of padding",
            hint="use the model section and the vocabulary that it was trained with",
        )
