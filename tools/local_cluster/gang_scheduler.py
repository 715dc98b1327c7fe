"""The real coscheduling plugin of scheduler-plugins beside a control plane: its release's scheduler as a process.

``with ControlPlane(definitions=[*pod_groups(), ...], gang_scheduler=NAME) as plane, GangScheduler(plane): ...``.
mpi-operator then makes a PodGroup of every MPIJob and gives its pods to this scheduler, which binds as many as their
group asks for, or none. Pods of others stay with the control plane's own scheduler.
"""

from __future__ import annotations

import json
from typing import Any

from component import Component, free_ports
from control_plane import ControlPlane, answers, built_programs, load_documents

NAME = "coscheduling"
POD_GROUPS = "scheduling.x-k8s.io/v1alpha1/podgroups"

_PROGRAM = "scheduler-plugins"


def pod_groups() -> list[dict[str, Any]]:
    """Return the definition of its PodGroups, which mpi-operator looks for at its start."""
    return load_documents(built_programs(_PROGRAM) / f"{_PROGRAM}-manifests/crd.yaml")


class GangScheduler(Component):
    """A second scheduler with that plugin: ``with GangScheduler(control_plane): ...``."""

    def __init__(self, control_plane: ControlPlane) -> None:
        """Prepare it for a control plane that runs; builds it where the cache is empty."""
        folder = control_plane.folder / NAME
        folder.mkdir(exist_ok=True)
        (port,) = free_ports(1)
        # The profile of its release (manifests/coscheduling/scheduler-config.yaml), under a name of its own.
        profile = {
            "schedulerName": NAME,
            "plugins": {
                "multiPoint": {"enabled": [{"name": "Coscheduling"}]},
                "queueSort": {"enabled": [{"name": "Coscheduling"}], "disabled": [{"name": "*"}]},
            },
            # How long bound places are kept for the rest of a group.
            "pluginConfig": [{"name": "Coscheduling", "args": {"permitWaitingTimeSeconds": 10}}],
        }
        configuration = {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "leaderElection": {"leaderElect": False},
            "clientConnection": {"kubeconfig": str(control_plane.kubeconfig(control_plane.admin_token))},
            "profiles": [profile],
        }
        (folder / "configuration.yaml").write_text(json.dumps(configuration))
        command = [
            str(built_programs(_PROGRAM) / _PROGRAM),
            f"--config={folder / 'configuration.yaml'}",
            "--bind-address=127.0.0.1",
            f"--secure-port={port}",
            f"--cert-dir={folder}",
        ]
        super().__init__(NAME, command, folder / "scheduler.log", lambda: answers("https", port, "/healthz"))
