"""Rendered children are what the API server, Pod Security, the job controller and mpi-operator take them for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from bert_operator.names import MAX_JOB_NAME, TRAINING_RUN
from bert_operator.render.children import render_child
from bert_operator.render.frozen import freeze, render_config_map
from child_cases import (
    CHILD_CASES,
    IMAGE,
    Level,
    case_child,
    case_frozen,
    case_job,
    child_of,
    container,
    templates,
)
from cluster_api import Api, wait_until
from control_plane import is_oldest, namespace_of
from kubelet import FakeKubelet

Json = dict[str, Any]
LEVELS: tuple[Level, ...] = ("restricted", "baseline", "privileged")
MPI_CASES = ("two-workers-open-mpi", "two-workers-intel-mpi", "two-workers-mpich", "user", "user-by-role", "workspace")

# What mpi-operator v0.8.2 gives a launcher.
APPENDED = {
    "OpenMPI": {
        "OMPI_MCA_orte_keep_fqdn_hostnames": "true",
        "OMPI_MCA_orte_default_hostfile": "/etc/mpi/hostfile",
        "OMPI_MCA_plm_rsh_args": "-o ConnectionAttempts=10",
        "OMPI_MCA_orte_set_default_slots": "2",
    },
    "Intel": {
        "I_MPI_HYDRA_HOST_FILE": "/etc/mpi/hostfile",
        "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS": "-o ConnectionAttempts=10",
        "I_MPI_PERHOST": "2",
    },
    "MPICH": {
        "HYDRA_HOST_FILE": "/etc/mpi/hostfile",
        "HYDRA_LAUNCH_EXTRA_ARGS": "-o ConnectionAttempts=10",
    },
}


def make_namespace(api: Api, name: str, level: str) -> str:
    """Create a namespace that enforces a Pod Security level from its first moment on."""
    api.create(namespace_of(name, {"pod-security.kubernetes.io/enforce": level})).expect()
    wait_until(lambda: api.get("v1/serviceaccounts", "default", name).status == 200, f"ServiceAccount in {name}")
    return name


@pytest.fixture(scope="module")
def by_level(control_plane: Any) -> Iterator[Mapping[str, str]]:
    """A namespace for every Pod Security level, and the runtime that cases name."""
    api: Api = control_plane.api
    runtime = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "nvidia"}}
    api.create({**runtime, "handler": "nvidia"}).expect()
    yield {level: make_namespace(api, f"children-{level}", level) for level in LEVELS}
    api.delete("node.k8s.io/v1/runtimeclasses", "nvidia").expect()
    for level in LEVELS:
        api.delete("v1/namespaces", f"children-{level}").expect()


@pytest.fixture
def restricted(api: Api, namespace: str) -> str:
    """The test's own namespace, now one that enforces ``restricted``."""
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    api.server_side_apply(namespace_of(namespace, labels)).expect()
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}}
    spec = {"containers": [{"name": "x", "image": "x"}]}
    wait_until(lambda: api.create({**pod, "spec": spec}, namespace, dry_run=True).status == 403, "the label")
    return namespace


def contains(whole: Any, part: Any) -> bool:
    """Return whether a document says all that another one says."""
    if isinstance(part, dict):
        return isinstance(whole, dict) and all(key in whole and contains(whole[key], part[key]) for key in part)
    if isinstance(part, list):
        return len(whole) == len(part) and all(map(contains, whole, part))
    return bool(whole == part)


def pods_of(child: Json) -> Iterator[tuple[str, Json]]:
    for role, template in templates(child):
        yield role, {"apiVersion": "v1", "kind": "Pod", **template, "metadata": {"name": role, **template["metadata"]}}


DROPPED_BY_OLDEST = ("root-of-a-user-namespace",)
"""Cases with fields of pods that the oldest supported release has behind a feature gate: it drops them without a word,
and the operator notices. Of MPIJobs it drops none, since it does not know what is in their pods."""


@pytest.mark.parametrize("case", CHILD_CASES)
def test_the_api_server_takes_every_child_and_its_configuration(api: Api, namespace: str, case: str) -> None:
    child = case_child(case, namespace)
    made = api.create(child, namespace, dry_run=True).expect()
    is_whole = not (is_oldest() and case in DROPPED_BY_OLDEST)
    assert contains(made, child) == is_whole, "nothing is dropped but what this release does not have"
    api.create(render_config_map(case_frozen(case, namespace)), namespace, dry_run=True).expect()


@pytest.mark.parametrize("case", CHILD_CASES)
def test_pods_meet_the_pod_security_level_that_they_should(api: Api, by_level: Mapping[str, str], case: str) -> None:
    expected = CHILD_CASES[case]
    at = LEVELS.index(expected.security)
    for level in LEVELS[at:]:
        for _, pod in pods_of(case_child(case)):
            api.create(pod, by_level[level], dry_run=True).expect()
    for level in LEVELS[:at]:
        answers = [api.create(pod, by_level[level], dry_run=True) for _, pod in pods_of(case_child(case))]
        refusals = [answer.message for answer in answers if answer.status == 403]
        assert refusals
        assert all(f'violates PodSecurity "{level}:latest"' in message for message in refusals)
        assert all(expected.refused_for in message for message in refusals)


def create_child(api: Api, namespace: str, case: str, change: Callable[[Json], object] | None = None) -> Json:
    child = case_child(case, namespace)
    # The job does not exist, and the garbage collector would miss it.
    del child["metadata"]["ownerReferences"]
    if change:
        change(child)
    api.create(child, namespace).expect()
    return child


def wait_for_pods(api: Api, namespace: str, count: int) -> dict[str, list[Json]]:
    """Return the pods of a child by their role, once there are so many."""
    kubelet = FakeKubelet(api, namespace)
    wait_until(lambda: len(kubelet.pods()) == count, f"{count} pods")
    found: dict[str, list[Json]] = {}
    for pod in kubelet.pods():
        found.setdefault(pod["metadata"]["labels"]["bert-operator.dev/role"], []).append(pod)
    return found


def names_with(api: Api, namespace: str, words: str) -> list[str]:
    """Do what ``kubectl get pods -oname | grep words`` does."""
    return [name for pod in api.list("v1/pods", namespace) if words in (name := f"pod/{pod['metadata']['name']}")]


def complaints(api: Api, namespace: str, pods: list[Json]) -> list[str]:
    """Let the pods run and return the reasons of mpi-operator's warnings until it has seen that."""
    for pod in pods:
        FakeKubelet(api, namespace).run(pod)

    def reasons(kind: str) -> list[str]:
        query = f"type={kind},involvedObject.kind=MPIJob"
        return [event["reason"] for event in api.list("v1/events", namespace, fieldSelector=query)]

    wait_until(lambda: "MPIJobRunning" in reasons("Normal"), "the event MPIJobRunning")
    return reasons("Warning")


def assert_kept(pod: Json, template: Json) -> None:
    """What was rendered is what stands in the pod."""
    ours, found = container(template), container(pod)
    for key in ("command", "args", "image", "securityContext", "resources", "workingDir", "readinessProbe"):
        if key in ours:
            assert contains(found[key], ours[key]), key
    assert found["env"][: len(ours["env"])] == ours["env"]
    assert found["volumeMounts"][: len(ours["volumeMounts"])] == ours["volumeMounts"]
    assert template["metadata"]["labels"].items() <= pod["metadata"]["labels"].items()
    assert pod["spec"]["securityContext"] == template["spec"]["securityContext"]
    assert pod["spec"]["restartPolicy"] == "Never"
    assert pod["spec"]["enableServiceLinks"] is False
    assert pod["spec"]["automountServiceAccountToken"] is False


def added(pod: Json, template: Json) -> tuple[dict[str, str], dict[str, str], dict[str, Json]]:
    """Return variables, mounts (volume to path) and volumes that somebody added to a template."""
    ours, found = container(template), container(pod)
    variables = {item["name"]: item.get("value", "") for item in found["env"][len(ours["env"]) :]}
    mounts = {item["name"]: item["mountPath"] for item in found["volumeMounts"][len(ours["volumeMounts"]) :]}
    known = {volume["name"] for volume in template["spec"]["volumes"]}
    volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"] if volume["name"] not in known}
    return variables, mounts, volumes


@pytest.mark.parametrize("case", MPI_CASES)
def test_mpi_operator_makes_the_pods_that_were_meant(api: Api, restricted: str, case: str) -> None:
    child = create_child(api, restricted, case)
    rendered = dict(templates(child))
    pods = wait_for_pods(api, restricted, 3)
    (launcher,), workers = pods["launcher"], pods["worker"]
    for role, made in (("launcher", launcher), ("worker", workers[0]), ("worker", workers[1])):
        assert_kept(made, rendered[role])

    implementation = child["spec"]["mpiImplementation"]
    variables, mounts, volumes = added(launcher, rendered["launcher"])
    assert variables == {
        "K_MPI_JOB_ROLE": "launcher",
        **APPENDED[implementation],
        "NVIDIA_VISIBLE_DEVICES": "",
        "NVIDIA_DRIVER_CAPABILITIES": "",
    }
    assert mounts == {"ssh-auth": "/home/bert/.ssh", "mpi-job-config": "/etc/mpi"}
    assert set(volumes) == set(mounts)
    for worker in workers:
        variables, mounts, volumes = added(worker, rendered["worker"])
        assert variables == {"K_MPI_JOB_ROLE": "worker"}
        assert mounts == {"ssh-auth": "/home/bert/.ssh"}
        assert set(volumes) == set(mounts)
    assert sorted(worker["metadata"]["name"] for worker in workers) == [
        f"{child['metadata']['name']}-worker-{number}" for number in range(2)
    ]
    assert complaints(api, restricted, [launcher, *workers]) == []


def test_mpi_operator_complains_of_a_restart_policy_in_a_template(api: Api, namespace: str) -> None:
    """And that is why there is none."""

    def add(child: Json) -> None:
        child["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["restartPolicy"] = "Never"

    create_child(api, namespace, "two-workers-open-mpi", add)
    pods = wait_for_pods(api, namespace, 3)
    assert complaints(api, namespace, [pod for made in pods.values() for pod in made]) == [
        "SetPodTemplateRestartPolicy"
    ]


def test_root_s_keys_are_readable_by_root_alone(api: Api, namespace: str) -> None:
    child = create_child(api, namespace, "root")
    for made in wait_for_pods(api, namespace, 3).values():
        _, mounts, volumes = added(
            made[0], dict(templates(child))[made[0]["metadata"]["labels"]["bert-operator.dev/role"]]
        )
        assert mounts["ssh-auth"] == "/root/.ssh"
        assert volumes["ssh-auth"]["secret"]["defaultMode"] == 0o600


def test_the_hostfile_names_every_worker_in_its_mpi_s_words(api: Api, namespace: str) -> None:
    lines = {}
    for case in MPI_CASES[:3]:
        name = create_child(
            api,
            namespace,
            case,
            lambda child: child["metadata"].update(name=child["spec"]["mpiImplementation"].lower()),
        )["metadata"]["name"]
        found = wait_until(
            lambda name=name: api.get("v1/configmaps", f"{name}-config", namespace).body.get("data"), "its hosts"
        )
        lines[name] = found["hostfile"].splitlines()[0]
    domain = f"{namespace}.svc"
    assert lines == {
        "openmpi": f"openmpi-worker-0.openmpi.{domain} slots=2",
        "intel": f"intel-worker-0.intel.{domain}:2",
        "mpich": f"mpich-worker-0.mpich.{domain}:2",
    }


def test_one_pod_at_most_is_found_by_the_word_launch(api: Api, restricted: str) -> None:
    create_child(api, restricted, "two-workers-open-mpi")
    wait_for_pods(api, restricted, 3)
    assert len(names_with(api, restricted, "launch")) == 1
    assert names_with(api, restricted, "training") == []
    with FakeKubelet(api, restricted):
        # Workers would run for ever; the launcher stays, to be read.
        wait_until(lambda: len(api.list("v1/pods", restricted)) == 1, "the workers to go")
    assert len(names_with(api, restricted, "launch")) == 1


def test_the_job_controller_makes_one_pod_and_no_other_when_it_fails(api: Api, restricted: str) -> None:
    child = create_child(api, restricted, "single-pod")
    ((pod,),) = wait_for_pods(api, restricted, 1).values()
    assert_kept(pod, child["spec"]["template"])
    assert added(pod, child["spec"]["template"]) == ({}, {}, {})
    assert len(names_with(api, restricted, "training")) == 1
    assert names_with(api, restricted, "launch") == []
    kubelet = FakeKubelet(api, restricted)
    kubelet.run(pod)
    kubelet.fail(pod, exit_code=1)

    def failed() -> bool:
        status = api.get("batch/v1/jobs", child["metadata"]["name"], restricted).expect()["status"]
        return any(item["type"] == "Failed" and item["status"] == "True" for item in status.get("conditions") or [])

    wait_until(failed, "the Job to have failed")
    assert len(names_with(api, restricted, "training")) == 1


@pytest.mark.parametrize(("case", "pods", "word"), [("single-pod", 1, "traini"), ("queue", 3, "launch")])
def test_the_longest_names_are_names_still(api: Api, restricted: str, case: str, pods: int, word: str) -> None:
    job = case_job(case, restricted)
    metadata = job.metadata.model_copy(update={"name": "j" * MAX_JOB_NAME})
    frozen = freeze(job.model_copy(update={"metadata": metadata}), default_image=IMAGE)
    child = render_child(frozen, child_of(frozen, TRAINING_RUN, 999))
    del child["metadata"]["ownerReferences"]
    api.create(child, restricted).expect()
    found = wait_for_pods(api, restricted, pods)
    # Kubernetes cuts the name of a Job's pod to 58 characters, and draws five.
    assert len(names_with(api, restricted, word)) == 1
    for pod in (pod for each in found.values() for pod in each):
        assert len(pod["metadata"]["name"]) <= 63
        assert len(pod["spec"].get("hostname", "")) <= 63
