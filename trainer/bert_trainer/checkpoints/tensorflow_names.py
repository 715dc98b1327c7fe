"""Names of variables in TensorFlow 1 checkpoints of BERT, and which of them belong to an optimizer.

Source: ``modeling.py``, ``run_pretraining.py`` and ``optimization.py`` of github.com/google-research/bert, whose names
MLPerf's and NVIDIA's checkpoints have too.
"""

from __future__ import annotations

import re

from bert_trainer.checkpoints.huggingface_export import huggingface_name

_KERNEL = "/kernel"
_BY_HUGGINGFACE_NAME = {
    "cls.predictions.bias": "cls/predictions/output_bias",
    "cls.seq_relationship.weight": "cls/seq_relationship/output_weights",
    "cls.seq_relationship.bias": "cls/seq_relationship/output_bias",
}
_DENSE = {"weight": "kernel", "bias": "bias"}
_LAYER_NORM = {"weight": "gamma", "bias": "beta"}
# Moments are named after their variable, with one of these behind it; step counters and powers stand alone. Adam and
# Adam_1 are those of TensorFlow's own optimizer, LAMB and LAMB_1 those of the one that NVIDIA and MLPerf train with.
_OPTIMIZER_STATE = {
    *("adam_m", "adam_v", "Adam", "Adam_1", "LAMB", "LAMB_1"),
    *("global_step", "beta1_power", "beta2_power"),
}


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


def is_optimizer_state(theirs: str) -> bool:
    """Return whether a variable belongs to the optimizer that trained the model."""
    return not _OPTIMIZER_STATE.isdisjoint(theirs.split("/"))
