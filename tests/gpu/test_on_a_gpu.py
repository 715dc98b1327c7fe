"""What only a GPU can show: values of its kernels, compiled by Triton, and a host that does not wait.

The first thing to run where a GPU is at hand: ``make test TESTS=tests/gpu``. Everything is skipped elsewhere.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from bert_trainer.model.backends.eager import EagerBackend
from bert_trainer.model.backends.gpu import encoder as gpu_encoder
from bert_trainer.model.backends.gpu.attention import (
    ATTENTIONS,
    Attention,
    attend_efficient,
    attend_flash,
    seed_generator,
)
from bert_trainer.model.backends.gpu.bucket_padding import pad_to_bucket
from bert_trainer.model.backends.gpu.compilation import why_not_compiled
from bert_trainer.model.backends.gpu.encoder import Functions, GpuBackend
from bert_trainer.model.backends.gpu.self_test import find_fault, make_rows
from bert_trainer.model.batch import Batch
from confidence import FIVE_SIGMA, share_z
from gpu_models import SHAPE, largest_difference, make_batch, make_model, run
from in_process import losses, train
from tiny_run import pretrain_stage, run_config, write_dataset

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="requires a CUDA device"),
    pytest.mark.timeout(600),
    # Dynamo itself looks at the gradient of a layer's input; a run leaves that out of its log.
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning"),
]

GPU = torch.device("cuda", 0)
FP32, FP16, BF16 = torch.float32, torch.float16, torch.bfloat16
TOLERANCES = {FP32: 1e-3, FP16: 1e-2, BF16: 5e-2}
NEEDED: dict[tuple[Attention, torch.dtype], tuple[int, int]] = {
    ("flash", FP16): (8, 0),
    ("flash", BF16): (8, 0),
    ("efficient", FP16): (7, 0),
    ("efficient", BF16): (8, 0),
    ("efficient", FP32): (5, 0),
    ("padded", FP16): (7, 0),
    ("padded", BF16): (8, 0),
    ("padded", FP32): (5, 0),
}


@pytest.fixture(params=NEEDED, ids=lambda pair: f"{pair[0]}-{str(pair[1]).removeprefix('torch.')}")
def way(request: pytest.FixtureRequest) -> tuple[Attention, torch.dtype]:
    """Every way of attention and type that this card can do."""
    if torch.cuda.get_device_capability(GPU) < NEEDED[request.param]:
        pytest.skip("this card is older than that")
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def no_waiting() -> Iterator[None]:
    """The host may not wait for the device in the test's own part."""
    yield
    torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("head_size", [32, 64, 128])
def test_attention_gives_the_values_and_gradients_of_rows_on_their_own(
    way: tuple[Attention, torch.dtype], head_size: int
) -> None:
    assert find_fault(way[0], GPU, way[1], head_size) is None


@pytest.mark.parametrize("compiled", [False, True], ids=["plain", "compiled"])
def test_losses_and_gradients_are_those_of_plain_operations_in_fp64(
    way: tuple[Attention, torch.dtype], compiled: bool
) -> None:
    attention, dtype = way
    if compiled and (reason := why_not_compiled(GPU)) is not None:
        pytest.fail(reason)
    batch = make_batch()
    expected = run(make_model(hidden_dropout=0.1), batch, EagerBackend(), step=3)
    backend = GpuBackend(attention, dtype, Functions.compiled() if compiled else Functions())
    model = make_model(FP32, hidden_dropout=0.1).to(GPU)
    for padded in (pad_to_bucket(batch, SHAPE), batch):
        found = run(model, padded.to(GPU), backend, step=3)
        assert found.losses == pytest.approx(expected.losses, rel=TOLERANCES[dtype])
        assert largest_difference(found, expected) < TOLERANCES[dtype]


def test_activation_checkpointing_drops_the_same(way: tuple[Attention, torch.dtype]) -> None:
    backend = GpuBackend(*way, Functions.compiled())
    model = make_model(FP32, hidden_dropout=0.1, attention_dropout=0.3).to(GPU)
    batch = pad_to_bucket(make_batch(), SHAPE).to(GPU)
    plain = run(model, batch, backend, step=3)
    model.activation_checkpointing = True
    recomputed = run(model, batch, backend, step=3)
    assert recomputed.losses == pytest.approx(plain.losses, rel=1e-6)
    assert largest_difference(recomputed, plain) < TOLERANCES[way[1]] / 10


@pytest.mark.parametrize("attend", [attend_flash, attend_efficient])
def test_as_many_weights_are_dropped_as_asked_for(attend: gpu_encoder.Attention) -> None:
    if torch.cuda.get_device_capability(GPU) < (8, 0):
        pytest.skip("this card is older than that")
    dropped = []
    for seed in (3, 3, 4):
        seed_generator(GPU, seed)
        qkv = torch.zeros(64, 3, 16, 64, dtype=BF16, device=GPU)
        qkv[:, 2] = torch.eye(64, dtype=BF16, device=GPU)[:, None]
        dropped.append(attend(qkv, make_rows((64,), GPU), 64, 0.1) == 0)
    assert torch.equal(dropped[0], dropped[1])
    assert abs(share_z(int(dropped[0].sum()), dropped[0].numel(), 0.1)) < FIVE_SIGMA
    both = dropped[0] & dropped[2]
    assert abs(share_z(int(both.sum()), both.numel(), 0.01)) < FIVE_SIGMA


@pytest.mark.usefixtures("no_waiting")
@pytest.mark.parametrize("recompute", [False, True])
def test_the_host_does_not_wait_within_micro_batches(recompute: bool) -> None:
    """Copies, forward and backward pass, after one that compiles."""
    dtype = BF16 if torch.cuda.get_device_capability(GPU) >= (8, 0) else FP16
    model = make_model(FP32, hidden_dropout=0.1, attention_dropout=0.1).to(GPU)
    model.activation_checkpointing = recompute
    micro_batches = [staged(make_batch(seed=seed)) for seed in range(4)]
    total = torch.zeros((), device=GPU)
    for number, pinned in enumerate(micro_batches):
        if number == 1:
            torch.cuda.synchronize()
            torch.cuda.set_sync_debug_mode("error")
        batch = pinned.to(GPU)
        with torch.autocast("cuda", dtype=dtype):
            sums = model(batch, batch.dropout_keys(1, number))
        loss = sums.masked_lm / batch.num_masked + sums.next_sentence / batch.num_rows
        loss.backward()
        total += loss.detach()
    torch.cuda.set_sync_debug_mode("default")
    assert bool(torch.isfinite(total))


def staged(batch: Batch) -> Batch:
    """Return a micro-batch padded and pinned, as the thread that reads it leaves it."""
    backend = GpuBackend("padded", FP32, device=GPU)
    return backend.stage_batch(batch, sequence_length=SHAPE.sequence_length, micro_batch_size=SHAPE.rows)


def test_pinned_batches_arrive_as_they_were() -> None:
    pinned = staged(make_batch())
    arrived = pinned.to(GPU)
    for field in dataclasses.fields(pinned):
        value = getattr(pinned, field.name)
        if isinstance(value, torch.Tensor):
            assert value.is_pinned()
            assert torch.equal(getattr(arrived, field.name).cpu(), value)


@pytest.mark.parametrize("compiled", [False, True], ids=["plain", "compiled"])
def test_a_run_follows_the_loss_curve_of_a_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiled: bool) -> None:
    """Without attention dropout, so that both drop the same features; fp32, 20 steps, with an evaluation."""
    if not compiled:
        monkeypatch.setenv("BERT_TRAINER_COMPILE", "off")
    why_not_compiled.cache_clear()
    gpu_encoder.find.cache_clear()
    dataset = write_dataset(tmp_path / "data")
    stage = pretrain_stage(length={"steps": 20}, micro_batch_size=5)
    model = {
        "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64,
        "max_position_embeddings": 64, "hidden_dropout": 0.1, "attention_dropout": 0.0,
    }  # fmt: skip
    curves = []
    for device in ("cpu", "cuda"):
        session = train(run_config(tmp_path / device, dataset, stages=[stage], model=model, device=device))
        assert session.compute.device.type == device
        curves.append(losses(tmp_path / device))
    assert curves[1] == pytest.approx(curves[0], rel=2e-3)
    why_not_compiled.cache_clear()
    gpu_encoder.find.cache_clear()


def test_every_way_is_tested_here() -> None:
    assert {attention for attention, _ in NEEDED} == set(ATTENTIONS)
    assert isinstance(make_model(FP32).to(GPU).backend, GpuBackend)
