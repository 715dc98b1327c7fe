"""Launchers that promise a line and write none: told from quiet programs, repeated lines and logs that are cut."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from bert_operator.cluster import log_reader
from bert_operator.cluster.log_reader import LogReader
from bert_operator.cluster.metrics import Metrics
from bert_operator.names import JobRef

REF = JobRef("ns", "demo")
PROMISE = "bert-trainer/1 event=alive every_s=60 uptime_s={} job=uid attempt=1"


class Log:
    """An API client whose one log grows as it is told."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    async def get_log(self, path: str, **options: Any) -> bytes:
        text = "\n".join(self.lines[-int(options["tailLines"]) :]) + "\n"
        return text.encode()[: int(options["limitBytes"])]

    def now_s(self) -> float:
        return 1_700_000_000.0


JOB: Any = SimpleNamespace(uid="uid", stages=None)
POD: Any = SimpleNamespace(uid="pod", name="demo-a1", attempt=1)


def silence_after(minutes: list[list[str]], monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Return after each minute, in which these lines were written, whether the launcher counts as silent."""
    log, now_s = Log(), [0.0]
    found = []

    async def read() -> None:
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now_s[0], raising=False)
        reader = LogReader(log, None, lambda ref: None, Metrics())  # type: ignore[arg-type]
        for lines in minutes:
            log.lines += lines
            await reader._read(REF, JOB, POD)
            found.append(reader.latest(REF).silence is not None)
            now_s[0] += 60.0

    asyncio.run(read())
    return found


def test_a_launcher_that_breaks_its_promise_is_silent_after_five_times_that(monkeypatch: pytest.MonkeyPatch) -> None:
    found = silence_after([[PROMISE.format(0)], *[[]] * 8], monkeypatch)
    assert found == [False] * 6 + [True] * 3


def test_a_program_that_writes_nothing_for_hours_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = [[PROMISE.format(60 * minute)] for minute in range(200)]
    assert not any(silence_after(kept, monkeypatch))


def test_nor_is_one_that_repeats_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    repeated = [[PROMISE.format(60 * minute), *["the same"] * 30] for minute in range(100)]
    assert not any(silence_after(repeated, monkeypatch))


def test_nor_one_whose_newest_lines_do_not_fit_into_a_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    long = [PROMISE.format(0), *["x" * 16_000] * 5]
    assert not any(silence_after([long, *[[PROMISE.format(1)]] * 20], monkeypatch))


def test_nobody_holds_an_older_image_to_what_it_does_not_promise(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not any(silence_after([["bert-trainer/1 event=progress step=1 job=uid attempt=1"], *[[]] * 20], monkeypatch))


def test_a_launcher_that_goes_on_is_silent_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    found = silence_after([[PROMISE.format(0)], *[[]] * 7, [PROMISE.format(480)]], monkeypatch)
    assert found[-2:] == [True, False]
    assert log_reader._patience_s(None) == float("inf")


@pytest.mark.parametrize(("ended", "readable"), [(None, ["demo-a1"]), (0, []), (1, [])])
def test_a_container_that_has_ended_is_not_called_silent_where_kubelet_does_not_report_its_pod(
    ended: int | None, readable: list[str]
) -> None:
    pod = SimpleNamespace(
        **vars(POD), role="launcher", phase="Running", exit_code=ended, is_deleting=False, created_at_s=0.0
    )
    index: Any = SimpleNamespace(
        jobs=lambda: [REF],
        job=lambda ref: SimpleNamespace(uid="uid", phase="Running"),
        own_children=lambda ref, uid: [SimpleNamespace(name="demo-a1", attempt=1)],
        pods=lambda ref, child: [pod],
    )
    reader = LogReader(Log(), index, lambda ref: None, Metrics())  # type: ignore[arg-type]
    assert [found.pod.name for found in reader._readable()] == readable
