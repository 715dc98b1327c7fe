"""Run by ``helm test``: asks the operator whether it is ready, and the API server for what the operator lives on.

Standard library only; runs in the operator's image under the operator's account. Prints a line per check, and ends
with 1 where one failed. Arguments: the operator's address, and the namespaces that it works in (none: all).
"""

from __future__ import annotations

import json
import os
import ssl
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
GROUP = "apis/bert-operator.dev/v1alpha1"
TIMEOUT_S = 20.0


def ask_api_server(path: str) -> dict[str, Any]:
    """Return what the API server answers. Raises OSError."""
    host = f"{os.environ['KUBERNETES_SERVICE_HOST']}:{os.environ['KUBERNETES_SERVICE_PORT']}"
    token = (ACCOUNT / "token").read_text()
    request = urllib.request.Request(f"https://{host}/{path}", headers={"Authorization": f"Bearer {token}"})
    context = ssl.create_default_context(cafile=str(ACCOUNT / "ca.crt"))
    with urllib.request.urlopen(request, timeout=TIMEOUT_S, context=context) as answer:
        document: dict[str, Any] = json.load(answer)
    return document


def check_ready(operator: str) -> str:
    """Ask the operator itself, through its Service."""
    with urllib.request.urlopen(f"{operator}/readyz", timeout=TIMEOUT_S) as answer:
        return f"the operator answers {answer.status} at {operator}/readyz"


def check_definition() -> str:
    """See whether the kind is served in the version that this release speaks."""
    served = {item["name"] for item in ask_api_server(GROUP)["resources"]}
    missing = {"bertpretrainjobs", "bertpretrainjobs/status"} - served
    if missing:
        raise OSError(f"the API server does not serve {', '.join(sorted(missing))} of {GROUP}")
    return f"the API server serves {', '.join(sorted(served))}"


def check_rights(namespace: str) -> str:
    """List jobs under the operator's account."""
    place = f"namespaces/{namespace}/" if namespace else ""
    ask_api_server(f"{GROUP}/{place}bertpretrainjobs?limit=1")
    return f"its account may list jobs in {namespace or 'all namespaces'}"


def main(operator: str, namespaces: list[str]) -> int:
    """Make all checks, also after one that failed."""
    checks: list[Callable[[], str]] = [partial(check_ready, operator), check_definition]
    checks += [partial(check_rights, namespace) for namespace in namespaces or [""]]
    failed = 0
    for check in checks:
        try:
            print(f"ok: {check()}")
        except OSError as error:
            failed = 1
            print(f"failed: {error}")
    try:
        ask_api_server("apis/kubeflow.org/v2beta1")
    except OSError as error:
        print(f"note: no MPIJob API ({error}); jobs with more than one worker need mpi-operator")
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
