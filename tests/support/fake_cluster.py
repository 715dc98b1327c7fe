"""A cluster in memory: API documents, and the few verbs that the operator uses, with the API server's manners.

Documents are as the API server returns them, and are never changed once they are handed out: every write makes a new
one, under a new resourceVersion, and appends it to ``changes``, from which a watch may be played at any speed.
Controllers and pods are in fake_controllers.py. Nothing here acts by itself, and time stands still until it is moved.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Mapping
from typing import Any

from bert_operator.cluster.client import ApiError
from bert_operator.cluster.paths import path_of
from bert_operator.timestamps import render_time

Document = dict[str, Any]
Key = tuple[str, str, str]
"""Kind, namespace and name."""

NAMESPACE = "demo"
"""Where an object is whose namespace nobody names."""
KINDS = ("BertPretrainJob", "ConfigMap", "Event", "Job", "Lease", "MPIJob", "NetworkPolicy", "Pod")
FINAL_PHASES = ("Succeeded", "Failed")
START_S = 1_700_000_000.0


class FakeCluster:
    """Everything that exists, and the time."""

    def __init__(self) -> None:
        self.now_s = START_S
        self.objects: dict[Key, Document] = {}
        self.changes: list[tuple[str, Document]] = []
        """What a watch tells, oldest first: ADDED, MODIFIED or DELETED, and the object."""
        self.refusals: dict[str, tuple[int, str, str]] = {}
        """By kind: how its creation is refused, as by a quota: status, reason and message."""
        self.on_create: Callable[[Document], Document] = lambda document: document
        """An admission webhook: returns what is really created."""
        self._versions = itertools.count(101)
        self._uids = itertools.count(1)

    # Verbs, as the operator's client has them.

    def get(self, path: str) -> Document:
        """Return an object, or a list; raises ApiError."""
        kind, namespace, name, _ = split(path)
        if name:
            return self._require(kind, namespace, name)
        found = [item for item in self.all(kind) if namespace in ("", item["metadata"]["namespace"])]
        # Items of a list do not say what they are.
        return {"items": [{key: item[key] for key in item if key != "kind"} for item in found]}

    def create(self, path: str, document: Mapping[str, Any]) -> Document:
        """Create an object; raises ApiError."""
        kind, namespace, _, _ = split(path)
        name = document["metadata"]["name"]
        if refusal := self.refusals.get(kind):
            raise ApiError(*refusal)
        if (kind, namespace, name) in self.objects:
            raise ApiError(409, "AlreadyExists", f'{kind.lower()}s "{name}" already exists')
        metadata = {**document["metadata"], "namespace": namespace}
        return self.add(self.on_create({**document, "kind": kind, "metadata": metadata}))

    def patch(self, path: str, change: Mapping[str, Any]) -> Document:
        """Merge into the status of an object, of that version and uid only; raises ApiError."""
        kind, namespace, name, part = split(path)
        assert part == "status", "the operator patches nothing else"
        found, wanted = self._require(kind, namespace, name), change["metadata"]
        if any(found["metadata"][field] != wanted[field] for field in ("uid", "resourceVersion") if field in wanted):
            raise ApiError(409, "Conflict", f"the {kind} {name} has been modified")
        return self.update(found, status=merged(found.get("status") or {}, change["status"]))

    def delete(self, path: str, *, uid: str, version: int | None = None) -> Document:
        """Delete an object of that uid, and version where one is given, its dependents first; raises ApiError."""
        kind, namespace, name, _ = split(path)
        found = self._require(kind, namespace, name)
        if found["metadata"]["uid"] != uid:
            raise ApiError(409, "Conflict", f"the uid in the precondition is not that of {kind} {name}")
        if version is not None and found["metadata"]["resourceVersion"] != str(version):
            raise ApiError(409, "Conflict", f"the version in the precondition is not that of {kind} {name}")
        return self.mark_deleted(found)

    # The same for everybody else: no refusals, documents instead of paths.

    def all(self, kind: str) -> list[Document]:
        """Return all objects of a kind, in the order of their creation."""
        # At once: another thread may be creating some.
        return [item for (its_kind, _, _), item in list(self.objects.items()) if its_kind == kind]

    def find(self, kind: str, name: str) -> Document | None:
        """Return an object of the namespace that needs no name."""
        return self.objects.get((kind, NAMESPACE, name))

    def fresh(self, document: Document) -> Document | None:
        """Return an object as it is now; None where it is gone, even if another one has its name."""
        found = self.objects.get(_key(document))
        return found if found and found["metadata"]["uid"] == document["metadata"]["uid"] else None

    def owned_by(self, owner: Document) -> list[Document]:
        """Return what an object controls."""
        uid = owner["metadata"]["uid"]
        return [item for item in self.objects.values() if owner_uid(item) == uid]

    def add(self, document: Mapping[str, Any]) -> Document:
        """Create an object whatever speaks against it."""
        metadata = {
            "namespace": NAMESPACE,
            **document["metadata"],
            "uid": f"uid-{next(self._uids)}",
            "resourceVersion": str(next(self._versions)),
            "creationTimestamp": render_time(self.now_s),
            "generation": 1,
        }
        created = {**document, "metadata": metadata}
        assert _key(created) not in self.objects, "this name is taken"
        self.objects[_key(created)] = created
        self.changes.append(("ADDED", created))
        return created

    def update(self, document: Document, **parts: Any) -> Document:
        """Replace parts of an object, such as its status; nothing happens where that changes nothing."""
        found = self.objects[_key(document)]
        changed = {**found, **parts}
        if changed == found:
            return found
        metadata = {**changed["metadata"], "resourceVersion": str(next(self._versions))}
        if changed.get("spec") != found.get("spec"):
            metadata["generation"] += 1
        changed["metadata"] = metadata
        self.objects[_key(found)] = changed
        self.changes.append(("MODIFIED", changed))
        return changed

    def mark_deleted(self, document: Document) -> Document:
        """Delete in the foreground: an object stays until its dependents are gone, a pod until its containers are."""
        found = self.objects[_key(document)]
        if "deletionTimestamp" in found["metadata"]:
            return found
        marked = self.update(found, metadata={**found["metadata"], "deletionTimestamp": render_time(self.now_s)})
        if marked["kind"] == "Pod" and not (marked["spec"].get("nodeName") or _is_tracked(marked)):
            self.remove(marked)
        return marked

    def remove(self, document: Document) -> None:
        """Take an object away at once; the garbage collector looks after what it leaves behind."""
        found = self.objects.pop(_key(document))
        metadata = {**found["metadata"], "resourceVersion": str(next(self._versions))}
        self.changes.append(("DELETED", {**found, "metadata": metadata}))

    def warn(self, subject: Document, reason: str, message: str) -> None:
        """Write a Warning event; one that says the same is only brought up to date."""
        metadata = subject["metadata"]
        name = f"{metadata['name']}.{metadata['uid']}.{reason.lower()}"
        times = {"lastTimestamp": render_time(self.now_s)}
        if found := self.find("Event", name):
            self.update(found, **times)
            return
        about = {"kind": subject["kind"], "name": metadata["name"], "uid": metadata["uid"]}
        event = {"kind": "Event", "type": "Warning", "reason": reason, "message": message, "involvedObject": about}
        self.add({**event, "metadata": {"name": name}, **times})

    def collect_garbage(self) -> None:
        """Make one round as the garbage collector: delete what has lost its owner, and what is in an owner's way."""
        live = {item["metadata"]["uid"]: item for item in self.objects.values()}
        for item in list(self.objects.values()):
            owner = owner_uid(item)
            if owner and owner not in live and item["metadata"]["uid"] in live:
                self._delete_in_background(item)
        for item in [item for item in self.objects.values() if _waits_for_dependents(item)]:
            dependents = self.owned_by(item)
            for dependent in dependents:
                if "deletionTimestamp" not in dependent["metadata"]:
                    self.mark_deleted(dependent)
            if not dependents and self.fresh(item):
                self.remove(item)

    def _delete_in_background(self, item: Document) -> None:
        if item["kind"] == "Pod":
            self.mark_deleted(item)
        else:
            self.remove(item)

    @property
    def version(self) -> str:
        """The resourceVersion of the last change."""
        return self.changes[-1][1]["metadata"]["resourceVersion"] if self.changes else "100"

    def _require(self, kind: str, namespace: str, name: str) -> Document:
        found = self.objects.get((kind, namespace, name))
        if found is None:
            raise ApiError(404, "NotFound", f'{kind.lower()}s "{name}" not found')
        return found


def owner_uid(document: Document) -> str:
    """Return the uid of what controls an object; empty where nobody does."""
    return next((ref["uid"] for ref in document["metadata"].get("ownerReferences") or ()), "")


def owned(owner: Document) -> list[Document]:
    """Return the ownerReferences of what an object controls."""
    return [{"kind": owner["kind"], "uid": owner["metadata"]["uid"], "controller": True, "blockOwnerDeletion": True}]


def is_deleting(document: Document) -> bool:
    """Tell whether an object was deleted and is still there."""
    return "deletionTimestamp" in document["metadata"]


def merged(old: Mapping[str, Any], change: Mapping[str, Any]) -> Document:
    """Return a document with another one merged into it (RFC 7386)."""
    result = dict(old)
    for key, value in change.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, Mapping):
            before = result.get(key)
            result[key] = merged(before if isinstance(before, Mapping) else {}, value)
        else:
            result[key] = copy.deepcopy(value)
    return result


def _labels(document: Document) -> Mapping[str, str]:
    labels: Mapping[str, str] = document["metadata"].get("labels") or {}
    return labels


def _key(document: Document) -> Key:
    metadata = document["metadata"]
    return document["kind"], metadata["namespace"], metadata["name"]


def _is_tracked(pod: Document) -> bool:
    """Tell whether the Job controller has still to count a pod, which keeps it from vanishing."""
    return "batch.kubernetes.io/job-tracking" in (pod["metadata"].get("finalizers") or ())


def _waits_for_dependents(document: Document) -> bool:
    return is_deleting(document) and document["kind"] != "Pod"


_KIND_OF = {path_of(kind, None): kind for kind in KINDS}


def split(path: str) -> tuple[str, str, str, str]:
    """Return kind, namespace, name and subresource of a path; raises ApiError where there is no such resource."""
    group, _, rest = path.partition("/namespaces/")
    namespace, *parts = rest.split("/") if rest else ("", group.rpartition("/")[2])
    resource, name, part = (*parts, "", "", "")[:3]
    kind = _KIND_OF.get(f"{group}/{resource}" if rest else group)
    if kind is None:
        raise ApiError(404, "NotFound", f"the server could not find {path}")
    return kind, namespace, name, part
