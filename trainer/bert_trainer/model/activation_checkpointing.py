"""Activation checkpointing: a layer keeps its input alone and is computed again in the backward pass.

Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost", with one segment per layer. Memory for
activations falls from all tensors of every layer to one (N, D) for each; a step costs one more forward pass.
"""

from __future__ import annotations

from torch import Tensor, is_grad_enabled
from torch.utils.checkpoint import checkpoint

from bert_trainer.model.backends.choice import Backend
from bert_trainer.model.batch import Batch
from bert_trainer.model.dropout import DropoutKeys
from bert_trainer.model.layers import Layer


def run_layer(
    backend: Backend,
    layer: Layer,
    x_ND: Tensor,
    batch: Batch,
    dropout: DropoutKeys | None,
    output_index_K: Tensor | None,
    *,
    recompute: bool,
) -> Tensor:
    """Return ``backend.encode_layer(layer, ...)``, (N, D) to (N, D) or (K, D).

    recompute: whether the backward pass computes it again. Without gradients nothing is kept either way.
    """
    if not recompute or not is_grad_enabled():
        return backend.encode_layer(layer, x_ND, batch, dropout, output_index_K)
    # No generator state to restore: dropout's bits are a function of keys (``dropout``), or of a generator that the
    # GPU backend seeds for every layer. So the second pass drops the same elements, and gradients are equal bit by bit.
    # A backend that drew from a generator without seeding it would need ``preserve_rng_state=True`` here.
    return checkpoint(
        backend.encode_layer,
        layer,
        x_ND,
        batch,
        dropout,
        output_index_K,
        use_reentrant=False,
        preserve_rng_state=False,
    )
