"""An object is one line of a watch, however large it is."""

from __future__ import annotations

import asyncio
import json

from kubernetes.aio.client.configuration import Configuration

from bert_operator.cluster.client import ApiClient
from http_stand_in import Server

PODS = "/api/v1/pods"


def test_an_object_of_the_largest_size_comes_over_a_watch() -> None:
    # etcd takes 1.5 MiB, and the API server's answers are a little longer.
    change = {"type": "ADDED", "object": {"metadata": {"annotations": {"large": "x" * 1_600_000}}}}

    async def follow(server: Server) -> list[object]:
        async with ApiClient(Configuration(host=server.url)) as api:
            return [found async for found in api.stream(PODS, silence_s=10)]

    with Server() as server:
        server.files[PODS] = 2 * (json.dumps(change).encode() + b"\n")
        assert asyncio.run(follow(server)) == [change, change]
