"""Objects as large as the API server writes them come through; what is larger is refused, and holds nothing else up."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest
from kubernetes.aio.client.configuration import Configuration

from bert_operator.cluster import reflector
from bert_operator.cluster.client import MAX_BYTES, MAX_PAUSE_S, TOO_LARGE, ApiClient, ApiError
from bert_operator.cluster.index import Index
from bert_operator.cluster.reflector import FIRST_PAUSE_S, REFUSED_PAUSE_S, Reflector
from http_stand_in import Answer, Server
from patience import PATIENCE_S

Json = dict[str, Any]
PODS = "/api/v1/pods"


def pod(number: int, size: int = 0, version: int = 1) -> Json:
    """Return a pod; size: bytes of an annotation."""
    metadata = {"name": f"pod-{number}", "uid": f"uid-{number}", "namespace": "ns", "resourceVersion": str(version)}
    return {"metadata": {**metadata, "annotations": {"large": "x" * size}}}


def asked(server: Server, ask: Callable[[ApiClient], Coroutine[Any, Any, Any]]) -> Any:
    async def run() -> Any:
        async with ApiClient(Configuration(host=server.url)) as api:
            return await ask(api)

    return asyncio.run(run())


async def changes_of(api: ApiClient) -> list[Json]:
    return [found async for found in api.stream(PODS, silence_s=10)]


@pytest.mark.parametrize("size", [0, 1_600_000, 9 << 20])
def test_an_object_of_the_largest_size_comes_over_a_watch(size: int) -> None:
    # etcd takes 1.5 MiB, of which the API server writes a sign such as "<" as six bytes.
    change = {"type": "ADDED", "object": pod(1, size)}
    with Server() as server:
        server.files[PODS] = 3 * (json.dumps(change).encode() + b"\n")
        assert asked(server, changes_of) == [change] * 3


def test_a_change_and_an_answer_beyond_that_are_refused() -> None:
    with Server() as server:
        server.files[PODS] = json.dumps({"type": "ADDED", "object": pod(1, MAX_BYTES)}).encode() + b"\n"
        for ask in (changes_of, lambda api: api.get(PODS)):
            with pytest.raises(ApiError) as refused:
                asked(server, ask)
            assert (refused.value.status, refused.value.reason) == (0, TOO_LARGE)


def test_bytes_that_are_no_http_are_an_error_of_the_api_server() -> None:
    with Server() as server:
        server.plans[PODS] = [Answer(headers={"Transfer-Encoding": "chunked"}, body=b"no number\r\n", said_length=1)]
        with pytest.raises(ApiError):
            asked(server, changes_of)


def test_a_page_that_is_too_large_is_asked_for_in_halves() -> None:
    def page(count: int, size: int, resume: str = "") -> bytes:
        metadata = {"resourceVersion": "7", **({"continue": resume} if resume else {})}
        return json.dumps({"metadata": metadata, "items": [pod(each, size) for each in range(count)]}).encode()

    async def listed(api: ApiClient) -> list[int]:
        return [len(found["items"]) async for found in api.pages(PODS, 8, {"labelSelector": "a=b"})]

    with Server() as server:
        server.files[f"{PODS}?labelSelector=a%3Db&limit=8"] = page(8, MAX_BYTES // 8)
        server.files[f"{PODS}?labelSelector=a%3Db&limit=4"] = page(4, MAX_BYTES // 8, resume="more")
        server.files[f"{PODS}?labelSelector=a%3Db&limit=4&continue=more"] = page(2, 10)
        assert asked(server, listed) == [4, 2]
        server.files[f"{PODS}?labelSelector=a%3Db&limit=4"] = server.files[f"{PODS}?labelSelector=a%3Db&limit=8"]
        server.files[f"{PODS}?labelSelector=a%3Db&limit=2"] = page(2, 10)
        assert asked(server, listed) == [2]


class Streams:
    """An API server whose watches end as they are told, after the changes that they are told."""

    def __init__(self, *ends: tuple[list[int], Exception | None]) -> None:
        self._ends = list(ends)
        self.asked: list[str] = []
        """Versions from which it was watched, and "list"."""

    async def pages(self, path: str, limit: int, query: Any) -> AsyncGenerator[Json, None]:
        self.asked.append("list")
        yield {"metadata": {"resourceVersion": "10"}, "items": []}

    async def stream(
        self, path: str, *, silence_s: float, resourceVersion: str, **_: str
    ) -> AsyncGenerator[Json, None]:  # noqa: N803 - its name in the API
        self.asked.append(resourceVersion)
        if not self._ends:
            await asyncio.Event().wait()
        versions, end = self._ends.pop(0)
        for version in versions:
            yield {"type": "MODIFIED", "object": pod(1, version=version)}
        if end is not None:
            raise end


@pytest.mark.parametrize(
    ("end", "wanted"),
    [
        (ApiError(0, "ServerDisconnectedError", "broken off"), ["list", "10", "12"]),
        (None, ["list", "10", "12"]),
        (ApiError(0, TOO_LARGE, "too large"), ["list", "10", "list", "10"]),
    ],
)
def test_a_watch_goes_on_behind_the_last_change(
    end: Exception | None, wanted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reflector, "FIRST_PAUSE_S", 0.0)
    streams = Streams(([11, 12], end))

    async def watch() -> None:
        one = Reflector(streams, Index(), "Pod", "", lambda _: None, lambda _: None, silence_s=10)  # type: ignore[arg-type]
        running = asyncio.create_task(one.run())
        while len(streams.asked) < len(wanted):
            await asyncio.sleep(0)
        running.cancel()

    asyncio.run(asyncio.wait_for(watch(), PATIENCE_S))
    assert streams.asked == wanted


@pytest.mark.parametrize(
    ("status", "wanted"), [(0, MAX_PAUSE_S), (503, MAX_PAUSE_S), (429, MAX_PAUSE_S), (403, REFUSED_PAUSE_S)]
)
def test_an_api_server_that_is_away_is_asked_more_often_than_one_that_refuses(
    status: int, wanted: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []

    async def sleep(pause_s: float) -> None:
        pauses.extend([pause_s] if pause_s else [])  # 0: others have their turn

    monkeypatch.setattr(reflector, "asyncio", SimpleNamespace(**{**vars(asyncio), "sleep": sleep}))
    monkeypatch.setattr(reflector.random, "uniform", lambda *_: 1.0)
    streams = Streams(*[([], ApiError(403, "Forbidden", "no"))] * 9, *[([], ApiError(status, "Trouble", "away"))] * 9)

    async def watch() -> None:
        one = Reflector(streams, Index(), "Pod", "", lambda _: None, lambda _: None, silence_s=10)  # type: ignore[arg-type]
        running = asyncio.create_task(one.run())
        while len(pauses) < 18:
            await asyncio.sleep(0)
        running.cancel()

    asyncio.run(asyncio.wait_for(watch(), PATIENCE_S))
    assert pauses[0] == FIRST_PAUSE_S
    assert pauses[8] == REFUSED_PAUSE_S
    assert pauses[9:].count(wanted) == 9
