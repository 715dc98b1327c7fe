"""Random padded rows and small models for tests that compare numbers. Nothing here can be learnt.

Rows are of unequal length, with real token ids in [5, vocabulary) and random labels. Id 0 never occurs as a
real token, because Hugging Face gives its embedding no gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
import torch

from bert_job.run_config import ModelConfig
from bert_trainer.dataset.shards.samples import Samples
from bert_trainer.model.batch import Batch, make_batch
from bert_trainer.model.bert import Bert
from bert_trainer.model.layers import EncoderParameters
from whole_configs import model_settings

MASK, FIRST_WORD = 4, 5
M = TypeVar("M", bound=EncoderParameters)


def random_samples(
    lengths: Sequence[int], *, sequence_length: int, predictions: int, vocabulary_size: int, seed: int
) -> Samples:
    """Return one row of every length; between 1 and ``predictions`` positions of each are to be predicted."""
    rng = np.random.default_rng(seed)
    shape = (len(lengths), sequence_length)
    ids, mask, segments = np.zeros(shape, np.int32), np.zeros(shape, np.int8), np.zeros(shape, np.int8)
    positions, labels = (np.zeros((len(lengths), predictions), np.int32) for _ in range(2))
    for row, length in enumerate(lengths):
        ids[row, :length] = rng.integers(FIRST_WORD, vocabulary_size, length)
        mask[row, :length] = 1
        segments[row, rng.integers(1, length) : length] = 1
        count = min(int(rng.integers(1, predictions + 1)), length - 1)
        chosen = np.sort(1 + rng.permutation(length - 1)[:count])
        positions[row, :count] = chosen
        labels[row, :count] = rng.integers(FIRST_WORD, vocabulary_size, count)
        ids[row, chosen[rng.random(count) < 0.8]] = MASK
    pairs = rng.integers(0, 2, len(lengths)).astype(np.int8)
    return Samples(ids, mask, segments, positions, labels, pairs)


def random_batch(
    lengths: Sequence[int], *, sequence_length: int, predictions: int, vocabulary_size: int, seed: int
) -> Batch:
    """Return the same as a micro-batch whose samples are numbered from 0."""
    samples = random_samples(
        lengths,
        sequence_length=sequence_length,
        predictions=predictions,
        vocabulary_size=vocabulary_size,
        seed=seed,
    )
    return make_batch(samples, np.arange(len(lengths)))


def model_config(hidden_size: int = 32, **changes: Any) -> ModelConfig:
    """Return a two-layer model without dropout; heads of 64 features or two heads, 4 x feed-forward."""
    settings: dict[str, Any] = {
        "hidden_size": hidden_size,
        "num_hidden_layers": 2,
        "num_attention_heads": max(2, hidden_size // 64),
        "intermediate_size": 4 * hidden_size,
        "max_position_embeddings": 64,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
    }
    return model_settings(**{**settings, **changes})


MODERN: dict[str, Any] = {
    "architecture": "modernbert",
    "objective": "mlm",
    "num_hidden_layers": 4,
    "layer_norm_epsilon": 1e-5,
    "attention_window": 16,
    "global_attention_every": 3,
    "global_rope_theta": 160_000.0,
    "local_rope_theta": 10_000.0,
}
"""A ModernBERT of all kinds of layers, with windows of 8 tokens on either side."""


def modern_config(hidden_size: int = 32, **changes: Any) -> ModelConfig:
    """Return a ModernBERT of four layers without dropout, 2 x feed-forward behind the gate."""
    return model_config(hidden_size, **{**MODERN, "intermediate_size": 2 * hidden_size, **changes})


def make_all_count(model: M, *, seed: int, dtype: torch.dtype) -> M:
    """Give a model weights with which every parameter counts; ``random_model`` says why."""
    model.initialize(seed)
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
            else:
                parameter.mul_(1.5 / model.config.hidden_size**0.5 / model.config.initializer_range)
    return model.to(dtype)


def random_model(config: ModelConfig, vocabulary_size: int, *, seed: int, dtype: torch.dtype) -> Bert:
    """Return a model in which every parameter counts.

    No bias is 0, and weights are large enough for attention to prefer some tokens and for activations to
    reach where they bend: from the usual start, even the two forms of GELU give the same to within 6e-6.
    """
    return make_all_count(Bert(config, vocabulary_size), seed=seed, dtype=dtype)
