"""What differs between the releases of PyTorch that the trainer runs with: all of it, so that nothing else asks which.

Images and ``make setup`` have the newest. Two older ones are there for a reason each: 2.7.1 is the last on PyPI with
code for V100 (sm_70), 2.4.1 the one that ONNX Runtime's training needs. ``make test-older-torch`` runs the tests with
both. The question is always whether a name is there, not which release it is: builds of vendors number their own way.
"""

from __future__ import annotations

import inspect
import logging
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn


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


def write_onnx_graph(
    module: nn.Module,
    example: tuple[Tensor, ...],
    path: Path,
    input_names: Sequence[str],
    output_names: Sequence[str],
    free: Sequence[str],
) -> None:
    """Write a module as an ONNX file of opset 18, and its weights beside it, in a file of that name with ``.data``.

    The exporter of newer releases follows ``torch.export``; in 2.4 the graph is traced, which takes more memory.

    Args:
        module: What computes; its inputs and outputs are tensors.
        example: Inputs of any size but 1.
        path: The graph's file.
        input_names: Of the inputs, in their order.
        output_names: Of the outputs.
        free: Names of the first dimensions of all inputs, which keep no size.
    """
    export: Any = torch.onnx.export
    named = {"input_names": list(input_names), "output_names": list(output_names), "opset_version": 18}
    dimensions = dict(enumerate(free))
    # torchvision's operators are none of a transformer's.
    registry = logging.getLogger("torch.onnx._internal.exporter._registration")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if "dynamic_shapes" not in inspect.signature(export).parameters:
            import onnx

            axes = {**dict.fromkeys(input_names, dimensions), **dict.fromkeys(output_names, {0: free[0]})}
            # Elsewhere: above 2 GB it writes a file for every weight.
            with tempfile.TemporaryDirectory(dir=path.parent) as folder:
                traced = f"{folder}/{path.name}"
                export(module, example, traced, **named, dynamic_axes=axes, do_constant_folding=False)
                onnx.save_model(onnx.load(traced), path, save_as_external_data=True, location=f"{path.name}.data")
            return
        # A limit: 2.7 finds fault with a size that may be the largest number.
        shape = {number: torch.export.Dim(name, max=2**31) for number, name in dimensions.items()}
        shapes = (shape,) * len(example)
        level = registry.level
        registry.setLevel(logging.ERROR)
        try:
            program = export(module, example, **named, dynamo=True, dynamic_shapes=shapes, verbose=False)
        finally:
            registry.setLevel(level)
        # Of every operator: the line of code that it comes from, with the place where this program is installed.
        for part in (program.model, program.model.graph, *program.model.graph):
            part.metadata_props.clear()
        program.model.ir_version = 8  # what opset 18 came with, so that ONNX Runtime 1.14 reads it
        # Outside the graph: inside, protobuf would hold them three times over while it writes.
        program.save(path, external_data=True)
