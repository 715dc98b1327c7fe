"""Children: the Job with a single pod, or the MPIJob, that executes one attempt at a run. Pure.

A child is created once and never updated (Kueue and mpi-operator edit it); the next attempt is a new object.
docs/adr/0006 explains what is set here because of mpi-operator.
"""

from __future__ import annotations

from typing import Any

from bert_operator.names import PREPARE_RUN
from bert_operator.render import names, users
from bert_operator.render.frozen import Frozen, owner_reference
from bert_operator.render.pods import RUN_CONFIG_PATH, SSH_PORT, environment, render_pod
from bert_operator.state.runs import ChildSpec, run_placement

Document = dict[str, Any]

HOSTFILE = "/etc/mpi/hostfile"  # where mpi-operator mounts it


def needs_mpi(frozen: Frozen, child: ChildSpec) -> bool:
    """Return whether a child is an MPIJob: only if its ranks are spread over several pods."""
    return run_placement(frozen.job.spec, child.run).workers > 1


def render_child(frozen: Frozen, child: ChildSpec, *, is_name_taken: bool = False) -> Document:
    """Return the object to create for an attempt. is_name_taken: by an object of others, so that it gets another."""
    is_mpi = needs_mpi(frozen, child)
    document = _mpi_job(frozen, child) if is_mpi else _job(frozen, child)
    metadata: Document = {
        "name": names.child_name(
            frozen.job.ref.name, child.run, child.attempt, is_mpi=is_mpi, uid=frozen.uid if is_name_taken else ""
        ),
        "namespace": frozen.job.ref.namespace,
        "labels": names.labels(frozen.job.ref.name, child.run, child.attempt),
        "annotations": {names.HASH_ANNOTATION: frozen.spec_hash},
        "ownerReferences": [owner_reference(frozen)],
    }
    if frozen.job.spec.queue_name:
        metadata["labels"][names.QUEUE_LABEL] = frozen.job.spec.queue_name
    if frozen.job.spec.workload_priority_class:
        # On every attempt anew: Kueue orders by the age of its Workload, and a new child's is the youngest.
        metadata["labels"][names.PRIORITY_LABEL] = frozen.job.spec.workload_priority_class
    return {"apiVersion": document["apiVersion"], "kind": document["kind"], "metadata": metadata, **document}


def _job(frozen: Frozen, child: ChildSpec) -> Document:
    is_prepare = child.run == PREPARE_RUN
    ranks = 1 if is_prepare else frozen.job.spec.slots_per_worker
    arguments = ["single", "--ranks", str(ranks)]
    if ranks > 1:
        arguments += ["--mpi", frozen.job.spec.mpi.implementation, *_binding_arguments(frozen)]
    elif not is_prepare and frozen.job.spec.cpu.threads_per_core is not None:
        # A rank that is alone in its pod is bound as well, so that a pod with half cores is noticed.
        arguments += _binding_arguments(frozen)
    if not is_prepare:
        arguments += _topology_arguments(frozen)
    template = render_pod(frozen, child, names.SINGLE, [*arguments, "--", *_program(frozen, child)])
    # Not in ``render_pod``: mpi-operator sets this in pod templates, and warns if it is there already.
    template["spec"]["restartPolicy"] = "Never"
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "spec": {
            "backoffLimit": 0,
            "completions": 1,
            "parallelism": 1,
            # By default a replacement is created while the old pod terminates, which may still write its checkpoint.
            "podReplacementPolicy": "Failed",
            "template": template,
        },
    }


def _mpi_job(frozen: Frozen, child: ChildSpec) -> Document:
    spec, placement = frozen.job.spec, run_placement(frozen.job.spec, child.run)
    # In the home folder, where ssh looks for keys; for root mpi-operator makes them readable to ssh only there.
    key_folder = f"{users.home_of(users.user_of(spec, names.WORKER))}/.ssh"
    exported = ",".join(variable["name"] for variable in environment(frozen, child, names.LAUNCHER))
    launcher = [
        "launcher",
        *("--ranks", str(placement.ranks)),
        *("--workers", str(placement.workers)),
        *("--slots", str(placement.slots)),
        *("--mpi", spec.mpi.implementation),
        # Open MPI 5 ignores the variable in which mpi-operator passes this file, and would start every rank in
        # the launcher.
        *("--hostfile", HOSTFILE),
        *("--wait-seconds", str(spec.mpi.worker_wait_seconds)),
        *("--export", exported),
        # Processes that prepare data are not bound: their work is as uneven as texts are.
        *([] if child.run == PREPARE_RUN else [*_binding_arguments(frozen), *_topology_arguments(frozen)]),
        "--",
        *_program(frozen, child),
    ]
    worker = ["worker", "--port", str(SSH_PORT), "--key-folder", key_folder]
    return {
        "apiVersion": "kubeflow.org/v2beta1",
        "kind": "MPIJob",
        "spec": {
            "slotsPerWorker": placement.slots,
            "mpiImplementation": spec.mpi.implementation,
            "sshAuthMountPath": key_folder,
            # ``bert-pod launcher`` waits for the workers itself, and reports which ones are missing.
            "launcherCreationPolicy": "AtStartup",
            # Running: workers outlive a finished launcher and would keep their GPUs; failed pods stay for diagnosis.
            "runPolicy": {"cleanPodPolicy": "Running", "backoffLimit": 0, **_gang(frozen)},
            "mpiReplicaSpecs": {
                "Launcher": {
                    "replicas": 1,
                    "restartPolicy": "Never",
                    "template": render_pod(frozen, child, names.LAUNCHER, launcher),
                },
                "Worker": {
                    "replicas": placement.workers,
                    "restartPolicy": "Never",
                    "template": render_pod(frozen, child, names.WORKER, worker),
                },
            },
        },
    }


def _gang(frozen: Frozen) -> Document:
    policy = frozen.job.spec.scheduling.scheduling_policy
    if policy is None:
        return {}
    return {"schedulingPolicy": policy.model_dump(mode="json", by_alias=True, exclude_none=True)}


def _program(frozen: Frozen, child: ChildSpec) -> list[str]:
    if child.run == PREPARE_RUN:
        return ["bert-data", "build", "--config", RUN_CONFIG_PATH]
    workspace = frozen.job.spec.workspace
    if workspace is not None:
        return [*workspace.command, *workspace.args]
    return ["bert-train", "--config", RUN_CONFIG_PATH]


def _binding_arguments(frozen: Frozen) -> list[str]:
    """Return the arguments that bind ranks; empty if they are not bound."""
    cpu, slots = frozen.job.spec.cpu, frozen.job.spec.slots_per_worker
    if cpu.pinning == "none":
        return []
    places = {"core": slots, "socket": cpu.sockets, "numa": cpu.numa_nodes}[cpu.pinning] or slots
    words = ["--bind", cpu.pinning, "--ranks-per-place", str(slots // places)]
    if cpu.cores_per_rank is not None:
        words += ["--cores-per-rank", str(cpu.cores_per_rank)]
    return words


def _topology_arguments(frozen: Frozen) -> list[str]:
    """Return the job's description of its nodes, which every rank compares with its own node."""
    cpu = frozen.job.spec.cpu
    named = (
        ("--sockets", cpu.sockets),
        ("--numa-nodes", cpu.numa_nodes),
        ("--threads-per-core", cpu.threads_per_core),
    )
    return [word for name, value in named if value is not None for word in (name, str(value))]
