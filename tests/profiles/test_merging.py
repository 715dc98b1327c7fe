"""What a job leaves out of the fields that belong to a cluster comes from its profile; what it says wins."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bert_operator.api.parsing.profiles import complete, find_profile_problems
from bert_operator.api.parsing.validation import parse_job
from bert_operator.cluster.settings import Settings, load_settings
from bert_operator.cluster.settings_rules import frozen_problems, read_cluster_job
from bert_operator.errors import InvalidJob
from sample_job import Document, sample_document

CLAIM = {"persistentVolumeClaim": {"claimName": "bert"}}
PROFILE: Document = {
    "image": "registry.example.com/trainer:2",
    "slotsPerWorker": 4,
    "cpu": {"sockets": 2, "pinning": "socket", "allocator": "jemalloc"},
    "resources": {"cpu": 8, "memory": "64Gi", "accelerator": {"resourceName": "example.com/gpu"}},
    "scheduling": {"nodeSelector": {"pool": "gpu"}, "tolerations": [{"key": "gpu", "operator": "Exists"}]},
    "env": [{"name": "NCCL_DEBUG", "value": "WARN"}, {"name": "LANG", "value": "C"}],
    "output": {"volume": CLAIM},
}


def merged(profile: Document | None = None, **own: Any) -> Document:
    """Return the spec of a job that says no number of ranks by itself."""
    document = sample_document(lambda spec: (spec.pop("slotsPerWorker"), spec.update(own)))
    spec: Document = complete(document, {"p": PROFILE if profile is None else profile}, "p")["spec"]
    return spec


def test_a_job_that_says_nothing_gets_all_of_it() -> None:
    spec = merged()
    assert {name: spec[name] for name in PROFILE if name != "output"} == {
        name: value for name, value in PROFILE.items() if name != "output"
    }
    assert spec["output"] == {"path": "runs/demo", "volume": CLAIM}
    assert spec["stages"] == sample_document()["spec"]["stages"]


def test_what_the_job_says_wins_field_by_field() -> None:
    spec = merged(
        image="mine:1", cpu={"allocator": "tcmalloc"}, resources={"memory": "8Gi", "accelerator": {"perWorker": 8}}
    )
    assert spec["image"] == "mine:1"
    assert spec["cpu"] == {"sockets": 2, "pinning": "socket", "allocator": "tcmalloc"}
    assert spec["resources"] == {
        "cpu": 8,
        "memory": "8Gi",
        "accelerator": {"resourceName": "example.com/gpu", "perWorker": 8},
    }


def test_lists_and_labels_of_the_job_replace_those_of_the_profile() -> None:
    spec = merged(scheduling={"nodeSelector": {}, "tolerations": []})
    assert spec["scheduling"] == {"nodeSelector": {}, "tolerations": []}


def test_variables_and_volumes_are_merged_by_name() -> None:
    spec = merged(env=[{"name": "LANG", "value": "C.UTF-8"}, {"name": "MINE", "value": "1"}])
    assert [(entry["name"], entry["value"]) for entry in spec["env"]] == [
        ("NCCL_DEBUG", "WARN"),
        ("LANG", "C.UTF-8"),
        ("MINE", "1"),
    ]


def test_a_volume_is_one_thing() -> None:
    share = {"nfs": {"server": "nas", "path": "/x"}}
    assert merged(output={"path": "a", "volume": share})["output"]["volume"] == share


def test_the_way_in_which_the_job_tells_its_ranks_replaces_that_of_the_profile() -> None:
    counted = merged(cpu={"ranksPerNode": "auto"})
    assert "slotsPerWorker" not in counted
    assert parse_job({**sample_document(), "spec": counted}).spec.ranks_per_worker == 2
    counting = {"cpu": {"sockets": 2, "ranksPerNode": "auto"}}
    told = merged(counting, slotsPerWorker=6)
    assert (told["slotsPerWorker"], told["cpu"]) == (6, {"sockets": 2})


def test_a_null_is_no_value() -> None:
    assert merged(image=None)["image"] == PROFILE["image"]
    spec = merged(resources={"accelerator": None, "memory": "1Gi"}, cpu=None)
    assert spec["resources"]["accelerator"] == {"resourceName": "example.com/gpu"}
    assert spec["cpu"] == PROFILE["cpu"]


@pytest.mark.parametrize("name", sorted(PROFILE))
def test_a_profile_s_key_that_holds_nothing_is_not_there(name: str, tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(json.dumps({"defaultProfile": "p", "profiles": {"p": {**PROFILE, name: None}, "q": {}}}))
    settings = load_settings(file)
    assert name not in settings.profiles["p"]
    own = {"output": {"path": "a", "volume": CLAIM}, name: {"output": {"path": "a", "volume": CLAIM}, **PROFILE}[name]}
    if name == "output":
        own["output"] = {"path": "a", "volume": CLAIM}
    assert read_cluster_job(sample_document(lambda spec: spec.update({"slotsPerWorker": 4, **own})), settings)


@pytest.mark.parametrize("path", ["/mnt/output/../../tmp/x", "../x", "a/../../x", "/tmp/x"])
def test_an_output_that_leaves_its_mount_is_refused(path: str) -> None:
    with pytest.raises(InvalidJob) as caught:
        read_cluster_job(sample_document(lambda spec: spec.update(output={"path": path, "volume": CLAIM})), Settings())
    assert [problem.path for problem in caught.value.problems] == ["spec.output.path"]


def test_defaults_are_filled_in_after_the_profile() -> None:
    job = read_cluster_job(
        sample_document(lambda spec: spec.pop("slotsPerWorker")), Settings(profiles={"p": PROFILE}, default_profile="p")
    )
    assert (job.spec.slots_per_worker, job.spec.cpu.openmp, job.spec.workers) == (4, "gnu", 1)


def test_the_profile_that_a_job_names_goes_before_the_default_one() -> None:
    settings = Settings(profiles={"p": PROFILE, "q": {"output": {"volume": CLAIM}, "image": "q"}}, default_profile="p")
    job = read_cluster_job(sample_document(lambda spec: spec.update(profile="q")), settings)
    assert job.spec.image == "q"


@pytest.mark.parametrize(("profiles", "allowed"), [({}, "none"), ({"a": {}, "b": {}}, "a, b")])
def test_a_profile_that_is_not_there_is_named_with_those_that_are(profiles: Document, allowed: str) -> None:
    document = sample_document(lambda spec: spec.update(profile="xeon"))
    with pytest.raises(InvalidJob) as caught:
        complete(document, profiles)
    (problem,) = caught.value.problems
    assert (problem.path, problem.got) == ("spec.profile", '"xeon"')
    assert allowed in problem.allowed
    assert "operator's settings" in problem.next_step


def test_rules_are_checked_on_the_whole() -> None:
    # Three ranks cannot be spread over the profile's two sockets.
    document = sample_document(lambda spec: spec.update(slotsPerWorker=3))
    with pytest.raises(InvalidJob) as caught:
        read_cluster_job(document, Settings(profiles={"p": PROFILE}, default_profile="p"))
    assert [problem.path for problem in caught.value.problems] == ["spec.slotsPerWorker"]


@pytest.mark.parametrize(
    ("path", "own", "setting"),
    [
        ("spec.output.volume.hostPath", {"output": {"path": "a", "volume": {"hostPath": {"path": "/x"}}}}, "host_path"),
        ("spec.network.hostNetwork", {"network": {"hostNetwork": True}}, "host_network"),
        ("spec.network.lockMemory", {"network": {"lockMemory": True}}, "lock_memory"),
        ("spec.resources.rdma", {"resources": {"rdma": {"resourceName": "rdma/ib"}}}, "lock_memory"),
    ],
)
def test_privileges_come_from_a_profile_or_are_allowed_by_the_settings(path: str, own: Document, setting: str) -> None:
    document = sample_document(lambda spec: spec.update({"output": {"path": "a", "volume": CLAIM}, **own}))
    with pytest.raises(InvalidJob) as caught:
        read_cluster_job(document, Settings())
    assert [problem.path for problem in caught.value.problems] == [path]
    assert read_cluster_job(document, Settings(**{f"allow_{setting}": True}))  # type: ignore[arg-type]
    profile = {name: {key: item for key, item in value.items() if key != "path"} for name, value in own.items()}
    plain = sample_document(
        lambda spec: spec.update({} if "output" in own else {"output": {"path": "a", "volume": CLAIM}})
    )
    assert read_cluster_job(plain, Settings(profiles={"p": profile}, default_profile="p"))


def test_a_profile_alone_has_pods_deleted_by_force() -> None:
    forced = {"scheduling": {"safeToForcefullyDelete": True}}
    own = sample_document(lambda spec: spec.update({"output": {"path": "a", "volume": CLAIM}, **forced}))
    settings = Settings(allow_host_path=True, allow_host_network=True, allow_lock_memory=True)
    with pytest.raises(InvalidJob) as caught:
        read_cluster_job(own, settings)
    (problem,) = caught.value.problems
    assert (problem.path, problem.got) == ("spec.scheduling.safeToForcefullyDelete", "true")
    assert "or have an administrator set scheduling.safeToForcefullyDelete of a profile" in problem.next_step
    granting = Settings(profiles={"p": forced}, default_profile="p")
    plain = sample_document(lambda spec: spec.update({"output": {"path": "a", "volume": CLAIM}}))
    assert read_cluster_job(plain, granting).spec.scheduling.safe_to_forcefully_delete is True
    declined = {"scheduling": {"safeToForcefullyDelete": False}}
    other = sample_document(lambda spec: spec.update({"output": {"path": "a", "volume": CLAIM}, **declined}))
    assert read_cluster_job(other, granting).spec.scheduling.safe_to_forcefully_delete is False
    # Withdrawn, it is no privilege of a job that was started with it.
    plain["metadata"]["namespace"] = "default"
    frozen = {"scheduling": {"safeToForcefullyDelete": True}}
    assert list(frozen_problems(plain, frozen, granting)) == []
    (problem,) = frozen_problems(plain, frozen, Settings(profiles={"p": {}}, default_profile="p"))
    assert problem.path == "spec.scheduling.safeToForcefullyDelete"


def test_a_topology_is_replaced_as_a_whole() -> None:
    profile = {"queueName": "team", "workloadPriorityClass": "low", "scheduling": {"topology": {"required": "rack"}}}
    own = {"workloadPriorityClass": "high", "scheduling": {"topology": {"preferred": "block"}}}
    document = complete(sample_document(lambda spec: spec.update(own)), {"p": profile}, "p")
    assert document["spec"]["scheduling"] == {"topology": {"preferred": "block"}}
    assert (document["spec"]["queueName"], document["spec"]["workloadPriorityClass"]) == ("team", "high")
    assert [problem.path for problem in find_profile_problems({"p": {"workloadPriorityClass": "low"}}, None)] == [
        "profiles.p.workloadPriorityClass"
    ]


@pytest.mark.parametrize(
    ("profiles", "default", "paths"),
    [
        ({"p": PROFILE}, "p", []),
        ({"p": {"cpu": {"sockets": 2, "pinning": "socket"}}}, None, []),
        ({"p": {"workers": 2, "model": {"preset": "tiny"}}}, None, ["profiles.p.model", "profiles.p.workers"]),
        ({"p": {"output": {"path": "x"}}}, None, ["profiles.p.output.path"]),
        ({"p": {"cpu": {"pinning": "socket"}, "slots": 1}}, None, ["profiles.p.slots", "profiles.p.cpu.sockets"]),
        ({"p": {"resources": {"memory": "64 GB"}}}, None, ["profiles.p.resources.memory"]),
        ({"p": []}, None, ["profiles.p"]),
        ({}, "p", ["defaultProfile"]),
    ],
)
def test_wrong_profiles_are_told_all_at_once(profiles: Document, default: str | None, paths: list[str]) -> None:
    assert [problem.path for problem in find_profile_problems(profiles, default)] == paths
