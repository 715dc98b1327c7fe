"""What the doctor says of the operator in tables of its own, against the operator: rights, merging, phases, fields."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest
import yaml

from bert_operator.api.crd import render_crd
from bert_operator.api.parsing.profiles import complete
from bert_operator.api.parsing.validation import parse_job
from bert_operator.api.schema.cluster import count_cpus
from bert_operator.api.schema.status import Phase
from bert_operator.cluster.settings import DEFAULT_TRAINER_IMAGE
from bert_operator.doctor import demands
from bert_operator.doctor.checks.definition import field_paths
from bert_operator.doctor.checks.deployment import NEEDED
from bert_operator.doctor.checks.nodes import lease_skew
from bert_operator.doctor.checks.pulls import parse_duration
from bert_operator.doctor.checks.settings import DEFAULT_TRAINER
from bert_operator.doctor.gathering import known_fields
from bert_operator.doctor.objects import amount, release_of, tag_of
from bert_operator.doctor.rights import Right
from bert_operator.doctor.snapshot import Listing, Parsed, Snapshot
from sample_job import sample_document

DEPLOY = Path(__file__).parents[2] / "deploy/kustomize"
OVERLAYS = sorted(path.parent.name for path in DEPLOY.glob("overlays/*/settings.yaml"))


def test_needed_rights_are_those_that_are_shipped() -> None:
    (role,) = [
        item for item in yaml.safe_load_all((DEPLOY / "base/rbac.yaml").read_text()) if item["kind"] == "ClusterRole"
    ]
    shipped = {
        Right(group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert set(NEEDED) == shipped


def demand_of(spec: dict[str, Any], profiles: dict[str, Any]) -> demands.Demand:
    """Return what a job asks for with these profiles."""
    job = {"metadata": {"namespace": "team", "name": "demo"}, "spec": spec}
    snapshot = Snapshot(
        listings={"jobs": Listing((job,))}, settings=Parsed("bert-operator/settings", {"profiles": profiles})
    )
    return next(demand for demand in demands.find_demands(snapshot) if demand.namespace)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_a_job_and_its_profile_ask_for_what_the_operator_makes_of_them(overlay: str) -> None:
    profiles = yaml.safe_load((DEPLOY / f"overlays/{overlay}/settings.yaml").read_text())["profiles"]
    for name in profiles:
        job = sample_document()
        job["spec"] |= {"profile": name, "workers": 3, "resources": {"memory": "9Gi"}}
        job["spec"].pop("slotsPerWorker", None)
        spec = parse_job(complete(job, profiles)).spec
        found = demand_of(job["spec"], profiles)
        assert (found.workers, found.image, found.queue) == (3, spec.image or "", spec.queue_name or "")
        assert found.worker["memory"] == amount("9Gi")
        assert found.worker.get("cpu") == (spec.cpus_per_worker if spec.resources.cpu is None else spec.resources.cpu)
        privileged = {path for path, standard in found.privileges if standard == "privileged"}
        assert privileged >= {"network.hostNetwork"} if spec.network.host_network else True


def test_what_every_role_asks_for_counts() -> None:
    spec = {
        "workers": 2,
        "cpu": {"ranksPerNode": "auto", "pinning": "numa", "numaNodes": 4, "coresPerRank": 8, "threadsPerCore": 2},
        "worker": {"resources": {"rdma": {"resourceName": "rdma/hca", "perWorker": 1}}},
        "launcher": {"securityContext": {"runAsUser": 0}},
    }
    found = demand_of(spec, {})
    assert found.worker["cpu"] == 8 * 4 * 2
    assert dict(found.privileges) == {
        "worker.resources.rdma": "privileged",
        "launcher.securityContext.runAsUser: 0": "baseline",
    }


def test_an_accelerator_needs_no_privileged_pod_and_an_empty_section_is_none() -> None:
    profiles = {"a": {"dataset": None, "resources": {"rdma": {"resourceName": "vendor.example/nic"}}}}
    own = {"profile": "a", "dataset": {"path": "x"}, "resources": {"rdma": None}}
    assert dict(demand_of(own, profiles).privileges) == {"resources.rdma": "privileged"}
    own = {"worker": {"resources": {"accelerator": {"resourceName": "vendor.example/nic"}}}}
    assert demand_of(own, profiles).privileges == ()
    assert demand_of({"resources": {"accelerator": {"resourceName": ["odd"]}}}, profiles).privileges == ()


def test_phases_are_those_of_the_status() -> None:
    assert set(demands._OVER) | {phase for phase in demands._WAITING if phase} <= set(get_args(Phase))


def test_the_list_of_fields_is_that_of_the_definition() -> None:
    (version,) = render_crd()["spec"]["versions"]
    spec = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
    assert known_fields() == set(field_paths(spec, "spec"))
    assert {"spec.stages[].pretrain", "spec.mpi.workerWaitSeconds"} <= known_fields()


def test_the_placeholder_is_that_of_the_settings() -> None:
    assert DEFAULT_TRAINER_IMAGE.startswith(DEFAULT_TRAINER)


@pytest.mark.parametrize("text", ["500m", "4", "0.5", "2k"])
def test_amounts_are_read_as_the_operator_reads_them(text: str) -> None:
    assert amount(text) == count_cpus(text)


def test_amounts_of_memory_and_what_is_none() -> None:
    assert amount("64Gi") == 64 * 1024**3
    assert amount("1e3") == amount("1k") == 1000
    assert amount("129M") == 129_000_000
    assert amount("lots") == amount(None) == 0


def test_versions_and_tags() -> None:
    assert release_of("v1.36.3-gke.100") == (1, 36, 3)
    assert release_of("latest") is None
    assert tag_of("localhost:5000/mpi-operator:0.8.2@sha256:00") == "0.8.2"
    assert tag_of("localhost:5000/mpi-operator") == ""


def test_durations_are_those_of_go() -> None:
    assert parse_duration("1h1m3.25s") == 3663.25
    assert parse_duration("841ms") == pytest.approx(0.841)


def test_the_skew_of_a_lease_is_the_nodes_time_less_the_servers() -> None:
    lease = {
        "metadata": {"managedFields": [{"time": "2026-01-01T00:00:10Z", "fieldsV1": {"f:spec": {"f:renewTime": {}}}}]},
        "spec": {"renewTime": "2026-01-01T00:00:03.500000Z"},
    }
    assert lease_skew(lease) == -6.5
    lease["metadata"]["managedFields"][0]["fieldsV1"] = {"f:spec": {"f:holderIdentity": {}}}
    assert lease_skew(lease) is None
