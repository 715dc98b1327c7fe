"""A reader that asks kubectl, with whatever context, credentials and proxies it has. The only one that starts it."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Sequence
from textwrap import indent
from typing import Any

from bert_operator.doctor.reading import FORBIDDEN, NO_ANSWER, NOT_FOUND, UNAUTHORIZED, Refused

TIMEOUT_S = 30
"""Of one request; kubectl itself waits forever for an API server that does not answer."""

# Error from server (Forbidden): nodes is forbidden: User "..." cannot list resource "nodes" ...
_REFUSAL = re.compile(r"Error from server(?: \((\w+)\))?: (.*)", re.DOTALL)
_LINE = re.compile(r"line (\d+)")
_STATUSES = {
    "BadRequest": 400,
    "Unauthorized": UNAUTHORIZED,
    "Forbidden": FORBIDDEN,
    "NotFound": NOT_FOUND,
    "MethodNotAllowed": 405,
    "AlreadyExists": 409,
    "Conflict": 409,
    "TooManyRequests": 429,
    "InternalError": 500,
    "ServiceUnavailable": 503,
    "Timeout": 504,
}
_WRAP = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: any\nheld:\n"


class KubectlReader:
    """``kubectl get --raw`` and the like."""

    def __init__(self, kubectl: Sequence[str] = ("kubectl",)) -> None:
        """Prepare it. kubectl: the program and options that come before its verb, such as --context."""
        self._kubectl = [*kubectl]

    def get(self, path: str) -> Any:
        """Return what is at a path. Raises Refused."""
        return _decode(self._run(["get", "--raw", path, f"--request-timeout={TIMEOUT_S}s"]))

    def post(self, path: str, body: dict[str, Any]) -> Any:
        """Return the answer to a review. Raises Refused."""
        words = ["create", "--raw", path, "-f", "-", f"--request-timeout={TIMEOUT_S}s"]
        return _decode(self._run(words, json.dumps(body)))

    def parse_yaml(self, text: str) -> Any:
        """Return what YAML means; kubectl converts it on this machine, inside an object of which it has a part."""
        document = _WRAP + indent(text, "  ")
        try:
            answer = self._run(["label", "--local", "-f", "-", "-o", "json", "any=any"], document)
        except Refused as refusal:
            before = _WRAP.count("\n")
            words = _LINE.sub(lambda found: f"line {int(found[1]) - before}", refusal.message)
            raise Refused(refusal.status, words.removeprefix("error: error parsing STDIN: ")) from None
        return json.loads(answer).get("held")

    def _run(self, words: Sequence[str], given: str = "") -> str:
        try:
            answer = subprocess.run(
                [*self._kubectl, *words], input=given, capture_output=True, text=True, timeout=2 * TIMEOUT_S
            )
        except FileNotFoundError as problem:
            raise Refused(NO_ANSWER, f"{self._kubectl[0]} is not on this machine's path: install kubectl") from problem
        except subprocess.TimeoutExpired as problem:
            raise Refused(NO_ANSWER, f"kubectl {words[0]} did not end within {problem.timeout:g} s") from problem
        if answer.returncode:
            raise _refusal(answer.stderr.strip())
        return answer.stdout


def _refusal(words: str) -> Refused:
    found = _REFUSAL.search(words)
    if found is None:
        is_unknown = "must be logged in" in words or "Unauthorized" in words
        return Refused(UNAUTHORIZED if is_unknown else NO_ANSWER, words or "kubectl said nothing")
    return Refused(_STATUSES.get(found[1] or "", 500), found[2].strip())


def _decode(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
