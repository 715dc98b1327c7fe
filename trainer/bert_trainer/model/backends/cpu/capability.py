"""Whether this processor can compute as asked, the switches that make it do so, and what it really does."""

from __future__ import annotations

import ctypes
import os
import re
import socket
import sys
import tempfile
from collections.abc import Callable, Collection

import torch
from torch import Tensor

from bert_trainer.errors import UnsupportedPrecision
from bert_trainer.model.backends.cpu import library
from bert_trainer.model.torch_releases import allow_bf16_products
from bert_trainer.system.machine import bound_processors, read_machine
from bert_trainer.system.processor import ALLOCATORS, OPENMP, find_library, keep_freed_memory, read_text

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
_KERNEL = re.compile(r"^onednn_verbose,.*primitive,exec,cpu,(?:matmul|inner_product),([^,]+),", re.MULTILINE)


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


def describe_processor(rank: int, precision: str) -> str:
    """Return what a rank computes with, in one line."""
    maps = read_text("/proc/self/maps")
    words = [
        f"processors {read_machine().describe_processors(bound_processors())}",
        f"{torch.get_num_threads()} threads",
        f"allocator {find_library(maps, ALLOCATORS) or 'system'}",
        f"OpenMP {find_library(maps, OPENMP) or 'none'}",
        f"DNNL_MAX_CPU_ISA {os.environ.get('DNNL_MAX_CPU_ISA', 'not set')}",
        f"{precision} products by {ask_kernel(precision)}",
        f"kernels {describe_kernels(precision)}",
    ]
    return f"rank {rank} on {socket.gethostname()}: {', '.join(words)}"


def describe_kernels(precision: str) -> str:
    """Return which of the trainer's own kernels run at this precision, or why none do."""
    found, reason = library.find()
    if found is not None and precision in ("fp16", "fp64"):
        return f"none in {precision}"
    return found.flavour if found is not None else f"none ({reason})"


def ask_kernel(precision: str) -> str:
    """Return what computes a small product of this precision: oneDNN with its kernel, or PyTorch's other ways."""
    # oneDNN chooses the instructions of a product itself, from the processor, a variable and the types. So it is asked:
    # one small product, with oneDNN's log turned on.
    rows, weights = torch.ones(64, 256), torch.ones(128, 256)

    def multiply() -> Tensor:
        types = {"bf16": torch.bfloat16, "fp16": torch.float16}
        with torch.autocast("cpu", dtype=types.get(precision, torch.bfloat16), enabled=precision in types):
            return torch.nn.functional.linear(rows, weights)

    with torch.no_grad():
        kernel = _KERNEL.search(_listen(multiply))
    return f"oneDNN {kernel[1]}" if kernel else "no oneDNN kernel"


def _listen(action: Callable[[], object]) -> str:
    """Return what oneDNN logs during an action."""
    # It writes to file descriptor 1 from C, past ``sys.stdout``: both have to be flushed, or lines end up on the wrong
    # side of the redirection.
    sys.stdout.flush()
    with tempfile.TemporaryFile() as heard:
        stdout = os.dup(1)
        os.dup2(heard.fileno(), 1)
        try:
            with torch.backends.mkldnn.verbose(torch.backends.mkldnn.VERBOSE_ON):  # type: ignore[no-untyped-call]
                action()
            ctypes.CDLL(None).fflush(None)
        finally:
            os.dup2(stdout, 1)
            os.close(stdout)
        heard.seek(0)
        return heard.read().decode(errors="replace")
