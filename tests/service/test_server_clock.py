"""The API server's clock counts: this machine's may be wrong by an hour, and answers may be slow."""

from __future__ import annotations

import asyncio
import logging
import time
from email.utils import formatdate
from pathlib import Path

import pytest
from kubernetes.aio.client.configuration import Configuration

from api_stand_in import ApiStandIn
from bert_operator.cluster import server_clock
from bert_operator.cluster.client import ApiClient
from bert_operator.cluster.paths import path_of
from bert_operator.cluster.server_clock import ServerClock
from bert_operator.timestamps import render_time
from cluster_api import wait_until
from cluster_jobs import job_document
from operator_process import OperatorProcess

HOUR_S = 3600.0


def test_the_time_is_that_of_the_api_servers_answers_wherever_it_jumps(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_clock, "LOGGED_EVERY_S", 0.0)

    async def follow(server: ApiStandIn) -> list[float]:
        differences = []
        async with ApiClient(Configuration(host=server.url)) as api:
            for ahead_s in (0.0, HOUR_S, -HOUR_S, -2400.0):
                server.ahead_s = ahead_s
                await api.get("/api/v1/pods")
                differences.append(api.now_s() - time.time() - ahead_s)
        return differences

    with ApiStandIn() as server, caplog.at_level(logging.WARNING):
        assert all(abs(difference) <= 1.5 for difference in asyncio.run(follow(server)))
    logged = [record.getMessage() for record in caplog.records]
    assert len(logged) == 3, "once for every jump"
    assert all(line.startswith("The API server's clock, which counts, is ") for line in logged)


def test_an_operator_whose_clock_is_wrong_retries_at_once_and_ends_no_job_before_its_deadline(tmp_path: Path) -> None:
    children = path_of("Job", "demo")
    with ApiStandIn() as server:
        server.tells, server.ahead_s = True, 2400.0
        operator = OperatorProcess(tmp_path, server.kubeconfig(tmp_path))
        try:
            operator.start()
            server.put(path_of("BertPretrainJob", "demo"), job_document("fails"))
            first = f"{children}/fails-a1-training"
            wait_until(lambda: first in server.objects, "the first attempt")
            now = render_time(time.time() + server.ahead_s)
            failed = {"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded", "lastTransitionTime": now}
            server.update(first, {"status": {"conditions": [failed]}})
            wait_until(lambda: f"{children}/fails-a2-training" in server.objects, "the second attempt")
            # Now it is this machine that is ahead.
            server.ahead_s = -HOUR_S
            operator.wait_resyncs(1)
            late = job_document("waits", runPolicy={"startDeadlineSeconds": 600})
            job = server.put(path_of("BertPretrainJob", "demo"), late)["metadata"]["name"]
            wait_until(lambda: f"{children}/waits-a1-training" in server.objects, "its child")
            operator.wait_resyncs(2)
            assert server.objects[path_of("BertPretrainJob", "demo", job)]["status"]["reason"] == "WaitingToStart"
        finally:
            operator.kill()


@pytest.mark.parametrize("apart_s", [8.0, HOUR_S])
def test_two_api_servers_whose_clocks_differ_are_logged_once_a_minute(
    apart_s: float, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ServerClock()
    with caplog.at_level(logging.WARNING):
        for number in range(50):
            hear(clock, time.time() + apart_s * (number % 2), took_s=0)
    assert len(caplog.records) == 1


def hear(clock: ServerClock, written_s: float, *, took_s: float) -> None:
    """Have a clock hear an answer that was asked for so long ago, and whose head was written then."""
    clock.update(formatdate(written_s, usegmt=True), time.monotonic() - took_s)


def test_slow_answers_move_no_clock_that_is_right() -> None:
    clock = ServerClock()
    for took_s, written_s_ago in ((30, 30), (30, 15), (60, 59), (0, 0), (1, 0.5)):
        hear(clock, time.time() - written_s_ago, took_s=took_s)
        assert abs(clock.now_s() - time.time()) < 1.0


@pytest.mark.parametrize("date", [None, "", "yesterday", "Sun, 99 Nov 2026 06:39:03 GMT", "Sun, 22 Nov 99999 1:1:1"])
def test_what_is_no_date_moves_nothing(date: str | None) -> None:
    clock = ServerClock()
    before_s = clock.now_s()
    clock.update(date, time.monotonic())
    assert abs(clock.now_s() - before_s) < 0.5
