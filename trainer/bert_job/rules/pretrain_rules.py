"""Rules inside a pretrain stage and inside its evaluation, in the form of ``section_rules``. Pure."""

from __future__ import annotations

from typing import Any

from pydantic.alias_generators import to_camel

from bert_job.pretraining import PretrainSpec
from bert_job.problems import ABSENT, render_value
from bert_job.rules.section_rule import SectionRule, exactly_one
from bert_job.section import SPECIAL_TOKENS


def _dynamic_only(field: str) -> SectionRule:
    name = to_camel(field)
    return SectionRule(
        holds=lambda stage: getattr(stage, field) is None or stage.masking == "dynamic",
        cel=f"!has(self.{name}) || self.masking == 'dynamic'",
        field=name,
        allowed="only with masking: dynamic; static masks are those of the prepare stage",
        next_step=f"write masking: dynamic, or give {name} to the prepare stage",
        got=lambda stage: f"{render_value(getattr(stage, field))} with masking {stage.masking}",
    )


_EVALUATION_UNITS = ("steps", "samples", "epochs")


def _starts_in_its_unit(section: Any) -> bool:
    return all(
        getattr(section, f"start_{unit}") is None or getattr(section, f"every_{unit}") is not None
        for unit in _EVALUATION_UNITS
    )


def _given(section: Any, prefix: str) -> str:
    fields = (f"{prefix}_{unit}" for unit in _EVALUATION_UNITS)
    return " and ".join(to_camel(field) for field in fields if getattr(section, field) is not None) or ABSENT


EVALUATION_RULES = (
    exactly_one(*(f"every_{unit}" for unit in _EVALUATION_UNITS), next_step="say in one unit how often"),
    SectionRule(
        holds=_starts_in_its_unit,
        cel=" && ".join(
            f"(!has(self.start{unit.title()}) || has(self.every{unit.title()}))" for unit in _EVALUATION_UNITS
        ),
        allowed="a start in the unit of the interval: startSteps with everySteps, and so on",
        next_step="count both in the same unit",
        got=lambda section: f"{_given(section, 'start')} with {_given(section, 'every')}",
    ),
)


def _measures_on_other_rows(stage: PretrainSpec) -> bool:
    """Tell whether no sample is both trained on and measured on; another folder is the user's own business."""
    if stage.evaluation is None or stage.evaluation.data_range is None:
        return True
    if stage.evaluation.shards not in (None, stage.shards):
        return True
    trained, measured = stage.data_range, stage.evaluation.data_range
    return measured.end <= trained.start or measured.start >= trained.end


def _evaluated_predictions(stage: PretrainSpec) -> int | None:
    return None if stage.evaluation is None else stage.evaluation.max_predictions_per_sequence


PRETRAIN_RULES = (
    _dynamic_only("masked_lm_probability"),
    _dynamic_only("whole_word_masking"),
    SectionRule(
        holds=lambda stage: stage.target is None or stage.evaluation is not None,
        cel="!has(self.target) || has(self.evaluation)",
        field="target",
        allowed="only with evaluation, which finds out whether it is met",
        next_step="add evaluation: {everySteps: N}",
        got=lambda _: "a target without evaluation",
    ),
    SectionRule(
        holds=_measures_on_other_rows,
        cel="!has(self.evaluation) || !has(self.evaluation.dataRange) || (has(self.evaluation.shards) && "
        "(!has(self.shards) || self.shards != self.evaluation.shards)) || "
        "self.evaluation.dataRange.end <= self.dataRange.start || "
        "self.evaluation.dataRange.start >= self.dataRange.end",
        field="evaluation.dataRange",
        allowed="a range that shares no sample with the stage's own dataRange",
        next_step="train on dataRange: {end: 0.9} and measure on {start: 0.9}",
        got=lambda stage: (
            f"{stage.evaluation.data_range.start:g} to {stage.evaluation.data_range.end:g}, and training "
            f"on {stage.data_range.start:g} to {stage.data_range.end:g}"
        ),
    ),
    SectionRule(
        holds=lambda stage: (_evaluated_predictions(stage) or 0) <= stage.sequence_length - SPECIAL_TOKENS,
        cel="!has(self.evaluation) || !has(self.evaluation.maxPredictionsPerSequence) || "
        f"self.evaluation.maxPredictionsPerSequence <= self.sequenceLength - {SPECIAL_TOKENS}",
        field="evaluation.maxPredictionsPerSequence",
        allowed="at most sequenceLength less [CLS] and two [SEP]",
        next_step="leave the field out for that of the stage",
        got=lambda stage: str(_evaluated_predictions(stage)),
    ),
)
