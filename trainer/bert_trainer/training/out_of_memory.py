"""Turns PyTorch's out-of-memory error into one that names the current settings and what to change.

The same run would run out again, so it is an input error and not retried. Host memory (kernel, cgroup) is another
matter: there the process is killed without a word.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from bert_job.run_config import RunConfig
from bert_trainer.errors import OutOfDeviceMemory

_SENTENCES = 3


@contextmanager
def device_memory_errors(
    config: RunConfig, *, doing: str, rank: int, micro_batch_size: int | None = None
) -> Iterator[None]:
    """Turn PyTorch's out-of-memory error into one that says what to change.

    Args:
        config: The run's settings.
        doing: What was going on, such as the stage's name.
        rank: This rank.
        micro_batch_size: Sequences of a pass, where there are passes.

    Raises:
        OutOfDeviceMemory: in place of ``torch.OutOfMemoryError``.
    """
    try:
        yield
    except torch.OutOfMemoryError as error:
        details = " ".join(str(error).split())
        raise OutOfDeviceMemory(
            f"{doing}: rank {rank} has no GPU memory left ({first_sentences(details)})",
            hint=suggest_less_memory(config, micro_batch_size=micro_batch_size),
        ) from error


def first_sentences(message: str) -> str:
    """Return the start of PyTorch's message: what was requested and what is free, without its advice."""
    return ". ".join(message.split(". ")[:_SENTENCES]).rstrip(".")


def suggest_less_memory(config: RunConfig, *, micro_batch_size: int | None) -> str:
    """Suggest settings that need less memory, beside the current ones, by the job's field names."""
    proposals = []
    if micro_batch_size is not None and micro_batch_size > 1:
        proposals.append(f"a smaller microBatchSize than {micro_batch_size} (auto finds one)")
    if not config.activation_checkpointing:
        proposals.append("activationCheckpointing: true")
    partitioning = config.optimizer.partitioning
    if partitioning == "none" and config.world.ranks > 1:
        proposals.append("optimizer.partitioning: zero1")
    if config.gpu_memory_limit_gib is not None:
        proposals.append(f"a higher gpuMemoryLimitGiB than {config.gpu_memory_limit_gib:g}")
    if config.precision in ("fp32", "tf32", "fp64"):
        proposals.append(f"precision: bf16 instead of {config.precision}")
    proposals.append("a GPU with more memory, that no other process uses")
    present = {
        "microBatchSize": micro_batch_size,
        "optimizer.partitioning": partitioning,
        "activationCheckpointing": str(config.activation_checkpointing).lower(),
        "precision": config.precision,
    }
    now = ", ".join(f"{name} {value}" for name, value in present.items() if value is not None)
    return f"try {', or '.join(proposals)}; now: {now}"
