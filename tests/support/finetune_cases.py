"""The cases of ``rule_cases`` that are about fine-tuning."""

from __future__ import annotations

import copy

from job_changes import Change, Spec, both, drop, put
from rule_case import RuleCase
from sample_job import EVALUATE, EXPORT, PHASE1, PREPARE

MRPC: Spec = {"task": "mrpc", "data": {"folder": "glue/MRPC"}, "learningRate": 2e-5}
OWN: Spec = {
    "task": "classification",
    "data": {"train": "a.tsv", "validation": "b.tsv", "columns": {"text": "text", "label": "label"}},
    "learningRate": 2e-5,
}
SPANS: Spec = {
    "task": "spans",
    "data": {
        "train": "a.jsonl",
        "validation": "b.jsonl",
        "columns": {"question": "q", "context": "c", "answer": "a"},
    },
    "learningRate": 3e-5,
}
MODEL: Spec = {"path": "bert-base-uncased", "format": "huggingface"}
FT = "spec.stages[3].finetune"


def finetune(base: Spec = MRPC, *, name: str = "task", **fields: object) -> Change:
    """Insert a finetune stage before the sample's export."""
    # A copy: later changes must not reach into the tables above.
    return lambda spec: spec["stages"].insert(EXPORT, {"name": name, "finetune": copy.deepcopy({**base, **fields})})


def data(base: Spec, **fields: object) -> Change:
    """Insert a finetune stage whose files differ in these fields; None: without the field."""
    changed = {name: value for name, value in {**base["data"], **fields}.items() if value is not None}
    return finetune(base, data=changed)


def alone(start: Spec | None, **fields: object) -> Change:
    """Fine-tune and export, without data of pretraining."""

    def change(spec: Spec) -> None:
        finetune(**fields)(spec)
        spec["stages"] = spec["stages"][EXPORT:]
        if start is not None:
            spec["initialCheckpoint"] = dict(start)

    return change


FINETUNE_CASES: dict[str, RuleCase] = {
    "tasks come last": RuleCase(
        both(finetune(), finetune(task="rte", name="rte")),
        both(finetune(), lambda spec: spec["stages"].append(spec["stages"].pop(EVALUATE))),
        "spec.stages[4].evaluate",
        ("evaluate after the finetune stage task", "finetune and export stages alone"),
    ),
    "formats of a task's model": RuleCase(
        both(finetune(), put("stages", 4, "export", value={"format": "onnx"})),
        both(finetune(), put("stages", 4, "export", value={"format": "tensorflow"})),
        "spec.stages[4].export.format",
        ("huggingface or onnx after a finetune stage",),
    ),
    "weights to fine-tune": RuleCase(
        alone(MODEL),
        alone({**MODEL, "load": "none"}),
        "spec.stages[0].finetune.startFrom",
        ("no pretrain stage and initialCheckpoint.load none", "startFrom: random"),
    ),
    "random weights on purpose": RuleCase(
        both(alone(None, startFrom="random"), put("dataset", value={"vocabularyFile": "vocab.txt"})),
        both(alone(None), put("dataset", value={"vocabularyFile": "vocab.txt"})),
        "spec.stages[0].finetune.startFrom",
        ("no initialCheckpoint", "spec.initialCheckpoint: {path: ...}"),
    ),
    "a vocabulary for texts": RuleCase(
        both(alone(None, startFrom="random"), put("dataset", value={"path": "data"})),
        alone(None, startFrom="random"),
        "spec.dataset.vocabularyFile",
        ("for fine-tuning alone",),
    ),
    "a reader of the vocabulary": RuleCase(
        both(finetune(startFrom="random"), drop("stages", EVALUATE), drop("stages", PHASE1)),
        lambda spec: spec.update(stages=[spec["stages"][PREPARE]]),
        "spec.stages[0].prepare",
        ("with finetune stages",),
    ),
    "a name of its own": RuleCase(
        finetune(name="start-here"), finetune(name="start"), "spec.stages[3].name", ("another name than start",)
    ),
    "positions of rows": RuleCase(
        finetune(sequenceLength=512), finetune(sequenceLength=513), f"{FT}.sequenceLength", ("got 513",)
    ),
    "positions of rows by default": RuleCase(
        both(put("model", "maxPositionEmbeddings", value=128), finetune()),
        both(put("model", "maxPositionEmbeddings", value=256), finetune(SPANS)),
        f"{FT}.sequenceLength",
        ("got nothing, which is 384 for spans", "maxPositionEmbeddings 256"),
    ),
    "rows for every rank": RuleCase(
        finetune(globalBatchSize=1, synchronizeGradients=False),
        finetune(globalBatchSize=1),
        f"{FT}.globalBatchSize",
        ("at least 2", "synchronizeGradients: false"),
    ),
    "passes of rows": RuleCase(
        finetune(microBatchSize=32),
        finetune(microBatchSize=33),
        f"{FT}.microBatchSize",
        ("at most globalBatchSize 32",),
    ),
    "metric of the task": RuleCase(
        finetune(metric="accuracy"),
        finetune(metric="exact_match"),
        f"{FT}.metric",
        ('got "exact_match"', "for mrpc f1 or accuracy"),
    ),
    "room beside a question": RuleCase(
        finetune(SPANS, maxQueryLength=380),
        finetune(SPANS, maxQueryLength=381),
        f"{FT}.maxQueryLength",
        ("got 381", "less than 381: sequenceLength 384"),
    ),
    "room beside a question in short rows": RuleCase(
        finetune(SPANS, sequenceLength=68),
        finetune(SPANS, sequenceLength=67),
        f"{FT}.maxQueryLength",
        ("got 64", "less than 64"),
    ),
    "a folder of official files": RuleCase(
        data(MRPC, folder="other"),
        data(MRPC, train="a.tsv"),
        f"{FT}.data",
        ("got folder and train with task mrpc", "the official files"),
    ),
    "some folder of official files": RuleCase(
        finetune(task="squad"), data(MRPC, folder=None), f"{FT}.data", ("got nothing with task mrpc",)
    ),
    "files of one's own": RuleCase(
        data(OWN, test="c.tsv", format="tsv"),
        data(OWN, validation=None),
        f"{FT}.data",
        ("got train with task classification", "name both files"),
    ),
    "files of one's own, and no folder": RuleCase(
        finetune(OWN, task="regression"),
        data(OWN, folder="glue"),
        f"{FT}.data",
        ("got folder and train and validation",),
    ),
    "columns of texts": RuleCase(
        data(OWN, columns={"text": "a", "textPair": "b", "label": "c", "id": "d"}),
        data(OWN, columns={"text": "a"}),
        f"{FT}.data.columns",
        ("got text with task classification", "text and label"),
    ),
    "some columns": RuleCase(
        finetune(OWN), data(OWN, columns=None), f"{FT}.data.columns", ("got nothing with task classification",)
    ),
    "columns of spans": RuleCase(
        finetune(SPANS),
        data(SPANS, columns={"question": "q", "context": "c", "answer": "a", "label": "l"}),
        f"{FT}.data.columns",
        ("got label and question and context and answer with task spans",),
    ),
    "classes of a classification": RuleCase(
        data(OWN, labels=["no", "yes"]),
        both(data(OWN, labels=["no", "yes"]), put("stages", EXPORT, "finetune", "task", value="regression")),
        f"{FT}.data.labels",
        ("got 2 labels with task regression",),
    ),
    "one warm-up of fine-tuning": RuleCase(
        finetune(warmup={"steps": 0}),
        finetune(warmup={"steps": 10, "proportion": 0.1}),
        f"{FT}.warmup",
        ("got steps and proportion",),
    ),
}

FINETUNE_CONTROLLER_CASES: dict[str, RuleCase] = {
    "labels that differ": RuleCase(
        data(OWN, labels=["a", "b"]),
        data(OWN, labels=["a", "b", "a"]),
        f"{FT}.data.labels[2]",
        ('got "a" again',),
    ),
}
"""What the operator alone refuses; why stands at the rule."""
