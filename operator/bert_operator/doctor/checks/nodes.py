"""Nodes: ready, with clocks that agree, and with what the profiles ask of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from fractions import Fraction

from bert_operator.doctor.demands import Demand, find_demands
from bert_operator.doctor.finding import Finding, error, note, warning
from bert_operator.doctor.objects import amount, condition, name_of, render_amount, some
from bert_operator.doctor.snapshot import Snapshot
from bert_operator.json_paths import Json, dig, entries, mapping
from bert_operator.timestamps import parse_time

SKEW_S = 10.0
"""Seconds by which a node's clock may differ: the server's time is cut to whole ones, and a busy one answers late."""
OWN_SKEW_S = 30.0
"""Seconds by which this machine's may: ages on the screen are then wrong, and tokens may be refused."""

_PRESSURES = ("MemoryPressure", "DiskPressure", "PIDPressure", "NetworkUnavailable")


def check_nodes(snapshot: Snapshot) -> Iterator[Finding]:
    """Check that nodes are ready and report no problems."""
    for node in snapshot.items("nodes"):
        ready = condition(node, "Ready")
        if ready.get("status") != "True":
            told = ready.get("message") or ready.get("reason") or "it has never answered"
            why = "pods on it are not followed, and no new one starts there"
            yield warning(f"Node {name_of(node)} is not ready: {told}", why, f"kubectl describe node {name_of(node)}")
            continue
        for kind in _PRESSURES:
            found = condition(node, kind)
            if found.get("status") == "True":
                problem = f"Node {name_of(node)}: {kind} ({found.get('message') or found.get('reason')})"
                yield warning(problem, "pods on it may be evicted", f"kubectl describe node {name_of(node)}")


def check_fit(snapshot: Snapshot) -> Iterator[Finding]:
    """Check that some node could hold a worker of every profile and of every active job."""
    nodes = [node for node in snapshot.items("nodes") if not dig(node, "spec", "unschedulable")]
    homeless: dict[str, list[str]] = defaultdict(list)
    too_large: dict[tuple[str, Fraction, Fraction, int], list[str]] = defaultdict(list)
    for demand in find_demands(snapshot):
        chosen = [node for node in nodes if _has_labels(node, demand)]
        if not chosen:
            homeless[",".join(f"{key}={value}" for key, value in sorted(demand.node_selector.items()))].append(
                demand.owner
            )
            continue
        for resource, wanted in demand.worker.items():
            most = max(amount(dig(node, "status", "allocatable", resource)) for node in chosen)
            if most < wanted:
                too_large[resource, wanted, most, len(chosen)].append(demand.owner)
    why = "workers stay Pending (Unschedulable), unless an autoscaler adds nodes"
    for labels, owners in homeless.items():
        problem = f"no node has the labels {labels or '(there are no nodes)'}, which {some(owners)} asks for"
        yield error(
            problem, why, f"kubectl get nodes -l '{labels}' must list some: correct nodeSelector, or label nodes"
        )
    for (resource, wanted, most, count), owners in too_large.items():
        asked, has = render_amount(resource, wanted), render_amount(resource, most)
        problem = f"a worker asks for {resource} {asked}, and the largest of {count} nodes has {has}: {some(owners)}"
        remedy = "lower it in the profile or job, or use larger nodes"
        if "/" in resource and most == 0:
            remedy = (
                f"no device plugin offers {resource}: kubectl get pods -A | grep device-plugin, or correct the name"
            )
        yield error(problem, why, remedy)


def _has_labels(node: Json, demand: Demand) -> bool:
    labels = mapping(node, "metadata", "labels")
    return all(labels.get(key) == value for key, value in demand.node_selector.items())


def check_features(snapshot: Snapshot) -> Iterator[Finding]:
    """Check that nodes labelled by node-feature-discovery have the instruction sets that jobs and profiles need."""
    looked_at = [node for node in snapshot.items("nodes") if _features(node)]
    for demand in find_demands(snapshot):
        chosen = [node for node in looked_at if _has_labels(node, demand)]
        if not chosen or not demand.is_on_processors:
            continue
        lacking = [name_of(node) for node in chosen if not _features(node) & {"AVX2", "AVX512F"}]
        if lacking:
            yield warning(
                f"{demand.owner}: nodes {', '.join(lacking)} have neither AVX2 nor AVX-512",
                "the trainer's kernels fall back to PyTorch's operations there, and all ranks wait for the slowest",
                "choose nodes with scheduling.nodeSelector: feature.node.kubernetes.io/cpu-cpuid.AVX2: 'true'",
            )
        amx = [node for node in chosen if "AMXBF16" in _features(node)]
        if demand.precision == "bf16" and 0 < len(amx) < len(chosen):
            yield note(
                f"{demand.owner}: {len(amx)} of its {len(chosen)} nodes have AMX",
                "ranks on the others take several times as long for a step of bf16, and all ranks wait for them",
                "choose nodes with scheduling.nodeSelector: feature.node.kubernetes.io/cpu-cpuid.AMXBF16: 'true'",
            )


def _features(node: Json) -> set[str]:
    prefix = "feature.node.kubernetes.io/cpu-cpuid."
    labels = mapping(node, "metadata", "labels")
    return {key.removeprefix(prefix) for key in labels if key.startswith(prefix)}


def check_clocks(snapshot: Snapshot) -> Iterator[Finding]:
    """Check that the clocks of nodes and API server agree, by the nodes' Leases.

    kubelet writes ``renewTime`` by the node's clock, and the API server writes down in ``managedFields`` when that
    request came, by its own: their difference is the node's error, whoever reads it and whenever.
    """
    nodes = {name_of(node) for node in snapshot.items("nodes")}
    for lease in snapshot.items("node leases"):
        skew_s = lease_skew(lease)
        if name_of(lease) in nodes and skew_s is not None and abs(skew_s) > SKEW_S:
            yield warning(
                f"Node {name_of(lease)}: its clock is {abs(skew_s):.0f} s {'ahead' if skew_s > 0 else 'behind'}",
                "the pod that failed first may be the wrong one, and times in logs of several nodes do not fit",
                "have the node's clock set (chrony, systemd-timesyncd): chronyc tracking on it says what is wrong",
            )
    if snapshot.server_time_s is not None:
        skew_s = snapshot.own_time_s - snapshot.server_time_s
        if abs(skew_s) > OWN_SKEW_S:
            yield note(
                f"this machine's clock is {abs(skew_s):.0f} s {'ahead of' if skew_s > 0 else 'behind'} the server's",
                "ages and times left are shown wrong here, and tokens may be refused",
                "have this machine's clock set",
            )


def lease_skew(lease: Json) -> float | None:
    """Return the seconds by which a Lease writer's clock is ahead; None if unknown."""
    renewed = dig(lease, "spec", "renewTime")
    times = [
        entry.get("time")
        for entry in entries(lease, "metadata", "managedFields")
        if dig(entry, "fieldsV1", "f:spec", "f:renewTime") is not None
    ]
    try:
        return parse_time(str(renewed)) - parse_time(str(max(map(str, times)))) if renewed and times else None
    except ValueError:
        return None
