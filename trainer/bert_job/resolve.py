"""What a field that a job leaves empty stands for in a run. Pure: what depends on files stays open.

A default may depend on other fields, never on the number of ranks: a job may resume on another one, and the size of
micro-batches, for instance, decides the order of floating-point sums.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bert_job import optimizers, recipes
from bert_job.checkpoints import INTERVALS, CheckpointSpec, StageCheckpointSpec
from bert_job.evaluation import EvaluateSpec, EvaluationSpec
from bert_job.finetuning import FinetuneSpec, resolve_length
from bert_job.model import ModelSpec, resolve_objective, resolve_positions, resolve_settings, resolve_size
from bert_job.preparation import PrepareSpec
from bert_job.pretraining import PretrainSpec
from bert_job.run_config import (
    CONTRACT_VERSION,
    CheckpointConfig,
    InitialCheckpoint,
    ModelConfig,
    ModelFile,
    OptimizerConfig,
    RunConfig,
)
from bert_job.run_stages import (
    CheckpointTimes,
    Corpus,
    EvaluateStage,
    Evaluation,
    ExportStage,
    FinetuneOptimizer,
    FinetuneStage,
    PreparedLength,
    PrepareStage,
    PretrainStage,
    Stage,
    TaskData,
)
from bert_job.section import Section
from bert_job.training import RunSettings, TrainingSpec

TOKENS_PER_PASS = 4096
"""Default size of a micro-batch: 32 sequences of 128 tokens, 8 of 512."""
PUBLISHED_VOCABULARY_SIZE = 30522
PUBLISHED_MASKED_LM_PROBABILITY = 0.15
DEFAULT_CHECKPOINT_SECONDS = 600

# Every optimizer needs an entry. Where bias correction begins anew over warm moments, AdamW's updates are 0.32 of their
# size at step 1 and 0.15 at step 10. LAMB's trust ratio makes up for that; it keeps NVIDIA's rule.
_OPTIMIZER_STATES = {"lamb": "keep", "adamw": "keepWithStepCount"}

Place = Callable[[str | None], str | None]
"""Where a path of a job is for the ranks; None stays None."""


def resolve_run(
    spec: TrainingSpec,
    place: Place,
    *,
    num_processes: int | None = None,
    delete_checkpoints: bool = False,
    **placed: Any,
) -> RunConfig:
    """Return the run configuration of a valid training.

    Args:
        spec: The job's, or what stands for one.
        place: Resolves relative data paths.
        num_processes: As for ``resolve_stages``.
        delete_checkpoints: Whether a run that is done keeps none.
        placed: The other fields of the configuration: where the run is; and those that are known better.
    """
    spec = optimizers.name_optimizer(spec)
    start = spec.initial_checkpoint
    settings = {name: getattr(spec, name) for name in RunSettings.model_fields}
    model = placed.get("model") or resolve_model(spec.model, place)
    resolved = {
        "contract_version": CONTRACT_VERSION,
        "collectives": spec.collectives or "horovod",
        "model": model,
        "optimizer": OptimizerConfig(**dict(spec.optimizer)),
        "initial_checkpoint": None if start is None else InitialCheckpoint(**_with(start, {"path": place(start.path)})),
        "stages": resolve_stages(
            spec,
            place,
            model.max_position_embeddings or resolve_positions(spec.model),
            num_processes=num_processes,
        ),
        "checkpoint": resolve_checkpoint(spec.checkpoint, delete_after_success=delete_checkpoints),
    }
    return RunConfig(**{**settings, **resolved, **placed})


def resolve_stages(
    spec: TrainingSpec, place: Place, positions: int, *, num_processes: int | None = None
) -> tuple[Stage, ...]:
    """Return the stages of a valid job.

    Args:
        spec: The job's.
        place: Resolves relative data paths.
        positions: Of the model; of one in a file the default, which is no less than the lengths that depend on it.
        num_processes: Per worker that prepares data; None: one per core.
    """
    found: list[Stage] = []
    trained: PretrainSpec | None = None
    for stage in spec.stages:
        trained = stage.pretrain or trained
        if stage.prepare is not None:
            found.append(_prepare(stage.name, stage.prepare, spec, place, num_processes))
        elif stage.pretrain is not None:
            found.append(_pretrain(stage.name, stage.pretrain, spec, place))
        elif stage.evaluate is not None:
            assert trained is not None, "a valid job trains before it evaluates"
            found.append(_evaluate(stage.name, stage.evaluate, trained, spec, place))
        elif stage.finetune is not None:
            found.append(_finetune(stage.name, stage.finetune, spec, place, positions))
        else:
            assert stage.export is not None, "a valid stage has a kind"
            found.append(ExportStage(name=stage.name, **_fields(stage.export)))
    return tuple(found)


def resolve_model(model: ModelSpec, place: Place) -> ModelConfig | ModelFile:
    """Return the model by its sizes, or by a file that the trainer reads when the run starts."""
    if model.config_file is not None:
        return ModelFile(**{**_fields(model), "config_file": place(model.config_file)})
    size = resolve_size(model)
    return ModelConfig(
        **{
            **_fields(model),
            **resolve_settings(model),
            "preset": None,
            "architecture": size.architecture,
            "hidden_size": size.hidden_size,
            "num_hidden_layers": size.num_hidden_layers,
            "num_attention_heads": size.num_attention_heads,
            "intermediate_size": size.intermediate_size,
            "objective": resolve_objective(model),
        }
    )


def resolve_checkpoint(checkpoint: CheckpointSpec, *, delete_after_success: bool = False) -> CheckpointConfig:
    """Return when checkpoints are written: every ten minutes where no interval is given."""
    given = _fields(checkpoint)
    if all(given[interval] is None for interval in INTERVALS):
        given["every_seconds"] = DEFAULT_CHECKPOINT_SECONDS
    return CheckpointConfig(**given, delete_after_success=delete_after_success)


def default_micro_batch_size(sequence_length: int) -> int:
    """Return the default sequences of a micro-batch, which has 4,096 tokens."""
    return max(1, TOKENS_PER_PASS // sequence_length)


def _fields(section: Section) -> dict[str, Any]:
    """Return the fields of a section by name, with the sections below it as they are."""
    return {name: getattr(section, name) for name in type(section).model_fields}


def _prepare(name: str, prepare: PrepareSpec, spec: TrainingSpec, place: Place, processes: int | None) -> PrepareStage:
    corpora = [
        Corpus(**_with(corpus, {"path": place(corpus.path), "checksums": place(corpus.checksums)}))
        for corpus in prepare.corpora or ()
    ]
    lengths = [
        PreparedLength(sequence_length=length, max_predictions_per_sequence=predictions)
        for length, predictions in recipes.list_lengths(spec)
    ]
    # What a recipe says of files, the trainer knows as well, and keeps those of a dataset that it finds.
    changed = {
        "dupe_factor": recipes.resolve_dupe_factor(prepare),
        "num_processes": processes,
        "text": place(prepare.text),
        "corpora": tuple(corpora),
        "vocabulary_size": prepare.vocabulary_size or PUBLISHED_VOCABULARY_SIZE,
        "lengths": tuple(lengths),
        "sequence_lengths": None,
        "max_predictions_per_sequence": None,
        "workers": 1,
    }
    return PrepareStage(name=name, **_with(prepare, changed))


def _pretrain(name: str, pretrain: PretrainSpec, spec: TrainingSpec, place: Place) -> PretrainStage:
    length = pretrain.sequence_length
    micro_batch_size = min(default_micro_batch_size(length), pretrain.global_batch_size)
    own, checkpoint = pretrain.evaluation, pretrain.checkpoint
    changed = {
        "max_predictions_per_sequence": pretrain.max_predictions_per_sequence or _predictions(pretrain, length, spec),
        "micro_batch_size": pretrain.micro_batch_size or micro_batch_size,
        "optimizer_state": pretrain.optimizer_state or _OPTIMIZER_STATES[optimizers.optimizer_of(spec)],
        "masked_lm_probability": pretrain.masked_lm_probability or PUBLISHED_MASKED_LM_PROBABILITY,
        "whole_word_masking": pretrain.whole_word_masking or False,
        "shards": place(pretrain.shards),
        "evaluation": None if own is None else _evaluation(own, pretrain, spec, place),
        "checkpoint": None if checkpoint is None else resolve_stage_checkpoint(checkpoint, spec),
    }
    return PretrainStage(name=name, **_with(pretrain, changed))


def _evaluation(own: EvaluationSpec, trained: PretrainSpec, spec: TrainingSpec, place: Place) -> Evaluation:
    length = trained.sequence_length
    predictions = own.max_predictions_per_sequence or trained.max_predictions_per_sequence
    # A range without a folder is one of the shards that the stage trains on.
    shards = own.shards or (None if own.data_range is None else trained.shards)
    changed = {
        "micro_batch_size": own.micro_batch_size or default_micro_batch_size(length),
        "max_predictions_per_sequence": predictions or _predictions(trained, length, spec),
        "shards": place(shards),
    }
    return Evaluation(**_with(own, changed))


def _evaluate(
    name: str, evaluate: EvaluateSpec, trained: PretrainSpec, spec: TrainingSpec, place: Place
) -> EvaluateStage:
    length = evaluate.sequence_length or trained.sequence_length
    predictions = evaluate.max_predictions_per_sequence
    if predictions is None and length == trained.sequence_length:
        predictions = trained.max_predictions_per_sequence or _predictions(trained, length, spec)
    changed = {
        "sequence_length": length,
        "max_predictions_per_sequence": predictions or _predictions(evaluate, length, spec),
        "micro_batch_size": evaluate.micro_batch_size or default_micro_batch_size(length),
        "shards": place(evaluate.shards),
    }
    return EvaluateStage(name=name, **_with(evaluate, changed))


def _finetune(name: str, finetune: FinetuneSpec, spec: TrainingSpec, place: Place, positions: int) -> FinetuneStage:
    length = resolve_length(finetune, positions)
    alone = not finetune.synchronize_gradients
    data = finetune.data
    places = {path: place(getattr(data, path)) for path in ("folder", "train", "validation", "test")}
    changed = {
        "data": TaskData(**_with(data, places)),
        "sequence_length": length,
        "micro_batch_size": finetune.micro_batch_size
        or min(default_micro_batch_size(length), finetune.global_batch_size),
        "run_seeds": tuple(spec.seed + number for number in range(finetune.seeds)),
        "optimizer": FinetuneOptimizer(
            **_fields(finetune.optimizer), partitioning="none" if alone else spec.optimizer.partitioning
        ),
    }
    return FinetuneStage(name=name, **_with(finetune, changed))


def resolve_stage_checkpoint(own: StageCheckpointSpec, spec: TrainingSpec) -> CheckpointTimes:
    """Return a stage's settings in full: its own, else the job's; the intervals are one setting."""
    whole = _fields(resolve_checkpoint(spec.checkpoint))
    has_interval = any(getattr(own, interval) is not None for interval in INTERVALS)
    given = {
        name: value for name, value in _fields(own).items() if value is not None or (has_interval and name in INTERVALS)
    }
    return CheckpointTimes(**{name: given.get(name, whole[name]) for name in StageCheckpointSpec.model_fields})


def _predictions(section: PretrainSpec | EvaluateSpec, length: int, spec: TrainingSpec) -> int:
    """Return the predictions per sequence that a stage leaves open."""
    # Shards of a folder of its own are not those that this job prepares.
    of_dataset = section.shards is None
    return recipes.predictions_of_dataset(spec, length) if of_dataset else recipes.predictions_of_length(length)


def _with(section: Section, changed: dict[str, Any]) -> dict[str, Any]:
    """Return a section's fields with some resolved; an empty one is left to the class that it becomes."""
    return {name: value for name, value in {**_fields(section), **changed}.items() if value is not None}
