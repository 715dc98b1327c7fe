"""Packed rows whose attention stays inside documents compute what the pieces as rows of their own do.

Two-layer models, rows of one to five pieces of 3 to 48 tokens. Measured: no difference at all in fp32 and fp64.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from bert_trainer.dataset.shards.ragged import RaggedSamples
from bert_trainer.model.backends.backend import Backend
from bert_trainer.model.backends.eager import EagerBackend
from bert_trainer.model.backends.gpu.bucket_padding import MicroBatchShape, pad_to_bucket
from bert_trainer.model.backends.gpu.encoder import GpuBackend
from bert_trainer.model.batch import Batch, make_batch
from bert_trainer.model.bert import Bert
from random_rows import FIRST_WORD, MASK, model_config, random_model

VOCABULARY, ROW = 53, 48
CLS, SEP = 2, 3
ROWS = ([22, 9, 3, 14], [48], [3, 3, 5, 4, 20], [17, 17])
"""Tokens of the pieces of each row."""


def samples_of(rows: tuple[list[int], ...], seed: int = 4) -> RaggedSamples:
    """Return rows of pieces, in each of which a word or two are masked; one is shown as [CLS]."""
    rng = np.random.default_rng(seed)
    tokens, positions, labels, predictions = [], [], [], []
    for row in rows:
        places: list[int] = []
        shown: list[int] = []
        for length in row:
            first = len(shown)
            shown += [CLS, *rng.integers(FIRST_WORD, VOCABULARY, length - 2).tolist(), SEP]
            places += [first + 1, first + length - 2][: 1 if length < 4 else 2]
        labels += [shown[place] for place in places]
        for place in places:
            shown[place] = MASK
        shown[places[0]] = CLS
        tokens += shown
        positions += places
        predictions.append(len(places))
    counts = np.array([sum(row) for row in rows])
    return RaggedSamples(
        tokens=np.array(tokens, np.uint16),
        token_counts=counts,
        first_segment_counts=counts,
        next_sentence_labels=np.zeros(len(rows), np.int8),
        prediction_counts=np.array(predictions),
        masked_lm_positions=np.array(positions, np.uint16),
        masked_lm_ids=np.array(labels, np.uint16),
    )


def as_rows_of_their_own(samples: RaggedSamples) -> RaggedSamples:
    starts = samples.piece_starts()
    counts = np.diff(starts, append=len(samples.tokens))
    places = samples.prediction_places()
    predictions = np.diff(np.searchsorted(places, [*starts, len(samples.tokens)]))
    return replace(
        samples,
        token_counts=counts,
        first_segment_counts=counts,
        next_sentence_labels=np.zeros(len(counts), np.int8),
        prediction_counts=predictions,
        masked_lm_positions=(places - np.repeat(starts, predictions)).astype(np.uint16),
    )


def model_of(dtype: torch.dtype, **changes: object) -> Bert:
    return random_model(model_config(64, objective="mlm", **changes), VOCABULARY, seed=2, dtype=dtype)


def packed(samples: RaggedSamples) -> Batch:
    return make_batch(samples, np.arange(len(samples)) + 7, splits_documents=True)


def run(model: Bert, batch: Batch, backend: Backend | None, step: int | None = None) -> dict[str, torch.Tensor]:
    """Return hidden states, the loss and all gradients."""
    if backend is not None:
        model.use(backend)
    model.zero_grad()
    keys = None if step is None else batch.dropout_keys(5, step)
    loss = model(batch, keys).masked_lm
    loss.backward()
    found = {name: it.grad for name, it in model.named_parameters() if it.grad is not None}
    with torch.no_grad():
        return {**found, "loss": loss.detach(), "hidden": model.encode(batch, keys)[: batch.num_tokens]}


def assert_same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], tolerance: float) -> None:
    for name, values in expected.items():
        # The keys' biases have no gradient but rounding: a softmax does not see what it adds to all of them.
        if not name.endswith("key.bias"):
            assert float((found[name] - values).norm() / values.norm()) < tolerance, name


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-13)], ids=str)
@pytest.mark.parametrize("backend", [EagerBackend(), None], ids=["plain", "chosen"])
def test_hidden_states_losses_and_gradients_are_those_of_the_pieces(
    backend: Backend | None, dtype: torch.dtype, tolerance: float
) -> None:
    samples, model = samples_of(ROWS), model_of(dtype)
    pieces = as_rows_of_their_own(samples)
    expected = run(model, make_batch(pieces, np.arange(len(pieces))), backend)
    assert_same(run(model, packed(samples), backend), expected, tolerance)


def test_on_a_gpu_too_whose_batches_are_padded() -> None:
    samples, model, backend = samples_of(ROWS), model_of(torch.float64), GpuBackend("padded", torch.float64)
    expected = run(model, packed(samples), EagerBackend())
    padded = pad_to_bucket(packed(samples), MicroBatchShape(ROW, rows=len(ROWS)))
    assert_same(run(model, padded, backend), expected, 1e-12)
    assert (padded.num_rows, len(padded.tokens_N) % 64) == (4, 0)


def test_a_row_counts_once_however_many_pieces_it_has() -> None:
    batch = packed(samples_of(ROWS))
    assert (batch.num_rows, batch.num_tokens, batch.longest) == (4, sum(map(sum, ROWS)), 48)
    assert batch.row_bounds.diff().tolist() == [length for row in ROWS for length in row]
    assert batch.positions_N[22:31].tolist() == list(range(9))
    assert batch.num_pairs == sum(length**2 for row in ROWS for length in row)


def test_a_row_that_stays_whole_is_one_with_positions_that_run_on() -> None:
    samples = samples_of(ROWS)
    whole = make_batch(samples, np.arange(4))
    assert whole.row_bounds.diff().tolist() == [sum(row) for row in ROWS]
    assert whole.positions_N[22:31].tolist() == list(range(22, 31))
    assert not whole.segments_N.any()
    model = model_of(torch.float64)
    apart, together = (run(model, batch, EagerBackend())["loss"] for batch in (packed(samples), whole))
    assert abs(float(apart - together)) > 1e-3


def test_any_split_into_micro_batches_drops_the_same() -> None:
    samples, numbers = samples_of(ROWS), np.arange(4) + 7
    model = model_of(torch.float64, hidden_dropout=0.2, attention_dropout=0.2)
    expected = run(model, packed(samples), EagerBackend(), step=3)
    total: dict[str, torch.Tensor] = {}
    for row in range(4):
        part = make_batch(samples.take(slice(row, row + 1)), numbers[row : row + 1], splits_documents=True)
        for name, values in run(model, part, EagerBackend(), step=3).items():
            if name != "hidden":
                total[name] = total.get(name, 0) + values.clone()
    assert_same(total, {name: it for name, it in expected.items() if name != "hidden"}, 1e-12)


def test_pieces_of_one_row_drop_differently_and_the_first_as_the_row() -> None:
    samples = samples_of(([12, 12, 12],))
    keys = packed(samples).dropout_keys(1, 2)
    whole = make_batch(samples, np.array([7])).dropout_keys(1, 2)
    assert len(set(keys.rows_B.tolist())) == 3
    assert torch.equal(keys.rows_B[:1], whole.rows_B)
    assert keys.generator_seed == whole.generator_seed
    kept = keys.kept_features(64, 0.5, 0).view(3, 12, 64)
    assert 0.4 < float((kept[0] == kept[1]).double().mean()) < 0.6
