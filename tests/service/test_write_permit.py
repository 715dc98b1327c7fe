"""Nothing is written without a permit: neither begun after its end, nor sent, nor waited for."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable

import pytest
from kubernetes.aio.client.configuration import Configuration

from api_stand_in import ApiStandIn
from bert_operator.cluster.client import ApiClient, ApiError
from bert_operator.cluster.permit import Permit, now_s
from patience import PATIENCE_S

EVENTS = "/api/v1/namespaces/demo/events"
EVENT = {"metadata": {"name": "one"}, "reason": "First"}

Write = Callable[[ApiClient], Awaitable[object]]
WRITES: dict[str, Write] = {
    "create": lambda api: api.create(EVENTS, EVENT),
    "patch": lambda api: api.patch(f"{EVENTS}/one", {"count": 2}),
    "replace": lambda api: api.replace(f"{EVENTS}/one", EVENT),
    "delete": lambda api: api.delete(f"{EVENTS}/one", uid="uid-1"),
}


def with_client(server: ApiStandIn, permit: Permit, act: Write) -> object:
    async def run() -> object:
        async with ApiClient(Configuration(host=server.url), permit) as api:
            return await act(api)

    return asyncio.run(run())


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_without_a_permit_no_write_leaves_this_process(write: Write) -> None:
    with ApiStandIn() as server:
        with pytest.raises(ApiError, match="NotLeading"):
            with_client(server, Permit(-math.inf), write)
        assert not server.requests


def test_reading_and_dry_runs_need_none() -> None:
    with ApiStandIn() as server:
        with_client(server, Permit(-math.inf), lambda api: api.get(EVENTS))
        with_client(server, Permit(-math.inf), lambda api: api.create(EVENTS, EVENT, dry_run=True))
        assert server.requests == {"GET": 1, "POST": 1}


class _EndsBeforeTheBody(Permit):
    """A permit that ends between its first look and its second: a process that was stopped in between."""

    def check(self) -> None:
        super().check()
        self.end()


def test_a_permit_that_ends_before_the_body_is_sent_keeps_it_from_being_sent() -> None:
    with ApiStandIn() as server:
        permit = _EndsBeforeTheBody()
        # So that nothing but the look before the body can stop it.
        permit._limit_s = lambda: None  # type: ignore[method-assign]
        with pytest.raises(ApiError):
            with_client(server, permit, WRITES["create"])
        assert not server.objects


def test_a_write_goes_on_behind_the_first_end_of_its_permit_where_that_was_put_off() -> None:
    async def write(api: ApiClient, permit: Permit) -> object:
        # Put off as soon as the write is under way: a busy machine has two seconds for that.
        permit.extend(now_s() + 2)
        writing = asyncio.create_task(api.create(EVENTS, EVENT))
        while not permit._under_way and not writing.done():
            await asyncio.sleep(0)
        permit.extend(now_s() + PATIENCE_S)
        return await writing

    with ApiStandIn(delay_s=2.2) as server:
        permit = Permit()
        assert with_client(server, permit, lambda api: write(api, permit))


def test_a_write_is_given_up_when_its_permit_ends() -> None:
    # The answer comes later than anybody waits: only the end of the permit can end this.
    with ApiStandIn(delay_s=2 * PATIENCE_S) as server, pytest.raises(ApiError, match="lost its Lease while it wrote"):
        with_client(server, Permit(now_s() + 0.3), WRITES["create"])


def test_an_end_gives_up_what_is_under_way_and_is_final_for_it() -> None:
    async def write(api: ApiClient, permit: Permit) -> object:
        writing = asyncio.create_task(api.create(EVENTS, EVENT))
        await asyncio.sleep(0.1)
        permit.end()
        await asyncio.sleep(0)
        permit.extend(math.inf)
        return await writing

    with ApiStandIn(delay_s=2 * PATIENCE_S) as server:
        permit = Permit()
        with pytest.raises(ApiError, match="NotLeading"):
            with_client(server, permit, lambda api: write(api, permit))
