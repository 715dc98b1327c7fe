"""What is accepted, and what it becomes."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from bert_job import model as presets
from bert_operator.api.parsing.validation import advise, check_rules, parse_job
from bert_operator.api.schema.bert_pretrain_job import BertPretrainJob
from bert_operator.api.schema.conditions import ConditionType, FailureReason, Reason
from bert_operator.errors import InvalidJob
from finetune_cases import MODEL, alone, finetune
from job_changes import both, put
from sample_job import PHASE1, sample_document, sample_job


def test_defaults_are_those_of_the_documentation() -> None:
    spec = sample_job().spec
    assert (spec.workers, spec.slots_per_worker, spec.ranks, spec.seed, spec.precision) == (
        1,
        2,
        2,
        42,
        "fp32",
    )
    assert (spec.run_policy.application_retries, spec.run_policy.infrastructure_retries) == (1, 3)
    assert (spec.output.if_exists, spec.checkpoint.keep, spec.optimizer.name) == ("Fail", 3, None)


def test_an_integer_is_a_number() -> None:
    assert sample_job(lambda spec: spec.update(optimizer={"weightDecay": 0})).spec.optimizer.weight_decay == 0.0


def test_null_is_no_entry_of_a_map() -> None:
    labels = {"a": None, "b": "c"}
    assert sample_job(lambda spec: spec.update(scheduling={"nodeSelector": labels})).spec.scheduling.node_selector == {
        "b": "c"
    }


def test_null_stands_for_a_default_wherever_there_is_one() -> None:
    def change(spec: dict[str, object]) -> None:
        spec.update(workers=None, optimizer={"beta1": None}, cpu=None, env=None, resources={"rdma": None})

    assert sample_job(change) == sample_job()


def test_a_whole_number_is_an_integer_however_it_is_written() -> None:
    def change(spec: dict[str, object]) -> None:
        spec.update(workers=2.0, seed=-0.0, resources={"cpu": 4.0, "memory": "4Gi"})

    spec = sample_job(change).spec
    assert (spec.workers, spec.seed, spec.resources.cpu, spec.resources.memory) == (2, 0, 4, "4Gi")


def test_metadata_and_status_of_the_api_server_are_left_alone() -> None:
    document = sample_document()
    document["metadata"] |= {"uid": "1", "generation": 3, "labels": {"a": "b"}, "managedFields": []}
    document["status"] = {"phase": "Running", "from": "a newer release"}
    job = parse_job(document)
    assert (job.metadata.generation, str(job.ref)) == (3, "default/demo")


def test_the_document_is_not_changed_by_reading_it() -> None:
    document = sample_document(lambda spec: spec.update(colour=1))
    with pytest.raises(InvalidJob):
        parse_job(document)
    assert document == sample_document(lambda spec: spec.update(colour=1))


def test_a_job_never_changes() -> None:
    with pytest.raises(ValidationError):
        sample_job().spec.seed = 1  # type: ignore[misc]


def test_own_sizes_override_the_preset() -> None:
    job = sample_job(lambda spec: spec.update(model={"preset": "base", "numHiddenLayers": 3}))
    size = presets.resolve_size(job.spec.model)
    assert (size.num_hidden_layers, size.hidden_size, size.intermediate_size) == (3, 768, 3072)


def test_distilbert_predicts_masked_tokens_only() -> None:
    model = sample_job(lambda spec: spec.update(model={"preset": "distilbert"})).spec.model
    assert presets.resolve_objective(model) == "mlm"
    assert presets.resolve_architecture(model) == "distilbert"


def test_ranks_are_checked_again_when_machines_change() -> None:
    changed = sample_job().with_world(workers=33, slots_per_worker=2)
    with pytest.raises(InvalidJob, match=r"globalBatchSize: got 64; allowed: at least 66"):
        check_rules(changed)


def test_a_remark_is_made_on_what_is_seldom_meant() -> None:
    def change(spec: dict[str, object]) -> None:
        spec.update(precision="tf32", slotsPerWorker=3)

    remarks = advise(sample_job(change))
    assert [remark.split(":")[0] for remark in remarks] == [
        "spec.precision",
        f"spec.stages[{PHASE1}].pretrain.globalBatchSize",
    ]
    assert advise(sample_job()) == []


def test_an_optimizer_that_nothing_uses_is_remarked_on() -> None:
    given = put("optimizer", value={"name": "adamw", "weightDecay": 0.1, "partitioning": "zero1"})
    assert advise(sample_job(both(alone(MODEL), given))) == [
        "spec.optimizer: name, weightDecay are for pretrain stages; a finetune stage has finetune.optimizer"
    ]
    assert advise(sample_job(both(finetune(), given))) == []
    assert advise(sample_job(both(alone(MODEL), put("optimizer", value={"partitioning": "zero1"})))) == []


def test_every_field_is_documented() -> None:
    schema = BertPretrainJob.model_json_schema()
    undocumented = [
        f"{name}.{field}"
        for name, section in schema["$defs"].items()
        for field, inner in section["properties"].items()
        if not inner.get("description")
    ]
    assert undocumented == []


def test_every_text_and_list_is_bounded() -> None:
    def unbounded(schema: dict[str, object], path: str) -> list[str]:
        found = []
        if schema.get("type") == "string" and not {"maxLength", "enum", "const"} & schema.keys():
            found.append(path)
        if schema.get("type") == "array" and "maxItems" not in schema:
            found.append(path)
        for key, inner in schema.items():
            for part in inner if isinstance(inner, list) else [inner]:
                if isinstance(part, dict):
                    found += unbounded(part, f"{path}.{key}")
        return found

    assert unbounded(BertPretrainJob.model_json_schema(), "") == []


@pytest.mark.parametrize("names", [ConditionType, Reason, FailureReason])
def test_every_reason_has_a_sentence(names: type[ConditionType | Reason | FailureReason]) -> None:
    for name in names:
        assert name.value.isalnum()
        assert name.value[0].isupper()
        assert name.sentence.endswith(".")
