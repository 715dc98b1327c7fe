"""Where a job stands in a queue of Kueue, by its visibility API, which the role ``view`` may read.

Source: kubernetes-sigs/kueue 0.19.2, apis/visibility/v1beta2/types.go; v1beta1 has the same fields.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import quote

from bert_operator.plugin.errors import NoSuchObject
from bert_operator.plugin.job import Job, Json
from bert_operator.plugin.kubectl import Kubectl
from bert_operator.render.names import of_children

_VERSIONS = ("v1beta2", "v1beta1")


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuePlace:
    """Position of a job in its queue."""

    queue: str
    """Its LocalQueue."""
    before: int
    """Workloads in that queue."""
    before_in_cluster: int
    """Workloads in the ClusterQueue, other namespaces' among them."""

    def document(self) -> Json:
        """Return the position as a JSON document."""
        return {"name": self.queue, "before": self.before, "beforeInCluster": self.before_in_cluster}


def read_place(kubectl: Kubectl, job: Job, queue: object) -> QueuePlace | None:
    """Return a job's position in its Kueue queue; None if Kueue does not report it. queue: its name.

    Raises:
        ApiRefused: Kueue may not be asked, or does not answer.
    """
    for version in _VERSIONS:
        path = f"/apis/visibility.kueue.x-k8s.io/{version}/namespaces/{job.namespace}/localqueues/{quote(str(queue))}"
        try:
            answer = kubectl.get_raw(f"{path}/pendingworkloads")
        except NoSuchObject:
            # Another version of Kueue, one without this API, or no such queue, which Blocked tells.
            continue
        found = [item for item in answer.get("items") or () if _is_of(item, job)]
        return _place(str(queue), found[0]) if found else None
    return None


def _place(queue: str, item: Json) -> QueuePlace:
    # Positions count from 0.
    return QueuePlace(
        queue=queue,
        before=int(item.get("positionInLocalQueue", 0)),
        before_in_cluster=int(item.get("positionInClusterQueue", 0)),
    )


def _is_of(item: Json, job: Job) -> bool:
    own = of_children(job.name, job.uid)
    owners = (item.get("metadata") or {}).get("ownerReferences") or ()
    return any(re.fullmatch(own, str(owner.get("name"))) for owner in owners)
