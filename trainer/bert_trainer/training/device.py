"""Which device a rank trains on: what the configuration asks for, what the machine has, and what it can compute."""

from __future__ import annotations

import logging
import os
import socket
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import torch

from bert_trainer.errors import DeviceUnusable, InputError, UnsupportedPrecision
from bert_trainer.model.backends.choice import check_engine, choose_backend
from bert_trainer.model.backends.cpu.capability import prepare_processor
from bert_trainer.model.backends.gpu.capability import check_build, check_capability
from bert_trainer.model.backends.gpu.driver import explain_missing_gpu
from bert_trainer.model.encoder import Encoder
from bert_trainer.model.precision import autocast
from bert_trainer.parallel.world import World

logger = logging.getLogger(__name__)


class ComputeSettings(Protocol):
    """What is asked for: the fields of ``RunConfig`` of these names."""

    @property
    def device(self) -> str:
        """``auto``, ``cpu`` or ``cuda``."""

    @property
    def precision(self) -> str:
        """As ``RunConfig.precision``."""

    @property
    def engine(self) -> str:
        """``eager`` or ``ort``."""

    @property
    def gpu_memory_limit_gib(self) -> float | None:
        """None: no limit."""


@dataclass(frozen=True, slots=True)
class Compute:
    """Where a rank computes, how precisely, and by which engine."""

    device: torch.device
    precision: str
    """As ``RunConfig.precision``."""
    engine: str
    """As ``RunConfig.engine``."""

    @classmethod
    def open(cls, config: ComputeSettings, world: World) -> Compute:
        """Choose the device and prepare it.

        Raises:
            InputError: as ``choose_device``; or the engine cannot compute there.
        """
        device = choose_device(config, world)
        check_engine(config.engine, device, config.precision)
        return cls(device, config.precision, config.engine)

    def place(self, model: Encoder) -> None:
        """Move a model to where it is trained, in the type of its parameters, and choose what computes it."""
        model.to(device=self.device, dtype=torch.float64 if self.precision == "fp64" else torch.float32)
        model.use(choose_backend(model, self.engine, self.precision))

    def autocast(self) -> AbstractContextManager[object]:
        """Return the context in which forward passes run."""
        return autocast(self.device, self.precision)


def choose_device(config: ComputeSettings, world: World) -> torch.device:
    """Return this rank's device and set what the precision needs.

    Raises:
        InputError: the configuration asks for what this machine does not have.
    """
    has_gpu = torch.cuda.is_available()
    if config.device == "cuda" and not has_gpu:
        why, next_step = explain_missing_gpu(torch.version.cuda, os.environ)
        raise DeviceUnusable(
            f"device: got 'cuda'; PyTorch finds no GPU on {socket.gethostname()}: {why}", hint=next_step
        )
    if config.device == "cuda":
        check_device_count(torch.cuda.device_count(), -(-world.size // world.num_hosts))
    if config.device == "cpu" or not has_gpu:
        if config.precision == "tf32":
            raise UnsupportedPrecision(
                "precision: got 'tf32', which only NVIDIA GPUs have", hint="use fp32, bf16 or bf32 on a CPU"
            )
        warning = prepare_processor(config.precision)
        if warning is not None and world.rank == 0:
            logger.warning(warning)
        if config.gpu_memory_limit_gib is not None and world.rank == 0:
            logger.warning("gpu_memory_limit_gib has no effect: this run is on CPUs")
        return torch.device("cpu")
    if config.precision in ("bf32", "avx-fp32"):
        raise UnsupportedPrecision(
            f"precision: got {config.precision!r}, which only processors have", hint="use tf32, bf16 or fp32 on a GPU"
        )
    # Ranks share GPUs only where the run does not insist on one for each (device: auto); NCCL refuses that.
    device = torch.device("cuda", world.local_rank % torch.cuda.device_count())
    # Before anything allocates on the current device, which would be 0 on every rank.
    torch.cuda.set_device(device)
    name, capability = torch.cuda.get_device_name(device), torch.cuda.get_device_capability(device)
    warning = check_capability(config.precision, capability, name)
    check_build(torch.cuda.get_arch_list(), capability, name)
    if warning is not None and world.rank == 0:
        logger.warning(warning)
    _limit_memory(config, device)
    torch.backends.cuda.matmul.allow_tf32 = config.precision == "tf32"
    return device


def check_device_count(devices: int, ranks: int) -> None:
    """Refuse a host that has fewer GPUs than ranks, which would share them or train on processors.

    Raises:
        DeviceUnusable: it has.
    """
    if devices < ranks:
        raise DeviceUnusable(
            f"device: got 'cuda' and {devices} CUDA devices for the {ranks} ranks of this machine; allowed: a device "
            "for every rank",
            hint="compare slotsPerWorker with accelerator.perWorker, or with what the claim of "
            "accelerator.resourceClaim asks for (kubectl describe resourceclaim); CUDA_VISIBLE_DEVICES hides devices, "
            "too. Without a cluster use fewer ranks, or device 'auto'",
        )


def _limit_memory(config: ComputeSettings, device: torch.device) -> None:
    """Cap PyTorch's allocator; call it before anything was allocated."""
    if config.gpu_memory_limit_gib is not None:
        total_bytes = torch.cuda.get_device_properties(device).total_memory
        fraction = memory_fraction(config.gpu_memory_limit_gib, total_bytes, str(device))
        torch.cuda.set_per_process_memory_fraction(fraction, device)


def memory_fraction(limit_gib: float, total_bytes: int, device: str) -> float:
    """Return a limit as a share of a GPU's memory.

    Raises:
        InputError: the GPU does not have that much.
    """
    total_gib = total_bytes / 2**30
    if limit_gib > total_gib:
        raise InputError(
            f"gpu_memory_limit_gib: got {limit_gib:g}; allowed: at most the {total_gib:.2f} GiB of {device}",
            hint="lower it, or leave it empty for no limit",
        )
    return limit_gib / total_gib
