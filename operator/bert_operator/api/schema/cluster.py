"""What a job asks of a cluster: images, resources, volumes, users, MPI. Ignored without a cluster.

Kubernetes' own terms keep their names. What empty fields become is in ``render``.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Annotated, Literal

from pydantic import Field

from bert_job.section import FilePath, Name, PositiveFloat, Section
from bert_operator.api.schema.scheduling import (
    Affinity,
    Annotations,
    DnsLabel,
    LabeledName,
    LabelKey,
    Labels,
    ObjectName,
    SchedulerName,
    Toleration,
    TopologyRequest,
    TopologySpread,
)

QUANTITY_PATTERN = r"^([1-9][0-9]*(\.[0-9]{1,3})?|0\.[0-9]{0,2}[1-9])(m|k|Ki|M|Mi|G|Gi|T|Ti|P|Pi)?$"
Quantity = Annotated[int, Field(ge=1, le=2**53)] | Annotated[str, Field(max_length=20, pattern=QUANTITY_PATTERN)]
"""Kubernetes' notation of amounts: 4, 500m, 64Gi."""
_AMOUNT = re.compile(r"([0-9]+(?:\.[0-9]+)?)([A-Za-z]*)")
_SUFFIXES = {"": Fraction(1), "m": Fraction(1, 1000), "k": Fraction(10**3)}
_SUFFIXES |= {suffix: Fraction(1000**power) for power, suffix in enumerate("MGTP", start=2)}
_SUFFIXES |= {f"{suffix}i": Fraction(1024**power) for power, suffix in enumerate("KMGTP", start=1)}


def count_cpus(amount: Quantity) -> Fraction:
    """Return an amount of CPUs as a number: a half for 500m."""
    match = _AMOUNT.fullmatch(str(amount))
    assert match is not None, "a valid quantity"
    return Fraction(match[1]) * _SUFFIXES[match[2]]


SERVER_PATTERN = (
    r"^([A-Za-z0-9_]([-A-Za-z0-9_.]*[A-Za-z0-9_])?|([0-9A-Fa-f]*:){2,}[0-9A-Fa-f.:]*|"
    r"\[([0-9A-Fa-f]*:){2,}[0-9A-Fa-f.:]*(%[-A-Za-z0-9._]+)?\])$"
)
"""Two colons at least are an address (IPv6); after one there would be a port or a path, which stand elsewhere."""
MOUNT_PATTERN = r"^(/[A-Za-z0-9_-][A-Za-z0-9._-]*)+$"
MountPath = Annotated[str, Field(min_length=2, max_length=256, pattern=MOUNT_PATTERN)]
UserId = Annotated[int, Field(ge=0, le=2**31 - 1)]
ImageReference = Annotated[str, Field(min_length=1, max_length=512, pattern=r"^[!-~]+$")]
PullPolicy = Literal["Always", "IfNotPresent", "Never"]
Word = Annotated[str, Field(min_length=1, max_length=4096)]
EnvironmentName = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]


class ImagePullSecret(Section):
    """Credentials of a registry."""

    name: ObjectName
    """Secret of type ``kubernetes.io/dockerconfigjson`` in the job's namespace."""


class ClaimSource(Section):
    """A PersistentVolumeClaim."""

    claim_name: ObjectName
    """Claim in the job's namespace. With more than one worker it must be ``ReadWriteMany``."""


class NfsSource(Section):
    """An NFS export that kubelet mounts; namespaces that enforce Pod Security ``restricted`` need a claim instead."""

    server: Annotated[str, Field(min_length=1, max_length=253, pattern=SERVER_PATTERN)]
    """Host name or address. IPv6 as it is, or in brackets, which an address with a zone needs."""
    path: Annotated[str, Field(min_length=1, max_length=1024, pattern=r"^/")]
    """Path that the server exports."""


class HostPathSource(Section):
    """A folder of the node; only where the operator's settings allow it."""

    path: Annotated[str, Field(min_length=1, max_length=1024, pattern=r"^/")]
    """Folder on every node that a pod may run on."""


class ImageSource(Section):
    """A container image or OCI artifact whose files are mounted; nothing in it is run.

    From Kubernetes 1.35 on, or from 1.31 with the feature gate ImageVolume; on nodes with containerd 2.1, CRI-O 1.31 or
    newer. A cluster without it drops the volume from pods, and the job is Blocked before a pod is created.
    """

    reference: ImageReference
    """Name with tag or digest, such as ``registry.example.com/wikipedia-128@sha256:...``. A digest is the same data in
    every attempt. imagePullSecrets apply."""
    pull_policy: PullPolicy | None = None
    """When nodes pull it. Empty: ``Always`` for the tag latest, else ``IfNotPresent``, as Kubernetes does."""


class KeyedFiles(Section):
    """A Secret or ConfigMap of the job's namespace, each of whose keys becomes a file."""

    name: ObjectName
    """Name of the Secret or ConfigMap."""


class EmptyDirSource(Section):
    """A folder of the pod's own, empty at its start and deleted with it: caches and scratch space of your programs."""

    size_limit: Quantity | None = None
    """Size at which kubelet evicts the pod. On disk it counts against resources.ephemeralStorage. Empty: no limit of
    its own."""
    medium: Literal["Memory"] | None = None
    """``Memory``: main memory in place of the node's disk; it counts against resources.memory. Empty: the disk."""


class VolumeSource(Section):
    """Source of a volume; exactly one of persistentVolumeClaim, nfs, hostPath and image is set."""

    persistent_volume_claim: ClaimSource | None = None
    """A claim, the usual choice."""
    nfs: NfsSource | None = None
    """An NFS export, without a claim."""
    host_path: HostPathSource | None = None
    """A folder of the node."""
    image: ImageSource | None = None
    """The files of an image, read-only: a finished dataset in dataset.volume, or an entry of volumes."""
    sub_path: Annotated[str, Field(min_length=1, max_length=512, pattern=r"^[^/]")] | None = None
    """Folder of the volume to mount. Empty: the whole volume. Of an image it needs Kubernetes 1.33 and containerd 2.2;
    containerd 2.1 mounts the whole image, so rather name the folder in dataset.path."""
    mount_path: MountPath | None = None
    """Mount path in the pods. Not /dev, /etc, /home, /proc, /root, /run, /sys or /usr, nor a folder below them:
    these hold files of the image, the system or the operator (users, ssh keys, the run configuration). Not /tmp
    itself, which is private to each pod; a folder below it, as /tmp/output, works. Empty: /mnt/dataset,
    /mnt/output or /mnt/workspace, depending on the section."""


class FurtherVolumeSource(VolumeSource):
    """Source of a volume, exactly one: persistentVolumeClaim, nfs, hostPath, image, secret, configMap or emptyDir."""

    secret: KeyedFiles | None = None
    """The keys of a Secret as files."""
    config_map: KeyedFiles | None = None
    """The keys of a ConfigMap as files."""
    empty_dir: EmptyDirSource | None = None
    """A folder of each pod's own, which may be written to."""


class VolumeSpec(Section):
    """An additional volume, mounted in every pod of the job: launcher, workers and single pods alike."""

    name: Name
    """Unique among the job's volumes."""
    source: FurtherVolumeSource
    """The volume; its mountPath is required here."""
    read_only: bool = True
    """Mount it read-only. Default: true; an image, a Secret or a ConfigMap cannot be written to, an emptyDir always."""


class PodMetadataSpec(Section):
    """Labels and annotations of the pods, for what reads them: Karpenter, a service mesh, Multus, workload identity.

    Only keys in ``limits.podLabels`` and ``limits.podAnnotations`` of the operator's settings; without these lists
    none. Never those of kubernetes.io, k8s.io, x-k8s.io, kubeflow.org and bert-operator.dev.
    """

    labels: Labels = {}
    """Labels."""
    annotations: Annotations = {}
    """Annotations."""


class KeySource(Section):
    """One key of a Secret or ConfigMap of the job's namespace."""

    name: ObjectName
    """Name of the Secret or ConfigMap."""
    key: Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[-._A-Za-z0-9]+$")]
    """Key in its data."""


class EnvironmentVariable(Section):
    """An environment variable of every rank; exactly one of value, secret and configMap is set."""

    name: EnvironmentName
    """Letters, digits and underscores."""
    value: Annotated[str, Field(max_length=4096)] | None = None
    """Literal value; nothing in it is expanded."""
    secret: KeySource | None = None
    """Value from a key of a Secret."""
    config_map: KeySource | None = None
    """Value from a key of a ConfigMap."""


class EnvironmentSource(Section):
    """All keys of a Secret or ConfigMap as variables; exactly one of secret and configMap is set."""

    secret: ObjectName | None = None
    """Name of a Secret of the job's namespace."""
    config_map: ObjectName | None = None
    """Name of a ConfigMap of the job's namespace."""
    prefix: EnvironmentName | None = None
    """Prefix of every variable's name."""


DEFAULT_ACCELERATOR = "nvidia.com/gpu"


class AcceleratorSpec(Section):
    """GPUs, or other devices that a device plugin offers."""

    resource_name: LabelKey = DEFAULT_ACCELERATOR
    """The extended resource. Default: ``nvidia.com/gpu``."""
    resource_claim: Name | None = None
    """Entry of resourceClaims that provides the devices, in place of resourceName. Ranks then require GPUs: an attempt
    fails if a worker's claim provides none, or fewer than it has ranks. Empty: resourceName is requested."""
    per_worker: Annotated[int, Field(ge=1, le=256)] | None = None
    """Devices per worker. Empty: one per slot. With resourceClaim the claim decides; this only states their number."""
    gpu_memory_limit_gib: Annotated[PositiveFloat | None, Field(alias="gpuMemoryLimitGiB")] = None
    """Maximum device memory that one rank allocates, in GiB. Empty: no limit."""


class HugepagesSpec(Section):
    """Huge pages of one worker; memory must be requested as well."""

    size2_mi: Annotated[Quantity | None, Field(alias="2Mi")] = None
    """Amount in pages of 2 MiB."""
    size1_gi: Annotated[Quantity | None, Field(alias="1Gi")] = None
    """Amount in pages of 1 GiB."""


class RdmaSpec(Section):
    """InfiniBand or RoCE devices."""

    resource_name: LabelKey
    """The extended resource, such as ``rdma/hca_shared_devices_a``."""
    per_worker: Annotated[int, Field(ge=1, le=64)] = 1
    """Devices per worker. Default: 1."""


class ResourceClaimSpec(Section):
    """Devices by dynamic resource allocation (DRA); exactly one of the two names is set.

    From Kubernetes 1.34 on, or from 1.32 with the feature gate DynamicResourceAllocation. A cluster without it drops
    claims from pods, and the job is Blocked before a pod is created.
    """

    name: Name
    """Unique among the section's claims; ``accelerator.resourceClaim`` may name it."""
    resource_claim_name: ObjectName | None = None
    """A ResourceClaim of the job's namespace. All workers share its devices and run where these are; at most 256 pods
    can."""
    resource_claim_template_name: ObjectName | None = None
    """A ResourceClaimTemplate of the job's namespace: every worker gets a claim, and devices, of its own."""
    request: DnsLabel | None = None
    """Request of the claim whose devices the ranks use. Empty: all of them."""


class ResourcesSpec(Section):
    """Resources of one pod. Requests equal limits, so that neighbours never slow a worker down."""

    cpu: Quantity | None = None
    """CPUs, which to Kubernetes are hardware threads. Empty: cpu.coresPerRank x slotsPerWorker x cpu.threadsPerCore if
    coresPerRank is set, else no request."""
    memory: Quantity | None = None
    """Main memory, including what is written to sharedMemory. Empty: no request."""
    ephemeral_storage: Quantity | None = None
    """Local disk of the node for logs and temporary files. Empty: no request."""
    shared_memory: Quantity | None = None
    """Size of /dev/shm, through which ranks of a pod exchange gradients. Empty: 32Mi per slot, 1Gi per slot with an
    accelerator, and 1Gi at least: Open MPI and Intel MPI take 16Mi per rank, NCCL 9Mi per channel and neighbour. Its
    content counts against memory and cannot exceed it. Set more for programs of your own whose data loaders are
    processes."""
    hugepages: HugepagesSpec | None = None
    """Huge pages."""
    accelerator: AcceleratorSpec | None = None
    """GPUs. Empty: the job trains on CPUs."""
    rdma: RdmaSpec | None = None
    """InfiniBand or RoCE devices. For devices from a resource claim set network.lockMemory instead."""
    resource_claims: Annotated[tuple[ResourceClaimSpec, ...], Field(max_length=16)] | None = None
    """Devices by dynamic resource allocation (DRA) for pods that run ranks: like accelerator and rdma, neither the
    launcher nor data preparation gets them. Empty: none."""


class CpuSpec(Section):
    """How ranks use the sockets, NUMA nodes and cores of a Xeon node."""

    cores_per_rank: Annotated[int, Field(ge=1, le=1024)] | None = None
    """Physical cores per rank; sets OMP_NUM_THREADS. Empty: the pod's cores divided by its ranks."""
    pinning: Literal["none", "core", "socket", "numa"] = "none"
    """What ranks are pinned to. ``socket`` and ``numa`` spread the ranks evenly over sockets or NUMA nodes."""
    ranks_per_node: Literal["auto"] | None = None
    """``auto``: one rank per socket, or per NUMA node with pinning: numa, in place of slotsPerWorker. In a cluster
    their number comes from sockets or numaNodes, which every node is checked against; without one from this machine.
    Empty: slotsPerWorker ranks."""
    sockets: Annotated[int, Field(ge=1, le=16)] | None = None
    """Sockets per node; required to pin by socket. slotsPerWorker must be a multiple. A node with another number fails
    the attempt before its first step."""
    numa_nodes: Annotated[int, Field(ge=1, le=64)] | None = None
    """NUMA nodes with processors per node; required to pin by numa. slotsPerWorker must be a multiple. Checked like
    sockets."""
    threads_per_core: Annotated[int, Field(ge=1, le=8)] | None = None
    """Hardware threads per physical core of a node: 2 with hyper-threading. Each is a CPU to Kubernetes, so pods ask
    for coresPerRank x slotsPerWorker x threadsPerCore CPUs; OMP_NUM_THREADS stays coresPerRank. Checked like sockets;
    with pinning, cores of which a pod has only some threads fail the attempt too. Empty: counted as 1, not checked."""
    allocator: Literal["system", "jemalloc", "tcmalloc"] = "system"
    """Memory allocator that ranks preload; with jemalloc MALLOC_CONF is set too."""
    openmp: Literal["gnu", "intel"] = "gnu"
    """OpenMP runtime that ranks load; with Intel's KMP_BLOCKTIME is set too, and KMP_AFFINITY if ranks are pinned."""
    dnnl_max_cpu_isa: (
        Literal["AVX2", "AVX512_CORE", "AVX512_CORE_BF16", "AVX512_CORE_AMX", "AVX512_CORE_AMX_FP16"] | None
    ) = None
    """Newest instruction set that oneDNN uses (DNNL_MAX_CPU_ISA). Empty: for training on CPUs AVX512_CORE_AMX with
    fp32, bf32 and bf16, AVX512_CORE_AMX_FP16 with fp16; otherwise whatever the processor has."""

    @property
    def places(self) -> int | None:
        """The sockets or NUMA nodes that ``ranksPerNode: auto`` counts on one node; None: not given."""
        return self.numa_nodes if self.pinning == "numa" else self.sockets


class MpiSpec(Section):
    """The MPI that launches ranks on several workers."""

    implementation: Literal["OpenMPI", "Intel", "MPICH"] = "OpenMPI"
    """The MPI in the image. Default: OpenMPI, versions 4 and 5."""
    worker_wait_seconds: Annotated[int, Field(ge=10, le=86_400)] = 600
    """Seconds that the launcher waits for DNS and ssh of every worker before the attempt fails, counted from when all
    its pods run; runPolicy.startDeadlineSeconds limits the wait for nodes, images and quota. Default: 600."""


class NetworkSpec(Section):
    """Access to the node's network and locked memory, for InfiniBand and RoCE.

    Pod Security forbids both below ``privileged``. Jobs may set them only where the operator's settings allow it;
    profiles always may.
    """

    host_network: bool = False
    """true: pods use the node's network; only one worker then fits on a node."""
    lock_memory: bool = False
    """true: add the capability IPC_LOCK, which RDMA needs to register memory. Implied by resources.rdma."""


class SecurityContextSpec(Section):
    """User and groups of the pods. Any user works without rebuilding the image: its passwd entry is mounted."""

    run_as_user: UserId | None = None
    """Numeric user id. Empty: the image's user, which is not root."""
    run_as_group: UserId | None = None
    """Numeric group id. Empty: the same number as runAsUser if that is set, else the image's group."""
    fs_group: UserId | None = None
    """Group that owns the files of volumes. Kubernetes does not apply it to NFS: the export's permissions decide."""
    supplemental_groups: Annotated[tuple[UserId, ...], Field(max_length=32)] = ()
    """Additional group ids, such as the one that owns the NFS export."""
    host_users: bool | None = None
    """``false``: the pods get user ids of their own (a user namespace), so that root in a pod is nobody on the node;
    needs Kubernetes 1.33, containerd 2.0 or CRI-O 1.25, Linux 6.3, ids below 65536, and volumes whose file systems
    support idmapped mounts, which NFS does not. Not with inline nfs, hostPath or hostNetwork. Empty: the node's user
    ids."""


class SchedulingPolicySpec(Section):
    """The MPIJob's ``runPolicy.schedulingPolicy``: how its pods are admitted together.

    mpi-operator makes a PodGroup of it for Volcano, or for the coscheduling plugin of scheduler-plugins; only where it
    was started with ``--gang-scheduling``.
    """

    queue: LabeledName | None = None
    """Queue of Volcano, one of ``limits.schedulingQueues`` in the operator's settings; without that list none may be
    set. Empty: Volcano's default."""
    min_available: Annotated[int, Field(ge=1, le=4097)] | None = None
    """Pods that start together, or none does. Empty: all workers and the launcher."""
    priority_class: ObjectName | None = None
    """PriorityClass of the PodGroup, one of ``limits.priorityClasses``. Empty: that of the pods."""
    schedule_timeout_seconds: Annotated[int, Field(ge=1, le=86_400)] | None = None
    """Seconds after which scheduler-plugins gives the gang up and tries again. Empty: the scheduler's default."""


class SchedulingSpec(Section):
    """Node selection, priority and scheduler of the pods."""

    node_selector: Labels = {}
    """Labels that nodes must have."""
    affinity: Affinity | None = None
    """Node and pod affinity."""
    tolerations: Annotated[tuple[Toleration, ...], Field(max_length=32)] = ()
    """Taints that the pods tolerate."""
    topology_spread_constraints: Annotated[tuple[TopologySpread, ...], Field(max_length=8)] = ()
    """How workers are spread over zones, racks or nodes."""
    priority_class_name: ObjectName | None = None
    """PriorityClass of the pods, one of ``limits.priorityClasses`` in the operator's settings; without that list no
    class may be set. Empty: the cluster's default."""
    scheduler_name: SchedulerName | None = None
    """Scheduler of the pods. Empty: the cluster's default."""
    runtime_class_name: ObjectName | None = None
    """RuntimeClass of the pods, such as ``nvidia``. Empty: the cluster's default."""
    scheduling_policy: SchedulingPolicySpec | None = None
    """For jobs with several workers: how a gang scheduler admits the pods of an attempt together. Empty: one by one."""
    topology: TopologyRequest | None = None
    """How close to each other Kueue places the workers of an attempt; the launcher is exempt, since no gradients pass
    through it. Only with queueName. Empty: as the queue is configured."""
    safe_to_forcefully_delete: bool | None = None
    """true: Kueue (0.17.0, feature gate FailureRecoveryPolicy) deletes pods that have been terminating for a minute
    beyond their grace period on an unreachable node, so that the next attempt need not wait for it. They may still run
    there and write; fencing of the output folder, which has one owner, makes that harmless. Not applied to pods that
    run a workspace. Only a profile may set true. Empty: false."""


class RoleSpec(Section):
    """Overrides for one role, the launcher or the workers. A section given here replaces the job's as a whole."""

    resources: ResourcesSpec | None = None
    """Replaces spec.resources. The launcher never gets accelerators. Empty: for the launcher 2Gi and 1 CPU, or 900m
    with cpu.threadsPerCore, so that kubelet's static CPU manager gives it no CPU of its own: half a core."""
    security_context: SecurityContextSpec | None = None
    """Replaces spec.securityContext, hostUsers included. Both roles need the same user if they share files."""
    node_selector: Labels | None = None
    """Replaces spec.scheduling.nodeSelector; the launcher may run on nodes without GPUs."""
    tolerations: Annotated[tuple[Toleration, ...], Field(max_length=32)] | None = None
    """Replaces spec.scheduling.tolerations."""


class WorkspaceSpec(Section):
    """Your own program, run in place of the trainer by every rank of the training run."""

    volume: VolumeSource | None = None
    """Your code, mounted read-only at /mnt/workspace, the working directory of the ranks. Empty: no volume, for a
    program in the image or given in ``args``; ranks then start in the image's working directory. Without a cluster
    ranks start in the current folder either way."""
    command: Annotated[tuple[Word, ...], Field(min_length=1, max_length=64)]
    """Program and its first arguments. MPI's environment is set, and BERT_RUN_CONFIG is the path of the run
    configuration."""
    args: Annotated[tuple[Word, ...], Field(max_length=256)] = ()
    """Additional arguments."""


class ProxySpec(Section):
    """HTTP proxies, set in upper and in lower case for every container."""

    http: FilePath | None = None
    """HTTP_PROXY."""
    https: FilePath | None = None
    """HTTPS_PROXY."""
    no_proxy: FilePath | None = None
    """NO_PROXY. MPI and ssh between pods never use a proxy."""
