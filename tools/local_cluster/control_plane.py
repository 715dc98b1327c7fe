"""A real Kubernetes control plane without nodes: etcd, API server, controllers, scheduler and mpi-operator.

Processes of this machine on free ports of 127.0.0.1, their data in one folder; tools/control_plane/build.sh builds
what is missing. There is no kubelet: pods stay Pending until somebody says what becomes of them. Nothing here is as
safe as a cluster must be: etcd does not sync to disk, and tokens lie in files.
"""

from __future__ import annotations

import atexit
import base64
import contextlib
import hashlib
import http.client
import json
import os
import secrets
import shutil
import ssl
import subprocess
import tempfile
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from string import Template
from types import TracebackType
from typing import Any

import yaml

from cluster_api import Api, kubeconfig_of, wait_until
from component import Component, free_ports

BUILD = Path(__file__).parents[1] / "control_plane/build.sh"
PROGRAMS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "mpi-operator")
MPI_NAMESPACE = "mpi-operator"
CONFIGURATION = Path(__file__).parent / "templates"
"""Templates of what the programs read and are started with."""


class ControlPlane:
    """A running control plane: ``with ControlPlane(folder) as control_plane: ...``.

    Its parts are ``etcd``, ``api_server``, ``controller_manager``, ``scheduler`` and ``mpi_operator``; each can be
    stopped, killed and started by itself and keeps its port. ``start`` says which of the last three run from the
    beginning. ``api`` is the administrator's client.
    """

    def __init__(
        self,
        folder: Path | None = None,
        start: Collection[str] = PROGRAMS,
        *,
        definitions: Iterable[dict[str, Any]] = (),
        audited_users: Sequence[str] = (),
        gang_scheduler: str = "",
    ) -> None:
        """Prepare it.

        Args:
            folder: For its data and logs; a temporary one otherwise.
            start: What runs from the beginning.
            definitions: CustomResourceDefinitions that are there before the controllers are: the garbage collector
                looks for new ones every half minute only.
            audited_users: Whose requests ``audit_log`` lists.
            gang_scheduler: The scheduler for whose PodGroups mpi-operator is started (``--gang-scheduling``); their
                definition has to be among ``definitions``.
        """
        unknown = set(start) - set(PROGRAMS)
        assert not unknown, f"start: got {sorted(unknown)}; allowed: {', '.join(PROGRAMS)}"
        # The newest scheduler waits for resources that the oldest supported API server does not have.
        self._start = set(start) - ({"kube-scheduler"} if is_oldest() else set())
        self._definitions, self._audited_users = tuple(definitions), tuple(audited_users)
        self._gang_scheduler = gang_scheduler
        self._temporary = None if folder else tempfile.TemporaryDirectory(prefix="control-plane-")
        self.folder = folder or Path(self._temporary.name if self._temporary else "")
        self._ports = dict(zip((*PROGRAMS[:4], "etcd peer"), free_ports(5), strict=True))
        self.url = f"https://127.0.0.1:{self._ports['kube-apiserver']}"
        self.ca_file = self.folder / "certificates/apiserver.crt"
        self.admin_token = secrets.token_hex(16)
        self.api = Api(self.url, self.ca_file, self.admin_token)
        self.parts: tuple[Component, ...] = ()

    def __enter__(self) -> ControlPlane:
        """Start it: about 5 s on two cores."""
        atexit.register(self.close)
        try:
            self._programs = built_programs()
            self._write_secrets()
            self._define_parts()
            self.etcd.start()
            self.api_server.start()
            wait_until(lambda: self.api.get("v1/namespaces", "default").status == 200, "namespace default")
            others = self._controllers()
            for definition in self._definitions:
                self.api.apply_crd(definition)
            if self.mpi_operator in others:
                self.install_mpi_operator()
            for part in others:
                part.launch()
            for part in others:
                part.wait_ready()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End every process and remove the data; logs stay in a folder that was given. May be called again."""
        atexit.unregister(self.close)
        self.api.close()
        for part in reversed(self.parts):
            part.kill()  # without good-byes: nobody reads this data again
        shutil.rmtree(self.folder / "etcd", ignore_errors=True)
        if self._temporary:
            self._temporary.cleanup()

    def restart_controllers(self) -> None:
        """End and start what asks the API server: after an outage it would pause for a minute between two tries."""
        for part in self._controllers():
            part.kill()
            part.start()

    def api_as(self, token: str) -> Api:
        """Return the API as the owner of this token sees it."""
        return Api(self.url, self.ca_file, token)

    def kubeconfig(self, token: str, *, server: str = "") -> Path:
        """Write a kubeconfig for the owner of this token and return its path. server: that stands in between."""
        path = self.folder / f"kubeconfig-{hashlib.sha256(f'{token}{server}'.encode()).hexdigest()[:12]}"
        self._write_kubeconfig(path, token, server)
        return path

    def service_account_token(self, namespace: str, name: str, lifetime_s: int = 86_400) -> str:
        """Return a token that the API server issues to an existing ServiceAccount; it takes no less than 600 s."""
        request = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": lifetime_s},
        }
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
        return str(self.api.request("POST", path, request).expect()["status"]["token"])

    def install_mpi_operator(self) -> None:
        """Apply what its release ships: CRD, ServiceAccount and ClusterRole, and no right beyond that."""
        self.api.server_side_apply(namespace_of(MPI_NAMESPACE)).expect()
        manifests = self._programs / "mpi-operator-manifests"
        for name in ("service-account", "cluster-role", "cluster-role-binding"):
            for document in load_documents(manifests / f"{name}.yaml"):
                for subject in document.get("subjects", ()):
                    subject["namespace"] = MPI_NAMESPACE  # as its kustomization does
                self.api.server_side_apply(document, MPI_NAMESPACE).expect()
        for document in load_documents(manifests / "kubeflow.org_mpijobs.yaml"):
            self.api.apply_crd(document)

    def _controllers(self) -> list[Component]:
        return [part for part in self.parts[2:] if part.name in self._start]

    def _write_secrets(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        _write_private(self.folder / "tokens.csv", f"{self.admin_token},admin,admin,system:masters\n")
        _write_private(self.folder / "service-accounts.key", elliptic_key())
        self._write_kubeconfig(self.folder / "kubeconfig-admin", self.admin_token)

    def _write_kubeconfig(self, path: Path, token: str, server: str = "") -> None:
        cluster = {"server": server} if server else {"server": self.url, "certificate-authority": str(self.ca_file)}
        _write_private(path, json.dumps(kubeconfig_of(cluster, token)))

    def _define_parts(self) -> None:
        folder = self.folder
        self.etcd = self._part("etcd", self.arguments("etcd"), "http", "/readyz")
        self.api_server = self._part("kube-apiserver", self.api_server_arguments(), "https", "/readyz")
        self.controller_manager = self._part(
            "kube-controller-manager", self.controller_manager_arguments(), "https", "/healthz"
        )
        self.scheduler = self._part("kube-scheduler", self.arguments("kube-scheduler"))
        gangs = [f"-gang-scheduling={self._gang_scheduler}"] if self._gang_scheduler else []
        self.mpi_operator = Component(
            "mpi-operator",
            [str(self._programs / "mpi-operator"), *self.arguments("mpi-operator"), *gangs],
            folder / "mpi-operator.log",
            self._mpi_operator_leads,
            environment={"KUBECONFIG": ""},  # it would win over the argument
            before_launch=self._prepare_mpi_operator,
            # It ends where the API server was away for longer than it may go without its lease, and counts on its
            # Deployment to bring it back.
            relaunch=True,
        )
        self.parts = (self.etcd, self.api_server, self.controller_manager, self.scheduler, self.mpi_operator)

    def arguments(self, name: str) -> list[str]:
        """Return what a program is started with."""
        listed = yaml.safe_load((CONFIGURATION / "arguments.yaml").read_text())[name]
        flat = [word for entry in listed for word in (entry if isinstance(entry, list) else [entry])]
        ports = {program.translate(str.maketrans("- ", "__")): port for program, port in self._ports.items()}
        values = {"folder": self.folder, "name": name, "own_port": self._ports.get(name), **ports}
        return [fill(word, values) for word in flat]

    def api_server_arguments(self) -> list[str]:
        """Return the API server's command line; a cluster with nodes changes some of it."""
        arguments = self.arguments("kube-apiserver")
        if self._audited_users:
            policy = self.folder / "audit-policy.yaml"
            policy.write_text(json.dumps(audit_policy(self._audited_users)))
            arguments += [f"--audit-policy-file={policy}", f"--audit-log-path={self.folder / 'audit.log'}"]
            # Else the last requests are missing from the file for a while.
            arguments += ["--audit-log-mode=blocking"]
        return arguments

    def audit_log(self) -> list[dict[str, Any]]:
        """Return what the audited user has asked for so far, each request once, as audit.k8s.io/v1 has it."""
        path = self.folder / "audit.log"
        # What comes after the last line break is still being written.
        whole, _, _ = (path.read_text() if path.exists() else "").rpartition("\n")
        return [json.loads(line) for line in whole.splitlines()]

    def controller_manager_arguments(self) -> list[str]:
        """Return the controller manager's."""
        return self.arguments("kube-controller-manager")

    def _part(self, name: str, arguments: Sequence[str], scheme: str = "https", path: str = "/healthz") -> Component:
        command = [str(self._programs / name), *arguments]
        port = self._ports[name]
        return Component(name, command, self.folder / f"{name}.log", lambda: answers(scheme, port, path))

    def _prepare_mpi_operator(self) -> None:
        # A killed predecessor would keep the lease, and this one waiting, for 15 s.
        self.api.delete("coordination.k8s.io/v1/leases", "mpi-operator", MPI_NAMESPACE)
        token = self.service_account_token(MPI_NAMESPACE, "mpi-operator")
        self._write_kubeconfig(self.folder / "kubeconfig-mpi-operator", token)

    def _mpi_operator_leads(self) -> bool:
        return self.api.get("coordination.k8s.io/v1/leases", "mpi-operator", MPI_NAMESPACE).status == 200


def audit_policy(users: Sequence[str]) -> dict[str, Any]:
    """Have some users' requests logged, without their bodies, when they are answered or a watch begins."""
    rules = [{"level": "Metadata", "users": list(users)}, {"level": "None"}]
    omitted = ["RequestReceived"]
    return {"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": omitted, "rules": rules}


def fill(template: str, values: Mapping[str, object]) -> str:
    """Return one of those templates with its ``$names`` filled in."""
    return Template(template).substitute(values)


def fill_documents(template: str, /, **values: object) -> list[dict[str, Any]]:
    """Return the objects of a template."""
    return [*yaml.safe_load_all(fill((CONFIGURATION / f"{template}.yaml").read_text(), values))]


def is_oldest() -> bool:
    """Return whether tests are to meet the API server of the oldest supported release."""
    return os.environ.get("BERT_TEST_KUBERNETES") == "oldest"


def built_programs(*names: str) -> Path:
    """Return a folder with these programs (and their manifests), built before if they are not in the cache.

    Args:
        names: As tools/control_plane/build.sh takes them; none: those of a control plane.
    """
    answer = subprocess.run([str(BUILD), *(names or PROGRAMS)], stdout=subprocess.PIPE, text=True)
    assert answer.returncode == 0, f"{BUILD} failed; what it printed to standard error says why"
    return Path(answer.stdout.strip())


def load_documents(path: Path) -> list[dict[str, Any]]:
    """Return the documents of a YAML file, empty ones left out."""
    # libyaml where there is one: definitions of a megabyte take seconds otherwise.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return [document for document in yaml.load_all(path.read_text(), Loader=loader) if document]


def namespace_of(name: str, labels: dict[str, str] | None = None) -> dict[str, Any]:
    """Return a Namespace as a document."""
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels or {}}}


def elliptic_key() -> str:
    """Return a new P-256 key as PEM, without a cryptographic library and without OpenSSL's command.

    RFC 5915: a sequence of version 1, the 32 bytes of the private key and the curve's name. Readers compute the
    public half. Any 32 bytes are a key except zero and those from the curve's order (FFFFFFFF 00000000 ...) on.
    """
    private = b"\x7f" + secrets.token_bytes(31)
    sequence = bytes.fromhex("30310201010420") + private + bytes.fromhex("a00a06082a8648ce3d030107")
    label = "EC PRIVATE KEY"
    return f"-----BEGIN {label}-----\n{base64.encodebytes(sequence).decode()}-----END {label}-----\n"


def answers(scheme: str, port: int, path: str) -> bool:
    """Return whether a server of this machine answers 200; who it is does not matter here."""
    unchecked = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    unchecked.check_hostname, unchecked.verify_mode = False, ssl.CERT_NONE
    secure = http.client.HTTPSConnection("127.0.0.1", port, timeout=2, context=unchecked)
    connection = secure if scheme == "https" else http.client.HTTPConnection("127.0.0.1", port, timeout=2)
    with contextlib.closing(connection):
        connection.request("GET", path)
        return connection.getresponse().status == 200


def _write_private(path: Path, text: str) -> None:
    path.touch(mode=0o600)
    path.write_text(text)
