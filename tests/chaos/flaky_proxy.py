"""Stands between the operator and its API server and misbehaves on request: plain HTTP in, HTTPS out.

A ``Fault`` meets the requests that it is meant for, as often as it says, and holds, refuses, or delays them. Watches
can be cut off, silenced (open, without a word, as behind a broken load balancer) or told that their version is gone.
What passed is on record. Runs in a thread of its own; everything may be called from tests' threads.
"""

from __future__ import annotations

import asyncio
import json
import math
import ssl
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import aiohttp
from aiohttp import web

from served import Served, refusal

WRITES = ("POST", "PATCH", "PUT", "DELETE")
HOP_BY_HOP = frozenset({"connection", "host", "content-length", "transfer-encoding", "content-encoding", "keep-alive"})


class Request(NamedTuple):
    """One request that came in."""

    method: str
    path: str
    query: Mapping[str, str]
    document: dict[str, Any]

    @property
    def is_watch(self) -> bool:
        """Whether it stays open to hear of changes."""
        return self.query.get("watch") == "true"

    @property
    def is_write(self) -> bool:
        """Whether it changes something."""
        return self.method in WRITES


Match = Callable[[Request], bool]


@dataclass
class Fault:
    """What goes wrong, from the ``nth`` matching request on, ``times`` times (0: until it is removed)."""

    match: Match
    how: Literal["hold before", "hold after", "refuse", "delay", "break", "garble"]
    """hold: the request does not reach the API server, or its answer not the operator, until release(). delay: it goes
    on after delay_s, or once it is released. break: the connection ends instead of an answer that the API server gave.
    garble: a page that is no JSON comes instead, from somebody else."""
    nth: int = 1
    times: int = 0
    status: int = 500
    headers: Mapping[str, str] = field(default_factory=dict)
    delay_s: float = 0.0
    met: int = 0
    """Requests that it has met so far, those before the nth included."""
    reached: threading.Event = field(default_factory=threading.Event)
    """Set once it has acted; for a hold after, once the API server has answered."""
    released: threading.Event = field(default_factory=threading.Event)

    is_discarded: bool = False

    def release(self) -> None:
        """Let go of what is held, and hold nothing more."""
        self.released.set()

    def discard(self) -> None:
        """Lose what is held: as if it had never been sent, or its answer never arrived."""
        self.is_discarded = True
        self.release()

    def takes(self, request: Request) -> bool:
        """Tell whether this request is its victim, and count it."""
        if self.released.is_set() or not self.match(request):
            return False
        self.met += 1
        return self.nth <= self.met and (not self.times or self.met < self.nth + self.times)


class FlakyProxy(Served):
    """``with FlakyProxy(url, ca_file) as proxy: ... proxy.url``."""

    def __init__(self, url: str, ca_file: Path) -> None:
        super().__init__()
        self._upstream, self._ca_file = url, ca_file
        self.faults: list[Fault] = []
        self.requests: list[Request] = []
        self.are_watches_mute = False
        self._watches: dict[asyncio.Transport, bool] = {}  # and whether it is mute
        self._gone = 0

    def __exit__(self, *_: object) -> None:
        self.clear()
        super().__exit__()

    @asynccontextmanager
    async def surroundings(self) -> AsyncIterator[None]:
        tls = ssl.create_default_context(cafile=str(self._ca_file))
        connector = aiohttp.TCPConnector(ssl=tls, limit=0)
        no_limit = aiohttp.ClientTimeout(total=None)
        async with aiohttp.ClientSession(connector=connector, timeout=no_limit) as self._session:
            yield

    def add(self, fault: Fault) -> Fault:
        """Have a fault count from now on."""
        self.faults.append(fault)
        return fault

    def clear(self) -> None:
        """Let go of everything that is held, and misbehave no more. What was made mute stays so until it ends."""
        for fault in self.faults:
            fault.release()
        self.faults = []
        self.are_watches_mute = False

    def cut_watches(self) -> int:
        """End the connections of all open watches in the middle; return how many there were."""
        cut = list(self._watches)
        for transport in cut:
            self.loop.call_soon_threadsafe(transport.abort)
        return len(cut)

    def mute_watches(self) -> int:
        """Let the watches that are open stay open without a word, for ever; return how many there are."""
        muted = list(self._watches)
        self._watches.update(dict.fromkeys(muted, True))
        return len(muted)

    def expire_watches(self, count: int) -> None:
        """Tell the next so many watches that are opened that their version is gone (410)."""
        self._gone = count

    def writes(self, match: Match = lambda _: True) -> list[Request]:
        """Return the writes that came in so far."""
        return [request for request in list(self.requests) if request.is_write and match(request)]

    async def answer(self, incoming: web.BaseRequest) -> web.StreamResponse:
        body = await incoming.read()
        request = Request(incoming.method, incoming.path, dict(incoming.query), _document(body))
        self.requests.append(request)
        fault = next((fault for fault in list(self.faults) if fault.takes(request)), None)
        if fault is not None and fault.how == "refuse":
            fault.reached.set()
            return web.json_response(refusal(fault.status), status=fault.status, headers=dict(fault.headers))
        if fault is not None and fault.how == "garble":
            fault.reached.set()
            return web.Response(text="<html>Please log in</html>", content_type="text/html")
        if fault is not None and fault.how == "delay":
            await _hold(fault, fault.delay_s)
        if fault is not None and fault.how == "hold before":
            await _hold(fault)
            if fault.is_discarded:
                return _abort(incoming)
        if request.is_watch and self._gone > 0:
            self._gone -= 1
            event = {"type": "ERROR", "object": refusal(410)}
            return web.Response(body=json.dumps(event).encode() + b"\n", content_type="application/json")
        try:
            return await self._forward(incoming, body, request, fault)
        except aiohttp.ClientError:  # the API server is away
            return _abort(incoming)

    async def _forward(
        self, incoming: web.BaseRequest, body: bytes, request: Request, fault: Fault | None
    ) -> web.StreamResponse:
        url = self._upstream + incoming.raw_path
        headers = _kept(incoming.headers)
        async with self._session.request(incoming.method, url, data=body or None, headers=headers) as answer:
            if request.is_watch and answer.status == 200:
                return await self._follow(incoming, answer)
            data = await answer.read()
            if fault is not None and fault.how == "hold after":
                await _hold(fault)
                if fault.is_discarded:
                    return _abort(incoming)
            if fault is not None and fault.how == "break":
                fault.reached.set()
                return _abort(incoming)
            return web.Response(status=answer.status, headers=_kept(answer.headers), body=data)

    async def _follow(self, incoming: web.BaseRequest, answer: aiohttp.ClientResponse) -> web.StreamResponse:
        """Pass a watch on until either side ends it."""
        response = web.StreamResponse(status=answer.status, headers=_kept(answer.headers))
        transport = incoming.transport
        assert isinstance(transport, asyncio.Transport)
        await response.prepare(incoming)
        self._watches[transport] = self.are_watches_mute
        try:
            async for data in answer.content.iter_any():
                if not self._watches[transport]:
                    await response.write(data)
            while self._watches[transport] and not transport.is_closing():
                await asyncio.sleep(0.1)  # the end is not heard of either
        except (aiohttp.ClientError, ConnectionError):
            transport.abort()
        finally:
            self._watches.pop(transport, None)
        return response


async def _hold(fault: Fault, max_s: float = math.inf) -> None:
    fault.reached.set()
    until_s = time.monotonic() + max_s
    while not fault.released.is_set() and time.monotonic() < until_s:
        await asyncio.sleep(0.01)


def _abort(incoming: web.BaseRequest) -> web.Response:
    """End a connection without an answer; what is returned goes nowhere."""
    if isinstance(incoming.transport, asyncio.Transport):
        incoming.transport.abort()
    return web.Response()


def _kept(headers: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in headers.items() if key.lower() not in HOP_BY_HOP | {"accept-encoding"}}


def _document(body: bytes) -> dict[str, Any]:
    try:
        document = json.loads(body)
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}
