"""The model's parts made of kernels: the mathematics of ``bert_trainer.model.bert``, and the same elements dropped."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from bert_trainer.model.backends.compute_type import compute_dtype
from bert_trainer.model.backends.cpu import functions
from bert_trainer.model.backends.cpu.functions import Drop
from bert_trainer.model.backends.cpu.library import Library, usable
from bert_trainer.model.dropout import EMBEDDINGS_SITE

if TYPE_CHECKING:
    from bert_trainer.model.batch import Batch
    from bert_trainer.model.bert import Bert, Layer
    from bert_trainer.model.dropout import DropoutKeys

_LANES = 16


@dataclass(frozen=True, slots=True)
class KernelPath:
    """A ``fast_path.FastPath``."""

    library: Library

    def embed(self, model: Bert, batch: Batch, dropout: DropoutKeys | None) -> Tensor:
        """Return embeddings, normalised and dropped, (N, D)."""
        x_ND = model.embeddings(batch)
        x_ND = x_ND.to(compute_dtype(x_ND))
        drop = drop_hidden(dropout, model.config.hidden_dropout_prob, EMBEDDINGS_SITE)
        return x_ND if drop is None else functions.dropout(self.library, x_ND, drop)

    def encode_layer(
        self, layer: Layer, x_ND: Tensor, batch: Batch, dropout: DropoutKeys | None, kept_K: Tensor | None
    ) -> Tensor:
        """x_ND: (N, D) to (N, D), or to (K, D) of the tokens at some places."""
        return encoder_layer(self.library, layer, x_ND, batch, dropout, kept_K)

    def masked_lm(self, model: Bert, x_MD: Tensor, labels_M: Tensor) -> tuple[Tensor, Tensor]:
        """Return the sum of the masked-LM losses in nats and the number of right answers."""
        return masked_lm(self.library, model, x_MD, labels_M)


def kernels_for(x: Tensor, head_size: int) -> Library | None:
    """Return the kernels where they can compute a model with heads of this size. x: activations."""
    return usable(x) if head_size % _LANES == 0 and x.dtype == compute_dtype(x) else None


def drop_hidden(dropout: DropoutKeys | None, probability: float, site: int) -> Drop | None:
    """Return the dropout of features at a site, None where nothing is dropped."""
    return Drop(dropout.token_keys(site), probability) if dropout is not None and probability > 0 else None


def encoder_layer(
    library: Library,
    layer: Layer,
    x_ND: Tensor,
    batch: Batch,
    dropout: DropoutKeys | None,
    kept_K: Tensor | None = None,
) -> Tensor:
    """x_ND: (N, D) to (N, D) or (K, D), fp32 or bf16, as ``model.Layer``."""
    site, hidden = layer.first_site, layer.hidden_dropout
    q, k, v = layer.query, layer.key, layer.value
    qkv = functions.linear(library, x_ND, q.weight, k.weight, v.weight)
    qkv = functions.add_bias(library, qkv, q.bias, k.bias, v.bias)
    drop_weights = None
    if dropout is not None and layer.attention_dropout > 0:
        drop_weights = Drop(dropout.row_keys(site), layer.attention_dropout)
    y_ND = functions.attention(library, qkv, batch.row_starts_B, layer.num_heads, drop_weights)
    if kept_K is not None:
        x_ND, y_ND = x_ND.index_select(0, kept_K), y_ND.index_select(0, kept_K)
        dropout = dropout and dropout.of_tokens(kept_K)
    y_ND = functions.linear(library, y_ND, layer.attention_output.weight)
    drop = drop_hidden(dropout, hidden, site + 1) if layer.drops_attention_output else None
    x_ND = functions.drop_add_norm(library, y_ND, layer.attention_output.bias, x_ND, layer.attention_norm, drop)
    inner = functions.linear(library, x_ND, layer.ffn_in.weight)
    inner = functions.bias_gelu(library, inner, layer.ffn_in.bias, by_tanh=layer.approximate == "tanh")
    y_ND = functions.linear(library, inner, layer.ffn_out.weight)
    drop = drop_hidden(dropout, hidden, site + 2)
    return functions.drop_add_norm(library, y_ND, layer.ffn_out.bias, x_ND, layer.ffn_norm, drop)


def masked_lm(library: Library, model: Bert, x_MD: Tensor, labels_M: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sum of the masked-LM losses in nats and the number of right answers."""
    x_MD = functions.linear(library, x_MD, model.mlm_transform.weight)
    by_tanh = model.config.hidden_act == "gelu_new"
    x_MD = functions.bias_gelu(library, x_MD, model.mlm_transform.bias, by_tanh=by_tanh)
    x_MD = model.mlm_norm(x_MD.float()).to(x_MD.dtype)
    logits_MV = functions.linear(library, x_MD, model.embeddings.tokens.weight)
    logits_MV = functions.add_bias(library, logits_MV, model.mlm_bias)
    return functions.cross_entropy(library, logits_MV, labels_M, model.vocabulary_size)
