"""Export of the trained model as a TensorFlow 1 checkpoint with the names of Google's.

Writes ``bert_model.ckpt.index``, ``bert_model.ckpt.data-00000-of-00001``, ``checkpoint``, ``bert_config.json`` and
``vocab.txt``, which Google's, MLPerf's and NVIDIA's scripts for TensorFlow start from. Weights only, in single
precision, without a graph (``.meta``). Needs no TensorFlow.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bert_job.model import TENSORFLOW_LAYER_NORM_EPSILON
from bert_trainer.checkpoints.huggingface_export import huggingface_config
from bert_trainer.checkpoints.tensorflow_bundle import write_bundle
from bert_trainer.checkpoints.tensorflow_names import is_transposed, tensorflow_name
from bert_trainer.checkpoints.tensorflow_prefix import write_state
from bert_trainer.checkpoints.tokenizer_files import write_vocabulary
from bert_trainer.config.model_file import GELU_FORM
from bert_trainer.dataset.tokens.wordpiece import Vocabulary
from bert_trainer.errors import InputError
from bert_trainer.model.bert import Bert

_PREFIX = "bert_model.ckpt"
# What Google's BertConfig takes, in the order of its published files.
_CONFIG_KEYS = (
    "attention_probs_dropout_prob",
    "hidden_act",
    "hidden_dropout_prob",
    "hidden_size",
    "initializer_range",
    "intermediate_size",
    "max_position_embeddings",
    "num_attention_heads",
    "num_hidden_layers",
    "type_vocab_size",
    "vocab_size",
)


def write_tensorflow_checkpoint(model: Bert, vocabulary: Vocabulary, folder: Path) -> None:
    """Write the checkpoint's files into a folder; ``model_export`` makes that atomic.

    Args:
        model: The trained model.
        vocabulary: Of the model; its padding rows are cut off.
        folder: Where they go.

    Raises:
        InputError: the model has no form in TensorFlow 1.
        OSError: they cannot be written.
    """
    _check_expressible(model, folder)
    _write_tensors(model, folder / _PREFIX)
    write_state(folder, _PREFIX)
    (folder / "bert_config.json").write_text(json.dumps(bert_config(model), indent=2) + "\n")
    write_vocabulary(vocabulary, folder)


def bert_config(model: Bert) -> dict[str, Any]:
    """Return the content of ``bert_config.json``.

    Its activation is always ``gelu``: of the two forms Google's code knows that name alone, and has meant the one by
    tanh since 2019. Which one the model was trained with is said beside it where that is the one by tanh.
    """
    settings = huggingface_config(model)
    config = {key: settings[key] for key in _CONFIG_KEYS}
    return config if config["hidden_act"] == "gelu" else config | {"hidden_act": "gelu", GELU_FORM: "tanh"}


def _check_expressible(model: Bert, folder: Path) -> None:
    for name, allowed in {"architecture": "bert", "layer_norm_epsilon": TENSORFLOW_LAYER_NORM_EPSILON}.items():
        got = getattr(model.config, name)
        if got != allowed:
            raise InputError(
                f"{folder}: model.{name}: got {got!r}; allowed: {allowed!r}, which is built into code that reads "
                "TensorFlow 1 checkpoints of BERT",
                hint="export the model in another format",
            )


def _write_tensors(model: Bert, prefix: Path) -> None:
    parameters = {tensorflow_name(name): tensor for name, tensor in model.unpadded_weights().items()}
    parameters = {
        name: parameters[name].t() if is_transposed(name) else parameters[name] for name in sorted(parameters)
    }

    def as_array(name: str) -> NDArray[np.float32]:
        return parameters[name].float().cpu().numpy()

    write_bundle(prefix, {name: tuple(tensor.shape) for name, tensor in parameters.items()}, map(as_array, parameters))
