"""The kopf half: it watches BertPretrainJobs, puts them into the index and names those to look at.

Handlers decide nothing and write nothing: kopf never tries an ``on.event`` handler again, which is why there is
nothing in them that can fail. Everything else is watched by ``reflector`` (docs/adr/0007).
"""

from __future__ import annotations

import asyncio
import itertools
import signal
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

import kopf

from bert_operator.api.crd import PLURAL
from bert_operator.cluster.client import REQUEST_TIMEOUT_S
from bert_operator.cluster.index import Index
from bert_operator.cluster.settings import Settings
from bert_operator.names import API_GROUP, API_VERSION, JobRef

Body = Mapping[str, Any]

JOBS_PER_PAGE = 10
"""A job may be 256 KiB, its annotations as much again, its status a little more: some 8 MB a page at most."""


def build_registry(
    index: Index, enqueue: Callable[[JobRef], None], watched: Callable[[Body], None]
) -> kopf.OperatorRegistry:
    """Return the handlers. watched: is told every change."""
    registry = kopf.OperatorRegistry()

    @kopf.on.event(API_GROUP, API_VERSION.partition("/")[2], PLURAL, registry=registry)
    async def take(event: Mapping[str, Any], **_: Any) -> None:
        body = event["object"]
        watched(body)
        ref = index.drop(body) if event["type"] == "DELETED" else index.put_job(body)
        if ref is not None:
            enqueue(ref)

    @kopf.on.login(registry=registry)
    def log_in(**options: Any) -> kopf.ConnectionInfo | None:
        return kopf.login_with_service_account(**options) or kopf.login_with_kubeconfig(**options)

    return registry


class EndlessBackOffs:
    """Seconds before each further try. Kopf gives up where a list of them ends."""

    def __iter__(self) -> Iterator[float]:
        return itertools.chain([0.2, 0.5, 1, 1, 2, 2, 5, 5], itertools.repeat(10))


class _AllButWatchers(frozenset[Any]):
    """The tasks that kopf is to leave alone when it ends: those that it has not made itself.

    It would cancel whatever was begun since it was started. Of its own only its watches are left where one has failed.
    """

    def __contains__(self, task: object) -> bool:
        return not (isinstance(task, asyncio.Task) and task.get_name().startswith("watcher for "))


class _NoDiffs(kopf.DiffBaseStorage):
    """Kopf would copy every object to compare it with the one before; nothing here asks for differences."""

    def build(self, **_: Any) -> Any:
        return {}

    def fetch(self, **_: Any) -> None:
        return None

    def store(self, **_: Any) -> None:
        pass


def build_settings(settings: Settings) -> kopf.OperatorSettings:
    """Return kopf's settings: nothing written to objects, watches that notice when they are dead."""
    kopf_settings = kopf.OperatorSettings()
    kopf_settings.scanning.disabled = True
    kopf_settings.posting.enabled = False
    kopf_settings.peering.standalone = True
    # Kopf may end while the process goes on; it would kill that process after this time.
    kopf_settings.process.ultimate_exiting_timeout = None
    # Kopf keeps a task per object, and the object, for this long after its last change.
    kopf_settings.queueing.idle_timeout = 0.1
    watching = kopf_settings.watching
    watching.server_timeout, watching.client_timeout, watching.connect_timeout = 300, 330, 10
    watching.inactivity_timeout = settings.watch_silence_seconds
    watching.chunk_size = JOBS_PER_PAGE
    kopf_settings.networking.request_timeout = REQUEST_TIMEOUT_S
    kopf_settings.networking.error_backoffs = EndlessBackOffs()
    # Never used while there are only event handlers; named after us so that it never appears under kopf's name.
    kopf_settings.persistence.finalizer = f"{API_GROUP}/finalizer"
    kopf_settings.persistence.progress_storage = kopf.StatusProgressStorage(field="status.kopf")
    kopf_settings.persistence.diffbase_storage = _NoDiffs()
    return kopf_settings


async def watch_jobs(
    registry: kopf.OperatorRegistry, settings: Settings, stop: asyncio.Event, ready: asyncio.Event
) -> None:
    """Watch until told to stop. ready: set once kopf is running.

    Raises:
        Exception: kopf has given up, as it does at any answer that it knows nothing to do about: a list of which a
            page has expired, an error in a watch. It may be started again.
    """
    tasks = await kopf.spawn_tasks(
        registry=registry,
        settings=build_settings(settings),
        clusterwide=not settings.namespaces,
        namespaces=list(settings.namespaces),
        standalone=True,
        # Without peers nobody asks; kopf would look up the user's name, and the image's user has none.
        identity=cast(Any, "bert-operator"),
        stop_flag=stop,
        ready_flag=ready,
    )
    handle_signals(stop)  # which kopf has taken
    await kopf.run_tasks(tasks, ignored=_AllButWatchers())


def handle_signals(stop: asyncio.Event) -> None:
    """Have the signals that end a process set an event."""
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
