"""What a job may not have under one name it may not have under another: network devices, and other jobs' ssh keys."""

from __future__ import annotations

import pytest

from bert_operator.api.parsing.validation import parse_job
from bert_operator.cluster.settings import Settings
from bert_operator.cluster.settings_rules import read_cluster_job
from bert_operator.errors import InvalidJob
from job_changes import Change, both, put
from sample_job import sample_document

ON_A_VOLUME = put("output", value={"path": "x", "volume": {"persistentVolumeClaim": {"claimName": "results"}}})
DEVICE = {"accelerator": {"resourceName": "rdma/hca_shared_devices_a", "perWorker": 2}}


def problems(change: Change, settings: Settings | None = None) -> list[str]:
    document = sample_document(both(ON_A_VOLUME, change))
    document["metadata"] |= {"namespace": "default", "uid": "u"}
    try:
        read_cluster_job(document, settings or Settings())
    except InvalidJob as invalid:
        return [str(problem) for problem in invalid.problems]
    return []


@pytest.mark.parametrize("place", [("resources",), ("worker", "resources")])
def test_a_network_device_is_one_under_the_name_of_an_accelerator(place: tuple[str, ...]) -> None:
    (problem,) = problems(put(*place, value=DEVICE))
    assert problem.startswith(f"spec.{'.'.join(place)}.accelerator: got")
    assert "allowLockMemory" in problem
    assert problems(put(*place, value=DEVICE), Settings(allow_lock_memory=True)) == []


def test_so_is_one_that_a_profile_calls_a_network_device() -> None:
    settings = Settings(profiles={"p": {"resources": {"rdma": {"resourceName": "example.com/hca"}}}})
    change = put("resources", value={"accelerator": {"resourceName": "example.com/hca", "perWorker": 2}})
    assert problems(change) == []
    assert "allowLockMemory" in problems(change, settings)[0]


def test_a_gpu_is_none() -> None:
    assert problems(put("resources", value={"accelerator": {"resourceName": "nvidia.com/gpu"}})) == []


@pytest.mark.parametrize(
    "change",
    [
        put("env", value=[{"name": "KEY", "secret": {"name": "other-a1-ssh", "key": "ssh-privatekey"}}]),
        put("env", value=[{"name": "KEY", "secret": {"name": "demo-a12-ssh", "key": "ssh-publickey"}}]),
        put("envFrom", value=[{"secret": "other-a1-ssh"}]),
    ],
)
def test_no_variable_is_filled_from_an_ssh_key_of_an_attempt(change: Change) -> None:
    (problem,) = problems(change)
    assert "-ssh" in problem
    assert "next: " in problem


@pytest.mark.parametrize("name", ["my-ssh", "a1-ssh", "demo-a1-ssh-key", "demo-ax-ssh", "demo-a1-ssh2"])
def test_other_secrets_are_free(name: str) -> None:
    parse_job(sample_document(put("envFrom", value=[{"secret": name}])))
    parse_job(sample_document(put("env", value=[{"name": "K", "secret": {"name": name, "key": "k"}}])))
