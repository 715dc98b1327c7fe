"""The run configuration: one JSON document that tells the trainer everything it has to do.

The operator renders it and freezes it before the first attempt; nothing else configures a run. Nothing under
``config`` imports torch or h5py, so that checking a document costs milliseconds. ``checks`` reads documents.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import Discriminator, Field, Tag

from bert_trainer.config.health import HealthConfig
from bert_trainer.config.optimization import OptimizerConfig
from bert_trainer.config.section import Positive, PositiveFloat, Probability, Section, Seed
from bert_trainer.config.stages import CheckpointTimes, Stage

CONTRACT_VERSION: Final = 1
"""Raised whenever a document of the previous version would mean something else."""


class JobIdentity(Section):
    """The job that this run belongs to; its uid owns the output folder."""

    name: str
    namespace: str
    uid: str


class WorldConfig(Section):
    """Requested ranks and hosts; checked before the first step."""

    ranks: Positive
    """Processes over all hosts, each of which trains on a share of every step's rows."""
    hosts: Positive
    """Distinct machines (or pods) that the ranks must be spread over."""


class ModelConfig(Section):
    """BERT's dimensions, named as in ``bert_config.json`` (Devlin et al. 2019, section 3)."""

    architecture: Literal["bert", "distilbert"]
    """``distilbert``: no segment embeddings, no pooler, masked LM only (Sanh et al. 2019)."""
    hidden_size: Positive
    num_hidden_layers: Positive
    num_attention_heads: Positive
    intermediate_size: Positive
    max_position_embeddings: Positive
    """Longest sequence, in tokens."""
    # The operator does not render it, so it has a default.
    type_vocab_size: Annotated[int, Field(ge=2)] = 2
    """Segments that the table has; pretraining uses two."""
    hidden_act: Literal["gelu", "gelu_new"]
    """``gelu``: by the error function, as published; ``gelu_new``: its tanh approximation."""
    hidden_dropout_prob: Probability
    attention_probs_dropout_prob: Probability
    initializer_range: PositiveFloat
    """Standard deviation of the normal distribution that weights start from; biases start at 0."""
    layer_norm_eps: PositiveFloat
    vocab_size: Positive | None
    """Entries of the vocabulary; empty: the lines of the vocabulary file."""
    vocab_pad_multiple: Positive
    """Embedding rows are rounded up to this multiple, which matrix products like; the extra rows are never
    predicted."""
    objective: Literal["mlm+nsp", "mlm"]
    # The operator does not render it: a run that reads its model from a file freezes it with the sizes.
    config_file: str | None = None
    """The file that the sizes were read from when the run began; empty: the job gave them."""


class ModelFile(Section):
    """A model that a file describes: read when the run starts, and frozen with the run as sizes."""

    config_file: str
    """A ``bert_config.json`` with Google's eleven keys, or a ``config.json`` of Hugging Face."""
    layer_norm_eps: PositiveFloat
    """Where the file does not say it; Google's does not."""
    vocab_pad_multiple: Positive
    """As for a model with sizes."""
    objective: Literal["mlm+nsp", "mlm"] | None
    """Empty: ``mlm`` for distilbert, else ``mlm+nsp``."""


def _kind_of_model(given: Any) -> str:
    if isinstance(given, dict):
        return "file" if given.get("config_file") is not None and "hidden_size" not in given else "sizes"
    return "file" if isinstance(given, ModelFile) else "sizes"


MODEL_KINDS = ("sizes", "file")
"""What pydantic puts into the path of an error inside ``model``; no field of the document."""
Model = Annotated[
    Annotated[ModelConfig, Tag("sizes")] | Annotated[ModelFile, Tag("file")], Discriminator(_kind_of_model)
]


class ReductionConfig(Section):
    """How gradients are summed over ranks."""

    compression: Literal["none", "fp16"]
    """``fp16``: half the bytes; buckets are scaled by powers of two so that nothing overflows."""
    overlap: bool
    """All-reduce buckets while the last backward pass still runs; the sums are the same without."""


class DatasetConfig(Section):
    """Location of shards and vocabulary."""

    folder: str
    """Root that ``bert-data build`` writes and training reads."""
    # ``bert-data`` makes this section without an operator.
    vocabulary_file: str | None = None
    """One token per line; empty: ``vocab.txt`` in ``folder``."""
    # The operator renders it where a job asks for Skip, so it has a default.
    on_unreadable_shard: Literal["Stop", "Skip"] = "Stop"
    """A shard that is damaged, gone or another one than when the run began. Stop: the attempt ends and names it. Skip:
    all ranks go on without it, from the same step on."""


class InitialCheckpoint(Section):
    """Weights for the first pretraining stage, unless the run has a checkpoint to resume from."""

    path: str
    """``bert-trainer``: a checkpoint, or a checkpoints folder or output folder, of which the latest valid one is
    taken. ``huggingface``: a folder with ``config.json`` and ``model.safetensors`` (or ``pytorch_model.bin``), whole or
    in parts. ``tensorflow``: a folder with ``bert_config.json`` and a checkpoint of TensorFlow 1, or the checkpoint's
    prefix in it. ``nvidia``: a ``ckpt_<step>.pt``, or a folder of them, of which the one of the highest number is
    taken."""
    format: Literal["bert-trainer", "huggingface", "tensorflow", "nvidia"]
    load: Literal["weights", "weights_and_optimizer", "none"]
    """``weights``: moments start at 0; heads that the source lacks, at random. ``weights_and_optimizer``: the
    moments too, as between two stages (``optimizer_state``); of ``bert-trainer``, and of ``nvidia`` where they fit the
    weights one by one. ``none``: the path is verified and nothing is loaded."""


class CheckpointConfig(CheckpointTimes):
    """When checkpoints are written and how many are kept. The end of a stage always writes one."""

    delete_after_success: bool
    """Whether all of them are deleted once every stage is done."""
    keep: Positive
    """How many of the latest valid ones are kept; the last one of every finished stage stays as well."""


class LoggingConfig(Section):
    """Logging and metrics."""

    every_steps: Positive
    tensorboard: bool
    prometheus_port: Annotated[int, Field(ge=0, le=65535)] | None
    """Rank 0 serves its metrics here; 0 takes a free port, empty serves none."""
    sample_ledger: bool
    """Debugging: write the sample numbers of every step to ``ledger.jsonl``; otherwise only their hash is
    kept in the metrics."""


class ProfileSteps(Section):
    """A range of optimizer steps, counted from 1 in each stage as the progress reports count them."""

    first: Positive
    """The first steps of a run are slower than the others: memory is allocated, kernels are compiled."""
    last: Positive
    """Traced as well."""
    stage: str | None
    """Name of a pretraining stage; empty: every one."""
    all_ranks: bool
    """Whether every rank writes a trace; otherwise rank 0 alone."""

    def covers(self, stage: str, step: int) -> bool:
        """Return whether a step of a stage is traced."""
        return self.first <= step <= self.last and self.stage in (None, stage)


class RunConfig(Section):
    """The run configuration."""

    # A setting may not change once a run has begun, unless output/run_folder.py names it (_MUTABLE).
    # CONTRACT_VERSION, which Literal does not take; parse_run_config has compared it before, with a message of its own.
    contract_version: Literal[1]
    job: JobIdentity
    output_folder: str
    if_exists: Literal["Fail", "Resume", "New"]
    """What to do where the output folder already holds a run of this job."""
    world: WorldConfig
    seed: Seed
    """Seed of initial weights, sample order and dropout."""
    # The operator renders it for jobs with accelerators only, so it has a default.
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto: GPUs where there are any; cuda: GPUs, one for every rank, or none of the ranks starts. The operator writes
    cuda for jobs with accelerators."""
    # The operator renders it where a job asks for torch, so it has a default.
    collectives: Literal["horovod", "torch"] = "horovod"
    """The library through which ranks sum and share tensors. horovod: started by mpirun or horovodrun. torch:
    torch.distributed (NCCL between GPUs, Gloo), which needs no Horovod; started by torchrun or mpirun. A run may
    resume with the other, as with another number of ranks: from three ranks on the two add in another order."""
    precision: Literal["fp32", "tf32", "bf32", "avx-fp32", "bf16", "fp16", "fp64"]
    """bf32: fp32 tensors whose matrix products oneDNN may round to bf16; avx-fp32: fp32 with no cap on oneDNN's
    instructions. Both are for processors. fp64 is for exact comparisons, not for training."""
    # The operator renders it for engines other than eager only, so it has a default.
    engine: Literal["eager", "ort"] = "eager"
    """What executes training passes. eager: PyTorch; ort: ONNX Runtime's ORTModule, on padded rows."""
    activation_checkpointing: bool
    """Recompute every layer in the backward pass instead of keeping its activations; the same result."""
    model: Model
    """By its sizes, or by a file that describes it."""
    optimizer: OptimizerConfig
    reduction: ReductionConfig
    dataset: DatasetConfig
    initial_checkpoint: InitialCheckpoint | None
    """Empty: weights are initialized at random. A run that resumes from its own checkpoint ignores it."""
    gpu_memory_limit_gib: PositiveFloat | None
    """Most memory, in GiB, that a rank's tensors take of its GPU, at most the GPU's own; empty: no limit. No effect
    on a CPU."""
    profile_steps: ProfileSteps | None
    """Steps that are traced and timed; empty: none, at no cost."""
    stages: Annotated[tuple[Stage, ...], Field(min_length=1)]
    checkpoint: CheckpointConfig
    logging: LoggingConfig
    # The operator renders it only where a job asks for it.
    health: HealthConfig | None = None
    """What is done about training that goes wrong; empty: every field's default."""

    @property
    def sizes(self) -> ModelConfig:
        """The model's sizes, after ``checks.resolve_model`` has read its file."""
        assert isinstance(self.model, ModelConfig), "the model's file is read before anything asks for sizes"
        return self.model

    @property
    def vocabulary_path(self) -> Path:
        """Path of the vocabulary, given or built."""
        return Path(self.dataset.vocabulary_file or Path(self.dataset.folder) / "vocab.txt")
