"""Weights of one program that are named as another's are told by their files, and the message says what to write.

Inputs: folders with the files that each program writes. Observed: the format that is found; the refusal of every pair.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from bert_trainer.checkpoints.foreign_formats import find_formats
from bert_trainer.checkpoints.initial_weights import READERS
from bert_trainer.errors import InputError
from weight_sources import load, nvidia_tensors, small_model, write_huggingface, write_vocabulary

# Where the weights of a format lie, and the file that gives them away.
PLACES: dict[str, tuple[str, tuple[str, ...], str]] = {
    "a checkpoint": ("bert-trainer", ("manifest.json", "model.safetensors"), "manifest.json"),
    "a folder of checkpoints": ("bert-trainer", ("phase1-00000001/manifest.json",), "phase1-00000001/manifest.json"),
    "a run": (
        "bert-trainer",
        ("run-config.json", "checkpoints/phase1-00000001/manifest.json", "vocab.txt"),
        "checkpoints/phase1-00000001/manifest.json",
    ),
    "Hugging Face": ("huggingface", ("config.json", "model.safetensors", "vocab.txt"), "model.safetensors"),
    "Hugging Face before safetensors": ("huggingface", ("config.json", "pytorch_model.bin"), "pytorch_model.bin"),
    "Hugging Face in parts": (
        "huggingface",
        ("config.json", "model.safetensors.index.json", "model-00001-of-00002.safetensors"),
        "model.safetensors.index.json",
    ),
    "Google": (
        "tensorflow",
        ("bert_config.json", "bert_model.ckpt.data-00000-of-00001", "bert_model.ckpt.index", "vocab.txt"),
        "bert_model.ckpt.index",
    ),
    "MLPerf": ("tensorflow", ("model.ckpt-28252.index", "model.ckpt-28252.meta"), "model.ckpt-28252.index"),
    "NVIDIA": ("nvidia", ("ckpt_7038.pt", "ckpt_900.pt", "dllogger.json"), "ckpt_7038.pt"),
    "NVIDIA's MLPerf": ("nvidia", ("phase1_ckpt_9.pt", "phase2_ckpt_3.pt"), "phase2_ckpt_3.pt"),
}


def make(folder: Path, names: tuple[str, ...]) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    return folder


@pytest.mark.parametrize("place", PLACES)
def test_a_folder_named_as_another_is_told_what_it_is(tmp_path: Path, place: str) -> None:
    kind, names, evidence = PLACES[place]
    folder = make(tmp_path / "weights", names)
    assert find_formats(folder) == {kind: evidence}
    vocabulary = write_vocabulary(tmp_path)
    for named in READERS.keys() - {kind}:
        with pytest.raises(InputError) as error:
            load(folder, named, small_model(), vocabulary)
        assert str(error.value).splitlines()[0] == (
            f"initial_checkpoint.path: {folder}: got format: {named}, but `{evidence}` lies there: format: {kind}"
        )
        assert str(error.value).splitlines()[1] == f"hint: write format: {kind}"


def test_files_and_prefixes_are_told_as_folders_are(tmp_path: Path) -> None:
    make(tmp_path, ("bert_model.ckpt.index", "ckpt_7.pt", "own.pth", "notes.txt"))
    assert find_formats(tmp_path / "bert_model.ckpt") == {"tensorflow": "bert_model.ckpt.index"}
    assert find_formats(tmp_path / "bert_model.ckpt.index") == {"tensorflow": "bert_model.ckpt.index"}
    assert find_formats(tmp_path / "ckpt_7.pt") == {"nvidia": "ckpt_7.pt"}
    assert find_formats(tmp_path / "own.pth") == {"nvidia": "own.pth"}
    assert find_formats(tmp_path / "notes.txt") == {}
    assert find_formats(tmp_path / "nowhere") == {}


def test_a_folder_with_two_kinds_is_read_as_either(tmp_path: Path) -> None:
    theirs = small_model(seed=1)
    folder = write_huggingface(tmp_path / "both", theirs)
    torch.save({"model": nvidia_tensors(theirs)}, folder / "ckpt_1.pt")
    vocabulary = write_vocabulary(tmp_path)
    for kind in ("huggingface", "nvidia"):
        found = load(folder, kind, small_model(), vocabulary)[2]
        assert torch.equal(found["pooler.weight"], theirs.pooler.weight)  # type: ignore[union-attr]
