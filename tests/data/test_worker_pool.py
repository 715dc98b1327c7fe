"""Tasks run on several processes, whose failures and ends the caller sees."""

from __future__ import annotations

import math
import operator
import os
import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest

from bert_trainer.dataset.tokens.wordpiece import read_vocabulary
from bert_trainer.dataset.workers.pool import WorkerPool, run_in_order, run_tasks, usable_cores
from bert_trainer.errors import InputError, TrainerError


@pytest.fixture(autouse=True)
def _nothing_is_left_behind() -> Iterator[None]:
    """Every worker has ended, and was waited for, when its pool is left."""
    before = psutil.Process().children()
    yield
    assert psutil.Process().children() == before


def never() -> None:
    """Let the work go on."""


@pytest.mark.parametrize("num_processes", [1, 2])
def test_every_task_comes_back_with_its_result(num_processes: int) -> None:
    results = run_tasks(math.factorial, list(range(8)), num_processes=num_processes, check=never)
    assert dict(results) == {number: math.factorial(number) for number in range(8)}


class Unpackable:
    """Cannot be unpacked in another process."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.stat, ("/nowhere/at/all",)


def test_what_cannot_travel_is_told_with_its_traceback() -> None:
    with pytest.raises(RuntimeError, match="FileNotFoundError"):
        list(run_tasks(len, [Unpackable(), Unpackable()], num_processes=2, check=never))
    with pytest.raises(RuntimeError, match="cannot pickle"):
        list(run_tasks(memoryview, [b"1", b"2"], num_processes=2, check=never))


def test_a_round_that_was_left_in_the_middle_answers_nothing_to_the_next() -> None:
    with WorkerPool(2, never) as pool:
        first = pool.run(len, ["abc", "de", "f"])
        next(first)
        first.close()  # type: ignore[attr-defined]
        assert list(pool.run(abs, [-1])) == [(-1, 1)]


def test_no_tasks_are_no_work() -> None:
    assert list(run_tasks(math.factorial, [], num_processes=2, check=never)) == []


def test_an_error_of_ours_arrives_as_it_was_raised(tmp_path: object) -> None:
    with pytest.raises(InputError, match="cannot read the vocabulary"):
        list(run_tasks(read_vocabulary, [tmp_path, tmp_path], num_processes=2, check=never))


def test_a_bug_arrives_with_its_traceback() -> None:
    with pytest.raises(RuntimeError, match="ValueError"):
        list(run_tasks(math.factorial, [1, -1, 2], num_processes=2, check=never))


def test_a_worker_that_dies_is_an_error_and_not_a_hang() -> None:
    with pytest.raises(TrainerError, match=r"a worker process died \(exit code 9\)"):
        list(run_tasks(os._exit, [9, 9], num_processes=2, check=never))


def test_a_check_that_raises_ends_the_work() -> None:
    done: list[int] = []

    def check() -> None:
        if len(done) >= 2:
            raise KeyboardInterrupt

    def work() -> None:
        for task, _ in run_tasks(operator.neg, list(range(100)), num_processes=2, check=check):
            done.append(task)  # noqa: PERF401 - the list must be there when the check raises

    with pytest.raises(KeyboardInterrupt):
        work()
    assert len(done) < 6


@pytest.mark.parametrize("num_processes", [1, 2])
def test_results_come_in_the_order_of_the_tasks(num_processes: int) -> None:
    # Large ones take long: the small ones that follow them are done first.
    tasks = [20_000, 3, 4, 15_000, 5, 6, 7, 8]
    results = run_in_order(math.factorial, iter(tasks), num_processes=num_processes, check=never)
    assert list(results) == [math.factorial(task) for task in tasks]


def test_tasks_are_not_taken_far_ahead() -> None:
    taken: list[int] = []

    def tasks() -> Iterator[int]:
        for number in range(1000):
            taken.append(number)
            yield number

    results = run_in_order(operator.neg, tasks(), num_processes=2, check=never)
    assert next(results) == 0
    assert len(taken) <= 8
    assert [next(results) for _ in range(50)] == [-number for number in range(1, 51)]
    assert len(taken) <= 51 + 8
    results.close()  # type: ignore[attr-defined]


def test_failures_of_ordered_tasks_arrive() -> None:
    with pytest.raises(RuntimeError, match="ValueError"):
        list(run_in_order(math.factorial, [1, -1, 2], num_processes=2, check=never))
    with pytest.raises(TrainerError, match=r"a worker process died \(exit code 9\)"):
        list(run_in_order(os._exit, [9, 9, 9], num_processes=2, check=never))


def test_at_least_one_core_is_usable() -> None:
    assert 1 <= usable_cores() <= (os.cpu_count() or 1)


def test_what_workers_import_leaves_the_settings_out() -> None:
    """Every worker is a fresh interpreter; the settings' validation would be half of its start."""
    program = (
        "import sys, bert_trainer.dataset.tokens.block_tasks, bert_trainer.dataset.sampling.shard_samples;"
        "sys.exit('pydantic' in sys.modules or 'torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=60).returncode == 0
