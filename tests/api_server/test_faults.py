"""Whatever breaks between the operator and its API server, and whenever: no second child, and it goes on by itself."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cluster_api import Api, in_parallel, wait_until
from cluster_jobs import Jobs
from control_plane import ControlPlane
from flaky_proxy import Fault, FlakyProxy, Match, Request
from kubelet import FakeKubelet, attempt_of
from operator_process import OperatorProcess, install_operator
from patience import PATIENCE_S

Json = dict[str, Any]
# What the log of the operator must not hold, whatever happens: it knows all of this.
SURPRISE = "Traceback"


@pytest.fixture(scope="module")
def proxy(control_plane: ControlPlane) -> Iterator[FlakyProxy]:
    with FlakyProxy(control_plane.url, control_plane.ca_file) as running:
        yield running


@pytest.fixture
def proxied(
    control_plane: ControlPlane, proxy: FlakyProxy, namespace: str, tmp_path: Path
) -> Iterator[OperatorProcess]:
    """An operator whose requests pass the proxy, for this namespace alone."""
    config = control_plane.kubeconfig(install_operator(control_plane), server=proxy.url)
    seen = len(proxy.requests)

    def watches_jobs() -> bool:
        return any(one.is_watch and "bertpretrainjobs" in one.path for one in proxy.requests[seen:])

    try:
        with OperatorProcess(tmp_path, config, namespaces=[namespace], workers=40, watchSilenceSeconds=3) as running:
            # Without jobs it is ready before kopf has looked round; a fault is to meet a watch that is open.
            wait_until(watches_jobs, "the watch on jobs")
            yield running
            assert SURPRISE not in running.log()
    finally:
        proxy.clear()


def concerns(job: str) -> Match:
    """Match the writes about one job that all such jobs take.

    Events are written beside the work; pods get less time to leave where the operator still meets them.
    """

    def match(request: Request) -> bool:
        _, *words = request.path.partition("/namespaces/")[2].split("/")
        words.append(str(request.document.get("metadata", {}).get("name")))
        is_about = any(word == job or word.startswith(f"{job}-") for word in words)
        return request.is_write and not {"events", "pods"} & {*words} and is_about

    return match


@contextmanager
def watching_for_doubles(jobs: Jobs) -> Iterator[None]:
    """Fail where two children of the same run of a job exist at the same time."""
    doubles: list[object] = []
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(0.1):
            try:
                found = [*jobs.api.list("batch/v1/jobs", jobs.namespace, labelSelector="bert-operator.dev/run")]
                found += jobs.api.list("kubeflow.org/v2beta1/mpijobs", jobs.namespace)
            except OSError:
                continue
            labels = (item["metadata"]["labels"] for item in found)
            runs = Counter((label["bert-operator.dev/job"], label["bert-operator.dev/run"]) for label in labels)
            doubles.extend(run for run, count in runs.items() if count > 1)

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
    assert not doubles


def wait_all(jobs: Jobs, names: list[str], phase: str = "Succeeded", timeout_s: float = PATIENCE_S) -> dict[str, Json]:
    for name in names:
        jobs.wait_phase(name, phase, timeout_s=timeout_s)
    return {name: jobs.status(name) for name in names}


# The life of a job that prepares its data, fails once and then succeeds takes this many writes.
WRITES_OF_A_LIFE = 13


@pytest.mark.parametrize(
    ("how", "workers"), [("lost", 1), ("lost", 2), ("unheard", 1), ("late", 1), ("late", 2), ("broken", 1)]
)
def test_an_operator_that_is_killed_at_any_write_goes_on_where_it_was(
    proxied: OperatorProcess, proxy: FlakyProxy, api: Api, namespace: str, jobs: Jobs, how: str, workers: int
) -> None:
    """One job per write; the operator is killed once, when every job is at its write.

    lost: the write has not reached the API server. unheard: it has, and its answer is on the way. late: it reaches
    the API server only after the next operator has begun. broken: nobody is killed, the answer is lost.
    """
    names = [f"k{number:02}" for number in range(1, WRITES_OF_A_LIFE + 2)]
    modes = {"lost": "hold before", "unheard": "hold after", "late": "hold before", "broken": "break"}
    faults = [
        proxy.add(Fault(concerns(name), modes[how], nth=number, times=1))  # type: ignore[arg-type]
        for number, name in enumerate(names, start=1)
    ]
    with FakeKubelet(api, namespace) as kubelet, watching_for_doubles(jobs):
        kubelet.fates[2] = kubelet.failing(1)
        in_parallel(lambda name: jobs.create(name, prepare=True, workers=workers), names)
        if how == "broken":
            began_s = time.monotonic()
        else:
            wait_until(lambda: all(fault.reached.is_set() for fault in faults[:-1]), "every job to be at its write")
            proxied.kill()
            began_s = time.monotonic()
            for fault in faults:
                if how != "late":
                    fault.discard()
            proxied.start()
            for fault in faults:
                fault.release()
        statuses = wait_all(jobs, names)
    print(f"{how}, {workers} worker(s): consistent after {time.monotonic() - began_s:.1f} s")
    assert all(fault.reached.is_set() for fault in faults[:-1])
    assert not faults[-1].reached.is_set(), "a job's life takes more writes than were tried"
    for name, status in statuses.items():
        failed = [(failure["attempt"], failure["kind"]) for failure in status["failures"]]
        assert (name, status["attempt"], failed) == (name, 3, [(2, "Application")])
        assert [attempt_of(child) for child in jobs.children(name)] == [1, 3]


def test_two_operators_by_mistake_make_no_second_child(
    control_plane: ControlPlane, proxy: FlakyProxy, api: Api, namespace: str, jobs: Jobs, tmp_path: Path
) -> None:
    config = control_plane.kubeconfig(install_operator(control_plane), server=proxy.url)
    names = [f"job-{number:02}" for number in range(50)]
    began = len(proxy.writes())
    with (
        OperatorProcess(tmp_path, config, namespaces=[namespace], name="one") as one,
        OperatorProcess(tmp_path, config, namespaces=[namespace], name="other") as other,
        FakeKubelet(api, namespace),
        watching_for_doubles(jobs),
    ):
        began_s = time.monotonic()
        in_parallel(lambda name: jobs.create(name, workers=1 + int(name[-1]) % 2), names)
        statuses = wait_all(jobs, names)
        took_s = time.monotonic() - began_s
        assert SURPRISE not in one.log() + other.log()
    writes = [request for request in proxy.writes()[began:] if not request.path.endswith("/events")]
    print(f"50 jobs, two operators: {took_s:.1f} s, {len(writes) / 50:.1f} writes per job")
    assert {(status["attempt"], len(status["failures"])) for status in statuses.values()} == {(1, 0)}
    # A life without failures takes five; at worst both operators try each of them, and again after a conflict.
    assert len(writes) <= 50 * 5 * 3


def test_nothing_is_lost_when_the_api_server_restarts_under_load(
    control_plane: ControlPlane, api: Api, namespace: str, jobs: Jobs, tmp_path: Path
) -> None:
    config = control_plane.kubeconfig(install_operator(control_plane))
    names = [f"job-{number:02}" for number in range(30)]
    with OperatorProcess(tmp_path, config, namespaces=[namespace]) as operator, FakeKubelet(api, namespace):
        in_parallel(lambda name: jobs.create(name, workers=1 + int(name[-1]) % 2), names)
        wait_until(lambda: sum(bool(jobs.children(name)) for name in names) >= 5, "the first children")
        control_plane.api_server.kill()
        control_plane.api_server.start()
        began_s = time.monotonic()
        statuses = wait_all(jobs, names)
        print(f"API server killed and back: consistent after {time.monotonic() - began_s:.1f} s")
        assert {(status["attempt"], len(status["failures"])) for status in statuses.values()} == {(1, 0)}
        assert operator.page("/healthz")[0] == 200
        assert SURPRISE not in operator.log()


AWAY_S = 60.0
"""Longer than every pause between two tries (work_queue, watches)."""


def test_jobs_that_run_while_the_api_server_is_away_for_a_minute_are_as_they_were(
    control_plane: ControlPlane, api: Api, namespace: str, jobs: Jobs, tmp_path: Path
) -> None:
    config = control_plane.kubeconfig(install_operator(control_plane))
    names = [f"job-{number}" for number in range(6)]
    with (
        OperatorProcess(tmp_path, config, namespaces=[namespace]) as operator,
        FakeKubelet(api, namespace, {1: None}),
    ):
        in_parallel(lambda name: jobs.create(name, workers=1 + int(name[-1]) % 2), names)
        before = wait_all(jobs, names, "Running")
        control_plane.api_server.kill()
        back_s = time.monotonic() + AWAY_S
        try:
            # Not to be restarted by kubelet: it would forget what it knows, for nothing.
            while time.monotonic() < back_s:
                assert operator.page("/healthz")[0] == 200
                threading.Event().wait(1.0)
        finally:
            control_plane.api_server.start()
        began_s = time.monotonic()
        jobs.create("new")
        wait_until(lambda: jobs.children("new"), "the child of a new job")
        print(f"API server away for {AWAY_S:.0f} s: a new child {time.monotonic() - began_s:.1f} s after its return")
        operator.wait_resyncs(2)
        after = {name: jobs.status(name) for name in names}
        assert [name for name in names if after[name]["child"] != before[name]["child"]] == []
        assert {(status["phase"], status["attempt"]) for status in after.values()} == {("Running", 1)}
        assert not any(status["failures"] for status in after.values())
        # Their pauses between two tries have grown to a minute by now, which this job and later tests would wait for.
        control_plane.restart_controllers()
        jobs.wait_phase("new", "Running")
        assert SURPRISE not in operator.log()


def test_watches_that_are_cut_again_and_again_lose_nothing(
    proxied: OperatorProcess, proxy: FlakyProxy, api: Api, namespace: str, jobs: Jobs
) -> None:
    names = [f"job-{number}" for number in range(10)]
    with FakeKubelet(api, namespace):
        in_parallel(lambda name: jobs.create(name, workers=2), names)
        cuts = 0
        for _ in range(15):
            cuts += proxy.cut_watches()
            threading.Event().wait(0.2)
        began_s = time.monotonic()
        statuses = wait_all(jobs, names)
    print(f"{cuts} connections cut: consistent {time.monotonic() - began_s:.1f} s after the last")
    assert cuts > 20
    assert {(status["attempt"], len(status["failures"])) for status in statuses.values()} == {(1, 0)}


def test_what_happens_while_no_watch_is_open_and_its_version_is_forgotten_is_found_by_a_new_list(
    proxied: OperatorProcess, proxy: FlakyProxy, api: Api, namespace: str, jobs: Jobs
) -> None:
    with FakeKubelet(api, namespace, {1: None}) as kubelet:
        for name in ("deleted", "ends"):
            jobs.create(name, workers=2)
            jobs.wait_phase(name, "Running")
        away = proxy.add(Fault(lambda request: request.is_watch, "refuse", status=503))
        open_watches = proxy.cut_watches()
        wait_until(away.reached.is_set, "a watch to be refused")
        jobs.delete("deleted")
        wait_until(lambda: not jobs.pods("deleted"), "its pods to go")
        jobs.create("new")
        kubelet.fates[1] = kubelet.succeed
        wait_until(lambda: all(pod["status"]["phase"] == "Succeeded" for pod in jobs.pods("ends")
                               if "launcher" in pod["metadata"]["name"]), "the launcher to end")  # fmt: skip
        proxy.clear()
        proxy.expire_watches(open_watches)
        began_s = time.monotonic()
        wait_all(jobs, ["ends", "new"])
        wait_until(lambda: proxied.figure('known_objects{kind="jobs"}') == 2, "the deleted job to be forgotten")
        wait_until(lambda: proxied.figure('known_objects{kind="children"}') == 2, "its child as well")
    print(f"410 Gone on {open_watches} watches: consistent after {time.monotonic() - began_s:.1f} s")


@pytest.mark.parametrize(
    ("status", "headers"),
    [
        pytest.param(429, {"Retry-After": "1"}, id="429"),
        pytest.param(500, {}, id="500"),
        pytest.param(503, {}, id="503"),
    ],
)
def test_refusals_in_a_row_are_waited_out(
    proxied: OperatorProcess, proxy: FlakyProxy, api: Api, namespace: str, jobs: Jobs, status: int, headers: Json
) -> None:
    name = f"refused-{status}"
    refused = [
        proxy.add(Fault(concerns(name), "refuse", nth=nth, times=3, status=status, headers=headers)) for nth in (1, 3)
    ]
    lists = proxy.add(Fault(lambda request: request.method == "GET", "refuse", times=4, status=status, headers=headers))
    with FakeKubelet(api, namespace):
        proxy.cut_watches()
        began_s = time.monotonic()
        jobs.create(name)
        final = jobs.wait_phase(name, "Succeeded")
    print(f"{status}: done after {time.monotonic() - began_s:.1f} s")
    assert all(fault.reached.is_set() for fault in (*refused, lists))
    assert (final["attempt"], final["failures"], proxied.page("/healthz")[0]) == (1, [], 200)
    # Five writes of a life, six refusals, and the second look at the ConfigMap.
    assert len(proxy.writes(concerns(name))) <= 15


def test_a_slow_api_server_is_waited_for(
    proxied: OperatorProcess, proxy: FlakyProxy, api: Api, namespace: str, jobs: Jobs
) -> None:
    names = [f"slow-{number}" for number in range(10)]
    slow = proxy.add(Fault(lambda request: not request.is_watch, "delay", delay_s=0.5))
    with FakeKubelet(api, namespace):
        began_s = time.monotonic()
        in_parallel(lambda name: jobs.create(name, workers=2), names)
        statuses = wait_all(jobs, names)
    print(f"half a second per request: done after {time.monotonic() - began_s:.1f} s")
    assert slow.reached.is_set()
    assert {(status["attempt"], len(status["failures"])) for status in statuses.values()} == {(1, 0)}


def test_an_answer_that_is_no_json_ends_nothing(
    proxied: OperatorProcess, proxy: FlakyProxy, api: Api, namespace: str, jobs: Jobs
) -> None:
    nonsense = proxy.add(Fault(lambda request: not request.is_watch, "garble", times=12))
    proxy.cut_watches()
    with FakeKubelet(api, namespace):
        jobs.create("bert")
        status = jobs.wait_phase("bert", "Succeeded")
    assert nonsense.reached.is_set()
    assert (status["attempt"], status["failures"]) == (1, [])


def test_watches_that_died_without_a_word_are_opened_anew(
    proxied: OperatorProcess, proxy: FlakyProxy, api: Api, namespace: str, jobs: Jobs
) -> None:
    jobs.create("first")
    with FakeKubelet(api, namespace, {1: None}) as kubelet:
        jobs.wait_phase("first", "Running")
        muted = proxy.mute_watches()
        began_s = time.monotonic()
        jobs.create("second")
        kubelet.fates[1] = kubelet.succeed
        wait_all(jobs, ["first", "second"])
    # Silence counts as death after 3 s here, 75 s by default.
    print(f"{muted} watches silent: consistent after {time.monotonic() - began_s:.1f} s")
    assert muted >= 5
