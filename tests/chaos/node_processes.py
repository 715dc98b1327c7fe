"""Processes of pods as the node sees them; the node is this machine (cgroups(7), proc(5))."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

from job_cluster import Json

PROC = Path("/proc")


def processes_of(uid: str) -> list[int]:
    """Return the processes of a pod, but for the one that holds its namespaces."""
    found = []
    for process in PROC.glob("[0-9]*"):
        with suppress(OSError):
            # kubelet's driver for systemd writes the uid with underscores.
            if uid in (process / "cgroup").read_text().replace("_", "-"):
                words = (process / "cmdline").read_bytes()
                if words and not words.startswith(b"/pause"):  # the pause program; and zombies have no words
                    found.append(int(process.name))
    return sorted(found)


def rank_of(uid: str) -> int:
    """Return the process of a pod that trains: of those with a rank's variables, that with the most memory.

    Raises:
        LookupError: there is none.
    """
    found: dict[int, int] = {}
    for process in processes_of(uid):
        with suppress(OSError):
            if b"OMPI_COMM_WORLD_RANK=" in (PROC / str(process) / "environ").read_bytes():
                found[process] = int((PROC / str(process) / "statm").read_text().split()[1])
    if not found:
        raise LookupError(f"no process of pod {uid} has a rank's variables")
    return max(found, key=found.__getitem__)


def memory_group(process: int) -> Path:
    """Return the control group that limits a process's memory, of version 1 or 2."""
    for line in (PROC / str(process) / "cgroup").read_text().splitlines():
        _, controllers, place = line.split(":", 2)
        if "memory" in controllers.split(","):
            return Path("/sys/fs/cgroup/memory", place.lstrip("/"))
    return Path("/sys/fs/cgroup", place.lstrip("/"))


def host_device(process: int) -> str:
    """Return the name of the network device on the node's side of a pod's only one."""
    shown = subprocess.run(
        ["nsenter", "-t", str(process), "-n", "ip", "-o", "link", "show", "eth0"],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    index = int(shown.split("eth0@if", 1)[1].split(":", 1)[0])
    return next(path.parent.name for path in Path("/sys/class/net").glob("*/ifindex") if int(path.read_text()) == index)


def cut_network(device: str) -> None:
    """Drop every packet that a pod sends or is sent, without a word to either side (nftables)."""
    table = cut_table(device)
    rules = "".join(
        f"add chain netdev {table} {way} {{ type filter hook {way} device {device} priority 0; policy drop; }}\n"
        for way in ("ingress", "egress")
    )
    subprocess.run(["nft", "-f", "-"], input=f"add table netdev {table}\n{rules}", text=True, check=True)


def mend_network(device: str) -> None:
    """Let packets pass again; the pod may be gone."""
    subprocess.run(["nft", "delete", "table", "netdev", cut_table(device)], capture_output=True)


def cut_table(device: str) -> str:
    """Return the name of the table that cuts a device off."""
    return f"bert-chaos-{device}"


def signal_pod(pod: Json, number: signal.Signals) -> int:
    """Send a signal to every process of a pod; return how many there were."""
    sent = 0
    for process in processes_of(pod["metadata"]["uid"]):
        with suppress(ProcessLookupError):
            os.kill(process, number)
            sent += 1
    return sent
