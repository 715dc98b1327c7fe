"""Keeps the index equal to what the cluster holds of one kind: lists once, then follows the changes.

For children, pods and warnings, of which there are many and of which only a few fields matter: every object is cut
down to its entry while it is read, so that a list of thousands never stands in memory as a whole. After a gap
(410 Gone) it lists again and forgets what has vanished meanwhile. A stream without a word for longer than the API
server's bookmarks are apart is taken for dead and opened anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Callable
from typing import Any

from bert_operator.cluster.client import ApiClient, ApiError
from bert_operator.cluster.index import Index
from bert_operator.cluster.paths import path_of
from bert_operator.names import JobRef

Document = dict[str, Any]

PAGE_SIZE = 50
"""A pod of a large job is as large as that."""
STREAM_SECONDS = 300
"""After which the API server ends a stream; the next one goes on where it ended."""
FIRST_PAUSE_S, MAX_PAUSE_S = 0.2, 15.0

_log = logging.getLogger(__name__)


class Gone(Exception):
    """The API server no longer knows the changes since a version."""


class Reflector:
    """One kind in one namespace, or in all."""

    def __init__(
        self,
        api: ApiClient,
        index: Index,
        kind: str,
        namespace: str,
        enqueue: Callable[[JobRef], None],
        watched: Callable[[str], None],
        *,
        silence_s: float,
        labels: str = "",
        fields: str = "",
    ) -> None:
        """Namespace: empty for all. labels, fields: selectors. watched: is told the kind of every change.

        silence_s: seconds without a word after which a stream counts as dead.
        """
        self.kind = kind
        self._silence_s = silence_s
        self.synced = asyncio.Event()
        """Set once everything is known for the first time."""
        self._api = api
        self._index = index
        self._namespace = namespace
        self._path = path_of(kind, namespace)
        self._enqueue = enqueue
        self._watched = watched
        self._query = {key: value for key, value in (("labelSelector", labels), ("fieldSelector", fields)) if value}
        self._put = {"Pod": index.put_pod, "Event": index.put_warning}.get(kind, index.put_child)
        self._heard_at_s = time.monotonic()
        self._is_answered = True

    @property
    def silent_s(self) -> float:
        """Seconds without a word although the API server answers; 0 while it does not."""
        return time.monotonic() - self._heard_at_s if self._is_answered else 0.0

    async def run(self) -> None:
        """Follow until cancelled."""
        version, pause_s = "", FIRST_PAUSE_S
        while True:
            try:
                if not version:
                    version = await self._list()
                    self.synced.set()
                version = await self._follow(version)
                pause_s = FIRST_PAUSE_S
            except Gone:
                _log.info("The changes of %s since version %s are gone; listing again", self.kind, version)
                version = ""
            except ApiError as error:
                if error.status == 404:
                    # MPIJobs are unknown until mpi-operator is installed; there is nothing to wait for.
                    self.synced.set()
                    version = ""
                self._is_answered = False
                _log.warning("%s: %s; again in %.1f s", self._path, error, pause_s)
                await asyncio.sleep(error.retry_after_s or pause_s * random.uniform(0.8, 1.2))  # noqa: S311
                pause_s = min(2 * pause_s, MAX_PAUSE_S)

    async def _list(self) -> str:
        """Read everything and return its version; what is not there any more is forgotten."""
        before = {uid: (namespace, name, version) for namespace, name, uid, version in self._known()}
        query: dict[str, str]
        seen: set[str]
        query, seen, version = {**self._query, "limit": str(PAGE_SIZE)}, set(), ""
        while True:
            page = await self._api.get(self._path, **query)
            self._hear()
            version = str(page["metadata"]["resourceVersion"])
            for item in page.get("items") or ():
                seen.add(item["metadata"]["uid"])
                self._take(item)
            resume = page["metadata"].get("continue")
            del page
            if not resume:
                break
            query["continue"] = resume
            await asyncio.sleep(0)
        for uid, (namespace, name, known_version) in before.items():
            # What was written after the list was begun may be missing from it.
            if uid not in seen and known_version <= int(version):
                self._tell(self._index.drop_uid(self.kind, namespace, name, uid))
        return version

    def _known(self) -> list[tuple[str, str, str, int]]:
        if self.kind == "Event":
            return []
        return [item for item in self._index.known(self.kind) if self._namespace in ("", item[0])]

    async def _follow(self, version: str) -> str:
        """Take changes until the stream ends; return the version to go on from. Raises Gone and ApiError."""
        seconds = str(int(STREAM_SECONDS * random.uniform(1, 1.2)))  # noqa: S311 - spreads reconnections
        query = {**self._query, "watch": "true", "allowWatchBookmarks": "true", "timeoutSeconds": seconds}
        async with contextlib.aclosing(
            self._api.stream(self._path, silence_s=self._silence_s, resourceVersion=version, **query)
        ) as changes:
            async for change in changes:
                self._hear()
                kind, body = change.get("type"), change.get("object") or {}
                if kind == "ERROR":
                    if body.get("code") == 410:
                        raise Gone
                    raise ApiError(int(body.get("code") or 500), str(body.get("reason")), str(body.get("message")))
                version = body["metadata"]["resourceVersion"]
                if kind == "DELETED":
                    self._watched(self.kind)
                    self._tell(self._index.drop({**body, "kind": self.kind}))
                elif kind in ("ADDED", "MODIFIED"):
                    self._watched(self.kind)
                    self._take(body)
        return version

    def _take(self, body: Document) -> None:
        # Items of a list do not say what they are.
        body["kind"] = self.kind
        self._tell(self._put(body))

    def _tell(self, ref: JobRef | None) -> None:
        if ref is not None:
            self._enqueue(ref)

    def _hear(self) -> None:
        self._heard_at_s = time.monotonic()
        self._is_answered = True
