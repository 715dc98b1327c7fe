"""An HTTP server of a test's own, in a thread of its own, on a free port of this machine."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from contextlib import AbstractAsyncContextManager, nullcontext
from pathlib import Path
from typing import Any, ClassVar, Self

from aiohttp import web

from cluster_api import kubeconfig_of
from patience import PATIENCE_S


class Served:
    """``with ASubclass() as server: ... server.url``; it says in ``answer`` what comes back."""

    gives_up: ClassVar[bool] = False
    """Whether an answer is cancelled when whoever asked has gone."""

    def __init__(self) -> None:
        self.url = ""
        self.loop = asyncio.new_event_loop()
        self.stop = asyncio.Event()
        """Set when the end has come: whoever waits in an answer waits for this as well."""
        self._is_up = threading.Event()
        self._thread = threading.Thread(target=self._run, name=type(self).__name__, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._is_up.wait(PATIENCE_S), f"{type(self).__name__} does not listen"
        return self

    def __exit__(self, *_: object) -> None:
        self.loop.call_soon_threadsafe(self.stop.set)
        self._thread.join()

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer a request."""
        raise NotImplementedError

    def surroundings(self) -> AbstractAsyncContextManager[object]:
        """Return what has to be open while it serves."""
        return nullcontext()

    def kubeconfig(self, folder: Path) -> Path:
        """Write a kubeconfig that names it as the API server, and return its path."""
        path = folder / "kubeconfig"
        path.write_text(json.dumps(kubeconfig_of({"server": self.url}, "none")))
        return path

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self.loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        async with self.surroundings():
            server = web.Server(self.answer, access_log=None, handler_cancellation=self.gives_up)
            runner = web.ServerRunner(server, shutdown_timeout=0.1)
            await runner.setup()
            listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
            await web.SockSite(runner, listener, backlog=1024).start()
            self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            self._is_up.set()
            await self.stop.wait()
            # A connection that asyncio has accepted, and not yet begun with when its server closes, is never closed:
            # the garbage collector complains of it in another test.
            self.loop.remove_reader(listener)
            for _ in range(3):
                await asyncio.sleep(0)
            await runner.cleanup()


def refusal(status: int, reason: str = "") -> dict[str, Any]:
    """Return what an API server says where it refuses. reason: by default the usual one."""
    usual = {410: "Expired", 429: "TooManyRequests", 500: "InternalError", 503: "ServiceUnavailable"}
    why = {"code": status, "reason": reason or usual.get(status, ""), "message": "no"}
    return {"kind": "Status", "apiVersion": "v1", "status": "Failure", **why}
