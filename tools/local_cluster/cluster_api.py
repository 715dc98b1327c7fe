"""A small synchronous client of the Kubernetes API: JSON in, (status, JSON) out, nothing hidden.

It validates nothing and retries nothing. Connections are kept and shared by threads, so that thousands of dry-run
requests take seconds; one that the server has closed is opened anew.

Resources are named as in the server's paths: "v1/pods", "batch/v1/jobs", "kubeflow.org/v2beta1/mpijobs".
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote, urlencode

from urllib3 import PoolManager
from urllib3.exceptions import HTTPError

from patience import PATIENCE_S

T = TypeVar("T")
Json = dict[str, Any]
Documents = list[Json]

REQUEST_TIMEOUT_S = 30.0
POLL_S = 0.02
PATCH_TYPES = {
    "merge": "application/merge-patch+json",
    "json": "application/json-patch+json",
    "strategic": "application/strategic-merge-patch+json",
    "apply": "application/apply-patch+yaml",
}


class Answer(NamedTuple):
    """What the server said: ``status, body = api.get(...)``."""

    status: int
    body: Json

    @property
    def message(self) -> str:
        """The server's words where it refused."""
        return str(self.body.get("message", ""))

    def expect(self, *allowed: int) -> Json:
        """Return the body of a request that had to succeed (or to end with one of these statuses)."""
        if self.status in allowed or (not allowed and self.status < 300):
            return self.body
        raise AssertionError(f"the API server answered {self.status}: {self.message or self.body}")


Answers = list[Answer]


class Api:
    """The API of one server as one user sees it."""

    def __init__(self, url: str, ca_file: Path, token: str = "", *, headers: Mapping[str, str] | None = None) -> None:
        self.url, self.ca_file, self.token = url, ca_file, token
        self._headers = {"Accept": "application/json", **(headers or {})}
        if token:
            self._headers["Authorization"] = f"Bearer {token}"
        # The file appears when the server first starts, and is read by the first request.
        self._pool = PoolManager(ca_certs=str(ca_file), maxsize=32, retries=False, timeout=REQUEST_TIMEOUT_S)
        self._plurals: dict[tuple[str, str], tuple[str, bool]] = {}

    def close(self) -> None:
        """Close the kept connections; those in use close when their answer is there."""
        self._pool.clear()

    def as_user(self, name: str) -> Api:
        """Return the API as this user or ServiceAccount sees it, by impersonation; an administrator may do that."""
        return Api(self.url, self.ca_file, self.token, headers={"Impersonate-User": name})

    # Requests on names.

    def get(self, resource: str, name: str, namespace: str = "") -> Answer:
        """Read one object."""
        return self.request("GET", path_of(resource, name, namespace))

    def list(self, resource: str, namespace: str = "", **query: str) -> Documents:
        """Return the objects of one namespace (or of all); ``labelSelector=...`` and the like narrow it."""
        found = self.request("GET", path_of(resource, "", namespace), query=query).expect()
        return [*found["items"]]

    def patch(
        self,
        resource: str,
        name: str,
        change: Any,
        namespace: str = "",
        *,
        subresource: str = "",
        kind: str = "merge",
        **query: str,
    ) -> Answer:
        """Change one object. ``kind`` is merge, json, strategic or apply."""
        path = path_of(resource, name, namespace, subresource)
        return self.request("PATCH", path, change, query=query, content_type=PATCH_TYPES[kind])

    def delete(
        self,
        resource: str,
        name: str,
        namespace: str = "",
        *,
        propagation: str = "Background",
        grace_s: int | None = None,
    ) -> Answer:
        """Delete one object; ``propagation`` is Background, Foreground or Orphan."""
        options: Json = {"propagationPolicy": propagation}
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        return self.request("DELETE", path_of(resource, name, namespace), options)

    # Requests with whole objects: kind and API version say where they go.

    def create(
        self, document: Json, namespace: str = "", *, dry_run: bool = False, field_validation: str = "Strict"
    ) -> Answer:
        """Create an object. Unknown fields are refused unless ``field_validation`` is Ignore or Warn."""
        query = {"fieldValidation": field_validation, **({"dryRun": "All"} if dry_run else {})}
        return self.request("POST", self.path_for(document, namespace, named=False), document, query=query)

    def create_all(
        self, documents: Iterable[Json], namespace: str = "", *, dry_run: bool = False, threads: int = 8
    ) -> Answers:
        """Create many objects side by side; the answers come in the order of the documents."""
        return in_parallel(lambda document: self.create(document, namespace, dry_run=dry_run), documents, threads)

    def replace(self, document: Json, namespace: str = "", *, subresource: str = "") -> Answer:
        """Replace an object, or its status; a resourceVersion in it makes the server check that."""
        return self.request("PUT", self.path_for(document, namespace, subresource=subresource), document)

    def server_side_apply(
        self,
        document: Json,
        namespace: str = "",
        *,
        manager: str = "tests",
        force: bool = True,
        dry_run: bool = False,
        subresource: str = "",
    ) -> Answer:
        """Apply what the document says, as ``kubectl apply --server-side`` does."""
        query = {"fieldManager": manager, "force": str(force).lower(), "fieldValidation": "Strict"}
        if dry_run:
            query["dryRun"] = "All"
        path = self.path_for(document, namespace, subresource=subresource)
        return self.request("PATCH", path, document, query=query, content_type=PATCH_TYPES["apply"])

    def apply_crd(self, document: Json, timeout_s: float = 60) -> None:
        """Apply a CustomResourceDefinition and return when objects of its kinds can be created."""
        self.server_side_apply(document).expect()
        name, spec = document["metadata"]["name"], document["spec"]

        def is_served() -> bool:
            crd = self.get("apiextensions.k8s.io/v1/customresourcedefinitions", name).expect()
            conditions = {item["type"]: item["status"] for item in crd.get("status", {}).get("conditions") or []}
            # Established comes a moment before the handler: ask that one too.
            return conditions.get("Established") == "True" and all(
                self.get(f"{spec['group']}/{version['name']}/{spec['names']['plural']}", "").status == 200
                for version in spec["versions"]
                if version["served"]
            )

        wait_until(is_served, f"CustomResourceDefinition {name} to be established", timeout_s=timeout_s)

    def watch(self, resource: str, version: str, *, seconds: int, namespace: str = "") -> Iterator[Json]:
        """Yield what happens to the objects of a kind since a version, as {type, object}, for so many seconds.

        Raises:
            OSError: no answer, or another one than a watch; or it broke off.
        """
        query = {"watch": "true", "resourceVersion": version, "timeoutSeconds": str(seconds)}
        target = f"{self.url}{path_of(resource, '', namespace)}?{urlencode(query)}"
        try:
            response = self._pool.request("GET", target, headers=self._headers, preload_content=False)
            try:
                if response.status != 200:
                    raise OSError(f"watch of {resource}: {response.status}")
                begun = b""
                for part in response.stream():
                    *whole, begun = (begun + part).split(b"\n")
                    yield from map(json.loads, whole)
            finally:
                response.release_conn()
        except HTTPError as problem:
            raise OSError(f"watch of {resource}: {problem}") from problem

    # Below that.

    def path_for(self, document: Json, namespace: str = "", *, subresource: str = "", named: bool = True) -> str:
        """Return where an object lives; its plural comes from the server, once per kind."""
        version, kind = document["apiVersion"], document["kind"]
        metadata = document["metadata"]
        if (version, kind) not in self._plurals:
            for found in self.request("GET", _root_of(version)).expect()["resources"]:
                if "/" not in found["name"]:
                    self._plurals[version, found["kind"]] = (found["name"], found["namespaced"])
        plural, namespaced = self._plurals[version, kind]
        home = metadata.get("namespace") or namespace if namespaced else ""
        assert home or not namespaced, f"{kind} {metadata.get('name')}: give it a namespace"
        return path_of(f"{version}/{plural}", metadata["name"] if named else "", home, subresource)

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        query: Mapping[str, str] | None = None,
        content_type: str = "application/json",
    ) -> Answer:
        """Send one request. Raises OSError where no answer comes."""
        status, text = self._send(method, path, body, query, content_type)
        return Answer(status, _parse(text))

    def text(self, path: str) -> str:
        """Return a page that is not JSON, such as /metrics."""
        status, text = self._send("GET", path, None, None, "")
        assert status == 200, f"{path}: {status}"
        return text.decode()

    def _send(
        self, method: str, path: str, body: Any, query: Mapping[str, str] | None, content_type: str
    ) -> tuple[int, bytes]:
        content = None if body is None else json.dumps(body).encode()
        headers = self._headers if content is None else {**self._headers, "Content-Type": content_type}
        target = f"{self.url}{path}?{urlencode(query)}" if query else f"{self.url}{path}"
        try:
            response = self._pool.request(method, target, body=content, headers=headers)
        except HTTPError as problem:  # no OSError, though it tells of one
            raise OSError(f"{method} {path}: {problem}") from problem
        return response.status, response.data


def wait_until(
    predicate: Callable[[], T], what: str | Callable[[], str], *, timeout_s: float = PATIENCE_S, every_s: float = POLL_S
) -> T:
    """Poll until the predicate returns something true, and return that. An OSError counts as not yet.

    what: is waited for, or a function that says so in the end.

    Raises:
        TimeoutError: It did not; the text ends with what it returned or raised last.
    """
    deadline_s = time.monotonic() + timeout_s
    while True:
        last: object
        try:
            found = predicate()
            if found:
                return found
            last = found
        except OSError as problem:  # the server is away for a moment
            last = problem
        if time.monotonic() > deadline_s:
            raise TimeoutError(
                f"waited {timeout_s:g} s for {what if isinstance(what, str) else what()}; last: {last!r}"
            )
        time.sleep(every_s)


def in_parallel(function: Callable[[Any], T], items: Iterable[Any], threads: int = 8) -> list[T]:
    """Return the function's answers for all items, in their order."""
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(function, items))


def path_of(resource: str, name: str = "", namespace: str = "", subresource: str = "") -> str:
    """Return the path of an object, or of a collection where no name is given."""
    version, _, plural = resource.rpartition("/")
    scope = f"/namespaces/{quote(namespace)}" if namespace else ""
    end = "".join(f"/{quote(part, safe='/')}" for part in (name, subresource) if part)
    return f"{_root_of(version)}{scope}/{plural}{end}"


def kubeconfig_of(cluster: dict[str, str], token: str) -> Json:
    """Return a kubeconfig for the owner of a token. cluster: its server, and the file with its CA if it has one."""
    return {
        "apiVersion": "v1", "kind": "Config", "current-context": "it",
        "clusters": [{"name": "it", "cluster": cluster}],
        "users": [{"name": "it", "user": {"token": token}}],
        "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it", "namespace": "default"}}],
    }  # fmt: skip


def _root_of(api_version: str) -> str:
    return f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"


def _parse(text: bytes) -> Json:
    try:
        body = json.loads(text)
    except ValueError:  # /healthz and refusals before the API proper answer in words
        body = {"message": text.decode(errors="replace")}
    return body if isinstance(body, dict) else {"value": body}
