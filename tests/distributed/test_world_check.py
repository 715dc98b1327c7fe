"""The world is checked before the first step. Real ranks under mpirun; observed: exit codes and messages."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import h5py
import pytest

from bert_trainer.config.checks import parse_run_config
from bert_trainer.errors import InputError, TrainerError
from bert_trainer.output.run_folder import RunFolder
from bert_trainer.parallel.connection import connect
from bert_trainer.parallel.horovod_world import prepare_environment
from bert_trainer.parallel.world import Alone, PeerFailed, on_rank_0
from relayout import relayout
from threaded_world import ThreadedWorld, run_threads
from tiny_run import environment, pretrain_stage, run_document, run_trainer, trainer_command, write_dataset


@pytest.mark.horovod
def test_too_few_ranks_end_before_the_first_step(tmp_path: Path) -> None:
    document = run_document(tmp_path / "out", tmp_path / "data", world={"ranks": 3, "hosts": 1})
    command = trainer_command(document, tmp_path / "run.json")
    command[command.index("-np") + 1] = "2"
    finished = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=60, check=False)
    assert finished.returncode == 2
    assert "started 2 rank(s) on 1 host(s), the run configuration asks for 3 on 1" in finished.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.horovod
@pytest.mark.long
def test_ranks_that_should_be_on_two_hosts_end_before_the_first_step(tmp_path: Path) -> None:
    document = run_document(tmp_path / "out", tmp_path / "data", world={"ranks": 2, "hosts": 2})
    finished = run_trainer(document, tmp_path / "run.json")
    assert finished.returncode == 2
    assert "on 1 host(s), the run configuration asks for 2 on 2" in finished.stderr


@pytest.mark.horovod
def test_bad_input_found_by_rank_0_ends_all_ranks_with_its_exit_code_and_one_message(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "data")
    (dataset / "vocab.txt").unlink()
    document = run_document(tmp_path / "out", dataset, world={"ranks": 2, "hosts": 1})
    record = tmp_path / "termination.json"
    finished = run_trainer(document, tmp_path / "run.json", BERT_TERMINATION_LOG=str(record))
    assert finished.returncode == 2
    assert finished.stderr.count("vocab.txt: cannot read the vocabulary") == 1
    assert "Traceback" not in finished.stderr
    assert json.loads(record.read_text())["exitCode"] == 2


@pytest.mark.horovod
def test_bad_input_found_by_another_rank_is_told_before_the_others_leave(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "data")
    held_out = next(dataset.glob("*/held_out_0000.hdf5"))
    damaged = held_out.with_name("held_out_0001.hdf5")  # rank 1's half
    shutil.copy(held_out, damaged)
    with h5py.File(relayout(damaged), "a") as file:
        file["input_ids"][0, 0] = 5000
    evaluate = {"kind": "evaluate", "sequence_length": 32, "max_predictions_per_sequence": 5}
    document = run_document(
        tmp_path / "out", dataset, world={"ranks": 2, "hosts": 1}, stages=[pretrain_stage(), evaluate]
    )
    record = tmp_path / "termination.json"
    finished = run_trainer(document, tmp_path / "run.json", BERT_TERMINATION_LOG=str(record))
    assert finished.returncode in (1, 2), "of whichever rank left first; the record has the last word"
    assert "held_out_0001.hdf5: made with a vocabulary that does not fit" in finished.stderr
    assert "Traceback" not in finished.stderr
    assert json.loads(record.read_text())["exitCode"] == 2


@pytest.mark.horovod
def test_a_run_that_another_run_has_taken_over_ends_and_is_not_tried_again(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "data")
    stages = [pretrain_stage(length={"steps": 100_000})]
    document = run_document(tmp_path / "out", dataset, world={"ranks": 2, "hosts": 1}, stages=stages)
    record = tmp_path / "termination.json"
    command = trainer_command(document, tmp_path / "run.json")
    process = subprocess.Popen(
        command, env=environment(BERT_TERMINATION_LOG=str(record)), stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None
        assert any("event=checkpoint" in line for line in process.stdout)
        RunFolder.claim(
            parse_run_config({**document, "job": {**document["job"], "uid": "uid-2"}, "if_exists": "Resume"}), attempt=1
        )
        process.communicate(timeout=60)
    assert process.returncode in (1, 2)
    told = json.loads(record.read_text())
    assert (told["reason"], told["exitCode"]) == ("TakenOverError", 2)


def test_alone_a_run_for_several_ranks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(connect(1, 1), Alone)
    with pytest.raises(TrainerError, match=r"started 1 rank\(s\) on 1 host\(s\).* 1 on 2"):
        connect(1, 2)


def test_the_verdict_of_rank_0_reaches_every_rank() -> None:
    def refuse() -> None:
        raise InputError("no")

    def rank(world: ThreadedWorld) -> str:
        try:
            on_rank_0(world, refuse)
        except PeerFailed as error:
            return f"peer failed {error.exit_code}"
        except InputError as error:
            return f"refused: {error}"
        return "went on"

    assert run_threads(3, rank) == ["refused: no", "peer failed 2", "peer failed 2"]
    assert run_threads(2, lambda world: on_rank_0(world, lambda: 5)) == [5, 5]


def test_mpi_waits_without_keeping_cores_from_others_unless_told_otherwise() -> None:
    environment = {"I_MPI_THREAD_YIELD": "0", "HOROVOD_FUSION_THRESHOLD": "67108864"}
    prepare_environment(environment)
    assert environment == {
        "OMPI_MCA_mpi_yield_when_idle": "1",
        "I_MPI_THREAD_YIELD": "0",
        "HOROVOD_FUSION_THRESHOLD": "0",
    }
