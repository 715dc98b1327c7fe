"""The stages of a run: the job's sections with every default resolved.

A class here says only what it knows beyond the section that it inherits from: its kind and name, and narrower types of
fields that stand for something else where a job leaves them empty. Numbers that count rows are *global*, over all
ranks, unless their name says otherwise.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from bert_job.checkpoints import StageCheckpointSpec
from bert_job.dataset_names import SamplesOf
from bert_job.evaluation import EvaluateSpec, EvaluationSpec
from bert_job.finetuning import FinetuneOptimizerSpec, FinetuneSpec, Label, TableColumnsSpec, TableFormat, TaskDataSpec
from bert_job.optimization import Partitioning
from bert_job.preparation import CorpusSpec, PrepareSpec
from bert_job.pretraining import OptimizerState, PretrainSpec
from bert_job.section import MAX_UNKNOWN_SHARE, Count, Name, Rows, RowsOrAuto, Section, Tokens
from bert_job.weights import ExportSpec

RunSeed = Annotated[int, Field(ge=0, lt=2**63)]
PlacedPath = Annotated[str, Field(min_length=1, max_length=4096)]
"""A path of a job below the folder that it is relative to; Linux opens none that is longer."""


class CheckpointTimes(StageCheckpointSpec):
    """Intervals of periodic checkpoints."""

    min_samples_to_start: Annotated[int, Field(ge=0)]
    periodic: bool


class Evaluation(EvaluationSpec):
    """Accuracy while a stage trains."""

    micro_batch_size: Rows
    max_predictions_per_sequence: Count
    shards: PlacedPath | None = None


class Corpus(CorpusSpec):
    """One corpus, where the ranks find it."""

    path: PlacedPath
    checksums: PlacedPath | None = None


class PreparedLength(Section):
    """A sequence length for which shards are built, though no stage of the run reads them."""

    sequence_length: Tokens
    """Tokens, [CLS] and both [SEP] included."""
    max_predictions_per_sequence: Count


class PrepareStage(PrepareSpec):
    """Text to a vocabulary and shards, by ``bert-data build``."""

    kind: Literal["prepare"] = "prepare"
    name: Name = "prepare"
    text: PlacedPath | None = None
    corpora: tuple[Corpus, ...] = ()
    """Read one after the other; empty where ``text`` is set."""
    vocabulary_size: Annotated[int, Field(ge=64, le=1_000_000)] = 30522
    max_unknown_share: Annotated[float, Field(gt=0, le=1)] = MAX_UNKNOWN_SHARE
    samples: SamplesOf = "pairs"
    dupe_factor: Annotated[int, Field(ge=1, le=1000)] = 5
    # Of a job alone: who reads ``lengths`` needs no other, and any number of workers makes the same bytes. Left out of
    # what a dataset was built with.
    sequence_lengths: None = Field(default=None, exclude=True)
    max_predictions_per_sequence: None = Field(default=None, exclude=True)
    workers: Literal[1] = Field(default=1, exclude=True)
    lengths: tuple[PreparedLength, ...] = ()
    """Lengths to make in addition to those that the run's stages read. Empty in a run without such stages: those of the
    recipe, or 128 and 512 tokens as published."""

    @property
    def all_corpora(self) -> tuple[Corpus, ...]:
        """The corpora, given in either form."""
        return self.corpora if self.text is None else (Corpus(path=self.text),)

    @property
    def source(self) -> str:
        """Description of the corpora for messages."""
        return ", ".join(corpus.path for corpus in self.all_corpora)


class PretrainStage(PretrainSpec):
    """One phase of pretraining at one sequence length."""

    kind: Literal["pretrain"] = "pretrain"
    name: Name
    max_predictions_per_sequence: Count
    micro_batch_size: RowsOrAuto
    optimizer_state: OptimizerState
    masked_lm_probability: Annotated[float, Field(gt=0, lt=1)]
    whole_word_masking: bool
    shards: PlacedPath | None = None
    evaluation: Evaluation | None = None
    checkpoint: CheckpointTimes | None = None


class EvaluateStage(EvaluateSpec):
    """Masked-LM and next-sentence accuracy on held-out documents, before and after training."""

    kind: Literal["evaluate"] = "evaluate"
    name: Name
    sequence_length: Tokens
    max_predictions_per_sequence: Count
    micro_batch_size: Rows
    shards: PlacedPath | None = None


class TaskData(TaskDataSpec):
    """Files of a task: a folder of official files, or your own files."""

    folder: PlacedPath | None = None
    train: PlacedPath | None = None
    validation: PlacedPath | None = None
    test: PlacedPath | None = None
    format: TableFormat = "auto"
    columns: TableColumnsSpec = TableColumnsSpec()
    labels: tuple[Label, ...] = ()


class FinetuneOptimizer(FinetuneOptimizerSpec):
    """The optimizer of a finetune stage."""

    partitioning: Partitioning
    """As for pretraining; none where every rank has a model of its own."""


class FinetuneStage(FinetuneSpec):
    """Fine-tuning on one task: a run per seed, of which the best evaluation's weights are kept."""

    kind: Literal["finetune"] = "finetune"
    name: Name
    max_unknown_share: Annotated[float, Field(gt=0, le=1)] = MAX_UNKNOWN_SHARE
    sequence_length: Tokens
    micro_batch_size: Rows
    data: TaskData
    optimizer: FinetuneOptimizer
    run_seeds: Annotated[tuple[RunSeed, ...], Field(min_length=1, max_length=100)]
    """The seeds of the runs, one after the other. Without synchronizeGradients rank r trains with each of them plus r
    times their number."""


class ExportStage(ExportSpec):
    """The trained model in a format that other programs load."""

    kind: Literal["export"] = "export"
    name: Name


Stage = Annotated[
    PrepareStage | PretrainStage | EvaluateStage | FinetuneStage | ExportStage, Field(discriminator="kind")
]
