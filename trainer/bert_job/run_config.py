"""The run configuration: one JSON document that tells the trainer everything it has to do.

The job's training with every default resolved, beside what placement adds: who the job is, on how many ranks and hosts
it runs, and where its folders are. The operator makes it and freezes it before the first attempt; nothing else
configures a run. Nothing here imports torch or h5py, so that checking a document costs milliseconds.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import Discriminator, Field, Tag

from bert_job.checkpoints import CheckpointSpec
from bert_job.model import Architecture, ModelSpec, Objective
from bert_job.optimization import OptimizerName, OptimizerSpec
from bert_job.run_stages import FinetuneOptimizer, PlacedPath, Stage
from bert_job.section import Count, PositiveFloat, Section, Share
from bert_job.training import RunSettings
from bert_job.weights import InitialCheckpointSpec

CONTRACT_VERSION: Final = 2
"""Raised whenever a document of the previous version would mean something else."""


class JobIdentity(Section):
    """The job that this run belongs to; its uid owns the output folder."""

    name: str
    namespace: str
    uid: str


class WorldConfig(Section):
    """Requested ranks and hosts; checked before the first step."""

    ranks: Count
    """Processes over all hosts, each of which trains on a share of every step's rows."""
    hosts: Count
    """Distinct machines (or pods) that the ranks must be spread over."""


class ModelConfig(ModelSpec):
    """An encoder's dimensions, all of them known."""

    preset: None = Field(default=None, exclude=True)
    config_file: PlacedPath | None = None
    """Where the sizes were read from; empty: the job gave them."""
    architecture: Architecture
    hidden_size: Annotated[int, Field(ge=8, le=16384)]
    num_hidden_layers: Annotated[int, Field(ge=1, le=256)]
    num_attention_heads: Annotated[int, Field(ge=1, le=256)]
    intermediate_size: Annotated[int, Field(ge=8, le=65536)]
    max_position_embeddings: Annotated[int, Field(ge=8, le=65536)]
    """Longest sequence that the model takes, in tokens. A file may say more than a job."""
    hidden_dropout: Share = 0.1
    attention_dropout: Share = 0.1
    layer_norm_epsilon: Annotated[float, Field(gt=0, le=1e-2)] = 1e-12
    segment_types: Annotated[int, Field(ge=2, le=1024)] = 2
    """Segments that the table has; pretraining uses two. A file may say more."""
    vocabulary_size: Count | None = None
    """Entries of the vocabulary; empty: the lines of the vocabulary file."""
    objective: Objective


class ModelFile(ModelSpec):
    """A model that a file describes: read when the run starts, and frozen with the run as sizes."""

    preset: None = Field(default=None, exclude=True)
    config_file: PlacedPath


def _kind_of_model(given: Any) -> str:
    if isinstance(given, dict):
        return "file" if given.get("hidden_size") is None and given.get("config_file") is not None else "sizes"
    return "file" if isinstance(given, ModelFile) else "sizes"


MODEL_KINDS = ("sizes", "file")
"""What pydantic puts into the path of an error inside ``model``; no field of the document."""
Model = Annotated[
    Annotated[ModelConfig, Tag("sizes")] | Annotated[ModelFile, Tag("file")], Discriminator(_kind_of_model)
]


class InitialCheckpoint(InitialCheckpointSpec):
    """Weights to start from, where the ranks find them."""

    path: PlacedPath


class OptimizerConfig(OptimizerSpec):
    """The update rule of all pretrain stages."""

    name: OptimizerName


UpdateRule = OptimizerConfig | FinetuneOptimizer
"""What an optimizer is made by, in either kind of stage."""


class DatasetConfig(Section):
    """Location of shards and vocabulary."""

    folder: str
    """Root that ``bert-data build`` writes and training reads."""
    vocabulary_file: str | None = None
    """One token per line; empty: ``vocab.txt`` in ``folder``."""
    on_unreadable_shard: Literal["Skip", "Stop"] = "Stop"
    """A shard that is damaged, gone or another one than when the run began. Stop: the attempt ends and names it. Skip:
    all ranks go on without it, from the same step on."""

    @property
    def vocabulary_path(self) -> str:
        """Path of the vocabulary, given or built."""
        return self.vocabulary_file or f"{self.folder}/vocab.txt"


class CheckpointConfig(CheckpointSpec):
    """When checkpoints are written and how many are kept."""

    delete_after_success: bool
    """Whether all of them are deleted once every stage is done."""


class RunConfig(RunSettings):
    """The run configuration."""

    # A setting may not change once a run has begun, unless output/run_folder.py names it (_MUTABLE).
    # CONTRACT_VERSION, which Literal does not take; its reader has compared it before, with a message of its own.
    contract_version: Literal[2]
    job: JobIdentity
    output_folder: str
    """Folder of the run, absolute or relative to the working directory."""
    if_exists: Literal["Fail", "Resume", "New"]
    """What to do where the output folder already holds a run of this job."""
    world: WorldConfig
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto: GPUs where there are any; cuda: GPUs, one for every rank, or none of the ranks starts. The operator writes
    cuda for jobs with accelerators."""
    gpu_memory_limit_gib: PositiveFloat | None = None
    """Most memory, in GiB, that a rank's tensors take of its GPU, at most the GPU's own; empty: no limit. No effect
    on a CPU."""
    dataset: DatasetConfig
    collectives: Literal["horovod", "torch"] = "horovod"
    model: Model
    optimizer: OptimizerConfig
    initial_checkpoint: InitialCheckpoint | None = None
    stages: Annotated[tuple[Stage, ...], Field(min_length=1)]
    checkpoint: CheckpointConfig

    @property
    def sizes(self) -> ModelConfig:
        """The model's sizes, after its file has been read."""
        assert isinstance(self.model, ModelConfig), "the model's file is read before anything asks for sizes"
        return self.model
