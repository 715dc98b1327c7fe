"""The doctor's healthy cluster on a real API server, without controllers: what stands there stays as it was written.

Every change is remembered, so that the cluster is healthy again before the next fault is planted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from bert_operator.doctor.reading import Refused
from cluster_api import Api
from control_plane import ControlPlane
from doctor_cluster import PLURALS, Json, healthy_objects, lease, parse_yaml, pulled_event

GIVEN = ("uid", "resourceVersion", "creationTimestamp", "managedFields", "generation", "deletionTimestamp",
         "deletionGracePeriodSeconds")  # fmt: skip
"""What the API server writes into metadata."""


class ApiCluster:
    """Objects of an API server, as faults change them and the doctor reads them."""

    def __init__(self, control_plane: ControlPlane) -> None:
        self.api: Api = control_plane.api
        self._undo: list[Callable[[], object]] = []
        control_plane.install_mpi_operator()
        for item in healthy_objects(time.time()):
            self.add(item)
        self.add(pulled_event(self, "41.2s"))
        self._undo.clear()

    @contextmanager
    def planted(self, plant: Callable[[ApiCluster], None]) -> Iterator[None]:
        """Plant a fault, and take everything back that it did."""
        try:
            plant(self)
            yield
        finally:
            undo, self._undo = self._undo, []
            for step in reversed(undo):
                step()
            self._undo.clear()  # what healing would undo

    # What faults do.

    def add(self, document: Json) -> None:
        """Apply an object, and its status."""
        metadata = document["metadata"]
        name, namespace = metadata["name"], metadata.get("namespace", "")
        if document["kind"] == "Lease":
            # By the clock of this moment: that of the list's beginning may be seconds old.
            document = lease(name, time.time())
        kept = {key: value for key, value in metadata.items() if key not in GIVEN}
        whole = {**document, "metadata": kept}
        body = {key: value for key, value in whole.items() if key != "status"}
        self.api.server_side_apply(body, namespace).expect(200, 201)
        if document.get("status"):
            said = {key: whole[key] for key in ("apiVersion", "kind", "metadata", "status")}
            self.api.server_side_apply(said, namespace, subresource="status").expect(200, 201)
        resource = f"{document['apiVersion']}/{PLURALS[document['kind']]}"
        self._undo.append(lambda: self._delete(resource, name, namespace))

    def change(self, resource: str, name: str, namespace: str, change: Json) -> None:
        """Merge a change, and one of the status."""
        before = self.find(resource, name, namespace)
        rest = {key: value for key, value in change.items() if key != "status"}
        if rest:
            self.api.patch(resource, name, rest, namespace).expect()
        if "status" in change:
            self.api.patch(resource, name, {"status": change["status"]}, namespace, subresource="status").expect()
        self._undo.append(lambda: self._restore(resource, before))

    def remove(self, resource: str, name: str, namespace: str = "") -> None:
        """Delete an object."""
        before = self.find(resource, name, namespace)
        self._delete(resource, name, namespace)
        self._undo.append(lambda: self.add(before))

    def find(self, resource: str, name: str, namespace: str = "") -> Json:
        """Read an object; lists of one kind leave kind and version out, a single object does not."""
        return self.api.get(resource, name, namespace).expect()

    def _delete(self, resource: str, name: str, namespace: str) -> None:
        self.api.delete(resource, name, namespace, grace_s=0).expect(200, 202, 404)
        if self.api.get(resource, name, namespace).status == 200:
            # Nobody runs who would take the protection of a claim away.
            self.api.patch(resource, name, {"metadata": {"finalizers": None}}, namespace).expect(200, 404)

    def _restore(self, resource: str, before: Json) -> None:
        namespace = before["metadata"].get("namespace", "")
        if before["kind"] == "Lease":
            self.add(before)
            return
        for subresource in ("", "status") if before.get("status") else ("",):
            now = self.find(resource, before["metadata"]["name"], namespace)
            metadata = {**before["metadata"], "resourceVersion": now["metadata"]["resourceVersion"]}
            metadata.pop("managedFields", None)
            self.api.replace({**before, "metadata": metadata}, namespace, subresource=subresource).expect()


class ApiReader:
    """The doctor's reader by the tests' own client: a hundred requests take a second, and kubectl's a process each."""

    def __init__(self, api: Api) -> None:
        self._api = api

    def get(self, path: str) -> Any:
        """Return what is at a path."""
        return self._ask("GET", path)

    def post(self, path: str, body: Json) -> Any:
        """Return the answer to a review."""
        return self._ask("POST", path, body)

    def parse_yaml(self, text: str) -> Any:
        """Read YAML, by a library."""
        return parse_yaml(text)

    def _ask(self, method: str, path: str, body: Json | None = None) -> Any:
        answer = self._api.request(method, path, body)
        if answer.status >= 300:
            raise Refused(answer.status, answer.message)
        return answer.body
