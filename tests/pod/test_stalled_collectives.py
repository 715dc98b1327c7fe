"""The ranks that Horovod's own stall check names: asked for in time, read from the log, told with the failure."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import pods
from bert_trainer.parallel.horovod_world import prepare_environment, stall_check_s
from bert_trainer.pod.exit_codes import build_record
from bert_trainer.pod.hang_watch import Hang, find_culprits
from bert_trainer.pod.launcher_log import LauncherLog
from bert_trainer.pod.rank_output import Line
from tiny_run import pretrain_stage, run_document, write_dataset

WARNING = [
    "[2026-11-23 16:00:00.1: W stall_inspector.cc:107] One or more tensors were submitted to be reduced, "
    "gathered or broadcasted by subset of ranks and are waiting for remainder of ranks for more than 60 seconds. This "
    "may indicate that different ranks are trying to submit different tensors or that only subset of ranks is "
    "submitting tensors, which will cause deadlock. ",
    "Missing ranks:",
    "1: [allreduce.numbers]",
    "3: [allreduce.numbers, allreduce.gradients.0 ...]",
]
STEP = "bert-trainer/1 event=progress stage=phase1 step=6 steps=10 attempt=1"


def read(*lines: str, rank: int | None = 0) -> LauncherLog:
    log = LauncherLog()
    for text in lines:
        log.note(Line(rank, text))
    return log


@pytest.mark.parametrize(("limits_s", "check_s"), [((120.0, 1800.0), 60), ((3.0, 60.0), 1), ((1.0, 1.0), 1)])
def test_horovod_looks_twice_before_a_rank_counts_as_hung(limits_s: tuple[float, float], check_s: int) -> None:
    assert stall_check_s(limits_s) == check_s
    environment = {"BERT_HANG_LIMITS_S": ",".join(map(str, limits_s))}
    prepare_environment(environment)
    assert environment["HOROVOD_STALL_CHECK_TIME_SECONDS"] == str(check_s)


def test_a_time_that_is_given_is_left_as_it_is() -> None:
    environment = {"HOROVOD_STALL_CHECK_TIME_SECONDS": "7"}
    prepare_environment(environment)
    assert environment["HOROVOD_STALL_CHECK_TIME_SECONDS"] == "7"


def test_the_ranks_that_horovod_names_are_read_until_a_step_is_taken() -> None:
    assert read(*WARNING).missing_ranks == {1, 3}
    assert read(*WARNING, *WARNING[:2], "2: [allreduce.numbers]").missing_ranks == {2}, "the newest warning"
    assert read(*WARNING, "Traceback", "5: [1, 2, 3]").missing_ranks == {1, 3}, "a line of something else"
    assert read(*WARNING, STEP).missing_ranks == set()
    assert read("5: [1, 2, 3]", *WARNING[1:]).missing_ranks == set()


@pytest.mark.parametrize("rank", [1, None])
def test_only_rank_0_speaks_for_horovod(rank: int | None) -> None:
    assert read(*WARNING, rank=rank).missing_ranks == set()


def test_a_failure_tells_which_ranks_horovod_misses() -> None:
    record = build_record(4, read(*WARNING), None, None)
    assert record["message"].endswith("; Horovod's stall check misses rank 1, 3")
    assert "Horovod" not in build_record(0, read(*WARNING), None, None)["message"]


def test_of_ranks_that_all_wait_the_one_that_horovod_misses_holds_up_the_others() -> None:
    hangs = {rank: Hang(rank, 9, 130, 120, "S", is_waiting=True, activity="phase1") for rank in range(3)}
    assert find_culprits(hangs, 3) == [0, 1, 2]
    assert find_culprits(hangs, 3, {1}) == [1]
    busy = hangs | {2: Hang(2, 9, 130, 120, "R", is_waiting=False, activity="phase1")}
    assert find_culprits(busy, 3, {1}) == [2], "one that does not wait is a stronger sign"


# The second rank never reads its fortieth batch.
STUCK = """
import os, sys, threading
from bert_trainer.__main__ import main
from bert_trainer.system.mpi_variables import read_rank
from bert_trainer.training.data_loader import StageReader
read, calls = StageReader.next_step, []
def read_until_the_fortieth(self):
    calls.append(None)
    if len(calls) == 40:
        threading.Event().wait()
    return read(self)
if read_rank(os.environ) == 1:
    StageReader.next_step = read_until_the_fortieth
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.horovod
@pytest.mark.slow
@pytest.mark.timeout(240)
def test_of_two_real_ranks_the_one_that_is_stuck_is_named_by_horovod(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "data")
    stages, world = [pretrain_stage(length={"steps": 60})], {"ranks": 2, "hosts": 1}
    # Rarely: of the first steps, and of the one behind a checkpoint, the upper limit alone counts.
    document = run_document(tmp_path / "out", dataset, stages=stages, world=world, checkpoint={"every_steps": 50})
    (tmp_path / "run.json").write_text(json.dumps(document))
    options = ["single", "--ranks", "2", "--termination-log", str(tmp_path / "record.json")]
    words = [*pods.POD, *options, "--", sys.executable, "-c", STUCK, "--config", str(tmp_path / "run.json")]
    limits = {"OMP_NUM_THREADS": "1", "BERT_HANG_LIMITS_S": "3,60", "BERT_ATTEMPT": "1"}
    with pods.running(words, tmp_path / "log", **limits) as pod:
        assert pod.process.wait(200) == 4, pod.output
        record = json.loads((tmp_path / "record.json").read_text())
        assert (record["reason"], record["firstFailure"]["rank"]) == ("Hung", 1), record
        assert record["message"].endswith("; Horovod's stall check misses rank 1"), pod.output
        assert 'message="rank 1' in pod.output
