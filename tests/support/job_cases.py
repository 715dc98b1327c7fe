"""The cases of ``rule_cases`` that are about the model, the order of stages and where data comes from."""

from __future__ import annotations

from job_changes import Change, Spec, both, drop, pretrain, put
from rule_case import RuleCase
from sample_job import EVALUATE, EXPORT, PHASE1, PREPARE


def shards(vocabulary: bool) -> Change:
    """Let every stage name its shards, and prepare none."""
    changes = (pretrain(shards="s"), put("stages", EVALUATE, "evaluate", "shards", value="h"), drop("stages", PREPARE))
    dataset = put("dataset", value={"vocabularyFile": "vocab.txt"} if vocabulary else {})
    return both(*changes, dataset)


def move(stage: int, to: int) -> Change:
    return lambda spec: spec["stages"].insert(to, spec["stages"].pop(stage))


def only(*stages: int) -> Change:
    def change(spec: Spec) -> None:
        spec["stages"] = [spec["stages"][stage] for stage in stages]

    return change


JOB_CASES: dict[str, RuleCase] = {
    "sizes of the model": RuleCase(
        put(
            "model",
            value={"hiddenSize": 64, "numHiddenLayers": 2, "numAttentionHeads": 2, "intermediateSize": 256},
        ),
        put("model", value={"hiddenSize": 64, "numHiddenLayers": 2, "numAttentionHeads": 2}),
        "spec.model.intermediateSize",
        ("a preset, or all of",),
    ),
    "one source of the model": RuleCase(
        put("model", value={"configFile": "bert_config.json", "objective": "mlm", "vocabularyPadMultiple": 64}),
        put("model", value={"configFile": "bert_config.json", "preset": "base"}),
        "spec.model.configFile",
        ('"bert_config.json", and preset as well', "leave the others out"),
    ),
    "one source of the model's dropout": RuleCase(
        put("model", value={"configFile": "c.json", "hiddenDropout": 0.1, "maxPositionEmbeddings": 512}),
        put("model", value={"configFile": "c.json", "hiddenDropout": 0, "maxPositionEmbeddings": 128}),
        "spec.model.configFile",
        ("and maxPositionEmbeddings, hiddenDropout as well",),
    ),
    "positions of a model in a file": RuleCase(
        both(put("model", value={"configFile": "c.json"}), pretrain(sequenceLength=1024)),
        both(put("model", value={"preset": "tiny"}), pretrain(sequenceLength=1024)),
        "spec.stages[1].pretrain.sequenceLength",
        ("at most model.maxPositionEmbeddings",),
    ),
    "heads of equal width": RuleCase(
        put("model", value={"preset": "base", "numAttentionHeads": 16}),
        put("model", value={"preset": "base", "hiddenSize": 770}),
        "spec.model.numAttentionHeads",
        ("got 12", "a divisor of hiddenSize 770"),
    ),
    "a head for every loss": RuleCase(
        put("model", value={"preset": "distilbert", "architecture": "bert", "objective": "mlm+nsp"}),
        put("model", value={"preset": "tiny", "architecture": "distilbert", "objective": "mlm+nsp"}),
        "spec.model.objective",
        ("no pooler",),
    ),
    "a model that TensorFlow 1 expresses": RuleCase(
        put("stages", EXPORT, "export", value={"format": "tensorflow"}),
        both(
            put("model", value={"preset": "distilbert"}),
            put("stages", EXPORT, "export", value={"format": "tensorflow"}),
        ),
        "spec.stages[3].export.format",
        ("architecture: bert", "export in another format"),
    ),
    "a LayerNorm that TensorFlow 1 expresses": RuleCase(
        put("model", "layerNormEpsilon", value=1e-5),
        both(
            put("model", "layerNormEpsilon", value=1e-5),
            put("stages", EXPORT, "export", value={"format": "tensorflow"}),
        ),
        "spec.stages[3].export.format",
        ("layerNormEpsilon 1e-12",),
    ),
    "names of stages": RuleCase(
        put("stages", EXPORT, "name", value="phase2"),
        put("stages", EXPORT, "name", value="phase1"),
        "spec.stages[3].name",
        ("spec.stages[1] has this one",),
    ),
    "data before its use": RuleCase(
        only(PREPARE, PHASE1),
        move(PREPARE, to=2),
        "spec.stages[2].prepare",
        ("only as the first stage",),
    ),
    "results after training": RuleCase(
        move(EXPORT, to=EVALUATE),
        move(EVALUATE, to=PHASE1),
        "spec.stages[1].evaluate",
        ("evaluate only after a pretrain stage",),
    ),
    "a reader of the data": RuleCase(
        only(PREPARE, PHASE1, EXPORT),
        only(PREPARE),
        "spec.stages[0].prepare",
        ("together with pretrain stages",),
    ),
    "lengths for other jobs": RuleCase(
        both(only(PREPARE), put("stages", PREPARE, "prepare", "sequenceLengths", value=[128, 512])),
        both(only(PREPARE), put("stages", PREPARE, "prepare", "recipe", value="nvidia")),
        "spec.stages[0].prepare",
        ("no sequenceLengths and no stage in the job that trains", "add sequenceLengths: [128, 512]"),
    ),
    "a source of the data": RuleCase(
        both(drop("stages", PREPARE), put("dataset", value={"path": "data"})),
        both(drop("stages", PREPARE), put("dataset", value={"vocabularyFile": "vocab.txt"})),
        "spec.dataset.path",
        ("spec.stages[0].pretrain and spec.stages[1].evaluate",),
    ),
    "a vocabulary for shards": RuleCase(
        shards(vocabulary=True),
        shards(vocabulary=False),
        "spec.dataset.vocabularyFile",
        ("the vocabulary that the shards were made with",),
    ),
    "one vocabulary": RuleCase(
        both(
            put("dataset", value={"vocabularyFile": "vocab.txt"}),
            drop("stages", PREPARE, "prepare", "vocabularySize"),
        ),
        put("dataset", value={"vocabularyFile": "vocab.txt"}),
        "spec.stages[0].prepare.vocabularySize",
        ("this or dataset.vocabularyFile",),
    ),
    "folders of data and results": RuleCase(
        put("dataset", value={"path": "runs/demo/data"}),
        put("dataset", value={"path": "runs/demo//"}),
        "spec.dataset.path",
        ("which is output.path",),
    ),
    "folders with line breaks": RuleCase(
        both(put("dataset", value={"path": "a\nb"}), put("output", "path", value="a\nc")),
        both(put("dataset", value={"path": "a\nb"}), put("output", "path", value="a\nb/")),
        "spec.dataset.path",
        ("which is output.path",),
    ),
}
