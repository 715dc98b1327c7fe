"""The encoder's forward pass, by the model's engine or by the backend that fits device and type.

Letters: N real tokens of a micro-batch, D hidden size, K tokens whose output is asked for.
"""

from __future__ import annotations

from torch import Tensor, is_grad_enabled

from bert_trainer.model.activation_checkpointing import run_layer
from bert_trainer.model.backends.choice import choose_backend
from bert_trainer.model.batch import Batch
from bert_trainer.model.dropout import DropoutKeys
from bert_trainer.model.layers import EncoderParameters


def encode(
    model: EncoderParameters, batch: Batch, dropout: DropoutKeys | None = None, output_index_K: Tensor | None = None
) -> Tensor:
    """Return the last hidden states.

    Args:
        model: Any model that begins with the encoder.
        batch: On the model's device.
        dropout: None for none (evaluation).
        output_index_K: int64, places among the N tokens; the last layer computes what follows its attention for
            those tokens alone.

    Returns:
        (N, D), or (K, D) of the tokens asked for.
    """
    if model.engine is not None and is_grad_enabled():
        return model.engine.encode(batch, dropout, output_index_K)
    # Chosen for every pass, not when the model is built: the model moves between devices, and autocast, which
    # decides the compute type, is the caller's.
    backend = choose_backend(model)
    x_ND = backend.embed(model, batch, dropout)
    last = len(model.layers) - 1
    for number, layer in enumerate(model.layers):
        wanted = output_index_K if number == last else None
        recompute = model.activation_checkpointing
        x_ND = run_layer(backend, layer, x_ND, batch, dropout, wanted, recompute=recompute)  # type: ignore[arg-type]
    return x_ND
