"""Files that claim terabytes without holding them are refused before anything is computed with what they claim.

Inputs: sparse files, as a file system keeps them that tells where a file has holes, and as one that does not. Observed:
the message; a test that read such a file to its end would not end.
"""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

from bert_trainer.checkpoints import tensor_files
from bert_trainer.checkpoints.checkpoint import MODEL_FILE
from bert_trainer.checkpoints.conversion import import_weights
from bert_trainer.errors import InputError
from bert_trainer.system.files import bytes_in_holes
from claimed_tensors import Claimed, Legacy, write_run
from tiny_run import run_document
from weight_sources import SIZES, load, nvidia_tensors, small_model, write_huggingface, write_vocabulary

ROWS = 1 << 34
TABLE, COPY = "bert.embeddings.word_embeddings.weight", "cls.predictions.decoder.weight"


@pytest.fixture(params=[True, False], ids=["holes are told", "holes are not told"])
def told(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    if not request.param:
        monkeypatch.setattr(tensor_files, "bytes_in_holes", lambda path, enough: 0)
    return bool(request.param)


def write_sparse(path: Path, *shapes: tuple[str, list[int]]) -> None:
    """Write a safetensors file of zeros that no disk holds, in half precision."""
    header: dict[str, Any] = {}
    at = 0
    for name, shape in shapes:
        size = 2 * shape[0] * shape[1]
        header[name] = {"dtype": "F16", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + at)


@pytest.mark.parametrize(
    ("shapes", "words"),
    [
        ([(TABLE, [ROWS, 8]), (COPY, [ROWS, 8])], f"{TABLE}: got {ROWS} rows; allowed: 13, as in"),
        ([(COPY, [ROWS, 8])], f"{TABLE}: got {ROWS} rows; allowed: 13, as in"),
        ([(TABLE, [13, ROWS]), (COPY, [13, ROWS])], r"word_embeddings.weight: got \[13, 17179869184\]; allowed"),
    ],
    ids=["a table and its copy", "a copy alone", "wide rows"],
)  # fmt: skip
def test_tied_tables_of_terabytes_are_not_compared(
    tmp_path: Path, told: bool, shapes: list[tuple[str, list[int]]], words: str
) -> None:
    vocabulary = write_vocabulary(tmp_path)
    folder = write_huggingface(tmp_path / "model", small_model())
    (folder / "vocab.txt").unlink()
    write_sparse(folder / "model.safetensors", *shapes)
    # A kernel that counts what processes map (vm.overcommit_memory 0) refuses to map more than it has.
    untold = rf"{words}|cannot be read \(unable to mmap"
    with pytest.raises(InputError, match="bytes that were never written" if told else untold):
        load(folder, "huggingface", small_model(), vocabulary)


def test_nor_are_master_weights(tmp_path: Path, told: bool) -> None:
    """Of a tensor that no model here has, with a copy of the same claim."""
    vocabulary = write_vocabulary(tmp_path)
    tensors = nvidia_tensors(small_model())
    stray = torch.empty(1).expand(1)
    path = tmp_path / "ckpt_1.pt"
    torch.save({"model": {**tensors, "stray": stray}, "master params": [stray]}, path)
    # Not a copy of anything: compared, it would be refused as that.
    with pytest.raises(InputError, match="1 left over\n  left over: stray"):
        load(path, "nvidia", small_model(), vocabulary, what="weightsAndOptimizer")


def test_a_file_from_before_pytorch_1_6_is_not_taken_into_memory(tmp_path: Path) -> None:
    path = tmp_path / "ckpt_1.pt"
    with path.open("wb") as file:
        for header in (0x1950A86A20F9469CFC6C, 1001, {"protocol_version": 1001, "little_endian": True}):
            pickle.dump(header, file, protocol=2)
        Legacy(file, protocol=2).dump({"a": Claimed((1 << 40,))})
        pickle.dump(["0"], file, protocol=2)
        file.write((1 << 40).to_bytes(8, "little"))
        file.truncate(1 << 42)
    with pytest.raises(InputError, match=r"got 439\d+ bytes that were never written, of 4398046511104; allowed"):
        load(path, "nvidia", small_model(), write_vocabulary(tmp_path))


@pytest.mark.parametrize("place", ["", "run"], ids=["the checkpoint", "its run"])
def test_the_sum_of_another_runs_checkpoint_is_not_computed(tmp_path: Path, place: str) -> None:
    path = write_run(tmp_path / "run")
    os.truncate(path / MODEL_FILE, 1 << 42)
    words = "bytes that were never written" if not place else "got no valid checkpoint there"
    with pytest.raises(InputError, match=words):
        load(tmp_path / place if place else path, "bert-trainer", small_model(), write_vocabulary(tmp_path))


def test_holes_are_counted_wherever_they_are(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with path.open("wb") as file:
        for place in (0, 1 << 20, 3 << 20):
            file.seek(place)
            file.write(bytes([1]) * 65536)
        file.truncate(4 << 20)
    assert bytes_in_holes(path, 1 << 40) == (4 << 20) - 3 * 65536
    assert bytes_in_holes(path, 1) == (1 << 20) - 65536
    path.write_bytes(bytes(1 << 20))
    assert bytes_in_holes(path, 1 << 40) == 0
    path.write_bytes(b"")
    assert bytes_in_holes(path, 1 << 40) == 0


@pytest.mark.parametrize(
    ("size", "value", "allowed"),
    [
        ("num_hidden_layers", 10**9, "less than or equal to 256"),
        ("hidden_size", 2 * 10**9, "less than or equal to 16384"),
        ("vocabulary_pad_multiple", 10**12, "less than or equal to 1024"),
        ("max_position_embeddings", 10**15, "less than or equal to 65536"),
    ],
)
def test_sizes_of_a_run_that_no_memory_holds_are_refused(tmp_path: Path, size: str, value: int, allowed: str) -> None:
    path = write_run(tmp_path / "run")
    write_vocabulary(tmp_path)
    document = run_document(tmp_path / "run", tmp_path)
    document["model"] = {**document["model"], **SIZES, "max_position_embeddings": 64, size: value}
    (tmp_path / "run" / "run-config.json").write_text(json.dumps(document))
    with pytest.raises(InputError, match=f"model.{size}: got {value}; Input should be {allowed}"):
        import_weights(path, "bert-trainer", tmp_path / "out")
