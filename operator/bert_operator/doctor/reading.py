"""How the doctor reaches an API server: a protocol, so that a plugin, a test or a notebook may bring its own."""

from __future__ import annotations

from typing import Any, Protocol

FORBIDDEN, NOT_FOUND, NO_ANSWER = 403, 404, 0
UNAUTHORIZED = 401


class Refused(Exception):
    """The API server, or the way there, gave no object. ``status``: its HTTP status, 0 where no answer came."""

    def __init__(self, status: int, message: str) -> None:
        """Keep the server's words."""
        super().__init__(message)
        self.status, self.message = status, message


class Reader(Protocol):
    """Three requests, none of which changes anything; each raises Refused. Called from several threads at once."""

    def get(self, path: str) -> Any:
        """Return what is at a path of the API server: decoded JSON, or text where it is none."""

    def post(self, path: str, body: dict[str, Any]) -> Any:
        """Return the answer to a review (SelfSubjectAccessReview, SelfSubjectReview), which is stored nowhere."""

    def parse_yaml(self, text: str) -> Any:
        """Return what YAML means; the standard library cannot read it, kubectl can."""
