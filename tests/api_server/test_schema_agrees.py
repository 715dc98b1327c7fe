"""The API server and our own reader accept the same jobs, and read the same out of them.

Jobs are drawn by chance (``job_documents``) and sent as ``dryRun``, so that nothing is stored. What only our reader
refuses is what ``is_for_the_controller`` lists; why stands at the rules.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection
from typing import Any

import pytest

from bert_job.section import Section
from bert_operator.api.crd import render_crd
from bert_operator.api.parsing.profiles import PLATFORM_FIELDS
from bert_operator.api.parsing.validation import parse_job
from bert_operator.api.schema.bert_pretrain_job import BertPretrainJob
from bert_operator.errors import InvalidJob
from cluster_api import Answer, Api
from job_documents import as_kubectl_sends_it, draw_document, wrong_fields
from rule_cases import CONTROLLER_CASES, RULE_CASES
from sample_job import Document, sample_document

BATCHES = [range(start, start + 500) for start in range(1_000_000, 1_003_000, 500)]
"""Numbers of the documents, other than those of the pure tests; ``draw_document(NUMBER)`` gives one again."""
NAMESPACE = "default"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def read(document: Document) -> BertPretrainJob | list[str]:
    """Return the job, or what is wrong with it."""
    try:
        return parse_job(document)
    except InvalidJob as error:
        return [str(problem) for problem in error.problems]


_MAY_COME_FROM_A_PROFILE = re.compile(
    r"spec\.(cpu\.(sockets|numaNodes|coresPerRank)|((worker|launcher)\.)?resources\.memory): required:"
    r"|spec\.((worker|launcher)\.)?resources\.accelerator\.resourceClaim: got .*; allowed: the name of an entry"
    r"|spec\.(workloadPriorityClass|scheduling\.topology): got .*; allowed: nothing without queueName"
)


_MAY_BE_TRAINED_ON_BEFORE = re.compile(
    r"spec\.stages\[\d+\]\.(evaluate|pretrain\.evaluation)\.dataRange: got [^;]* and \S+ trains on [^;]*;"
)


# Amounts with a unit; those without one are numbers.
_IS_AN_AMOUNT_IN_TEXT = re.compile(r'spec\.(worker\.)?resources\.cpu: got "')


# Variables and the fields that decide them may both come from a profile.
_CONTRADICTS_A_FIELD = re.compile(r'spec\.env\[\d+\]\.value: got "[^"]*" for [A-Z0-9_]+; allowed: ')


_IS_A_LABEL = re.compile(r"spec\.stages\[\d+\]\.finetune\.data\.labels\[\d+\]: got .* again;", re.DOTALL)


def is_for_the_controller(problems: list[str]) -> bool:
    """Tell whether all that is wrong is what the API server cannot see, or cannot judge."""
    return all(
        (problem.startswith("spec.stages[") and ".evaluate.maxPredictionsPerSequence: got" in problem)
        or problem.startswith("spec.slotsPerWorker: got 1; allowed: a multiple of cpu.")
        or _MAY_COME_FROM_A_PROFILE.match(problem)
        or _MAY_BE_TRAINED_ON_BEFORE.match(problem)
        or _CONTRADICTS_A_FIELD.match(problem)
        or _IS_A_LABEL.match(problem)
        or _IS_AN_AMOUNT_IN_TEXT.match(problem)
        for problem in problems
    )


def lean(value: Any) -> Any:
    """Return a value without fields that hold nothing."""
    if isinstance(value, dict):
        cleaned = {key: lean(item) for key, item in value.items()}
        return {key: item for key, item in cleaned.items() if item not in (None, [], {})}
    return [lean(item) for item in value] if isinstance(value, list) else value


def as_stored(job: BertPretrainJob) -> Document:
    """Return a spec with the defaults that the server fills in: none where a profile may."""
    filled = job.spec.model_dump(mode="json", by_alias=True)
    return {**filled, **dict.fromkeys(PLATFORM_FIELDS), **written(job.spec, PLATFORM_FIELDS)}


def written(section: Section, names: Collection[str]) -> Document:
    """Return what a section says itself; entries of lists are filled in."""
    found = {}
    for name in section.model_fields_set:
        value, alias = getattr(section, name), str(type(section).model_fields[name].alias or name)
        if alias not in names:
            continue
        if isinstance(value, Section):
            found[alias] = written(value, [str(field.alias) for field in type(value).model_fields.values()])
        else:
            found[alias] = section.model_dump(mode="json", by_alias=True, include={name})[alias]
    return found


def disagreement(document: Document, answer: Answer) -> str:
    """Return what the two readers see differently; empty: nothing."""
    ours = read(document)
    if answer.status not in (201, 400, 422):
        return f"the API server answered {answer.status}: {answer.message}"
    if isinstance(ours, list):
        if answer.status == 201 and not is_for_the_controller(ours):
            return f"only we refuse it: {ours}"
        return ""
    if answer.status != 201:
        return f"only the API server refuses it: {answer.message}"
    if parse_job(answer.body).spec != ours.spec:
        return f"read back it means something else: {answer.body['spec']}"
    if lean(answer.body["spec"]) != lean(as_stored(ours)):
        return f"other defaults: {answer.body['spec']}"
    return ""


def assert_agreement(api: Api, documents: dict[str, Document]) -> Counter[int]:
    """Fail with the first documents that are seen differently; return how often which answer came."""
    sent = [as_kubectl_sends_it(document) for document in documents.values()]
    answers = api.create_all([named(each) for each in sent], NAMESPACE, dry_run=True)
    found = [
        f"{name}: {difference}"
        for (name, document), answer in zip(documents.items(), answers, strict=True)
        if (difference := disagreement(document, answer))
    ]
    assert not found, f"{len(found)} of {len(documents)}:\n" + "\n".join(found[:5])
    return Counter(answer.status for answer in answers)


@pytest.mark.parametrize("numbers", BATCHES, ids=lambda numbers: f"{numbers.start}-{numbers.stop - 1}")
def test_jobs_drawn_by_chance(api: Api, numbers: range) -> None:
    statuses = assert_agreement(api, {f"draw_document({number})": draw_document(number) for number in numbers})
    assert statuses[201] > len(numbers) / 5


def test_wrong_values_in_every_field(api: Api) -> None:
    documents = dict(wrong_fields(documents=2500))
    fields = {name.partition(" = ")[0] for name in documents}
    assert len(fields) > 200, "few fields of the schema stand in these documents"
    assert_agreement(api, documents)


def test_both_sides_of_every_rule(api: Api) -> None:
    kept = {f"{name}, kept": sample_document(case.keeps) for name, case in RULE_CASES.items()}
    broken = {f"{name}, broken": sample_document(case.breaks) for name, case in RULE_CASES.items()}
    assert assert_agreement(api, kept) == {201: len(RULE_CASES)}
    assert assert_agreement(api, broken) == {422: len(RULE_CASES) - len(CONTROLLER_CASES), 201: len(CONTROLLER_CASES)}


def test_every_rule_of_the_definition_was_broken_by_some_job(api: Api) -> None:
    def messages(schema: Any) -> set[str]:
        parts = list(schema.values()) if isinstance(schema, dict) else schema if isinstance(schema, list) else []
        rules = schema.get("x-kubernetes-validations", ()) if isinstance(schema, dict) else ()
        return {rule["message"] for rule in rules}.union(*(messages(part) for part in parts))

    bad_key = sample_document(lambda spec: spec.update(scheduling={"nodeSelector": {"a b": "c"}}))
    documents = [bad_key, *(sample_document(case.breaks) for case in RULE_CASES.values())]
    said = "\n".join(answer.message for answer in api.create_all(documents, NAMESPACE, dry_run=True))
    (version,) = render_crd()["spec"]["versions"]
    rules = messages(version["schema"]["openAPIV3Schema"]["properties"]["spec"])
    assert {rule for rule in rules if rule not in said} == set()


@pytest.mark.parametrize(
    ("name", "is_fine"),
    [("x" * 45, True), ("x" * 46, False), ("a.b", False), ("Demo", False), ("1st", False), ("a-", False), ("a", True)],
)
def test_names_of_jobs(api: Api, name: str, is_fine: bool) -> None:
    document = {**sample_document(), "metadata": {"name": name}}
    answer = api.create(document, NAMESPACE, dry_run=True)
    assert (answer.status == 201, isinstance(read(document), BertPretrainJob)) == (is_fine, is_fine)
    assert is_fine or "metadata.name: " in answer.message


def test_a_name_that_the_server_completes_is_one_of_ours(api: Api) -> None:
    generated = {**sample_document(), "metadata": {"generateName": "sweep-"}}
    answer = api.create(named(generated), NAMESPACE, dry_run=True)
    assert parse_job(answer.expect(201)).metadata.name.startswith("sweep-")


def named(document: Document) -> Document:
    """Return the document with metadata that a client can find its way with."""
    return {**document, "metadata": document.get("metadata") or {}}
