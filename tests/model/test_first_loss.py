"""An untrained model knows nothing: its loss is that of guessing, ln V for a token and ln 2 for a pair.

Nearly so, because its scores are not equal but random. LayerNorm gives the head's D features unit variance,
so a score has variance D * deviation ** 2, and the mean cross-entropy lies half of that above ln V: 0.03 nats
at 128 features, 0.15 at BERT-base's 768, 0.20 at BERT-large's 1,024.
"""

from __future__ import annotations

import math

import pytest
import torch

from bert_trainer.model.bert import Bert, LossSums
from random_rows import model_config, random_batch

VOCABULARY_SIZE = 30_522  # BERT's own: ln V + ln 2 = 11.02
WITHIN = 0.05
LENGTHS = [64, 11, 40, 64, 52, 8, 33, 64] * 8


def first_losses(hidden_size: int) -> tuple[float, float]:
    """Return masked-LM and next-sentence loss of an untrained model, means on random labels."""
    model = Bert(model_config(hidden_size), VOCABULARY_SIZE)
    model.initialize(42)
    batch = random_batch(LENGTHS, sequence_length=64, predictions=20, vocabulary_size=VOCABULARY_SIZE, seed=1)
    assert batch.num_masked > 500
    with torch.no_grad():
        sums: LossSums = model(batch)
    return float(sums.masked_lm) / batch.num_masked, float(sums.next_sentence) / batch.num_rows


def test_a_narrow_model_starts_from_guessing() -> None:
    masked_lm, next_sentence = first_losses(128)
    assert masked_lm + next_sentence == pytest.approx(math.log(VOCABULARY_SIZE) + math.log(2), abs=WITHIN)
    assert masked_lm + next_sentence == pytest.approx(11.02, abs=WITHIN)


@pytest.mark.parametrize("hidden_size", [128, 768, 1024])
def test_a_wide_model_starts_above_by_half_the_variance_of_its_scores(hidden_size: int) -> None:
    masked_lm, next_sentence = first_losses(hidden_size)
    expected = math.log(VOCABULARY_SIZE) + hidden_size * 0.02**2 / 2
    assert masked_lm == pytest.approx(expected, abs=WITHIN)
    assert next_sentence == pytest.approx(math.log(2), abs=WITHIN)
