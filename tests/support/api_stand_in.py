"""An API server of nothing but lists, objects and open watches, to be as slow, or as wrong about time, as a test wants.

It has no rules and no controllers, and its watches tell of changes only if they shall: tests/api_server runs against
a real one. Runs in a thread of its own.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
import time
from collections import Counter
from contextlib import suppress
from email.utils import formatdate
from pathlib import Path
from types import TracebackType
from typing import Any

from aiohttp import web

from bert_operator.timestamps import render_time
from fake_cluster import merged

Json = dict[str, Any]

START_DEADLINE_S = 10.0
POLL_S = 0.02
# Kopf does not begin without the last two.
RESOURCES = {
    "bert-operator.dev/v1alpha1": {"bertpretrainjobs": "BertPretrainJob"},
    "batch/v1": {"jobs": "Job"},
    "kubeflow.org/v2beta1": {"mpijobs": "MPIJob"},
    "v1": {"configmaps": "ConfigMap", "events": "Event", "pods": "Pod", "namespaces": "Namespace"},
    "apiextensions.k8s.io/v1": {"customresourcedefinitions": "CustomResourceDefinition"},
}


class ApiStandIn:
    """``with ApiStandIn(delay_s=30) as server: ... server.kubeconfig(folder)``."""

    def __init__(self, *, delay_s: float = 0.0, bookmark_s: float = 60.0) -> None:
        """delay_s: seconds before every answer; a watch is opened after as many. bookmark_s: between two bookmarks."""
        self.delay_s, self._bookmark_s = delay_s, bookmark_s
        self.ahead_s = 0.0
        """Seconds by which the clock behind its Date header is ahead."""
        self.objects: dict[str, Json] = {}
        """By path."""
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
        self.url = ""
        self._versions = itertools.count(1)
        self._changes: list[tuple[str, str, Json]] = []
        self._loop = asyncio.new_event_loop()
        self._is_up = threading.Event()
        self._thread = threading.Thread(target=self._run, name="api-stand-in", daemon=True)

    def __enter__(self) -> ApiStandIn:
        self._thread.start()
        assert self._is_up.wait(START_DEADLINE_S), "the API server does not listen"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def kubeconfig(self, folder: Path) -> Path:
        """Write a kubeconfig for it, and return its path."""
        path = folder / "kubeconfig"
        path.write_text(json.dumps({
            "apiVersion": "v1", "kind": "Config", "current-context": "it",
            "clusters": [{"name": "it", "cluster": {"server": self.url}}],
            "users": [{"name": "it", "user": {"token": "none"}}],
            "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
        }))  # fmt: skip
        return path

    def put(self, collection: str, document: Json) -> Json:
        """Have an object, at the path of its collection."""
        namespace = collection.partition("/namespaces/")[2].split("/")[0]
        created = render_time(time.time() + self.ahead_s)
        metadata = {"uid": f"uid-{next(self._versions)}", "generation": 1, "creationTimestamp": created}
        stored = {**document, "metadata": {**metadata, **document["metadata"], "namespace": namespace}}
        return self._store("ADDED", f"{collection}/{document['metadata']['name']}", stored)

    def update(self, path: str, change: Json) -> Json:
        """Merge into an object."""
        return self._store("MODIFIED", path, merged(self.objects[path], change))

    def remove(self, path: str) -> Json:
        """Take an object away."""
        removed = self._store("DELETED", path, self.objects[path])
        del self.objects[path]
        return removed

    def _store(self, how: str, path: str, document: Json) -> Json:
        stored = {**document, "metadata": {**document["metadata"], "resourceVersion": str(next(self._versions))}}
        self.objects[path] = stored
        self._changes.append((how, path, stored))
        return stored

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        self._stop = asyncio.Event()
        runner = web.ServerRunner(
            web.Server(self._answer, access_log=None, handler_cancellation=True), shutdown_timeout=0.1
        )
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, backlog=1024).start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        self._is_up.set()
        await self._stop.wait()
        await runner.cleanup()

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        self.requests[request.method] += 1
        body = await request.read()
        if request.path in self.refuses:
            return web.json_response(_refusal(403, "Forbidden"), status=403)
        await asyncio.sleep(self.delay_s)
        date = {"Date": formatdate(time.time() + self.ahead_s, usegmt=True)}
        path, _, part = request.path.partition("/log")
        if part or request.path.endswith("/log"):
            return await self._show_log(path.rpartition("/")[2], date)
        if request.query.get("watch") == "true":
            return await self._watch(request, date)
        status, document = self._look_up(request.method, request.path, json.loads(body) if body else {})
        if "items" in document:
            status, document = self._cut(document, request.query.get("limit"), request.query.get("continue"))
        return web.json_response(document, status=status, headers=date)

    def _look_up(self, method: str, path: str, body: Json) -> tuple[int, Json]:
        if method == "GET" and (found := _discover(path)) is not None:
            return 200, found
        name = path.removesuffix("/status")
        if method == "POST":
            if f"{path}/{body['metadata']['name']}" in self.objects:
                return 409, _refusal(409, "AlreadyExists")
            return 201, self.put(path, body)
        if name in self.objects:
            if method == "PATCH":
                return 200, self.update(name, {key: value for key, value in body.items() if key != "metadata"})
            return 200, self.remove(name) if method == "DELETE" else self.objects[name]
        if method == "GET" and path.rpartition("/")[2] in {plural for kinds in RESOURCES.values() for plural in kinds}:
            items = [item for at, item in list(self.objects.items()) if _is_in(at, path)]
            return 200, {"metadata": {"resourceVersion": str(next(self._versions))}, "items": items}
        return 404, _refusal(404, "NotFound")

    def _cut(self, found: Json, limit: str | None, resume: str | None) -> tuple[int, Json]:
        """Return one page of a list."""
        if resume and self.expires > 0:
            self.expires -= 1
            return 410, _refusal(410, "Expired")
        begin = int(resume or 0)
        end = begin + int(limit or len(found["items"]))
        left = {"continue": str(end)} if end < len(found["items"]) else {}
        return 200, {"metadata": {**found["metadata"], **left}, "items": found["items"][begin:end]}

    async def _watch(self, request: web.BaseRequest, date: dict[str, str]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json", **date})
        self.watches += 1
        try:
            await response.prepare(request)
            since, told = int(request.query.get("resourceVersion", "0")), 0
            bookmark_at_s = time.monotonic() + self._bookmark_s
            while not self._stop.is_set():
                for how, path, document in self._changes[told:] if self.tells else ():
                    told += 1
                    if _is_in(path, request.path) and int(document["metadata"]["resourceVersion"]) > since:
                        await _tell(response, how, document)
                if time.monotonic() >= bookmark_at_s:
                    await _tell(response, "BOOKMARK", {"metadata": {"resourceVersion": str(next(self._versions))}})
                    bookmark_at_s += self._bookmark_s
                with suppress(TimeoutError):
                    left_s = max(0.0, bookmark_at_s - time.monotonic())
                    await asyncio.wait_for(self._stop.wait(), min(left_s, POLL_S) if self.tells else left_s)
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
                await self._stop.wait()
            finally:
                self.hanging -= 1
        return web.Response(text=text or "", headers=date)


async def _tell(response: web.StreamResponse, how: str, document: Json) -> None:
    await response.write(json.dumps({"type": how, "object": document}).encode() + b"\n")


def _is_in(path: str, collection: str) -> bool:
    """Tell whether an object is of a collection, or of one over all namespaces."""
    group, _, rest = path.partition("/namespaces/")
    return path.rpartition("/")[0] == collection or f"{group}/{rest.split('/')[1]}" == collection


def _discover(path: str) -> Json | None:
    """Return what tells a client which resources there are."""
    if path == "/api":
        return {"kind": "APIVersions", "versions": ["v1"]}
    if path == "/apis":
        groups = []
        for group, _, version in (name.partition("/") for name in RESOURCES if "/" in name):
            served = {"groupVersion": f"{group}/{version}", "version": version}
            groups.append({"name": group, "versions": [served], "preferredVersion": served})
        return {"kind": "APIGroupList", "groups": groups}
    kinds = RESOURCES.get(path.removeprefix("/apis/").removeprefix("/api/"))
    if kinds is None or path.count("/") not in (2, 3):
        return None
    verbs = ["get", "list", "watch", "patch", "create", "delete"]
    return {
        "kind": "APIResourceList",
        "resources": [
            {"name": plural, "singularName": kind.lower(), "kind": kind, "namespaced": True, "verbs": verbs}
            for plural, kind in kinds.items()
        ],
    }


def _refusal(code: int, reason: str) -> Json:
    return {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason, "message": "no"}
