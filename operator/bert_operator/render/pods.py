"""Pod templates of the launcher, the workers and the single pod: what they share and where they differ. Pure.

Every pod meets the ``restricted`` Pod Security standard unless the job asks for more (root, NFS without a
claim, a folder of the node, RDMA). mpi-operator changes only the first container, so there is just one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from bert_operator.api.rules import mounts
from bert_operator.api.schema.bert_pretrain_job import JobSpec
from bert_operator.api.schema.cluster import (
    EnvironmentVariable,
    FurtherVolumeSource,
    PodMetadataSpec,
    ResourcesSpec,
    RoleSpec,
    SecurityContextSpec,
    VolumeSource,
)
from bert_operator.names import CONTAINER, PREPARE_RUN, SIDECAR_LABEL
from bert_operator.render import names, users
from bert_operator.render.frozen import RUN_CONFIG_KEY, Frozen
from bert_operator.render.hangs import hang_environment
from bert_operator.render.images import by_digest
from bert_operator.render.processors import processor_environment
from bert_operator.render.shared_memory import USUAL_GIB
from bert_operator.state.runs import ChildSpec

Document = dict[str, Any]
Volumes = Iterator[tuple[Document | None, list[Document]]]

CONFIG_FOLDER = "/etc/bert"
RUN_CONFIG_PATH = f"{CONFIG_FOLDER}/{RUN_CONFIG_KEY}"
SSH_PORT = 2222

# A stopped process takes no SIGTERM, so that its pod would stay for its whole grace period, which kubelet does not
# shorten once it has begun (kubernetes/kubernetes issue 83916): processes go on first. Process 1 is not among all (-1)
# of kill(2). And a SIGTERM that reaches process 1 before it has a handler is lost, which happens to a pod that is
# deleted while it starts: seen when jobs were deleted 0.3 to 0.6 s after they were applied.
_BEFORE_SIGTERM = ("sh", "-c", "kill -s CONT -- 1 -1; sleep 1")

# CUDA's images set it to "all", which gives every GPU of the node to a pod that asked for none where nvidia is the
# default runtime and believes images. It goes before envFrom as well. Not in pods that may have GPUs: a device plugin
# that names them in this variable would lose to the pod (kubelet puts the pod's variables after the plugin's). Nor in
# the launcher, where mpi-operator sets it, empty, which means the same.
_VISIBLE_GPUS = "NVIDIA_VISIBLE_DEVICES"
# Whose resources bring no GPU of NVIDIA's. Not all but nvidia.com: volcano.sh/vgpu-number and others bring them too.
_OTHER_MAKERS = ("amd.com", "aws.amazon.com", "gpu.intel.com", "habana.ai", "huawei.com")
# What makes MPI take an InfiniBand card or end.
_OF_CARDS = frozenset({"FI_PROVIDER", "I_MPI_OFI_PROVIDER", "OMPI_MCA_pml", "UCX_NET_DEVICES", "UCX_TLS"})
# What is left to root of the runtime's usual set. Its right to read and write whatever lies on a volume, which jobs
# rely on where a share is another user's. And in workers what sshd as root asks the kernel for: chroot
# into /run/sshd (privsep_preauth_child in sshd.c), another user for that part (setgroups there, permanently_set_uid in
# uidswap.c), and a record of each login, without which Debian's ends the session (audit-linux.c forgives EPERM to
# other users alone). tests/pod/test_worker.py runs sshd with these, and without.
_OF_ROOT = ("DAC_OVERRIDE",)
OF_ROOTS_SSHD = ("AUDIT_WRITE", "SETGID", "SETUID", "SYS_CHROOT")
LAUNCHER_RESOURCES = ResourcesSpec(cpu=1, memory="2Gi")
# A whole CPU would be its own under kubelet's static CPU manager: half a core that workers lack, and with
# full-pcpus-only a pod that is refused.
_SHARED_LAUNCHER_RESOURCES = ResourcesSpec(cpu="900m", memory="2Gi")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Role:
    """The inputs of one role's pod template."""

    frozen: Frozen
    child: ChildSpec
    name: str
    own: RoleSpec
    resources: ResourcesSpec
    user: SecurityContextSpec

    @property
    def spec(self) -> JobSpec:
        return self.frozen.job.spec

    @property
    def has_devices(self) -> bool:
        """Whether its pods get GPUs and network devices, which launching ranks and preparing data do not need."""
        return self.name != names.LAUNCHER and self.child.run != PREPARE_RUN


def render_pod(frozen: Frozen, child: ChildSpec, role: str, arguments: list[str]) -> Document:
    """Return the pod template of one role. arguments: of ``bert-pod``."""
    spec = frozen.job.spec
    own = spec.launcher if role == names.LAUNCHER else spec.worker
    ordinary = spec.resources
    if role == names.LAUNCHER:
        ordinary = LAUNCHER_RESOURCES if spec.cpu.threads_per_core is None else _SHARED_LAUNCHER_RESOURCES
    parts = _Role(
        frozen=frozen,
        child=child,
        name=role,
        own=own,
        resources=own.resources or ordinary,
        user=users.user_of(spec, role),
    )
    volumes = list(_volumes(parts))
    pod: Document = {
        "terminationGracePeriodSeconds": max(spec.run_policy.stop_grace_seconds, child.stop_grace_s or 0),
        # Ranks never talk to the API server, and every service of the namespace would add variables to their
        # environment.
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": _pod_security(parts.user),
        **_network(parts),
        **_scheduling(parts),
        "imagePullSecrets": [{"name": secret.name} for secret in spec.image_pull_secrets],
        "containers": [_container(parts, arguments, [mount for _, mounted in volumes for mount in mounted])],
        "volumes": [volume for volume, _ in volumes if volume is not None],
    }
    if not pod["imagePullSecrets"]:
        del pod["imagePullSecrets"]
    if spec.service_account_name:
        pod["serviceAccountName"] = spec.service_account_name
    if parts.user.host_users is False:
        pod["hostUsers"] = False
    if claims := list(_claims(parts)):
        pod["resourceClaims"] = [claim for claim, _ in claims]
        pod["containers"][0].setdefault("resources", {})["claims"] = [used for _, used in claims]
    given = spec.pod_metadata or PodMetadataSpec()
    metadata: Document = {
        "labels": {
            **given.labels,
            **names.labels(frozen.job.ref.name, child.run, child.attempt),
            names.ROLE_LABEL: role,
            SIDECAR_LABEL: "false",
        },
        "annotations": {**given.annotations, **dict(_annotations(parts))},
    }
    return {"metadata": metadata, "spec": pod}


def _annotations(role: _Role) -> Iterator[tuple[str, str]]:
    """Yield what kubectl and Kueue read in a pod template."""
    yield names.DEFAULT_CONTAINER, CONTAINER
    spec = role.frozen.job.spec
    topology = spec.scheduling.topology
    # Not the launcher's: no gradient passes it. Grouped with the workers (podset-group-name) it would have to find room
    # in their domain and on nodes of their flavor, while it may well run on nodes without GPUs.
    if topology is not None and role.name != names.LAUNCHER:
        unconstrained = "true" if topology.unconstrained else None
        for annotation, value in (
            (names.REQUIRED_TOPOLOGY, topology.required),
            (names.PREFERRED_TOPOLOGY, topology.preferred),
            (names.UNCONSTRAINED_TOPOLOGY, unconstrained),
        ):
            if value is not None:
                yield annotation, value
    # A pod that is deleted by force may still write. The trainer and the data build look who owns the output folder
    # before they commit anything (docs/adr/0005); programs of others do not.
    is_fenced = spec.workspace is None or role.child.run == PREPARE_RUN
    if spec.scheduling.safe_to_forcefully_delete and is_fenced:
        yield names.FORCE_ANNOTATION, "true"


def _container(role: _Role, arguments: list[str], volume_mounts: list[Document]) -> Document:
    spec = role.spec
    container: Document = {
        "name": CONTAINER,
        "image": by_digest(spec.image or "", role.child.image, spec.image_pull_policy),
        "command": ["bert-pod"],
        "args": [_escape_expansion(argument) for argument in arguments],
        "env": environment(role.frozen, role.child, role.name),
        "securityContext": _container_security(role),
        "volumeMounts": volume_mounts,
        # Programs that write no record: kubelet takes the end of their log, at most 80 lines or 2 KiB.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "lifecycle": {"preStop": {"exec": {"command": list(_BEFORE_SIGTERM)}}},
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
    if limits := _limits(role):
        # Requests equal limits: no worker is slowed down by other pods of its node.
        container["resources"] = {"limits": limits, "requests": dict(limits)}
    workspace = None if spec.workspace is None else spec.workspace.volume
    if workspace is not None and role.child.run != PREPARE_RUN:
        container["workingDir"] = workspace.mount_path or mounts.WORKSPACE_MOUNT
    if role.name == names.WORKER:
        container["ports"] = [{"name": "ssh", "containerPort": SSH_PORT}]
        # Nothing waits for it (launcherCreationPolicy): it shows workers whose node or sshd does not answer as Blocked.
        container["readinessProbe"] = {
            "tcpSocket": {"port": SSH_PORT},
            "periodSeconds": 2,
            "failureThreshold": 3,
        }
    return container


def environment(frozen: Frozen, child: ChildSpec, role: str) -> list[Document]:
    """Return the variables of a role's container; the user's override ours."""
    spec = frozen.job.spec
    variables: dict[str, Document] = {
        "BERT_ATTEMPT": {"value": str(child.attempt)},
        "BERT_RUN_CONFIG": {"value": RUN_CONFIG_PATH},
        # Older images do not know it, and end by themselves after --wait-seconds.
        **({"BERT_WORKERS_WATCHED": {"value": "true"}} if role == names.LAUNCHER else {}),
        "BERT_LOG_FOLDER": {"value": _escape_expansion(f"{frozen.output_folder}/logs")},
        "HOME": {"value": users.home_of(users.user_of(spec, role))},
        # Own programs may print progress without a flush; through a pipe it would come in blocks of 8 KiB.
        "PYTHONUNBUFFERED": {"value": "1"},
        **{name: {"value": value} for name, value in hang_environment(spec.run_policy).items()},
        **{name: {"value": value} for name, value in processor_environment(spec).items()},
    }
    for name, value in (
        ("http_proxy", spec.proxy.http),
        ("https_proxy", spec.proxy.https),
        ("no_proxy", spec.proxy.no_proxy),
    ):
        if value is not None:
            # Both cases: curl reads http_proxy in lower case only, other programs the upper one.
            variables[name] = variables[name.upper()] = {"value": _escape_expansion(value)}
    # Pods that prepare data get no cards, and use TCP.
    resources = spec.worker.resources or spec.resources
    has_cards = resources.rdma is not None or bool(resources.resource_claims)
    lacks_cards = child.run == PREPARE_RUN and has_cards
    for variable in spec.env:
        if lacks_cards and variable.name in _OF_CARDS:
            continue
        variables[variable.name] = _source(variable)
    if role != names.LAUNCHER and (child.run == PREPARE_RUN or not _may_have_gpus(resources)):
        variables[_VISIBLE_GPUS] = {"value": "void"}
    return [{"name": name, **value} for name, value in variables.items()]


def _may_have_gpus(resources: ResourcesSpec) -> bool:
    if resources.resource_claims:
        return True
    accelerator = resources.accelerator
    return accelerator is not None and accelerator.resource_name.partition("/")[0] not in _OTHER_MAKERS


def _source(variable: EnvironmentVariable) -> Document:
    if variable.secret is not None:
        return {"valueFrom": {"secretKeyRef": {"name": variable.secret.name, "key": variable.secret.key}}}
    if variable.config_map is not None:
        return {"valueFrom": {"configMapKeyRef": {"name": variable.config_map.name, "key": variable.config_map.key}}}
    return {"value": _escape_expansion(variable.value or "")}


def _escape_expansion(text: str) -> str:
    """Escape a text for args and env, in which Kubernetes expands $(NAME) and reads $$ as a single $."""
    return text.replace("$", "$$") if "$(" in text or "$$" in text else text


def _limits(role: _Role) -> Document:
    """Return the limits of one pod, which are also its requests."""
    resources, spec = role.resources, role.spec
    cpu = resources.cpu
    if cpu is None and role.name != names.LAUNCHER:
        cpu = spec.cpus_per_worker
    # Only what is set: a limit that the job does not name is up to the namespace's LimitRange.
    amounts: dict[str, object] = {
        "cpu": cpu,
        "memory": resources.memory,
        "ephemeral-storage": resources.ephemeral_storage,
    }
    if resources.hugepages is not None:
        amounts["hugepages-2Mi"] = resources.hugepages.size2_mi
        amounts["hugepages-1Gi"] = resources.hugepages.size1_gi
    if role.has_devices:
        # A claim brings the devices that it names; asked for here as well, they would come twice.
        if resources.accelerator is not None and resources.accelerator.resource_claim is None:
            devices = resources.accelerator.per_worker or spec.slots_per_worker
            amounts[resources.accelerator.resource_name] = devices
        if resources.rdma is not None:
            amounts[resources.rdma.resource_name] = resources.rdma.per_worker
    return {name: str(amount) for name, amount in amounts.items() if amount is not None}


def _claims(role: _Role) -> Iterator[tuple[Document, Document]]:
    """Yield every claim of a pod, and which of its devices the container uses."""
    for claim in (role.resources.resource_claims or ()) if role.has_devices else ():
        if claim.resource_claim_name is not None:
            source = {"resourceClaimName": claim.resource_claim_name}
        else:
            source = {"resourceClaimTemplateName": str(claim.resource_claim_template_name)}
        used = {"name": claim.name} if claim.request is None else {"name": claim.name, "request": claim.request}
        yield {"name": claim.name, **source}, used


def _volumes(role: _Role) -> Volumes:
    """Yield every volume with its mounts; None as the volume if a mount shares an earlier one."""
    spec = role.spec
    frozen = {"name": "frozen", "configMap": {"name": names.config_map_name(role.frozen.job.ref.name)}}
    files = [{"name": "frozen", "mountPath": CONFIG_FOLDER, "readOnly": True}]
    files += [
        {"name": "frozen", "mountPath": f"/etc/{file}", "subPath": key, "readOnly": True}
        for file, key in users.file_keys(spec, role.name).items()
    ]
    yield frozen, files
    yield _empty("home", users.home_of(role.user))
    yield _empty("tmp", "/tmp")  # noqa: S108 - in the pod
    if role.name == names.WORKER and role.user.run_as_user == users.ROOT:
        yield _empty("run", "/run")  # root's sshd creates /run/sshd
    shared = str(role.resources.shared_memory or f"{USUAL_GIB}Gi")
    yield _empty("shared-memory", "/dev/shm", medium="Memory", sizeLimit=shared)  # noqa: S108 - in the pod
    yield from _shared_volumes(role)
    if role.resources.hugepages is not None:
        pages = role.resources.hugepages
        for page, amount in (("2Mi", pages.size2_mi), ("1Gi", pages.size1_gi)):
            if amount is not None:
                # Below /dev, where no volume of the user can be mounted.
                yield _empty(f"hugepages-{page.lower()}", f"/dev/hugepages-{page}", medium=f"HugePages-{page}")


def _empty(name: str, path: str, **source: str) -> tuple[Document, list[Document]]:
    return {"name": name, "emptyDir": source}, [{"name": name, "mountPath": path}]


def _shared_volumes(role: _Role) -> Volumes:
    """Yield the volumes that the user names, each source once.

    A pod that names the same claim in two volumes may wait for the second one for ever (kubernetes#82526).
    """
    named: dict[str, str] = {}
    for name, volume, default, read_only in _user_volumes(role):
        source = _volume_source(volume)
        # By source, not by name: users give one claim to output, dataset and volumes. Two empty folders are two.
        key = name if _is_empty_folder(volume) else str(source)
        is_new = key not in named
        mount: Document = {"name": named.setdefault(key, name), "mountPath": volume.mount_path or default}
        if volume.sub_path:
            mount["subPath"] = volume.sub_path
        if read_only and not _is_empty_folder(volume):
            mount["readOnly"] = True
        yield {"name": name, **source} if is_new else None, [mount]


def _user_volumes(role: _Role) -> Iterator[tuple[str, VolumeSource, str, bool]]:
    """Yield name, source, default mount path, and whether it is read-only."""
    spec = role.spec
    if spec.output.volume is not None:
        yield "output", spec.output.volume, mounts.OUTPUT_MOUNT, False
    if spec.dataset.volume is not None and role.name != names.LAUNCHER:
        # Only the run that prepares the data may write there.
        yield "dataset", spec.dataset.volume, mounts.DATASET_MOUNT, role.child.run != PREPARE_RUN
    if spec.workspace is not None and spec.workspace.volume is not None:
        # In the launcher, too: mpirun starts ranks in its own working directory, which therefore has to exist there.
        yield "workspace", spec.workspace.volume, mounts.WORKSPACE_MOUNT, True
    for entry in spec.volumes:
        yield f"volume-{entry.name}", entry.source, "", entry.read_only


def _volume_source(volume: VolumeSource) -> Document:
    if volume.persistent_volume_claim is not None:
        return {"persistentVolumeClaim": {"claimName": volume.persistent_volume_claim.claim_name}}
    if volume.nfs is not None:
        return {"nfs": {"server": volume.nfs.server, "path": volume.nfs.path}}
    if volume.image is not None:
        policy = {} if volume.image.pull_policy is None else {"pullPolicy": volume.image.pull_policy}
        return {"image": {"reference": volume.image.reference, **policy}}
    if volume.host_path is not None:
        return {"hostPath": {"path": volume.host_path.path}}
    assert isinstance(volume, FurtherVolumeSource), "a valid volume has a source"
    if volume.secret is not None:
        return {"secret": {"secretName": volume.secret.name}}
    if volume.config_map is not None:
        return {"configMap": {"name": volume.config_map.name}}
    return {"emptyDir": _dump(volume.empty_dir)}


def _is_empty_folder(volume: VolumeSource) -> bool:
    return isinstance(volume, FurtherVolumeSource) and volume.empty_dir is not None


def _pod_security(user: SecurityContextSpec) -> Document:
    security: Document = {"seccompProfile": {"type": "RuntimeDefault"}}
    if user.run_as_user != users.ROOT:
        security["runAsNonRoot"] = True
    if user.run_as_user is not None:
        security["runAsUser"] = user.run_as_user
    if (group := users.group_of(user)) is not None:
        security["runAsGroup"] = group
    if user.fs_group is not None:
        # Always would chown every file of the volume at every start: hours on a share with millions of files.
        security |= {"fsGroup": user.fs_group, "fsGroupChangePolicy": "OnRootMismatch"}
    if user.supplemental_groups:
        security["supplementalGroups"] = list(user.supplemental_groups)
    return security


def _container_security(role: _Role) -> Document:
    added: list[str] = []
    if role.user.run_as_user == users.ROOT:
        added += [*_OF_ROOT, *(OF_ROOTS_SSHD if role.name == names.WORKER else ())]
    if role.has_devices and (role.resources.rdma is not None or role.spec.network.lock_memory):
        # Registering memory with an RDMA device locks it (mlock).
        added.append("IPC_LOCK")
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"], **({"add": added} if added else {})},
    }


def _network(role: _Role) -> Document:
    """Return what puts ranks on their node's network; the launcher runs no rank, and keeps its name in DNS.

    sshd's port is then a port of the node: Kubernetes sets hostPort to containerPort, and therefore schedules every
    worker to a node of its own.
    """
    if not role.spec.network.host_network or role.name == names.LAUNCHER:
        return {}
    return {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}


def _scheduling(role: _Role) -> Document:
    scheduling = role.spec.scheduling
    selector = scheduling.node_selector if role.own.node_selector is None else role.own.node_selector
    tolerations = scheduling.tolerations if role.own.tolerations is None else role.own.tolerations
    document: Document = {
        "nodeSelector": dict(selector),
        "affinity": _affinity(role),
        "tolerations": [_dump(toleration) for toleration in tolerations],
        "priorityClassName": scheduling.priority_class_name,
        "schedulerName": scheduling.scheduler_name,
        # A runtime class for GPUs exposes all GPUs of a node to a pod that requests none.
        "runtimeClassName": scheduling.runtime_class_name if role.has_devices else None,
    }
    if role.name != names.LAUNCHER:
        same = {
            **names.labels(role.frozen.job.ref.name, role.child.run, role.child.attempt),
            names.ROLE_LABEL: role.name,
        }
        document["topologySpreadConstraints"] = [
            {"labelSelector": {"matchLabels": same}, **_dump(constraint)}
            for constraint in scheduling.topology_spread_constraints
        ]
    return {key: value for key, value in document.items() if value}


def _affinity(role: _Role) -> Document:
    """Return the job's affinity, and that nodes which let earlier attempts down come last."""
    given = role.spec.scheduling.affinity
    document = {} if given is None else _dump(given)
    if not role.child.avoided_nodes:
        return document
    # A preference for any other node, not a rule: on a small cluster a bad node is better than none. By metadata.name,
    # of which a term takes one value; the label kubernetes.io/hostname may be another name.
    terms = [
        {
            "weight": 100,
            "preference": {"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": [node]}]},
        }
        for node in role.child.avoided_nodes
    ]
    of_nodes = document.get("nodeAffinity", {})
    preferred = [*of_nodes.get("preferredDuringSchedulingIgnoredDuringExecution", ()), *terms]
    return document | {"nodeAffinity": of_nodes | {"preferredDuringSchedulingIgnoredDuringExecution": preferred}}


def _dump(section: Any) -> Document:
    """Return a section of Kubernetes' own API with its field names, without empty lists."""
    document: Document = _without_empty(section.model_dump(mode="json", by_alias=True, exclude_none=True))
    return document


def _without_empty(value: Any) -> Any:
    """Drop empty lists and matchLabels; other empty sections stay: ``labelSelector: {}`` means every pod."""
    if isinstance(value, dict):
        return {
            key: _without_empty(item)
            for key, item in value.items()
            if item != [] and not (key == "matchLabels" and item == {})
        }
    return [_without_empty(item) for item in value] if isinstance(value, list) else value
