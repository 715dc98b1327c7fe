"""The cases of ``rule_cases`` that are about evaluation while a stage trains, and about parts of the samples."""

from __future__ import annotations

import copy

from job_changes import Change, Spec, both, drop, pretrain, put
from rule_case import RuleCase
from sample_job import EVALUATE, PHASE1, PREPARE

P1 = "spec.stages[1].pretrain"


def evaluation(**fields: object) -> Change:
    """Evaluate while the sample's pretrain stage trains."""
    return pretrain(evaluation=fields)


def on_own_shards(**fields: object) -> Change:
    """Let every stage name its shards and the job a vocabulary; prepare nothing."""
    changes = (pretrain(shards="s", evaluation={"everySteps": 5, **fields}), drop("stages", PREPARE))
    return both(
        put("stages", EVALUATE, "evaluate", "shards", value="h"),
        *changes,
        put("dataset", value={"vocabularyFile": "vocab.txt"}),
    )


def measured_part(**part: float) -> Change:
    """Evaluate on a part of the training shards, after training."""
    return put("stages", EVALUATE, "evaluate", "dataRange", value=part)


def second_phase(length: int, **fields: object) -> Change:
    """Train a second time, before the evaluate stage."""

    def change(spec: Spec) -> None:
        first = {name: value for name, value in spec["stages"][PHASE1]["pretrain"].items() if name != "dataRange"}
        # A copy: later changes must not reach into the table that this one stands in.
        phase2 = copy.deepcopy({**first, "sequenceLength": length, **fields})
        spec["stages"].insert(EVALUATE, {"name": "phase2", "pretrain": phase2})

    return change


EVALUATION_CASES: dict[str, RuleCase] = {
    "evaluations in one unit": RuleCase(
        evaluation(everySamples=150_000, startSamples=3_000_000),
        evaluation(everySteps=10, everySamples=640),
        f"{P1}.evaluation",
        ("got everySteps and everySamples", "exactly one of everySteps, everySamples, everyEpochs"),
    ),
    "evaluations in some unit": RuleCase(
        evaluation(everyEpochs=0.5), evaluation(maxSamples=100), f"{P1}.evaluation", ("got nothing", "how often")
    ),
    "start in the unit of the interval": RuleCase(
        evaluation(everyEpochs=0.1, startEpochs=1),
        evaluation(everySteps=10, startSamples=640),
        f"{P1}.evaluation",
        ("got startSamples with everySteps", "startSteps with everySteps"),
    ),
    "target that is measured": RuleCase(
        pretrain(evaluation={"everySteps": 10}, target={"maskedLmAccuracy": 1}),
        pretrain(target={"maskedLmAccuracy": 0.72}),
        f"{P1}.target",
        ("got a target without evaluation", "add evaluation"),
    ),
    "other samples than those trained on": RuleCase(
        pretrain(dataRange={"end": 0.9}, evaluation={"everySteps": 10, "dataRange": {"start": 0.9}}),
        pretrain(dataRange={"end": 0.9}, evaluation={"everySteps": 10, "dataRange": {"start": 0.8}}),
        f"{P1}.evaluation.dataRange",
        ("got 0.8 to 1, and training on 0 to 0.9", "shares no sample"),
    ),
    "other samples than those trained on, of one folder": RuleCase(
        pretrain(
            shards="s",
            dataRange={"end": 0.9},
            evaluation={"everySteps": 10, "shards": "s", "dataRange": {"start": 0.9}},
        ),
        pretrain(
            shards="s", dataRange={"end": 0.9}, evaluation={"everySteps": 10, "shards": "s", "dataRange": {"end": 0.1}}
        ),
        f"{P1}.evaluation.dataRange",
        ("got 0 to 0.1, and training on 0 to 0.9", "shares no sample"),
    ),
    "other samples than an earlier stage's": RuleCase(
        both(pretrain(dataRange={"start": 0.5}), measured_part(end=0.5)),
        measured_part(start=0.9),
        "spec.stages[2].evaluate.dataRange",
        ("got 0.9 to 1, and phase1 trains on 0 to 1", "the dataRange of an earlier stage"),
    ),
    "other samples than an earlier stage's, of one folder": RuleCase(
        both(pretrain(shards="s"), put("stages", EVALUATE, "evaluate", value={"shards": "h", "dataRange": {}})),
        both(pretrain(shards="h"), put("stages", EVALUATE, "evaluate", value={"shards": "h", "dataRange": {}})),
        "spec.stages[2].evaluate.dataRange",
        ("got 0 to 1, and phase1 trains on 0 to 1",),
    ),
    "predictions of an evaluation while training": RuleCase(
        evaluation(everySteps=10, maxPredictionsPerSequence=125),
        evaluation(everySteps=10, maxPredictionsPerSequence=126),
        f"{P1}.evaluation.maxPredictionsPerSequence",
        ("got 126", "less [CLS] and two [SEP]"),
    ),
    "range to measure on": RuleCase(
        both(pretrain(dataRange={"end": 0.9}), measured_part(start=0.9)),
        both(pretrain(dataRange={"end": 0.9}), measured_part(start=0.9, end=0.9)),
        "spec.stages[2].evaluate.dataRange",
        ("got 0.9 to 0.9", "a start below the end"),
    ),
    "range of another folder": RuleCase(
        evaluation(everySteps=10, shards="s", dataRange={"start": 0.5}),
        evaluation(everySteps=10, shards="s", dataRange={"start": 0.5, "end": 0.5}),
        f"{P1}.evaluation.dataRange",
    ),
    "data to measure on": RuleCase(
        on_own_shards(shards="h"),
        on_own_shards(),
        "spec.dataset.path",
        ("for the data of spec.stages[0].pretrain",),
    ),
}

EVALUATION_CONTROLLER_CASES: dict[str, RuleCase] = {
    "other samples than those of the stage that gives the length": RuleCase(
        both(second_phase(64, dataRange={"end": 0.9}), put("stages", 3, "evaluate", "dataRange", value={"start": 0.9})),
        both(second_phase(64), put("stages", 3, "evaluate", "dataRange", value={"start": 0.9})),
        "spec.stages[3].evaluate.dataRange",
        ("got 0.9 to 1, and phase2 trains on 0 to 1",),
    ),
    "other samples than those of a stage before": RuleCase(
        both(
            pretrain(dataRange={"end": 0.9}),
            second_phase(128, dataRange={"end": 0.5}, evaluation={"everySteps": 9, "dataRange": {"start": 0.9}}),
        ),
        second_phase(128, dataRange={"end": 0.5}, evaluation={"everySteps": 9, "dataRange": {"start": 0.9}}),
        "spec.stages[2].pretrain.evaluation.dataRange",
        ("got 0.9 to 1, and phase1 trains on 0 to 1",),
    ),
}
"""What the operator alone refuses; why stands at the rules."""
