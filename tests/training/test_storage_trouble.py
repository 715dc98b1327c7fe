"""Trouble with files after the first step ends the attempt, not the job.

Inputs: the toy data set, a real small file system that is filled or made read-only while a run is in it. Observed: the
error, its exit code, what is told, and that the next attempt goes on.
"""

from __future__ import annotations

import errno
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from at_step import AtStep
from bert_job.run_config import RunConfig
from bert_trainer.errors import EXIT_BAD_INPUT, EXIT_INFRASTRUCTURE, InputError, StorageFailed, TrainerError
from bert_trainer.output.metrics import read_metrics
from bert_trainer.output.run_folder import RunFolder
from bert_trainer.parallel.world import SingleRank
from bert_trainer.pod.exit_codes import Evidence, build_record, decide_exit_code
from bert_trainer.pod.launcher_log import LauncherLog
from bert_trainer.pod.rank_output import Line
from bert_trainer.system.atomic_files import disk_errors, storage_errors
from bert_trainer.training import run_writer
from bert_trainer.training.run import run_stages
from bert_trainer.training.session import Session
from small_disk import fill, mounted
from tiny_run import environment, pretrain_stage, run_config, run_document, trainer_command, write_dataset


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_dataset(tmp_path_factory.mktemp("dataset"))


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with mounted(tmp_path / "disk", size="4m") as folder:
        yield folder


@pytest.fixture(autouse=True)
def no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The volumes here stay as they are."""
    monkeypatch.setattr(run_writer, "SAVE_AGAIN_AFTER_S", ())


def run(config: RunConfig, attempt: int = 1, *, stop: Any = None) -> None:
    run_stages(Session.open(config, SingleRank(), attempt=attempt), stop or AtStep())


def last_event(lines: str) -> str:
    return next(line for line in reversed(lines.splitlines()) if line.startswith("bert-trainer/1 "))


@pytest.mark.parametrize("logging", [{"every_steps": 1}, {"every_steps": 100, "sample_ledger": True}], ids=str)
def test_a_disk_that_fills_up_after_the_first_step_ends_the_attempt_only(
    disk: Path, dataset: Path, logging: dict[str, Any]
) -> None:
    config = run_config(disk / "out", dataset, logging={**logging, "tensorboard": False})
    with pytest.raises(StorageFailed, match="No space left on device") as raised:
        run(config, stop=AtStep(4, lambda: fill(disk)))
    assert raised.value.exit_code == EXIT_INFRASTRUCTURE
    # What the checkpoint that did not fit has given back may be enough to begin with; preflight says so then.
    with pytest.raises(StorageFailed, match=r"No space left on device|GB are free; the next checkpoints") as still_full:
        run(config, attempt=2)
    assert still_full.value.exit_code == EXIT_INFRASTRUCTURE, "retried, not given up: its first attempt could write"
    (disk / "others").unlink()
    run(config, attempt=3)
    assert [record["event"] for record in read_metrics(disk / "out")][-1] == "succeeded"


def test_a_volume_that_becomes_read_only_is_no_bad_input(disk: Path, dataset: Path) -> None:
    def remount(how: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{how}", str(disk)], check=True)

    config = run_config(disk / "out", dataset)
    with pytest.raises(StorageFailed, match="Read-only file system") as raised:
        run(config, stop=AtStep(4, lambda: remount("ro")))
    assert raised.value.exit_code == EXIT_INFRASTRUCTURE
    with pytest.raises(TrainerError) as refused:
        run(config, attempt=2)
    assert (type(refused.value), refused.value.exit_code) == (StorageFailed, EXIT_INFRASTRUCTURE), "it was right before"
    remount("rw")
    run(config, attempt=3)


@pytest.mark.parametrize("code", [errno.EIO, errno.ESTALE, errno.EACCES], ids=errno.errorcode.get)
def test_a_folder_that_cannot_be_read_is_bad_input_where_rights_forbid_it(
    code: int, tmp_path: Path, dataset: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = run_config(tmp_path / "out", dataset)
    RunFolder.claim(config, attempt=1)
    read = Path.read_text

    def fail(path: Path, *args: Any, **kwargs: Any) -> str:
        if path.name == "run.json":
            raise OSError(code, os.strerror(code), str(path))
        return read(path, *args, **kwargs)

    monkeypatch.setattr(Path, "read_text", fail)
    with pytest.raises(StorageFailed, match="cannot be read") as raised:
        RunFolder.claim(config, attempt=2)
    assert raised.value.exit_code == (EXIT_BAD_INPUT if code == errno.EACCES else EXIT_INFRASTRUCTURE)


def test_a_slow_volume_is_told_as_one(tmp_path: Path, dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_writer, "SLOW_WRITE_S", 0.0)
    run(run_config(tmp_path / "out", dataset))
    saved = [record for record in read_metrics(tmp_path / "out") if record["event"] == "checkpoint"]
    assert saved
    for record in saved:
        assert str(record["message"]).startswith("slow volume: 0.")
        assert float(record["seconds"] or 0) > 0


def test_an_output_folder_that_is_gone_is_no_other_attempt_s(tmp_path: Path, dataset: Path) -> None:
    out = tmp_path / "out"
    config = run_config(out, dataset, logging={"every_steps": 100, "tensorboard": False})
    with pytest.raises(StorageFailed, match="the output folder is gone") as gone:
        run(config, stop=AtStep(4, lambda: out.rename(tmp_path / "away")))
    assert gone.value.exit_code == EXIT_INFRASTRUCTURE


def fail_with(code: int, *, has_trained: bool) -> None:
    path = Path("out")
    with storage_errors(lambda: has_trained), disk_errors(path):
        raise OSError(code, os.strerror(code), str(path))


@pytest.mark.parametrize(
    ("code", "before"),
    [(errno.ENOSPC, 1), (errno.EDQUOT, 1), (errno.EROFS, 2), (errno.EACCES, 2), (errno.EIO, 1), (errno.ESTALE, 1)],
    ids=lambda value: errno.errorcode.get(value, ""),
)
def test_before_the_first_step_the_exit_code_is_that_of_the_error_itself(code: int, before: int) -> None:
    for has_trained, exit_code in ((False, before), (True, EXIT_INFRASTRUCTURE)):
        with pytest.raises(StorageFailed, match="out: cannot be written") as raised:
            fail_with(code, has_trained=has_trained)
        assert raised.value.exit_code == exit_code


@pytest.mark.parametrize(
    "error", [InputError("a setting is wrong"), OSError("no number"), FileNotFoundError(2, "gone")]
)
def test_what_says_nothing_of_a_volume_stays_what_it_is(error: Exception) -> None:
    with pytest.raises(type(error)) as raised, storage_errors(lambda: True):
        raise error
    assert raised.value is error


@pytest.mark.parametrize(
    ("code", "said", "settled"),
    [(1, 4, 4), (1, 2, 2), (1, None, 1), (137, 4, 137), (4, 4, 4), (0, None, 0)],
)
def test_rank_0_s_word_counts_where_another_rank_left_first(code: int, said: int | None, settled: int) -> None:
    assert decide_exit_code(code, Evidence(rank_0_exit_code=said)) == settled


def test_the_launcher_tells_the_cause_and_not_that_a_worker_was_lost() -> None:
    log = LauncherLog()
    log.note(
        Line(0, 'bert-trainer/1 event=failed reason=StorageFailed exit_code=4 message="/out: full" job=u attempt=1')
    )
    record = build_record(EXIT_INFRASTRUCTURE, log, None, None)
    assert (record["reason"], record["message"]) == ("StorageFailed", "/out: full")
    assert log.rank_0_exit_code == EXIT_INFRASTRUCTURE
    assert build_record(EXIT_INFRASTRUCTURE, LauncherLog(), None, None)["reason"] == "WorkerLost"


@pytest.mark.horovod
@pytest.mark.slow
@pytest.mark.timeout(120)
def test_two_ranks_leave_with_the_same_word(tmp_path: Path, disk: Path, dataset: Path) -> None:
    document = run_document(
        disk / "out", dataset, world={"ranks": 2, "hosts": 1}, stages=[pretrain_stage(length={"steps": 100_000})]
    )
    record = tmp_path / "termination.json"
    with subprocess.Popen(
        trainer_command(document, tmp_path / "run.json"),
        env=environment(BERT_TERMINATION_LOG=str(record)),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        next(line for line in process.stdout if "event=progress stage=phase1 step=5 " in line)
        fill(disk)
        lines = process.stdout.read()
    assert "event=failed reason=StorageFailed exit_code=4" in last_event(lines)
    told = json.loads(record.read_text())
    assert (told["reason"], told["exitCode"]) == ("StorageFailed", EXIT_INFRASTRUCTURE)
    assert process.returncode in (EXIT_INFRASTRUCTURE, 1), "whoever leaves first is counted; the record overrules"
