"""Pod templates: what is common to the launcher, the workers and the single pod, and what tells them apart. Pure.

Every pod meets the ``restricted`` Pod Security standard unless the job asks for more (root, NFS without a
claim, a folder of the node, RDMA). mpi-operator changes only the first container, so there is just one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bert_operator.api import mounts
from bert_operator.api.cluster import EnvironmentVariable, ResourcesSpec, RoleSpec, SecurityContextSpec, VolumeSource
from bert_operator.api.v1alpha1 import JobSpec
from bert_operator.names import PREPARE_RUN
from bert_operator.render import frozen as frozen_config
from bert_operator.render import names
from bert_operator.render.frozen import HOME, Frozen
from bert_operator.runs import ChildSpec

Document = dict[str, Any]

CONFIG_FOLDER = "/etc/bert"
RUN_CONFIG_PATH = f"{CONFIG_FOLDER}/{frozen_config.RUN_CONFIG_KEY}"
SSH_PORT = 2222
CONTAINER = "trainer"

DEFAULT_SHARED_MEMORY = "1Gi"
LAUNCHER_RESOURCES = ResourcesSpec(cpu=1, memory="2Gi")
_ROOT = 0


def render_pod(frozen: Frozen, child: ChildSpec, role: str, arguments: list[str]) -> Document:
    """Return the pod template of one role. arguments: of ``bert-pod``."""
    spec = frozen.job.spec
    own = spec.launcher if role == names.LAUNCHER else spec.worker
    resources = _resources_of(spec, own, role)
    user = own.security_context or spec.security_context
    volumes = list(_volumes(frozen, child, role, resources, user))
    pod: Document = {
        "terminationGracePeriodSeconds": spec.run_policy.stop_grace_seconds,
        # Ranks never talk to the API server, and services of the namespace would fill their environment.
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": _pod_security(user),
        **_scheduling(frozen, child, role, own),
        "imagePullSecrets": [{"name": secret.name} for secret in spec.image_pull_secrets],
        "containers": [_container(frozen, child, role, arguments, resources, user, volumes)],
        "volumes": [volume for volume, _ in volumes if volume is not None],
    }
    if not pod["imagePullSecrets"]:
        del pod["imagePullSecrets"]
    return {
        "metadata": {
            "labels": {
                **names.labels(frozen.job.ref.name, child.run, child.attempt),
                names.ROLE_LABEL: role,
                # A proxy beside the ranks would sit between them and their peers.
                "sidecar.istio.io/inject": "false",
            },
        },
        "spec": pod,
    }


def _container(
    frozen: Frozen,
    child: ChildSpec,
    role: str,
    arguments: list[str],
    resources: ResourcesSpec,
    user: SecurityContextSpec,
    volumes: list[tuple[Document | None, list[Document]]],
) -> Document:
    spec = frozen.job.spec
    container: Document = {
        "name": CONTAINER,
        "image": spec.image,
        "command": ["bert-pod"],
        "args": arguments,
        "env": environment(frozen, child),
        "securityContext": _container_security(user, resources),
        "volumeMounts": [mount for _, mounted in volumes for mount in mounted],
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    if spec.env_from:
        container["envFrom"] = [
            {
                **({"prefix": source.prefix} if source.prefix else {}),
                ("secretRef" if source.secret else "configMapRef"): {"name": source.secret or source.config_map},
            }
            for source in spec.env_from
        ]
    if spec.image_pull_policy:
        container["imagePullPolicy"] = spec.image_pull_policy
    if limits := _limits(resources, spec, role):
        # Requests follow limits where they are not given.
        container["resources"] = {"limits": limits, "requests": limits}
    if spec.workspace is not None and child.run != PREPARE_RUN:
        container["workingDir"] = spec.workspace.volume.mount_path or mounts.WORKSPACE_MOUNT
    if role == names.WORKER:
        container["ports"] = [{"name": "ssh", "containerPort": SSH_PORT}]
        container["readinessProbe"] = {
            "tcpSocket": {"port": SSH_PORT},
            "periodSeconds": 2,
            "failureThreshold": 3,
        }
    return container


def environment(frozen: Frozen, child: ChildSpec) -> list[Document]:
    """Return the variables of every container; a user's value replaces ours where both have the name."""
    spec = frozen.job.spec
    variables: dict[str, Document] = {
        "BERT_ATTEMPT": {"value": str(child.attempt)},
        "BERT_RUN_CONFIG": {"value": RUN_CONFIG_PATH},
        "BERT_LOG_FOLDER": {"value": f"{frozen.output_folder}/logs"},
        "HOME": {"value": HOME},
        "PYTHONUNBUFFERED": {"value": "1"},
        "BERT_ALLOCATOR": {"value": spec.cpu.allocator},
        "BERT_OPENMP": {"value": spec.cpu.openmp},
    }
    if spec.cpu.cores_per_rank is not None:
        variables["OMP_NUM_THREADS"] = {"value": str(spec.cpu.cores_per_rank)}
    if spec.cpu.dnnl_max_cpu_isa is not None:
        variables["DNNL_MAX_CPU_ISA"] = {"value": spec.cpu.dnnl_max_cpu_isa}
    for name in ("http_proxy", "https_proxy", "no_proxy"):
        value = getattr(spec.proxy, name.removesuffix("_proxy") if name != "no_proxy" else name)
        if value is not None:
            variables[name] = variables[name.upper()] = {"value": value}
    for variable in spec.env:
        variables[variable.name] = _source(variable)
    return [{"name": name, **value} for name, value in variables.items()]


def _source(variable: EnvironmentVariable) -> Document:
    if variable.secret is not None:
        return {"valueFrom": {"secretKeyRef": {"name": variable.secret.name, "key": variable.secret.key}}}
    if variable.config_map is not None:
        return {"valueFrom": {"configMapKeyRef": {"name": variable.config_map.name, "key": variable.config_map.key}}}
    # Kubernetes would expand $(NAME); what the user wrote is meant as it stands.
    return {"value": (variable.value or "").replace("$(", "$$(")}


def _resources_of(spec: JobSpec, own: RoleSpec, role: str) -> ResourcesSpec:
    if own.resources is not None:
        return own.resources
    return LAUNCHER_RESOURCES if role == names.LAUNCHER else spec.resources


def _limits(resources: ResourcesSpec, spec: JobSpec, role: str) -> Document:
    """Return what one pod may use at most, which is also what it asks for."""
    cpu = resources.cpu
    if cpu is None and spec.cpu.cores_per_rank is not None and role != names.LAUNCHER:
        cpu = spec.cpu.cores_per_rank * spec.slots_per_worker
    amounts: dict[str, object] = {
        "cpu": cpu,
        "memory": resources.memory,
        "ephemeral-storage": resources.ephemeral_storage,
    }
    if resources.hugepages is not None:
        amounts["hugepages-2Mi"] = resources.hugepages.size2_mi
        amounts["hugepages-1Gi"] = resources.hugepages.size1_gi
    if role != names.LAUNCHER:
        if resources.accelerator is not None:
            devices = resources.accelerator.per_worker or spec.slots_per_worker
            amounts[resources.accelerator.resource_name] = devices
        if resources.rdma is not None:
            amounts[resources.rdma.resource_name] = resources.rdma.per_worker
    return {name: str(amount) for name, amount in amounts.items() if amount is not None}


def _volumes(
    frozen: Frozen, child: ChildSpec, role: str, resources: ResourcesSpec, user: SecurityContextSpec
) -> Iterator[tuple[Document | None, list[Document]]]:
    """Yield every volume with its mounts; no volume where a mount shares one that came before."""
    spec = frozen.job.spec
    config = {"name": "frozen", "configMap": {"name": names.config_map_name(frozen.job.ref.name)}}
    files = [{"name": "frozen", "mountPath": CONFIG_FOLDER, "readOnly": True}]
    if spec.security_context.run_as_user is not None:
        files += [
            {"name": "frozen", "mountPath": f"/etc/{key}", "subPath": key, "readOnly": True}
            for key in (frozen_config.PASSWD_KEY, frozen_config.GROUP_KEY)
        ]
    yield config, files
    yield _empty("home", HOME)
    yield _empty("tmp", "/tmp")  # noqa: S108 - in the pod
    shared = str(resources.shared_memory or spec.resources.shared_memory or DEFAULT_SHARED_MEMORY)
    yield (
        {"name": "shared-memory", "emptyDir": {"medium": "Memory", "sizeLimit": shared}},
        [{"name": "shared-memory", "mountPath": "/dev/shm"}],  # noqa: S108 - in the pod
    )
    if spec.output.volume is not None:
        yield _mounted("output", spec.output.volume, mounts.OUTPUT_MOUNT, read_only=False)
    if role != names.LAUNCHER:
        if spec.dataset.volume is not None:
            # Only the run that makes the data may write there.
            read_only = child.run != PREPARE_RUN
            yield _mounted("dataset", spec.dataset.volume, mounts.DATASET_MOUNT, read_only=read_only)
        if spec.workspace is not None:
            yield _mounted("workspace", spec.workspace.volume, mounts.WORKSPACE_MOUNT, read_only=True)
    elif spec.workspace is not None:
        # mpirun starts its ranks in its own working directory, which has to exist in the launcher too.
        yield _mounted("workspace", spec.workspace.volume, mounts.WORKSPACE_MOUNT, read_only=True)
    for entry in spec.volumes:
        yield _mounted(f"volume-{entry.name}", entry.source, "", read_only=entry.read_only)
    if resources.hugepages is not None and role != names.LAUNCHER:
        for page, amount in (("2Mi", resources.hugepages.size2_mi), ("1Gi", resources.hugepages.size1_gi)):
            if amount is not None:
                name = f"hugepages-{page.lower()}"
                yield (
                    {"name": name, "emptyDir": {"medium": f"HugePages-{page}"}},
                    [{"name": name, "mountPath": f"/mnt/{name}"}],
                )


def _empty(name: str, path: str) -> tuple[Document, list[Document]]:
    return {"name": name, "emptyDir": {}}, [{"name": name, "mountPath": path}]


def _mounted(name: str, volume: VolumeSource, default: str, *, read_only: bool) -> tuple[Document, list[Document]]:
    source: Document
    if volume.persistent_volume_claim is not None:
        source = {"persistentVolumeClaim": {"claimName": volume.persistent_volume_claim.claim_name}}
    elif volume.nfs is not None:
        source = {"nfs": {"server": volume.nfs.server, "path": volume.nfs.path}}
    else:
        assert volume.host_path is not None, "a valid volume has a source"
        source = {"hostPath": {"path": volume.host_path.path}}
    mount: Document = {"name": name, "mountPath": volume.mount_path or default}
    if volume.sub_path:
        mount["subPath"] = volume.sub_path
    if read_only:
        mount["readOnly"] = True
    return {"name": name, **source}, [mount]


def _pod_security(user: SecurityContextSpec) -> Document:
    security: Document = {"seccompProfile": {"type": "RuntimeDefault"}}
    if user.run_as_user != _ROOT:
        security["runAsNonRoot"] = True
    if user.run_as_user is not None:
        security["runAsUser"] = user.run_as_user
        security["runAsGroup"] = user.run_as_user if user.run_as_group is None else user.run_as_group
    elif user.run_as_group is not None:
        security["runAsGroup"] = user.run_as_group
    if user.fs_group is not None:
        # Walking a share of millions of files at every start would take hours.
        security |= {"fsGroup": user.fs_group, "fsGroupChangePolicy": "OnRootMismatch"}
    if user.supplemental_groups:
        security["supplementalGroups"] = list(user.supplemental_groups)
    return security


def _container_security(user: SecurityContextSpec, resources: ResourcesSpec) -> Document:
    security: Document = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True}
    if user.run_as_user != _ROOT:  # sshd of root changes its root folder and its user, which takes capabilities
        security["capabilities"] = {"drop": ["ALL"]}
    if resources.rdma is not None:
        # Registering memory with the network device locks it.
        security.setdefault("capabilities", {})["add"] = ["IPC_LOCK"]
    return security


def _scheduling(frozen: Frozen, child: ChildSpec, role: str, own: RoleSpec) -> Document:
    scheduling = frozen.job.spec.scheduling
    selector = scheduling.node_selector if own.node_selector is None else own.node_selector
    tolerations = scheduling.tolerations if own.tolerations is None else own.tolerations
    document: Document = {
        "nodeSelector": selector,
        "affinity": None if scheduling.affinity is None else _dump(scheduling.affinity),
        "tolerations": [_dump(toleration) for toleration in tolerations],
        "priorityClassName": scheduling.priority_class_name,
        "schedulerName": scheduling.scheduler_name,
        "runtimeClassName": None if role == names.LAUNCHER else scheduling.runtime_class_name,
    }
    if role != names.LAUNCHER:
        same = {**names.labels(frozen.job.ref.name, child.run, child.attempt), names.ROLE_LABEL: role}
        document["topologySpreadConstraints"] = [
            {"labelSelector": {"matchLabels": same}, **_dump(constraint)}
            for constraint in scheduling.topology_spread_constraints
        ]
    return {key: value for key, value in document.items() if value}


def _dump(section: Any) -> Document:
    """Return a section that is Kubernetes' own, in its own words, without lists that hold nothing."""
    document: Document = _without_empty(section.model_dump(mode="json", by_alias=True, exclude_none=True))
    return document


def _without_empty(value: Any) -> Any:
    if isinstance(value, dict):
        cleaned = {key: _without_empty(item) for key, item in value.items()}
        return {key: item for key, item in cleaned.items() if item not in ([], {})}
    return [_without_empty(item) for item in value] if isinstance(value, list) else value
