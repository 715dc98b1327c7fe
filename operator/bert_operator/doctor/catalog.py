"""The list of checks: what each is called, what it looks at, and how they are all made."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from bert_operator.doctor.checks import (
    admission,
    before,
    definition,
    deployment,
    kueue,
    mpi_operator,
    namespaces,
    network,
    nodes,
    priority,
    pulls,
    settings,
    storage,
    versions,
)
from bert_operator.doctor.finding import Finding
from bert_operator.doctor.snapshot import Snapshot


@dataclass(frozen=True)
class Check:
    """A check: its name, its function and what it needs to read."""

    name: str
    """By which people and tests call it."""
    find: Callable[[Snapshot], Iterator[Finding]]
    """From what was read to findings."""
    needs: tuple[str, ...]
    """Listings without which it says nothing: not that all is well, either."""
    is_before: bool = False
    """Whether it makes sense before the operator is installed, too."""


@dataclass(frozen=True)
class Outcome:
    """Result of one check."""

    check: str
    """Its name."""
    findings: tuple[Finding, ...] = ()
    """What it has found."""
    missing: tuple[str, ...] = ()
    """What it needs and could not see; then it has not looked."""


_ASKED = ("jobs", "settings", "deployments")
_ROLES = ("cluster roles", "cluster role bindings", "roles", "role bindings")
CHECKS = (
    Check("kubernetes", versions.check_kubernetes, ("version", "nodes"), is_before=True),
    Check("definition", definition.check_definition, ("definition",)),
    Check("operator", deployment.check_operator, ("deployments", "operator pods")),
    Check("operator-memory", deployment.check_memory, ("deployments", "operator pods")),
    Check("operator-priority", priority.check_priority, (*_ASKED, "priority classes", "quotas")),
    Check("operator-rights", deployment.check_rights, ("deployments", "settings", *_ROLES)),
    Check("settings", settings.check_settings, _ASKED),
    Check("images", settings.check_images, _ASKED),
    Check("mpi-operator", mpi_operator.check_presence, ("deployments", "mpijob definition")),
    Check("mpi-operator-version", mpi_operator.check_version, ("deployments", "mpijob definition"), is_before=True),
    Check("mpi-operator-rights", mpi_operator.check_rights, ("deployments", *_ROLES)),
    Check("kueue", kueue.check_configuration, ("deployments", "kueue configuration")),
    Check("queues", kueue.check_queues, (*_ASKED, "groups", "local queues", "cluster queues")),
    Check("pod-security", namespaces.check_pod_security, (*_ASKED, "namespaces")),
    Check("quotas", namespaces.check_quotas, (*_ASKED, "quotas")),
    Check("webhooks", admission.check_webhooks, (*admission.KINDS, "endpoints"), is_before=True),
    Check("claims", storage.check_claims, (*_ASKED, "claims", "storage classes")),
    Check("storage-classes", storage.check_classes, (*_ASKED, "claims", "storage classes")),
    Check("image-pulls", pulls.check_pulls, ("job pods", "pull events")),
    Check("node-fit", nodes.check_fit, (*_ASKED, "nodes")),
    Check("node-features", nodes.check_features, (*_ASKED, "nodes")),
    Check("nodes", nodes.check_nodes, ("nodes",), is_before=True),
    Check("clocks", nodes.check_clocks, ("nodes", "node leases"), is_before=True),
    Check("names", network.check_names, ("endpoints",), is_before=True),
    Check("network-policies", network.check_policies, ("settings", "deployments", "daemon sets", "endpoints")),
)
"""All that are made of an installed operator."""
PREFLIGHT = (
    Check("rights", before.check_rights, (), is_before=True),
    Check("in-the-way", before.check_obstacles, ("definition", "deployments"), is_before=True),
    Check("volumes", before.check_volumes, ("storage classes",), is_before=True),
    *(check for check in CHECKS if check.is_before),
)
"""Those of ``--pre``."""


def examine(snapshot: Snapshot, checks: tuple[Check, ...] = CHECKS) -> list[Outcome]:
    """Run all checks; for those that could not read what they need, name it."""
    return [_examine(snapshot, check) for check in checks]


def _examine(snapshot: Snapshot, check: Check) -> Outcome:
    listings = (snapshot.listings.get(kind) for kind in check.needs)
    missing = tuple(dict.fromkeys(listing.missing for listing in listings if listing and listing.missing))
    if missing:
        return Outcome(check.name, missing=missing)
    try:
        return Outcome(check.name, tuple(check.find(snapshot)))
    except Exception as problem:  # objects may hold anything: one check must not take the others' answers along
        return Outcome(check.name, missing=(f"objects that it can read, not {type(problem).__name__}: {problem}",))
