"""Every mistake is named by its path, what was found, what is allowed and what to do next."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bert_job.problems import ABSENT, Problem
from bert_operator.api.parsing.validation import parse_job
from bert_operator.errors import InvalidJob
from job_changes import Spec, both, drop, pretrain, put
from sample_job import EVALUATE, EXPORT, PHASE1, PREPARE, sample_document


def problems_of(change: Callable[[Spec], object]) -> list[Problem]:
    with pytest.raises(InvalidJob) as caught:
        parse_job(sample_document(change))
    return list(caught.value.problems)


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
        ("move it to one of spec.stages[].pretrain, spec.stages[].finetune",),
    ),
    "unknown field that resembles nothing": (put("colour", value=1), "spec.colour", ("remove it",)),
    "missing number": (
        drop("stages", PHASE1, "pretrain", "learningRate"),
        f"{P1}.learningRate",
        ("required", "a number, above 0 and at most 1", "add it (peak"),
    ),
    "missing section": (
        drop("output"),
        "spec.output",
        ("required", "an object with the fields ifExists, path"),
    ),
    "missing model": (drop("model"), "spec.model", ("required",)),
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
        ("fp32 | tf32 | bf32 | avx-fp32 | bf16 | fp16 | fp64", "did you mean bf16"),
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
    "export before training": (
        lambda spec: spec["stages"].insert(1, spec["stages"].pop(EXPORT)),
        "spec.stages[1].export",
        ("only after a pretrain stage",),
    ),
    "amount as a fraction without quotes": (
        put("resources", "cpu", value=1.5),
        "spec.resources.cpu",
        ("got 1.5", "an integer, at least 1 and at most 9007199254740992 or text", "put it in quotes"),
    ),
    "amount of nothing": (put("resources", "cpu", value=0), "spec.resources.cpu", ("got 0", "at least 1")),
    "amount in a unit that does not exist": (
        put("resources", "memory", value="64GB"),
        "spec.resources.memory",
        ('got "64GB"', "a unit of m, k, Ki, M, Mi, G, Gi"),
    ),
    "amount deep inside": (
        put("worker", "resources", value={"hugepages": {"2Mi": True}, "memory": "1Gi"}),
        "spec.worker.resources.hugepages.2Mi",
        ("got true",),
    ),
    "key that is no label": (
        put("scheduling", "nodeSelector", value={"a b": "c"}),
        "spec.scheduling.nodeSelector",
        ('got {"a b": "c"}', "at most 64 keys", "such as example.com/pool", "correct the keys"),
    ),
    "label that is no text": (
        put("scheduling", "nodeSelector", value={"example.com/gpu": 1}),
        "spec.scheduling.nodeSelector.example.com/gpu",
        ("got 1", "text of 0 to 63 characters", "put it in quotes"),
    ),
    "field of a pod": (
        put("resources", "limits", value={"cpu": 1}),
        "spec.resources.limits",
        ("use accelerator, cpu and memory",),
    ),
    "field of an MPIJob": (put("worker", "replicas", value=2), "spec.worker.replicas", ("use spec.workers",)),
    "field that lives one section below": (
        put("output", "volume", value={"claimName": "a", "nfs": {"server": "b", "path": "/c"}}),
        "spec.output.volume.claimName",
        ("move it to spec.output.volume.persistentVolumeClaim",),
    ),
    "mount path with a closing slash": (
        put("volumes", value=[{"name": "a", "source": {"hostPath": {"path": "/a"}, "mountPath": "/mnt/a/"}}]),
        "spec.volumes[0].source.mountPath",
        ('got "/mnt/a/"', "an absolute path without spaces"),
    ),
    "image with a blank that nobody sees": (
        put("image", value="trainer\u00a0:1"),
        "spec.image",
        ("without spaces",),
    ),
    "range beyond the data": (pretrain(dataRange={"end": 1.5}), f"{P1}.dataRange.end", ("at most 1",)),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_is_the_only_problem_and_says_what_to_do(case: str) -> None:
    change, path, words = MISTAKES[case]
    problems = problems_of(change)
    assert [problem.path for problem in problems] == [path]
    text = str(problems[0])
    is_missing = problems[0].got == ABSENT
    assert text.startswith(f"{path}: required: " if is_missing else f"{path}: got ")
    assert is_missing or "; allowed: " in text
    assert all(word in text for word in ("; next: ", *words)), text


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


def wrong_fields(spec: Spec) -> None:
    spec["precision"] = "half"
    spec["stages"][PHASE1]["pretrain"].update(microBatchSize="32")
    del spec["stages"][PHASE1]["pretrain"]["globalBatchSize"]


def wrong_combinations(spec: Spec) -> None:
    spec["model"]["numAttentionHeads"] = 3
    spec["stages"][PHASE1]["pretrain"].update(sequenceLength=1024, length={})
    spec["stages"][EVALUATE]["name"] = "phase1"


def test_all_wrong_fields_are_told_at_once_and_then_all_combinations_that_cannot_work() -> None:
    """As an API server does: a rule that judged what stands in for a wrong field would judge what nobody wrote."""
    fields = {"spec.precision", f"{P1}.microBatchSize", f"{P1}.globalBatchSize"}
    assert {problem.path for problem in problems_of(both(wrong_combinations, wrong_fields))} == fields
    combinations = {"spec.model.numAttentionHeads", f"{P1}.sequenceLength", f"{P1}.length", "spec.stages[2].name"}
    assert {problem.path for problem in problems_of(wrong_combinations)} == combinations


def test_a_misspelt_kind_is_not_reported_as_missing_data_too() -> None:
    problems = problems_of(lambda spec: spec["stages"][PREPARE].update(prepair=spec["stages"][PREPARE].pop("prepare")))
    assert [problem.path for problem in problems] == ["spec.stages[0].prepair"]
    assert "did you mean prepare?" in str(problems[0])


def test_a_long_value_is_shortened() -> None:
    problem = problems_of(put("precision", value="x" * 500))[0]
    assert len(problem.got) == 60


def test_a_list_whose_entries_are_all_wrong_is_not_reported_as_well() -> None:
    found = problems_of(put("stages", value=["a", {"name": 1, "export": {}}]))
    assert [problem.path for problem in found] == ["spec.stages[0]", "spec.stages[1].name"]
    assert [problem.path for problem in problems_of(put("stages", value=[]))] == ["spec.stages"]
