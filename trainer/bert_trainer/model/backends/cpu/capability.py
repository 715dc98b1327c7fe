"""Whether this processor can compute as asked, and the switches that make it do so."""

from __future__ import annotations

from collections.abc import Collection

import torch

from bert_trainer.errors import UnsupportedPrecision
from bert_trainer.model.backends.cpu import library
from bert_trainer.model.torch_releases import allow_bf16_products
from bert_trainer.system.processor import keep_freed_memory

_NEEDED: dict[str, tuple[tuple[str, ...], str]] = {
    # On a processor with AVX-512 BF16 alone oneDNN 3.13 computes fp32 products in fp32, whatever is allowed to it.
    "bf32": (("amx_bf16",), "fp32, to which it would fall back, or bf16"),
    "avx-fp32": (("avx2", "avx512f"), "fp32"),
}
"""Flags of which the processor must have one, and what to use instead."""
_FAST: dict[str, tuple[str, ...]] = {
    "bf16": ("amx_bf16", "avx512_bf16", "bf16"),
    "fp16": ("amx_fp16", "avx512_fp16", "asimdhp"),
}
"""Flags without which a precision works, but slowly."""


def check_flags(precision: str, flags: Collection[str]) -> str | None:
    """Return a warning where the precision works without the instructions that make it fast, else None.

    Raises:
        UnsupportedPrecision: it would silently be another one.
    """
    if precision in _NEEDED:
        needed, instead = _NEEDED[precision]
        if not any(flag in flags for flag in needed):
            raise UnsupportedPrecision(
                f"precision: got {precision!r}; allowed: {instead}, since this processor has no {' or '.join(needed)}",
                hint="change spec.precision, or choose other nodes with spec.scheduling.nodeSelector",
            )
    fast = _FAST.get(precision, ())
    if fast and not any(flag in flags for flag in fast):
        return f"precision {precision}: this processor has none of {', '.join(fast)} and is slower than with fp32"
    return None


def prepare_processor(precision: str) -> str | None:
    """Make matrix products of fp32 tensors what the precision says; returns a warning or None.

    Raises:
        UnsupportedPrecision: this processor, or this torch, cannot.
    """
    warning = check_flags(precision, library.processor_flags())
    if not allow_bf16_products(precision == "bf32"):
        raise UnsupportedPrecision(
            f"precision: got 'bf32'; allowed: bf16 or fp32, since torch {torch.__version__} has no bf32; 2.9 has",
            hint="change spec.precision, or use an image with a newer torch",
        )
    keep_freed_memory()
    return warning
