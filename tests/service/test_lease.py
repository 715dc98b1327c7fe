"""A Lease and those who want it, against an API server in memory; everything ten times as fast as in a cluster."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from kubernetes.aio.client.configuration import Configuration

from api_stand_in import ApiStandIn
from bert_operator.cluster.client import ApiClient
from bert_operator.cluster.lease import Lease, LeaseLost, Times, find_own_namespace, make_identity
from bert_operator.cluster.paths import path_of
from bert_operator.errors import OperatorError
from patience import PATIENCE_S

FAST = Times(duration_s=1, renew_deadline_s=0.7, renew_every_s=0.2, retry_s=0.05, request_s=0.25, poll_every_s=0.1)
COLLECTION, PATH = path_of("Lease", "system"), path_of("Lease", "system", "bert-operator")


class Replica:
    """One that wants the Lease."""

    def __init__(self, api: ApiClient, name: str) -> None:
        self.lease = Lease(api, "system", "bert-operator", name, FAST)
        self.task: asyncio.Task[None] | None = None

    async def _lead(self) -> None:
        try:
            await self.lease.acquire()
            await self.lease.keep()
        finally:
            await self.lease.release()

    def start(self) -> None:
        self.task = asyncio.create_task(self._lead())

    async def leave(self) -> None:
        assert self.task is not None
        self.task.cancel()
        await asyncio.wait({self.task})

    async def lead(self) -> None:
        if self.task is None:
            self.start()
        await until(lambda: self.lease.is_leading)


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not is_so():
            await asyncio.sleep(0.01)


@asynccontextmanager
async def replicas(server: ApiStandIn, *names: str) -> AsyncIterator[list[Replica]]:
    async with ApiClient(Configuration(host=server.url)) as api:
        found = [Replica(api, name) for name in names]
        try:
            yield found
        finally:
            for replica in found:
                if replica.task is not None:
                    await replica.leave()


def play(story: Callable[[ApiStandIn], Awaitable[None]]) -> None:
    with ApiStandIn() as server:

        async def run() -> None:
            await story(server)

        asyncio.run(run())


def holder(server: ApiStandIn) -> str:
    return str(server.objects[PATH]["spec"]["holderIdentity"])


def test_one_of_two_leads_and_the_other_follows_at_once_where_it_leaves_politely() -> None:
    async def story(server: ApiStandIn) -> None:
        async with replicas(server, "a", "b") as (first, second):
            await first.lead()
            second.start()
            await second.lease.seen.wait()
            assert (holder(server), second.lease.is_leading) == ("a", False)
            await first.leave()
            assert not first.lease.is_leading
            await second.lead()
            assert (holder(server), server.objects[PATH]["spec"]["leaseTransitions"]) == ("b", 2)

    play(story)


def test_who_holds_it_keeps_it_for_longer_than_its_duration() -> None:
    async def story(server: ApiStandIn) -> None:
        async with replicas(server, "a", "b") as (first, second):
            await first.lead()
            second.start()
            renewals = {server.objects[PATH]["spec"]["renewTime"]}

            def has_renewed() -> bool:
                renewals.add(server.objects[PATH]["spec"]["renewTime"])
                return len(renewals) > 10

            await until(has_renewed)
            assert first.lease.is_leading
            assert not second.lease.is_leading

    play(story)


def test_one_that_says_nothing_any_more_is_followed_and_does_not_lead_any_more_by_then() -> None:
    async def story(server: ApiStandIn) -> None:
        async with replicas(server, "a", "b") as (first, second):
            await first.lead()
            second.start()
            await second.lease.seen.wait()
            server.refuses.add(PATH)
            assert first.task is not None
            with pytest.raises(LeaseLost, match="not renewed for 0.7 s"):
                await first.task
            assert holder(server) == "a"
            server.refuses.clear()
            await second.lead()
            assert not first.lease.is_leading

    play(story)


def test_a_lease_that_somebody_takes_by_an_edit_is_lost_at_once_and_not_fought_for() -> None:
    async def story(server: ApiStandIn) -> None:
        async with replicas(server, "a") as (first,):
            await first.lead()
            server.update(PATH, {"spec": {"holderIdentity": "somebody"}})
            assert first.task is not None
            with pytest.raises(LeaseLost, match="held by somebody"):
                await first.task
            assert (holder(server), first.lease.is_leading) == ("somebody", False)

    play(story)


def test_a_label_or_a_deletion_by_somebody_costs_the_holder_nothing() -> None:
    async def story(server: ApiStandIn) -> None:
        async with replicas(server, "a", "b") as (first, second):
            await first.lead()
            second.start()
            server.update(PATH, {"metadata": {"labels": {"looked-at": "yes"}}})
            labelled = server.objects[PATH]["spec"]["renewTime"]
            await until(lambda: server.objects[PATH]["spec"]["renewTime"] != labelled)
            assert server.objects[PATH]["metadata"]["labels"] == {"looked-at": "yes"}
            server.cluster.remove(server.objects[PATH])
            await until(lambda: PATH in server.objects)
            assert (holder(server), first.lease.is_leading, second.lease.is_leading) == ("a", True, False)

    play(story)


def test_of_two_that_see_it_free_at_the_same_time_one_gets_it() -> None:
    async def story(server: ApiStandIn) -> None:
        names = [f"replica-{number}" for number in range(6)]
        async with replicas(server, *names) as found:
            for replica in found:
                replica.start()
            await until(lambda: any(replica.lease.is_leading for replica in found))
            (leader,) = (replica for replica in found if replica.lease.is_leading)
            await leader.leave()
            rest = [replica for replica in found if replica is not leader]
            await until(lambda: sum(replica.lease.is_leading for replica in rest) == 1)

    play(story)


def test_those_that_were_too_late_give_nothing_back_that_another_one_holds() -> None:
    async def story(server: ApiStandIn) -> None:
        async with replicas(server, *(f"replica-{number}" for number in range(6))) as found:
            for replica in found:
                replica.start()
            await until(lambda: any(replica.lease.is_leading for replica in found))
            (leader,) = (replica for replica in found if replica.lease.is_leading)
            others = [replica for replica in found if replica is not leader]
            await until(lambda: all(replica.lease._holder for replica in others))
            held_by = holder(server)
            for replica in others:
                await replica.leave()
                assert holder(server) == held_by
            assert leader.lease.is_leading

    play(story)


def test_one_that_may_not_look_does_not_lead_and_says_so() -> None:
    async def story(server: ApiStandIn) -> None:
        server.refuses.add(PATH)
        async with replicas(server, "a") as (first,):
            first.start()
            await until(lambda: first.lease.lag_s > 0)
            assert not first.lease.seen.is_set()
            assert not first.lease.is_leading

    play(story)


def test_the_namespace_is_the_pod_s_and_every_process_has_a_name_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POD_NAMESPACE", "system")
    assert find_own_namespace() == "system"
    monkeypatch.delenv("POD_NAMESPACE")
    with pytest.raises(OperatorError, match="POD_NAMESPACE"):
        find_own_namespace()
    assert make_identity() != make_identity()


def test_a_renewal_counts_from_when_it_was_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow answer gives no time: to all others the Lease is free sooner than it would say."""
    clock_s = [100.0]
    monkeypatch.setattr("bert_operator.cluster.lease.now_s", lambda: clock_s[0])

    class SlowlyWritten(Lease):
        async def _write_own(self, holder: str) -> bool:
            clock_s[0] += 0.5
            return len(writes) == 0 and writes.append(holder) is None

    writes: list[str] = []

    async def run() -> None:
        async with ApiClient(Configuration(host="http://127.0.0.1:9")) as api:
            lease = SlowlyWritten(api, "system", "bert-operator", "a", FAST)
            lease._until_s = clock_s[0] + FAST.renew_deadline_s
            keeping = asyncio.create_task(lease.keep())
            await until(lambda: bool(writes))
            await asyncio.sleep(0)
            clock_s[0] = 100.0 + FAST.renew_deadline_s - 0.01
            assert lease.is_leading
            clock_s[0] = 100.0 + FAST.renew_deadline_s
            assert not lease.is_leading
            with pytest.raises(LeaseLost):
                await keeping

    asyncio.run(run())
