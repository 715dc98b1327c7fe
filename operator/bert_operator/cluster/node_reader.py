"""Reads the nodes below running jobs, one at a time, and puts what is wrong with them into the index.

By ``get`` alone, and only those with a pod of ours: the operator needs no list of the cluster's nodes. Without the
right, as in an installation for single namespaces, it goes on without them: kubelet's own words in pods remain. What
was said of a node counts until it cannot be asked any more: it may have been fixed since.
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
AFTER_REFUSAL_S = 15.0
"""While nodes are refused one of them is asked for so often, so that rights that are given back are soon noticed."""
_STALE_ROUNDS = 3
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
        self._round_s = ROUND_S
        """How long the last one took, with its pause."""

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
            self._forget_stale()
            refused_s = self._refused_until_s - loop.time()
            pause_s = min(ROUND_S, refused_s) if refused_s > 0 else began_at_s + ROUND_S - loop.time()
            await asyncio.sleep(max(1.0, pause_s))
            self._round_s = max(ROUND_S, loop.time() - began_at_s)

    async def refresh(self, node: str) -> None:
        """Read a node on which an attempt failed, unless just done; fast, never raises."""
        now_s = asyncio.get_running_loop().time()
        self._forget_stale()
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
                if not self._refused_until_s:
                    _log.info("Nodes cannot be read (%s); their conditions are not looked at", error)
                self._refused_until_s = loop.time() + AFTER_REFUSAL_S
                # 401: a token is rotated, and the next request has the new one.
                for known in list(self._read_at_s) if error.status == 403 else ():
                    self._forget(known)
            elif error.status == 404:
                self._note(node, {})  # gone, and its pods will be; or it only joins, so that this is no recent answer
                self._read_at_s[node] -= _NEWEST_WITHIN_S
            else:
                _log.debug("Node %s: %s", node, error)
            return
        except Exception:
            # One bad answer must not end the process.
            _log.exception("Node %s cannot be read", node)
            return
        self._refused_until_s = 0.0
        self._note(node, body)

    def _forget_stale(self) -> None:
        """Forget what was said of nodes that could not be asked for several rounds."""
        oldest_s = asyncio.get_running_loop().time() - _STALE_ROUNDS * self._round_s
        for node in [node for node, at_s in self._read_at_s.items() if at_s < oldest_s]:
            self._forget(node)

    def _forget(self, node: str) -> None:
        del self._read_at_s[node]
        for ref in self._index.put_node(node, {}):
            self._enqueue(ref)

    def _note(self, node: str, body: dict[str, object]) -> None:
        self._read_at_s[node] = asyncio.get_running_loop().time()
        for ref in self._index.put_node(node, body):
            self._enqueue(ref)
