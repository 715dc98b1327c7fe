"""Processes of pods as the node sees them; the node is this machine (cgroups(7), proc(5))."""

from __future__ import annotations

import os
import signal
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


def signal_pod(pod: Json, number: signal.Signals) -> int:
    """Send a signal to every process of a pod; return how many there were."""
    sent = 0
    for process in processes_of(pod["metadata"]["uid"]):
        with suppress(ProcessLookupError):
            os.kill(process, number)
            sent += 1
    return sent
