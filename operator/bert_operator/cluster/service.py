"""The operator process: wires its parts together and runs them until SIGTERM or Ctrl-C.

Watches fill the index and queue jobs; workers take them from the queue and reconcile them; the resync compares; Events
are written in the background. It may be killed at any moment and started anywhere else. Of several replicas, the one
that holds the Lease works; the others watch and compare like it, so that they know everything when their turn comes,
and do nothing that writes, nor read logs and nodes. Who loses the Lease ends: what a process remembers of its own
writes is worth nothing once another one has written, and a restart forgets all of it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AsyncExitStack

import uvloop
from kubernetes.aio.client.configuration import Configuration
from kubernetes.aio.config import ConfigException

from bert_operator.api.crd import PLURAL
from bert_operator.api.schema.json_schema import job_node
from bert_operator.cluster.client import MAX_PAUSE_S, ApiClient, ApiError, load_configuration
from bert_operator.cluster.health import Health, serve_http
from bert_operator.cluster.index import Index
from bert_operator.cluster.lease import Lease, find_own_namespace, make_identity
from bert_operator.cluster.log_reader import LogReader
from bert_operator.cluster.metrics import Metrics
from bert_operator.cluster.node_reader import NodeReader
from bert_operator.cluster.priority_booster import PriorityBooster
from bert_operator.cluster.reconciler import Reconciler
from bert_operator.cluster.recorder import EventRecorder
from bert_operator.cluster.reflector import Reflector
from bert_operator.cluster.resync import Resync
from bert_operator.cluster.settings import Settings
from bert_operator.cluster.watches import build_registry, handle_signals, watch_jobs
from bert_operator.cluster.work_queue import WorkQueue
from bert_operator.cluster.workload_reader import WorkloadReader
from bert_operator.errors import OperatorError
from bert_operator.names import API_GROUP, API_VERSION, KIND, JobRef
from bert_operator.render import names

_WAIT_FOR_API_S = 2.0

_log = logging.getLogger(__name__)


def run_operator(settings: Settings) -> None:
    """Run until SIGTERM or Ctrl-C.

    Raises:
        OperatorError: No API server is configured.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)-7s %(name)s: %(message)s")
    logging.getLogger("kopf").setLevel(logging.WARNING)
    # Made once, from the types: 40 ms for which all jobs would wait as soon as the first one comes.
    job_node()
    # One loop in one thread: what stands between two awaits is atomic. Index, queue and reconciler count on it and have
    # no locks.
    # uvloop, which kopf's own command line takes too: asyncio's TLS and transports are Python, uvloop's are compiled.
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_Service(settings).run())


class _Service:
    """One run of the operator. The attributes that need the API server are set by ``run``."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._index = Index()
        self._metrics = Metrics()
        self._ready = asyncio.Event()
        self._synced = asyncio.Event()
        """Set once the initial lists of children are complete."""
        self._leading = asyncio.Event()
        if settings.lease is None:
            self._leading.set()
        self._lease: Lease | None = None
        self._stop = asyncio.Event()

    async def run(self) -> None:
        handle_signals(self._stop)
        try:
            configuration = await load_configuration()
        except ConfigException as error:
            raise OperatorError(
                f"No cluster is configured ({error})", hint="run the operator in a pod, or set KUBECONFIG"
            ) from error
        async with AsyncExitStack() as clients:
            api = await clients.enter_async_context(ApiClient(configuration))
            self._lease = await self._make_lease(configuration, clients)
            self._recorder = EventRecorder(api, self._metrics)
            self._log_reader = LogReader(api, self._index, self._enqueue, self._metrics)
            # A binding in a namespace grants nothing about nodes: no request that can only be refused.
            sees_nodes = not self._settings.namespaces
            self._node_reader = NodeReader(api, self._index, self._enqueue, is_allowed=sees_nodes)
            self._workload_reader = WorkloadReader(api, self._index, self._enqueue)
            boost = self._settings.priority_boost
            after_s = boost.after_seconds if boost is not None else ()
            self._booster = PriorityBooster(api, self._index, self._log_reader.latest, after_s) if after_s else None
            reconciler = Reconciler(
                api,
                self._index,
                self._settings,
                self._recorder,
                self._log_reader,
                self._metrics,
                self._node_reader,
                clock=api.now_s,
            )
            self._queue = WorkQueue(reconciler.reconcile, self._metrics)
            self._resyncs = [
                Resync(api, self._index, self._settings, namespace, self._enqueue)
                for namespace in self._settings.namespaces or ("",)
            ]
            self._reflectors = list(self._make_reflectors(api))
            self._register_gauges()
            health = Health(self._watch_lags_s, self._queue.oldest_s, self._ready.is_set, self._settings)
            http, port = await serve_http(self._settings, health, self._metrics)
            _log.info("Metrics and probes on port %d", port)
            try:
                await self._run_parts(api)
            finally:
                await http.cleanup()

    async def _make_lease(self, configuration: Configuration, clients: AsyncExitStack) -> Lease | None:
        """Return the Lease, with a client of its own; None where there is no election."""
        if self._settings.lease is None:
            return None
        namespace = find_own_namespace()
        api = await clients.enter_async_context(ApiClient(configuration))
        return Lease(api, namespace, self._settings.lease, make_identity())

    def _enqueue(self, ref: JobRef) -> None:
        # On a standby nobody would take it out again. All jobs are queued when it begins to lead.
        if self._leading.is_set():
            self._queue.add(ref)

    def _make_reflectors(self, api: ApiClient) -> Iterator[Reflector]:
        for namespace in self._settings.namespaces or ("",):
            for kind in ("Job", "MPIJob", "Pod", "Event"):
                is_ours = {"fields": "type=Warning"} if kind == "Event" else {"labels": names.JOB_LABEL}
                # Selectors are applied by the API server. Events carry no labels, so every Warning event arrives.
                yield Reflector(
                    api,
                    self._index,
                    kind,
                    namespace,
                    self._enqueue,
                    self._metrics.watched,
                    silence_s=self._settings.watch_silence_seconds,
                    **is_ours,
                )

    async def _run_parts(self, api: ApiClient) -> None:
        """Run all parts until one of them ends: by a signal, or because it failed."""
        parts = [
            self._stop.wait(),
            self._run_in_order(api),
            self._work(),
            *([] if self._lease is None else [self._lead(self._lease)]),
            *(reflector.run() for reflector in self._reflectors),
        ]
        tasks = [asyncio.create_task(part) for part in parts]
        try:
            # One part that fails ends the process, and so does the loss of the Lease: Kubernetes restarts it, and a
            # restart loses nothing.
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            # Last: nothing here begins to write any more when the next one works.
            if self._lease is not None:
                await self._lease.release()

    async def _run_in_order(self, api: ApiClient) -> None:
        """Get to know all jobs once the initial lists of children are complete; be ready then."""
        await self._wait_for_own_api(api)
        for reflector in self._reflectors:
            await reflector.synced.wait()
        self._synced.set()
        async with asyncio.TaskGroup() as tasks:
            for resync in self._resyncs:
                tasks.create_task(resync.run())
            tasks.create_task(self._watch_jobs(api))
            for resync in self._resyncs:
                await resync.synced.wait()
            if self._lease is not None:
                # One that may not look at it would never work, and must not count as a replica that can take over.
                await self._lease.seen.wait()
            self._ready.set()

    async def _lead(self, lease: Lease) -> None:
        """Wait for the Lease, and lead while it is held. Raises LeaseLost."""
        # Whoever leads shall be able to work: one that is still starting would only keep others from it.
        await self._synced.wait()
        await lease.acquire()
        self._leading.set()
        for ref in self._index.all_refs():
            self._queue.add(ref)
        await lease.keep()

    async def _work(self) -> None:
        """Do everything that writes, and what only that needs, once it is this process's turn.

        No job is reconciled before the initial lists of children are complete: one whose children are not known looks
        as if its child was lost.
        """
        await self._synced.wait()
        await self._leading.wait()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._queue.run(self._settings.workers))
            tasks.create_task(self._recorder.run())
            tasks.create_task(self._log_reader.run())
            tasks.create_task(self._node_reader.run())
            tasks.create_task(self._workload_reader.run())
            if self._booster is not None:
                tasks.create_task(self._booster.run())

    async def _watch_jobs(self, api: ApiClient) -> None:
        """Run kopf until the process gets a signal; while it is down, the resync delivers what its watch would."""
        registry = build_registry(self._index, self._enqueue, self._note_delivery)
        while not self._stop.is_set():
            why = "it ended"
            try:
                await watch_jobs(registry, self._settings, self._stop)
            except Exception as error:
                why = repr(error)
            if self._stop.is_set():
                return
            _log.warning("The watch on BertPretrainJobs failed (%s); restarting it", why)
            await asyncio.sleep(MAX_PAUSE_S)
            # kopf discovers its resource once, when it starts.
            await self._wait_for_own_api(api)

    def _note_delivery(self, ref: JobRef) -> None:
        """Note that kopf's watch told of a job."""
        self._metrics.watched(KIND)
        for resync in self._resyncs:
            resync.delivered(ref)

    def _watch_lags_s(self) -> Mapping[str, float]:
        """Return for how many seconds each watch has not delivered a change, or has been silent beyond normal."""
        lags = {KIND: max(resync.lag_s() for resync in self._resyncs)}
        for reflector in self._reflectors:
            # Twice: a stream that is silent for once this time is reopened, and gets as long again.
            silent_s = reflector.silent_s - 2 * self._settings.watch_silence_seconds
            lags[reflector.kind] = max(lags.get(reflector.kind, 0.0), silent_s)
        if self._lease is not None:
            lags["Lease"] = self._lease.lag_s
        return lags

    async def _wait_for_own_api(self, api: ApiClient) -> None:
        logged = False
        while True:
            try:
                if await _is_served(api, f"/apis/{API_VERSION}", PLURAL):
                    return
                message = f"the cluster does not serve {PLURAL}.{API_GROUP}; apply its CustomResourceDefinition"
            except ApiError as error:
                message = str(error)
            if not logged:
                _log.warning("Waiting: %s", message)
                logged = True
            await asyncio.sleep(_WAIT_FOR_API_S)

    def _register_gauges(self) -> None:
        views: Mapping[str, Callable[[], Mapping[str, float]]] = {
            "bert_operator_watch_lag_seconds": self._watch_lags_s,
            "bert_operator_last_sweep_timestamp_seconds": lambda: {
                "": min(resync.listed_at_s for resync in self._resyncs)
            },
            "bert_operator_queue_depth": lambda: {"": self._queue.depth},
            "bert_operator_queue_oldest_seconds": lambda: {"": self._queue.oldest_s()},
            "bert_operator_known_objects": self._index.count,
            # Of the leader alone: with those of the standbys every job would be counted twice.
            "bert_operator_jobs": lambda: self._index.count_phases() if self._leading.is_set() else {},
            "bert_operator_leader": lambda: {"": float(self._lease is None or self._lease.is_leading)},
        }
        for name, read in views.items():
            self._metrics.add_view(name, read)
        self._metrics.add_job_views(lambda: self._index.series() if self._leading.is_set() else (), time.time)


async def _is_served(api: ApiClient, path: str, resource: str) -> bool:
    """Return whether the API server serves a resource. Raises ApiError if it does not answer."""
    try:
        document = await api.get(path)
    except ApiError as error:
        if error.status == 404:
            return False
        raise
    return any(item.get("name") == resource for item in document.get("resources", ()))
