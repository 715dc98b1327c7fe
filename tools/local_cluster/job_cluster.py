"""A cluster on which jobs really run, for tests and demonstrations: one made for the purpose, or the reader's own.

Without ``KUBECONFIG`` it is the one-node cluster of ``node``, with images built from this clone. With it, whatever that
file names is used: mpi-operator must run there, ``BERT_OPERATOR_IMAGE`` and ``BERT_TRAINER_IMAGE`` name images that its
nodes can pull, and ``BERT_STORAGE_CLASS`` one whose volumes may be shared by pods. If wanted, images with other MPIs
are named by ``BERT_TRAINER_IMAGE_MPICH`` and so on. A cluster that already has the operator is refused: its jobs would
go with it in the end. Tests that kill whole pods start a privileged one there, and tests of NFS are skipped.

What is done to it is done by kubectl, as users do it. Files on volumes are read by a pod that mounts them.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import secrets
import shlex
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from bert_operator.yaml_text import render_yaml
from cluster_api import wait_until
from control_plane import fill_documents
from node import Cluster, import_images, make_volume, volume_folder
from patience import PATIENCE_S

ROOT = Path(__file__).parents[2]
CLAIM = "bert"
USER = 54321
"""A user that no image knows."""
SYSTEM = "bert-operator"
READER = "files"
OPERATOR_IMAGE, TRAINER_IMAGE = "bert-operator.test/operator:dev", "bert-operator.test/trainer:dev"

Json = dict[str, Any]
T = TypeVar("T")

POLL_S = 0.3
_POLLED = {
    "bpj": "bert-operator.dev/v1alpha1/bertpretrainjobs",
    "pod": "v1/pods",
    "pods": "v1/pods",
}
"""What tests look at twice a second. On a node of our own the API server is asked without kubectl, whose start takes
80 ms of a core, a request 0.3 ms."""


class KubectlFailed(AssertionError):
    """kubectl ended badly; its own words are the message."""


@dataclass(frozen=True, slots=True)
class JobCluster:
    """A cluster and what its jobs are made of."""

    kubeconfig: Path
    operator_image: str
    trainer_image: str
    storage_class: str | None
    """None: volumes are folders of this machine's node."""
    node: Cluster | None
    """None: the reader's own cluster."""
    program: str = "kubectl"
    """Path of kubectl."""
    namespaces: list[str] = field(default_factory=list)
    """Those that were made here."""

    def kubectl(self, *words: str, text: str | None = None, timeout_s: float = 120) -> str:
        """Run kubectl and return what it printed. Raises KubectlFailed."""
        command = [self.program, "--kubeconfig", str(self.kubeconfig), *words]
        answer = subprocess.run(command, input=text, capture_output=True, text=True, timeout=timeout_s)
        if answer.returncode != 0:
            raise KubectlFailed(f"kubectl {' '.join(words)}: {answer.stderr.strip()}")
        return answer.stdout

    def trainer_with(self, mpi: str) -> str:
        """Return the trainer's image with another MPI: open-mpi, open-mpi-4, mpich or intel-mpi; empty: not to be had.

        On a cluster of the reader's own it is what BERT_TRAINER_IMAGE_OPEN_MPI_4 and the like name.
        """
        if mpi == "open-mpi":
            return self.trainer_image
        if self.node is None:
            return os.environ.get(f"BERT_TRAINER_IMAGE_{mpi.upper().replace('-', '_')}", "")
        import_images(self.node, f"trainer-{mpi}")
        return f"bert-operator.test/trainer-{mpi}:dev"

    def install_operator(
        self, folder: Path, settings: Json | None = None, *, components: Sequence[str] = ("one-replica",)
    ) -> None:
        """Install CRD, rights and operator as they are shipped, and wait until it is ready.

        Args:
            folder: To write into.
            settings: Of the operator, beside the image of the trainer.
            components: Of deploy/kustomize; by default those of the overlay for one node.
        """
        folder.mkdir(parents=True, exist_ok=True)
        name, _, tag = self.operator_image.rpartition(":")
        text = render_yaml({"trainerImage": self.trainer_image, "jobNetworkPolicy": True, **(settings or {})})
        patch = [{"op": "replace", "path": "/data/settings.yaml", "value": text}]
        overlay = {
            "resources": [os.path.relpath(ROOT / "deploy/kustomize/base", folder)],
            "components": [os.path.relpath(ROOT / "deploy/kustomize/components" / name, folder) for name in components],
            "images": [{"name": "registry.invalid/bert-operator/operator", "newName": name, "newTag": tag}],
            "patches": [
                {
                    "target": {"kind": "ConfigMap", "name": "bert-operator-settings"},
                    "patch": render_yaml(patch),
                }
            ],
        }
        (folder / "kustomization.yaml").write_text(render_yaml(overlay))
        self.kubectl("apply", "--server-side", "-k", str(folder))
        self.kubectl("-n", SYSTEM, "rollout", "status", "deployment/bert-operator", "--timeout=90s")

    def make_namespace(self, name: str, level: str = "restricted") -> Namespace:
        """Return a new namespace that enforces a Pod Security standard; its name begins so."""
        name = f"{name}-{secrets.token_hex(3)}"  # a cluster of the reader's own may have one that is called name
        labels = {"pod-security.kubernetes.io/enforce": level}
        document = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
        self.kubectl("create", "-f", "-", text=render_yaml(document))
        self.namespaces.append(name)
        namespace = Namespace(self, name)
        poll(lambda: namespace.find("serviceaccount", "default"), f"the ServiceAccount of {name}")
        return namespace

    def kill_pod(self, pod: Json) -> None:
        """SIGKILL every process of a pod, from a pod that sees the node's processes."""
        name = next((name for name in self.namespaces if name.startswith("killer-")), None)
        killer = Namespace(self, name) if name else self.make_namespace("killer", "privileged")
        name = f"killer-{pod['metadata']['uid'][:8]}"
        uid, node = pod["metadata"]["uid"], pod["spec"]["nodeName"]
        killer.apply(*fill_documents("killer", name=name, uid=uid, node=node, image=self.trainer_image))
        killer.wait_pod(name, "Succeeded")

    def delete_namespace(self, name: str) -> None:
        """Delete a namespace; on a node of our own nobody waits for that, since all of it goes in the end."""
        how = ["--wait=false"] if self.node is not None else ["--wait", "--timeout=110s"]
        self.kubectl("delete", "namespace", name, *how)
        self.namespaces.remove(name)


@dataclass(frozen=True, slots=True)
class Namespace:
    """One namespace of the cluster, with the volume that its jobs share."""

    cluster: JobCluster
    name: str

    def kubectl(self, *words: str, text: str | None = None, timeout_s: float = 120) -> str:
        """Run kubectl in this namespace."""
        return self.cluster.kubectl("--namespace", self.name, *words, text=text, timeout_s=timeout_s)

    def shell(self, command: str, timeout_s: float = 120) -> str:
        """Run a line of shell in which kubectl means this cluster and this namespace; return what it printed."""
        words = [self.cluster.program, "--kubeconfig", str(self.cluster.kubeconfig), "--namespace", self.name]
        here = f'kubectl() {{ command {shlex.join(words)} "$@"; }}'
        answer = subprocess.run(["bash", "-c", f"{here}\n{command}"], capture_output=True, text=True, timeout=timeout_s)
        assert answer.returncode == 0, f"{command}: exit code {answer.returncode}\n{answer.stderr}"
        return answer.stdout

    def apply(self, *documents: Json) -> None:
        """Apply objects."""
        self.kubectl("apply", "-f", "-", text="---\n".join(map(render_yaml, documents)))

    def find(self, kind: str, name: str) -> Json | None:
        """Return an object, None where there is none."""
        if self.cluster.node is not None and kind in _POLLED:
            answer = self.cluster.node.api.get(_POLLED[kind], name, self.name)
            return None if answer.status == 404 else answer.expect()
        text = self.kubectl("get", kind, name, "-o", "json", "--ignore-not-found")
        return json.loads(text) if text.strip() else None

    def list(self, kind: str, selector: str = "") -> list[Json]:
        """Return the objects of a kind, narrowed down by labels."""
        if self.cluster.node is not None and kind in _POLLED:
            return self.cluster.node.api.list(_POLLED[kind], self.name, labelSelector=selector)
        words = ["-l", selector] if selector else []
        return [*json.loads(self.kubectl("get", kind, *words, "-o", "json"))["items"]]

    @property
    def folder(self) -> Path | None:
        """The volume of this namespace, where it is a folder of this machine."""
        return None if self.cluster.node is None else volume_folder(self.cluster.node, self.name)

    def make_claim(self, name: str = CLAIM) -> None:
        """Make the volume that the jobs of this namespace share, and start the pod that reads it."""
        if self.cluster.node is not None:
            make_volume(self.cluster.node, self.name, name)
        else:
            self.apply(*fill_documents("claim", claim=name, storage_class=self.cluster.storage_class))
        self.apply(*fill_documents("reader", name=READER, image=self.cluster.trainer_image, user=USER, claim=name))
        # The first pod of a node waits until the image is unpacked: a minute, and more on a busy machine.
        self.wait_pod(READER, "Running", timeout_s=400)

    def python(self, program: str, *, pod: str = READER) -> str:
        """Run a program in a pod (the one that reads the volume, at /volume) and return what it printed."""
        return self.kubectl("exec", pod, "--", "python3", "-c", program)

    def put(self, folder: Path, place: str) -> None:
        """Copy the files of a folder to a new one on the volume."""
        program = (
            "import base64, json, pathlib, sys\n"
            f"folder = pathlib.Path('/volume', {place!r})\n"
            "folder.mkdir()\n"
            "for name, content in json.load(sys.stdin).items():\n"
            "    (folder / name).write_bytes(base64.b64decode(content))\n"
        )
        contents = {path.name: base64.b64encode(path.read_bytes()).decode() for path in sorted(folder.iterdir())}
        self.kubectl("exec", "-i", READER, "--", "python3", "-c", program, text=json.dumps(contents))

    def wait_pod(self, name: str, phase: str, timeout_s: float = PATIENCE_S) -> None:
        """Wait until a pod is in a phase."""

        def arrived() -> bool:
            pod = self.find("pod", name)
            return pod is not None and pod["status"].get("phase") == phase

        poll(arrived, f"pod {name} to be {phase}", timeout_s=timeout_s)


@contextlib.contextmanager
def running_cluster(folder: Path) -> Iterator[JobCluster]:
    """Start the one-node cluster, or take the one that KUBECONFIG names; what was added is removed at the end."""
    if os.environ.get("KUBECONFIG"):
        with _own_cluster() as cluster:
            yield cluster
        return
    with Cluster(folder) as node:
        import_images(node)
        kubeconfig = node.kubeconfig(node.admin_token)
        yield JobCluster(kubeconfig, OPERATOR_IMAGE, TRAINER_IMAGE, None, node, node.kubectl)


@contextlib.contextmanager
def _own_cluster() -> Iterator[JobCluster]:
    names = ("BERT_OPERATOR_IMAGE", "BERT_TRAINER_IMAGE", "BERT_STORAGE_CLASS")
    missing = [name for name in names if not os.environ.get(name)]
    assert not missing, f"KUBECONFIG is set; {', '.join(missing)} must be too (CONTRIBUTING.md, Tests on a cluster)"
    operator, trainer, storage = (os.environ[name] for name in names)
    cluster = JobCluster(Path(os.environ["KUBECONFIG"]), operator, trainer, storage, None)
    found = cluster.kubectl("get", "crd", "bertpretrainjobs.bert-operator.dev", "--ignore-not-found", "-o", "name")
    assert not found.strip(), f"{cluster.kubeconfig} names a cluster that has the operator already; use another one"
    try:
        yield cluster
    finally:
        for name in [*cluster.namespaces]:
            cluster.delete_namespace(name)
        cluster.kubectl("delete", "--ignore-not-found", "-k", str(ROOT / "deploy/kustomize/base"))


def poll(look: Callable[[], T], what: str | Callable[[], str], *, timeout_s: float = PATIENCE_S) -> T:
    """Wait as wait_until does, less often: for looks that start a process."""
    return wait_until(look, what, timeout_s=timeout_s, every_s=POLL_S)
