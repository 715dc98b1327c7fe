"""The kopf half: watches BertPretrainJobs, puts them into the index and queues them.

The handler decides nothing and writes nothing: kopf does not retry ``on.event`` handlers, so nothing in it may fail.
Everything else is watched by ``reflector`` (docs/adr/0007).
"""

from __future__ import annotations

import asyncio
import itertools
import signal
from collections.abc import Callable, Mapping
from typing import Any, cast

import kopf

from bert_operator.api.crd import PLURAL
from bert_operator.cluster.client import REQUEST_TIMEOUT_S
from bert_operator.cluster.index import Index
from bert_operator.cluster.settings import Settings
from bert_operator.names import API_GROUP, API_VERSION, JobRef

JOBS_PER_PAGE = 10
"""A job may have 256 KiB, its annotations as much again, its status a little more: at most some 8 MB a page."""
RETRY_S = 2.0
"""Before a request is repeated that failed."""


def build_registry(
    index: Index, enqueue: Callable[[JobRef], None], watched: Callable[[JobRef], None]
) -> kopf.OperatorRegistry:
    """Return the handlers. watched: called with every job that the watch delivers."""
    registry = kopf.OperatorRegistry()

    @kopf.on.event(API_GROUP, API_VERSION.partition("/")[2], PLURAL, registry=registry)
    async def on_change(event: Mapping[str, Any], **_: Any) -> None:
        body = event["object"]
        watched(JobRef(body["metadata"]["namespace"], body["metadata"]["name"]))
        # Objects of kopf's initial list have the type None; those that are gone are missing from it, and left to the
        # resync.
        ref = index.drop(body) if event["type"] == "DELETED" else index.put_job(body)
        if ref is not None:
            enqueue(ref)
        _let_go(body)

    @kopf.on.login(registry=registry)
    def log_in(**options: Any) -> kopf.ConnectionInfo | None:
        return kopf.login_with_service_account(**options) or kopf.login_with_kubeconfig(**options)

    return registry


def _let_go(body: dict[str, Any]) -> None:
    """Take out of an object what is large and has been read.

    kopf's views of an object refer to each other, so that it stays in memory until Python looks for cycles. Those looks
    were 4 % of the operator's processor time while it held whole objects.
    """
    body["metadata"].pop("managedFields", None)
    for key in ("spec", "status"):
        body.pop(key, None)


class _AllButWatchers(frozenset[Any]):
    """The tasks that kopf must not cancel when it ends: those that it did not start.

    kopf cancels every task of the loop that was created since it was started, the operator's workers included. Of its
    own tasks only the watchers are left when one of them has failed; they are recognised by their name.
    """

    def __contains__(self, task: object) -> bool:
        return not (isinstance(task, asyncio.Task) and task.get_name().startswith("watcher for "))


class _NoDiffs(kopf.DiffBaseStorage):
    """Keeps kopf from copying every object to compute differences, which nothing here uses."""

    def build(self, **_: Any) -> Any:
        return {}

    def fetch(self, **_: Any) -> None:
        return None

    def store(self, **_: Any) -> None:
        pass


def build_settings(settings: Settings) -> kopf.OperatorSettings:
    """Return kopf's settings: nothing is written to objects, and dead watches are noticed."""
    kopf_settings = kopf.OperatorSettings()
    kopf_settings.scanning.disabled = True
    kopf_settings.posting.enabled = False
    kopf_settings.peering.standalone = True
    # Kopf may end while the process goes on, which it would then kill after a timeout.
    kopf_settings.process.ultimate_exiting_timeout = None
    # Kopf keeps a task per object, and the object, for this long after its last change: 5 s by default.
    kopf_settings.queueing.idle_timeout = 0.1
    watching = kopf_settings.watching
    watching.server_timeout, watching.client_timeout, watching.connect_timeout = 300, 330, 10
    watching.inactivity_timeout = settings.watch_silence_seconds
    watching.chunk_size = JOBS_PER_PAGE
    kopf_settings.networking.request_timeout = REQUEST_TIMEOUT_S
    # Without an end: kopf gives up its watches when a finite list is exhausted.
    kopf_settings.networking.error_backoffs = itertools.repeat(RETRY_S)
    # kopf takes its default one off every object that has it, also where another operator of the cluster put it.
    kopf_settings.persistence.finalizer = f"{API_GROUP}/finalizer"
    kopf_settings.persistence.diffbase_storage = _NoDiffs()
    return kopf_settings


async def watch_jobs(registry: kopf.OperatorRegistry, settings: Settings, stop: asyncio.Event) -> None:
    """Watch until ``stop`` is set.

    Args:
        registry: The handlers.
        settings: The operator's.
        stop: Ends the watch.

    Raises:
        Exception: kopf gave up, as it does on any response that it does not handle: a list whose continue token has
            expired (410), an error in a watch. It may be started again.
    """
    tasks = await kopf.spawn_tasks(
        registry=registry,
        settings=build_settings(settings),
        clusterwide=not settings.namespaces,
        namespaces=list(settings.namespaces),
        standalone=True,
        # Only used among peers. By default kopf looks up the user's name, and the image's user has none.
        identity=cast(Any, "bert-operator"),
        stop_flag=stop,
    )
    handle_signals(stop)  # kopf has installed its own
    await kopf.run_tasks(tasks, ignored=_AllButWatchers())


def handle_signals(stop: asyncio.Event) -> None:
    """Set an event on SIGTERM and SIGINT."""
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
