"""Pods for tests: processes of ``bert-pod`` in namespaces of their own, with names that only they know.

A worker is process 1 of its own process namespace, behind the bridge that ``ssh_hosts`` brings up, and is called
``run-worker-0.run.default.svc`` as under mpi-operator. The file system is shared, as with a volume that all pods have.
"""

from __future__ import annotations

import os
import shlex
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pods
import ssh_hosts

PORT = 2222
SSH_VARIABLES = ("OMPI_MCA_plm_rsh_args", "HYDRA_LAUNCHER_EXTRA_ARGS", "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS")


@dataclass(frozen=True)
class Cluster:
    """Addresses, names and the key of the pods of one job."""

    folder: Path
    names: tuple[str, ...]
    hostfile: Path
    keys: Path

    @contextmanager
    def worker(self, number: int, **variables: str) -> Iterator[pods.Running]:
        """Start a worker's pod."""
        program = [*pods.POD, "worker", "--port", str(PORT), "--key-folder", str(self.keys)]
        namespace = ["ip", "netns", "exec", ssh_hosts._name("host", number + 1)]
        pod = [*namespace, "unshare", "--uts", "--ipc", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child"]
        script = self._script(f"hostname run-worker-{number}", program)
        with pods.running([*pod, "sh", "-c", script], self.folder / f"worker-{number}.log", **variables) as running:
            yield running

    @contextmanager
    def launcher(self, options: Sequence[str], program: Sequence[str], **variables: str) -> Iterator[pods.Running]:
        """Start the launcher's pod."""
        words = [*pods.POD, "launcher", "--hostfile", str(self.hostfile), "--ssh-port", str(PORT), *options]
        script = self._script("hostname run-launcher", [*words, "--", *program])
        # As mpi-operator does: GPUs are hidden from the launcher.
        hidden = {"NVIDIA_VISIBLE_DEVICES": "", **dict.fromkeys(SSH_VARIABLES, f"-i {self.keys / 'id_rsa'}")}
        command = ["unshare", "--uts", "--mount", "sh", "-c", script]
        with pods.running(command, self.folder / "launcher.log", **hidden, **variables) as running:
            yield running

    def _script(self, before: str, command: Sequence[str]) -> str:
        hosts = shlex.quote(str(self.folder / "hosts"))
        return f"mount --bind {hosts} /etc/hosts && {before} && exec {shlex.join(command)}"


@contextmanager
def started_cluster(folder: Path, workers: int) -> Iterator[Cluster]:
    """Bring the network of a job up."""
    with ssh_hosts.started_hosts(folder, workers) as hosts:
        names = tuple(f"run-worker-{number}.run.default.svc" for number in range(workers))
        hostfile = folder / "hostfile"
        hostfile.write_text("".join(f"{name} slots=1\n" for name in names))
        launcher = hosts.addresses[0].rpartition(".")[0] + ".254"
        lines = [f"{address} {name}" for address, name in zip(hosts.addresses, names, strict=True)]
        lines += [f"{launcher} run-launcher", "127.0.0.1 localhost"]
        (folder / "hosts").write_text("\n".join(lines) + "\n")
        yield Cluster(folder, names, hostfile, pods.make_keys(folder))


def end_process_1(worker: pods.Running) -> None:
    """Send SIGTERM to the worker's process 1, as Kubernetes does."""
    children = Path(f"/proc/{worker.process.pid}/task/{worker.process.pid}/children").read_text().split()
    os.kill(int(children[0]), signal.SIGTERM)
