"""Compares the BertPretrainJobs that are known with those that there are, and has all of them looked at again.

kopf's watch can lose objects (after 410 Gone it lists again and cannot tell what vanished meanwhile), and a watch
can die silently. What is gone is forgotten. A change that one sweep has seen and that the watch has not brought by
the next means that the watch is late: by that readiness tells a dead watch from a quiet cluster, and the sweep fetches
the job itself, so that a watch that stays dead costs time and no job.
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
"""Of the client's requests; looks at jobs need the others."""
JOBS_PER_PAGE = 100
"""Metadata alone; annotations may be 256 KiB, and are never kept."""

_log = logging.getLogger(__name__)


class _Owed(NamedTuple):
    """A change that the watch has not brought."""

    version: int
    since_s: float


class Resyncer:
    """Remembers what the watch has not brought yet, and since when."""

    def __init__(
        self,
        api: ApiClient,
        index: Index,
        settings: Settings,
        enqueue: Callable[[JobRef], None],
        on_resync: Callable[[float], None],
    ) -> None:
        """Enqueue: has a job looked at. on_resync: is told the time of every finished sweep."""
        self._api = api
        self._index = index
        self._settings = settings
        self._enqueue = enqueue
        self._on_resync = on_resync
        self._owed: dict[str, _Owed] = {}

    async def run(self) -> None:
        """Sweep until cancelled."""
        while True:
            await asyncio.sleep(self._settings.sweep_seconds)
            try:
                await self.sweep()
            except ApiError as error:
                _log.warning("The sweep was not finished (%s)", error)

    async def sweep(self) -> None:
        """Compare everything once. Raises ApiError."""
        # Only what was known before the list was made can be missing from it.
        before = list(self._index.known(KIND))
        listed = await self._list()
        for namespace, name, uid, _ in before:
            if uid not in listed:
                _log.info("%s %s/%s is gone; no watch said so", KIND, namespace, name)
                self._index.drop_uid(KIND, namespace, name, uid)
        now_s, known, owed_before = time.monotonic(), self._versions(), self._owed
        self._owed = {
            uid: owed_before.get(uid, _Owed(version, now_s))
            for uid, (_, version) in listed.items()
            if uid in owed_before or known.get(uid, -1) < version
        }
        for uid in self._owed.keys() & owed_before.keys():
            ref, version = listed[uid]
            # The watch goes on bringing them meanwhile.
            if uid in self._owed and not self._knows(ref, uid, version):
                await self._fetch(ref)
        for ref in self._index.jobs():
            self._enqueue(ref)
        self._on_resync(time.time())

    def brought(self, body: Mapping[str, Any]) -> None:
        """Take note of what the watch has brought."""
        uid = body.get("metadata", {}).get("uid", "")
        if uid in self._owed and self._owed[uid].version <= read_version(body):
            del self._owed[uid]

    def lag_s(self) -> float:
        """Return for how long the watch has owed a change; 0 where it owes none."""
        return max((time.monotonic() - owed.since_s for owed in self._owed.values()), default=0.0)

    def _knows(self, ref: JobRef, uid: str, version: int) -> bool:
        summary = self._index.job(ref)
        return summary is not None and summary.uid == uid and summary.version >= version

    async def _fetch(self, ref: JobRef) -> None:
        """Get what the watch owes."""
        try:
            self._index.put_job(await self._api.get(job_path(ref)))
        except ApiError as error:
            if error.status != 404:  # the next sweep forgets what is gone
                raise

    def _versions(self) -> dict[str, int]:
        return {uid: version for _, _, uid, version in self._index.known(KIND)}

    async def _list(self) -> dict[str, tuple[JobRef, int]]:
        """Return all jobs and their versions by their uids."""
        turns = asyncio.Semaphore(_LISTS_AT_ONCE)

        async def list_in_turn(namespace: str) -> dict[str, tuple[JobRef, int]]:
            async with turns:
                return await self._list_namespace(namespace)

        try:
            # Where one fails the others are not left running: the next sweep would begin beside them.
            async with asyncio.TaskGroup() as lists:
                found = [lists.create_task(list_in_turn(namespace)) for namespace in self._settings.namespaces or ("",)]
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None
        return {uid: job for jobs in found for uid, job in jobs.result().items()}

    async def _list_namespace(self, namespace: str) -> dict[str, tuple[JobRef, int]]:
        """Return the same of one namespace; empty: of all."""
        jobs, resume = {}, ""
        while True:
            page = await self._api.list_metadata(path_of(KIND, namespace), resume=resume, limit=JOBS_PER_PAGE)
            for item in page.get("items") or ():
                metadata = item["metadata"]
                ref = JobRef(metadata["namespace"], metadata["name"])
                jobs[metadata["uid"]] = ref, int(metadata["resourceVersion"])
            resume = page.get("metadata", {}).get("continue", "")
            if not resume:
                return jobs
