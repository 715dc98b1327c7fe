"""What differs between the releases of PyTorch that the trainer runs with: all of it, so that nothing else asks which.

Images and ``make setup`` have the newest. Two older ones are there for a reason each: 2.7.1 is the last on PyPI with
code for V100 (sm_70), 2.4.1 the one that ONNX Runtime's training needs. ``make test-older-torch`` runs the tests with
both. The question is always whether a name is there, not which release it is: builds of vendors number their own way.
"""

from __future__ import annotations

import torch


def allow_bf16_products(allowed: bool) -> bool:
    """Have oneDNN compute products of fp32 tensors in bf16, or keep it from that; returns whether that could be said.

    The setting came with 2.9. Releases before it compute in fp32 unless they are told otherwise for all devices.
    """
    matmul = getattr(torch.backends.mkldnn, "matmul", None)
    if matmul is None:
        return not allowed
    matmul.fp32_precision = "bf16" if allowed else "ieee"
    return True


def raise_recompile_limit(limit: int) -> None:
    """Let Dynamo make up to ``limit`` graphs of a function, if its own limit is lower."""
    import torch._dynamo.config as dynamo

    # Its name in 2.4; in 2.7 either name changes the other's value.
    name = "recompile_limit" if hasattr(dynamo, "recompile_limit") else "cache_size_limit"
    setattr(dynamo, name, max(getattr(dynamo, name), limit))
