"""The operator's HTTP pages: /metrics for Prometheus, /healthz and /readyz for kubelet.

/healthz answers as long as the event loop runs: a restart helps against nothing else, and would repeat the initial
lists of an operator that is slow already. /readyz reports whether work makes progress: the initial lists are complete,
no watch lags, and no job waits for too long.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from aiohttp import web

from bert_operator.cluster.metrics import CONTENT_TYPE, Metrics
from bert_operator.cluster.settings import Settings


class Health:
    """Answers kubelet's probes."""

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


async def serve_http(settings: Settings, health: Health, metrics: Metrics) -> tuple[web.AppRunner, int]:
    """Start the server; return its runner, whose ``cleanup`` stops it, and the port. Raises OSError if it is taken."""

    async def show_metrics(_: web.Request) -> web.Response:
        return web.Response(body=metrics.render(), headers={"Content-Type": CONTENT_TYPE})

    application = web.Application()
    application.router.add_get("/metrics", show_metrics)
    application.router.add_get("/healthz", health.healthz)
    application.router.add_get("/readyz", health.readyz)
    # Probes come every few seconds: no access log.
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, settings.http_host, settings.http_port)
    await site.start()
    port = runner.addresses[0][1]
    return runner, port
