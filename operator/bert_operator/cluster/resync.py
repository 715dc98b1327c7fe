"""Resync: compares the index's BertPretrainJobs with a fresh list, and enqueues all of them.

kopf's watch can lose objects (after 410 Gone it lists again and cannot know what was deleted in between), and a watch
can die silently. Jobs that are missing from the list are dropped. A change that one resync saw and that the watch has
not delivered by the next means that the watch lags: readiness uses this to tell a dead watch from a quiet cluster, and
the resync fetches the job itself, so that a dead watch delays jobs but loses none.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from bert_operator.cluster.client import ApiClient, ApiError
from bert_operator.cluster.index import Index
from bert_operator.cluster.object_summaries import read_version
from bert_operator.cluster.paths import job_path, path_of
from bert_operator.cluster.settings import Settings
from bert_operator.names import JobRef

KIND = "BertPretrainJob"
_LISTS_AT_ONCE = 8
"""Of the client's requests side by side; reconciles need the others."""
JOBS_PER_PAGE = 100
"""Metadata alone. With annotations of 256 KiB, and as much again about who manages them, a page has fewer."""

_log = logging.getLogger(__name__)


class _Undelivered(NamedTuple):
    """A change that the watch has not delivered."""

    version: int
    since_s: float


class Resyncer:
    """Compares the cache with fresh lists, and measures how far the watch lags behind."""

    def __init__(
        self,
        api: ApiClient,
        index: Index,
        settings: Settings,
        enqueue: Callable[[JobRef], None],
        on_resync: Callable[[float], None],
    ) -> None:
        """Expect nothing of the watch yet.

        Args:
            api: The API server.
            index: What is known of the cluster.
            settings: The operator's.
            enqueue: Queues a job.
            on_resync: Called with the time after every complete resync.
        """
        self._api = api
        self._index = index
        self._settings = settings
        self._enqueue = enqueue
        self._on_resync = on_resync
        self._undelivered: dict[str, _Undelivered] = {}

    async def run(self) -> None:
        """Resync periodically until cancelled."""
        while True:
            # Pause first: the service has completed a resync when it starts this loop.
            await asyncio.sleep(self._settings.sweep_seconds)
            try:
                await self.resync()
            except ApiError as error:
                _log.warning("The resync failed (%s); the next one is in %.0f s", error, self._settings.sweep_seconds)

    async def resync(self) -> None:
        """Compare everything once. Raises ApiError."""
        # Taken before the list: a job that is created while its pages are read is missing from it, and not gone.
        before = list(self._index.known(KIND))
        listed = await self._list()
        for namespace, name, uid, _ in before:
            if uid not in listed:
                _log.info("%s %s/%s is gone; its watch delivered no deletion", KIND, namespace, name)
                # Queued as by its watch: whoever remembers something about it learns that it is gone.
                if (ref := self._index.drop_uid(KIND, namespace, name, uid)) is not None:
                    self._enqueue(ref)
        now_s, known, undelivered_before = time.monotonic(), self._versions(), self._undelivered
        # What is still missing keeps the version and the time at which it was first missed: lag_s counts from there.
        self._undelivered = {
            uid: undelivered_before.get(uid, _Undelivered(version, now_s))
            for uid, (_, version) in listed.items()
            if uid in undelivered_before or known.get(uid, -1) < version
        }
        # Missing once is normal, the watch may just be behind. With an API server that took half a minute per call,
        # fetching all that was missing at the start once went on for an hour and a half after the watch had caught up.
        for uid in self._undelivered.keys() & undelivered_before.keys():
            ref, version = listed[uid]
            # Each fetch yields to the loop, on which the watch may deliver the rest.
            if uid in self._undelivered and not self._knows(ref, uid, version):
                await self._fetch(ref)
        for ref in self._index.jobs():
            self._enqueue(ref)
        self._on_resync(time.time())

    def delivered(self, body: Mapping[str, Any]) -> None:
        """Note a change that the watch delivered."""
        uid = body.get("metadata", {}).get("uid", "")
        if uid in self._undelivered and self._undelivered[uid].version <= read_version(body):
            del self._undelivered[uid]

    def lag_s(self) -> float:
        """Return for how long the watch has missed a change; 0 if it has delivered all."""
        return max((time.monotonic() - change.since_s for change in self._undelivered.values()), default=0.0)

    def _knows(self, ref: JobRef, uid: str, version: int) -> bool:
        summary = self._index.job(ref)
        return summary is not None and summary.uid == uid and summary.version >= version

    async def _fetch(self, ref: JobRef) -> None:
        """Read a job that the watch has not delivered."""
        try:
            self._index.put_job(await self._api.get(job_path(ref)))
        except ApiError as error:
            if error.status != 404:  # the next resync drops it
                raise

    def _versions(self) -> dict[str, int]:
        return {uid: version for _, _, uid, version in self._index.known(KIND)}

    async def _list(self) -> dict[str, tuple[JobRef, int]]:
        """Return all jobs and their versions by uid."""
        slots = asyncio.Semaphore(_LISTS_AT_ONCE)

        async def list_in_slot(namespace: str) -> dict[str, tuple[JobRef, int]]:
            async with slots:
                return await self._list_namespace(namespace)

        try:
            # A task group cancels the other lists when one fails; they would run on beside the next resync.
            async with asyncio.TaskGroup() as lists:
                found = [lists.create_task(list_in_slot(namespace)) for namespace in self._settings.namespaces or ("",)]
        except ExceptionGroup as failed:
            # Unwrapped: callers handle ApiError, and would let a group end the process.
            raise failed.exceptions[0] from None
        return {uid: job for jobs in found for uid, job in jobs.result().items()}

    async def _list_namespace(self, namespace: str) -> dict[str, tuple[JobRef, int]]:
        """Return the same for one namespace; empty: all."""
        jobs = {}
        async for page in self._api.pages(path_of(KIND, namespace), JOBS_PER_PAGE, metadata_only=True):
            for item in page.get("items") or ():
                metadata = item["metadata"]
                ref = JobRef(metadata["namespace"], metadata["name"])
                jobs[metadata["uid"]] = ref, int(metadata["resourceVersion"])
            del page
        return jobs
