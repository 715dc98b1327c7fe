"""Activation checkpointing: a layer keeps its input alone and is computed again in the backward pass.

Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost", with one segment per layer. Memory for
activations falls from all tensors of every layer to one (N, D) for each; a step costs one more forward pass.
Dropout's bits are a function of keys (``dropout``), or of a generator that every layer seeds anew (``gpu.path``), so
the second pass drops the same elements without any saved state, and gradients are equal bit by bit.
"""

from __future__ import annotations

from torch import Tensor, is_grad_enabled, nn
from torch.utils.checkpoint import checkpoint

from bert_trainer.model.backends.choice import FastPath
from bert_trainer.model.batch import Batch
from bert_trainer.model.dropout import DropoutKeys


def run_layer(
    layer: nn.Module,
    x_ND: Tensor,
    batch: Batch,
    dropout: DropoutKeys | None,
    kept_K: Tensor | None,
    fast: FastPath | None,
    *,
    recompute: bool,
) -> Tensor:
    """Return ``layer(x_ND, batch, dropout, kept_K, fast)``, (N, D) to (N, D) or (K, D).

    recompute: whether the backward pass computes it again. Without gradients nothing is kept either way.
    """
    if not recompute or not is_grad_enabled():
        return layer(x_ND, batch, dropout, kept_K, fast)  # type: ignore[no-any-return]
    # There is no generator's state to go back to.
    return checkpoint(  # type: ignore[no-any-return]
        layer, x_ND, batch, dropout, kept_K, fast, use_reentrant=False, preserve_rng_state=False
    )
