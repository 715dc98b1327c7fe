"""Names of variables in TensorFlow 1 checkpoints of BERT, and which of them belong to an optimizer.

Source: ``modeling.py``, ``run_pretraining.py`` and ``optimization.py`` of github.com/google-research/bert, whose names
MLPerf's and NVIDIA's checkpoints have too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence, Set
from math import prod

from bert_trainer.checkpoints.huggingface_export import huggingface_name

_KERNEL = "/kernel"
_BY_HUGGINGFACE_NAME = {
    "cls.predictions.bias": "cls/predictions/output_bias",
    "cls.seq_relationship.weight": "cls/seq_relationship/output_weights",
    "cls.seq_relationship.bias": "cls/seq_relationship/output_bias",
}
_DENSE = {"weight": "kernel", "bias": "bias"}
_LAYER_NORM = {"weight": "gamma", "bias": "beta"}
_OURS = ("bert", "cls/predictions", "cls/seq_relationship")
"""Scopes of the encoder and of the heads of pretraining."""


def tensorflow_name(name: str) -> str:
    """Translate one of our parameter names, for example ``layers.3.ffn_in.weight``."""
    theirs = huggingface_name(name, "bert")
    if theirs in _BY_HUGGINGFACE_NAME:
        return _BY_HUGGINGFACE_NAME[theirs]
    stem, kind = theirs.rsplit(".", 1)
    stem = re.sub(r"\blayer\.(\d+)", r"layer_\1", stem).replace(".", "/")
    if stem.endswith("_embeddings"):
        return stem
    return f"{stem}/{(_LAYER_NORM if stem.endswith('/LayerNorm') else _DENSE)[kind]}"


def is_transposed(theirs: str) -> bool:
    """Return whether a variable is stored as (inputs, outputs); ours are (outputs, inputs), as PyTorch's.

    The next-sentence head's ``output_weights`` are (outputs, inputs) there too.
    """
    return theirs.endswith(_KERNEL)


def find_training_state(shapes: Mapping[str, Sequence[int]], ours: Iterable[str]) -> set[str]:
    """Return the variables of a checkpoint that are optimizer or training state.

    What is named after another variable, with more behind it: its moments, its accumulated gradients. And single
    numbers outside the model: step counters, loss scales, powers of decay rates.

    Args:
        shapes: Of the checkpoint's variables, by name.
        ours: Names of the model's variables, which the checkpoint may lack.
    """
    known = {*shapes, *ours}
    return {
        name
        for name, shape in shapes.items()
        if name not in ours and (_is_named_after(name, known) or (prod(shape) == 1 and not _is_ours(name)))
    }


def is_foreign_variable(theirs: str) -> bool:
    """Return whether a variable belongs neither to the encoder nor to the pretraining heads."""
    return not _is_ours(theirs) and not theirs.startswith("'")


def _is_named_after(theirs: str, known: Set[str]) -> bool:
    parts = theirs.split("/")
    return any("/".join(parts[:end]) in known for end in range(1, len(parts)))


def _is_ours(theirs: str) -> bool:
    return theirs.startswith(tuple(f"{scope}/" for scope in _OURS))
