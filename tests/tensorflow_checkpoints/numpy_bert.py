"""BERT's forward pass in NumPy and double precision, from variables with TensorFlow's names and orientation.

Written from Devlin et al. 2019 and the arithmetic of google-research/bert's ``modeling.py``: padded rows, a bias of
-10,000 on the scores of padding. Imports nothing of this project, so that TensorFlow's own interpreter runs it too.

Letters in names: B rows, T tokens of a row, D hidden size, V vocabulary entries, M masked positions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

Variables = Callable[[str], Any]
"""Returns a variable by its name."""

_erf = np.frompyfunc(math.erf, 1, 1)
_MASKED = -10_000.0
_EPSILON = 1e-12


def _gelu(x: Any) -> Any:
    return x * 0.5 * (1.0 + _erf(x / math.sqrt(2.0)).astype(np.float64))


def _softmax(x: Any) -> Any:
    exponents = np.exp(x - x.max(axis=-1, keepdims=True))
    return exponents / exponents.sum(axis=-1, keepdims=True)


class NumpyBert:
    """Computes hidden states and logits; variables are read when they are needed and not kept."""

    def __init__(self, variables: Variables, *, num_layers: int, num_heads: int) -> None:
        """variables: by TensorFlow's names."""
        self.variables, self.num_layers, self.num_heads = variables, num_layers, num_heads

    def get(self, name: str) -> Any:
        return self.variables(name).astype(np.float64)

    def dense(self, x: Any, scope: str) -> Any:
        return x @ self.get(f"{scope}/kernel") + self.get(f"{scope}/bias")

    def norm(self, x: Any, scope: str) -> Any:
        centred = x - x.mean(axis=-1, keepdims=True)
        deviation = np.sqrt((centred**2).mean(axis=-1, keepdims=True) + _EPSILON)
        return centred / deviation * self.get(f"{scope}/LayerNorm/gamma") + self.get(f"{scope}/LayerNorm/beta")

    def attend(self, x_BTD: Any, mask_BT: Any, scope: str) -> Any:
        rows, length, size = x_BTD.shape

        def heads(name: str) -> Any:
            split = self.dense(x_BTD, f"{scope}/self/{name}").reshape(rows, length, self.num_heads, -1)
            return split.transpose(0, 2, 1, 3)

        query, key, value = heads("query"), heads("key"), heads("value")
        scores = query @ key.transpose(0, 1, 3, 2) / math.sqrt(size // self.num_heads)
        scores += (1.0 - mask_BT[:, None, None, :]) * _MASKED
        context = (_softmax(scores) @ value).transpose(0, 2, 1, 3).reshape(rows, length, size)
        return self.norm(x_BTD + self.dense(context, f"{scope}/output/dense"), f"{scope}/output")

    def encode(self, ids_BT: Any, segments_BT: Any, mask_BT: Any) -> Any:
        """Return the last hidden states, (B, T, D); those of padding mean nothing."""
        embeddings = "bert/embeddings"
        x_BTD = self.get(f"{embeddings}/word_embeddings")[ids_BT]
        x_BTD = x_BTD + self.get(f"{embeddings}/position_embeddings")[: ids_BT.shape[1]]
        x_BTD = self.norm(x_BTD + self.get(f"{embeddings}/token_type_embeddings")[segments_BT], embeddings)
        for number in range(self.num_layers):
            scope = f"bert/encoder/layer_{number}"
            x_BTD = self.attend(x_BTD, mask_BT.astype(np.float64), f"{scope}/attention")
            inner = _gelu(self.dense(x_BTD, f"{scope}/intermediate/dense"))
            x_BTD = self.norm(x_BTD + self.dense(inner, f"{scope}/output/dense"), f"{scope}/output")
        return x_BTD

    def masked_lm_logits(self, x_MD: Any) -> Any:
        """Return (M, V)."""
        scope = "cls/predictions"
        x_MD = self.norm(_gelu(self.dense(x_MD, f"{scope}/transform/dense")), f"{scope}/transform")
        return x_MD @ self.get("bert/embeddings/word_embeddings").T + self.get(f"{scope}/output_bias")

    def next_sentence_logits(self, x_BTD: Any) -> Any:
        """Return (B, 2)."""
        pooled_BD = np.tanh(self.dense(x_BTD[:, 0], "bert/pooler/dense"))
        scope = "cls/seq_relationship"
        return pooled_BD @ self.get(f"{scope}/output_weights").T + self.get(f"{scope}/output_bias")
