"""The operator's own reconciler and index on a cluster in memory: looked through at any speed, cut off at any write.

An ``Operator`` is one process. What its watches bring is up to the caller, kind by kind; what it writes itself it
knows at once, as in a cluster. What must hold is up to a ``Witness``, which is told of every write.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from bert_operator.cluster.client import ApiError
from bert_operator.cluster.events import JobEvent
from bert_operator.cluster.index import Index
from bert_operator.cluster.log_reader import LatestRecords
from bert_operator.cluster.metrics import Metrics
from bert_operator.cluster.reconciler import Reconciler
from bert_operator.cluster.settings import Settings
from bert_operator.cluster.work_queue import Requeue
from bert_operator.names import JobRef
from fake_cluster import Document, FakeCluster

WATCHED = ("BertPretrainJob", "Job", "MPIJob", "Pod", "Event")


class Killed(BaseException):
    """The process is gone in the middle of what it did."""


class Witness(Protocol):
    """Who is told of what was written."""

    def created(self, document: Document) -> None:
        """An object was created."""

    def described(self, before: Document, after: Document) -> None:
        """A job's status was written."""

    def deleted(self, document: Document) -> None:
        """An object was deleted."""


@dataclass
class Fault:
    """What goes wrong at one write of a look."""

    at_write: int
    how: str
    """dies before, dies after; unsent, unheard: the connection breaks before or after; busy: the server says 503."""


class Wire:
    """One operator's connection to the API server."""

    def __init__(self, cluster: FakeCluster, witness: Witness) -> None:
        self._cluster, self._witness = cluster, witness
        self.fault: Fault | None = None
        self.writes: list[str] = []

    async def get(self, path: str) -> Document:
        return self._cluster.get(path)

    async def create(self, path: str, document: Mapping[str, Any]) -> Document:
        def write() -> Document:
            answer = self._cluster.create(path, document)
            self._witness.created(answer)
            return answer

        return self._carry_out(f"create {path}", write)

    async def patch(self, path: str, change: Mapping[str, Any]) -> Document:
        def write() -> Document:
            before = self._cluster.get(path.removesuffix("/status"))
            after = self._cluster.patch(path, change)
            self._witness.described(before, after)
            return after

        return self._carry_out(f"patch {path}", write)

    async def delete(self, path: str, *, uid: str, version: int | None = None) -> Document:
        def write() -> Document:
            answer = self._cluster.delete(path, uid=uid, version=version)
            self._witness.deleted(answer)
            return answer

        return self._carry_out(f"delete {path}", write)

    def _carry_out(self, what: str, write: Callable[[], Document]) -> Document:
        self.writes.append(what)
        how = self.fault.how if self.fault is not None and self.fault.at_write == len(self.writes) else ""
        if how == "dies before":
            raise Killed
        if how == "busy":
            raise ApiError(503, "ServiceUnavailable", "the server is busy")
        if how == "unsent":
            raise ApiError(0, "ClientError", "broken off")
        answer = write()
        if how == "dies after":
            raise Killed
        if how == "unheard":
            raise ApiError(0, "ClientError", "broken off")
        return answer


@dataclass
class Told:
    """The Events of one operator, and what logs say to it: nothing, unless a test puts it here."""

    events: list[tuple[str, JobEvent]] = field(default_factory=list)
    records: LatestRecords = LatestRecords()

    def emit(self, ref: JobRef, uid: str, event: JobEvent) -> None:
        self.events.append((uid, event))

    def latest(self, ref: JobRef) -> LatestRecords:
        return self.records

    async def read_final(self, *_: object) -> None:
        pass

    async def refresh(self, node: str) -> None:
        pass


@dataclass(frozen=True)
class Look:
    """What came of looking at a job once."""

    writes: tuple[str, ...]
    again_in_s: float | None
    was_refused: bool = False
    """The API server, or its absence, ended it."""

    @property
    def describes(self) -> bool:
        """Whether it has written a status, or tried to."""
        return any(write.startswith("patch") for write in self.writes)


class Operator:
    """One process. It begins by reading everything that there is."""

    def __init__(self, cluster: FakeCluster, witness: Witness) -> None:
        self._cluster, self._witness = cluster, witness
        self.told = Told()
        self._settings = Settings()
        self.restart()

    def restart(self, settings: Settings | None = None) -> None:
        """Forget everything, and begin again. settings: other ones, from now on."""
        self._settings = settings or self._settings
        self.index = Index()
        self.wire = Wire(self._cluster, self._witness)
        self._reconciler = Reconciler(
            self.wire,  # type: ignore[arg-type]
            self.index,
            self._settings,
            recorder=self.told,
            log_records=self.told,  # type: ignore[arg-type]
            metrics=Metrics(),
            nodes=self.told,
            clock=lambda: self._cluster.now_s,
        )
        for kind in WATCHED:
            for item in self._cluster.all(kind):
                self._take("ADDED", item)
        self._position = dict.fromkeys(WATCHED, len(self._cluster.changes))

    def catch_up(self, kinds: Iterable[str] = WATCHED) -> None:
        """Let the watches of these kinds bring everything that they owe."""
        changes = self._cluster.changes
        for kind in kinds:
            for number in range(self._position[kind], len(changes)):
                change, document = changes[number]
                if document["kind"] == kind:
                    self._take(change, document)
            self._position[kind] = len(changes)

    def look(self, ref: JobRef, fault: Fault | None = None) -> Look:
        """Look at a job once, with what is known; raises Killed."""
        self.wire.writes, self.wire.fault = [], fault
        again_in_s, was_refused = None, False
        try:
            # Nothing in it ever waits, so one step is all of it.
            self._reconciler.reconcile(ref).send(None)
        except StopIteration:
            pass
        except Requeue as requeue:
            again_in_s = requeue.after_s
        except ApiError:
            was_refused = True
        return Look(tuple(self.wire.writes), again_in_s, was_refused)

    def _take(self, change: str, document: Document) -> None:
        if change == "DELETED":
            self.index.drop(document)
            return
        match document["kind"]:
            case "BertPretrainJob":
                self.index.put_job(document)
            case "Pod":
                self.index.put_pod(document)
            case "Event":
                self.index.put_warning(document)
            case _:
                self.index.put_child(document)
