"""Releases side by side and after each other: fields that a newer one knows, statuses that it wrote, and going back.

Inputs: jobs, ConfigMaps and statuses as another release leaves them. Observed: children, status, Events.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest

from bert_operator.api.crd import render_crd
from bert_operator.api.parsing.validation import parse_job
from bert_operator.api.schema.status import OLDEST_OPERATOR
from bert_operator.cluster.settings import Settings
from bert_operator.cluster.settings_rules import read_cluster_job
from bert_operator.render.frozen import agrees, data_hash, freeze, render_config_map
from frozen_walk import attempts, blocked, frozen, go_on, kill, put, start, world
from job_walk import World
from kept_release import release_before
from sample_job import Document, sample_document


def with_newer_fields(spec: Document) -> Document:
    return {**spec, "colour": "red", "model": {**spec["model"], "depth": 3}}


def add_newer_fields(world: World) -> None:
    """Have the API server fill in what only a newer definition knows."""
    assert world.job is not None
    world.cluster.update(world.job, spec=with_newer_fields(world.job["spec"]))
    world.operators[0].catch_up()


def test_a_started_job_goes_on_under_a_newer_definition() -> None:
    here = world()
    start(here)
    add_newer_fields(here)
    go_on(here)
    assert here.status()["phase"] == "Running"
    kill(here)
    go_on(here)
    assert 2 in attempts(here)


def test_a_job_that_has_not_started_says_that_it_wants_a_newer_operator() -> None:
    here = world()
    add_newer_fields(here)
    go_on(here)
    assert here.children() == []
    assert here.status()["phase"] == "Invalid"
    assert "spec.colour" in here.status()["message"]
    assert "newer release of the operator" in here.status()["message"]


def freeze_as_newer(world: World, **changes: Any) -> None:
    """Have the job frozen, and its hash written, as a release does that knows more fields."""
    genuine = frozen(world)
    spec = {**with_newer_fields(json.loads(genuine["data"]["spec.json"])), **changes}
    put(world, {**genuine, "data": {**genuine["data"], "spec.json": json.dumps(spec)}})
    assert world.job is not None
    world.cluster.update(world.job, status={**world.status(), "frozenHash": data_hash(frozen(world))})
    world.operators[0].catch_up()


def test_what_a_newer_release_has_frozen_is_run_again() -> None:
    here = world()
    start(here)
    freeze_as_newer(here)
    kill(here)
    go_on(here)
    assert 2 in attempts(here)


def test_what_it_has_frozen_and_this_one_cannot_read_is_reported() -> None:
    here = world()
    start(here)
    freeze_as_newer(here, precision="fp4")
    kill(here)
    go_on(here)
    assert 2 not in attempts(here)
    assert blocked(here)["reason"] == "FrozenConfigurationUnreadable"
    assert "spec.precision" in blocked(here)["message"]


def test_a_rule_that_came_after_its_start_does_not_stop_a_job() -> None:
    here = world()
    start(here)
    env = [{"name": "KEY", "secret": {"name": "other-a1-ssh", "key": "ssh-privatekey"}}]
    freeze_as_newer(here, env=env)
    assert here.job is not None
    here.cluster.update(here.job, spec={**here.job["spec"], "env": env})
    kill(here)
    go_on(here)
    assert 2 in attempts(here)


def test_a_job_that_cannot_be_read_while_it_runs_is_reported_and_not_disturbed() -> None:
    here = world()
    start(here)
    freeze_as_newer(here, precision="fp4")
    assert here.job is not None
    here.cluster.update(here.job, spec={**here.job["spec"], "precision": "fp4"})
    before = here.status()
    go_on(here)
    assert blocked(here)["reason"] == "FrozenConfigurationUnreadable"
    assert here.status()["phase"] == before["phase"] == "Running"
    assert len(here.children()) == 1


@pytest.mark.parametrize("wanted", ["0.99.0", "0.100.0", "1.0.0", "2027.1"])
def test_a_job_that_wants_a_newer_operator_is_left_alone(wanted: str) -> None:
    here = world()
    start(here)
    assert here.job is not None
    here.cluster.update(here.job, status={**here.status(), "minOperatorVersion": wanted, "phase": "Hibernating"})
    kill(here)
    before = here.job
    go_on(here)
    assert here.job == before
    assert attempts(here) == [1]
    (event,) = [event for _, event in here.operators[0].told.events if event.reason == "OperatorTooOld"]
    assert wanted in event.message
    here.cluster.update(here.job, status={**here.status(), "minOperatorVersion": OLDEST_OPERATOR, "phase": "Running"})
    go_on(here)
    assert 2 in attempts(here)


@pytest.mark.parametrize("written", ["0.1.9", "0.2.0", None])
def test_one_that_wants_this_operator_or_an_older_one_is_carried_on(written: str | None) -> None:
    here = world()
    start(here)
    assert here.job is not None
    here.cluster.update(here.job, status={**here.status(), "minOperatorVersion": written})
    kill(here)
    go_on(here)
    assert 2 in attempts(here)
    assert here.status()["minOperatorVersion"] == OLDEST_OPERATOR


def test_what_the_release_before_has_frozen_is_taken_over_without_a_status() -> None:
    kept = release_before()
    job, config_map = kept.manifest("job"), kept.manifest("frozen-configmap")
    settings = Settings(trainer_image="registry.invalid/bert-operator/trainer:0.3.0")
    own = freeze(read_cluster_job(job, settings), default_image=settings.trainer_image)
    assert agrees(config_map, own, lambda image: image == "registry.invalid/bert-operator/trainer:0.2.0")
    assert not agrees(config_map, own, lambda _: False)
    other = copy.deepcopy(config_map)
    other["data"]["run-config.json"] = other["data"]["run-config.json"].replace("two-workers", "else", 3)
    assert not agrees(other, own, lambda _: True)


@pytest.mark.parametrize("text", ["[]", "null", '{"contract_version": 2}', "[" * 5000])
def test_a_run_configuration_that_is_none_is_not_taken_over(text: str) -> None:
    settings = Settings(trainer_image="registry.invalid/bert-operator/trainer:0.3.0")
    own = freeze(read_cluster_job(release_before().manifest("job"), settings), default_image=settings.trainer_image)
    found = copy.deepcopy(dict(render_config_map(own)))
    assert agrees(found, own, lambda _: False)
    found["data"]["run-config.json"] = text
    assert not agrees(found, own, lambda _: False)


def test_a_run_configuration_that_leaves_out_what_the_job_says_is_not_taken_over() -> None:
    settings = Settings(trainer_image="registry.invalid/bert-operator/trainer:0.3.0")
    job = release_before().manifest("job")
    job["spec"]["precision"] = "bf16"
    own = freeze(read_cluster_job(job, settings), default_image=settings.trainer_image)
    found = copy.deepcopy(dict(render_config_map(own)))
    document = json.loads(found["data"]["run-config.json"])
    del document["precision"]
    found["data"]["run-config.json"] = json.dumps(document)
    assert not agrees(found, own, lambda _: False)


def nodes(schema: Document, path: str = "spec") -> Iterator[tuple[str, Document]]:
    yield path, schema
    for name, inner in schema.get("properties", {}).items():
        yield from nodes(inner, f"{path}.{name}")
    if "items" in schema:
        yield from nodes(schema["items"], f"{path}[]")


def spec_of(definition: Document) -> Document:
    (version,) = definition["spec"]["versions"]
    found: Document = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
    return found


_BY_ARCHITECTURE = (
    "it depends on the architecture by now; apply leaves what is stored, replace of such a job is refused"
)
CHANGED_DEFAULTS: dict[str, str] = {
    "spec.model.maxPositionEmbeddings": _BY_ARCHITECTURE,
    "spec.model.hiddenDropout": _BY_ARCHITECTURE,
    "spec.model.attentionDropout": _BY_ARCHITECTURE,
    "spec.model.layerNormEpsilon": _BY_ARCHITECTURE,
}
"""Path -> why. The API server refuses an unchanged manifest of a started job that it has filled the former one into."""


def test_the_definition_writes_nothing_into_jobs_that_the_release_before_does_not_know() -> None:
    """Else each new job would be invalid for an operator of that release; so a new field has no default."""
    before = dict(nodes(spec_of(release_before().manifest("crd"))))
    for path, node in nodes(spec_of(render_crd())):
        parent = path.rpartition(".")[0]
        if path not in before:
            assert parent not in before or "default" not in node, f"{path} is new: write its default in a docstring"
        # Where there was none, the API server fills the new one into stored jobs as well when it reads them.
        elif path not in CHANGED_DEFAULTS and "default" in before[path]:
            assert node.get("default") == before[path].get("default"), f"{path}: see CHANGED_DEFAULTS"
        elif isinstance(node.get("default"), str) and "enum" in before[path]:
            assert node["default"] in before[path]["enum"], f"{path}: the default is unknown to the release before"


def test_what_is_frozen_of_a_job_without_new_fields_is_known_to_the_release_before() -> None:
    """Else that release, gone back to, could not retry what this one has started."""
    known = dict(nodes(spec_of(release_before().manifest("crd"))))

    def paths(value: object, path: str = "spec") -> Iterator[str]:
        yield path
        # What a definition leaves to others, such as labels, has names of its own.
        if isinstance(value, dict) and "properties" in known.get(path, {}):
            for name, inner in value.items():
                yield from paths(inner, f"{path}.{name}")
        elif isinstance(value, list):
            for inner in value:
                yield from paths(inner, f"{path}[]")

    document = sample_document()
    document["metadata"]["uid"] = "1"
    text = render_config_map(freeze(parse_job(document), default_image="i:1"))["data"]["spec.json"]
    assert set(paths(json.loads(text))) <= set(known)
