"""Logs that cannot be read, or not to their end: told after a minute, and never taken for a launcher that is silent."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from bert_operator.cluster import log_reader
from bert_operator.cluster.client import ApiError
from bert_operator.cluster.log_reader import LatestRecords, LogReader
from bert_operator.names import JobRef

REF = JobRef("ns", "demo")
PROMISE = "bert-trainer/1 event=alive every_s=60 uptime_s=0 job=uid attempt=1"
STEP = "bert-trainer/1 event=progress stage=phase1 step={} steps=99 job=uid attempt=1"
KUBELET = ApiError(502, "BadGateway", "dial tcp 10.0.0.7:10250: i/o timeout")
NOBODY = ApiError(0, "TimeoutError", "timed out")
REFUSED = ApiError(403, "Forbidden", "pods/log is forbidden")
GONE = ApiError(404, "NotFound", "pods demo-a1 not found")
JOB: Any = SimpleNamespace(uid="uid", stages=None)
POD: Any = SimpleNamespace(uid="pod", name="demo-a1", attempt=1, node="node-7")
SILENT = [PROMISE]


def read(answers: list[list[str] | ApiError], monkeypatch: pytest.MonkeyPatch) -> tuple[list[LatestRecords], int]:
    """Return what is known after each reading, one a minute, and how often the job was queued."""
    now_s, queued, found = [0.0], [], []

    async def get_log(path: str, **_: Any) -> bytes:
        answer = answers[int(now_s[0] // 60)]
        if isinstance(answer, ApiError):
            raise answer
        return ("\n".join(answer) + "\n").encode("latin-1")

    async def follow() -> None:
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now_s[0], raising=False)
        api: Any = SimpleNamespace(get_log=get_log, now_s=lambda: 1_700_000_000.0 + now_s[0])
        metrics: Any = SimpleNamespace(progress_refused=lambda lines: None)
        reader = LogReader(api, None, queued.append, metrics)  # type: ignore[arg-type]
        for _ in answers:
            await reader._read(REF, JOB, POD)
            found.append(reader.latest(REF))
            now_s[0] += 60.0

    asyncio.run(follow())
    return found, len(queued)


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (KUBELET, "the API server does not get it from the kubelet of node node-7 (BadGateway: dial tcp"),
        (NOBODY, "the API server does not answer (TimeoutError"),
        (REFUSED, "the API server refuses it (Forbidden"),
    ],
)
def test_a_log_that_cannot_be_read_is_told_once_with_its_cause_and_time(
    error: ApiError, cause: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, queued = read([[STEP.format(1)], error, error, KUBELET, NOBODY, [STEP.format(2)]], monkeypatch)
    told = [it.unreadable for it in found]
    assert told[:2] == [None, None]
    assert told[2] is not None
    assert told[2] == told[3] == told[4], "each change is a write"
    assert cause in told[2]
    assert "demo-a1 has not been readable since 2023-11-14T22:14:20Z" in told[2]
    assert told[5] is None
    assert queued == 3, "the first step, the trouble, its end"
    assert found[4].progress == found[0].progress


def test_a_log_that_was_never_read_is_told_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    found, _ = read([KUBELET, KUBELET], monkeypatch)
    assert found[0].unreadable is None
    assert found[1].unreadable is not None
    assert found[1].job == "uid"


def test_a_pod_that_is_gone_is_no_trouble_with_its_log(monkeypatch: pytest.MonkeyPatch) -> None:
    found, _ = read([GONE] * 5, monkeypatch)
    assert [it.unreadable for it in found] == [None] * 5


def test_time_in_which_a_log_cannot_be_read_is_no_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    frozen: list[list[str] | ApiError] = [SILENT, SILENT, *[KUBELET] * 10, *[SILENT] * 6]
    found, _ = read(frozen, monkeypatch)
    silent = [it.silence is not None for it in found]
    # A minute before the kubelet went away and more than four after it came back.
    assert silent == [False] * 17 + [True]


LONG = "x" * 65_536
"""As much as is read at a time."""


def test_a_log_whose_last_lines_are_too_long_is_told_once_until_its_end_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cut = [[STEP.format(1), LONG], [f"{STEP.format(1)} ", LONG], [STEP.format(2), LONG]]
    found, queued = read([[STEP.format(1)], *cut, KUBELET, [LONG], [STEP.format(3)]], monkeypatch)
    told = [it.cut for it in found]
    assert told[:2] == [None, None], "a long line may go by"
    assert told[2] is not None
    assert told[2] == told[3] == told[4] == told[5], "each change is a write"
    assert "Since 2023-11-14T22:14:20Z the last 60 lines of the log of pod demo-a1 have more than 64 KiB" in told[2]
    assert told[6] is None
    assert queued == 4, "the first step, the trouble, the second step, the third with the end of the trouble"


def test_a_log_that_is_cut_behind_its_news_is_no_trouble(monkeypatch: pytest.MonkeyPatch) -> None:
    found, _ = read([[STEP.format(step), LONG] for step in range(6)], monkeypatch)
    assert [it.cut for it in found] == [None] * 6


def test_a_long_line_that_comes_again_and_again_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    again = [[STEP.format(1), LONG]] * 3 + [[STEP.format(1)]]  # it has left the last lines for less than a minute
    monkeypatch.setattr(log_reader, "UNREADABLE_S", 90.0)
    found, queued = read([[STEP.format(1)], *again * 5], monkeypatch)
    told = [it.cut for it in found]
    assert told[:3] == [None, None, None]
    assert told[3] is not None
    assert len({*told[3:]}) == 1
    assert queued == 2


def test_a_log_of_bytes_that_are_no_text_is_not_longer_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    found, _ = read([["\xfc" * 30_000]] * 4, monkeypatch)  # each becomes a sign of three bytes
    assert [it.cut for it in found] == [None] * 4


def test_a_log_that_is_cut_is_no_silence_and_not_another_pod_s(monkeypatch: pytest.MonkeyPatch) -> None:
    found, _ = read([SILENT, *[[PROMISE, LONG]] * 12], monkeypatch)
    assert [it.silence for it in found] == [None] * 13
    assert found[-1].cut is not None
    assert found[-1].of_pod("another").cut is None
