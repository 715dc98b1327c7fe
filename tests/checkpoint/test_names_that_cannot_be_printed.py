"""Names that somebody else chose, of tensors and files, are shown in a form that a terminal and a log can hold.

Inputs: names with control characters, line breaks, halves of characters. Observed: what ``bert-train import`` prints.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from bert_trainer.__main__ import main
from bert_trainer.checkpoints.conversion import import_weights
from bert_trainer.checkpoints.huggingface_export import huggingface_config
from bert_trainer.errors import InputError
from weight_sources import nvidia_tensors, small_model, write_huggingface, write_vocabulary

HOSTILE = "\ud800\x1b[2J\nWrote /etc/passwd\u202e"


def run(*arguments: str | Path) -> int:
    return main(["import", *map(str, arguments)])


def test_entries_that_are_ignored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = small_model()
    torch.save({"model": nvidia_tensors(model), HOSTILE: 1, "x" * 5000: 2}, tmp_path / "ckpt_1.pt")
    write_vocabulary(tmp_path)
    (tmp_path / "bert_config.json").write_text(json.dumps(huggingface_config(model)))
    assert run(tmp_path / "ckpt_1.pt", "--format", "nvidia", "--output", tmp_path / "out") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith("Wrote")] == [lines[-1]]
    ignored = next(line for line in lines if line.startswith("  ignored"))
    assert ignored == f"  ignored: {'x' * 200}, " + r"\ud800\x1b[2J\nWrote /etc/passwd\u202e"


def test_folders_with_control_characters(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_huggingface(tmp_path / "model", small_model())
    strange = folder.rename(tmp_path / "model\x1b[2J")
    assert run(strange, "--format", "huggingface", "--output", tmp_path / "new\nWrote") == 0
    out = capsys.readouterr().out
    assert r"model\x1b[2J as huggingface" in out
    assert (tmp_path / "new\nWrote" / "model.safetensors").exists()


def test_tensors_that_a_list_of_parts_does_not_name(tmp_path: Path) -> None:
    folder = write_huggingface(tmp_path / "model", small_model())
    index = {"weight_map": {HOSTILE: "model.safetensors", "a" * 5000: "model.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "model.safetensors").rename(folder / "part.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps(index).replace('"model.saf', '"part.saf'))
    with pytest.raises(InputError, match="holds other tensors than model.safetensors.index.json says: aaaa") as error:
        import_weights(folder, "huggingface", tmp_path / "out")
    assert error.value.message.isprintable()
    assert len(error.value.message) < 2000
    assert not (tmp_path / "out").exists()
