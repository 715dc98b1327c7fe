"""An HTTP server on this machine that misbehaves as it is told: one answer after another for every path."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field

from aiohttp import web

from served import Served


@dataclass
class Answer:
    """How one request is answered; by default as a good server would, ranges included."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    breaks_after: int | None = None
    """Bytes of the body after which the connection is closed."""
    said_length: int | None = None
    """In place of the right Content-Length."""
    ignores_ranges: bool = False
    shifts_range: int = 0
    """Bytes by which the part that is sent begins later than the one asked for."""
    body: bytes | None = None
    """In place of the file."""


class Server(Served):
    """What is served, what went wrong on purpose, and what was asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.files: dict[str, bytes] = {}
        self.tags: dict[str, str] = {}
        """ETags, where they are not the default one."""
        self.plans: dict[str, list[Answer]] = {}
        """Answers to the next requests for a path; afterwards good ones."""
        self.requests: list[tuple[str, str | None]] = []
        """Paths and their Range headers, in order."""

    def url_of(self, path: str) -> str:
        return f"{self.url}{path}"

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        path, asked = request.raw_path, request.headers.get("Range")
        self.requests.append((path, asked))
        plan = self.plans.get(path, [])
        answer, content = plan.pop(0) if plan else Answer(), self.files.get(path)
        status, body, tag = answer.status, content or b"", self.tags.get(path, '"v1"')
        if status == 200 and content is None and answer.body is None:
            status = 404
        headers = {"ETag": tag} if tag else {}
        if status == 200 and asked and not answer.ignores_ranges and request.headers.get("If-Range") == tag:
            first = int(asked.removeprefix("bytes=").rstrip("-")) + answer.shifts_range
            status, body = (206, body[first:]) if first < len(body) else (416, b"")
            span = f"{first}-{len(content or b'') - 1}" if status == 206 else "*"
            headers["Content-Range"] = f"bytes {span}/{len(content or b'')}"
        if answer.body is not None:
            body = answer.body
        elif status not in (200, 206):
            body = b""
        length = len(body) if answer.said_length is None else answer.said_length
        response = web.StreamResponse(
            status=status, headers={"Content-Length": str(length), **headers, **answer.headers}
        )
        response.force_close()
        with suppress(ConnectionError):  # whoever asked has gone away
            await response.prepare(request)
            await response.write(body if answer.breaks_after is None else body[: answer.breaks_after])
            if request.transport is not None:
                request.transport.close()  # after what is written, whatever length was said
        return response
