"""The cluster in memory behind HTTP, to be as slow, or as wrong about time, as a test wants.

It has no rules and no controllers, and its watches tell of changes only if they shall: tests/api_server runs against
a real one. Runs in a thread of its own.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from contextlib import suppress
from email.utils import formatdate

from aiohttp import web

from bert_operator.cluster.client import ApiError
from bert_operator.cluster.paths import path_of
from fake_cluster import KINDS, Document, FakeCluster, merged, split
from served import Served, refusal

POLL_S = 0.02
# Kopf does not begin without them.
ALWAYS_EMPTY = {"api/v1": ("namespaces", "Namespace"),
                "apis/apiextensions.k8s.io/v1": ("customresourcedefinitions", "CustomResourceDefinition")}  # fmt: skip


class ApiStandIn(Served):
    """``with ApiStandIn(delay_s=30) as server: ... server.kubeconfig(folder)``."""

    gives_up = True

    def __init__(self, *, delay_s: float = 0.0, bookmark_s: float = 60.0) -> None:
        """delay_s: seconds before every answer; a watch is opened after as many. bookmark_s: between two bookmarks."""
        super().__init__()
        self.cluster = FakeCluster()
        self.delay_s, self._bookmark_s = delay_s, bookmark_s
        self.ahead_s = 0.0
        """Seconds by which the clock behind its Date header is ahead."""
        self.logs: dict[str, str | None] = {}
        """By the pod's name; None: its kubelet hangs."""
        self.tells = False
        """Whether watches tell of changes."""
        self.refuses: set[str] = set()
        """Paths that are answered at once, with 403."""
        self.expires = 0
        """So many ``continue`` tokens of lists are refused from now on, with 410."""
        self.watches = 0
        """Open ones."""
        self.hanging = 0
        """Logs that somebody waits for."""
        self.requests: Counter[str] = Counter()
        """By method."""

    @property
    def objects(self) -> dict[str, Document]:
        """What exists, by path."""
        found = list(self.cluster.objects.items())
        return {path_of(kind, namespace, name): item for (kind, namespace, name), item in found}

    def put(self, collection: str, document: Document) -> Document:
        """Have an object, at the path of its collection."""
        kind, namespace, _, _ = split(collection)
        self._tick()
        return self.cluster.add(
            {**document, "kind": kind, "metadata": {**document["metadata"], "namespace": namespace}}
        )

    def update(self, path: str, change: Document) -> Document:
        """Merge into an object."""
        found = self.cluster.get(path)
        self._tick()
        return self.cluster.update(found, **{key: merged(found.get(key) or {}, part) for key, part in change.items()})

    def _tick(self) -> None:
        self.cluster.now_s = time.time() + self.ahead_s

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        self.requests[request.method] += 1
        body = await request.read()
        if request.path in self.refuses:
            return web.json_response(refusal(403, "Forbidden"), status=403)
        await asyncio.sleep(self.delay_s)
        self._tick()
        date = {"Date": formatdate(self.cluster.now_s, usegmt=True)}
        path, _, part = request.path.partition("/log")
        if part or request.path.endswith("/log"):
            return await self._show_log(path.rpartition("/")[2], date)
        if request.query.get("watch") == "true":
            return await self._watch(request, date)
        try:
            status, document = self._carry_out(request, json.loads(body) if body else {})
        except ApiError as refused:
            status, document = refused.status, refusal(refused.status, refused.reason)
        # In UTF-8, as a real one answers: escaped, the largest characters are three times as long.
        text = json.dumps(document, ensure_ascii=False)
        return web.Response(text=text, content_type="application/json", status=status, headers=date)

    def _carry_out(self, request: web.BaseRequest, body: Document) -> tuple[int, Document]:
        path = request.path
        if (found := _discover(path)) is not None:
            return 200, found
        match request.method:
            case "POST":
                return 201, self.cluster.create(path, body)
            case "PATCH":
                is_status = path.endswith("/status")
                return 200, self.cluster.patch(path, body) if is_status else self._merge(path, body)
            case "DELETE":
                deleted = self.cluster.delete(path, uid=body["preconditions"]["uid"])
                self.cluster.collect_garbage()
                return 200, deleted
        found = self.cluster.get(path)
        return (200, found) if "items" not in found else self._cut(found["items"], request)

    def _merge(self, path: str, change: Document) -> Document:
        """Merge into an object, of that version only."""
        metadata = change.get("metadata") or {}
        if metadata.get("resourceVersion") not in (None, self.cluster.get(path)["metadata"]["resourceVersion"]):
            raise ApiError(409, "Conflict", f"{path} has been modified")
        return self.update(path, {key: part for key, part in change.items() if key != "metadata"})

    def _cut(self, items: list[Document], request: web.BaseRequest) -> tuple[int, Document]:
        """Return one page of a list."""
        limit, resume = request.query.get("limit"), request.query.get("continue")
        if resume and self.expires > 0:
            self.expires -= 1
            return 410, refusal(410)
        begin = int(resume or 0)
        end = begin + int(limit or len(items))
        if "PartialObjectMetadataList" in request.headers.get("Accept", ""):
            items = [{"metadata": item["metadata"]} for item in items]
        left = {"continue": str(end)} if end < len(items) else {}
        return 200, {"metadata": {"resourceVersion": self.cluster.version, **left}, "items": items[begin:end]}

    async def _watch(self, request: web.BaseRequest, date: dict[str, str]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json", **date})
        self.watches += 1
        try:
            await response.prepare(request)
            since, told = int(request.query.get("resourceVersion", "0")), 0
            bookmark_at_s = time.monotonic() + self._bookmark_s
            while not self.stop.is_set():
                for how, document in self.cluster.changes[told:] if self.tells else ():
                    told += 1
                    if _is_in(document, request.path) and int(document["metadata"]["resourceVersion"]) > since:
                        await _tell(response, how, document)
                if time.monotonic() >= bookmark_at_s:
                    await _tell(response, "BOOKMARK", {"metadata": {"resourceVersion": self.cluster.version}})
                    bookmark_at_s += self._bookmark_s
                with suppress(TimeoutError):
                    left_s = max(0.0, bookmark_at_s - time.monotonic())
                    await asyncio.wait_for(self.stop.wait(), min(left_s, POLL_S) if self.tells else left_s)
        except ConnectionError:  # whoever listened has gone
            pass
        finally:
            self.watches -= 1
        return response

    async def _show_log(self, pod: str, date: dict[str, str]) -> web.StreamResponse:
        text = self.logs.get(pod, "")
        if text is None:
            self.hanging += 1
            try:
                await self.stop.wait()
            finally:
                self.hanging -= 1
        return web.Response(text=text or "", headers=date)


async def _tell(response: web.StreamResponse, how: str, document: Document) -> None:
    await response.write(json.dumps({"type": how, "object": document}).encode() + b"\n")


def _is_in(document: Document, collection: str) -> bool:
    """Tell whether an object is of a collection, or of one over all namespaces."""
    try:
        kind, namespace, _, _ = split(collection)
    except ApiError:  # one of those that are always empty
        return False
    return kind == document["kind"] and namespace in ("", document["metadata"]["namespace"])


def _discover(path: str) -> Document | None:
    """Return what tells a client which resources there are, and the lists of those of which there is none."""
    served: dict[str, list[tuple[str, str]]] = {group: [kind] for group, kind in ALWAYS_EMPTY.items()}
    for kind in KINDS:
        group, _, plural = path_of(kind, None)[1:].rpartition("/")
        served.setdefault(group, []).append((plural, kind))
    if path == "/api":
        return {"kind": "APIVersions", "versions": ["v1"]}
    if path == "/apis":
        versions = [{"groupVersion": at[5:], "version": at.rpartition("/")[2]} for at in served if at != "api/v1"]
        groups = [{"name": each["groupVersion"].partition("/")[0], "versions": [each]} for each in versions]
        return {
            "kind": "APIGroupList",
            "groups": [{**group, "preferredVersion": group["versions"][0]} for group in groups],
        }
    if path in [f"/{group}/{plural}" for group, (plural, _) in ALWAYS_EMPTY.items()]:
        return {"metadata": {"resourceVersion": "1"}, "items": []}
    if path[1:] not in served:
        return None
    verbs = ["get", "list", "watch", "patch", "create", "delete"]
    resources = [
        {"name": plural, "singularName": kind.lower(), "kind": kind, "namespaced": True, "verbs": verbs}
        for plural, kind in served[path[1:]]
    ]
    return {"kind": "APIResourceList", "resources": resources}
