"""Reads a snapshot: one request per kind of object, several at a time, and what those lead to. Changes nothing.

What may not be read is remembered with the right that it needs; only an API server that does not answer at all ends
it, by Refused.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from importlib import resources
from typing import Any
from urllib.parse import quote, urlencode

from bert_operator import __version__, cluster_dns
from bert_operator.doctor.checks.admission import closed_services
from bert_operator.doctor.checks.definition import NAME as DEFINITION
from bert_operator.doctor.checks.kueue import GROUP as KUEUE
from bert_operator.doctor.checks.network import proxy_services
from bert_operator.doctor.objects import name_of, namespace_of, template_of
from bert_operator.doctor.reading import FORBIDDEN, NOT_FOUND, Reader, Refused
from bert_operator.doctor.snapshot import OPERATOR_SELECTOR, SETTINGS_KEY, Listing, Parsed, Snapshot
from bert_operator.json_paths import Json, dig, entries
from bert_operator.names import API_GROUP, API_VERSION
from bert_operator.timestamps import parse_time

THREADS = 8
PAGE = 500
"""Objects of one request."""
MAX_PAGES = 20
"""Of one kind. A cluster with more Events or pods is judged by the first ten thousand."""
FIELDS = "fields.txt"
"""Of this package, written by tools/generate.py: every field of a job's spec."""
KUEUE_KEY = "controller_manager_config.yaml"


@dataclass(frozen=True)
class Source:
    """API path of the objects of one kind."""

    root: str
    """``api/v1`` or ``apis/GROUP/VERSION``."""
    plural: str
    """As in paths."""
    name: str = ""
    """Of a single object; empty: all of them."""
    is_scoped: bool = False
    """Whether ``--namespace`` narrows it: objects of those who submit jobs."""
    query: tuple[tuple[str, str], ...] = ()
    """Selectors."""

    def path(self, namespace: str) -> str:
        """Return its path, in one namespace or in all."""
        place = f"/namespaces/{quote(namespace)}" if namespace and self.is_scoped else ""
        return f"/{self.root}{place}/{self.plural}" + (f"/{quote(self.name)}" if self.name else "")

    def right(self, namespace: str) -> str:
        """Return the permission needed to read it."""
        group = self.root.split("/")[1] if self.root.startswith("apis/") else ""
        scope = f" in the namespace {namespace}" if namespace and self.is_scoped else ""
        what = f"{self.plural}{f'.{group}' if group else ''}{f' {self.name}' if self.name else ''}"
        return f"{'get' if self.name else 'list'} {what}{scope}"


_RBAC, _CRDS = "apis/rbac.authorization.k8s.io/v1", ("apis/apiextensions.k8s.io/v1", "customresourcedefinitions")
_HOOKS = "apis/admissionregistration.k8s.io/v1"
SOURCES: Mapping[str, Source] = {
    "definition": Source(*_CRDS, name=DEFINITION),
    "mpijob definition": Source(*_CRDS, name="mpijobs.kubeflow.org"),
    "namespaces": Source("api/v1", "namespaces"),
    "nodes": Source("api/v1", "nodes"),
    "node leases": Source("apis/coordination.k8s.io/v1/namespaces/kube-node-lease", "leases"),
    "deployments": Source("apis/apps/v1", "deployments"),
    "daemon sets": Source("apis/apps/v1", "daemonsets"),
    "operator pods": Source("api/v1", "pods", query=(("labelSelector", OPERATOR_SELECTOR),)),
    "cluster roles": Source(_RBAC, "clusterroles"),
    "cluster role bindings": Source(_RBAC, "clusterrolebindings"),
    "roles": Source(_RBAC, "roles"),
    "role bindings": Source(_RBAC, "rolebindings"),
    "validating webhooks": Source(_HOOKS, "validatingwebhookconfigurations"),
    "mutating webhooks": Source(_HOOKS, "mutatingwebhookconfigurations"),
    "priority classes": Source("apis/scheduling.k8s.io/v1", "priorityclasses"),
    "storage classes": Source("apis/storage.k8s.io/v1", "storageclasses"),
    "jobs": Source(f"apis/{API_VERSION}", "bertpretrainjobs", is_scoped=True),
    "job pods": Source("api/v1", "pods", is_scoped=True, query=(("labelSelector", f"{API_GROUP}/job"),)),
    "quotas": Source("api/v1", "resourcequotas", is_scoped=True),
    "claims": Source("api/v1", "persistentvolumeclaims", is_scoped=True),
    "pull events": Source("api/v1", "events", is_scoped=True, query=(("fieldSelector", "reason=Pulled"),)),
}


def gather(reader: Reader, *, namespace: str = "", is_before: bool = False) -> Snapshot:
    """Read a snapshot of a cluster, as far as permissions allow.

    Args:
        reader: How.
        namespace: The only one whose jobs, claims and quotas are read; empty: all.
        is_before: Whether the operator is yet to be installed, so that nothing of it is read.

    Raises:
        Refused: The API server does not answer, or does not know who asks.
    """
    version = reader.get("/version")  # raises where nobody answers
    groups = reader.get("/apis")
    with ThreadPoolExecutor(THREADS) as pool:
        listings = dict(
            zip(SOURCES, pool.map(lambda source: read(reader, source, namespace), SOURCES.values()), strict=True)
        )
        listings |= {"version": Listing((version,)), "groups": Listing((groups,))}
        snapshot = Snapshot(listings=listings, release=__version__, fields=known_fields())
        if not is_before:
            more = {name: source for name, source in _following(snapshot).items() if source is not None}
            found = pool.map(lambda source: read(reader, source, namespace), more.values())
            snapshot = replace(snapshot, listings={**listings, **dict(zip(more, found, strict=True))})
        snapshot = replace(snapshot, settings=_parse(reader, snapshot, "settings", SETTINGS_KEY))
        asked = {place for _, _, place in closed_services(snapshot)} | {
            place for _, _, place in proxy_services(snapshot)
        }
        services = sorted({*cluster_dns.SERVICES, *asked})
        slices = list(pool.map(lambda place: read(reader, _slices_of(place), ""), services))
    return replace(
        snapshot,
        listings={**snapshot.listings, "endpoints": _worst(slices)},
        endpoints={place: _ready(found) for place, found in zip(services, slices, strict=True)},
        ports={place: _ports(found) for place, found in zip(services, slices, strict=True)},
        kueue=_parse(reader, snapshot, "kueue configuration", KUEUE_KEY),
        server_time_s=_server_time(reader),
        own_time_s=time.time(),
    )


def read(reader: Reader, source: Source, namespace: str) -> Listing:
    """Return the objects of a source, or the missing permission."""
    path = source.path(namespace)
    try:
        if source.name:
            return Listing((reader.get(path),))
        return Listing(tuple(_pages(reader, path, source.query)))
    except Refused as refusal:
        if refusal.status == NOT_FOUND:
            return Listing()  # the object, or its whole kind
        if refusal.status == FORBIDDEN:
            hint = "" if namespace or not source.is_scoped else " in all namespaces, or --namespace NAME"
            return Listing(missing=f"the right to {source.right(namespace)}{hint}")
        return Listing(missing=f"an answer to GET {path}; got {refusal.status or 'none'}: {refusal.message}")


def _pages(reader: Reader, path: str, query: tuple[tuple[str, str], ...]) -> Iterable[Json]:
    following = ""
    for _ in range(MAX_PAGES):
        words = [*query, ("limit", str(PAGE)), *([("continue", following)] if following else [])]
        page = reader.get(f"{path}?{urlencode(words)}")
        yield from entries(page, "items")
        following = str(dig(page, "metadata", "continue") or "")
        if not following:
            return


def _following(snapshot: Snapshot) -> dict[str, Source | None]:
    """Return what only the first objects tell where to find."""
    found: dict[str, Source | None] = {}
    for deployment in snapshot.operators()[:1]:
        home = namespace_of(deployment)
        found["settings"] = _config_map(deployment)
        if "metrics.k8s.io" in snapshot.groups():
            query = (("labelSelector", OPERATOR_SELECTOR),)
            found["operator metrics"] = Source(f"apis/metrics.k8s.io/v1beta1/namespaces/{home}", "pods", query=query)
    manager = snapshot.kueue_manager()
    if manager is not None:
        found["kueue configuration"] = _config_map(manager)
    if version := snapshot.groups().get(KUEUE):
        root = f"apis/{KUEUE}/{version}"
        found["local queues"] = Source(root, "localqueues", is_scoped=True)
        found["cluster queues"] = Source(root, "clusterqueues")
    return found


def _config_map(deployment: Json) -> Source | None:
    for volume in entries(template_of(deployment), "volumes"):
        if name := dig(volume, "configMap", "name"):
            return Source(f"api/v1/namespaces/{namespace_of(deployment)}", "configmaps", name=str(name))
    return None


def _slices_of(place: str) -> Source:
    namespace, _, name = place.partition("/")
    query = (("labelSelector", f"kubernetes.io/service-name={name}"),)
    return Source(f"apis/discovery.k8s.io/v1/namespaces/{namespace}", "endpointslices", query=query)


def _worst(listings: Iterable[Listing]) -> Listing:
    return next((listing for listing in listings if listing.missing), Listing())


def _ready(listing: Listing) -> int:
    found = (endpoint for piece in listing.items for endpoint in entries(piece, "endpoints"))
    return sum(dig(endpoint, "conditions", "ready") is not False for endpoint in found)


def _ports(listing: Listing) -> frozenset[tuple[str, int]]:
    found = (port for piece in listing.items for port in entries(piece, "ports"))
    return frozenset((str(port.get("protocol") or "TCP"), int(port.get("port") or 0)) for port in found)


def _parse(reader: Reader, snapshot: Snapshot, kind: str, key: str) -> Parsed | None:
    """Return what a ConfigMap's YAML says; None where there is no such ConfigMap, or it may not be read."""
    found = snapshot.one(kind)
    if found is None:
        return None
    source = f"{namespace_of(found)}/{name_of(found)}"
    text = dig(found, "data", key)
    if not isinstance(text, str):
        return Parsed(source, problem=f"it has no key {key}")
    try:
        document = reader.parse_yaml(text)
    except Refused as refusal:
        return Parsed(source, problem=f"{key} is not YAML ({refusal.message})")
    if document is not None and not isinstance(document, dict):
        return Parsed(source, problem=f"{key}: got {type(document).__name__}; allowed: fields with values")
    return Parsed(source, document or {})


def _server_time(reader: Reader) -> float | None:
    """Return the API server's time, which a review of oneself is stamped with: everybody may make one."""
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    answer = _try(lambda: reader.post("/apis/authentication.k8s.io/v1/selfsubjectreviews", body))
    stamp = dig(answer, "metadata", "creationTimestamp")
    return parse_time(str(stamp)) if stamp else None


def _try(request: Callable[[], Any]) -> Any:
    try:
        return request()
    except Refused:
        return None


def known_fields() -> frozenset[str]:
    """Return the paths of all fields that a job's spec has in this release."""
    text = resources.files("bert_operator.doctor").joinpath(FIELDS).read_text()
    return frozenset(line for line in text.splitlines() if not line.startswith("#"))
