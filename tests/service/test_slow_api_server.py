"""An API server that takes half a minute per call makes everything slow, and is no reason to restart the operator.

Time runs BERT_TEST_TIME_SCALE times as fast (400 by default); 1 is an hour indeed.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import cast

from api_stand_in import ApiStandIn
from bert_operator.cluster.paths import path_of
from bert_operator.cluster.settings import Settings
from bert_operator.cluster.watches import RETRY_S, build_settings
from cluster_api import wait_until
from cluster_jobs import job_document
from operator_process import OperatorProcess

SCALE = float(os.environ.get("BERT_TEST_TIME_SCALE", "400"))
JOBS = 200
CALL_S, HOUR_S = 30 / SCALE, 3600 / SCALE
# As in the Deployment.
PROBE_S, FAILURES = 20 / SCALE, 3


def longest_run(values: list[bool]) -> int:
    return max((len(list(run)) for is_bad, run in itertools.groupby(values) if is_bad), default=0)


def test_an_hour_of_half_a_minute_per_call_with_two_hundred_jobs_restarts_nothing(tmp_path: Path) -> None:
    defaults = Settings()
    scaled = {
        "sweepSeconds": defaults.sweep_seconds / SCALE,
        "watchSilenceSeconds": defaults.watch_silence_seconds / SCALE,
        "maxWatchLagSeconds": defaults.max_watch_lag_seconds / SCALE,
        "maxWaitSeconds": defaults.max_wait_seconds / SCALE,
    }
    with ApiStandIn(delay_s=CALL_S, bookmark_s=60 / SCALE) as server:
        server.tells = True
        for number in range(JOBS):
            server.put(path_of("BertPretrainJob", "demo"), job_document(f"job-{number}"))
        operator = OperatorProcess(tmp_path, server.kubeconfig(tmp_path), **scaled)
        try:
            operator.launch()
            wait_until(lambda: operator.page("/healthz"), "the program to have started")
            alive, ready = probe(operator, HOUR_S)
            assert longest_run([status != 200 for status, _ in alive]) < FAILURES, alive
            assert any("a job has waited for" in why for _, why in ready), "that is for readiness to say"
            # Slow is not stuck: each has its frozen configuration and its child in the end.
            written = lambda: sum("/jobs/" in path for path in list(server.objects))  # noqa: E731
            wait_until(lambda: written() == JOBS, "a child of every job", timeout_s=40 + HOUR_S)
            wait_until(operator.is_ready, "it to have come to an end with what is late", timeout_s=40 + HOUR_S)
            assert "Traceback" not in operator.log()
        finally:
            operator.kill()


def probe(operator: OperatorProcess, seconds: float) -> tuple[list[tuple[int, str]], list[tuple[int, str]]]:
    """Return what kubelet is answered: whether the operator lives, and whether it is ready."""
    alive, ready, until_s = [], [], time.monotonic() + seconds
    while time.monotonic() < until_s:
        alive.append(operator.page("/healthz"))
        ready.append(operator.page("/readyz"))
        time.sleep(PROBE_S)
    return alive, ready


def test_a_watch_that_stays_dead_loses_no_job_and_fails_readiness(tmp_path: Path) -> None:
    with ApiStandIn() as server:
        operator = OperatorProcess(tmp_path, server.kubeconfig(tmp_path), maxWatchLagSeconds=0.5, sweepSeconds=0.3)
        try:
            operator.start()
            # Without jobs it is ready before kopf's first list, which would bring the job.
            wait_until(lambda: server.watches == 5, "all watches, which bring nothing from here on")
            unheard = server.put(path_of("BertPretrainJob", "demo"), job_document("unheard"))
            wait_until(lambda: any("/jobs/unheard-" in path for path in list(server.objects)), "its child")
            wait_until(lambda: operator.page("/readyz")[0] == 503, "readiness to be denied")
            assert operator.page("/readyz")[1].startswith("the watch on BertPretrainJob lags by")
            assert operator.figure('watch_lag_seconds{kind="BertPretrainJob"}') > 0.5
            assert operator.page("/healthz") == (200, "ok\n")
            server.cluster.remove(unheard)
            wait_until(operator.is_ready, "it to be ready again")
        finally:
            operator.kill()


def test_kopf_tries_again_for_as_long_as_the_api_server_refuses() -> None:
    pauses = cast(Iterable[float], build_settings(Settings()).networking.error_backoffs)
    for _ in range(2):
        assert list(itertools.islice(pauses, 1000)) == [RETRY_S] * 1000
