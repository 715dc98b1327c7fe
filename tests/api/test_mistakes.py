"""Every mistake is named by its path, what was found, what is allowed and what to do next."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from bert_operator.api.validation import parse_job
from bert_operator.errors import InvalidJob
from bert_operator.problems import Problem
from sample_job import EVALUATE, EXPORT, PHASE1, PREPARE, sample_document

Spec = dict[str, Any]


def problems_of(change: Callable[[Spec], object]) -> list[Problem]:
    with pytest.raises(InvalidJob) as caught:
        parse_job(sample_document(change))
    return list(caught.value.problems)


def put(*path: str | int, value: object) -> Callable[[Spec], None]:
    def change(spec: Spec) -> None:
        section: Any = spec
        for part in path[:-1]:
            section = section.setdefault(part, {}) if isinstance(section, dict) else section[part]
        section[path[-1]] = value

    return change


def drop(*path: str | int) -> Callable[[Spec], None]:
    def change(spec: Spec) -> None:
        section: Any = spec
        for part in path[:-1]:
            section = section[part]
        del section[path[-1]]

    return change


def pretrain(**fields: object) -> Callable[[Spec], None]:
    return lambda spec: spec["stages"][PHASE1]["pretrain"].update(fields)


def both(*changes: Callable[[Spec], object]) -> Callable[[Spec], None]:
    def change(spec: Spec) -> None:
        for each in changes:
            each(spec)

    return change


P1 = "spec.stages[1].pretrain"

# case -> (what is done to a valid job, path of the one problem, words of its message)
MISTAKES: dict[str, tuple[Callable[[Spec], object], str, tuple[str, ...]]] = {
    "unknown field, misspelt": (
        put("optimiser", value={}),
        "spec.optimiser",
        ("a field that does not exist here", "did you mean optimizer?"),
    ),
    "unknown field in snake case": (
        put("slots_per_worker", value=2),
        "spec.slots_per_worker",
        ("write slotsPerWorker",),
    ),
    "unknown field of the original scripts": (
        pretrain(train_batch_size=64),
        f"{P1}.train_batch_size",
        ("times the number of GPUs",),
    ),
    "unknown field that lives elsewhere": (
        put("optimizer", value={"learningRate": 0.1}),
        "spec.optimizer.learningRate",
        ("move it to spec.stages[].pretrain",),
    ),
    "unknown field that resembles nothing": (put("colour", value=1), "spec.colour", ("remove it",)),
    "missing number": (
        drop("stages", PHASE1, "pretrain", "learningRate"),
        f"{P1}.learningRate",
        ("got nothing", "a number, above 0 and at most 1", "add it (peak"),
    ),
    "missing section": (
        drop("output"),
        "spec.output",
        ("got nothing", "an object with the fields ifExists, path"),
    ),
    "missing model": (drop("model"), "spec.model", ("got nothing",)),
    "no stages": (put("stages", value=[]), "spec.stages", ("a list of 1 to 32 entries",)),
    "stages that are no list": (
        put("stages", value={"name": "a"}),
        "spec.stages",
        ("begin every entry with '- '",),
    ),
    "stage that is text": (
        lambda spec: spec["stages"].append("phase2"),
        "spec.stages[4]",
        ('got "phase2"', "indented below"),
    ),
    "number in quotes": (
        pretrain(globalBatchSize="64"),
        f"{P1}.globalBatchSize",
        ('got "64"', "without quotes"),
    ),
    "truth for a count": (
        put("workers", value=True),
        "spec.workers",
        ("got true", "an integer", "write a number"),
    ),
    "truth for a number": (
        put("model", "hiddenDropout", value=True),
        "spec.model.hiddenDropout",
        ("got true",),
    ),
    "fraction for a count": (put("workers", value=1.5), "spec.workers", ("got 1.5", "an integer")),
    "text for a truth": (
        put("logging", value={"tensorboard": "yes"}),
        "spec.logging.tensorboard",
        ("true | false", "without quotes"),
    ),
    "number for a text": (put("output", "path", value=7), "spec.output.path", ("put it in quotes",)),
    "null for a required field": (put("output", "path", value=None), "spec.output.path", ("got null",)),
    "choice that does not exist": (
        put("precision", value="bf61"),
        "spec.precision",
        ("fp32 | tf32 | bf16 | fp16 | fp64", "did you mean bf16"),
    ),
    "choice in capitals": (
        put("optimizer", value={"name": "LAMB"}),
        "spec.optimizer.name",
        ("did you mean lamb?",),
    ),
    "preset that does not exist": (
        put("model", "preset", value="huge"),
        "spec.model.preset",
        ("tiny | base",),
    ),
    "count below its range": (put("slotsPerWorker", value=0), "spec.slotsPerWorker", ("got 0", "at least 1")),
    "learning rate above one": (pretrain(learningRate=3), f"{P1}.learningRate", ("got 3", "at most 1")),
    "dropout of one": (put("model", "hiddenDropout", value=1.0), "spec.model.hiddenDropout", ("below 1",)),
    "stage name with capitals": (
        put("stages", PHASE1, "name", value="Phase_1"),
        "spec.stages[1].name",
        ("lower-case letters, digits and dashes",),
    ),
    "empty path": (put("output", "path", value=""), "spec.output.path", ("text of 1 to 1024 characters",)),
    "retries without end": (
        put("runPolicy", value={"applicationRetries": 1000}),
        "spec.runPolicy.applicationRetries",
        ("at most 20",),
    ),
    "no preset and no sizes": (
        put("model", value={"hiddenSize": 64, "numHiddenLayers": 2, "numAttentionHeads": 2}),
        "spec.model.intermediateSize",
        ("a preset, or all of",),
    ),
    "heads that do not divide": (
        put("model", "numAttentionHeads", value=3),
        "spec.model.numAttentionHeads",
        ("got 3", "a divisor of hiddenSize 128"),
    ),
    "next sentences with distilbert": (
        put("model", value={"preset": "distilbert", "objective": "mlm+nsp"}),
        "spec.model.objective",
        ("no pooler",),
    ),
    "one stage, two kinds": (
        put("stages", EVALUATE, "export", value={}),
        "spec.stages[2]",
        ("evaluate and export", "exactly one of prepare, pretrain, evaluate, export"),
    ),
    "stage without a kind": (
        lambda spec: spec["stages"].append({"name": "x"}),
        "spec.stages[4]",
        ("got nothing",),
    ),
    "stage name twice": (
        put("stages", EXPORT, "name", value="phase1"),
        "spec.stages[3].name",
        ('got "phase1"', "spec.stages[1] has this one"),
    ),
    "prepare after training": (
        lambda spec: spec["stages"].insert(2, spec["stages"].pop(PREPARE)),
        "spec.stages[2].prepare",
        ("only as the first stage",),
    ),
    "evaluate before training": (
        lambda spec: spec["stages"].insert(1, spec["stages"].pop(EVALUATE)),
        "spec.stages[1].evaluate",
        ("only after a pretrain stage",),
    ),
    "export before training": (
        lambda spec: spec["stages"].insert(1, spec["stages"].pop(EXPORT)),
        "spec.stages[1].export",
        ("only after a pretrain stage",),
    ),
    "prepare for nobody": (
        lambda spec: spec.update(stages=spec["stages"][:1]),
        "spec.stages[0].prepare",
        ("together with pretrain stages",),
    ),
    "no data": (
        drop("stages", PREPARE),
        "spec.dataset.path",
        ("got nothing", "spec.stages[0].pretrain and spec.stages[1].evaluate"),
    ),
    "shards without a vocabulary": (
        both(
            pretrain(shards="s"),
            put("stages", EVALUATE, "evaluate", "shards", value="h"),
            drop("stages", PREPARE),
        ),
        "spec.dataset.vocabularyFile",
        ("the vocabulary that the shards were made with",),
    ),
    "two sources of a vocabulary": (
        put("dataset", value={"vocabularyFile": "vocab.txt"}),
        "spec.stages[0].prepare.vocabularySize",
        ("one of the two",),
    ),
    "dataset in the output folder": (
        put("dataset", value={"path": "runs/demo/"}),
        "spec.dataset.path",
        ("which is output.path",),
    ),
    "builtin text that does not exist": (
        put("stages", PREPARE, "prepare", "text", value="builtin:wikipedia"),
        "spec.stages[0].prepare.text",
        ("builtin:python-docs",),
    ),
    "sequences longer than positions": (
        pretrain(sequenceLength=1024),
        f"{P1}.sequenceLength",
        ("got 1024", "maxPositionEmbeddings 512"),
    ),
    "evaluation longer than positions": (
        put("stages", EVALUATE, "evaluate", "sequenceLength", value=1024),
        "spec.stages[2].evaluate.sequenceLength",
        ("maxPositionEmbeddings 512",),
    ),
    "more predictions than tokens": (
        pretrain(maxPredictionsPerSequence=126),
        f"{P1}.maxPredictionsPerSequence",
        ("at most 125",),
    ),
    "more predictions than an inherited length has": (
        put("stages", EVALUATE, "evaluate", "maxPredictionsPerSequence", value=126),
        "spec.stages[2].evaluate.maxPredictionsPerSequence",
        ("at most 125",),
    ),
    "batch smaller than the ranks": (
        put("workers", value=64),
        f"{P1}.globalBatchSize",
        ("got 64", "at least 128", "multiply it by the number of ranks"),
    ),
    "pass larger than the batch": (
        pretrain(microBatchSize=65),
        f"{P1}.microBatchSize",
        ("got 65", "at most globalBatchSize 64"),
    ),
    "length in two units": (
        pretrain(length={"steps": 10, "epochs": 3}),
        f"{P1}.length",
        ("got steps and epochs", "exactly one of steps, epochs, samples"),
    ),
    "length in no unit": (pretrain(length={}), f"{P1}.length", ("got nothing",)),
    "warm-up in two units": (
        pretrain(warmup={"steps": 10, "proportion": 0.1}),
        f"{P1}.warmup",
        ("exactly one of steps, proportion",),
    ),
    "warm-up that never ends": (
        pretrain(warmup={"steps": 100}),
        f"{P1}.warmup.steps",
        ("less than the stage's 100",),
    ),
    "warm-up longer than the samples last": (
        pretrain(warmup={"steps": 2}, length={"samples": 65}),
        f"{P1}.warmup.steps",
        ("less than the stage's 2 steps",),
    ),
    "empty range of data": (
        pretrain(dataRange={"start": 0.5, "end": 0.5}),
        f"{P1}.dataRange",
        ("got 0.5 to 0.5",),
    ),
    "range beyond the data": (pretrain(dataRange={"end": 1.5}), f"{P1}.dataRange.end", ("at most 1",)),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_is_the_only_problem_and_says_what_to_do(case: str) -> None:
    change, path, words = MISTAKES[case]
    problems = problems_of(change)
    assert [problem.path for problem in problems] == [path]
    text = str(problems[0])
    assert text.startswith(f"{path}: got ")
    assert all(word in text for word in ("; allowed: ", "; next: ", *words)), text


@pytest.mark.parametrize(
    ("field", "value", "path"),
    [
        ("kind", "BertJob", "kind"),
        ("apiVersion", "bert-operator.dev/v1", "apiVersion"),
        ("metadata", {"name": "x" * 46}, "metadata.name"),
        ("metadata", {"name": "1st"}, "metadata.name"),
        ("metadata", {}, "metadata.name"),
        ("spec", None, "spec"),
    ],
)
def test_a_mistake_outside_the_spec_is_named(field: str, value: object, path: str) -> None:
    with pytest.raises(InvalidJob) as caught:
        parse_job({**sample_document(), field: value})
    assert [problem.path for problem in caught.value.problems] == [path]


def test_all_mistakes_are_told_at_once() -> None:
    def change(spec: Spec) -> None:
        spec["precision"] = "half"
        spec["model"]["numAttentionHeads"] = 3
        spec["stages"][PHASE1]["pretrain"].update(sequenceLength=1024, microBatchSize="32", length={})
        del spec["stages"][PHASE1]["pretrain"]["globalBatchSize"]
        spec["stages"][EVALUATE]["name"] = "phase1"

    assert {problem.path for problem in problems_of(change)} == {
        "spec.precision",
        "spec.model.numAttentionHeads",
        f"{P1}.sequenceLength",
        f"{P1}.microBatchSize",
        f"{P1}.globalBatchSize",
        f"{P1}.length",
        "spec.stages[2].name",
    }


def test_a_rule_is_silent_about_a_field_that_is_wrong_itself() -> None:
    # The placeholder for the batch size is smaller than the micro-batch; that is nobody's mistake.
    problems = problems_of(pretrain(globalBatchSize="64", microBatchSize=32))
    assert [problem.path for problem in problems] == [f"{P1}.globalBatchSize"]


def test_a_misspelt_kind_is_not_reported_as_missing_data_too() -> None:
    problems = problems_of(lambda spec: spec["stages"][PREPARE].update(prepair=spec["stages"][PREPARE].pop("prepare")))
    assert [problem.path for problem in problems] == ["spec.stages[0].prepair"]
    assert "did you mean prepare?" in str(problems[0])


def test_a_long_value_is_shortened() -> None:
    problem = problems_of(put("precision", value="x" * 500))[0]
    assert len(problem.got) == 60
