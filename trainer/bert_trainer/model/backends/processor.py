"""What a rank on processors computes with, and what computes its matrix products: told by oneDNN itself."""

from __future__ import annotations

import ctypes
import os
import re
import socket
import sys
import tempfile
from collections.abc import Callable

import torch
from torch import Tensor

from bert_trainer.model.precision import autocast
from bert_trainer.system.machine import bound_processors, read_machine
from bert_trainer.system.processor import ALLOCATORS, OPENMP, find_library, read_text

_KERNEL = re.compile(r"^onednn_verbose,.*primitive,exec,cpu,(?:matmul|inner_product),([^,]+),", re.MULTILINE)


def describe_processor(rank: int, precision: str, kernels: str) -> str:
    """Return what a rank computes with, in one line. kernels: which of the trainer's own, or why there are none."""
    maps = read_text("/proc/self/maps")
    words = [
        f"processors {read_machine().describe_processors(bound_processors())}",
        f"{torch.get_num_threads()} threads",
        f"allocator {find_library(maps, ALLOCATORS) or 'system'}",
        f"OpenMP {find_library(maps, OPENMP) or 'none'}",
        f"DNNL_MAX_CPU_ISA {os.environ.get('DNNL_MAX_CPU_ISA', 'not set')}",
        f"{precision} products by {ask_kernel(precision)}",
        f"kernels {kernels}",
    ]
    return f"rank {rank} on {socket.gethostname()}: {', '.join(words)}"


def ask_kernel(precision: str) -> str:
    """Return what computes a small product of this precision: oneDNN with its kernel, or PyTorch's other ways."""
    # oneDNN chooses the instructions of a product itself, from the processor, a variable and the types. So it is asked:
    # one small product, with oneDNN's log turned on.
    rows, weights = torch.ones(64, 256), torch.ones(128, 256)

    def multiply() -> Tensor:
        with autocast(rows.device, precision):
            return torch.nn.functional.linear(rows, weights)

    with torch.no_grad():
        kernel = _KERNEL.search(listen(multiply))
    return f"oneDNN {kernel[1]}" if kernel else "no oneDNN kernel"


def listen(action: Callable[[], object]) -> str:
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
