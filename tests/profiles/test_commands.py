"""``bert-operator render`` and ``check`` show a job as the operator with these settings would see it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from bert_operator.__main__ import main
from sample_job import sample_document

SETTINGS = """
trainerImage: registry.example.com/trainer:0.2.0
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
    assert shown["spec"]["image"] == "registry.example.com/trainer:0.2.0"
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


def test_a_job_is_judged_by_default_settings_unless_others_are_named(
    files: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job, settings = files
    assert main(["check", job, "--cluster"]) == 2
    assert "spec.output.volume: required" in capsys.readouterr().err
    assert main(["check", job, "--cluster", "--settings", settings]) == 0
    assert capsys.readouterr().out == f"valid; judged by {settings}, profile xeon\n"
    privileged = tmp_path / "privileged.yaml"
    output = {"path": "a", "volume": {"hostPath": {"path": "/data"}}}
    privileged.write_text(json.dumps(sample_document(lambda spec: spec.update(output=output))))
    assert main(["check", str(privileged)]) == 0
    assert main(["check", str(privileged), "--cluster"]) == 2
    assert "spec.output.volume.hostPath: got" in capsys.readouterr().err


def test_settings_are_read_from_the_config_map_that_holds_them(
    files: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job, _ = files
    path = tmp_path / "configmap.yaml"
    path.write_text(yaml.safe_dump({"kind": "ConfigMap", "data": {"settings.yaml": SETTINGS}}))
    assert main(["check", job, "--settings", str(path)]) == 0
    path.write_text(yaml.safe_dump({"kind": "ConfigMap", "data": {"other": ""}}))
    assert main(["check", job, "--settings", str(path)]) == 2
    assert "configmap.yaml: a ConfigMap without settings.yaml" in capsys.readouterr().err


def test_nothing_is_created_of_a_job_of_another_controller(
    files: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = tmp_path / "far.yaml"
    job.write_text(json.dumps(sample_document(lambda spec: spec.update(managedBy="kueue.x-k8s.io/multikueue"))))
    assert main(["render", str(job), "--settings", files[1], "--show", "objects"]) == 0
    assert capsys.readouterr().out == (
        "# Nothing: spec.managedBy is kueue.x-k8s.io/multikueue; the operator leaves such a job alone\n"
    )


def test_every_shown_object_says_when_it_is_created(
    files: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, settings = files
    job = tmp_path / "queued.yaml"
    job.write_text(json.dumps(sample_document(lambda spec: spec.update(workers=2, queueName="night"))))
    assert main(["render", str(job), "--settings", settings, "--show", "objects"]) == 0
    remarks = [line for line in capsys.readouterr().out.splitlines() if line.startswith("#")]
    admitted = ", suspended until Kueue admits it from queue night"
    assert remarks == [
        "# before the first attempt, once: every attempt of every run reads it",
        f"# when the job starts{admitted}: stage prepare, 1 rank; retries are the same as a2, a3, ...",
        f"# once the run prepare has succeeded{admitted}: stages phase1, evaluate, export, 4 ranks; mpi-operator makes "
        "its pods; retries are the same as a2, a3, ...",
    ]
