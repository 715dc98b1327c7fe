"""What a job says of its training: all that does not depend on where it runs."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from bert_job.checkpoints import CheckpointSpec
from bert_job.health import HealthSpec
from bert_job.model import ModelSpec
from bert_job.optimization import OptimizerSpec, ReductionSpec
from bert_job.reporting import LoggingSpec, ProfileStepsSpec
from bert_job.section import FROM_PROFILE, Section, Seed
from bert_job.stages import Stage
from bert_job.weights import InitialCheckpointSpec


class RunSettings(Section):
    """Settings of training that mean the same in a job and in a run configuration."""

    collectives: Annotated[Literal["horovod", "torch"] | None, FROM_PROFILE] = None
    """The library through which ranks sum gradients. ``horovod``, the default: over the job's MPI, with NCCL between
    GPUs. ``torch``: torch.distributed, with Gloo over TCP and NCCL between GPUs, for images and machines without
    Horovod. Ranks are started in the same way, and a job may resume with the other."""
    seed: Seed = 42
    """Seed of initial weights, sample order and dropout."""
    precision: Literal["fp32", "tf32", "bf32", "avx-fp32", "bf16", "fp16", "fp64"] = "fp32"
    """Numeric precision of training. Default: fp32, which every machine supports; bf16 is the choice on recent GPUs and
    Xeons; tf32 is for NVIDIA GPUs; bf32, for Xeons with AMX, keeps tensors in fp32 and lets oneDNN round the inputs
    of matrix products to bf16; avx-fp32 is fp32 that leaves DNNL_MAX_CPU_ISA alone; fp64 is for exact comparisons,
    not for training."""
    engine: Literal["eager", "ort"] = "eager"
    """What executes training passes. ``eager``: PyTorch, with kernels of this project on processors and compiled
    functions on GPUs. ``ort``: ONNX Runtime's ORTModule, on padded rows; it needs an image of its own
    (``images/README.md``)."""
    activation_checkpointing: bool = False
    """Recompute every layer in the backward pass instead of keeping its activations: about a third more time for a
    fraction of the memory. The result is bitwise identical."""
    model: ModelSpec
    """The model to train."""
    initial_checkpoint: InitialCheckpointSpec | None = None
    """Weights to start from. Empty: random initialization."""
    optimizer: OptimizerSpec = OptimizerSpec()
    """Optimizer and its hyperparameters."""
    reduction: ReductionSpec = ReductionSpec()
    """How gradients are summed over ranks."""
    checkpoint: CheckpointSpec = CheckpointSpec()
    """When checkpoints are written and how many are kept."""
    health: HealthSpec | None = None
    """What to do when training becomes unstable. Empty: non-finite gradients stop the job, spikes are reported."""
    logging: LoggingSpec = LoggingSpec()
    """Progress reports, TensorBoard and Prometheus metrics."""
    profile_steps: ProfileStepsSpec | None = None
    """Steps to profile: a PyTorch profiler trace and a table of times are written. Empty: none, without overhead."""


class TrainingSpec(RunSettings):
    """A job's training: its settings, and its stages as people write them."""

    stages: Annotated[tuple[Stage, ...], Field(min_length=1, max_length=32)]
    """Steps of the job, run in this order: prepare first, evaluate, finetune and export after training."""
