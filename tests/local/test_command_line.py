"""``check`` and ``render``, and how mistakes on the command line are answered."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from bert_operator.__main__ import main
from sample_job import sample_document


@pytest.fixture
def job(tmp_path: Path) -> Path:
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(sample_document()))
    return path


def test_check_says_valid(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(job)]) == 0
    assert capsys.readouterr() == ("valid\n", "")


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
    assert output == "valid\n"
    assert remarks.startswith("note: spec.precision: fp64")


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


@pytest.mark.parametrize("arguments", [[], ["local"], ["run", "job.yaml"], ["local", "j", "--ranks-per-node", "0"]])
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
