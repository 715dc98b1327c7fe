"""What the doctor reads, asked of kubectl: with whatever context, credentials and proxies it has."""

from __future__ import annotations

import json
import re
from textwrap import indent
from typing import Any

from bert_operator.doctor.reading import Refused
from bert_operator.plugin.errors import ApiRefused, WaitTimeout
from bert_operator.plugin.kubectl import Kubectl

TIMEOUT_S = 30
"""Of one request; kubectl itself waits forever for an API server that does not answer."""

_LINE = re.compile(r"line (\d+)")
_WRAP = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: any\nheld:\n"


class KubectlReader:
    """``kubectl get --raw`` and the like."""

    def __init__(self, kubectl: Kubectl) -> None:
        """kubectl: its namespace is of no account. Where there is none, each method raises LaunchError."""
        self._kubectl = kubectl.within(None)

    def get(self, path: str) -> Any:
        """Return what is at a path. Raises Refused."""
        return _decode(self._call("get", "--raw", path, f"--request-timeout={TIMEOUT_S}s"))

    def post(self, path: str, body: dict[str, Any]) -> Any:
        """Return the answer to a review. Raises Refused."""
        words = ("create", "--raw", path, "-f", "-", f"--request-timeout={TIMEOUT_S}s")
        return _decode(self._call(*words, given=json.dumps(body)))

    def parse_yaml(self, text: str) -> Any:
        """Return what YAML means; kubectl converts it on this machine, inside an object of which it has a part."""
        document = _WRAP + indent(text, "  ")
        try:
            answer = self._call("label", "--local", "-f", "-", "-o", "json", "any=any", given=document)
        except Refused as refusal:
            before = _WRAP.count("\n")
            words = _LINE.sub(lambda found: f"line {int(found[1]) - before}", refusal.message)
            raise Refused(refusal.status, words.removeprefix("error parsing STDIN: ")) from None
        return json.loads(answer).get("held")

    def _call(self, *words: str, given: str | None = None) -> str:
        try:
            return self._kubectl.call(*words, given=given, timeout_s=2 * TIMEOUT_S)
        except WaitTimeout as error:
            raise Refused(0, str(error)) from error
        except ApiRefused as refused:
            raise Refused(refused.status, refused.said) from refused


def _decode(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
