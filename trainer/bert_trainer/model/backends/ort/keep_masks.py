"""Which elements dropout keeps in padded rows: the bits of ``model.dropout``, as masks for a graph's inputs.

Letters: B rows, T longest row, D hidden size, H heads, K tokens whose output is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from bert_trainer.model.dropout import EMBEDDINGS_SITE, DropoutKeys
from bert_trainer.model.layers import BertLayer, EncoderParameters


def keep_masks(
    model: EncoderParameters, dropout: DropoutKeys | None, length: int, output_index_K: Tensor
) -> tuple[Tensor, ...]:
    """Return the masks in the order in which ``padded`` uses them; bool, (B, T, D), (B, H, T, T) or (K, D).

    Args:
        model: Which places drop, and how much.
        dropout: None for none.
        length: T.
        output_index_K: int64, places among the N real tokens, of which the last layer computes the rest.
    """
    if dropout is None:
        return ()
    rows, device = len(dropout.rows_B), dropout.rows_B.device
    grid = torch.arange(rows, device=device).repeat_interleave(length), torch.arange(length, device=device).repeat(rows)
    every = DropoutKeys(dropout.rows_B, *grid)
    masks = _masks_of(model, every, dropout.of_tokens(output_index_K), length)
    return tuple(masks)


def _masks_of(model: EncoderParameters, every: DropoutKeys, asked: DropoutKeys, length: int) -> Iterator[Tensor]:
    config = model.config
    size, shape = config.hidden_size, (-1, length, config.hidden_size)
    if config.hidden_dropout > 0:
        yield every.kept_features(size, config.hidden_dropout, EMBEDDINGS_SITE).view(shape)
    layers: list[BertLayer] = list(model.layers)  # type: ignore[arg-type]
    for layer in layers:
        if layer.attention_dropout > 0:
            yield every.kept_weights(layer.num_heads, length, layer.attention_dropout, layer.first_site)
        if layer.hidden_dropout == 0:
            continue
        # Behind attention the last layer computes the tokens that are asked for alone.
        keys, form = (asked, (-1, size)) if layer is layers[-1] else (every, shape)
        for site in [layer.first_site + 1] * layer.drops_attention_output + [layer.first_site + 2]:
            yield keys.kept_features(size, layer.hidden_dropout, site).view(form)
