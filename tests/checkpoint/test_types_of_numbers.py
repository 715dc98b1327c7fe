"""Weights are floating-point numbers that stand for themselves; other types are refused, with their names.

Inputs: models whose tensors were saved in each type. Observed: what is loaded, or the message.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from bert_trainer.checkpoints.checkpoint import MODEL_FILE, sha256_of
from bert_trainer.errors import InputError
from claimed_tensors import write_run
from signed_manifest import read_manifest, write_manifest
from weight_sources import load, nvidia_tensors, small_model, write_huggingface, write_vocabulary

ALLOWED = "allowed: float16, bfloat16, float32, float64"
NAME = "bert.pooler.dense.bias"


def write_changed(folder: Path, change: Callable[[dict[str, Tensor]], object]) -> Path:
    write_huggingface(folder, small_model())
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_numbers_that_stand_for_themselves_are_taken(tmp_path: Path, dtype: torch.dtype) -> None:
    folder = write_changed(
        tmp_path / "model", lambda tensors: tensors.update({name: held.to(dtype) for name, held in tensors.items()})
    )
    _, _, weights, _ = load(folder, "huggingface", small_model(1), write_vocabulary(tmp_path))
    wanted = dict(small_model().named_parameters())["pooler.bias"].detach().to(dtype).float()
    assert torch.equal(weights["pooler.bias"], wanted)


TYPES = [torch.float8_e4m3fn, torch.float8_e5m2, torch.int8, torch.uint8, torch.int64, torch.bool, torch.complex64]


@pytest.mark.parametrize("dtype", TYPES)
def test_others_are_refused_by_name(tmp_path: Path, dtype: torch.dtype) -> None:
    folder = write_changed(tmp_path / "model", lambda tensors: tensors.update({NAME: torch.ones(8).to(dtype)}))
    words = f"model.safetensors: {NAME}: got {str(dtype).removeprefix('torch.')}; {ALLOWED}"
    with pytest.raises(InputError, match=re.escape(words)):
        load(folder, "huggingface", small_model(), write_vocabulary(tmp_path))


@pytest.mark.parametrize("dtype", ["F4", "F8_E8M0", "F6_E2M3"])
def test_types_that_pytorch_does_not_compute_with_are_refused(tmp_path: Path, dtype: str) -> None:
    folder = write_huggingface(tmp_path / "model", small_model())
    text = json.dumps(
        {NAME: {"dtype": dtype, "shape": [8], "data_offsets": [0, {"F4": 4, "F6_E2M3": 6}.get(dtype, 8)]}}
    )
    content = len(text).to_bytes(8, "little") + text.encode() + bytes(8)
    (folder / "model.safetensors").write_bytes(content[: len(content) - (0 if dtype == "F8_E8M0" else 4)])
    with pytest.raises(InputError, match=r"model.safetensors: (bert.pooler.dense.bias: got float|cannot be read)"):
        load(folder, "huggingface", small_model(), write_vocabulary(tmp_path))


@pytest.mark.parametrize(
    ("dtype", "words"),
    [
        (torch.int32, f"model: x: got int32; {ALLOWED}"),
        (torch.bool, f"model: x: got bool; {ALLOWED}"),
        (torch.float8_e4m3fn, r"cannot be read .it holds a pickled torch._utils._rebuild_tensor_v3"),
    ],
)
def test_so_are_those_of_a_pickle(tmp_path: Path, dtype: torch.dtype, words: str) -> None:
    path = tmp_path / "ckpt_1.pt"
    torch.save({"model": {**nvidia_tensors(small_model()), "x": torch.ones(8).to(dtype)}}, path)
    with pytest.raises(InputError, match=words):
        load(path, "nvidia", small_model(), write_vocabulary(tmp_path))


def test_a_runs_checkpoint_is_no_exception(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run")
    tensors = load_file(path / MODEL_FILE)
    wanted = sha256_of(path / MODEL_FILE)
    save_file({**tensors, "pooler.bias": tensors["pooler.bias"].to(torch.float8_e5m2)}, path / MODEL_FILE)
    manifest = read_manifest(path)
    assert manifest["sha256"][MODEL_FILE] == wanted
    manifest["sha256"][MODEL_FILE] = sha256_of(path / MODEL_FILE)
    write_manifest(path, manifest)
    with pytest.raises(InputError, match=f"model.safetensors: pooler.bias: got float8_e5m2; {ALLOWED}"):
        load(path, "bert-trainer", small_model(), write_vocabulary(tmp_path))


def test_numbers_of_positions_may_be_integers(tmp_path: Path) -> None:
    name = "bert.embeddings.position_ids"
    folder = write_changed(tmp_path / "model", lambda tensors: tensors.update({name: torch.arange(10)[None]}))
    load(folder, "huggingface", small_model(), write_vocabulary(tmp_path))
