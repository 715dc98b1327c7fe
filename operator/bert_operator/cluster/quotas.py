"""Quotas of ranks and devices per namespace, where the settings have them: reserved before a child is created.

Several jobs are reconciled concurrently, and a child is in the index only once its creation is answered: until then
what is reserved for one job is kept from the others. There is no order among jobs that wait: whichever fits when it is
asked for next is created. Queues with an order, shares and preemption are Kueue's matter.
"""

from __future__ import annotations

from bert_operator.api.schema.conditions import BlockerReason
from bert_operator.cluster.demand import Demand
from bert_operator.cluster.index import Index
from bert_operator.cluster.observation import has_ended
from bert_operator.cluster.settings import Settings
from bert_operator.names import JobRef
from bert_operator.spec_documents import network_devices
from bert_operator.state.observed import Blocker

RETRY_S = 5.0
"""Seconds between two attempts of a job that waits; they cost no request."""


class NamespaceQuotas:
    """Reservations whose children are not in the index yet, and jobs that wait; both may be lost on a restart."""

    def __init__(self, index: Index, settings: Settings) -> None:
        """Start without reservations. index: has the children that count; settings: have the bounds."""
        self._index = index
        self._settings = settings
        self._not_counted = network_devices(settings.profiles.values())
        self._reserved: dict[JobRef, Demand] = {}
        self._waiting: dict[JobRef, Demand] = {}

    def reserve(self, ref: JobRef, demand: Demand) -> Blocker | None:
        """Reserve what a job's next child needs, until ``release``; return what blocks the job if there is not enough.

        Nothing is awaited here: of two jobs that ask for the last rank one gets it.
        """
        bounds = self._settings.limits.of(ref.namespace)
        if bounds.ranks_per_namespace is None and bounds.gpus_per_namespace is None:
            return None
        self._reserved.pop(ref, None)
        ranks, gpus = self._held_by_others(ref)
        for name, asked, held, most in (
            ("ranks", demand.ranks, ranks, bounds.ranks_per_namespace),
            ("GPUs", demand.count_devices(self._not_counted), gpus, bounds.gpus_per_namespace),
        ):
            if most is not None and asked and held + asked > most:
                self._waiting[ref] = demand
                return _blocker(ref.namespace, name, asked, most)
        self._waiting.pop(ref, None)
        self._reserved[ref] = demand
        return None

    def still_waits(self, ref: JobRef) -> bool:
        """Return whether a job that had to wait would have to again."""
        demand = self._waiting.get(ref)
        if demand is None or self.reserve(ref, demand) is not None:
            return demand is not None
        self._reserved.pop(ref, None)
        return False

    def release(self, ref: JobRef) -> None:
        """Drop the reservation of a job: its child is in the index, or was refused."""
        self._reserved.pop(ref, None)

    def forget(self, ref: JobRef) -> None:
        """Drop the reservation and the wait of a job that is gone or has nothing left to create."""
        self._reserved.pop(ref, None)
        self._waiting.pop(ref, None)

    def _held_by_others(self, ref: JobRef) -> tuple[int, int]:
        """Return the ranks and devices of all other jobs of the namespace whose children have not ended."""
        held: dict[JobRef, list[Demand]] = {}
        for job, child in self._index.children_in(ref.namespace):
            # Also one that a queue holds back, which may let it go at any moment.
            if job != ref and not has_ended(child):
                held.setdefault(job, []).append(child.demand)
        for job, demand in self._reserved.items():
            # A creation whose answer was lost may be in the index by now.
            if job.namespace == ref.namespace and job not in held:
                held[job] = [demand]
        demands = [demand for of_job in held.values() for demand in of_job]
        return (
            sum(demand.ranks for demand in demands),
            sum(demand.count_devices(self._not_counted) for demand in demands),
        )


def _blocker(namespace: str, name: str, asked: int, most: int) -> Blocker:
    reason, setting = BlockerReason.NAMESPACE_LIMIT_REACHED, f"limits.{name.lower()}PerNamespace"
    # Without what is in use just now: a message that changes with every other job would be a status write each time.
    message = (
        f"{reason.sentence} Namespace {namespace} may have {most} {name}; this attempt's {asked} do not fit beside "
        f"those of its other jobs. Next: wait for them, suspend or delete one, or have an administrator raise "
        f"{setting} in the operator's settings"
    )
    return Blocker(reason=reason, message=message)
