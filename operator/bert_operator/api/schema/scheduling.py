"""Where pods may run: parts of Kubernetes' pod specification that the operator passes through unchanged.

Names, meanings and limits are Kubernetes' (core/v1, release 1.36). The lists are bounded, unlike there: the API server
estimates the cost of a rule that touches them, those that compare a whole section with its old value included, from
their limits, and refuses the definition if there are none.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from bert_job.section import Section

QUALIFIED_NAME_PATTERN = r"^([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$"
LABEL_VALUE_PATTERN = r"^([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$"
OBJECT_NAME_PATTERN = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
LABEL_PATTERN = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
SCHEDULER_PATTERN = r"^[!-~]+$"

_MAX_KEY = 317

LabelKey = Annotated[str, Field(min_length=1, max_length=_MAX_KEY, pattern=QUALIFIED_NAME_PATTERN)]
LabelValue = Annotated[str, Field(max_length=63, pattern=LABEL_VALUE_PATTERN)]
ObjectName = Annotated[str, Field(min_length=1, max_length=253, pattern=OBJECT_NAME_PATTERN)]
"""Of an object of somebody else's: a DNS subdomain (RFC 1123), as Kubernetes has it for most kinds."""
DnsLabel = Annotated[str, Field(min_length=1, max_length=63, pattern=LABEL_PATTERN)]
"""Of a namespace, or of a part of an object, which Kubernetes has as DNS labels (RFC 1123)."""
SchedulerName = Annotated[str, Field(min_length=1, max_length=253, pattern=SCHEDULER_PATTERN)]
"""Schedulers are no objects, and Kubernetes does not judge their names."""
LabeledName = Annotated[str, Field(min_length=1, max_length=63, pattern=OBJECT_NAME_PATTERN)]
"""Name of an object that stands in a label, whose values are shorter than names."""


def _check_keys(labels: dict[str, str]) -> dict[str, str]:
    for key in labels:
        if len(key) > _MAX_KEY or not re.match(QUALIFIED_NAME_PATTERN, key) or key.endswith("\n"):
            raise ValueError(f"{key!r} is no label key")
    return labels


Labels = Annotated[dict[str, LabelValue], Field(max_length=64), AfterValidator(_check_keys)]
AnnotationValue = Annotated[str, Field(max_length=4096)]
Annotations = Annotated[dict[str, AnnotationValue], Field(max_length=32), AfterValidator(_check_keys)]
Weight = Annotated[int, Field(ge=1, le=100)]


class LabelExpression(Section):
    """One requirement on labels."""

    key: LabelKey
    """The label."""
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    """How its value is compared."""
    values: Annotated[tuple[LabelValue, ...], Field(max_length=32)] = ()
    """Values to compare with; none for ``Exists`` and ``DoesNotExist``, at least one otherwise."""


class LabelSelector(Section):
    """Selects objects by their labels; all requirements must hold."""

    match_labels: Labels = {}
    """Labels with exactly these values."""
    match_expressions: Annotated[tuple[LabelExpression, ...], Field(max_length=16)] = ()
    """Further requirements."""


class NodeExpression(Section):
    """One requirement on a node's labels or fields."""

    key: LabelKey
    """The label, or ``metadata.name`` among fields."""
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]
    """How its value is compared."""
    values: Annotated[tuple[LabelValue, ...], Field(max_length=32)] = ()
    """Values to compare with: none for ``Exists`` and ``DoesNotExist``, one integer for ``Gt`` and ``Lt``."""


class NodeSelectorTerm(Section):
    """Nodes that meet all of these requirements."""

    match_expressions: Annotated[tuple[NodeExpression, ...], Field(max_length=16)] = ()
    """On labels of the node."""
    match_fields: Annotated[tuple[NodeExpression, ...], Field(max_length=4)] = ()
    """On fields of the node; Kubernetes knows ``metadata.name`` only."""


class NodeSelector(Section):
    """Nodes that meet one of several terms."""

    node_selector_terms: Annotated[tuple[NodeSelectorTerm, ...], Field(min_length=1, max_length=8)]
    """At least one of them must match."""


class PreferredNodes(Section):
    """A preference for nodes."""

    weight: Weight
    """1 to 100; nodes are ranked by the sum over all matching terms."""
    preference: NodeSelectorTerm
    """The preferred nodes."""


class NodeAffinity(Section):
    """Nodes by their labels."""

    required_during_scheduling_ignored_during_execution: NodeSelector | None = None
    """Nodes that the pods must run on."""
    preferred_during_scheduling_ignored_during_execution: Annotated[
        tuple[PreferredNodes, ...], Field(max_length=8)
    ] = ()
    """Nodes that the pods should run on."""


class PodAffinityTerm(Section):
    """Pods to run near, or away from."""

    label_selector: LabelSelector | None = None
    """Label selector of the pods."""
    topology_key: LabelKey
    """The node label that defines a topology domain, such as ``kubernetes.io/hostname``."""
    namespaces: Annotated[tuple[DnsLabel, ...], Field(max_length=16)] = ()
    """Namespaces of those pods. Empty: the job's own."""


class WeightedPodAffinityTerm(Section):
    """A preference to run near pods, or away from them."""

    weight: Weight
    """1 to 100."""
    pod_affinity_term: PodAffinityTerm
    """The pods and the topology domain."""


class PodAffinity(Section):
    """Nodes by the pods that run there."""

    required_during_scheduling_ignored_during_execution: Annotated[
        tuple[PodAffinityTerm, ...], Field(max_length=8)
    ] = ()
    """Must hold."""
    preferred_during_scheduling_ignored_during_execution: Annotated[
        tuple[WeightedPodAffinityTerm, ...], Field(max_length=8)
    ] = ()
    """Should hold."""


class Affinity(Section):
    """Kubernetes' affinity, without the fields that select namespaces by their labels."""

    node_affinity: NodeAffinity | None = None
    """Nodes by their labels."""
    pod_affinity: PodAffinity | None = None
    """Run near these pods."""
    pod_anti_affinity: PodAffinity | None = None
    """Run away from these pods."""


class Toleration(Section):
    """A taint that the pods tolerate."""

    key: LabelKey | None = None
    """Key of the taint. Empty, with ``Exists``: every taint."""
    operator: Literal["Exists", "Equal"] = "Equal"
    """``Exists`` matches any value."""
    value: LabelValue | None = None
    """Value of the taint, for ``Equal``."""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    """Effect of the taint. Empty: every effect."""
    toleration_seconds: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = None
    """With ``NoExecute``: seconds to stay once the taint appears. Empty: no limit."""


class TopologyRequest(Section):
    """How near to each other Kueue places the workers, where the queue's nodes have a Topology; exactly one of these.

    Names and meanings are those of Kueue's annotations (``kueue.x-k8s.io/podset-required-topology`` and so on, 0.19).
    """

    required: LabelKey | None = None
    """A level of the Topology, by its node label: all workers run in one domain of it, such as one rack, or wait."""
    preferred: LabelKey | None = None
    """The same as a wish: where no domain of the level has room, one of the level above is taken, and in the end
    several."""
    unconstrained: bool | None = None
    """``true``: anywhere, but node by node where there is room, so that no admitted worker waits for a node."""


class TopologySpread(Section):
    """How evenly the workers are spread over zones, racks or nodes."""

    max_skew: Annotated[int, Field(ge=1, le=4096)] = 1
    """Largest difference in the number of workers between two topology domains."""
    topology_key: LabelKey
    """The node label that defines a topology domain, such as ``topology.kubernetes.io/zone``."""
    when_unsatisfiable: Literal["DoNotSchedule", "ScheduleAnyway"] = "DoNotSchedule"
    """What to do if the constraint cannot be satisfied."""
    label_selector: LabelSelector | None = None
    """Pods that count. Empty: the pods of the same attempt and role."""
