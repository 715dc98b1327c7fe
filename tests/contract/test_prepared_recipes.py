"""A recipe chosen in a job sets what belongs to it, the same as on the command line, and what is written wins.

Inputs: the sample job with a recipe in its prepare stage. Observed: the run configuration that the trainer reads, the
notes that ``bert-operator check`` prints, the lengths that ``bert-data build`` makes of it.
"""

from __future__ import annotations

import argparse

import pytest

from bert_job import recipes
from bert_job.run_config import RunConfig
from bert_job.run_stages import EvaluateStage, PrepareStage, PretrainStage
from bert_operator.api.parsing.validation import advise
from bert_operator.render.run_config import render_run_config
from bert_trainer.config.checks import parse_run_config
from bert_trainer.dataset.build.recipes import with_num_shards
from bert_trainer.dataset.commands.build import wanted_lengths
from bert_trainer.dataset.commands.build_options import add_options, parse_stage
from job_changes import Change, both, only, pretrain, put
from sample_job import EVALUATE, PHASE1, PREPARE, sample_job


def prepared(**fields: object) -> Change:
    """Set fields of the sample's prepare stage."""
    return lambda spec: spec["stages"][PREPARE]["prepare"].update(fields)


def load(change: Change) -> RunConfig:
    job = sample_job(change)
    return parse_run_config(render_run_config(job, uid="u", ranks=2, hosts=1, output_folder="/out"))


def predictions(config: RunConfig) -> list[int]:
    readers = (stage for stage in config.stages if isinstance(stage, PretrainStage | EvaluateStage))
    return [stage.max_predictions_per_sequence for stage in readers]


def prepare_stage(config: RunConfig) -> PrepareStage:
    (stage,) = (stage for stage in config.stages if isinstance(stage, PrepareStage))
    return stage


@pytest.mark.parametrize(("name", "factor", "number"), [(None, 5, 20), ("nvidia", 5, 20), ("mlperf", 10, 76)])
def test_duplicates_and_predictions_are_the_recipe_s(name: str | None, factor: int, number: int) -> None:
    config = load(prepared(**({} if name is None else {"recipe": name})))
    assert prepare_stage(config).dupe_factor == factor
    assert predictions(config) == [number, number]
    assert wanted_lengths(config) == [(128, number)]


def test_a_written_value_wins() -> None:
    config = load(both(prepared(recipe="mlperf", dupeFactor=5), pretrain(maxPredictionsPerSequence=20)))
    assert prepare_stage(config).dupe_factor == 5
    assert predictions(config) == [20, 20]


def test_only_shards_of_the_job_s_own_making_are_the_recipe_s() -> None:
    config = load(
        both(prepared(recipe="mlperf"), pretrain(shards="/ready"), put("stages", EVALUATE, "evaluate", value={}))
    )
    assert predictions(config) == [20, 20]
    other = {"sequenceLength": 512}
    config = load(
        both(prepared(recipe="mlperf"), pretrain(shards="/ready"), put("stages", EVALUATE, "evaluate", value=other))
    )
    assert predictions(config) == [20, 76]


def test_short_sequences_have_as_many_predictions_as_fit() -> None:
    assert predictions(load(both(prepared(recipe="mlperf"), pretrain(sequenceLength=64)))) == [61, 61]


def test_an_evaluation_while_training_has_the_stage_s_predictions() -> None:
    config = load(both(prepared(recipe="mlperf"), pretrain(evaluation={"everySteps": 5})))
    stage = config.stages[PHASE1]
    assert isinstance(stage, PretrainStage)
    assert stage.evaluation is not None
    assert stage.evaluation.max_predictions_per_sequence == 76


@pytest.mark.parametrize("name", ["nvidia", "mlperf"])
def test_the_command_line_builds_what_the_job_builds(name: str) -> None:
    parser = argparse.ArgumentParser()
    add_options(parser)
    line = ["--text", "builtin:python-docs", "--output", "x", "--recipe", name, "--vocabulary-size", "4096"]
    by_hand = parse_stage(parser.parse_args(line), {})
    assert prepare_stage(load(prepared(recipe=name))) == by_hand
    assert with_num_shards(by_hand, None).num_shards == recipes.RECIPES[name].num_shards


def test_notes_say_which_values_came_from_the_recipe() -> None:
    assert advise(sample_job(prepared(recipe="mlperf", sequenceLengths=[512]))) == [
        "spec.stages[0].prepare.dupeFactor: 10, from recipe mlperf",
        "spec.stages[0].prepare.numShards: 500, from recipe mlperf",
        "spec.stages[0].prepare.numBalancedShards: 2048, from recipe mlperf",
        "spec.stages[0].prepare.layout: intel, from recipe mlperf",
        "spec.stages[0].prepare.maxPredictionsPerSequence: 76 at 512 tokens, from recipe mlperf",
        "spec.stages[1].pretrain.maxPredictionsPerSequence: 76, from recipe mlperf",
        "spec.stages[2].evaluate.maxPredictionsPerSequence: 76, from recipe mlperf",
    ]
    written = prepared(recipe="nvidia", dupeFactor=2, numShards=4, layout="compact")
    assert advise(sample_job(both(written, pretrain(maxPredictionsPerSequence=19)))) == []


def test_a_job_may_prepare_data_for_others_alone() -> None:
    config = load(both(only(PREPARE), prepared(sequenceLengths=[512, 128, 512])))
    assert wanted_lengths(config) == [(512, 80), (128, 20)]
    config = load(both(only(PREPARE), prepared(sequenceLengths=[128, 512], maxPredictionsPerSequence=76)))
    assert wanted_lengths(config) == [(128, 76), (512, 76)]


def test_lengths_for_others_come_beside_those_that_the_job_reads() -> None:
    config = load(both(prepared(sequenceLengths=[128, 512]), pretrain(maxPredictionsPerSequence=19)))
    # 128 is read by a stage, and has its number.
    assert wanted_lengths(config) == [(128, 19), (512, 80)]
    assert prepare_stage(load(prepared(sequenceLengths=[128]))).lengths == ()


def test_the_bound_for_unknown_words_is_the_same_where_a_job_sets_none() -> None:
    assert prepare_stage(load(lambda _: None)).max_unknown_share == 0.1
    assert prepare_stage(load(prepared(maxUnknownShare=1))).max_unknown_share == 1
