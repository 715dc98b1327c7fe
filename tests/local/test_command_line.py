"""``check`` and ``render``, and how mistakes on the command line are answered."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
import yaml

from bert_operator.__main__ import main
from sample_job import sample_document

VALID = "valid; not looked at: profile, volumes and privileges of a cluster (check --cluster)"


@pytest.fixture
def job(tmp_path: Path) -> Path:
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(sample_document()))
    return path


def test_check_says_valid(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(job)]) == 0
    assert capsys.readouterr() == (f"{VALID}\n", "")


def test_check_reports_all_problems_at_once(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job.write_text(job.read_text().replace("learningRate: 0.003", "lr: 0.003").replace("tiny", "huge"))
    assert main(["check", str(job)]) == 2
    output, remarks = capsys.readouterr()
    assert output == ""
    first, *problems = remarks.splitlines()
    assert first == "The job has 3 problems:"
    assert [line.split(":")[0].strip() for line in problems] == [
        "spec.model.preset",
        "spec.stages[1].pretrain.learningRate",
        "spec.stages[1].pretrain.lr",
    ]


def test_check_passes_remarks_on_standard_error(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job.write_text(yaml.safe_dump(sample_document(lambda spec: spec.update(precision="fp64"))))
    assert main(["check", str(job)]) == 0
    output, remarks = capsys.readouterr()
    assert output == f"{VALID}\n"
    assert remarks.startswith("note: spec.precision: fp64")


def test_check_reads_jobs_among_other_objects_and_counts_those(
    job: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    other = "apiVersion: v1\nkind: Secret\nmetadata: {name: a}\nstringData: {answer: yes, 1: !!binary aGk=}\n"
    named = sample_document()
    named["metadata"]["name"] = "second"
    stream = f"---\n{other}---\n# nothing\n---\n{yaml.safe_dump(named)}---\n{other}"
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stream.encode())))
    assert main(["check", str(job), "-"]) == 0
    assert capsys.readouterr() == (
        f"{job}: demo: {VALID}\nstandard input: second: {VALID}\n",
        "standard input: 2 objects of other kinds left alone\n",
    )


def test_check_reports_the_problems_of_every_job_in_a_stream(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "jobs.yaml"
    jobs = [sample_document(lambda spec: spec.update(precision="fp8")), sample_document(), sample_document()]
    del jobs[2]["metadata"]
    path.write_text(yaml.safe_dump_all(jobs))
    assert main(["check", str(path)]) == 2
    output, remarks = capsys.readouterr()
    assert output == f"{path}: demo: {VALID}\n"
    assert f"{path}: demo: The job has 1 problem:\n  spec.precision: got" in remarks
    assert f"{path}: no name: The job has 1 problem:\n  metadata: required" in remarks


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("kind: Secret\n", "holds 1 object of other kinds, and no BertPretrainJob"),
        ("", "holds no object, and no BertPretrainJob"),
        ("kind: BertPretrainJob\nspec: {a: yes}\n", "jobs.yaml:2: spec.a: yes is true in YAML 1.1"),
        ("kind: Secret\n---\na: [\n", "jobs.yaml:4: not YAML"),
    ],
)
def test_a_stream_without_a_job_or_with_an_ambiguous_one_is_refused(
    text: str, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "jobs.yaml").write_text(text)
    assert main(["check", str(tmp_path / "jobs.yaml")]) == 2
    assert told in capsys.readouterr().err


def test_render_prints_the_run_configuration(
    job: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["render", str(job)]) == 0
    config = json.loads(capsys.readouterr().out)
    assert config["output_folder"] == str(tmp_path / "runs/demo")
    assert config["world"] == {"ranks": 2, "hosts": 1}


def test_a_file_that_cannot_be_read_is_bad_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["local", str(tmp_path / "no.yaml")]) == 2
    assert "no.yaml: cannot read the job" in capsys.readouterr().err


def test_a_host_file_that_cannot_be_read_is_bad_input(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["local", str(job), "--hostfile", "/no/hosts"]) == 2
    assert "/no/hosts: cannot read the host file" in capsys.readouterr().err


def test_more_ranks_than_the_batch_has_rows_are_refused(
    job: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "hosts").write_text("node1\nnode2\n")
    options = ["--hostfile", str(tmp_path / "hosts"), "--ranks-per-node", "33"]
    assert main(["local", str(job), *options]) == 2
    assert "globalBatchSize: got 64; allowed: at least 66" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [[], ["local"], ["run", "job.yaml"], ["local", "j", "--ranks-per-node", "0"], ["check", "j", "--builtin-text"]],
)
def test_arguments_that_make_no_sense_exit_with_two(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert "usage: bert-operator" in capsys.readouterr().err


def test_help_speaks_of_shared_file_systems_and_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["local", "--help"])
    text = capsys.readouterr().out
    assert "shared file system" in text
    assert "130 stopped by Ctrl-C" in text
