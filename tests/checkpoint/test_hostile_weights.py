"""Files that were made to harm are refused by name: nothing in them runs, and they cost no more than their own bytes.

Inputs: pickles with code, archives that unpack to more than themselves, headers and shapes that claim terabytes.
Observed: the message; the peak memory of a process that imports them all.
"""

from __future__ import annotations

import ast
import json
import os
import pickle
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from bert_trainer.checkpoints.checkpoint import (
    MODEL_FILE,
    OPTIMIZER_FILE,
)
from bert_trainer.checkpoints.conversion import import_weights
from bert_trainer.checkpoints.tensor_files import read_pickled_tensors, read_safetensors
from bert_trainer.config.json_files import read_json_file
from bert_trainer.errors import InputError
from claimed_tensors import Claimed, Legacy, write_run
from memory_of_refusals import refuse_all
from weight_sources import load, small_model, write_huggingface, write_vocabulary

MARK = "this-code-has-run"


class Planted:
    """Makes a file in the working directory when it is unpickled."""

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return (exec, (f"open({MARK!r}, 'w')",))


def saved(content: object, *, legacy: bool = False) -> Callable[[Path], None]:
    return lambda path: torch.save(content, path, _use_new_zipfile_serialization=not legacy)


def recompressed(path: Path) -> None:
    """Make an archive of a gigabyte of zeros, compressed."""
    torch.save({"a": torch.zeros(1)}, path)
    with zipfile.ZipFile(path) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in entries.items():
            with archive.open(name, "w") as file:
                file.write(content)
                for _ in range(64 if name.endswith("data/0") else 0):
                    file.write(bytes(1 << 20))


def shared_bytes(path: Path) -> None:
    """Let a thousand entries of an archive's directory stand for the same bytes."""
    torch.save({"a": torch.zeros(1 << 16)}, path)
    content = path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        entries = archive.infolist()
        start, large = archive.start_dir, next(entry for entry in entries if entry.filename.endswith("data/0"))
    with zipfile.ZipFile(path, "a") as archive:
        for number in range(1000):
            copy = zipfile.ZipInfo(f"{large.filename}{number}")
            copy.header_offset, copy.CRC = large.header_offset, large.CRC
            copy.file_size = copy.compress_size = large.file_size
            archive.filelist.append(copy)
            archive.NameToInfo[copy.filename] = copy
        archive._didModify = True
    assert path.stat().st_size < 2 * len(content)
    assert start < len(content)


def claims_elements(path: Path) -> None:
    with path.open("wb") as file:
        for header in (0x1950A86A20F9469CFC6C, 1001, {"protocol_version": 1001, "little_endian": True}):
            pickle.dump(header, file, protocol=2)
        Legacy(file, protocol=2).dump({"a": Claimed((1 << 40,))})
        pickle.dump(["0"], file, protocol=2)
        file.write((1 << 40).to_bytes(8, "little") + bytes(64))


def steps_of_zero(path: Path) -> None:
    """Save 4 bytes that pass for a tensor of a terabyte."""
    torch.save({"a": torch.zeros(1).expand(1 << 20, 1 << 20)}, path)


def header(entry: dict[str, Any], claimed: int | None = None) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        text = json.dumps({"a": entry}).encode()
        path.write_bytes((claimed or len(text)).to_bytes(8, "little") + text + bytes(16))

    return write


def pickled(content: bytes) -> Callable[[Path], None]:
    """Return what writes an archive of ``torch.save`` around these operations of a pickle."""

    def write(path: Path) -> None:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("archive/data.pkl", b"\x80\x02" + content + b".")
            archive.writestr("archive/version", "3\n")

    return write


def maps_in_an_old_file(path: Path) -> None:
    with path.open("wb") as file:
        for header in (0x1950A86A20F9469CFC6C, 1001, {"protocol_version": 1001, "little_endian": True}):
            pickle.dump(header, file, protocol=2)
        file.write(b"\x80\x02" + b"}" * (8 << 20) + b".")


def cut(path: Path) -> None:
    torch.save({"a": torch.zeros(1000)}, path)
    path.write_bytes(path.read_bytes()[:2000])


def sparse_text(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)


TERA = {"dtype": "F32", "shape": [1 << 38], "data_offsets": [0, 1 << 40]}
Case = tuple[str, Callable[[Path], None], str]


def two_directories(path: Path) -> None:
    """Write an archive whose end record points to a directory of large entries, behind which an innocent one stands."""
    torch.save({"a": torch.zeros(3)}, path)
    with zipfile.ZipFile(path) as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in contents.items():
            archive.writestr(name, content, zipfile.ZIP_DEFLATED)
        start = archive.start_dir
    whole = path.read_bytes()
    end = whole.rfind(b"PK\5\6")
    innocent = bytearray(whole[start:end])
    at = 0
    while at < len(innocent):
        innocent[at + 10 : at + 12] = bytes(2)  # stored
        innocent[at + 20 : at + 28] = b"\1\0\0\0\1\0\0\0"
        at += 46 + sum(int.from_bytes(innocent[at + place : at + place + 2], "little") for place in (28, 30, 32))
    path.write_bytes(whole[:end] + innocent + whole[end:])


HOSTILE: dict[str, Case] = {
    "two directories": ("ckpt_1.pt", two_directories, "two directories of entries"),
    "code": ("ckpt_1.pt", saved({"a": Planted()}), "holds a pickled exec, which would run code"),
    "code in an old file": ("pytorch_model.bin", saved({"a": Planted()}, legacy=True), "holds a pickled exec"),
    "code in a plain pickle": (
        "ckpt_1.pt",
        lambda path: path.write_bytes(pickle.dumps(Planted())) and None,
        "cannot be",
    ),
    "a compressed archive": ("ckpt_1.pt", recompressed, "compressed entries; allowed: stored ones"),
    "an archive larger than itself": ("ckpt_1.pt", shared_bytes, "its entries claim more than its"),
    "elements that are not there": ("pytorch_model.bin", claims_elements, "cannot be read"),
    "one element for all": ("ckpt_1.pt", steps_of_zero, r"a: claims the shape \[1048576, 1048576\]"),
    "a sparse tensor": (
        "ckpt_1.pt",
        saved({"a": torch.sparse_coo_tensor(torch.tensor([[0]]), torch.ones(1), (1 << 40,), check_invariants=True)}),
        "it holds a pickled torch._utils._rebuild_sparse_tensor",
    ),
    "a tensor on no device": (
        "ckpt_1.pt",
        saved({"a": torch.zeros(1 << 40, device="meta")}),
        "a pickled torch._utils._reb",
    ),
    "a pickle of maps": ("ckpt_1.pt", pickled(b"}" * (3 << 20)), "it holds more than 300000 operations of pickle"),
    "a large pickle": ("ckpt_1.pt", pickled(b"}" * (8 << 20)), "got 8388611 bytes of pickle; allowed: 4194304"),
    "maps in an old file": ("pytorch_model.bin", maps_in_an_old_file, "it holds more than 300000 operations"),
    "bytes that are not there": (
        "ckpt_1.pt",
        pickled(b"cbuiltins\nbytearray\n\x8a\x06" + (1 << 40).to_bytes(6, "little") + b"\x85R"),
        "it holds a pickled bytearray",
    ),
    "a key that takes years to hash": (
        "ckpt_1.pt",
        pickled(b"}N" + b"r\0\0\0\0j\0\0\0\0\x86" * 60 + b"Ns"),
        "a map with keys that are neither text nor numbers",
    ),
    "copies of a long list": (
        "ckpt_1.pt",
        pickled(b"(" + b"N" * 90_000 + b"tr\0\0\0\0" + b"ctorch\nSize\nj\0\0\0\0\x85R" * 50_000),
        "it holds more than 300000 operations of pickle",
    ),
    "a file of holes": ("model.safetensors", sparse_text, "got 1099511627776 bytes that were never written"),
    "half a file": ("ckpt_1.pt", cut, "cannot be read"),
    "a header of terabytes": ("model.safetensors", header(TERA, 1 << 40), "its header claims 1099511627776 bytes"),
    "a tensor of terabytes": ("model.safetensors", header(TERA), "cannot be read"),
    "offsets into another tensor": (
        "model.safetensors",
        header({"dtype": "F32", "shape": [1 << 38], "data_offsets": [0, 4]}),
        "cannot be read",
    ),
    "a pipe for weights": ("ckpt_1.pt", os.mkfifo, "got a folder, a pipe or a device; allowed: a file"),
    "a pipe for tensors": ("model.safetensors", os.mkfifo, "got a folder, a pipe or a device; allowed: a file"),
    "a pipe for settings": ("config.json", os.mkfifo, "got a folder, a pipe or a device; allowed: a JSON file"),
    "no weights at all": (
        "ckpt_1.pt",
        lambda path: path.write_text("text") and None,
        "no file of torch.save, or a damaged",
    ),
    "settings of a terabyte": ("config.json", sparse_text, "got more than 4 MiB"),
    "settings that never end": ("config.json", lambda path: path.write_text("[" * 100_000) and None, "not a JSON"),
}
READERS: dict[str, Callable[[Path], object]] = {
    ".pt": read_pickled_tensors,
    ".bin": read_pickled_tensors,
    ".safetensors": read_safetensors,
    ".json": read_json_file,
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_file_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    name, write, words = HOSTILE[case]
    monkeypatch.chdir(tmp_path)
    path = tmp_path / name
    write(path)
    with pytest.raises(InputError, match=words) as error:
        READERS[path.suffix](path)
    assert str(error.value).startswith(f"{path}: ")
    assert len(str(error.value)) < 1000
    assert not (tmp_path / MARK).exists()


def test_a_file_s_name_is_quoted_in_what_is_advised(tmp_path: Path) -> None:
    path = tmp_path / "a', print('this') or '.pt"
    torch.save({"a": Planted()}, path)
    with pytest.raises(InputError) as error:
        read_pickled_tensors(path)
    advice = str(error.value).partition("where it was written: ")[2]
    calls = [node for node in ast.walk(ast.parse(advice)) if isinstance(node, ast.Call)]
    assert [ast.unparse(call.func) for call in calls] == ["torch.load", "torch.save"]


def test_so_are_files_of_terabytes_beside_the_weights(tmp_path: Path) -> None:
    vocabulary = write_vocabulary(tmp_path)
    folder = write_huggingface(tmp_path / "model", small_model())
    sparse_text(folder / "vocab.txt")
    with pytest.raises(InputError, match=r"vocab.txt: got more than 16777216 bytes; allowed: a vocabulary"):
        load(folder, "huggingface", small_model(), vocabulary)
    (tmp_path / "run").mkdir()
    sparse_text(tmp_path / "run" / "manifest.json")
    with pytest.raises(InputError, match="manifest.json: not a manifest"):
        load(tmp_path / "run", "bert-trainer", small_model(), vocabulary)


def endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def nested(path: Path) -> None:
    path.write_text("[" * 100_000)


@pytest.mark.parametrize("write", [os.mkfifo, endless, nested])
def test_a_run_configuration_beside_a_checkpoint_may_be_anything(tmp_path: Path, write: Callable[[Path], None]) -> None:
    path = write_run(tmp_path / "run")
    write(tmp_path / "run" / "run-config.json")
    # As one that was copied out of its run.
    load(path, "bert-trainer", small_model(), write_vocabulary(tmp_path))
    with pytest.raises(InputError, match=r"^\S*/run-config.json: (got a folder, a pipe or a dev|not a JSON document)"):
        import_weights(path, "bert-trainer", tmp_path / "out")


@pytest.mark.parametrize("name", ["manifest.json", MODEL_FILE, OPTIMIZER_FILE])
def test_a_pipe_in_a_checkpoint_is_not_waited_for(tmp_path: Path, name: str) -> None:
    path = write_run(tmp_path / "run")
    (path / name).unlink()
    os.mkfifo(path / name)
    with pytest.raises(InputError, match=f"{name}: got a folder, a pipe or a device; allowed: a file"):
        load(path, "bert-trainer", small_model(), write_vocabulary(tmp_path))


@pytest.mark.parametrize("field", ["num_applied", "moment_steps"])
@pytest.mark.parametrize("value", ["x", -5, 1.5, [1], True, 2**53 + 1, 10**30])
def test_updates_that_nobody_can_have_made_are_not_counted(tmp_path: Path, field: str, value: object) -> None:
    path = write_run(tmp_path / "run", **{field: value})
    with pytest.raises(InputError, match=r"manifest.json: not a manifest .* from 0 to 9007199254740992"):
        load(path, "bert-trainer", small_model(), write_vocabulary(tmp_path), what="weightsAndOptimizer")


def test_a_checkpoint_s_updates_are_counted(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", num_applied=7, moment_steps=9)
    _, steps, _, _ = load(path, "bert-trainer", small_model(), write_vocabulary(tmp_path), what="weightsAndOptimizer")
    assert steps == 9


def lines_alone(path: Path) -> None:
    path.write_text("".join(f"{number:x}\n" for number in range(2_000_000)))


def test_all_of_them_together_cost_less_than_100_mb(tmp_path: Path) -> None:
    good = write_huggingface(tmp_path / "good", small_model())
    beside = ["--model-config", str(good / "config.json"), "--vocabulary-file", str(good / "vocab.txt")]
    paths, cases = {}, {}
    for case, (name, write, _) in (HOSTILE | {"lines alone": ("vocab.txt", lines_alone, "")}).items():
        folder = tmp_path / case.replace(" ", "-")
        folder.mkdir()
        if name != "config.json":
            shutil.copy(good / "config.json", folder)
        paths[case] = folder / name
        write(paths[case])
        if name == "vocab.txt":
            cases[case] = [str(good), "--format", "huggingface", "--vocabulary-file", str(paths[case])]
        elif name == "config.json":
            cases[case] = [str(folder), "--format", "huggingface", *beside[2:]]
        elif name == "ckpt_1.pt":
            cases[case] = [str(paths[case]), "--format", "nvidia", *beside]
        else:
            cases[case] = [str(folder), "--format", "huggingface", *beside]
    messages, grown_mb = refuse_all([str(good), "--format", "huggingface", *beside], cases, tmp_path)
    assert [case for case, path in paths.items() if f"{path}: " not in messages[case]] == []
    assert not (tmp_path / MARK).exists()
    assert max(grown_mb.values()) < 100, grown_mb
