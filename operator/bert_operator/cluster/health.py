"""The operator's HTTP pages: /metrics for Prometheus, /healthz and /readyz for kubelet.

/healthz answers as long as the event loop runs: a restart helps against nothing else, and would repeat the initial
lists of an operator that is slow already. /readyz reports whether work makes progress: the initial lists are complete,
no watch lags, and no job waits for too long.
"""

from __future__ import annotations

import asyncio
import errno
import math
import socket
from collections.abc import Callable, Mapping

from aiohttp import web

from bert_operator.cluster.metrics import CONTENT_TYPE, Metrics
from bert_operator.cluster.settings import Settings

PAGE_AGE_S = 0.25
"""How old the page of metrics may be."""
MAX_SCRAPES = 8
"""Answered at a time."""
_BACKLOG = 128


class Health:
    """Handlers of kubelet's probes."""

    def __init__(
        self,
        watch_lag_s: Callable[[], Mapping[str, float]],
        oldest_s: Callable[[], float],
        is_ready: Callable[[], bool],
        settings: Settings,
    ) -> None:
        """Take what to check.

        Args:
            watch_lag_s: Returns for how long each watch has not delivered a change.
            oldest_s: Returns for how long the oldest job has waited.
            is_ready: Returns whether the initial lists are complete.
            settings: Has the limits.
        """
        self._max_lag_s, self._max_wait_s = settings.max_watch_lag_seconds, settings.max_wait_seconds
        self._watch_lag_s, self._oldest_s, self._is_ready = watch_lag_s, oldest_s, is_ready

    def problems(self) -> list[str]:
        """Return why the operator is not ready; empty if it is."""
        found = [] if self._is_ready() else ["starting"]
        found += [
            f"the watch on {kind} lags by {lag_s:.0f} s"
            for kind, lag_s in self._watch_lag_s().items()
            if lag_s > self._max_lag_s
        ]
        if (waited_s := self._oldest_s()) > self._max_wait_s:
            found.append(f"a job has waited for {waited_s:.0f} s")
        return found

    async def healthz(self, _: web.Request) -> web.Response:
        """Answer 200; a blocked event loop does not answer."""
        return web.Response(text="ok\n")

    async def readyz(self, _: web.Request) -> web.Response:
        """Answer 200, or 503 with the reasons."""
        problems = self.problems()
        return web.Response(status=503 if problems else 200, text="\n".join(problems or ["ok"]) + "\n")


class MetricsPage:
    """The metrics endpoint: rendered a few times a second at most, with a limit on concurrent responses.

    Rendering takes the event loop tens of milliseconds where there are many jobs. Whatever reaches the port, any pod
    without a NetworkPolicy, could ask for it all the time, until the Lease is not renewed.
    """

    def __init__(self, render: Callable[[], bytes]) -> None:
        """Have no page yet. render: returns it."""
        self._render = render
        self._page, self._rendered_at_s = b"", -math.inf
        self._scrapes = asyncio.Semaphore(MAX_SCRAPES)

    async def show(self, request: web.Request) -> web.StreamResponse:
        """Respond with the page, or with 503 if too many responses are under way."""
        if self._scrapes.locked():
            return web.Response(status=503, text="too many ask at once\n", headers={"Retry-After": "1"})
        async with self._scrapes:
            now_s = asyncio.get_running_loop().time()
            if now_s >= self._rendered_at_s + PAGE_AGE_S:
                self._page, self._rendered_at_s = self._render(), now_s
            response = web.Response(body=self._page, headers={"Content-Type": CONTENT_TYPE})
            # Here and not behind the handler: a page counts until all of it is sent.
            await response.prepare(request)
            await response.write_eof()
        return response


async def serve_http(settings: Settings, health: Health, metrics: Metrics) -> tuple[web.AppRunner, int]:
    """Start the server; return its runner, whose ``cleanup`` stops it, and the port. Raises OSError if it is taken."""
    application = web.Application()
    application.router.add_get("/metrics", MetricsPage(metrics.render).show)
    application.router.add_get("/healthz", health.healthz)
    application.router.add_get("/readyz", health.readyz)
    # Probes come every few seconds: no access log.
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    await web.SockSite(runner, listen(settings.http_host, settings.http_port)).start()
    port = runner.addresses[0][1]
    return runner, port


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket; an empty host means all addresses. Raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    if host:
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    try:
        # One socket for both families: two might get different ports where any free one is asked for.
        return socket.create_server(("::", port), family=socket.AF_INET6, backlog=_BACKLOG, dualstack_ipv6=True)
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
            raise
        return socket.create_server(("", port), backlog=_BACKLOG)  # the kernel has no IPv6
