"""Weights of each program, a file of a folder at a time: the input's first line names the file that it replaces."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import torch
from safetensors.torch import load, load_file, save

from bert_trainer.checkpoints.checkpoint import MODEL_FILE, OPTIMIZER_FILE, sha256_of
from bert_trainer.checkpoints.initial_weights import read_source
from bert_trainer.checkpoints.tensorflow_export import write_tensorflow_checkpoint
from bert_trainer.errors import InputError
from claimed_tensors import write_run
from fuzz_reader import Chance, Reader
from mutations import each_changed, mutate_json, mutate_named, mutate_zip, split_named
from signed_manifest import read_manifest, write_manifest
from weight_seeds import mutate_index, spoiled_archives, spoiled_indexes
from weight_sources import nvidia_tensors, small_model, write_huggingface, write_vocabulary

_MANIFEST = "manifest.json"
_MODEL = small_model()


@cache
def _folder(kind: str) -> Path:
    """Return a folder of sound files, made once in a process; it goes with the process's own scratch folder."""
    root = Path(tempfile.mkdtemp(prefix="bert-fuzz-sound-"))
    import atexit

    atexit.register(shutil.rmtree, root, ignore_errors=True)
    if kind == "bert-trainer":
        return write_run(root)
    if kind == "huggingface":
        return write_huggingface(root / "model", _MODEL)
    write_vocabulary(root)
    folder = root / "model"
    folder.mkdir()
    if kind == "huggingface-parts":
        write_huggingface(root / "other", _MODEL)
        shutil.copy(root / "other/config.json", folder)
        part = "model-00001-of-00001.safetensors"
        shutil.copy(root / "other/model.safetensors", folder / part)
        places = dict.fromkeys(load_file(folder / part), part)
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    elif kind == "huggingface-pickled":
        write_huggingface(root / "other", _MODEL)
        shutil.copy(root / "other/config.json", folder)
        torch.save(dict(_MODEL.named_parameters()), folder / "pytorch_model.bin")
    elif kind == "tensorflow":
        write_tensorflow_checkpoint(_MODEL, write_vocabulary(root), folder)
    return folder


@cache
def _sound(kind: str) -> tuple[bytes, ...]:
    """Return an input for each file of a sound folder that a reader opens."""
    files = sorted(path for path in _folder(kind).iterdir() if path.is_file())
    left_out = ("README.md", "special_tokens_map.json", "tokenizer.json", "tokenizer_config.json", "vocab.txt")
    return tuple(path.name.encode() + b"\n" + path.read_bytes() for path in files if path.name not in left_out)


def _files(kind: str) -> Callable[[Path], Iterator[bytes]]:
    def seeds(_: Path) -> Iterator[bytes]:
        yield from _sound(kind)
        for sound in _sound(kind):
            name, content = split_named(sound)
            line = name.encode() + b"\n"
            yield from (line + spoiled for spoiled in _spoiled(name, content))

    return seeds


def _wrapped(tensors: dict[str, torch.Tensor]) -> Iterator[bytes]:
    """Yield a model as DistributedDataParallel saves it, and two encoders in one file."""
    yield save({f"module.{name}": tensor for name, tensor in tensors.items()})
    tables = {name: tensor for name, tensor in tensors.items() if name.endswith("word_embeddings.weight")}
    yield save({f"{side}.{name}": it.clone() for side in ("query", "passage") for name, it in tables.items()})


def _spoiled(name: str, content: bytes) -> Iterator[bytes]:
    """Yield what a file may hold in place of its content, by its name."""
    if name == _MANIFEST:
        yield from each_changed(json.loads(content), _MANIFESTS)
    elif name.endswith(".index.json"):
        index = json.loads(content)
        first, *others = index["weight_map"]
        yield from each_changed(index, {"weight_map": {}, "weight_map ": 1, f"weight_map/{first}": "../a.safetensors"})
        yield from each_changed(
            index, {f"weight_map/{first}": ..., "weight_map/own\x1b": index["weight_map"][others[0]]}
        )
        yield from each_changed(index, {f"weight_map/{first}": 1})
    elif name.endswith(".json"):
        yield from each_changed(json.loads(content), _SETTINGS)
    elif name.endswith(".safetensors"):
        yield from (content[:-9], content[:40], b"\xff" * 8 + content[8:], b"\2\0\0\0\0\0\0\0{}")
        wrong = content.replace(b'"F32"', b'"I64"', 1).replace(b'"F32"', b'"F8_E4M3"', 1)
        yield from (wrong, content.replace(b'"F32"', b'"BF16"', 1), content.replace(b"bert.", b"b\\u1b.", 1))
        yield from _wrapped(load(content))
    elif name.endswith(".bin"):
        yield from spoiled_archives(content)
    elif name.endswith(".index"):
        yield from spoiled_indexes(content)
    elif ".data-" in name:
        yield from (content[:-1], b"\0" + content[1:], b"")
    yield from (b"", b"[]", b"{", b"[" * 3000, b"\xff")


_MANIFESTS = {
    "contract_version": "\x1b",
    "sha256": {},
    "position/step": True,
    "position/own\x1b": 1,
    "position/left_out": {"a": -1},
    "position/moment_steps": 3,
    "position": None,
    "health": [],
    "health ": 1,
    "environment": {"a": 1},
    "run": {},
}
_SETTINGS = {
    "hidden_size": 1,
    "hidden_act": "\x1b",
    "layer_norm_eps": None,
    "position_embedding_type": "relative_key",
    "is_decoder": True,
}


def _read(kind: str, sound: str) -> Callable[[Path], object]:
    def read(path: Path) -> object:
        name, content = split_named(path.read_bytes())
        folder = path.parent / "weights"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(_folder(sound), folder)
        if (folder / name).is_file() and "/" not in name:
            (folder / name).write_bytes(content)
        if kind == "bert-trainer":
            _put_sums_right(folder)
        try:
            return read_source(folder, kind, _MODEL, "weightsAndOptimizer" if kind == "bert-trainer" else "weights")
        except OSError as error:
            # As ``initial_weights.load`` does, which names the path.
            raise InputError(f"{folder}: cannot be read ({error.strerror})", hint="check it") from error

    return read


def _put_sums_right(folder: Path) -> None:
    """Whoever writes a file of a checkpoint writes its checksum as well."""
    with contextlib.suppress(ValueError, TypeError, KeyError, AttributeError, RecursionError):
        manifest = read_manifest(folder)
        manifest["sha256"] = {
            file: sha256_of(folder / file) if file in (MODEL_FILE, OPTIMIZER_FILE) else digest
            for file, digest in manifest["sha256"].items()
        }
        write_manifest(folder, manifest)


def _mutate_safetensors(data: bytes, chance: Chance) -> bytes:
    """Change the header, and its length with it."""
    size = int.from_bytes(data[:8], "little")
    if chance.draw.random() < 0.2 or size > len(data):
        return chance.bytes(data)
    header = mutate_json(data[8 : 8 + size], chance)
    return len(header).to_bytes(8, "little") + header + data[8 + size :]


def _read_nvidia(path: Path) -> object:
    return read_source(path, "nvidia", _MODEL, "weights")


def _nvidia(_: Path) -> Iterator[bytes]:
    content = io.BytesIO()
    torch.save({"model": nvidia_tensors(_MODEL)}, content)
    yield content.getvalue()
    yield from spoiled_archives(content.getvalue())
    content = io.BytesIO()
    torch.save({"model": nvidia_tensors(_MODEL)}, content, _use_new_zipfile_serialization=False)
    yield content.getvalue()
    content = io.BytesIO()
    state = {0: {"exp_avg": torch.zeros(3), "exp_avg_sq": torch.zeros(3), "step": 3}}
    torch.save(
        {"model": nvidia_tensors(_MODEL), "optimizer": {"state": state, "param_groups": [{"params": [0]}]}}, content
    )
    yield content.getvalue()


_BY_NAME = {".json": mutate_json, ".safetensors": _mutate_safetensors, ".bin": mutate_zip, ".index": mutate_index}
_C = "bert_trainer.checkpoints"
_OF_MODERNBERT = ("_check_attention", "_attention_of_layers")
"""The model here is a BERT; ``model-descriptions`` reads the settings that these compare."""
_OF_PICKLES = (
    "read_pickled_tensors",
    "read_pickled",
    "tensors_by_name",
    "scalar",
    "_stated_directory",
    "_check_archive",
)
_OF_PICKLES += ("_check_legacy", "_check_pickles", "_refused_object", "_save_anew")
_OF_OTHERS = ("read_safetensors", "check_header", "scalar")
READERS = (
    Reader(
        name="checkpoints-own",
        read=_read("bert-trainer", "bert-trainer"),
        seeds=_files("bert-trainer"),
        modules=(f"{_C}.checkpoint",),
        leaves_out=(
            *("__post_init__", "current", "differences", "_version", "find_latest_valid", "list_checkpoints"),
            *("save_tensors", "files_stamp", "stage_finished", "folder_name"),
        ),
        mutate=mutate_named(_BY_NAME, lambda: _sound("bert-trainer")),
        max_bytes=1 << 16,
    ),
    Reader(
        name="checkpoints-huggingface",
        read=_read("huggingface", "huggingface"),
        seeds=_files("huggingface"),
        modules=(f"{_C}.huggingface_import",),
        leaves_out=("_read_parts", *_OF_MODERNBERT),
        mutate=mutate_named(_BY_NAME, lambda: _sound("huggingface")),
        max_bytes=1 << 16,
    ),
    Reader(
        name="checkpoints-huggingface-parts",
        read=_read("huggingface", "huggingface-parts"),
        seeds=_files("huggingface-parts"),
        modules=(f"{_C}.huggingface_import", f"{_C}.tensor_files"),
        leaves_out=(*_OF_PICKLES, *_OF_MODERNBERT),
        mutate=mutate_named(_BY_NAME, lambda: _sound("huggingface-parts")),
        max_bytes=1 << 16,
    ),
    Reader(
        name="checkpoints-huggingface-pickled",
        read=_read("huggingface", "huggingface-pickled"),
        seeds=_files("huggingface-pickled"),
        modules=(f"{_C}.tensor_files", f"{_C}.pickle_scan"),
        leaves_out=_OF_OTHERS,
        mutate=mutate_named(_BY_NAME, lambda: _sound("huggingface-pickled")),
        max_bytes=1 << 16,
    ),
    Reader(
        name="checkpoints-tensorflow",
        read=_read("tensorflow", "tensorflow"),
        seeds=_files("tensorflow"),
        modules=(f"{_C}.tensorflow_bundle", f"{_C}.leveldb_table", f"{_C}.protobuf_wire"),
        leaves_out=(
            *("write_bundle", "_pieces", "write_table", "flush", "_append_block", "_encode_block"),
            *("_short_successor", "write_varint", "encode_fields"),
        ),
        max_bytes=1 << 16,
        mutate=mutate_named(_BY_NAME, lambda: _sound("tensorflow")),
    ),
    Reader(
        name="checkpoints-nvidia",
        read=_read_nvidia,
        seeds=_nvidia,
        modules=(f"{_C}.pickle_scan", f"{_C}.tensor_files"),
        leaves_out=(*_OF_OTHERS, "read_pickled_tensors"),
        mutate=mutate_zip,
        file_name="ckpt_1.pt",
        max_bytes=1 << 16,
    ),
)
