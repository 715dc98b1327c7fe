"""V100 (sm_70) without one: what the newest torch that knows it holds for it, and that its compiler takes our step.

Runs with torch 2.7 alone (``make test-older-torch``): newer wheels on PyPI have no code for sm_70.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode

from bert_trainer.model.backends.gpu import functions
from bert_trainer.model.backends.gpu.attention import WAYS, Rows, choose_attention
from bert_trainer.model.backends.gpu.capability import check_build
from bert_trainer.model.backends.gpu.functions import Keys, LayerSettings, LayerWeights, Linear, Norm
from cards_elsewhere import assemble, pretend_card, trace_for_card

ARCHITECTURES = torch._C._cuda_getArchFlags().split() if torch.version.cuda else []
pytestmark = [
    pytest.mark.skipif(not torch.__version__.startswith("2.7."), reason="requires torch 2.7; make test-older-torch"),
    pytest.mark.usefixtures("compiled_anew"),
]
Trace = Callable[[Callable[..., Any]], Callable[..., Any]]

V100, D, HEADS, TOKENS = (7, 0), 1024, 16, 4096


def empty(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(*shape, dtype=dtype)


def parameter(*shape: int) -> Tensor:
    return empty(*shape).requires_grad_()


def linear(rows: int, columns: int) -> Linear:
    return Linear(parameter(rows, columns), parameter(rows))


def norm() -> Norm:
    return Norm(parameter(D), parameter(D))


def keys(rows: int = 40) -> Keys:
    of_rows, of_tokens = [empty(size, dtype=torch.int32) for size in (rows, TOKENS)]
    return Keys(of_rows, of_tokens, of_tokens.clone(), empty(3, dtype=torch.int32), empty(D, dtype=torch.int32))


def run_layer(trace: Trace, dtype: torch.dtype) -> None:
    """Forward and backward of a layer of BERT-large, 4,096 tokens, with every dropout."""
    way = choose_attention(V100, dtype, D // HEADS)
    assert way == "efficient"
    weights = LayerWeights(*[linear(D, D) for _ in range(4)], norm(), linear(4 * D, D), linear(D, 4 * D), norm())
    rows = Rows(empty(41, dtype=torch.int32), empty(TOKENS, dtype=torch.int64), empty(40, 512, dtype=torch.bool))
    settings = LayerSettings(WAYS[way], HEADS, 512, 0.1, 0.1, True, "none", 1e-12)
    x_ND = empty(TOKENS, D, dtype=dtype).requires_grad_()
    layer = trace(lambda x, rows, w, keys: functions.encode_layer(x, rows, w, keys, None, settings))
    layer(x_ND, rows, weights, keys()).float().sum().backward()


def run_embeddings(trace: Trace, dtype: torch.dtype) -> None:
    """Without segments, whose gradient Inductor rewrites with a copy that asks for a real card."""
    embed = trace(lambda summed, norm, keys: functions.embed(summed, None, norm, keys, 0.1, 1e-12, dtype))
    embed((parameter(TOKENS, D), parameter(TOKENS, D)), norm(), keys()).float().sum().backward()


def run_head(trace: Trace, dtype: torch.dtype) -> None:
    x_MD, labels_M = empty(640, D, dtype=dtype).requires_grad_(), empty(640, dtype=torch.int64)
    table = Linear(parameter(30528, D), parameter(30528))
    head = trace(lambda *tensors: functions.masked_lm(*tensors, 30522, "none", 1e-12))
    head(x_MD, labels_M, linear(D, D), norm(), table)[0].backward()


def test_this_torch_holds_code_for_v100() -> None:
    check_build(ARCHITECTURES, V100, "Tesla V100")


def test_it_holds_memory_efficient_attention_for_sm_70_with_dropout_both_ways_in_both_types() -> None:
    library = Path(torch.__file__).with_name("lib") / "libtorch_cuda.so"
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
        found = set(re.findall(rb"fmha_cutlass[FB]_f(?:16|32)_aligned_[0-9a-z_]*?sm70", text))
    for kernel in (b"F_f16", b"F_f32", b"B_f16", b"B_f32"):
        names = [name for name in found if b"fmha_cutlass" + kernel in name]
        assert names, kernel
        # The backward pass has kernels of their own for dropout, the forward pass takes it as a number.
        assert kernel.startswith(b"F") or any(b"dropout" in name for name in names)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("run", "dtype"),
    [
        (run_embeddings, torch.float16),
        (run_layer, torch.float16),
        (run_layer, torch.float32),
        (run_head, torch.float16),
    ],
)
def test_triton_compiles_every_kernel_of_a_step_to_machine_code_of_sm_70(
    run: Callable[..., None], dtype: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    compiled: list[str] = []
    with pretend_card() as kernels, FakeTensorMode():
        run(lambda function: trace_for_card(function, compiled), dtype)
        assert compiled == ["forward", "backward"]
        assert kernels
        for name, source in kernels:
            ptx, cubin = assemble(name, source, tmp_path)
            assert ".target sm_70\n" in ptx, name
            assert cubin.startswith(b"\x7fELF"), name
    print(f"\n{run.__name__} {dtype}: {len(kernels)} kernels")
