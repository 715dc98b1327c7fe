"""The page of metrics costs the operator little, however often and by however many it is asked for."""

from __future__ import annotations

import asyncio

import aiohttp
from aiohttp import web

from bert_operator.cluster.health import MAX_SCRAPES, MetricsPage
from patience import PATIENCE_S

LARGE = b"x" * (64 << 20)
"""More than a connection takes before its reader reads."""


def asked(page: bytes, clients: int) -> tuple[list[int], int]:
    """Ask from so many clients, of whom nobody reads until all have their status; return these and the renderings."""
    rendered: list[bytes] = []

    def render() -> bytes:
        rendered.append(page)
        return page

    async def ask() -> list[int]:
        application = web.Application()
        application.router.add_get("/metrics", MetricsPage(render).show)
        runner = web.AppRunner(application)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0]
        try:
            async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
                answers = [await session.get(f"http://{host}:{port}/metrics") for _ in range(clients)]
                statuses = [answer.status for answer in answers]
                for answer in answers:
                    assert answer.status != 200 or await answer.read() == page
            return statuses
        finally:
            await runner.cleanup()

    return asyncio.run(asyncio.wait_for(ask(), PATIENCE_S)), len(rendered)


def test_it_is_rendered_once_for_all_who_ask_at_the_same_time() -> None:
    statuses, renderings = asked(b"bert_operator_leader 1.0\n", 20)
    assert statuses == [200] * 20
    assert renderings < 20


def test_beyond_a_few_readers_that_are_slow_it_is_refused() -> None:
    statuses, _ = asked(LARGE, MAX_SCRAPES + 3)
    assert statuses == [200] * MAX_SCRAPES + [503] * 3
