"""The overlays: settings and profiles that the operator takes, the volumes they name, one job for all of them."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from bert_operator.api.parsing.validation import parse_job
from bert_operator.api.schema.bert_pretrain_job import JobSpec
from manifests import KUSTOMIZE, PLATFORM_FIELDS, ROOT, Json, kustomize, parse

OVERLAYS = sorted(path.name for path in (KUSTOMIZE / "overlays").iterdir())
JOB = """
apiVersion: bert-operator.dev/v1alpha1
kind: BertPretrainJob
metadata: {name: same-everywhere}
spec:
  workers: 2
  model: {preset: tiny}
  dataset: {path: data}
  stages:
    - name: phase1
      pretrain: {sequenceLength: 128, globalBatchSize: 64, learningRate: 1.0e-3, length: {steps: 10}}
  output: {path: results}
"""


def read_settings(overlay: str) -> Json:
    settings: Json = yaml.safe_load((KUSTOMIZE / "overlays" / overlay / "settings.yaml").read_text())
    return settings


def merge(profile: Any, own: Any) -> Any:
    if isinstance(profile, dict) and isinstance(own, dict):
        return {key: merge(profile.get(key), own.get(key, profile.get(key))) for key in {**profile, **own}}
    return own


PROFILES = [(overlay, name) for overlay in OVERLAYS for name in read_settings(overlay)["profiles"]]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_operator_gets_the_settings_of_its_overlay(overlay: str) -> None:
    documents = parse(kustomize(KUSTOMIZE / "overlays" / overlay))
    (config_map,) = (item for item in documents if item["kind"] == "ConfigMap")
    assert yaml.safe_load(config_map["data"]["settings.yaml"]) == read_settings(overlay)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_jobs_that_name_no_profile_get_one_that_exists(overlay: str) -> None:
    settings = read_settings(overlay)
    assert settings["defaultProfile"] == overlay
    assert overlay in settings["profiles"]


@pytest.mark.parametrize(("overlay", "name"), PROFILES)
def test_a_profile_holds_what_belongs_to_the_cluster_and_makes_the_same_job_whole(overlay: str, name: str) -> None:
    profile = read_settings(overlay)["profiles"][name]
    assert set(profile) <= PLATFORM_FIELDS
    job = yaml.safe_load(JOB)
    known = {field.alias for field in JobSpec.model_fields.values()}
    job["spec"] = merge({key: value for key, value in profile.items() if key in known}, job["spec"])
    spec = parse_job(job).spec
    assert spec.output.volume is not None
    assert spec.output.volume.mount_path == "/mnt/bert"
    assert spec.security_context.run_as_user == 54321


@pytest.mark.parametrize(("overlay", "name"), PROFILES)
def test_claims_that_a_profile_names_are_there_with_their_volumes(overlay: str, name: str) -> None:
    documents = parse(kustomize(KUSTOMIZE / "overlays" / overlay))
    claims = {item["metadata"]["name"]: item for item in documents if item["kind"] == "PersistentVolumeClaim"}
    volumes = {item["metadata"]["name"]: item for item in documents if item["kind"] == "PersistentVolume"}
    classes = {item["metadata"]["name"] for item in documents if item["kind"] == "StorageClass"}
    profile = read_settings(overlay)["profiles"][name]
    for section in ("dataset", "output"):
        claim = claims[profile[section]["volume"]["persistentVolumeClaim"]["claimName"]]
        assert claim["metadata"]["namespace"] == "bert"
        if claim["spec"]["storageClassName"]:
            assert claim["spec"]["storageClassName"] in classes
            continue
        volume = volumes[claim["spec"]["volumeName"]]
        assert volume["spec"]["claimRef"] == {key: claim["metadata"][key] for key in ("name", "namespace")}
        assert volume["spec"]["accessModes"] == claim["spec"]["accessModes"]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_only_where_memory_is_locked_jobs_may_do_more_than_restricted(overlay: str) -> None:
    documents = parse(kustomize(KUSTOMIZE / "overlays" / overlay))
    labels = {item["metadata"]["name"]: item["metadata"]["labels"] for item in documents if item["kind"] == "Namespace"}
    asks_for_more = any(
        profile.get("network", {}).get("lockMemory") or "rdma" in profile.get("resources", {})
        for profile in read_settings(overlay)["profiles"].values()
    )
    enforced = labels["bert"]["pod-security.kubernetes.io/enforce"]
    assert enforced == ("privileged" if asks_for_more else "restricted")
    assert labels["bert-operator"]["pod-security.kubernetes.io/enforce"] == "restricted"


def test_every_overlay_and_component_is_named_in_the_guides() -> None:
    text = "".join(path.read_text() for path in (ROOT / "docs/guides").glob("*.md"))
    named = [f"overlays/{name}" for name in OVERLAYS]
    named += [f"components/{path.name}" for path in (KUSTOMIZE / "components").iterdir()]
    named += [f"| `{path.name}` |" for path in (KUSTOMIZE / "jobs/components").iterdir()]
    assert [name for name in named if name not in text] == []
