"""A Hugging Face model in several files is read as one; its index may name files of the folder and nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from bert_trainer.errors import InputError
from weight_sources import load, small_model, write_huggingface, write_vocabulary


def split(folder: Path, *, safe: bool = True) -> Path:
    """Cut the folder's weights into two files with an index; return the index."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    stem, suffix = ("model", "safetensors") if safe else ("pytorch_model", "bin")
    places: dict[str, str] = {}
    for number, chosen in enumerate((sorted(tensors)[::2], sorted(tensors)[1::2]), start=1):
        name = f"{stem}-{number:05d}-of-00002.{suffix}"
        part = {key: tensors[key] for key in chosen}
        save_file(part, folder / name) if safe else torch.save(part, folder / name)
        places |= dict.fromkeys(chosen, name)
    index = folder / f"{stem}.{suffix}.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": places}))
    return index


@pytest.mark.parametrize("safe", [True, False], ids=["safetensors", "bin"])
def test_all_parts_together_are_the_model(tmp_path: Path, safe: bool) -> None:
    theirs = small_model(seed=1)
    folder = write_huggingface(tmp_path / "model", theirs)
    split(folder, safe=safe)
    message, _, found, _ = load(folder, "huggingface", small_model(), write_vocabulary(tmp_path))
    for name, tensor in theirs.named_parameters():
        assert torch.equal(found[name], tensor), name
    assert message == f"Started from the weights of {folder}"


def place(name: str) -> Callable[[dict[str, Any]], None]:
    def change(index: dict[str, Any]) -> None:
        index["weight_map"]["bert.pooler.dense.bias"] = name

    return change


DAMAGES: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "a folder above": (
        place("../model.safetensors"),
        r"got the file '\.\./model.safetensors'; allowed: the plain name",
    ),
    "an absolute path": (place("/etc/passwd"), "got the file '/etc/passwd'"),
    "a folder inside": (place("parts/model.safetensors"), "got the file 'parts/model.safetensors'"),
    "a hidden file": (place(".model.safetensors"), "got the file '.model.safetensors'"),
    "a file of another kind": (
        place("model.bin"),
        "got the file 'model.bin'; allowed: the plain name of a .safetensors",
    ),
    "a line break": (place("a\n.safetensors"), r"got the file 'a\\n.safetensors'"),
    "a part that is not there": (place("gone.safetensors"), r"gone.safetensors: cannot be read \(No such file"),
    "a tensor in the other part": (place("model-00001-of-00002.safetensors"), "holds other tensors than"),
    "a number for a name": (
        lambda index: index["weight_map"].update(x=1),
        "weight_map: got .*allowed: the name of a file",
    ),
    "no map": (lambda index: index.clear(), "weight_map: got None"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_an_index_that_leads_elsewhere_is_refused_by_name(tmp_path: Path, damage: str) -> None:
    change, words = DAMAGES[damage]
    folder = write_huggingface(tmp_path / "model", small_model(seed=1))
    index_file = split(folder)
    index = json.loads(index_file.read_text())
    change(index)
    index_file.write_text(json.dumps(index))
    with pytest.raises(InputError, match=words) as error:
        load(folder, "huggingface", small_model(), write_vocabulary(tmp_path))
    assert str(folder) in str(error.value)
    assert "\nhint: " in str(error.value)
