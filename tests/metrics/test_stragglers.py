"""Ranks that are slower than the others, and than they were: scored by what they do between their waits."""

from __future__ import annotations

import json
import socket
import subprocess
import urllib.request
from pathlib import Path

import pytest

from bert_job.progress import parse_progress_line
from bert_trainer.output.metrics import MetricsWriter, read_metrics
from bert_trainer.output.progress import Reporter
from bert_trainer.parallel.world import World, gather_texts
from bert_trainer.training.stragglers import LIMIT, Stragglers, Work, score_against_others
from in_process import progress_records
from threaded_world import run_threads
from tiny_run import environment, pretrain_stage, run_document, trainer_command, write_dataset
from whole_configs import logging_settings


class Clock:
    """A clock that shows what a test says."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def works(*seconds: float, tokens: float = 1000) -> list[Work]:
    return [Work(it, tokens) for it in seconds]


@pytest.mark.parametrize(
    ("found", "scores"),
    [
        (works(1, 1), [1, 1]),
        (works(1, 3), [1 / 3, 3]),
        (works(1, 1, 1, 2), [1, 1, 1, 2]),
        (works(1, 2, 3, 12), [1 / 3, 2 / 3, 1.5, 6]),
        # More tokens take longer, and are no fault of the rank.
        ([*works(1, 1, 1), Work(2, 2000)], [1, 1, 1, 1]),
        # Where a step costs the same whatever is in it, as with padded rows, the fewest tokens are the dearest.
        ([*works(1, 1, 1), Work(1, 500)], [1, 1, 1, 1]),
        # Twice as slow with half of the work: nobody waits for it.
        ([*works(1, 1, 1), Work(1, 450)], [1, 1, 1, 1]),
        ([*works(1, 1, 1), Work(4, 2000)], [1, 1, 1, 2]),
        # The rows do not divide: the last rank has none.
        ([Work(1, 1000), Work(2, 1000), Work(0.01, 0)], [0.5, 2, None]),
        ([Work(1, 1000), Work(0, 0)], [None, None]),
        (works(1), [None]),
    ],
)
def test_a_rank_is_scored_against_the_median_of_the_others(found: list[Work], scores: list[float | None]) -> None:
    assert score_against_others(found) == pytest.approx(scores)


def test_a_rank_is_scored_against_its_own_best_interval() -> None:
    stragglers = Stragglers(["a", "b"])
    seen = [stragglers.add(works(*seconds))[1]["rank_own_scores"] for seconds in ((4, 1), (2, 1), (3, 1), (2, 5))]
    assert seen == [[1, 1], [1, 1], [1.5, 1], [1, 5]]


def test_an_interval_with_other_rows_is_no_slower_than_the_best() -> None:
    stragglers = Stragglers(["a"])
    stragglers.add([Work(1, 1000)])
    assert stragglers.add([Work(2, 2000)])[1]["rank_own_scores"] == [1]


def test_the_slowest_rank_is_named_from_the_second_interval_on_while_it_is_above_the_limit() -> None:
    clock = Clock()
    stragglers = Stragglers(["a", "a", "b", "b"], clock)
    found = []
    slow = 2 * LIMIT
    for seconds in (
        (1, 1, 1, 9),
        (1, 1, 1, slow),
        (1, 1, slow, 1.0),
        (1, 1.3, 1, slow),
        (1, 1, 1, LIMIT),
        (1, 1, 1, slow),
    ):
        clock.now_s += 10
        found.append(stragglers.add(works(*seconds))[0])
    named = [
        (it["slow_rank"], it["slow_rank_host"], it["slow_rank_intervals"], it["slow_rank_s"]) if it else None
        for it in found
    ]
    # The first interval compiles. In a row counts by host: of its ranks another may be the slowest each time.
    assert named == [None, (3, "b", 1, 10), (2, "b", 2, 20), (3, "b", 3, 30), None, (3, "b", 1, 10)]
    assert found[1]["slow_rank_score"] == slow


def test_every_rank_learns_the_names_of_all() -> None:
    def name(world: World) -> list[str]:
        return gather_texts(world, f"host-{world.rank}é")

    assert run_threads(3, name) == [["host-0é", "host-1é", "host-2é"]] * 3


def test_scores_of_all_ranks_reach_prometheus_and_the_file_and_only_the_slow_one_the_line(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as log:
        settings = logging_settings(tensorboard=False, prometheus_port=0)
        writer = MetricsWriter(tmp_path, settings, Reporter("uid-1", 1, log))
        slow = {"slow_rank": 1, "slow_rank_host": "b", "slow_rank_score": 3.0, "slow_rank_intervals": 2}
        of_ranks = {"rank_scores": [0.333, 3.0, None], "rank_own_scores": [1.0, 2.5, None]}
        try:
            writer.progress({"stage": "phase1", "step": 1, "steps": 9, **slow}, of_ranks)
            with urllib.request.urlopen(f"http://127.0.0.1:{writer.prometheus_port}/metrics") as answer:
                text = answer.read().decode()
        finally:
            writer.close()
    assert 'bert_trainer_rank_score{rank="1",stage="phase1"} 3.0' in text
    assert 'bert_trainer_rank_own_score{rank="1",stage="phase1"} 2.5' in text
    assert 'bert_trainer_rank_score{rank="2",stage="phase1"} NaN' in text
    (record,) = read_metrics(tmp_path)
    assert {key: record[key] for key in of_ranks} == of_ranks
    line = parse_progress_line((tmp_path / "log").read_text())
    assert line is not None
    assert [line.text(key) for key in ("slow_rank", "slow_rank_host", "slow_rank_score")] == ["1", "b", "3"]
    assert "rank_scores" not in line.fields


# The last rank reads its batches slowly: it computes in a loop for a while after each.
SLOW = """
import os, sys, time
from bert_trainer.__main__ import main
from bert_trainer.system.mpi_variables import read_rank
from bert_trainer.training.data_loader import StageReader
read = StageReader.next_step
def read_slowly(self):
    batches = read(self)
    until = time.thread_time() + 0.3  # of the processor: a busy machine delays it as much as it delays the other rank
    while time.thread_time() < until:
        pass
    return batches
if read_rank(os.environ) == 1:
    StageReader.next_step = read_slowly
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.ranks
def test_of_real_ranks_the_slow_one_is_named_with_its_host(tmp_path: Path) -> None:
    # Its steps take 0.3 s of a core more than the 0.03 s of the other one's.
    stages = [pretrain_stage(length={"steps": 12})]
    more = {"collectives": "torch", "logging": {"every_steps": 4, "tensorboard": False}}
    dataset = write_dataset(tmp_path / "data")
    document = run_document(tmp_path / "out", dataset, stages=stages, world={"ranks": 2, "hosts": 1}, **more)
    command = trainer_command(document, tmp_path / "run.json")
    at = command.index("-m", command.index("bert_trainer") - 1)
    command[at : at + 2] = ["-c", SLOW]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 0, done.stderr
    first, *others = progress_records(tmp_path / "out")
    assert "slow_rank" not in first
    for number, record in enumerate(others, start=1):
        assert (record["slow_rank"], record["slow_rank_host"]) == (1, socket.gethostname()), json.dumps(record)
        assert record["slow_rank_intervals"] == number
        assert (
            record["rank_scores"][0]
            < 1
            < 2
            < record["rank_scores"][1]
            == pytest.approx(record["slow_rank_score"], abs=1e-3)
        )
    assert f"slow_rank=1 slow_rank_host={socket.gethostname()}" in done.stdout
