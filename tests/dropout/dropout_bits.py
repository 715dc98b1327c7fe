"""What dropout drops, as arrays of truth values, by any of the numbers that it depends on."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from bert_trainer.model.dropout import DropoutKeys, row_keys


def keys(seed: int, step: int, samples: Sequence[int], positions: int) -> DropoutKeys:
    """Return the keys of rows of ``positions`` tokens each."""
    rows = len(samples)
    return DropoutKeys(
        row_keys(seed, step, np.asarray(samples, dtype=np.int64)),
        torch.arange(rows).repeat_interleave(positions),
        torch.arange(positions).repeat(rows),
    )


def hidden(
    *,
    seed: int = 7,
    step: int = 3,
    samples: Sequence[int] = (0,),
    positions: int = 1,
    site: int = 1,
    features: int = 768,
    probability: float = 0.1,
) -> Tensor:
    """Return bool (samples, positions, features): what is dropped among hidden features."""
    ones = torch.ones(len(samples) * positions, features)
    dropped = keys(seed, step, samples, positions).hidden(ones, probability, site) == 0
    return dropped.view(len(samples), positions, features)


def attention(
    *,
    seed: int = 7,
    step: int = 3,
    samples: Sequence[int] = (0,),
    heads: int = 4,
    queries: int | None = None,
    length: int = 64,
    site: int = 1,
    probability: float = 0.1,
) -> Tensor:
    """Return bool (samples, heads, queries, length): what is dropped among attention weights.

    queries: the first ones of a row of ``length`` tokens; all of them where it is left out.
    """
    ones = torch.ones(len(samples), heads, queries or length, length)
    return keys(seed, step, samples, 1).attention(ones, probability, site) == 0
