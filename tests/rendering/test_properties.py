"""What holds for the children of every valid job, whatever it asks for: names, volumes, variables, users."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

from bert_operator.api.parsing.validation import parse_job
from bert_operator.api.rules.section_rules import RESERVED_NAMES
from bert_operator.api.schema.bert_pretrain_job import BertPretrainJob
from bert_operator.names import MAX_JOB_NAME, PREPARE_RUN, TRAINING_RUN
from bert_operator.render.children import needs_mpi, render_child
from bert_operator.render.frozen import Frozen, freeze, read_frozen, render_config_map
from bert_operator.state.runs import ChildSpec, list_runs
from child_cases import IMAGE, UID, case_child, case_job, child_of, container, every_job, templates
from sample_job import Document

LONGEST = 63
LAST_ATTEMPT = 999
LABEL_KEY = re.compile(r"([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
HOST_NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")


def named(job: BertPretrainJob, name: str) -> BertPretrainJob:
    return job.model_copy(update={"metadata": job.metadata.model_copy(update={"name": name})})


@cache
def children() -> tuple[tuple[Frozen, ChildSpec, Document], ...]:
    """Return every child of every job, at the last attempt of a job with the longest name."""
    found = []
    for job in every_job():
        frozen = freeze(named(job, "j" * MAX_JOB_NAME), default_image=IMAGE)
        for run in list_runs(job):
            child = child_of(frozen, run.name, LAST_ATTEMPT)
            found.append((frozen, child, render_child(frozen, child)))
    return tuple(found)


def pods() -> Iterator[tuple[Frozen, ChildSpec, str, Document]]:
    for frozen, child, document in children():
        for role, template in templates(document):
            yield frozen, child, role, template


def test_there_are_jobs_of_every_kind() -> None:
    kinds = [document["kind"] for _, _, document in children()]
    assert min(kinds.count("Job"), kinds.count("MPIJob")) > 100


def test_names_fit_where_kubernetes_wants_host_names_and_label_values() -> None:
    for _, _, document in children():
        name = document["metadata"]["name"]
        # The pod of a Job is called after it and six characters, for which Kubernetes cuts the name.
        names = [name]
        if document["kind"] == "MPIJob":
            names += [f"{name}-launcher", f"{name}-worker-0", f"{name}-worker-4095"]
        for each in names:
            assert len(each) <= LONGEST, each
            assert HOST_NAME.fullmatch(each)


def test_names_distinguish_jobs_runs_and_attempts() -> None:
    frozen = freeze(case_job("prepare"), default_image=IMAGE)
    made = [
        (freeze(named(frozen.job, job), default_image=IMAGE), number) for job in ("a", "a-a1") for number in (1, 11)
    ]
    documents = [render_child(each, child_of(each, run.name, n)) for each, n in made for run in list_runs(each.job)]
    assert len({(document["kind"], document["metadata"]["name"]) for document in documents}) == len(documents)


def test_labels_are_valid_and_the_same_on_the_child_and_its_pods() -> None:
    for _, _, document in children():
        labels = document["metadata"]["labels"]
        ours = {key: value for key, value in labels.items() if not key.startswith("kueue")}
        for role, template in templates(document):
            found = template["metadata"]["labels"]
            assert ours.items() <= found.items()
            assert found["bert-operator.dev/role"] == role
            labels = labels | found
        for key, value in labels.items():
            assert LABEL_KEY.fullmatch(key), key
            assert LABEL_VALUE.fullmatch(value), value


def test_a_pod_has_one_container_and_no_restart_policy_that_mpi_operator_would_complain_about() -> None:
    for frozen, child, _, template in pods():
        assert len(template["spec"]["containers"]) == 1
        assert "initContainers" not in template["spec"]
        assert ("restartPolicy" in template["spec"]) != needs_mpi(frozen, child)


def test_every_volume_is_mounted_every_mount_has_its_volume_and_a_place_of_its_own() -> None:
    for _, _, role, template in pods():
        volumes = [volume["name"] for volume in template["spec"]["volumes"]]
        mounted = container(template)["volumeMounts"]
        assert len(set(volumes)) == len(volumes)
        assert {mount["name"] for mount in mounted} == set(volumes)
        assert not {"ssh-auth", "mpi-job-config"} & set(volumes)
        assert all(HOST_NAME.fullmatch(name) for name in volumes)
        places = [mount["mountPath"] for mount in mounted]
        assert len(set(places)) == len(places), (role, places)
        # Not where mpi-operator mounts.
        assert not {"/etc/mpi", "/root/.ssh", "/home/bert/.ssh"} & set(places)


def test_a_source_is_one_volume_however_often_it_is_mounted() -> None:
    for _, _, _, template in pods():
        sources = [
            json.dumps({key: value for key, value in volume.items() if key != "name"})
            for volume in template["spec"]["volumes"]
            if "emptyDir" not in volume
        ]
        assert len(set(sources)) == len(sources)


def test_whatever_a_program_may_write_to_is_writable() -> None:
    for _, _, _, template in pods():
        writable = {mount["mountPath"] for mount in container(template)["volumeMounts"] if not mount.get("readOnly")}
        (home,) = (item["value"] for item in container(template)["env"] if item["name"] == "HOME")
        assert {"/tmp", "/dev/shm", home} <= writable  # noqa: S108 - in the pod
        assert container(template)["securityContext"]["readOnlyRootFilesystem"] is True


def test_no_variable_stands_twice_or_is_one_that_mpi_operator_appends() -> None:
    ours = {"BERT_ATTEMPT", "BERT_LOG_FOLDER", "BERT_RUN_CONFIG", "HOME"}
    for _, _, role, template in pods():
        names = [variable["name"] for variable in container(template)["env"]]
        assert len(set(names)) == len(names)
        # In launchers alone mpi-operator appends the one of GPUs.
        mixed = set() if role == "launcher" else {"NVIDIA_VISIBLE_DEVICES"}
        assert (set(names) - mixed) & set(RESERVED_NAMES) == ours


def test_a_user_s_own_number_of_threads_wins() -> None:
    for _, template in templates(case_child("environment")):
        assert {"name": "OMP_NUM_THREADS", "value": "4"} in container(template)["env"]


def expand(text: str, variables: dict[str, str]) -> str:
    """Do what Kubernetes does to values and arguments."""

    def replace(match: re.Match[str]) -> str:
        return "$" if match[0] == "$$" else variables.get(match[1], match[0])

    return re.sub(r"\$\$|\$\(([^)]*)\)", replace, text)


@pytest.mark.parametrize("text", ["$(HOME)", "$$", "$$(HOME)", "$$$(HOME)", "a$", "$HOME", "$(", "$5 $(HOME"])
def test_a_user_s_text_reaches_the_program_as_it_stands(text: str) -> None:
    document = case_job("workspace").model_dump(mode="json", by_alias=True, exclude_none=True)
    document["spec"]["env"] = [{"name": "TEXT", "value": text}]
    document["spec"]["workspace"]["args"] = [text]
    document["spec"]["proxy"] = {"http": text}
    document["spec"]["output"]["path"] = text
    frozen = freeze(parse_job(document), default_image=IMAGE)
    for role, template in templates(render_child(frozen, child_of(frozen, TRAINING_RUN, 1))):
        found = {item["name"]: expand(item["value"], {"HOME": "/wrong"}) for item in container(template)["env"]}
        assert (found["TEXT"], found["http_proxy"], found["HTTP_PROXY"]) == (text, text, text)
        assert found["BERT_LOG_FOLDER"] == f"/mnt/output/{text}/logs"
        if role == "launcher":
            assert expand(container(template)["args"][-1], {"HOME": "/wrong"}) == text


def test_only_pods_with_ranks_ask_for_devices_and_locked_memory() -> None:
    for frozen, child, role, template in pods():
        if role != "launcher" and child.run == TRAINING_RUN:
            continue
        spec = frozen.job.spec
        sections = [section for section in (spec.resources, spec.worker.resources, spec.launcher.resources) if section]
        devices = {part.resource_name for section in sections for part in (section.accelerator, section.rdma) if part}
        limits = container(template).get("resources", {}).get("limits", {})
        # A drawn job may call its devices cpu.
        assert not (devices - {"cpu", "memory"}) & set(limits)
        assert "IPC_LOCK" not in container(template)["securityContext"]["capabilities"].get("add", ())
        assert "runtimeClassName" not in template["spec"]
        assert "resourceClaims" not in template["spec"]
        assert "claims" not in container(template).get("resources", {})


def test_a_container_uses_every_claim_of_its_pod_once() -> None:
    seen = 0
    for _, _, _, template in pods():
        claims = template["spec"].get("resourceClaims", [])
        names = [claim["name"] for claim in claims]
        assert [used["name"] for used in container(template).get("resources", {}).get("claims", [])] == names
        assert len(set(names)) == len(names)
        for claim in claims:
            assert len({"resourceClaimName", "resourceClaimTemplateName"} & claim.keys()) == 1
        seen += bool(claims)
    assert seen > 1


def test_an_image_is_mounted_read_only_and_never_where_data_are_made_or_results_written() -> None:
    seen = 0
    for _, child, _, template in pods():
        images = {volume["name"] for volume in template["spec"]["volumes"] if "image" in volume}
        mounts = [mount for mount in container(template)["volumeMounts"] if mount["name"] in images]
        assert all(mount["readOnly"] for mount in mounts)
        assert not images & {"output", "workspace", *(["dataset"] if child.run == PREPARE_RUN else [])}
        seen += bool(images)
    assert seen > 1


def test_pods_with_user_ids_of_their_own_share_nothing_else_with_the_node() -> None:
    seen = 0
    for _, _, _, template in pods():
        spec = template["spec"]
        assert spec.get("hostUsers") in (None, False)
        if "hostUsers" in spec:
            assert "hostNetwork" not in spec
            assert not {kind for volume in spec["volumes"] for kind in volume} & {"nfs", "hostPath"}
            seen += 1
    assert seen > 1


def test_a_pod_asks_for_what_it_may_use() -> None:
    for _, _, _, template in pods():
        resources = container(template).get("resources", {})
        limits = resources.get("limits", {})
        assert limits == resources.get("requests", {})
        if any(name.startswith("hugepages-") for name in limits):
            assert "memory" in limits


def limits_of(case: str) -> dict[str, Any]:
    return {
        role: container(template).get("resources", {}).get("limits") for role, template in templates(case_child(case))
    }


def test_a_role_s_own_resources_replace_all_others() -> None:
    assert limits_of("scheduling")["launcher"] == {"cpu": "500m"}
    assert limits_of("two-workers-open-mpi")["launcher"] == {"cpu": "1", "memory": "2Gi"}
    assert limits_of("xeon-by-sockets")["worker"] == {"cpu": "96", "memory": "360Gi"}


def user_lines(frozen: Frozen, template: Document, file: str) -> list[list[str]] | None:
    """Return the entries of the file that a pod mounts below /etc; None where it is the image's."""
    keys = [
        mount.get("subPath") for mount in container(template)["volumeMounts"] if mount["mountPath"] == f"/etc/{file}"
    ]
    if not keys:
        return None
    lines: list[str] = render_config_map(frozen)["data"][keys[0]].splitlines()
    return [line.split(":") for line in lines]


def test_every_given_user_has_a_name_a_home_and_a_shell() -> None:
    for frozen, _, _, template in pods():
        security = template["spec"]["securityContext"]
        passwd = user_lines(frozen, template, "passwd")
        if "runAsUser" not in security:
            assert passwd is None
            continue
        assert passwd is not None
        # The first entry of a number is the one that counts.
        name, _, number, group, _, home, shell = next(line for line in passwd if line[2] == str(security["runAsUser"]))
        assert name == ("root" if number == "0" else "bert")
        assert (group, shell) == (str(security["runAsGroup"]), "/bin/bash")
        assert {"name": "HOME", "value": home} in container(template)["env"]
        assert len({line[2] for line in passwd}) == len(passwd)
        groups = user_lines(frozen, template, "group")
        assert groups is not None
        members = {line[2]: line[3] for line in groups}
        assert len(members) == len(groups) == len({line[0] for line in groups})
        further = {security.get("fsGroup"), *security.get("supplementalGroups", ())} - {None, security["runAsGroup"]}
        assert {key for key, member in members.items() if member == name} == {str(each) for each in further}
        assert group in members


def test_launcher_and_workers_are_the_same_user_unless_a_role_says_otherwise() -> None:
    for frozen, _, document in children():
        spec = frozen.job.spec
        if document["kind"] == "Job" or spec.launcher.security_context or spec.worker.security_context:
            continue
        (_, launcher), (_, worker) = templates(document)
        assert launcher["spec"]["securityContext"] == worker["spec"]["securityContext"]
        for file in ("passwd", "group"):
            assert user_lines(frozen, launcher, file) == user_lines(frozen, worker, file)


def test_keys_lie_where_ssh_of_that_user_looks_and_accepts_them() -> None:
    """mpi-operator makes keys of no path but /root/.ssh unreadable to others, on which ssh insists for root's own."""
    for case, folder in (("root", "/root/.ssh"), ("user", "/home/bert/.ssh"), ("queue", "/home/bert/.ssh")):
        document = case_child(case)
        assert document["spec"]["sshAuthMountPath"] == folder
        arguments = container(dict(templates(document))["worker"])["args"]
        assert arguments[arguments.index("--key-folder") + 1] == folder


def test_the_launcher_gets_its_hostfile() -> None:
    for _, _, role, template in pods():
        arguments = container(template)["args"]
        assert (("--hostfile", "/etc/mpi/hostfile") in zip(arguments, arguments[1:], strict=False)) == (
            role == "launcher"
        )


def test_rendering_changes_nothing_and_shares_nothing() -> None:
    for frozen, child, document in children():
        job = copy.deepcopy(frozen.job)
        kept = copy.deepcopy(document)
        again = render_child(frozen, child)
        assert again == kept
        # Whoever edits a document must not reach into another one.
        for _, template in templates(again):
            template["metadata"]["labels"].clear()
            template["spec"].get("nodeSelector", {}).clear()
            container(template).get("resources", {}).get("limits", {}).clear()
        assert render_child(frozen, child) == kept
        assert render_config_map(frozen) == render_config_map(frozen)
        assert frozen.job == job


def test_what_was_frozen_renders_the_very_same_child_again() -> None:
    for frozen, child, document in children():
        data = render_config_map(frozen)["data"]
        head = {
            "apiVersion": "bert-operator.dev/v1alpha1",
            "kind": "BertPretrainJob",
            "metadata": {"name": frozen.job.metadata.name, "namespace": frozen.job.metadata.namespace, "uid": UID},
        }
        again = freeze(parse_job({**head, "spec": read_frozen(data)}), default_image="another/image:2")
        assert again == frozen
        assert render_child(again, child) == document
