"""Lists that are refused, or whose pages expire, cost time and not the operator."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest
from kubernetes.aio.client.configuration import Configuration

from api_stand_in import ApiStandIn
from bert_operator.cluster import service
from bert_operator.cluster.client import MAX_PAUSE_S, ApiClient, ApiError
from bert_operator.cluster.index import Index
from bert_operator.cluster.paths import path_of
from bert_operator.cluster.resync import Resyncer
from bert_operator.cluster.service import _Service
from bert_operator.cluster.settings import Settings
from bert_operator.cluster.watches import JOBS_PER_PAGE
from cluster_api import wait_until
from cluster_jobs import job_document
from operator_process import OperatorProcess

KINDS = 5


def test_where_one_list_is_refused_no_other_goes_on() -> None:
    namespaces = tuple(f"team-{number}" for number in range(64))

    async def resync(server: ApiStandIn) -> set[asyncio.Task[object]]:
        async with ApiClient(Configuration(host=server.url)) as api:
            resyncer = Resyncer(api, Index(), Settings(namespaces=namespaces), lambda _: None, lambda _: None)
            others = asyncio.all_tasks()
            with pytest.raises(ApiError, match="403"):
                await resyncer.resync()
            return {task for task in asyncio.all_tasks() - others if not task.done()}

    with ApiStandIn(delay_s=0.2) as server:
        server.refuses.add(path_of("BertPretrainJob", namespaces[3]))
        assert asyncio.run(resync(server)) == set()


class RefusedResyncer:
    """It is refused as often as the test wants."""

    def __init__(self, refusals: int) -> None:
        self.refusals = refusals

    async def resync(self) -> None:
        self.refusals -= 1
        if self.refusals >= 0:
            raise ApiError(403, "Forbidden", "no")

    def lag_s(self) -> float:
        return 0.0

    async def run(self) -> None:
        return


def test_the_pauses_before_readiness_grow_while_the_api_server_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    class Instant:
        """asyncio, without its sleep."""

        async def sleep(self, seconds: float) -> None:
            pauses.append(seconds)

    async def get_ready() -> None:
        running = _Service(Settings())
        running._resyncer = RefusedResyncer(12)  # type: ignore[assignment]
        is_up = asyncio.Event()
        is_up.set()
        monkeypatch.setattr(service, "asyncio", Instant())
        await running._become_ready(is_up)

    asyncio.run(get_ready())
    assert len(pauses) == 12
    assert pauses == sorted(pauses)
    assert pauses[-1] == MAX_PAUSE_S


@pytest.mark.parametrize("namespaces", [(), ("demo", "other")])
def test_a_list_whose_pages_expire_is_begun_again_within_the_process(
    namespaces: tuple[str, ...], tmp_path: Path
) -> None:
    with ApiStandIn() as server:
        server.tells, server.expires = True, 1
        watches = KINDS * max(1, len(namespaces))
        jobs = [f"job-{number}" for number in range(2 * JOBS_PER_PAGE + 1)]
        for name in jobs:
            server.put(path_of("BertPretrainJob", "demo"), job_document(name))
        with OperatorProcess(tmp_path, server.kubeconfig(tmp_path), namespaces=namespaces) as operator:
            wait_until(lambda: server.expires == 0, "a page to have expired")
            wait_until(lambda: server.watches == watches, "each watch to be open once, that on jobs too")
            later = server.put(path_of("BertPretrainJob", "demo"), job_document("later"))["metadata"]["name"]
            names = [*jobs, later]
            child = f"{path_of('Job', 'demo')}/{{}}-a1-training".format
            wait_until(lambda: all(child(name) in server.objects for name in names), "a child of every job")
            assert operator.is_ready()
            assert "restarting it" in operator.log()
            os.kill(operator.pid, signal.SIGTERM)
            wait_until(lambda: not operator.pid, "it to heed a signal still")
