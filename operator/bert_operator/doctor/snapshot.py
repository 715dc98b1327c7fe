"""What the checks look at: all that was read of a cluster at one time, and what could not be read. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from bert_operator.doctor.objects import containers, images, name_of, namespace_of, template_of
from bert_operator.json_paths import Json, dig, entries, mapping
from bert_operator.names import is_managed_elsewhere
from bert_operator.spec_documents import without_nulls

OPERATOR_SELECTOR = "app.kubernetes.io/name=bert-operator"
SETTINGS_KEY = "settings.yaml"
"""Of the ConfigMap with the operator's settings."""


@dataclass(frozen=True)
class Listing:
    """Objects of one kind, or why they could not be read."""

    items: tuple[Json, ...] = ()
    """Of a kind; of a single object one, or none where it does not exist."""
    missing: str = ""
    """What one needs to see them, such as a right; empty where they were read."""


@dataclass(frozen=True)
class Parsed:
    """A configuration in YAML, parsed."""

    source: str
    """The ConfigMap: ``namespace/name``."""
    document: Json = field(default_factory=dict)
    """What it says; empty where it cannot be read."""
    problem: str = ""
    """Why it cannot be read."""


@dataclass(frozen=True)
class Snapshot:
    """State of a cluster, as far as it could be read."""

    listings: Mapping[str, Listing] = field(default_factory=dict)
    """By the names of ``gathering.SOURCES``, and those that follow from them."""
    settings: Parsed | None = None
    """The operator's settings; None where there is no such ConfigMap."""
    kueue: Parsed | None = None
    """Kueue's configuration; None where Kueue does not run."""
    endpoints: Mapping[str, int] = field(default_factory=dict)
    """Ready endpoints of the Services that webhooks, names and proxies need, by ``namespace/name``."""
    ports: Mapping[str, frozenset[tuple[str, int]]] = field(default_factory=dict)
    """Protocols and ports on which the pods behind these Services listen."""
    release: str = ""
    """The doctor's own: the one whose definition it knows."""
    fields: frozenset[str] = frozenset()
    """Paths of all fields that a job's spec has in that release."""
    server_time_s: float | None = None
    """Seconds since 1970 by the API server's clock, when it was asked; None where it did not say."""
    own_time_s: float = 0.0
    """The same by this machine's."""
    allowed: Mapping[tuple[str, str, str, str], bool] = field(default_factory=dict)
    """What the person may do, by (verb, group, resource, namespace); filled for ``--pre`` only."""

    def items(self, kind: str) -> tuple[Json, ...]:
        """Return the objects of a kind; none where they could not be read."""
        return self.listings.get(kind, Listing()).items

    def own_jobs(self) -> list[Json]:
        """Return the jobs managed by this cluster's operator, not by another controller (managedBy)."""
        return [job for job in self.items("jobs") if not is_managed_elsewhere(job.get("spec"))]

    def one(self, kind: str) -> Json | None:
        """Return the only object of a kind; None where there is none."""
        found = self.items(kind)
        return found[0] if found else None

    def groups(self) -> Mapping[str, str]:
        """Return the API groups that are served, with the preferred version of each."""
        found = entries(self.one("groups"), "groups")
        return {str(group.get("name")): str(dig(group, "preferredVersion", "version")) for group in found}

    def operators(self) -> list[Json]:
        """Return the Deployments of this operator: by their label, or by what they run."""
        return [item for item in self.items("deployments") if _is_ours(item)]

    def mpi_operators(self) -> list[Json]:
        """Return the Deployments of mpi-operator, by their image."""
        return [item for item in self.items("deployments") if any("mpi-operator" in image for image in images(item))]

    def kueue_manager(self) -> Json | None:
        """Return Kueue's Deployment."""
        return kueue_manager_of(self.items("deployments"))

    def watched_namespaces(self) -> tuple[str, ...]:
        """Return the namespaces that the operator watches; empty: all."""
        named: list[str] = []
        for operator in self.operators():
            for container in containers(template_of(operator)):
                words = container.get("args") or []
                named += [words[at + 1] for at, word in enumerate(words[:-1]) if word == "--namespace"]
        settings = self.settings.document if self.settings else {}
        return tuple(named or settings.get("namespaces") or ())

    def profiles(self) -> dict[str, Json]:
        """Return the profiles of the operator's settings."""
        found = mapping(self.settings.document, "profiles") if self.settings else {}
        return {name: without_nulls(profile) for name, profile in found.items() if isinstance(profile, dict)}

    def job_namespaces(self) -> Iterator[str]:
        """Yield the namespaces that have jobs, each once, and those that the operator is bound to."""
        yield from sorted({namespace_of(job) for job in self.own_jobs()} | set(self.watched_namespaces()))


def kueue_manager_of(deployments: tuple[Json, ...]) -> Json | None:
    """Return Kueue's Deployment among others."""
    return next((item for item in deployments if _is_kueue(item)), None)


def _labels(document: Json) -> Json:
    return mapping(document, "metadata", "labels")


def _is_kueue(deployment: Json) -> bool:
    is_manager = name_of(deployment).endswith("controller-manager")
    return is_manager and any("kueue" in image for image in images(deployment))


def _is_ours(deployment: Json) -> bool:
    if _labels(deployment).get("app.kubernetes.io/name") != "bert-operator":
        return False
    return any("run" in (container.get("args") or []) for container in containers(template_of(deployment)))
