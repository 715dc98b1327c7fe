"""A GPU whose memory runs out ends the run by that name, with what to change; nobody tries it again unchanged.

The error is raised where a GPU would raise it, with the text that PyTorch 2 writes; all that follows is real: the
trainer's record, the launcher's reading of its output, the operator's plan.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from bert_operator.api.schema.conditions import FailureReason, Reason
from bert_operator.state.observed import Child, Observed, read_outcome
from bert_operator.state.plan import plan
from bert_trainer.errors import InputError, OutOfDeviceMemory
from bert_trainer.output.metrics import read_metrics
from bert_trainer.training import loop, run
from bert_trainer.training.out_of_memory import first_sentences, suggest_less_memory
from sample_job import sample_job
from tiny_run import pretrain_stage, run_config, write_dataset

TORCH_MESSAGE = (
    "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 79.10 GiB of which 3.05 GiB is "
    "free. Including non-PyTorch memory, this process has 76.04 GiB memory in use. If reserved but unallocated memory "
    "is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation."
)


def no_memory(*_: object, **__: object) -> None:
    raise torch.OutOfMemoryError(TORCH_MESSAGE)


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BERT_TERMINATION_LOG", str(tmp_path / "termination"))
    return tmp_path / "termination"


def test_it_ends_the_run_by_its_name_and_proposes_what_needs_less(
    tmp_path: Path, record: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(loop, "take_step", no_memory)
    config = run_config(tmp_path / "out", write_dataset(tmp_path / "data"))
    with pytest.raises(OutOfDeviceMemory, match="phase1: rank 0 has no GPU memory left"):
        run.train(config, attempt=1)
    told = json.loads(record.read_text())
    assert (told["reason"], told["exitCode"]) == ("OutOfDeviceMemory", 2)
    for words in (
        "Tried to allocate 20.00 GiB",
        "a smaller microBatchSize than 8",
        "activationCheckpointing: true",
        "now: microBatchSize 8",
        "activationCheckpointing false",
    ):
        assert words in told["message"]
    assert "PYTORCH_CUDA_ALLOC_CONF" not in told["message"]
    assert "reason: OutOfDeviceMemory" in capsys.readouterr().err
    failed = [line for line in read_metrics(tmp_path / "out") if line["event"] == "failed"]
    assert [line["reason"] for line in failed] == ["OutOfDeviceMemory"]


def test_a_run_may_go_on_with_what_is_proposed(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "data")
    run.train(run_config(tmp_path / "out", dataset, stages=[pretrain_stage(length={"steps": 6})]), attempt=1)
    for attempt, size in ((2, 4), (3, 4), (4, "auto")):
        stages = [pretrain_stage(micro_batch_size=size, length={"steps": 6})]
        run.train(run_config(tmp_path / "out", dataset, stages=stages, activation_checkpointing=True), attempt=attempt)
    told = [line["message"] for line in read_metrics(tmp_path / "out") if line["event"] == "resumed"]
    assert told == [
        "Resumed, not bit-identical: stages.0.micro_batch_size 8 -> 4",
        "Resumed, bit-identical",
        'Resumed, not bit-identical: stages.0.micro_batch_size 4 -> "auto"',
    ]


def test_a_run_whose_result_depends_on_it_may_not(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "data")
    for attempt, size in ((1, 8), (2, 4)):
        stage = pretrain_stage(micro_batch_size=size, loss_normalization="microBatchMean")
        config = run_config(tmp_path / "out", dataset, stages=[stage])
        if attempt == 1:
            run.train(config, attempt=attempt)
    with pytest.raises(InputError, match=r"stages.0.micro_batch_size: was 8, is 4"):
        run.train(config, attempt=2)


def test_setting_up_may_already_be_too_much(tmp_path: Path, record: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run.Session, "open", no_memory)
    config = run_config(tmp_path / "out", write_dataset(tmp_path / "data"))
    with pytest.raises(OutOfDeviceMemory, match="setting up: rank 0"):
        run.train(config, attempt=1)
    assert "microBatchSize" not in json.loads(record.read_text())["message"]


def test_what_is_done_already_is_not_proposed() -> None:
    small = run_config(Path("out"), Path("data"), activation_checkpointing=True, precision="bf16")
    hint = suggest_less_memory(small, micro_batch_size=1)
    assert "a smaller microBatchSize" not in hint
    assert "activationCheckpointing: true" not in hint
    assert "precision: bf16 instead" not in hint
    assert "a GPU with more memory" in hint
    limited = run_config(Path("out"), Path("data"), gpu_memory_limit_gib=20)
    assert "a higher gpuMemoryLimitGiB than 20" in suggest_less_memory(limited, micro_batch_size=4)


def test_the_start_of_the_message_is_kept() -> None:
    assert first_sentences(TORCH_MESSAGE).endswith("total capacity of 79.10 GiB of which 3.05 GiB is free")
    assert first_sentences("no words") == "no words"


def test_the_operator_does_not_try_it_again_unchanged() -> None:
    outcome = read_outcome(2, {"reason": "OutOfDeviceMemory", "exitCode": 2, "message": "phase1: rank 0 ..."})
    child = Child(
        run="training", attempt=1, state=outcome.state, exit_code=outcome.exit_code, reason=outcome.reason,
        message=outcome.message, finished_at_s=100.0,
    )  # fmt: skip
    job = sample_job(lambda spec: spec.update(stages=spec["stages"][1:], dataset={"path": "/data"}))
    decided = plan(job, Observed(children=(child,)), 101.0)
    assert decided.create is None
    assert (decided.status.phase, decided.status.reason) == ("Failed", Reason.INVALID_INPUT)
    assert [failure.reason for failure in decided.status.failures] == [FailureReason.OUT_OF_DEVICE_MEMORY]
    assert "phase1: rank 0" in (decided.status.message or "")
