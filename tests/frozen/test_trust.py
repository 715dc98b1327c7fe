"""What runs is what the operator froze: never what somebody else has put into the ConfigMap's place.

Inputs: the ConfigMap forged, lost or restored, the status lost, settings that have changed. Observed: children, status.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from bert_operator.cluster.settings import Settings
from fake_cluster import owned
from frozen_walk import CONFIG_MAP, attempts, blocked, frozen, go_on, kill, pods, put, start, unsigned, world
from job_walk import World
from sample_job import Document
from walking_operator import Fault, Operator

EVIL = {"network": {"hostNetwork": True}, "securityContext": {"runAsUser": 0}, "image": "evil"}
HOST = {"name": "host", "source": {"hostPath": {"path": "/"}, "mountPath": "/mnt/host"}}


def forged(config_map: Document, **changes: Any) -> Document:
    """The same with another spec, as whoever may write ConfigMaps can make it, its annotation included."""
    spec = {**json.loads(config_map["data"]["spec.json"]), **EVIL, "volumes": [HOST], **changes}
    return {**config_map, "data": {**config_map["data"], "spec.json": json.dumps(spec)}}


def test_a_forged_configuration_is_not_run_at_a_retry() -> None:
    here = world()
    start(here)
    kill(here)
    put(here, forged(frozen(here)))
    go_on(here)
    assert not any(pod.get("hostNetwork") for pod in pods(here))
    assert 2 not in attempts(here)
    assert blocked(here)["reason"] == "FrozenConfigurationUntrusted"
    assert CONFIG_MAP in blocked(here)["message"]


def test_a_forged_configuration_that_was_there_first_is_not_run() -> None:
    here = world()
    start(here)
    genuine = frozen(here)
    there = world()
    assert there.job is not None
    metadata = {
        "name": CONFIG_MAP,
        "ownerReferences": owned(there.job),
        "annotations": genuine["metadata"]["annotations"],
    }
    put(there, {**forged(genuine), "metadata": metadata})
    go_on(there)
    assert there.children() == []
    assert blocked(there)["reason"] == "FrozenConfigurationUntrusted"
    there.cluster.remove(frozen(there))
    go_on(there)
    assert attempts(there) == [1]
    assert "hostNetwork" not in pods(there)[0]


def test_another_run_configuration_alone_is_noticed() -> None:
    here = world()
    start(here)
    kill(here)
    genuine = frozen(here)
    put(here, {**genuine, "data": {**genuine["data"], "run-config.json": "{}"}})
    go_on(here)
    assert 2 not in attempts(here)


@pytest.mark.parametrize("write", [1, 2, 3])
@pytest.mark.parametrize("how", ["dies before", "dies after"])
def test_dying_between_any_two_writes_heals(write: int, how: str) -> None:
    here = world()
    here.look(here.operators[0], fault=Fault(at_write=write, how=how))
    start(here)
    assert attempts(here) == [1]
    assert here.status()["phase"] == "Running"


def test_settings_that_change_after_the_hash_was_written_are_frozen_instead() -> None:
    here = world()
    here.look(here.operators[0], fault=Fault(at_write=1, how="dies after"))
    before = here.status()["frozenHash"]
    here.operators[0].restart(Settings(trainer_image="another:1"))
    start(here)
    assert pods(here)[0]["containers"][0]["image"] == "another:1"
    assert here.status()["frozenHash"] != before


def test_a_lost_configuration_stops_the_job_and_the_same_restored_lets_it_go_on() -> None:
    here = world()
    start(here)
    kill(here)
    genuine = frozen(here)
    here.cluster.remove(genuine)
    go_on(here)
    assert blocked(here)["reason"] == "FrozenConfigurationMissing"
    put(here, genuine)
    go_on(here)
    assert 2 in attempts(here)


@pytest.mark.parametrize("change", [forged, lambda genuine: genuine], ids=["forged", "genuine"])
def test_where_the_status_is_lost_only_what_would_be_frozen_now_is_run(change: Callable[[Document], Document]) -> None:
    here = world()
    start(here)
    genuine = frozen(here)
    put(here, change(genuine))
    assert here.job is not None
    here.cluster.update(here.job, status={})
    here.forget_record()
    here.operators[0].restart()
    go_on(here)
    kill(here)
    go_on(here)
    if change(genuine) == genuine:
        assert 2 in attempts(here)
        assert blocked(here) == {}
    else:
        assert 2 not in attempts(here)
        assert blocked(here)["reason"] == "FrozenConfigurationUntrusted"


def test_what_was_frozen_is_judged_by_the_settings_of_now() -> None:
    here = world()
    assert here.job is not None
    spec = {**here.job["spec"], "network": {"hostNetwork": True}}
    here.cluster.update(here.job, spec=spec)
    here.operators[0].restart(Settings(allow_host_network=True))
    start(here)
    assert pods(here)[0]["hostNetwork"]
    here.operators[0].restart(Settings())
    kill(here)
    go_on(here)
    assert 2 not in attempts(here)
    assert "allowHostNetwork" in blocked(here)["message"]


def test_what_a_profile_grants_is_still_granted_at_a_retry() -> None:
    profile = {"network": {"hostNetwork": True}, "resources": {"rdma": {"resourceName": "rdma/a"}}}
    settings = Settings(profiles={"p": profile}, default_profile="p")
    here = world()
    here.operators[0].restart(settings)
    start(here)
    kill(here)
    go_on(here)
    assert 2 in attempts(here)
    here = world()
    here.operators[0].restart(settings)
    start(here)
    here.operators[0].restart(Settings(profiles={"p": {}}))
    kill(here)
    go_on(here)
    assert 2 not in attempts(here)
    assert "profile" in blocked(here)["message"]


def test_a_job_that_has_lost_its_status_goes_on_where_nothing_differs() -> None:
    here = world()
    start(here)
    unsigned(here)
    kill(here)
    go_on(here)
    assert 2 in attempts(here)
    assert here.status()["frozenHash"]


OLD, NEW = "registry.example:5000/team/trainer:0.1.0", "registry.example:5000/team/trainer:0.2.0"
DIGEST = f"sha256:{'0123456789abcdef' * 4}"


def retried_with(of_then: str, of_now: str) -> World:
    """Freeze a job under one trainer image; take its status away and have it retried under another one."""
    here = world()
    here.operators[0].restart(Settings(trainer_image=of_then))
    start(here)
    unsigned(here)
    here.operators[0].restart(Settings(trainer_image=of_now))
    kill(here)
    go_on(here)
    return here


@pytest.mark.parametrize(
    ("of_then", "of_now"),
    [
        (OLD, NEW),
        (f"registry.example:5000/team/trainer@{DIGEST}", NEW),
        (f"{OLD}@{DIGEST}", NEW),
        (OLD, f"{NEW}@{DIGEST}"),
        ("registry.example:5000/team/trainer", NEW),
        (OLD, "registry.example:5000/team/trainer"),
        ("trainer:0.1.0", "trainer:0.2.0"),
    ],
)
def test_it_goes_on_with_another_image_of_the_settings_repository(of_then: str, of_now: str) -> None:
    here = retried_with(of_then, of_now)
    assert pods(here)[-1]["containers"][0]["image"] == of_then
    assert 2 in attempts(here)
    assert here.status()["frozenHash"]


@pytest.mark.parametrize(
    ("of_then", "of_now"),
    [
        ("registry.example:5000/team/trainer-evil:0.1.0", NEW),
        ("registry.example:5000/team/trainer/evil:0.1.0", NEW),
        ("registry.example:5000/team/trainer:0.1.0/evil", NEW),
        ("registry.example:5001/team/trainer:0.1.0", NEW),
        ("registry.example/team/trainer:0.1.0", NEW),
        ("evil.example/registry.example:5000/team/trainer:0.1.0", NEW),
        ("registry.example:5000/evil", "registry.example:5000/trainer"),
        # Of the settings' image 5000 is the tag, of the other one the port.
        ("registry:5000/evil", "registry:5000"),
        ("registry.evil.example/trainer:1", "registry:5000"),
        ("registry.example:5000/team/trainer:0.1.0@evil.example/trainer:1", NEW),
        (f"{OLD}@{DIGEST}@{DIGEST}", NEW),
        (f"{OLD}@sha256:12", NEW),
        ("registry.example:5000/team/trainer:", NEW),
        ("registry.example:5000/team/trainer:0.1.0\n", NEW),
        (f"registry.example:5000/team/trainer:{'0' * 129}", NEW),
        ("Registry.example:5000/team/trainer:0.1.0", NEW),
    ],
)
def test_it_does_not_go_on_with_an_image_of_another_repository(of_then: str, of_now: str) -> None:
    here = retried_with(of_then, of_now)
    assert 2 not in attempts(here)
    assert blocked(here)["reason"] == "FrozenConfigurationUntrusted"


@pytest.mark.parametrize("where", ["job", "profile"])
def test_an_image_that_the_settings_do_not_decide_is_compared_as_it_is(where: str) -> None:
    """What the job or its profile names is no release's default: only the very same one was frozen."""
    here = world()
    named = {"image": NEW}
    profiles: Document = {"profiles": {"p": named}, "default_profile": "p"} if where == "profile" else {}
    assert here.job is not None
    if where == "job":
        here.cluster.update(here.job, spec={**here.job["spec"], **named})
    here.operators[0].restart(Settings(trainer_image="registry.example:5000/team/trainer:0.3.0", **profiles))
    start(here)
    unsigned(here)
    genuine = frozen(here)
    spec = {**json.loads(genuine["data"]["spec.json"]), "image": OLD}
    put(here, {**genuine, "data": {**genuine["data"], "spec.json": json.dumps(spec)}})
    kill(here)
    go_on(here)
    assert 2 not in attempts(here)
    assert blocked(here)["reason"] == "FrozenConfigurationUntrusted"


@pytest.mark.parametrize(
    "change",
    [
        forged,
        lambda genuine: forged(genuine, network={}, volumes=[], securityContext={}),  # the image alone
        lambda genuine: {**genuine, "immutable": False},
        lambda genuine: {**genuine, "data": {**genuine["data"], "run-config.json": '{"outputFolder": "/elsewhere"}'}},
        lambda genuine: {**genuine, "data": {**genuine["data"], "passwd": "bert:x:0:0::/root:/bin/sh"}},
        lambda genuine: {**genuine, "data": {"spec.json": "{"}},
        lambda genuine: {**genuine, "data": {}},
    ],
    ids=["all", "image", "mutable", "run configuration", "passwd", "no JSON", "empty"],
)
def test_one_that_was_forged_meanwhile_is_not_adopted(change: Callable[[Document], Document]) -> None:
    here = world()
    start(here)
    unsigned(here)
    put(here, change(frozen(here)))
    kill(here)
    go_on(here)
    assert 2 not in attempts(here)
    assert blocked(here)["reason"] == "FrozenConfigurationUntrusted"
    assert "apply it again" in blocked(here)["message"]


def test_a_foreign_object_of_that_name_is_never_read() -> None:
    here = world()
    start(here)
    kill(here)
    genuine = frozen(here)
    put(here, {**genuine, "metadata": {**genuine["metadata"], "ownerReferences": []}})
    go_on(here)
    assert 2 not in attempts(here)
    assert blocked(here)


def test_an_operator_reads_no_hash_that_it_did_not_write() -> None:
    """The annotation, which anybody may write, is worth nothing."""
    here = world()
    start(here)
    kill(here)
    other = Operator(here.cluster, here)
    put(here, forged(frozen(here)))
    other.catch_up()
    here.look(other)
    assert 2 not in attempts(here)
