"""Reads the nodes below running jobs, one at a time, and puts what is wrong with them into the index.

By ``get`` alone, and only those with a pod of ours: the operator needs no list of the cluster's nodes. Without the
right, as in an installation for single namespaces, it goes on without them: kubelet's own words in pods remain.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable

from bert_operator.cluster.client import ApiClient, ApiError
from bert_operator.cluster.index import Index
from bert_operator.cluster.paths import path_of
from bert_operator.names import JobRef

ROUND_S = 30.0
"""A node that does not answer is marked after 40 s; conditions of others change within minutes."""
READS_PER_SECOND = 10.0
AFTER_REFUSAL_S = 600.0
_NEWEST_WITHIN_S = 5.0
"""How old an answer may be, and how long one may take, when an attempt has failed."""

_log = logging.getLogger(__name__)


class NodeReader:
    """Keeps the nodes of running pods in the index."""

    def __init__(
        self, api: ApiClient, index: Index, enqueue: Callable[[JobRef], None], *, is_allowed: bool = True
    ) -> None:
        """Know no node.

        Args:
            api: The API server.
            index: What is known of the cluster.
            enqueue: Queues a job below which something has changed.
            is_allowed: Whether nodes may be read at all.
        """
        self._api, self._index, self._enqueue = api, index, enqueue
        self._refused_until_s = 0.0 if is_allowed else math.inf
        self._read_at_s: dict[str, float] = {}

    async def run(self) -> None:
        """Read until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            began_at_s = loop.time()
            wanted = self._index.nodes_of_pods()
            self._index.keep_nodes(wanted)
            for gone in self._read_at_s.keys() - wanted:
                del self._read_at_s[gone]
            for node in sorted(wanted):
                if loop.time() < self._refused_until_s:
                    break
                await self._read(node)
                await asyncio.sleep(1 / READS_PER_SECOND)
            await asyncio.sleep(max(1.0, began_at_s + ROUND_S - loop.time()))

    async def refresh(self, node: str) -> None:
        """Read a node on which an attempt has failed, unless that was just done; never takes long, raises nothing."""
        now_s = asyncio.get_running_loop().time()
        if now_s < self._refused_until_s or now_s - self._read_at_s.get(node, -_NEWEST_WITHIN_S) < _NEWEST_WITHIN_S:
            return
        try:
            async with asyncio.timeout(_NEWEST_WITHIN_S):
                await self._read(node)
        except TimeoutError:
            # The attempt's own words have to do: a slow API server must not keep the next attempt from its start.
            _log.info("Node %s: no answer within %.0f s", node, _NEWEST_WITHIN_S)

    async def _read(self, node: str) -> None:
        loop = asyncio.get_running_loop()
        try:
            body = await self._api.get(path_of("Node", None, node))
        except ApiError as error:
            if error.status in (401, 403):
                _log.info(
                    "Nodes cannot be read (%s); their conditions are not looked at for %.0f s", error, AFTER_REFUSAL_S
                )
                self._refused_until_s = loop.time() + AFTER_REFUSAL_S
            elif error.status == 404:
                self._note(node, {})  # gone, and its pods will be
            else:
                _log.debug("Node %s: %s", node, error)
            return
        except Exception:
            # One bad answer must not end the process.
            _log.exception("Node %s cannot be read", node)
            return
        self._note(node, body)

    def _note(self, node: str, body: dict[str, object]) -> None:
        self._read_at_s[node] = asyncio.get_running_loop().time()
        for ref in self._index.put_node(node, body):
            self._enqueue(ref)
