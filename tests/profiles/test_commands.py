"""``bert-operator render`` and ``check`` show a job as the operator with these settings would see it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from bert_operator.__main__ import main
from sample_job import sample_document

SETTINGS = """
defaultProfile: xeon
profiles:
  xeon:
    slotsPerWorker: 2
    cpu: {sockets: 2, pinning: socket}
    output: {volume: {persistentVolumeClaim: {claimName: bert}, mountPath: /mnt/bert}}
"""


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    """A job and the operator's settings."""
    job, settings = tmp_path / "job.yaml", tmp_path / "settings.yaml"
    job.write_text(json.dumps(sample_document(lambda spec: spec.pop("slotsPerWorker"))))
    settings.write_text(SETTINGS)
    return str(job), str(settings)


def test_the_resolved_job_is_a_job_again(files: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    job, settings = files
    assert main(["render", job, "--settings", settings, "--show", "job"]) == 0
    text = capsys.readouterr().out
    shown = yaml.safe_load(text)
    assert shown["spec"]["slotsPerWorker"] == 2
    assert shown["spec"]["output"]["volume"]["mountPath"] == "/mnt/bert"
    assert shown["spec"]["image"] == "docker.io/bert-operator/trainer:0.2.0"
    Path(job).write_text(text)
    assert main(["check", job]) == 0


def test_the_objects_of_every_run_s_first_attempt_are_shown(
    files: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    job, settings = files
    assert main(["render", job, "--settings", settings, "--show", "objects"]) == 0
    config_map, *children = yaml.safe_load_all(capsys.readouterr().out)
    assert config_map["kind"] == "ConfigMap"
    assert [(child["kind"], child["metadata"]["name"]) for child in children] == [
        ("Job", "demo-a1-prepare"),
        ("Job", "demo-a1-training"),
    ]
    assert json.loads(config_map["data"]["spec.json"])["cpu"]["sockets"] == 2


def test_the_run_configuration_has_the_paths_of_the_pods(
    files: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    job, settings = files
    assert main(["render", job, "--settings", settings]) == 0
    config = json.loads(capsys.readouterr().out)
    assert (config["output_folder"], config["world"]["ranks"]) == ("/mnt/bert/runs/demo", 2)


def test_a_job_that_this_operator_would_refuse_is_refused(
    files: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job, _ = files
    empty = tmp_path / "empty.yaml"
    empty.write_text("{}")
    assert main(["check", job, "--settings", str(empty)]) == 2
    assert "spec.output.volume" in capsys.readouterr().err


def test_wrong_settings_are_refused_with_all_that_is_wrong(
    files: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job, _ = files
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text("defaultProfile: b\nprofiles: {a: {stages: [], cpu: {pinning: left}}}\n")
    assert main(["check", job, "--settings", str(wrong)]) == 2
    told = capsys.readouterr().err
    assert "3 problem(s)" in told
    assert all(path in told for path in ("profiles.a.stages", "profiles.a.cpu.pinning", "defaultProfile"))
