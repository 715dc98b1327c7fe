"""Checkpoints that TensorFlow has written, the rows that both sides compute on, and how TensorFlow is run.

Three small ones are kept in tests/fixtures/tensorflow (tools/keep_tensorflow.py): ``google``, weights alone in one data
file; ``mlperf``, with optimizer state, a state file and three data files; and ``trained``, of a model that has learnt
something, with the vocabulary of its text.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bert_job.run_config import ModelConfig
from bert_trainer.dataset.shards.samples import Samples
from bert_trainer.model.batch import make_batch
from bert_trainer.model.bert import Bert
from random_rows import random_samples
from whole_configs import model_settings

KEPT = Path(__file__).parents[1] / "fixtures/tensorflow"
GOOGLE, MLPERF, TRAINED, EXPECTED = KEPT / "google", KEPT / "mlperf", KEPT / "trained", KEPT / "expected.json"
CHILD = Path(__file__).parents[1] / "tensorflow_checkpoints/tensorflow_child.py"
SMALL: dict[str, Any] = {
    "attention_probs_dropout_prob": 0.1,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "hidden_size": 8,
    "initializer_range": 0.02,
    "intermediate_size": 32,
    "max_position_embeddings": 16,
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
    "type_vocab_size": 2,
    "vocab_size": 27,
}
Outputs = dict[str, NDArray[np.floating]]
"""``hidden`` (N, D), ``masked_lm`` (M, V), ``next_sentence`` (B, 2)."""


def run_tensorflow(*arguments: str | Path) -> str:
    """Run ``tensorflow_child.py``; return what it prints."""
    python = Path(os.environ["BERT_TEST_TENSORFLOW"]) / "bin/python"
    # Whatever the caller's interpreter is told, TensorFlow's has its own packages.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        [python, CHILD, *arguments], env=environment, capture_output=True, text=True, timeout=1200, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


OURS = {
    "attention_probs_dropout_prob": "attention_dropout",
    "hidden_act": "hidden_activation",
    "hidden_dropout_prob": "hidden_dropout",
    "type_vocab_size": "segment_types",
    "vocab_size": "vocabulary_size",
}
"""What we call Google's keys, where the names differ."""


def model_of(config: dict[str, Any], **changes: Any) -> Bert:
    """Return a model of a ``bert_config.json``, without dropout, zeros all over."""
    settings = {
        **{OURS.get(name, name): value for name, value in config.items() if name != "vocab_size"},
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
    }
    sizes: ModelConfig = model_settings(**{**settings, **changes})
    model = Bert(sizes, config["vocab_size"])
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    return model


def rows_of(config: dict[str, Any]) -> Samples:
    """Return rows of unequal length for a model."""
    length = min(40, config["max_position_embeddings"])
    return random_samples(
        [length, 5, length // 2], sequence_length=length, predictions=4, vocabulary_size=config["vocab_size"], seed=7
    )


def write_inputs(samples: Samples, path: Path) -> None:
    """Write rows as ``tensorflow_child.py compute`` reads them."""
    row, number = np.nonzero(samples.masked_lm_positions)
    np.savez(
        path,
        ids=samples.input_ids,
        mask=samples.input_mask,
        segments=samples.segment_ids,
        masked_row=row,
        masked_column=samples.masked_lm_positions[row, number],
    )


def outputs_of(model: Bert, samples: Samples) -> Outputs:
    """Compute without dropout what TensorFlow's side computes."""
    batch = make_batch(samples, np.arange(len(samples.input_ids)))
    with torch.no_grad():
        hidden_ND = model.encode(batch)
        logits_MV = model.masked_lm_logits(hidden_ND[batch.masked_index_M])[:, : model.vocabulary_size]
        found = {"hidden": hidden_ND, "masked_lm": logits_MV}
        if model.nsp is not None:
            found["next_sentence"] = model.next_sentence_logits(hidden_ND, batch)
    return {name: tensor.numpy() for name, tensor in found.items()}


def errors_of(found: Outputs, expected: Outputs) -> dict[str, float]:
    """Return the 2-norm of each difference over that of what is expected."""
    return {
        name: float(np.linalg.norm(found[name] - expected[name]) / np.linalg.norm(expected[name])) for name in expected
    }


def read_expected() -> Outputs:
    """Return what TensorFlow's side has computed from the kept checkpoints."""
    return {name: np.asarray(values) for name, values in json.loads(EXPECTED.read_text()).items()}
