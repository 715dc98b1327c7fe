"""What the operator tells of itself: figures for Prometheus, and to kubelet whether it works."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cluster_api import Api, wait_until
from cluster_jobs import Jobs
from control_plane import ControlPlane
from flaky_proxy import Fault, FlakyProxy
from kubelet import FakeKubelet
from operator_process import OperatorProcess, install_operator

KINDS = ("BertPretrainJob", "Event", "Job", "MPIJob", "Pod")


@pytest.fixture
def proxy(control_plane: ControlPlane) -> Iterator[FlakyProxy]:
    with FlakyProxy(control_plane.url, control_plane.ca_file) as running:
        yield running


@pytest.fixture
def make_operator(control_plane: ControlPlane, proxy: FlakyProxy, namespace: str, tmp_path: Path) -> Any:
    """Return what makes an operator behind the proxy, with settings, which runs while its context is entered."""
    config = control_plane.kubeconfig(install_operator(control_plane), server=proxy.url)
    return lambda **settings: OperatorProcess(tmp_path, config, namespaces=[namespace], **settings)


def test_figures_follow_a_job_through_its_life(
    make_operator: Any, proxy: FlakyProxy, api: Api, namespace: str, jobs: Jobs
) -> None:
    with make_operator() as operator, FakeKubelet(api, namespace) as kubelet:
        kubelet.fates |= {1: kubelet.failing(1), 2: None}
        proxy.add(Fault(lambda request: request.path.endswith("/configmaps"), "refuse", times=1, status=500))
        jobs.create("bert", workers=2)
        jobs.wait_phase("bert", "Running", attempt=2)

        # Every wait becomes a look, but for those that wait or are under way at this moment.
        def told_at_rest() -> dict[str, str]:
            page = operator.page("/metrics")[1]
            told = dict(re.findall(r"^bert_operator_(\S+) (\S+)$", page, re.MULTILINE))
            looks, waits = told.get("reconcile_seconds_count"), told.get("queue_wait_seconds_count")
            return told if looks == waits and float(told["queue_depth"]) == 0 else {}

        told = wait_until(told_at_rest, "the looks to be counted")
        assert float(told['reconciles_total{result="done"}']) >= 5
        assert float(told['reconciles_total{result="failed"}']) == 1
        assert 0 < float(told["reconcile_seconds_sum"]) < 10
        assert float(told["queue_oldest_seconds"]) < 1
        assert float(told['jobs{phase="Running"}']) == 1
        assert float(told['attempts_total{run="training"}']) == 2
        assert float(told['attempt_failures_total{kind="Application",reason="Exited"}']) == 1
        assert {kind: float(told[f'watch_lag_seconds{{kind="{kind}"}}']) for kind in KINDS} == dict.fromkeys(KINDS, 0)
        assert float(told['watch_events_total{kind="Pod"}']) > 5
        assert float(told['known_objects{kind="pods"}']) == 3
        assert float(told["last_sweep_timestamp_seconds"]) > 1.7e9
        kubelet.fates[2] = kubelet.succeed
        jobs.wait_phase("bert", "Succeeded")
        wait_until(lambda: operator.figure('jobs{phase="Succeeded"}') == 1, "the phase to be counted")
        assert operator.figure('jobs{phase="Running"}') == 0
        jobs.delete("bert")
        wait_until(lambda: operator.figure('known_objects{kind="pods"}') == 0, "what is gone to be forgotten")


def test_it_is_ready_once_it_has_seen_everything_and_writes_nothing_before(
    make_operator: Any, proxy: FlakyProxy, api: Api, namespace: str, jobs: Jobs
) -> None:
    jobs.create("bert")
    pods = proxy.add(Fault(lambda request: request.path.endswith("/pods"), "hold before"))
    known = proxy.add(Fault(lambda request: request.path.endswith("/bertpretrainjobs"), "hold before"))
    operator = make_operator()
    try:
        operator.launch()
        for held in (pods, known):
            wait_until(held.reached.is_set, "a list to be asked for")
            assert operator.page("/readyz") == (503, "starting\n")
            assert operator.page("/healthz")[0] == 200, "it need not be restarted for that"
            assert proxy.writes() == []
            held.release()
        operator.wait_ready()
    finally:
        operator.kill()


def test_it_is_not_ready_while_the_watch_on_jobs_brings_nothing(
    make_operator: Any, proxy: FlakyProxy, jobs: Jobs
) -> None:
    with make_operator(maxWatchLagSeconds=2) as operator:
        assert operator.page("/readyz") == (200, "ok\n")
        # Without jobs it is ready before kopf's first list, which would bring the job.
        watches = lambda: [one for one in proxy.requests if one.is_watch and "bertpretrainjobs" in one.path]  # noqa: E731
        wait_until(watches, "the watch on jobs")
        proxy.are_watches_mute = True
        proxy.mute_watches()
        jobs.create("unheard")
        wait_until(lambda: operator.page("/readyz")[0] == 503, "the probe to fail")
        assert operator.page("/readyz")[1].startswith("the watch on BertPretrainJob lags by")
        assert operator.figure('watch_lag_seconds{kind="BertPretrainJob"}') > 2
        proxy.clear()
        proxy.cut_watches()
        wait_until(lambda: operator.page("/readyz")[0] == 200, "the probe to pass again")


@contextmanager
def restless_pod(api: Api, namespace: str) -> Iterator[None]:
    """Change a pod that carries a job's label several times a second."""
    labels = {"bert-operator.dev/job": "other", "bert-operator.dev/run": "training", "bert-operator.dev/attempt": "1"}
    spec = {"containers": [{"name": "main", "image": "busybox"}], "schedulerName": "tests"}
    metadata = {"name": "restless", "labels": labels}
    api.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}, namespace).expect()
    ended = threading.Event()

    def change() -> None:
        number = 0
        while not ended.wait(0.2):
            number += 1
            annotations = {"metadata": {"annotations": {"number": str(number)}}}
            api.patch("v1/pods", "restless", annotations, namespace).expect()

    thread = threading.Thread(target=change, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def test_it_is_not_ready_while_a_watch_on_pods_stays_silent(
    make_operator: Any, proxy: FlakyProxy, api: Api, namespace: str
) -> None:
    complaint = "the watch on Pod lags by"
    with make_operator(watchSilenceSeconds=1, maxWatchLagSeconds=1) as operator, restless_pod(api, namespace):
        began = operator.figure('watch_events_total{kind="Pod"}')
        wait_until(lambda: operator.figure('watch_events_total{kind="Pod"}') > began + 15, "four seconds")
        assert complaint not in operator.page("/readyz")[1]
        proxy.are_watches_mute = True
        proxy.mute_watches()
        wait_until(lambda: complaint in operator.page("/readyz")[1], "the probe to fail")
        proxy.clear()
        wait_until(lambda: complaint not in operator.page("/readyz")[1], "the probe to pass again")


def test_it_is_not_ready_while_the_queue_does_not_move(
    make_operator: Any, proxy: FlakyProxy, api: Api, namespace: str, jobs: Jobs
) -> None:
    with make_operator(workers=1, maxWaitSeconds=2) as operator:
        held = proxy.add(Fault(lambda request: request.is_write, "hold before"))
        for number in range(3):
            jobs.create(f"job-{number}")
        wait_until(held.reached.is_set, "a write to be held")
        wait_until(lambda: operator.page("/readyz")[0] == 503, "the probe to fail")
        assert operator.page("/readyz")[1].startswith("a job has waited for")
        assert operator.figure("queue_depth") == 2
        assert operator.figure("queue_oldest_seconds") > 2
        held.release()
        wait_until(lambda: operator.page("/readyz") == (200, "ok\n"), "the probe to pass again")
        with FakeKubelet(api, namespace):
            for number in range(3):
                jobs.wait_phase(f"job-{number}", "Succeeded")
