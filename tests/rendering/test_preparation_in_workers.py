"""Data preparation in several workers is an MPIJob of its own size; the training beside it is what it was."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bert_operator.api.parsing.validation import parse_job
from bert_operator.names import PREPARE_RUN, TRAINING_RUN
from bert_operator.render.children import needs_mpi, render_child
from bert_operator.render.frozen import RUN_CONFIG_KEY, Frozen, freeze, read_frozen, render_config_map
from bert_operator.state.runs import RunPlacement, list_runs, run_placement
from child_cases import IMAGE, UID, child_of, claim, container, templates
from job_changes import Change, both, put
from sample_job import PREPARE, sample_document, sample_job


def prepare(**fields: object) -> Change:
    return both(*(put("stages", PREPARE, "prepare", name, value=value) for name, value in fields.items()))


def frozen(*changes: Change) -> Frozen:
    document = sample_document(both(put("output", "volume", value=claim("results")), *changes))
    document["metadata"]["uid"] = UID
    return freeze(parse_job(document), default_image=IMAGE)


def child(of: Frozen, run: str) -> Any:
    return render_child(of, child_of(of, run, 1))


def test_one_worker_is_a_pod_as_it_was() -> None:
    of = frozen()
    assert child(of, PREPARE_RUN)["kind"] == "Job"
    assert [run.ranks for run in list_runs(of.job)] == [1, 2]


def test_several_workers_are_an_mpi_job_whatever_the_training_is() -> None:
    of = frozen(prepare(workers=3, numProcesses=4))
    document = child(of, PREPARE_RUN)
    assert document["kind"] == "MPIJob"
    assert document["metadata"]["name"] == "demo-a1"
    assert document["spec"]["slotsPerWorker"] == 4
    assert document["spec"]["mpiReplicaSpecs"]["Worker"]["replicas"] == 3
    assert child(of, TRAINING_RUN)["kind"] == "Job"
    assert [(run.name, run.ranks) for run in list_runs(of.job)] == [(PREPARE_RUN, 12), (TRAINING_RUN, 2)]


def test_training_in_several_workers_leaves_the_preparation_in_one() -> None:
    of = frozen(put("workers", value=2))
    assert not needs_mpi(of, child_of(of, PREPARE_RUN, 1))
    assert needs_mpi(of, child_of(of, TRAINING_RUN, 1))


@pytest.mark.parametrize(
    ("cpu", "slots"), [(None, 1), (8, 8), ("8", 8), ("3500m", 3), ("500m", 1), ("2.5", 2), ("1k", 1)]
)
def test_processes_that_are_not_counted_are_the_cores_of_the_resources(cpu: object, slots: int) -> None:
    changes = [prepare(workers=2)] + ([put("resources", value={"cpu": cpu})] if cpu is not None else [])
    of = frozen(*changes)
    assert run_placement(of.job.spec, PREPARE_RUN) == RunPlacement(workers=2, slots=slots)
    configuration = json.loads(render_config_map(of)["data"][RUN_CONFIG_KEY])
    assert configuration["stages"][0]["num_processes"] == slots  # by which needs of memory are estimated
    assert configuration["world"] == {"ranks": 2, "hosts": 1}


def test_pods_without_cards_are_not_told_to_use_them() -> None:
    names = {"OMPI_MCA_pml": "ucx", "UCX_TLS": "rc,sm,self", "UCX_NET_DEVICES": "mlx5_0:1", "NCCL_DEBUG": "WARN"}
    env = put("env", value=[{"name": name, "value": value} for name, value in names.items()])

    def told(of: Frozen, run: str) -> list[set[str]]:
        pods = [container(template) for _, template in templates(child(of, run))]
        return [{entry["name"] for entry in pod["env"]} & set(names) for pod in pods]

    claims = [{"name": "nic", "resourceClaimTemplateName": "nic"}]
    for resources in ({"rdma": {"resourceName": "rdma/shared_ib"}}, {"resourceClaims": claims}):
        with_cards = frozen(prepare(workers=2), env, put("resources", value=resources))
        assert told(with_cards, PREPARE_RUN) == [{"NCCL_DEBUG"}, {"NCCL_DEBUG"}]
        assert told(with_cards, TRAINING_RUN) == [set(names)]
    assert told(frozen(prepare(workers=2), env), PREPARE_RUN) == [set(names), set(names)]


def test_the_workers_own_resources_come_first() -> None:
    of = frozen(prepare(workers=2), put("resources", value={"cpu": 4}), put("worker", value={"resources": {"cpu": 9}}))
    assert run_placement(of.job.spec, PREPARE_RUN).slots == 9


def test_the_processes_of_one_worker_are_left_to_its_cores() -> None:
    configuration = json.loads(render_config_map(frozen(put("resources", value={"cpu": 4})))["data"][RUN_CONFIG_KEY])
    assert configuration["stages"][0]["num_processes"] is None


def test_all_workers_write_to_the_dataset_and_none_has_a_gpu() -> None:
    of = frozen(
        prepare(workers=2),
        put("dataset", value={"volume": claim("corpora")}),
        put("resources", value={"cpu": 4, "accelerator": {}}),
    )
    by_role = dict(templates(child(of, PREPARE_RUN)))
    (mount,) = (item for item in container(by_role["worker"])["volumeMounts"] if item["name"] == "dataset")
    assert "readOnly" not in mount
    assert container(by_role["worker"])["resources"]["limits"] == {"cpu": "4"}


def test_users_of_both_roles_are_known_where_only_the_preparation_is_spread() -> None:
    of = frozen(
        prepare(workers=2),
        put("securityContext", value={"runAsUser": 4000}),
        put("launcher", value={"securityContext": {"runAsUser": 5000}}),
    )
    data = render_config_map(of)["data"]
    mounted = {
        mount["subPath"]
        for run in (PREPARE_RUN, TRAINING_RUN)
        for _, template in templates(child(of, run))
        for mount in container(template)["volumeMounts"]
        if mount["name"] == "frozen" and "subPath" in mount
    }
    assert mounted == {"passwd", "group", "launcher-passwd", "launcher-group"} <= data.keys()


def test_a_frozen_configuration_of_before_means_one_worker() -> None:
    of = frozen(prepare(workers=3))
    kept = read_frozen(render_config_map(of)["data"])
    assert kept["stages"][PREPARE]["prepare"].pop("workers") == 3
    document = {**sample_document(), "spec": kept}
    assert run_placement(parse_job(document).spec, PREPARE_RUN) == RunPlacement(workers=1, slots=1)


def test_more_attempts_are_rendered_from_the_same_configuration() -> None:
    of = frozen(prepare(workers=3, numProcesses=2))
    again = {**sample_document(), "spec": read_frozen(render_config_map(of)["data"])}
    again["metadata"]["uid"] = UID
    first, second = (
        render_child(each, child_of(each, PREPARE_RUN, 4))
        for each in (of, freeze(parse_job(again), default_image=IMAGE))
    )
    assert first == second
    assert sample_job(prepare(workers=3)) != sample_job()
