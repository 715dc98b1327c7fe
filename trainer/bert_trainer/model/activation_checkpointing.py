"""Activation checkpointing: a layer keeps its input alone and is computed again in the backward pass.

Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost", with one segment per layer. Memory for
activations falls from all tensors of every layer to one (N, D) for each; a step costs one more forward pass.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import ParamSpec

from torch import Tensor
from torch.utils.checkpoint import checkpoint

P = ParamSpec("P")


def recomputed(compute: Callable[P, Tensor]) -> Callable[P, Tensor]:
    """Return a function with the same values and gradients whose activations are recomputed in the backward pass.

    Its generator is seeded for every call, or it draws from none.
    """
    # No generator state to restore: dropout's bits are a function of keys (``dropout``), or of a generator that the
    # GPU backend seeds for every layer. So the second pass drops the same elements, and gradients are equal bit by bit.
    # A backend that drew from a generator without seeding it would need ``preserve_rng_state=True`` here.
    return partial(checkpoint, compute, use_reentrant=False, preserve_rng_state=False)
