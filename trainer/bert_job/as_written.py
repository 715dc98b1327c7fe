"""A run configuration in the form in which people write a job's training: what rules between fields look at."""

from __future__ import annotations

from typing import Any

from bert_job.model import ModelSpec
from bert_job.recipes import PUBLISHED_LENGTHS
from bert_job.run_config import ModelConfig, ModelFile, RunConfig
from bert_job.run_stages import FinetuneStage, PrepareStage, PretrainStage
from bert_job.run_stages import Stage as RunStage
from bert_job.stages import Stage
from bert_job.training import RunSettings, TrainingSpec


def as_written(config: RunConfig) -> TrainingSpec:
    """Return the training of a valid configuration, without the values that only stand for empty fields.

    Nothing is validated again: the classes of a configuration inherit from the sections that they become.
    """
    settings = {name: getattr(config, name) for name in RunSettings.model_fields}
    stages = tuple(_stage(stage) for stage in config.stages)
    return TrainingSpec.model_construct(**{**settings, "model": _model(config.model), "stages": stages})


def _model(model: ModelConfig | ModelFile) -> ModelSpec:
    # Where the file has been read, its name is but a note beside the sizes.
    return model.model_copy(update={"config_file": None}) if isinstance(model, ModelConfig) else model


def _stage(stage: RunStage) -> Stage:
    written: RunStage = stage
    if isinstance(stage, PretrainStage) and stage.masking == "static":
        written = stage.model_copy(update={"masked_lm_probability": None, "whole_word_masking": None})
    if isinstance(stage, PrepareStage):
        # A run that prepares data for others and says no lengths makes those.
        lengths = tuple(made.sequence_length for made in stage.lengths) or PUBLISHED_LENGTHS
        written = stage.model_copy(update={"corpora": stage.corpora or None, "sequence_lengths": lengths})
    if isinstance(stage, FinetuneStage):
        data, columns = stage.data, stage.data.columns
        empty = {
            "format": None if data.format == "auto" else data.format,
            "columns": columns if columns.model_dump(exclude_none=True) else None,
            "labels": data.labels or None,
        }
        written = stage.model_copy(update={"data": data.model_copy(update=empty)})
    fields: dict[str, Any] = {"name": stage.name, stage.kind: written}
    return Stage.model_construct(**fields)
