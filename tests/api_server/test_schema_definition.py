"""The definition is one that the API server likes, and what people see of it says what they need."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from bert_job.pretraining import PretrainSpec
from bert_job.stages import Stage
from bert_operator.api.crd import render_crd
from bert_operator.api.schema import bert_pretrain_job
from cluster_api import Api
from control_plane import ControlPlane
from sample_job import sample_document

CRDS, CRD = "apiextensions.k8s.io/v1/customresourcedefinitions", "bertpretrainjobs.bert-operator.dev"
JOBS, NAMESPACE = "bert-operator.dev/v1alpha1/bertpretrainjobs", "default"
KUBECTL = shutil.which("kubectl")


@pytest.fixture
def job(api: Api) -> Iterator[str]:
    """A stored job that has begun, and its name."""
    api.create(sample_document(), NAMESPACE).expect()
    status = {"phase": "Running", "stage": "phase1", "attempt": 2, "progress": {"step": 7, "loss": "6.25"}}
    found = {"phase1": {"mlm_accuracy": "0.25", "samples": "9"}, "mrpc": {"f1": "0.5", "accuracy": "0.75"}}
    status["results"] = [
        {"stage": stage, "metrics": [{"name": name, "value": value} for name, value in metrics.items()]}
        for stage, metrics in found.items()
    ]
    api.patch(JOBS, "demo", {"status": status}, NAMESPACE, subresource="status").expect()
    yield "demo"
    api.delete(JOBS, "demo", NAMESPACE).expect()


@pytest.fixture
def kubectl(control_plane: ControlPlane, tmp_path: Path) -> list[str]:
    if KUBECTL is None:
        pytest.skip("requires kubectl")
    config = control_plane.kubeconfig(control_plane.admin_token)
    return [KUBECTL, f"--kubeconfig={config}", f"--cache-dir={tmp_path}"]


def output_of(command: list[str]) -> str:
    return subprocess.run(
        command, capture_output=True, text=True, check=True, env={**os.environ, "NO_COLOR": "1"}
    ).stdout


def test_applying_it_again_changes_nothing(api: Api) -> None:
    before = api.get(CRDS, CRD).expect()
    api.server_side_apply(render_crd()).expect()
    after = api.get(CRDS, CRD).expect()
    assert after["metadata"]["generation"] == before["metadata"]["generation"]
    assert after["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]


def test_its_schema_is_structural_and_its_names_are_free(api: Api) -> None:
    conditions = {item["type"]: item["status"] for item in api.get(CRDS, CRD).expect()["status"]["conditions"]}
    assert conditions == {"NamesAccepted": "True", "Established": "True"}


def test_a_list_of_jobs_has_the_columns_that_people_ask_for(control_plane: ControlPlane, job: str) -> None:
    accept = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}
    tables = Api(control_plane.url, control_plane.ca_file, control_plane.admin_token, headers=accept)
    table = tables.get(JOBS, "", NAMESPACE).expect()
    tables.close()
    assert table["kind"] == "Table"
    shown = [column["name"] for column in table["columnDefinitions"] if not column["priority"]]
    assert shown == ["Name", "Stage", "Phase", "Step", "Loss", "Seq/s", "ETA", "Age"]
    (row,) = table["rows"]
    cells = dict(zip((column["name"] for column in table["columnDefinitions"]), row["cells"], strict=True))
    assert (cells["Name"], cells["Stage"], cells["Phase"], cells["Step"]) == (job, "phase1", "Running", 7)
    assert (cells["Loss"], cells["Attempt"], cells["Workers"], cells["ETA"]) == ("6.25", 2, 1, None)
    assert cells["Accuracy"] == "0.5"


def test_kubectl_knows_the_short_name(kubectl: list[str], job: str) -> None:
    heading, row = output_of([*kubectl, "get", "bpj"]).splitlines()
    assert heading.split() == ["NAME", "STAGE", "PHASE", "STEP", "LOSS", "SEQ/S", "ETA", "AGE"]
    assert row.split()[:5] == [job, "phase1", "Running", "7", "6.25"]
    assert "bertpretrainjob.bert-operator.dev/demo" in output_of([*kubectl, "get", "all", "-o", "name"]).split()


@pytest.mark.parametrize(
    ("path", "section"),
    [
        ("spec", bert_pretrain_job.JobSpec),
        ("spec.stages", Stage),
        ("spec.stages.pretrain", PretrainSpec),
        ("spec.runPolicy", bert_pretrain_job.RunPolicy),
    ],
)
def test_kubectl_explains_every_field(
    kubectl: list[str], api: Api, path: str, section: type[bert_pretrain_job.Section]
) -> None:
    text = output_of([*kubectl, "explain", f"bpj.{path}"])
    _, _, fields = text.partition("FIELDS:\n")
    told = dict(re.findall(r"^  (\w+)\t<[^\n]*\n(.*?)(?:\n\n|\Z)", fields, re.MULTILINE | re.DOTALL))
    assert told.keys() == {field.alias for field in section.model_fields.values()}
    # Below the type, and below the choices of an enumeration, stands the sentence.
    assert {name for name, words in told.items() if not re.search(r"^    \w", words, re.MULTILINE)} == set()
    assert "``" not in text


def test_kubectl_writes_whole_numbers_as_integers(kubectl: list[str], api: Api, tmp_path: Path) -> None:
    """The tests that compare readers send what kubectl would send."""
    manifest = tmp_path / "job.json"
    manifest.write_text(re.sub('"slotsPerWorker": 2', '"slotsPerWorker": 2.0', json.dumps(sample_document())))
    assert '"slotsPerWorker": 2.0' in manifest.read_text()
    assert output_of([*kubectl, "create", "--dry-run=server", "-o", "name", "-f", str(manifest)]).strip() == (
        "bertpretrainjob.bert-operator.dev/demo"
    )
