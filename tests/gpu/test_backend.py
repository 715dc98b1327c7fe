"""The step on a GPU computes what the plain one computes: run here on a CPU, with attention on padded rows.

Reference: plain operations in fp64. Measured: fp64 within 1e-14 of the largest gradient, fp32 within 4e-7 (Zen 5) and
3.1e-6 (Intel Xeon without AMX, the approximated GELU), bf16 within 2 %, fp16 within 0.3 %.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from bert_trainer.model.backends.eager import EagerBackend
from bert_trainer.model.backends.gpu import encoder as gpu_encoder
from bert_trainer.model.backends.gpu.bucket_padding import pad_to_bucket
from bert_trainer.model.backends.gpu.encoder import GpuBackend, render_gpu
from bert_trainer.model.bert import Bert
from bert_trainer.training.interval import read_sums
from gpu_models import SETTINGS, SHAPE, largest_difference, make_batch, make_model, run

TOLERANCES = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 5e-2, torch.float16: 1e-2}
BF16, FP64 = torch.bfloat16, torch.float64


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("changes", SETTINGS.values(), ids=SETTINGS)
def test_losses_and_gradients_are_those_of_plain_operations(changes: dict[str, object], dtype: torch.dtype) -> None:
    batch = make_batch()
    expected = run(make_model(**changes), batch, EagerBackend())
    model = make_model(FP64 if dtype == FP64 else torch.float32, **changes)
    found = run(model, pad_to_bucket(batch, SHAPE), GpuBackend("padded", dtype))
    assert found.losses == pytest.approx(expected.losses, rel=TOLERANCES[dtype])
    assert largest_difference(found, expected) < TOLERANCES[dtype]
    if dtype in (FP64, torch.float32):
        assert found.correct == expected.correct


@pytest.mark.parametrize("changes", SETTINGS.values(), ids=SETTINGS)
def test_the_same_features_of_a_sample_are_dropped_as_on_a_cpu(changes: dict[str, object]) -> None:
    model, batch = make_model(hidden_dropout=0.2, **changes), make_batch()
    expected = run(model, batch, EagerBackend(), step=7)
    found = run(model, pad_to_bucket(batch, SHAPE), GpuBackend("padded", FP64), step=7)
    assert found.losses == pytest.approx(expected.losses, rel=1e-12)
    assert largest_difference(found, expected) < 1e-12
    other = run(model, batch, EagerBackend(), step=8)
    assert largest_difference(other, expected) > 0.01


def test_attention_drops_the_same_weights_in_a_step_that_is_taken_again() -> None:
    """As after a resume: from the seed, the step and the samples, whatever was drawn in between."""
    model, batch, backend = (
        make_model(attention_dropout=0.2),
        pad_to_bucket(make_batch(), SHAPE),
        GpuBackend("padded", FP64),
    )
    first = run(model, batch, backend, step=7)
    torch.rand(100)
    again = run(model, batch, backend, step=7)
    assert first.losses == again.losses
    assert all(torch.equal(first.gradients[name], again.gradients[name]) for name in first.gradients)
    assert run(model, batch, backend, step=8).losses != first.losses
    assert run(model, batch, backend).losses != first.losses


def test_layers_draw_different_weights_to_drop(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds = []
    monkeypatch.setattr(gpu_encoder, "seed_generator", lambda device, seed: seeds.append(seed))
    model = make_model(attention_dropout=0.2)
    for step in (1, 2):
        run(model, make_batch(), GpuBackend("padded", FP64), step=step)
    assert len(set(seeds)) == 4
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_activation_checkpointing_changes_no_bit() -> None:
    model = make_model(hidden_dropout=0.1, attention_dropout=0.2)
    batch, backend = pad_to_bucket(make_batch(), SHAPE), GpuBackend("padded", FP64)
    plain = run(model, batch, backend, step=7)
    model.activation_checkpointing = True
    recomputed = run(model, batch, backend, step=7)
    assert recomputed.losses == plain.losses
    assert all(torch.equal(recomputed.gradients[name], plain.gradients[name]) for name in plain.gradients)


def test_autocast_of_the_caller_changes_nothing_inside() -> None:
    model, batch = make_model(torch.float32, objective="mlm"), make_batch()
    backend = GpuBackend("padded", torch.float32)
    without = run(model, batch, backend)
    with torch.autocast("cpu", dtype=BF16):
        inside = model(batch)
    assert float(inside.masked_lm.detach()) == without.losses[0]


@pytest.mark.parametrize(
    ("attention", "dtype", "objective"),
    [("flash", BF16, "mlm"), ("efficient", torch.float16, "mlm"), ("efficient", torch.float32, "mlm+nsp")],
)
@pytest.mark.parametrize("recompute", [False, True])
def test_a_pass_never_asks_the_device_for_a_value(
    attention: gpu_encoder.Attention,
    dtype: torch.dtype,
    objective: str,
    recompute: bool,
) -> None:
    """On the meta device, where there are none: .item(), float() and indexing by truth values end in an error."""
    drops = {"hidden_dropout": 0.1, "attention_dropout": 0.1}
    model = make_model(torch.float32, objective=objective, **drops).to("meta")
    model.activation_checkpointing = recompute
    batch = pad_to_bucket(make_batch(), SHAPE).to(torch.device("meta"))
    model.use(GpuBackend(attention, dtype))
    sums = model(batch, batch.dropout_keys(1, 2))
    (sums.masked_lm / batch.num_masked + sums.next_sentence / batch.num_rows).backward()
    assert not vars(batch).keys() & {"padded_index_N", "row_mask_BT"}, "made for rows that nothing pads"
    for parameter in model.parameters():
        assert parameter.grad is not None
        assert (parameter.grad.shape, parameter.grad.dtype) == (parameter.shape, torch.float32)
    with pytest.raises(RuntimeError, match="meta"):
        float(sums.masked_lm)


def test_losses_of_an_interval_are_read_at_once_and_sum_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    model: Bert = make_model(torch.float32)
    model.use(EagerBackend())
    with torch.no_grad():
        sums = [model(make_batch(seed=seed)) for seed in range(3)]
    reads = []
    monkeypatch.setattr(Tensor, "tolist", lambda self, read=Tensor.tolist: reads.append(1) or read(self))
    found = read_sums(sums)
    assert len(reads) == 1
    names = ("masked_lm", "next_sentence", "masked_lm_correct", "next_sentence_correct")
    assert found == [sum(float(getattr(one, name)) for one in sums) for name in names]
    assert read_sums([]) == [0.0] * 4


def test_a_rank_says_what_it_has_got() -> None:
    place = ("rank 1 on node-7: cuda:1", "NVIDIA H200", (9, 0), 139 * 2**30, "bf16")
    assert render_gpu(*place, GpuBackend("flash", BF16, not_compiled=None)) == (
        "rank 1 on node-7: cuda:1 NVIDIA H200 (sm_90), 139.0 GiB, precision bf16, attention flash, layers compiled"
    )
    plain = GpuBackend("padded", BF16, not_compiled="BERT_TRAINER_COMPILE=off")
    assert render_gpu(*place, plain).endswith("attention padded, layers not compiled (BERT_TRAINER_COMPILE=off)")


def test_a_table_of_three_segments_has_the_second_one_for_the_second() -> None:
    model, batch = make_model(segment_types=3), make_batch()
    plain = run(model, batch, EagerBackend())
    found = run(model, pad_to_bucket(batch, SHAPE), GpuBackend("padded", torch.float64))
    assert found.losses == pytest.approx(plain.losses, rel=1e-12)
    assert largest_difference(found, plain) < 1e-10
