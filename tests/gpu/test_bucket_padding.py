"""Padding to buckets brings micro-batches to few shapes and changes nothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch

from bert_trainer.model.backends.backend import Backend
from bert_trainer.model.backends.eager import EagerBackend
from bert_trainer.model.backends.gpu.bucket_padding import MicroBatchShape, pad_to_bucket
from bert_trainer.model.backends.gpu.encoder import GpuBackend
from bert_trainer.model.batch import Batch
from gpu_models import LENGTHS, SETTINGS, SHAPE, largest_difference, make_batch, make_model, run

FP64 = torch.float64


@pytest.mark.parametrize("backend", [EagerBackend(), GpuBackend("padded", FP64)], ids=["eager", "gpu"])
@pytest.mark.parametrize("changes", SETTINGS.values(), ids=SETTINGS)
def test_losses_counts_and_gradients_are_those_without_it(changes: dict[str, object], backend: Backend) -> None:
    model, batch = make_model(**changes), make_batch()
    expected = run(model, batch, backend)
    found = run(model, pad_to_bucket(batch, SHAPE), backend)
    assert found.losses == pytest.approx(expected.losses, rel=1e-12)
    assert found.correct == expected.correct
    assert largest_difference(found, expected) < 1e-12


def test_what_it_is_made_of_makes_no_difference() -> None:
    """With dropout too, and to the bit."""
    model, padded = make_model(hidden_dropout=0.2), pad_to_bucket(make_batch(), SHAPE)
    other = dataclasses.replace(padded, tokens_N=padded.tokens_N.clone())
    other.tokens_N[padded.num_tokens :] = 77
    backend = GpuBackend("padded", FP64)
    one, two = (run(model, batch, backend, step=3) for batch in (padded, other))
    assert one.losses == two.losses
    assert all(torch.equal(one.gradients[name], two.gradients[name]) for name in one.gradients)


def test_rows_are_dropped_in_as_without_it() -> None:
    batch = make_batch()
    plain, padded = (it.dropout_keys(3, 7) for it in (batch, pad_to_bucket(batch, SHAPE)))
    assert torch.equal(padded.rows_B[: batch.num_rows], plain.rows_B)
    assert len(padded.rows_B) == SHAPE.padded_rows
    assert padded.generator_seed == plain.generator_seed


def test_targets_go_wherever_the_rows_go() -> None:
    batch = dataclasses.replace(make_batch(), targets=torch.arange(len(LENGTHS)))
    moved = pad_to_bucket(batch, SHAPE).to(torch.device("meta"))
    assert moved.targets is not None
    assert (moved.targets.device.type, len(moved.targets)) == ("meta", SHAPE.padded_rows)


def test_padding_tokens_get_no_gradient_at_all() -> None:
    padded = pad_to_bucket(make_batch(), SHAPE)
    model = make_model()
    states = []
    model.embeddings.norm.register_forward_hook(lambda _, __, x_ND: states.append(x_ND) or x_ND.retain_grad())
    sums = model(padded)
    (sums.masked_lm + sums.next_sentence).backward()
    gradient = states[0].grad
    assert float(gradient[: padded.num_tokens].abs().min(dim=1).values.max()) > 0
    assert not bool(gradient[padded.num_tokens :].any())


@pytest.mark.parametrize("rows", [1, 7, 32, 200])
@pytest.mark.parametrize("length", [16, 128, 512])
def test_micro_batches_come_in_few_shapes_and_rows_keep_to_the_length(rows: int, length: int) -> None:
    shape = MicroBatchShape(length, rows)
    rng = np.random.default_rng(0)
    token_counts, row_counts = set(), set()
    for _ in range(40):
        lengths = tuple(int(number) for number in rng.integers(2, min(length, 40) + 1, rng.integers(1, rows + 1)))
        batch = make_batch(lengths)
        padded = pad_to_bucket(batch, shape)
        counts = padded.row_bounds.diff()
        assert 1 <= int(counts.min()) <= int(counts.max()) <= length == padded.longest
        assert int(padded.row_bounds[-1]) == len(padded.tokens_N) == len(padded.token_row_N)
        assert torch.equal(padded.row_starts_B, padded.row_bounds[:-1].long())
        assert torch.equal(padded.row_mask_BT.sum(1), counts)
        assert torch.equal(torch.bincount(padded.token_row_N), counts)
        assert (padded.num_rows, padded.num_tokens, padded.num_masked) == (
            len(lengths), sum(lengths), len(batch.masked_labels_M)
        )  # fmt: skip
        assert len(padded.masked_labels_M) % 64 == 0
        assert len(padded.tokens_N) - sum(lengths) < shape.token_multiple + shape.padded_rows
        token_counts.add(len(padded.tokens_N))
        row_counts.add(len(counts))
    assert row_counts == {shape.padded_rows}
    assert all(count % shape.token_multiple == 0 for count in token_counts)


def test_a_full_micro_batch_gets_little_of_it() -> None:
    shape = MicroBatchShape(512, rows=64)
    assert (shape.token_multiple, shape.padded_rows) == (512, 65)
    assert MicroBatchShape(128, rows=256).padded_rows == 256 + 5


def test_a_micro_batch_without_predictions_is_padded_too() -> None:
    batch = make_batch()
    none = torch.empty(0, dtype=torch.int64)
    bare = dataclasses.replace(batch, masked_index_M=none, masked_labels_M=none, num_masked=0)
    found = run(make_model(), pad_to_bucket(bare, SHAPE), GpuBackend("padded", FP64))
    assert found.losses[0] == 0
    assert found.losses[1] > 0


def test_more_rows_or_longer_ones_than_the_stage_has_are_refused() -> None:
    for shape in (MicroBatchShape(40, rows=len(LENGTHS) - 1), MicroBatchShape(39, rows=12)):
        with pytest.raises(ValueError, match="batch: got 8 rows of up to 40 tokens; allowed: "):
            pad_to_bucket(make_batch(), shape)


def test_cpus_get_none() -> None:
    model, batch = make_model(torch.float32, num_attention_heads=4), make_batch()
    assert model.backend.stage_batch(batch, sequence_length=128, micro_batch_size=8) is batch
    assert EagerBackend().stage_batch(batch, sequence_length=128, micro_batch_size=8) is batch


def test_gpus_get_it_in_memory_that_is_pinned_for_the_rank_s_own_one(monkeypatch: pytest.MonkeyPatch) -> None:
    current: list[torch.device] = []

    @contextmanager
    def device(wanted: torch.device) -> Iterator[None]:
        current.append(wanted)
        yield
        current.pop()

    def pinned(batch: Batch) -> Batch:
        assert current == [torch.device("cuda", 3)]
        return dataclasses.replace(batch, tokens_N=batch.tokens_N + 1000)

    monkeypatch.setattr(torch.cuda, "device", device)
    monkeypatch.setattr(Batch, "pinned", pinned)
    backend = GpuBackend("padded", FP64, device=torch.device("cuda", 3))
    batch = make_batch()
    found = backend.stage_batch(batch, sequence_length=SHAPE.sequence_length, micro_batch_size=SHAPE.rows)
    assert torch.equal(found.tokens_N, pad_to_bucket(batch, SHAPE).tokens_N + 1000)
