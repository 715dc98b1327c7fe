"""A null is as if the field were left out: tools that merge (kustomize, kubectl apply, Helm) delete it on the way."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from bert_operator.api.crd import render_crd
from bert_operator.api.parsing.json_values import normalise
from bert_operator.api.parsing.validation import null_remarks, parse_job
from bert_operator.api.schema.json_schema import Node, job_node
from bert_operator.cluster.settings import Settings, load_settings
from bert_operator.errors import InvalidJob, SettingsError
from bert_operator.render.frozen import freeze, render_config_map, thaw
from finetune_cases import finetune
from job_changes import both, put
from sample_job import Document, sample_document, sample_job

CHART = Path(__file__).parents[2] / "charts/bert-operator"
UID = "12345678-1234-1234-1234-123456789abc"
HEAD = {
    "apiVersion": "bert-operator.dev/v1alpha1",
    "kind": "BertPretrainJob",
    "metadata": {"name": "demo", "uid": UID},
    "spec": {},
}


def places(node: Node, path: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], Node, bool]]:
    """Yield every field of a document with what may stand there, and whether it is required."""
    for name, field in node.fields.items():
        here = (*path, name)
        yield here, field, name in node.schema.get("required", ())
        yield from places(field, here)
        if field.entries is not None:
            yield from places(field.entries, (*here, 0))


def around(path: tuple[str | int, ...], /, **last: object) -> Any:
    """Return a document that has the sections on the way to a field, and in the last of them this."""
    value: Any = last
    for part in reversed(path[:-1]):
        value = [value] if isinstance(part, int) else {part: value}
    return value


def test_null_and_absent_are_read_the_same_at_every_place_of_a_job() -> None:
    found = list(places(job_node()))
    assert len(found) > 400
    differing = [
        path
        for path, _, is_required in found
        if not is_required and normalise(around(path, **{str(path[-1]): None})) != normalise(around(path))
    ]
    assert differing == []


def test_a_required_field_that_is_null_is_refused_by_name() -> None:
    for field in ("model", "stages", "output"):
        with pytest.raises(InvalidJob, match=rf"spec\.{field}: got null"):
            sample_job(put(field, value=None))


def test_no_field_of_the_definition_may_be_null() -> None:
    assert "nullable" not in json.dumps(render_crd())


def run_config(job: Any) -> Any:
    frozen = freeze(job, default_image="trainer:1")
    return json.loads(render_config_map(frozen)["data"]["run-config.json"])


def identified(change: Any) -> Any:
    document = sample_document(change)
    document["metadata"]["uid"] = UID
    return parse_job(document)


@pytest.mark.parametrize(
    ("written", "trained"), [({}, 1.0), ({"maxGradientNorm": 0}, 0.0), ({"maxGradientNorm": 2}, 2)]
)
def test_zero_is_no_clipping(written: Document, trained: float | None) -> None:
    job = identified(both(put("optimizer", value=written), finetune(optimizer=written)))
    config = run_config(job)
    assert config["optimizer"]["max_gradient_norm"] == trained
    assert [stage["optimizer"]["max_gradient_norm"] for stage in config["stages"] if stage["kind"] == "finetune"] == [
        trained
    ]


def test_no_clipping_survives_being_frozen() -> None:
    job = identified(put("optimizer", "maxGradientNorm", value=0))
    frozen = freeze(job, default_image="trainer:1")
    data = render_config_map(frozen)["data"]
    assert json.loads(data["spec.json"])["optimizer"]["maxGradientNorm"] == 0
    assert thaw(HEAD, data).job.spec.optimizer.max_gradient_norm == 0
    assert frozen.spec_hash != freeze(identified(None), default_image="trainer:1").spec_hash


def test_a_null_in_place_of_another_default_is_remarked_on() -> None:
    document = sample_document(put("optimizer", "maxGradientNorm", value=None))
    document["spec"]["resources"] = {"rdma": None}
    document["spec"]["stages"][1]["pretrain"]["warmup"] = None
    assert null_remarks(document) == [
        'spec.stages[1].pretrain.warmup: null is as if it were left out, which is {"proportion": 0.1}; '
        "write the value that is meant",
        "spec.optimizer.maxGradientNorm: null is as if it were left out, which is 1.0; write the value that is meant",
    ]


def settings_places(model: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    for field in model.model_fields.values():
        yield (*path, field.alias)
    if model is Settings:
        limits = model.model_fields["limits"].annotation
        yield from settings_places(limits, ("limits",))
        yield from settings_places(limits.__mro__[1], ("limits", "namespaces", "team"))
        yield ("profiles", "any")
        yield ("profiles", "any", "resources", "memory")


BOUNDS = {"images": ["good.example"], "ranksPerNamespace": 8, "priorityClasses": ["low"]}


def test_null_and_absent_are_read_the_same_in_the_settings(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"

    def load(path: tuple[str | int, ...], /, **last: object) -> Settings:
        document = around(path, **last)
        if path[:2] == ("limits", "namespaces"):
            document["limits"] |= BOUNDS
        file.write_text(json.dumps(document))
        return load_settings(file)

    found = list(settings_places(Settings))
    assert len(found) > 40
    differing = [
        path
        for path in found
        if load(path, **{str(path[-1]): None}) != load(path)
        or load(path, **{str(path[-1]): None}).limits.of("team") != load(path).limits.of("team")
    ]
    assert differing == []


def test_a_namespace_without_a_bound_says_any(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    given = {**BOUNDS, "namespaces": {"team": {"images": "any", "ranksPerNamespace": "any"}, "other": {"images": []}}}
    file.write_text(json.dumps({"limits": given}))
    limits = load_settings(file).limits
    team, other = limits.of("team"), limits.of("other")
    assert (team.images, team.ranks_per_namespace, team.priority_classes) == (None, None, ("low",))
    assert (other.images, other.ranks_per_namespace) == ((), 8)


def test_a_null_does_not_open_a_profile_to_all_namespaces(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("profiles: {rdma: {network: {lockMemory: true}}}\nprofileNamespaces:\n  rdma:\n    # - nlp-large\n")
    with pytest.raises(SettingsError, match=re.escape("profileNamespaces.rdma: got None")):
        load_settings(file)


def test_helm_refuses_a_null_whose_deletion_would_change_the_operator() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())["properties"]["settings"]
    values = yaml.safe_load((CHART / "values.yaml").read_text())["settings"]
    defaults = Settings().model_dump(by_alias=True, mode="json")
    differing = [name for name, value in values.items() if value not in (defaults[name], {})]
    assert schema["required"] == differing == ["jobNetworkPolicy"]


def test_another_word_for_a_bound_is_refused_by_name(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(json.dumps({"limits": {"namespaces": {"team": {"ranksPerNamespace": "all"}}}}))
    with pytest.raises(SettingsError, match=re.escape("limits.namespaces.team.ranksPerNamespace")):
        load_settings(file)
