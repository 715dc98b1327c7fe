"""Hosts for tests of what crosses a network: namespaces of this machine with host names and sshd of their own.

They share the file system, as a cluster of machines with an NFS share does. Needs root, iproute2, util-linux and an
OpenSSH server; ``missing`` says what is not there. Everything is taken down by process id and by name.

``started_cluster`` makes pods of them, with names that only they know: a worker is process 1 of its own process
namespace, and is called ``run-worker-0.run.default.svc`` as under mpi-operator.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pods
from cluster_api import wait_until

PORT = 2222
SSH_VARIABLES = ("OMPI_MCA_plm_rsh_args", "HYDRA_LAUNCHER_EXTRA_ARGS", "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS")


@dataclass(frozen=True)
class Hosts:
    """Hosts that answer ssh."""

    addresses: tuple[str, ...]
    ssh_options: str
    """For mpirun: who to be and whom to trust."""


def missing() -> str:
    """Return what this machine lacks, empty if nothing."""
    lacking = [name for name in ("ip", "unshare") if shutil.which(name) is None] + pods.missing_openssh()
    if os.getuid() != 0:
        lacking.append("root")
    elif not lacking and _run("ip", "netns", "add", _name("probe", 0), check=False) != 0:
        lacking.append("the right to make network namespaces")
    else:
        _run("ip", "netns", "del", _name("probe", 0), check=False)
    return ", ".join(lacking)


@contextlib.contextmanager
def started_hosts(folder: Path, count: int, *, is_ipv6: bool = False) -> Iterator[Hosts]:
    """Bring hosts up behind a bridge of their own and take them down again. is_ipv6: they have no IPv4 there."""
    subnet = f"10.{64 + os.getpid() % 60}.{os.getpid() // 60 % 250}."
    if is_ipv6:
        subnet = f"fd00:{os.getpid() % 0x10000:x}::"
    key, host_key = folder / "key", folder / "host_key"
    for path in (key, host_key):
        _run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path))
    bridge = _name("br", 0)
    servers: list[subprocess.Popen[bytes]] = []
    try:
        _run("ip", "link", "add", bridge, "type", "bridge")
        _run("ip", "addr", "add", *_address(f"{subnet}254"), "dev", bridge)
        _run("ip", "link", "set", bridge, "up")
        for number in range(1, count + 1):
            _connect(number, f"{subnet}{number}", bridge)
            servers.append(_start_sshd(folder, number, key, host_key))
        addresses = tuple(f"{subnet}{number}" for number in range(1, count + 1))
        for address in addresses:
            wait_until(partial(answers, address, 22), f"{address} to answer ssh")
        options = f"-i {key} -o BatchMode=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null"
        yield Hosts(addresses, options)
    finally:
        for server in servers:
            server.kill()
            server.wait()
        for number in range(1, count + 1):
            _run("ip", "link", "del", _name("v", number), check=False)
            _run("ip", "netns", "del", _name("host", number), check=False)
        _run("ip", "link", "del", bridge, check=False)


@dataclass(frozen=True)
class Cluster:
    """Addresses, names and the key of the pods of one job."""

    folder: Path
    names: tuple[str, ...]
    hostfile: Path
    keys: Path

    @contextlib.contextmanager
    def worker(self, number: int, **variables: str) -> Iterator[pods.Running]:
        """Start a worker's pod."""
        program = [*pods.POD, "worker", "--port", str(PORT), "--key-folder", str(self.keys)]
        namespace = ["ip", "netns", "exec", _name("host", number + 1)]
        pod = [*namespace, "unshare", "--uts", "--ipc", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child"]
        script = self._script(f"hostname run-worker-{number}", program)
        with pods.running([*pod, "sh", "-c", script], self.folder / f"worker-{number}.log", **variables) as running:
            yield running

    @contextlib.contextmanager
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


@contextlib.contextmanager
def started_cluster(folder: Path, workers: int, *, is_ipv6: bool = False) -> Iterator[Cluster]:
    """Bring the network of a job up."""
    with started_hosts(folder, workers, is_ipv6=is_ipv6) as hosts:
        names = tuple(f"run-worker-{number}.run.default.svc" for number in range(workers))
        hostfile = folder / "hostfile"
        hostfile.write_text("".join(f"{name} slots=1\n" for name in names))
        launcher = hosts.addresses[0].removesuffix("1") + "254"
        lines = [f"{address} {name}" for address, name in zip(hosts.addresses, names, strict=True)]
        lines += [f"{launcher} run-launcher", "127.0.0.1 localhost"]
        (folder / "hosts").write_text("\n".join(lines) + "\n")
        yield Cluster(folder, names, hostfile, pods.make_keys(folder))


def end_process_1(worker: pods.Running) -> None:
    """Send SIGTERM to the worker's process 1, as Kubernetes does."""
    children = Path(f"/proc/{worker.process.pid}/task/{worker.process.pid}/children").read_text().split()
    os.kill(int(children[0]), signal.SIGTERM)


def answers(address: str, port: int) -> bool:
    """Tell that somebody listens. Raises OSError otherwise."""
    socket.create_connection((address, port), timeout=1).close()
    return True


def _name(kind: str, number: int) -> str:
    # Interface names end after 15 characters.
    return f"t{os.getpid()}{kind}{number}"


def _address(address: str) -> tuple[str, ...]:
    # nodad: it may be used at once.
    return (f"{address}/64", "nodad") if ":" in address else (f"{address}/24",)


def _connect(number: int, address: str, bridge: str) -> None:
    host, link = _name("host", number), _name("v", number)
    _run("ip", "netns", "add", host)
    _run("ip", "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", host)
    _run("ip", "link", "set", link, "master", bridge, "up")
    _run("ip", "netns", "exec", host, "ip", "addr", "add", *_address(address), "dev", "eth0")
    for device in ("eth0", "lo"):
        _run("ip", "netns", "exec", host, "ip", "link", "set", device, "up")


def _start_sshd(folder: Path, number: int, key: Path, host_key: Path) -> subprocess.Popen[bytes]:
    config = folder / f"sshd{number}.conf"
    lines = {
        "PidFile": "none",
        "HostKey": host_key,
        "AuthorizedKeysFile": key.with_suffix(".pub"),
        "PermitRootLogin": "prohibit-password",
        "StrictModes": "no",
        "UsePAM": "no",
    }
    config.write_text("".join(f"{name} {value}\n" for name, value in lines.items()))
    Path("/run/sshd").mkdir(exist_ok=True)  # sshd insists on it
    host = _name("host", number)
    command = f"hostname test-host-{number} && exec {pods.SSHD} -D -e -f {config}"
    with (folder / f"sshd{number}.log").open("wb") as log:
        return subprocess.Popen(
            ["ip", "netns", "exec", host, "unshare", "--uts", "sh", "-c", command], stdout=log, stderr=log
        )


def _run(*command: str, check: bool = True) -> int:
    return subprocess.run(command, capture_output=True, check=check).returncode
