"""An API server that holds nothing but copies of one large job, all suspended, and hands them out in pages.

It keeps one text for all of them, so that what the operator takes is seen and not what a real server would need beside
it. Statuses are kept; a watch is silent.
"""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

from aiohttp import web

from bert_operator.api.crd import PLURAL
from bert_operator.names import API_VERSION

Document = dict[str, Any]

_JOBS = f"/apis/{API_VERSION}/{PLURAL}"
_ONE = f"/apis/{API_VERSION}/namespaces/default/{PLURAL}/"
_KINDS = {
    f"/apis/{API_VERSION}": (PLURAL, "BertPretrainJob"),
    "/apis/batch/v1": ("jobs", "Job"),
    "/apis/kubeflow.org/v2beta1": ("mpijobs", "MPIJob"),
    "/api/v1": ("pods", "Pod"),
    # Kopf does not begin without them.
    "/apis/apiextensions.k8s.io/v1": ("customresourcedefinitions", "CustomResourceDefinition"),
}


class ManyJobs:
    """``with ManyJobs(job, count) as server: ... server.kubeconfig(folder)``."""

    def __init__(self, job: Document, count: int) -> None:
        """job: with its metadata, but for name and uid."""
        self._rest = json.dumps(job, ensure_ascii=False)[1:]
        self._metadata = json.dumps(job["metadata"], ensure_ascii=False)[1:]
        self.statuses: list[Document] = [{} for _ in range(count)]
        self._versions = list(range(1, count + 1))
        self._loop = asyncio.new_event_loop()
        self._is_up = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> ManyJobs:
        self._thread.start()
        assert self._is_up.wait(10), "the API server does not listen"
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def kubeconfig(self, folder: Path) -> Path:
        """Write a kubeconfig for it, and return its path."""
        path = folder / "kubeconfig"
        path.write_text(json.dumps({
            "apiVersion": "v1", "kind": "Config", "current-context": "it",
            "clusters": [{"name": "it", "cluster": {"server": f"http://127.0.0.1:{self._port}"}}],
            "users": [{"name": "it", "user": {"token": "none"}}],
            "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
        }))  # fmt: skip
        return path

    def _run(self) -> None:
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        self._stop = asyncio.Event()
        runner = web.ServerRunner(web.Server(self._answer, access_log=None), shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self._port = runner.addresses[0][1]
        self._is_up.set()
        await self._stop.wait()
        await runner.cleanup()

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        body, path = await request.read(), request.path
        if request.query.get("watch") == "true":
            response = web.StreamResponse(headers={"Content-Type": "application/json"})
            await response.prepare(request)
            await self._stop.wait()
            return response
        if path == _JOBS:
            return self._page(request)
        if path.startswith(_ONE):
            number = int(path.removeprefix(_ONE).removesuffix("/status").removeprefix("job-"))
            if request.method == "PATCH":
                self.statuses[number] |= json.loads(body)["status"]
                self._versions[number] += len(self._versions)
            return _json_text(self._show(number))
        return _json_text(json.dumps(_discover(path) or {"metadata": {"resourceVersion": "1"}, "items": []}))

    def _page(self, request: web.BaseRequest) -> web.Response:
        first, limit = int(request.query.get("continue") or 0), int(request.query.get("limit") or len(self.statuses))
        last = min(first + limit, len(self.statuses))
        resume = str(last) if last < len(self.statuses) else ""
        is_metadata = "PartialObjectMetadataList" in request.headers.get("Accept", "")
        items = ",".join(map(self._show_metadata if is_metadata else self._show, range(first, last)))
        head = {"resourceVersion": str(max(self._versions)), "continue": resume}
        return _json_text(f'{{"kind": "List", "metadata": {json.dumps(head)}, "items": [{items}]}}')

    def _show(self, number: int) -> str:
        return f'{{"status": {json.dumps(self.statuses[number])}, {self._named(self._rest, number)}'

    def _show_metadata(self, number: int) -> str:
        return f'{{"metadata": {{{self._named(self._metadata, number)}}}'

    def _named(self, text: str, number: int) -> str:
        own = {"name": f"job-{number}", "uid": f"uid-{number}", "resourceVersion": str(self._versions[number])}
        return text.replace('"name": "any"', json.dumps(own)[1:-1], 1)


def _json_text(text: str) -> web.Response:
    return web.Response(text=text, content_type="application/json")


def _discover(path: str) -> Document | None:
    """Return what tells a client which resources there are."""
    if path == "/api":
        return {"kind": "APIVersions", "versions": ["v1"]}
    if path == "/apis":
        served = [at.removeprefix("/apis/") for at in _KINDS if at.startswith("/apis/")]
        versions = [{"groupVersion": name, "version": name.partition("/")[2]} for name in served]
        groups = [{"name": each["groupVersion"].partition("/")[0], "versions": [each]} for each in versions]
        return {
            "kind": "APIGroupList",
            "groups": [{**group, "preferredVersion": group["versions"][0]} for group in groups],
        }
    if path not in _KINDS:
        return None
    found = [_KINDS[path], ("namespaces", "Namespace")] if path == "/api/v1" else [_KINDS[path]]
    verbs = ["get", "list", "watch", "patch", "create", "delete"]
    resources = [
        {"name": name, "singularName": kind.lower(), "kind": kind, "namespaced": True, "verbs": verbs}
        for name, kind in found
    ]
    return {"kind": "APIResourceList", "resources": resources}
