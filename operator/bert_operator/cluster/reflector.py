"""Keeps the index in step with one kind of object: list, then watch, as client-go's reflector does.

For children, pods and Warning events, of which there are many and of which only a few fields matter: every object is
reduced to its summary while it is read, so that a list of thousands is never in memory as a whole. After 410 Gone it
lists again and drops what was deleted in between. A stream that is silent for longer than the API server's bookmarks
are apart counts as dead and is reopened. Jobs it only lists (``resync``).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Callable
from typing import Any

from bert_operator.cluster.client import MAX_PAUSE_S, TOO_LARGE, ApiClient, ApiError
from bert_operator.cluster.index import Index
from bert_operator.cluster.paths import path_of
from bert_operator.names import JobRef

Document = dict[str, Any]

PAGE_SIZE = 50
"""Small: a page is in memory as a whole, and the pods of a large job are large objects."""
STREAM_SECONDS = 300
"""After which the API server ends a stream; the next one continues from its last resourceVersion."""
FIRST_PAUSE_S = 0.2
REFUSED_PAUSE_S = 15.0
"""The longest pause where an API server answers that it will not: rights and definitions come by hand."""

_log = logging.getLogger(__name__)


class Gone(Exception):
    """HTTP 410: the requested resource version has been compacted."""


class Reflector:
    """Lists and watches one kind in one namespace, or in all."""

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
        """Start out of sync.

        Args:
            api: The API server.
            index: What to keep up to date.
            kind: Of the objects.
            namespace: Empty for all.
            enqueue: Queues the job of an object that changed.
            watched: Called with the kind of every change.
            silence_s: Seconds of silence after which a stream counts as dead.
            labels: Label selector.
            fields: Field selector.
        """
        self.kind = kind
        self._silence_s = silence_s
        self.synced = asyncio.Event()
        """Set once the initial list is complete."""
        self._api = api
        self._index = index
        self._namespace = namespace
        self._path = path_of(kind, namespace)
        self._enqueue = enqueue
        self._watched = watched
        self._query = {key: value for key, value in (("labelSelector", labels), ("fieldSelector", fields)) if value}
        self._put = {"Pod": index.put_pod, "Event": index.put_warning, "BertPretrainJob": index.put_job}.get(
            kind, index.put_child
        )
        self._answered_at_s = time.monotonic()
        self._is_answered = True
        self._version = ""
        """Of the last change that was applied: where a stream breaks, the next one goes on behind it."""

    @property
    def silent_s(self) -> float:
        """Seconds without watch events while the API server answers; 0 while it does not."""
        return time.monotonic() - self._answered_at_s if self._is_answered else 0.0

    async def run(self) -> None:
        """List and watch until cancelled."""
        pause_s = FIRST_PAUSE_S
        while True:
            try:
                if not self._version:
                    self._version = await self._list()
                    self.synced.set()
                await self._follow()
                pause_s = FIRST_PAUSE_S
            except Gone:
                _log.info("410 Gone: changes of %s since %s are compacted; listing again", self.kind, self._version)
                self._version = ""
            except ApiError as error:
                if error.status == 404:
                    # MPIJobs are not served until mpi-operator is installed, and single-pod jobs do not need it.
                    self.synced.set()
                if error.status == 404 or error.reason == TOO_LARGE:
                    # The second: the same change would come again. A list is read in as small pages as it takes.
                    self._version = ""
                self._is_answered = False
                if error.status not in (401, 403, 404):
                    pause_s = min(pause_s, MAX_PAUSE_S)
                _log.warning("%s: %s; retry in %.1f s", self._path, error, pause_s)
                await asyncio.sleep(error.retry_after_s or pause_s * random.uniform(0.8, 1.2))  # noqa: S311
                pause_s = min(2 * pause_s, REFUSED_PAUSE_S)

    async def _list(self) -> str:
        """Read the whole list and return its version; drop what is not in it."""
        before = {uid: (namespace, name, version) for namespace, name, uid, version in self._known()}
        seen: set[str] = set()
        version = ""
        # Without a resourceVersion: a cached list of the API server (resourceVersion=0) may be older than our own
        # writes.
        async for page in self._api.pages(self._path, PAGE_SIZE, self._query):
            self._note_answer()
            version = str(page["metadata"]["resourceVersion"])
            for item in page.get("items") or ():
                seen.add(item["metadata"]["uid"])
                self._apply(item)
            del page
            await asyncio.sleep(0)
        for uid, (namespace, name, known_version) in before.items():
            # All pages show the version of the first one. An object that is newer than that, because this process
            # created it meanwhile, is missing from the list and still exists.
            if uid not in seen and known_version <= int(version):
                self._enqueue_if_ours(self._index.drop_uid(self.kind, namespace, name, uid))
        return version

    def _known(self) -> list[tuple[str, str, str, int]]:
        if self.kind == "Event":
            return []
        return [item for item in self._index.known(self.kind) if self._namespace in ("", item[0])]

    async def _follow(self) -> None:
        """Apply changes until the stream ends. Raises Gone and ApiError."""
        seconds = str(int(STREAM_SECONDS * random.uniform(1, 1.2)))  # noqa: S311 - spreads reconnections
        query = {**self._query, "watch": "true", "allowWatchBookmarks": "true", "timeoutSeconds": seconds}
        async with contextlib.aclosing(
            self._api.stream(self._path, silence_s=self._silence_s, resourceVersion=self._version, **query)
        ) as changes:
            async for change in changes:
                self._note_answer()
                kind, body = change.get("type"), change.get("object") or {}
                if kind == "ERROR":
                    if body.get("code") == 410:
                        raise Gone
                    raise ApiError(int(body.get("code") or 500), str(body.get("reason")), str(body.get("message")))
                if kind == "DELETED":
                    self._watched(self.kind)
                    self._enqueue_if_ours(self._index.drop({**body, "kind": self.kind}))
                elif kind in ("ADDED", "MODIFIED"):
                    self._watched(self.kind)
                    self._apply(body)
                # Bookmarks carry nothing but a version: without them a quiet watch would continue from a version that
                # has been compacted.
                self._version = body["metadata"]["resourceVersion"]

    def _apply(self, body: Document) -> None:
        # Items of a list carry no kind.
        body["kind"] = self.kind
        self._enqueue_if_ours(self._put(body))

    def _enqueue_if_ours(self, ref: JobRef | None) -> None:
        if ref is not None:
            self._enqueue(ref)

    def _note_answer(self) -> None:
        self._answered_at_s = time.monotonic()
        self._is_answered = True
