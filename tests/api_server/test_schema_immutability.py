"""Once an attempt was begun, the API server keeps the spec as it is, but for the run policy."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from bert_operator.api.crd import render_crd
from bert_operator.api.parsing.validation import parse_job
from bert_operator.api.schema.bert_pretrain_job import JobSpec, RunPolicy
from bert_operator.errors import InvalidJob
from cluster_api import Answer, Api
from control_plane import ControlPlane, namespace_of
from job_documents import as_kubectl_sends_it, draw_value
from sample_job import Document, sample_document

JOBS, NAMESPACE = "bert-operator.dev/v1alpha1/bertpretrainjobs", "immutability"
FIELDS = [str(field.alias) for field in JobSpec.model_fields.values()]
OPTIONAL = [
    str(field.alias)
    for field in JobSpec.model_fields.values()
    if field.default is None or field.alias in ("collectives", "cpu", "mpi", "network", "slotsPerWorker")
]
"""Fields that the server leaves out where the job does: a profile may fill in those that have defaults."""
HANG_LIMITS = ("hangMinSeconds", "hangMaxSeconds")
POLICIES = [str(field.alias) for field in RunPolicy.model_fields.values()]


@pytest.fixture(scope="module")
def api(control_plane: ControlPlane) -> Iterator[Api]:
    """A server with two jobs that have all fields: ``waiting``, and ``started``, which is in its first attempt."""
    api = control_plane.api
    api.apply_crd(render_crd())
    api.create(namespace_of(NAMESPACE)).expect()
    for name in ("waiting", "started"):
        api.create({**full_document(), "metadata": {"name": name}}, NAMESPACE).expect()
    api.patch(JOBS, "started", {"status": {"attempt": 1}}, NAMESPACE, subresource="status").expect()
    yield api
    api.delete("v1/namespaces", NAMESPACE).expect()


CLAIM = {"persistentVolumeClaim": {"claimName": "shared"}}


def full_document() -> Document:
    """Return a job in which no field of the spec is empty, neither by itself nor by its default."""

    def change(spec: Document) -> None:
        spec.update(
            profile="own",
            image="trainer:1",
            mpi={"implementation": "MPICH"},
            collectives="torch",
            cpu={"coresPerRank": 2},
            network={"hostNetwork": True},
            imagePullPolicy="Always",
            imagePullSecrets=[{"name": "keys"}],
            initialCheckpoint={"path": "start"},
            dataset={"path": "data"},
            resources={"memory": "4Gi"},
            securityContext={"runAsUser": 1000},
            podMetadata={"labels": {"team": "nlp"}},
            serviceAccountName="own",
            scheduling={"schedulerName": "own"},
            queueName="queue",
            workloadPriorityClass="first",
            managedBy="bert-operator.dev/operator",
            launcher={"nodeSelector": {"a": "b"}},
            worker={"nodeSelector": {"a": "b"}},
            env=[{"name": "A", "value": "1"}, {"name": "B", "value": "2"}],
            envFrom=[{"secret": "keys"}],
            volumes=[{"name": "a", "source": {**CLAIM, "mountPath": "/mnt/a"}}],
            workspace={"volume": CLAIM, "command": ["own"]},
            proxy={"http": "http://proxy"},
            profileSteps={"first": 2, "last": 3},
            health={"onUnhealthy": "Skip"},
        )

    return sample_document(change)


def other_value(field: str) -> Any:
    """Return a value of one field that the job could have instead, and that means something else."""
    job = parse_job(full_document())
    for number in range(2000):
        document = full_document()
        document["spec"][field] = as_kubectl_sends_it(draw_value(random.Random(number), f"JobSpec.{field}"))
        try:
            if parse_job(document) != job:
                return document["spec"][field]
        except InvalidJob:
            continue
    raise AssertionError(f"no other value for {field}")


def change(api: Api, name: str, field: str, value: Any) -> Answer:
    operation = {"op": "add", "path": f"/spec/{field}", "value": value}
    return api.patch(JOBS, name, [operation], NAMESPACE, kind="json", dryRun="All", fieldValidation="Strict")


def test_the_job_has_every_field(api: Api) -> None:
    spec = api.get(JOBS, "started", NAMESPACE).expect()["spec"]
    assert spec.keys() == set(FIELDS)


@pytest.mark.parametrize("field", [field for field in FIELDS if field != "managedBy"])
def test_before_the_start_everything_else_may_change(api: Api, field: str) -> None:
    change(api, "waiting", field, other_value(field)).expect(200)


@pytest.mark.parametrize("name", ["waiting", "started"])
def test_who_manages_a_job_never_changes(api: Api, name: str) -> None:
    for operation in (
        {"op": "replace", "path": "/spec/managedBy", "value": "kueue.x-k8s.io/multikueue"},
        {"op": "remove", "path": "/spec/managedBy"},
    ):
        answer = api.patch(JOBS, name, [operation], NAMESPACE, kind="json", dryRun="All")
        assert answer.status == 422
        assert "spec.managedBy: Forbidden: allowed: the value that the job was created with" in answer.message
        assert "next: delete the job and create another one" in answer.message


def test_nobody_takes_a_job_over_that_named_no_manager(api: Api) -> None:
    document = sample_document()
    api.create({**document, "metadata": {"name": "unnamed"}}, NAMESPACE).expect()
    for manager in ("kueue.x-k8s.io/multikueue", "bert-operator.dev/operator"):
        answer = change(api, "unnamed", "managedBy", manager)
        assert (answer.status, "spec.managedBy: Forbidden: " in answer.message) == (422, True)
    change(api, "unnamed", "seed", 7).expect(200)


def test_no_other_manager_is_known(api: Api) -> None:
    document = sample_document(lambda spec: spec.update(managedBy="example.com/mine"))
    answer = api.create({**document, "metadata": {"name": "mine"}}, NAMESPACE)
    assert answer.status == 422
    assert "spec.managedBy: Unsupported value" in answer.message


@pytest.mark.parametrize("field", [field for field in FIELDS if field not in ("runPolicy", "managedBy")])
def test_after_the_start_it_stays(api: Api, field: str) -> None:
    answer = change(api, "started", field, other_value(field))
    assert answer.status == 422
    assert f"spec.{field}: Forbidden: allowed: the value that the job was started with" in answer.message
    assert "change runPolicy only, or delete the job" in answer.message


@pytest.mark.parametrize("field", OPTIONAL)
def test_after_the_start_it_is_not_taken_away(api: Api, field: str) -> None:
    operation = {"op": "remove", "path": f"/spec/{field}"}
    answer = api.patch(JOBS, "started", [operation], NAMESPACE, kind="json", dryRun="All")
    assert answer.status == 422
    assert f"spec.{field}: Forbidden: " in answer.message


def test_after_the_start_stages_keep_their_order(api: Api) -> None:
    stages = full_document()["spec"]["stages"]
    prepare, phase1, evaluate, export = stages
    change(api, "waiting", "stages", [prepare, phase1, export, evaluate]).expect(200)
    answer = change(api, "started", "stages", [prepare, phase1, export, evaluate])
    assert answer.status == 422
    assert "spec.stages: Forbidden: " in answer.message


def test_after_the_start_the_same_document_may_be_applied_again(api: Api) -> None:
    document = {**full_document(), "metadata": {"name": "started"}}
    before = api.get(JOBS, "started", NAMESPACE).expect()["metadata"]["generation"]
    after = api.server_side_apply(document, NAMESPACE).expect()["metadata"]["generation"]
    assert after == before


@pytest.mark.parametrize("policy", POLICIES)
def test_the_run_policy_may_always_change(api: Api, policy: str) -> None:
    chance = random.Random(policy)
    values = [draw_value(chance, f"RunPolicy.{policy}") for _ in range(20)]
    for value in {*values}:
        for name in ("waiting", "started"):
            if policy in HANG_LIMITS:
                # One alone may not cross the other.
                limit = min(value, 86_400)
                change(api, name, "runPolicy", dict.fromkeys(HANG_LIMITS, limit)).expect(200)
            else:
                change(api, name, f"runPolicy/{policy}", value).expect(200)
