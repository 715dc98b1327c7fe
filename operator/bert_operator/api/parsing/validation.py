"""From a document to a valid job, or to the list of everything that is wrong with it. Pure."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError
from pydantic.alias_generators import to_camel

from bert_job import optimizers, recipes
from bert_job.problems import render_path, render_value
from bert_job.upgrades import upgrade_job
from bert_operator.api.parsing import schema_problems
from bert_operator.api.parsing.json_values import find_nulls, normalise
from bert_operator.api.rules import all_rules, size_bound
from bert_operator.api.rules.environment_rules import environment_remarks
from bert_operator.api.schema.bert_pretrain_job import BertPretrainJob
from bert_operator.errors import InvalidJob


def parse_job(document: dict[str, Any]) -> BertPretrainJob:
    """Read a job from a YAML file or from the API server; its ``status`` is ignored.

    Raises:
        InvalidJob: with the problems of single fields (unknown, missing, wrong values), of every field at once; where
            there are none, with all combinations of fields that cannot work.
    """
    document = {key: value for key, value in document.items() if key != "status"}
    try:
        job = _validate(document)
    except ValidationError as error:
        raise InvalidJob(schema_problems.problems_of(error)) from None
    check_rules(job)
    # Last, and alone: the size of a job is measured by a schema that it has to follow.
    if problems := size_bound.size_problems(document):
        raise InvalidJob(problems)
    return job


def parse_started_job(document: dict[str, Any], *, by_rules: bool = True) -> BertPretrainJob:
    """Read a job that has started: fields that only a newer release knows, and has filled in, are ignored.

    Args:
        document: the object; its spec may be the one that was frozen for the first attempt.
        by_rules: whether rules between fields are checked. What was frozen kept the rules of its release.

    Raises:
        InvalidJob: with all other problems. The size is not checked: what has started is not too large.
    """
    document = upgrade_job({key: value for key, value in document.items() if key != "status"})
    try:
        job = _validate(document)
    except ValidationError as error:
        unknown = [item for item in error.errors() if item["type"] == "extra_forbidden"]
        try:
            job = _validate(schema_problems.drop_unknown(document, unknown))
        except ValidationError as other:
            raise InvalidJob(schema_problems.problems_of(other)) from None
    if by_rules:
        check_rules(job)
    return job


def check_rules(job: BertPretrainJob) -> None:
    """Check the rules between fields again, for a job whose fields were changed after it was read.

    Raises:
        InvalidJob: with all problems at once.
    """
    if problems := list(all_rules.find_problems(job)):
        raise InvalidJob(problems)


def null_remarks(document: dict[str, Any]) -> list[str]:
    """Return remarks on nulls of a job's document that stand in place of a default, in its order.

    A tool that merges deletes them before anybody reads them; whoever writes one may mean something else.
    """
    return [
        f"{render_path(path)}: null is as if it were left out, which is {render_value(default)}; "
        "write the value that is meant"
        for path, default in find_nulls(document)
    ]


def advise(job: BertPretrainJob) -> list[str]:
    """Return remarks on valid but unusual settings, and on what a recipe sets."""
    remarks = []
    if job.spec.precision == "fp64":
        remarks.append("spec.precision: fp64 is for exact comparisons; fp32 trains as well and far faster")
    if job.spec.precision == "tf32":
        remarks.append("spec.precision: tf32 acts on NVIDIA GPUs from Ampere on only; elsewhere it is fp32")
    # partitioning is of both.
    unused = sorted(job.spec.optimizer.model_fields_set - {"partitioning"})
    if unused and all(stage.pretrain is None for stage in job.spec.stages):
        fields = ", ".join(map(to_camel, unused))
        remarks.append(f"spec.optimizer: {fields} are for pretrain stages; a finetune stage has finetune.optimizer")
    for number, stage in enumerate(job.spec.stages):
        batch = stage.pretrain.global_batch_size if stage.pretrain else 0
        if batch % job.spec.ranks:
            remarks.append(
                f"spec.stages[{number}].pretrain.globalBatchSize: {batch} is no multiple of {job.spec.ranks} "
                "ranks; the result is the same, but some ranks wait for others"
            )
    found = (*environment_remarks(job.spec), *optimizers.describe_unusual(job.spec))
    return [*remarks, *found, *recipes.describe_recipe(job.spec)]


def _validate(document: dict[str, Any]) -> BertPretrainJob:
    # A field has one name in a job: snake_case is told to be a mistake.
    return BertPretrainJob.model_validate(normalise(document), by_alias=True, by_name=False)
