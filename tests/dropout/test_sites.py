"""Where dropout is applied: after the embeddings, on attention weights, after both halves of a layer.

As in Devlin et al. 2019 and, without the one after attention, in DistilBERT's published code. Every place has a
number of its own, so that no two drop the same elements.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from bert_trainer.model.dropout import DropoutKeys
from random_rows import model_config, random_batch, random_model


@dataclass(frozen=True, slots=True)
class RecordedKeys(DropoutKeys):
    """Keys that take note of every use."""

    uses: list[tuple[str, int, float, tuple[int, ...]]] = field(default_factory=list)

    def hidden(self, x_ND: Tensor, probability: float, site: int) -> Tensor:
        self.uses.append(("hidden", site, probability, tuple(x_ND.shape)))
        return DropoutKeys.hidden(self, x_ND, probability, site)

    def attention(self, weights_BHTT: Tensor, probability: float, site: int) -> Tensor:
        self.uses.append(("attention", site, probability, tuple(weights_BHTT.shape)))
        return DropoutKeys.attention(self, weights_BHTT, probability, site)


def uses(architecture: str) -> list[tuple[str, int, float, tuple[int, ...]]]:
    """Return every use, with the shape of what was dropped."""
    objective = "mlm" if architecture == "distilbert" else "mlm+nsp"
    config = model_config(
        16,
        architecture=architecture,
        objective=objective,
        hidden_dropout=0.1,
        attention_dropout=0.2,
    )
    batch = random_batch([9, 4], sequence_length=9, predictions=3, vocabulary_size=29, seed=1)
    keys = batch.dropout_keys(1, 1)
    recorded = RecordedKeys(keys.rows_B, keys.token_row_N, keys.token_position_N)
    random_model(config, 29, seed=1, dtype=torch.float32)(batch, recorded)
    return recorded.uses


HIDDEN, ATTENTION = (13, 16), (2, 2, 9, 9)
# The last layer goes on with what the losses need: three predictions of each row and, for pairs, its first token.
PREDICTIONS, NEEDED = (6, 16), (8, 16)


def test_bert_drops_at_seven_places_in_two_layers() -> None:
    assert uses("bert") == [
        ("hidden", 0, 0.1, HIDDEN),
        ("attention", 1, 0.2, ATTENTION),
        ("hidden", 2, 0.1, HIDDEN),
        ("hidden", 3, 0.1, HIDDEN),
        ("attention", 4, 0.2, ATTENTION),
        ("hidden", 5, 0.1, NEEDED),
        ("hidden", 6, 0.1, NEEDED),
    ]


def test_distilbert_does_not_drop_after_attention() -> None:
    assert uses("distilbert") == [
        ("hidden", 0, 0.1, HIDDEN),
        ("attention", 1, 0.2, ATTENTION),
        ("hidden", 3, 0.1, HIDDEN),
        ("attention", 4, 0.2, ATTENTION),
        ("hidden", 6, 0.1, PREDICTIONS),
    ]
