"""The world is checked before the first step. Real ranks under mpirun; observed: exit codes and messages."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from bert_trainer.distributed import Alone, PeerFailed, connect, on_rank_0
from bert_trainer.errors import InputError, TrainerError
from threaded_world import ThreadedWorld, run_threads
from tiny_run import environment, run_document, run_trainer, trainer_command, write_dataset


@pytest.mark.horovod
def test_too_few_ranks_end_before_the_first_step(tmp_path: Path) -> None:
    document = run_document(tmp_path / "out", tmp_path / "data", world={"ranks": 3, "hosts": 1})
    command = trainer_command(document, tmp_path / "run.json")
    command[command.index("-np") + 1] = "2"
    finished = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=60, check=False)
    assert finished.returncode == 1
    assert "started 2 rank(s) on 1 host(s), the run configuration asks for 3 on 1" in finished.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.horovod
def test_ranks_that_should_be_on_two_hosts_end_before_the_first_step(tmp_path: Path) -> None:
    document = run_document(tmp_path / "out", tmp_path / "data", world={"ranks": 2, "hosts": 2})
    finished = run_trainer(document, tmp_path / "run.json")
    assert finished.returncode == 1
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
