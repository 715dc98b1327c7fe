"""What cannot be had of ``engine: ort`` is an error that says so and what to choose."""

from __future__ import annotations

import importlib
import importlib.metadata
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from bert_trainer.config.checks import parse_run_config
from bert_trainer.errors import EngineUnusable, InputError, UnsupportedPrecision
from bert_trainer.model.backends.ort import capability
from tiny_run import run_document, run_trainer, write_dataset

CPU, GPU = torch.device("cpu"), torch.device("cuda")


@pytest.fixture
def extensions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Have the release installed, as far as files go, with its extensions for processors."""
    (tmp_path / "aten_op_executor.cpython-311-x86_64-linux-gnu.so").touch()
    found = SimpleNamespace(ORTMODULE_TORCH_CPP_DIR=str(tmp_path), ONNXRUNTIME_CUDA_VERSION="11.8")
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "1.19.2")
    monkeypatch.setattr(importlib, "import_module", lambda name: found)
    return tmp_path


def test_a_run_without_onnx_runtime_s_training_names_image_and_alternative(tmp_path: Path) -> None:
    document = run_document(tmp_path / "run", write_dataset(tmp_path / "dataset"), engine="ort")
    done = run_trainer(document, tmp_path / "run.json")
    assert done.returncode == 2
    assert "EngineUnusable" in done.stderr + done.stdout
    assert "onnxruntime-training 1.19.2 is not installed here" in done.stderr
    assert "trainer-ort" in done.stderr
    assert "engine: eager" in done.stderr
    assert not (tmp_path / "run").exists()


def test_another_release_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "1.17.0")
    with pytest.raises(EngineUnusable, match=r"allowed: with onnxruntime-training 1\.19\.2, here is 1\.17\.0"):
        capability.check_engine(CPU, "fp32")


def test_a_torch_that_it_does_not_import_under_is_named(extensions: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise AttributeError("module 'torch.onnx' has no attribute '_internal'")

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(EngineUnusable, match=r"does not work with torch .*has no attribute '_internal'"):
        capability.check_engine(CPU, "fp32")


def test_missing_extensions_are_named_with_what_builds_them(extensions: Path) -> None:
    capability.check_engine(CPU, "fp32")
    next(extensions.iterdir()).unlink()
    with pytest.raises(EngineUnusable, match="lacks ORTModule's extensions") as raised:
        capability.check_engine(CPU, "fp32")
    assert "build_ort_extensions.py" in str(raised.value.hint)


@pytest.mark.parametrize("precision", ["bf16", "fp16", "tf32"])
def test_on_processors_fp32_alone_is_computed(extensions: Path, precision: str) -> None:
    with pytest.raises(UnsupportedPrecision, match=f"got '{precision}'; allowed with engine 'ort' on processors: fp32"):
        capability.check_engine(CPU, precision)
    capability.check_engine(CPU, "avx-fp32")


def test_on_gpus_both_wheels_are_made_for_one_cuda(extensions: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", "12.1")
    with pytest.raises(EngineUnusable, match=r"is made for CUDA 11\.8, torch for CUDA 12\.1"):
        capability.check_engine(GPU, "fp16")
    monkeypatch.setattr(torch.version, "cuda", "11.8")
    with pytest.raises(EngineUnusable, match="lacks torch_gpu_allocator"):
        capability.check_engine(GPU, "fp16")
    (extensions / "torch_gpu_allocator.so").touch()
    capability.check_engine(GPU, "fp16")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"precision": "fp64"}, 'precision: got "fp64"; allowed: fp32, avx-fp32, tf32, bf16, fp16 with engine ort'),
        ({"precision": "bf32"}, 'precision: got "bf32"; allowed: fp32, avx-fp32, tf32, bf16, fp16 with engine ort'),
        ({"activation_checkpointing": True}, "activation_checkpointing: got true; allowed: false with engine ort"),
    ],
)
def test_a_document_that_asks_for_both_is_refused(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    parse_run_config(run_document(tmp_path, tmp_path, **changes))
    with pytest.raises(InputError, match=message):
        parse_run_config(run_document(tmp_path, tmp_path, engine="ort", **changes))
