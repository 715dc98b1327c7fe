"""How the doctor reaches an API server: a protocol, so that a plugin, a test or a notebook may bring its own."""

from __future__ import annotations

from typing import Any, Protocol

FORBIDDEN, NOT_FOUND, NO_ANSWER = 403, 404, 0


class Refused(Exception):
    """The request failed. ``status``: HTTP status, 0 without a response."""

    def __init__(self, status: int, message: str) -> None:
        """Keep the server's words."""
        super().__init__(message)
        self.status, self.message = status, message


class Reader(Protocol):
    """Read-only access to an API server; each method raises Refused. Must be thread-safe."""

    def get(self, path: str) -> Any:
        """Return what is at a path of the API server: decoded JSON, or text where it is none."""

    def post(self, path: str, body: dict[str, Any]) -> Any:
        """Return the answer to a review (SelfSubjectAccessReview, SelfSubjectReview), which is stored nowhere."""

    def parse_yaml(self, text: str) -> Any:
        """Return what YAML means; the standard library cannot read it, kubectl can."""
