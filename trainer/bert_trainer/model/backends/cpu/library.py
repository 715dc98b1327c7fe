"""The loaded kernels: which flavour, and how they are called."""

from __future__ import annotations

import ctypes
import os
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bert_trainer.model.backends.cpu import build
from bert_trainer.system.processor import read_flags, read_text

SWITCH = "BERT_TRAINER_KERNELS"
"""Environment variable: ``off`` runs the plain operations of torch in their place."""

_CPUINFO = "/proc/cpuinfo"
_POINTER, _FLOAT, _INT, _LONG = ctypes.c_void_p, ctypes.c_float, ctypes.c_int, ctypes.c_long
# As the C++ declares them; a mistake here is no error but wrong memory.
_DROPOUT = [_POINTER, ctypes.c_int32, _FLOAT]
_SIGNATURES: dict[str, list[Any]] = {
    "drop_add_norm": [*[_POINTER] * 5, *_DROPOUT, _FLOAT, *[_POINTER] * 4, _LONG, _LONG, _INT],
    "drop_add_norm_gradient": [*[_POINTER] * 5, *_DROPOUT, *[_POINTER] * 5, _LONG, _LONG, _INT],
    "add_norm": [*[_POINTER] * 3, *_DROPOUT, _FLOAT, *[_POINTER] * 4, _LONG, _LONG, _INT],
    "add_norm_gradient": [*[_POINTER] * 6, *_DROPOUT, *[_POINTER] * 3, _LONG, _LONG, _INT],
    "norm": [_POINTER, _POINTER, _FLOAT, *[_POINTER] * 3, _LONG, _LONG, _INT],
    "norm_gradient": [*[_POINTER] * 7, _LONG, _LONG, _INT],
    "drop": [_POINTER, *_DROPOUT, _POINTER, _LONG, _LONG, _INT],
    "bias_gelu": [*[_POINTER] * 3, _LONG, _LONG, _INT, _INT],
    "bias_gelu_gradient": [*[_POINTER] * 5, _LONG, _LONG, _INT, _INT],
    "gated_gelu": [_POINTER, _POINTER, _LONG, _LONG, _INT, _INT],
    "gated_gelu_gradient": [*[_POINTER] * 3, _LONG, _LONG, _INT, _INT],
    "rotate": [*[_POINTER] * 4, _FLOAT, *[_LONG] * 4, _INT],
    "add_bias": [_POINTER, _POINTER, _LONG, _LONG, _INT],
    "column_sums": [_POINTER, _POINTER, _LONG, _LONG, _INT],
    "cross_entropy": [*[_POINTER] * 4, _LONG, _LONG, _LONG, _INT, _INT],
    "attention": [*[_POINTER] * 4, *_DROPOUT, _FLOAT, _POINTER, _POINTER, *[_LONG] * 6, _INT],
    "attention_gradient": [*[_POINTER] * 7, *_DROPOUT, _FLOAT, *[_POINTER] * 3, *[_LONG] * 6, _INT],
}
_FP32_SIGNATURES: dict[str, list[Any]] = {
    "gradients_to_update": [*[_POINTER] * 4, *[_FLOAT] * 8, _POINTER, *[_LONG] * 3, _INT],
    "apply_update": [*[_POINTER] * 3, _FLOAT, *[_LONG] * 3, _INT],
    "add_rows": [*[_POINTER] * 5, _LONG, _LONG, _INT],
}
"""Of kernels for fp32 alone."""
_BF16_SIGNATURES: dict[str, list[Any]] = {"add_to": [_POINTER, _POINTER, _LONG, _INT]}
"""Of kernels for bf16 alone."""
_SUFFIXES = {torch.float32: "f32", torch.bfloat16: "bf16"}


class Library:
    """One flavour's functions."""

    def __init__(self, path: Path, flavour: str) -> None:
        """Load it.

        Raises:
            OSError: it cannot be loaded.
        """
        self.flavour = flavour
        loaded = ctypes.CDLL(str(path))
        self._functions = {}
        signatures = [(name, suffix, _SIGNATURES[name]) for name in _SIGNATURES for suffix in _SUFFIXES.values()]
        for dtype, some in ((torch.float32, _FP32_SIGNATURES), (torch.bfloat16, _BF16_SIGNATURES)):
            signatures += [(name, _SUFFIXES[dtype], arguments) for name, arguments in some.items()]
        for name, suffix, arguments in signatures:
            function = getattr(loaded, f"{name}_{suffix}")
            function.argtypes, function.restype = arguments, None
            self._functions[name, suffix] = function

    def call(self, name: str, dtype: torch.dtype, *arguments: Tensor | float | None) -> None:
        """Run a kernel on torch's threads. dtype: fp32 or bf16. Tensors are contiguous, or their row is said."""
        # Addresses alone: a kernel knows neither shape nor type. Its OpenMP threads are torch's own, since both are
        # linked to the same runtime.
        words = [value.data_ptr() if isinstance(value, Tensor) else value for value in arguments]
        self._functions[name, _SUFFIXES[dtype]](*words, torch.get_num_threads())


@cache
def find() -> tuple[Library | None, str]:
    """Return the best library that this processor runs, or None and why there is none."""
    if os.environ.get(SWITCH) == "off":
        return None, f"{SWITCH}=off"
    flags = processor_flags()
    for flavour, (_, needed) in build.flavours().items():
        if not needed <= flags:
            continue
        try:
            return Library(build.library_path(flavour), flavour), ""
        except (OSError, AttributeError):
            remedy = "python -m bert_trainer.model.backends.cpu.build, which needs a C++ compiler"
            return None, f"the {flavour} library is not built: run {remedy}"
    return None, f"this processor supports none of {', '.join(build.flavours())}"


def identity() -> str:
    """Return what tells these kernels from others, ``none`` without any: sums may round in another order."""
    found, _ = find()
    if found is None:
        return "none"
    products = "-onednn" if prefers_onednn() else ""
    return build.library_path(found.flavour).stem.removeprefix("kernels-") + products


def usable(device: torch.device, dtype: torch.dtype) -> Library | None:
    """Return the kernels where they can run on tensors of this device and type."""
    return find()[0] if device.type == "cpu" and dtype in _SUFFIXES else None


@cache
def processor_flags() -> frozenset[str]:
    """Return this processor's instruction sets, as /proc/cpuinfo names them, and amx_fp16."""
    # Linux knows AMX FP16 and leaves it out of /proc/cpuinfo; torch, from 2.11 on, asks the processor itself.
    asked: dict[str, object] = getattr(torch.cpu, "get_capabilities", dict)()
    hidden = {"amx_fp16"} if asked.get("amx_fp16") else set()
    return read_flags(read_text(_CPUINFO)) | hidden


@cache
def prefers_onednn() -> bool:
    """Return whether fp32 products are computed by oneDNN instead of what torch takes for them, MKL."""
    # MKL uses half of an AMD processor's width. By the maker's name and not by a measurement, which could differ
    # between ranks and so between their sums.
    return "AuthenticAMD" in read_text(_CPUINFO) and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
