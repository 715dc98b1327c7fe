"""The operator as a process of its own, under its own ServiceAccount with the rights that its manifests give.

It can be killed and started again, keeps its port, and shows the end of its log where a start fails.
"""

from __future__ import annotations

import json
import re
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cluster_api import Api, wait_until
from component import Component, free_ports
from control_plane import ControlPlane, load_documents

MANIFESTS = Path(__file__).parents[2] / "deploy/kustomize"
ACCOUNT = "bert-operator"
USER = f"system:serviceaccount:{ACCOUNT}:{ACCOUNT}"
JOBS = "bert-operator.dev/v1alpha1/bertpretrainjobs"
HTTP_TIMEOUT_S = 10.0


class OperatorProcess(Component):
    """``bert-operator run``: ``with OperatorProcess(folder, kubeconfig) as operator: ...`` waits until it is ready."""

    def __init__(
        self,
        folder: Path,
        kubeconfig: Path,
        *,
        namespaces: Sequence[str] = (),
        name: str = "operator",
        wheel: Path | None = None,
        environment: Mapping[str, str] | None = None,
        **settings: Any,
    ) -> None:
        """Prepare it; folder: for its log and its settings, which are given as in their file.

        wheel: of another release, to be run in place of this one. environment: added to what this process has.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self.port = free_ports(1)[0]
        self._settings_file = folder / f"{name}-settings.yaml"
        self.configure(**settings)
        command = [sys.executable, "-m", "bert_operator", "run", "--settings", str(self._settings_file)]
        command += ["--http-port", str(self.port)]
        for namespace in namespaces:
            command += ["--namespace", namespace]
        own = {"KUBECONFIG": str(kubeconfig), **({} if wheel is None else {"PYTHONPATH": str(wheel)})}
        super().__init__(
            name, command, folder / f"{name}.log", self.is_ready, environment={**own, **(environment or {})}
        )

    def configure(self, **settings: Any) -> None:
        """Write other settings, which count from the next start on."""
        self._settings_file.write_text(json.dumps({"httpHost": "127.0.0.1", "sweepSeconds": 1, **settings}))

    def restart(self) -> None:
        """Kill it and start it."""
        self.kill()
        self.start()

    def is_ready(self) -> bool:
        """Tell whether it says so."""
        return self.page("/readyz")[0] == 200

    def page(self, path: str) -> tuple[int, str]:
        """Return status and text of one of its pages. Raises OSError while it does not listen."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=HTTP_TIMEOUT_S) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as refusal:
            with refusal:
                return refusal.code, refusal.read().decode()

    def figure(self, name: str) -> float:
        """Return one of its metrics by name and labels, as the page has them; 0 where it has none such yet."""
        return self.figures(name)[0]

    def figures(self, *names: str) -> list[float]:
        """Return several of its metrics, of one page."""
        page = self.page("/metrics")[1]
        found = (re.search(rf"^bert_operator_{re.escape(name)} (\S+)$", page, re.MULTILINE) for name in names)
        return [float(match[1]) if match else 0.0 for match in found]

    def wait_resyncs(self, count: int) -> None:
        """Return after so many more of its comparisons."""
        for _ in range(count):
            self._wait_resync(self.figure("last_sweep_timestamp_seconds"))

    def _wait_resync(self, before: float) -> None:
        wait_until(lambda: self.figure("last_sweep_timestamp_seconds") > before, "a resync")


def install_operator(control_plane: ControlPlane, namespaces: Sequence[str] = ()) -> str:
    """Apply definition, account and rights as they are shipped; return a token of the account.

    namespaces: to bind the rights in instead of everywhere.
    """
    api = control_plane.api
    for document in load_documents(MANIFESTS / "base/namespace.yaml"):
        api.server_side_apply(document).expect()
    for document in load_documents(MANIFESTS / "base/crd.yaml"):
        api.apply_crd(document)
    for document in load_documents(MANIFESTS / "base/rbac.yaml"):
        if not (namespaces and document["kind"] == "ClusterRoleBinding"):
            api.server_side_apply(document).expect()
    (binding,) = load_documents(MANIFESTS / "components/namespaced/role-binding.yaml")
    for namespace in namespaces:
        binding["metadata"]["namespace"] = namespace
        api.server_side_apply(binding).expect()
    token = control_plane.service_account_token(ACCOUNT, ACCOUNT)
    as_operator = control_plane.api_as(token)
    for namespace in namespaces or ("",):
        _wait_for_rights(as_operator, namespace)
    return token


def _wait_for_rights(api: Api, namespace: str) -> None:
    wait_until(lambda: api.get(JOBS, "", namespace).status == 200, "the operator's rights to count")
