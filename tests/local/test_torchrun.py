"""Which rank's end a run under torchrun ends with. Real ranks under it: test_launchers."""

from __future__ import annotations

import signal

import pytest

from bert_operator.local.launch import split_prefix
from bert_trainer.parallel.torchrun import PREFIX, RankEnd, choose_cause

TERMINATED, KILLED = -signal.SIGTERM, -signal.SIGKILL


@pytest.mark.parametrize(
    ("ends", "cause"),
    [
        pytest.param([(1, 2, 7), (0, TERMINATED, 8)], (1, 2), id="the first of them"),
        pytest.param([(0, 1, 7), (1, KILLED, 7)], (1, KILLED), id="a killed rank, whose peer was noticed before it"),
        pytest.param([(0, 1, 7), (1, 4, 8)], (1, 4), id="storage that failed, whose peer was noticed before it"),
        pytest.param([(0, 1, 7), (1, TERMINATED, 7)], (0, 1), id="torchrun ended the other"),
        pytest.param([(0, 1, 7), (1, KILLED, 37)], (0, 1), id="torchrun killed the other, which did not end by itself"),
        pytest.param([(1, 3, 7), (0, 3, 7)], (1, 3), id="stopped on request"),
        pytest.param([(1, KILLED, 9), (0, 2, 7)], (0, 2), id="by time, in any order"),
    ],
)
def test_the_rank_that_names_the_cause_decides(ends: list[tuple[int, int, int]], cause: tuple[int, int]) -> None:
    found = choose_cause(RankEnd(rank=rank, code=code, seen_at_s=seen_at_s) for rank, code, seen_at_s in ends)
    assert (found.rank, found.code) == cause


def test_the_executor_knows_the_launcher_s_own_lines() -> None:
    assert split_prefix(f"{PREFIX}rank 1 ended with signal 9", "torchrun")[1] is False
