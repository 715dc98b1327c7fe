"""Resync: lists the BertPretrainJobs again and again, beside kopf's watch, and queues all of them.

kopf leaves two things open (docs/adr/0007). After 410 Gone it lists again and compares nothing: a job that was deleted
in between stays known. A watch that died silently it reopens, but where the new one is dead too, nobody learns of it.
So every list drops what is gone, as after 410 Gone of any other kind, and brings what is new: a dead watch delays jobs
but loses none. Readiness tells a dead watch from a quiet cluster by what a list has brought and the watch has not.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from bert_operator.cluster.client import ApiClient
from bert_operator.cluster.index import Index
from bert_operator.cluster.reflector import Reflector
from bert_operator.cluster.settings import Settings
from bert_operator.names import KIND, JobRef


class Resync(Reflector):
    """A reflector whose stream is kopf's: it only lists, the jobs of one namespace or of all."""

    def __init__(
        self, api: ApiClient, index: Index, settings: Settings, namespace: str, enqueue: Callable[[JobRef], None]
    ) -> None:
        """Expect nothing of the watch yet.

        Args:
            api: The API server.
            index: What is known of the cluster.
            settings: The operator's.
            namespace: Empty for all.
            enqueue: Queues a job.
        """
        super().__init__(api, index, KIND, namespace, self._note_news, lambda _: None, silence_s=0.0)
        self.listed_at_s = 0.0
        """When the last list was complete, in seconds since 1970."""
        self._sweep_s = settings.sweep_seconds
        self._queue_job = enqueue
        self._undelivered: dict[JobRef, float] = {}
        """Since when the watch owes a change."""

    def delivered(self, ref: JobRef) -> None:
        """Note that the watch told of a job: it lives."""
        self._undelivered.pop(ref, None)

    def lag_s(self) -> float:
        """Return for how long the watch has missed a change; 0 if it has delivered all."""
        return max((time.monotonic() - since_s for since_s in self._undelivered.values()), default=0.0)

    async def _follow(self) -> None:
        """Queue all jobs, and pause until the next list is due."""
        for ref in self._index.jobs():
            if self._namespace in ("", ref.namespace):
                self._queue_job(ref)
        self.listed_at_s = time.time()
        await asyncio.sleep(self._sweep_s)
        self._version = ""

    def _note_news(self, ref: JobRef) -> None:
        """Queue a job of which a list told something new."""
        if self._index.job(ref) is None:
            # Who remembers something about it learns that it is gone. The watch may never tell.
            self._undelivered.pop(ref, None)
        else:
            self._undelivered.setdefault(ref, time.monotonic())
        self._queue_job(ref)
