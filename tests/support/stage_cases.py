"""The cases of ``rule_cases`` that are about the numbers of one stage: lengths, batches, warm-up."""

from __future__ import annotations

from job_changes import Change, pretrain, put
from rule_case import RuleCase
from sample_job import EVALUATE

P1 = "spec.stages[1].pretrain"


def evaluate(**fields: object) -> Change:
    return put("stages", EVALUATE, "evaluate", value=fields)


STAGE_CASES: dict[str, RuleCase] = {
    "one kind": RuleCase(
        put("stages", EVALUATE, value={"name": "evaluate", "export": {"format": "huggingface"}}),
        put("stages", EVALUATE, "export", value={}),
        "spec.stages[2]",
        ("got evaluate and export", "exactly one of prepare, pretrain, evaluate, finetune, export"),
    ),
    "some kind": RuleCase(
        lambda spec: spec["stages"].append({"name": "x", "export": {}}),
        lambda spec: spec["stages"].append({"name": "x"}),
        "spec.stages[4]",
        ("got nothing",),
    ),
    "positions": RuleCase(
        pretrain(sequenceLength=512),
        pretrain(sequenceLength=513),
        f"{P1}.sequenceLength",
        ("got 513", "maxPositionEmbeddings 512"),
    ),
    "positions of an evaluation": RuleCase(
        evaluate(sequenceLength=512),
        evaluate(sequenceLength=513),
        "spec.stages[2].evaluate.sequenceLength",
        ("maxPositionEmbeddings 512",),
    ),
    "predictions": RuleCase(
        pretrain(maxPredictionsPerSequence=125),
        pretrain(maxPredictionsPerSequence=126),
        f"{P1}.maxPredictionsPerSequence",
        ("at most 125",),
    ),
    "predictions of an evaluation": RuleCase(
        evaluate(sequenceLength=64, maxPredictionsPerSequence=61),
        evaluate(sequenceLength=64, maxPredictionsPerSequence=62),
        "spec.stages[2].evaluate.maxPredictionsPerSequence",
        ("at most 61",),
    ),
    "work for every rank": RuleCase(
        put("workers", value=32),
        put("workers", value=33),
        f"{P1}.globalBatchSize",
        ("got 64", "at least 66", "multiply it by the number of ranks"),
    ),
    "passes": RuleCase(
        pretrain(microBatchSize=64), pretrain(microBatchSize=65), f"{P1}.microBatchSize", ("at most globalBatchSize",)
    ),
    "passes of a size that is found": RuleCase(
        pretrain(microBatchSize="auto"),
        pretrain(microBatchSize="auto", lossNormalization="microBatchMean"),
        f"{P1}.microBatchSize",
        ('got "auto"', "a number with lossNormalization: microBatchMean"),
    ),
    "one length": RuleCase(
        pretrain(length={"epochs": 0.5}),
        pretrain(length={"steps": 10, "epochs": 3}),
        f"{P1}.length",
        ("got steps and epochs",),
    ),
    "some length": RuleCase(pretrain(length={"samples": 1}), pretrain(length={}), f"{P1}.length", ("got nothing",)),
    "one warm-up": RuleCase(
        pretrain(warmup={"proportion": 0}),
        pretrain(warmup={"steps": 10, "proportion": 0.1}),
        f"{P1}.warmup",
        ("got steps and proportion",),
    ),
    "some warm-up": RuleCase(
        pretrain(warmup={"steps": 0}), pretrain(warmup={}), f"{P1}.warmup", ("got nothing", "exactly one of")
    ),
    "warm-up that ends": RuleCase(
        pretrain(warmup={"steps": 99}),
        pretrain(warmup={"steps": 100}),
        f"{P1}.warmup.steps",
        ("less than the stage's 100",),
    ),
    "warm-up that ends before the samples": RuleCase(
        pretrain(warmup={"steps": 2}, length={"samples": 129}),
        pretrain(warmup={"steps": 2}, length={"samples": 128}),
        f"{P1}.warmup.steps",
        ("less than the stage's 2 steps",),
    ),
    "range with samples": RuleCase(
        pretrain(dataRange={"start": 0, "end": 0.5}),
        pretrain(dataRange={"start": 0.5, "end": 0.5}),
        f"{P1}.dataRange",
        ("got 0.5 to 0.5",),
    ),
}

STAGE_CONTROLLER_CASES: dict[str, RuleCase] = {
    "predictions of an evaluation with an inherited length": RuleCase(
        evaluate(maxPredictionsPerSequence=125),
        evaluate(maxPredictionsPerSequence=126),
        "spec.stages[2].evaluate.maxPredictionsPerSequence",
        ("at most 125",),
    ),
}
"""What the operator alone refuses; why stands at the rule."""
