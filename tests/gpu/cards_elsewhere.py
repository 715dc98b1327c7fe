"""What torch.compile makes of a function for a card that this machine does not have: Triton kernels, to machine code.

The function is traced with tensors that hold no values, forward and backward, as a run would. The graphs are then moved
to a card that only answers questions, Inductor writes its kernels for that one, and Triton's own assembler makes them
into a cubin. Nothing is run. Reaches into torch 2.7 (``make test-older-torch``); elsewhere names differ.
"""

from __future__ import annotations

import contextlib
import copy
import importlib.util
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch import fx

CUDA = torch.device("cuda", 0)


class Card:
    """A V100 that is not there, as Inductor and Triton ask for it."""

    properties = SimpleNamespace(
        name="Tesla V100-SXM2-16GB",
        major=7,
        minor=0,
        multi_processor_count=80,
        total_memory=16 << 30,
        warp_size=32,
        max_threads_per_multi_processor=2048,
        regs_per_multiprocessor=65536,
        shared_memory_per_block=48 << 10,
        shared_memory_per_block_optin=96 << 10,
        gcnArchName="",
    )
    utils = None

    def get_current_target(self) -> Any:
        """As Triton's driver."""
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", 70, 32)

    def get_current_device(self) -> int:
        """As Triton's driver."""
        return 0


@contextlib.contextmanager
def pretend_card() -> Iterator[list[tuple[str, str]]]:
    """Have torch find the card within the block, and take the kernels that Inductor writes: names and sources."""
    from torch._dynamo.device_interface import CudaInterface
    from torch._inductor.async_compile import AsyncCompile
    from torch._inductor.fx_passes import joint_graph, post_grad
    from torch._subclasses import fake_tensor
    from triton.runtime import driver

    # Once per process, on the processor: with a card in sight they would allocate there.
    joint_graph.lazy_init()
    post_grad.lazy_init()
    written: list[tuple[str, str]] = []

    def write_down(_: object, name: str, source: str, device_str: str = "cuda") -> Callable[..., None]:
        written.append((name, source))
        return lambda *_, **__: None

    def properties(_: object = None) -> SimpleNamespace:
        return Card.properties

    answers: dict[str, Callable[..., object]] = {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "get_device_properties": properties,
        "get_device_capability": lambda _=None: (7, 0),
        "synchronize": lambda _=None: None,
        "set_device": lambda _: None,
        "get_rng_state": lambda _=None: torch.zeros(16, dtype=torch.uint8),
        "set_rng_state": lambda *_: None,
        "_lazy_init": lambda: None,
        "_exchange_device": lambda _: 0,
        "_maybe_exchange_device": lambda _: 0,
    }
    with contextlib.ExitStack() as stack:
        for name, answer in answers.items():
            stack.enter_context(mock.patch.object(torch.cuda, name, answer))
        for owner in (CudaInterface, CudaInterface.Worker):
            stack.enter_context(mock.patch.object(owner, "get_device_properties", staticmethod(properties)))
            stack.enter_context(mock.patch.object(owner, "current_device", staticmethod(lambda: 0)))
        stack.enter_context(mock.patch.object(fake_tensor, "init_gpu_context"))
        stack.enter_context(mock.patch.object(AsyncCompile, "triton", write_down))
        stack.enter_context(mock.patch("torch._inductor.runtime.triton_helpers.set_driver_to_gpu"))
        stack.enter_context(mock.patch("torch._inductor.config.compile_threads", 1))
        stack.callback(driver.set_active, driver.active)
        driver.set_active(Card())
        yield written


def trace_for_card(function: Callable[..., Any], compiled: list[str]) -> Callable[..., Any]:
    """Return a function that, called with fake tensors, has Inductor compile it for the card, its gradient included.

    compiled: gets "forward" and "backward" as they are.
    """
    from functorch.compile import make_boxed_func
    from torch._functorch.aot_autograd import aot_function
    from torch._functorch.partitioners import min_cut_rematerialization_partition
    from torch._inductor.compile_fx import compile_fx_inner
    from torch._inductor.decomposition import select_decomp_table

    def compiler(which: str) -> Callable[[fx.GraphModule, Sequence[Any]], Any]:
        def compile_graph(graph: fx.GraphModule, inputs: Sequence[Any]) -> Any:
            moved, there = move_to_card(copy.deepcopy(graph), inputs)
            mode = next(one.fake_mode for one in there if isinstance(one, torch.Tensor))
            with torch._guards.tracing(torch._guards.TracingContext(mode)), torch.no_grad():
                compile_fx_inner(moved, there, is_backward=which == "backward")
            compiled.append(which)
            return make_boxed_func(graph.forward)

        return compile_graph

    def partition(graph: fx.GraphModule, inputs: Any, **options: Any) -> Any:
        return min_cut_rematerialization_partition(graph, inputs, compiler="inductor", **options)

    return aot_function(  # type: ignore[no-any-return]
        function,
        compiler("forward"),
        compiler("backward"),
        partition_fn=partition,
        decompositions=select_decomp_table(),
    )


def move_to_card(graph: fx.GraphModule, inputs: Sequence[Any]) -> tuple[fx.GraphModule, list[Any]]:
    """Return a traced graph, and its fake inputs, on the card."""
    from torch._subclasses.fake_tensor import FakeTensor

    def move(value: Any) -> Any:
        return CUDA if isinstance(value, torch.device) else value

    mode = next(one.fake_mode for one in inputs if isinstance(one, FakeTensor))
    with mode:
        there = [
            torch.empty_strided(one.size(), one.stride(), dtype=one.dtype, device=CUDA)
            if isinstance(one, FakeTensor)
            else one
            for one in inputs
        ]
    places = [node for node in graph.graph.nodes if node.op == "placeholder"]
    for node, value in zip(places, there, strict=True):
        node.meta["val"] = value
    for node in graph.graph.nodes:
        node.args = fx.node.map_aggregate(node.args, move)
        node.kwargs = fx.node.map_aggregate(node.kwargs, move)
    graph.recompile()
    return graph, there


def assemble(name: str, source: str, folder: Path) -> tuple[str, bytes]:
    """Return the PTX and the cubin of a kernel that Inductor wrote, in its first configuration; within the block."""
    path = folder / f"{name}.py"
    path.write_text(source)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    kernel = getattr(module, name)
    assembled = kernel._precompile_config(kernel.configs[0]).kernel
    return assembled.asm["ptx"], assembled.asm["cubin"]
