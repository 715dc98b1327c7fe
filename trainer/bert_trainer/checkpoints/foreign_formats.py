"""Which program's weights lie at a path, told by file names alone, so that a wrong ``format`` can be put right."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType

from bert_trainer.errors import InputError

NVIDIA_FILE = re.compile(r"(?:phase(?P<phase>[12])_)?ckpt_(?P<number>\d+)\.pt|model\.ckpt-(?P<start>\d+)\.pt")
"""DeepLearningExamples' ``ckpt_<step>.pt``, MLPerf's ``phase2_ckpt_<samples>.pt`` and its converted start."""
HUGGINGFACE_FILES = (
    "model.safetensors",
    "pytorch_model.bin",
    "model.safetensors.index.json",
    "pytorch_model.bin.index.json",
)
"""Weights in a folder of Hugging Face, in the order in which they are looked for."""
_MANIFEST = "manifest.json"
_TENSORFLOW_INDEX = ".index"
_MAX_NAMES = 10_000
"""Of a folder that are looked at."""


def check_format(path: Path, named: str, allowed: Iterable[str]) -> None:
    """Refuse a path at which lies what another format reads, and nothing of the one named.

    Args:
        path: A file, a folder, or the prefix of TensorFlow's files.
        named: The format that the user wrote.
        allowed: Those that can be written.

    Raises:
        InputError: it is another one; the message says which. Where nothing is recognized, readers say what they miss.
    """
    found = find_formats(path)
    if not found or named in found:
        return
    kind, evidence = next(iter(found.items()))
    advice = f"write format: {kind}" if kind in allowed else f"convert it: {kind} cannot be read here"
    raise InputError(f"{path}: got format: {named}, but `{evidence}` lies there: format: {kind}", hint=advice)


def find_formats(path: Path) -> dict[str, str]:
    """Return the formats of what lies at a path, each with the name of the file that tells."""
    try:
        if path.is_dir():
            names = [entry.name for _, entry in zip(range(_MAX_NAMES), path.iterdir(), strict=False)]
            found = {kind: tell(path, sorted(names)) for kind, tell in _IN_FOLDER.items()}
        else:
            found = {kind: tell(path) for kind, tell in _AS_FILE.items()}
    except OSError:
        return {}  # readers report it, with what they were doing
    return {kind: evidence for kind, evidence in found.items() if evidence}


def newest_nvidia_file(names: Iterable[str]) -> str | None:
    """Return NVIDIA's checkpoint of the highest phase and number, both counted in training's order; None for none."""

    def age(name: str) -> tuple[int, int]:
        match = NVIDIA_FILE.fullmatch(name)
        assert match is not None, "only matching names are compared"
        return int(match["phase"] or 0), int(match["number"] or match["start"])

    return max((name for name in names if NVIDIA_FILE.fullmatch(name)), key=age, default=None)


def _own(path: Path, names: list[str]) -> str | None:
    if _MANIFEST in names:
        return _MANIFEST
    for place in ("checkpoints/*", "*"):
        # A folder of checkpoints holds a handful of them.
        for manifest in path.glob(f"{place}/{_MANIFEST}"):
            return str(manifest.relative_to(path))
    return "checkpoints" if {"checkpoints", "run-config.json"} <= set(names) else None


def _huggingface(_: Path, names: list[str]) -> str | None:
    return next((name for name in HUGGINGFACE_FILES if name in names and _MANIFEST not in names), None)


def _tensorflow(_: Path, names: list[str]) -> str | None:
    return next((name for name in names if name.endswith(_TENSORFLOW_INDEX)), None)


def _nvidia(_: Path, names: list[str]) -> str | None:
    return newest_nvidia_file(names)


def _tensorflow_prefix(path: Path) -> str | None:
    if path.suffix == _TENSORFLOW_INDEX and path.exists():
        return path.name
    index = path.with_name(path.name + _TENSORFLOW_INDEX)
    return index.name if index.exists() else None


def _torch_file(path: Path) -> str | None:
    return path.name if path.suffix in (".pt", ".pth") and path.exists() else None


_IN_FOLDER: Mapping[str, Callable[[Path, list[str]], str | None]] = MappingProxyType(
    {"bert-trainer": _own, "huggingface": _huggingface, "tensorflow": _tensorflow, "nvidia": _nvidia}
)
_AS_FILE: Mapping[str, Callable[[Path], str | None]] = MappingProxyType(
    {"tensorflow": _tensorflow_prefix, "nvidia": _torch_file}
)
