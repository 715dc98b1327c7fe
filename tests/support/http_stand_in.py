"""An HTTP server on this machine that misbehaves as it is told: one answer after another for every path."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


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


@dataclass
class Server:
    """What is served, what went wrong on purpose, and what was asked for."""

    port: int = 0
    files: dict[str, bytes] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    """ETags, where they are not the default one."""
    plans: dict[str, list[Answer]] = field(default_factory=dict)
    """Answers to the next requests for a path; afterwards good ones."""
    requests: list[tuple[str, str | None]] = field(default_factory=list)
    """Paths and their Range headers, in order."""

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}{path}"


@contextmanager
def serve() -> Iterator[Server]:
    """Serve on a free port until the block ends."""
    server = Server()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None: ...

        def do_GET(self) -> None:
            server.requests.append((self.path, self.headers.get("Range")))
            plan = server.plans.get(self.path, [])
            answer = plan.pop(0) if plan else Answer()
            content = server.files.get(self.path)
            if answer.status == 200 and content is None and answer.body is None:
                answer = Answer(status=404)
            self._send(answer, content or b"")
            self.close_connection = True

        def _send(self, answer: Answer, content: bytes) -> None:
            tag = server.tags.get(self.path, '"v1"')
            headers = {"ETag": tag} if tag else {}
            status, body = answer.status, content
            asked = self.headers.get("Range")
            if status == 200 and asked and not answer.ignores_ranges and self.headers.get("If-Range") == tag:
                first = int(asked.removeprefix("bytes=").rstrip("-")) + answer.shifts_range
                status, body = (206, content[first:]) if first < len(content) else (416, b"")
                span = f"{first}-{len(content) - 1}" if status == 206 else "*"
                headers["Content-Range"] = f"bytes {span}/{len(content)}"
            if answer.body is not None:
                body = answer.body
            elif status not in (200, 206):
                body = b""
            length = len(body) if answer.said_length is None else answer.said_length
            self.send_response(status)
            for name, value in {"Content-Length": str(length), **headers, **answer.headers}.items():
                self.send_header(name, value)
            self.end_headers()
            with suppress(ConnectionError):  # whoever asked has gone away
                self.wfile.write(body if answer.breaks_after is None else body[: answer.breaks_after])

    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    httpd.daemon_threads = True
    server.port = httpd.server_address[1]
    thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        httpd.shutdown()
        httpd.server_close()
        thread.join()
