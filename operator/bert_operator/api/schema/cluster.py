"""What a job asks of a cluster: images, resources, volumes, users, MPI. Without a cluster it is not looked at.

Kubernetes' own terms keep their names. What empty fields become is in ``render``.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from bert_operator.api.schema.scheduling import Affinity, LabelKey, Labels, ObjectName, Toleration, TopologySpread
from bert_operator.api.schema.section import FilePath, Name, PositiveFloat, Section

QUANTITY_PATTERN = r"^([1-9][0-9]*(\.[0-9]{1,3})?|0\.[0-9]{0,2}[1-9])(m|k|Ki|M|Mi|G|Gi|T|Ti|P|Pi)?$"
Quantity = Annotated[int, Field(ge=1, le=2**53)] | Annotated[str, Field(max_length=20, pattern=QUANTITY_PATTERN)]
"""As Kubernetes writes amounts: 4, 500m, 64Gi."""

MOUNT_PATTERN = r"^(/[A-Za-z0-9_-][A-Za-z0-9._-]*)+$"
MountPath = Annotated[str, Field(min_length=2, max_length=256, pattern=MOUNT_PATTERN)]
UserId = Annotated[int, Field(ge=0, le=2**31 - 1)]
Word = Annotated[str, Field(min_length=1, max_length=4096)]
EnvironmentName = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]


class ImagePullSecret(Section):
    """Credentials of a registry."""

    name: ObjectName
    """Secret of type ``kubernetes.io/dockerconfigjson`` in the job's namespace."""


class ClaimSource(Section):
    """A PersistentVolumeClaim."""

    claim_name: ObjectName
    """In the job's namespace. With more than one worker it has to be ``ReadWriteMany``."""


class NfsSource(Section):
    """A share that kubelet mounts itself; namespaces that enforce ``restricted`` need a claim instead."""

    server: Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[A-Za-z0-9:]([-A-Za-z0-9.:]*[A-Za-z0-9])?$")]
    """Host name or address."""
    path: Annotated[str, Field(min_length=1, max_length=1024, pattern=r"^/")]
    """What the server exports."""


class HostPathSource(Section):
    """A folder of the node. Only where the operator's configuration allows it."""

    path: Annotated[str, Field(min_length=1, max_length=1024, pattern=r"^/")]
    """On every node that a pod may run on."""


class VolumeSource(Section):
    """Where files are; exactly one of persistentVolumeClaim, nfs and hostPath is set."""

    persistent_volume_claim: ClaimSource | None = None
    """A claim, the usual choice."""
    nfs: NfsSource | None = None
    """A share, without a claim."""
    host_path: HostPathSource | None = None
    """A folder of the node."""
    sub_path: Annotated[str, Field(min_length=1, max_length=512, pattern=r"^[^/]")] | None = None
    """Folder of the volume to mount. Empty: all of it."""
    mount_path: MountPath | None = None
    """Where it appears in the pods. Empty: /mnt/dataset, /mnt/output or /mnt/workspace, after the section it
    stands in."""


class VolumeSpec(Section):
    """A further volume, mounted in every pod that runs ranks."""

    name: Name
    """Unique among the job's volumes."""
    source: VolumeSource
    """Where its files are; its mountPath is required here."""
    read_only: bool = True
    """Whether ranks may only read."""


class KeySource(Section):
    """One key of a Secret or ConfigMap of the job's namespace."""

    name: ObjectName
    """Of the object."""
    key: Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[-._A-Za-z0-9]+$")]
    """In its data."""


class EnvironmentVariable(Section):
    """A variable that every rank sees; exactly one of value, secret and configMap is set."""

    name: EnvironmentName
    """Letters, digits and underscores."""
    value: Annotated[str, Field(max_length=4096)] | None = None
    """As it stands."""
    secret: KeySource | None = None
    """From a Secret."""
    config_map: KeySource | None = None
    """From a ConfigMap."""


class EnvironmentSource(Section):
    """All keys of a Secret or ConfigMap as variables; exactly one of secret and configMap is set."""

    secret: ObjectName | None = None
    """Name of a Secret of the job's namespace."""
    config_map: ObjectName | None = None
    """Name of a ConfigMap of the job's namespace."""
    prefix: EnvironmentName | None = None
    """Put before every key."""


class AcceleratorSpec(Section):
    """GPUs, or other devices that a device plugin offers."""

    resource_name: LabelKey = "nvidia.com/gpu"
    """The extended resource. Default: ``nvidia.com/gpu``."""
    per_worker: Annotated[int, Field(ge=1, le=256)] | None = None
    """Devices of one worker. Empty: one per slot."""
    gpu_memory_limit_gib: Annotated[PositiveFloat | None, Field(alias="gpuMemoryLimitGiB")] = None
    """Most memory, in GiB, that one rank takes of its device. Empty: all of it."""


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
    """Devices of one worker."""


class ResourcesSpec(Section):
    """What one pod gets. Requests equal limits, so that a worker is never squeezed by its neighbours."""

    cpu: Quantity | None = None
    """Cores. Empty: cpu.coresPerRank x slotsPerWorker if that is set, else no request."""
    memory: Quantity | None = None
    """Main memory, that of sharedMemory included. Empty: no request."""
    ephemeral_storage: Quantity | None = None
    """Disk of the node for logs and temporary files. Empty: no request."""
    shared_memory: Quantity | None = None
    """Size of /dev/shm. Empty: 1Gi, since the runtime's own 64Mi is too small for MPI and NCCL."""
    hugepages: HugepagesSpec | None = None
    """Huge pages."""
    accelerator: AcceleratorSpec | None = None
    """GPUs. Empty: the job trains on CPUs."""
    rdma: RdmaSpec | None = None
    """Network devices."""


class CpuSpec(Section):
    """How ranks use the processors of a Xeon node."""

    cores_per_rank: Annotated[int, Field(ge=1, le=1024)] | None = None
    """Physical cores of one rank; sets OMP_NUM_THREADS. Empty: the cores of the pod shared out."""
    pinning: Literal["none", "core", "socket", "numa"] = "none"
    """What a rank is bound to. ``socket`` and ``numa`` spread the ranks evenly over them."""
    ranks_per_node: Literal["auto"] | None = None
    """``auto``: one rank per socket, or per NUMA node with pinning: numa, in place of slotsPerWorker. In a cluster
    from sockets or numaNodes, which every node is checked against; without one from this machine's. Empty:
    slotsPerWorker counts."""
    sockets: Annotated[int, Field(ge=1, le=16)] | None = None
    """Processors of a node; needed to pin by socket. slotsPerWorker is a multiple of it. A node that has another
    number ends the attempt before its first step."""
    numa_nodes: Annotated[int, Field(ge=1, le=64)] | None = None
    """NUMA nodes of a node that have processors; needed to pin by numa. slotsPerWorker is a multiple of it. Checked
    like sockets."""
    allocator: Literal["system", "jemalloc", "tcmalloc"] = "system"
    """Memory allocator that ranks load; with jemalloc also MALLOC_CONF is set."""
    openmp: Literal["gnu", "intel"] = "gnu"
    """OpenMP runtime that ranks load; with Intel's also KMP_BLOCKTIME is set, and KMP_AFFINITY where ranks are
    pinned."""
    dnnl_max_cpu_isa: (
        Literal["AVX2", "AVX512_CORE", "AVX512_CORE_BF16", "AVX512_CORE_AMX", "AVX512_CORE_AMX_FP16"] | None
    ) = None
    """Newest instructions that oneDNN uses (DNNL_MAX_CPU_ISA). Empty: where the job trains on CPUs
    AVX512_CORE_AMX for fp32, bf32 and bf16, AVX512_CORE_AMX_FP16 for fp16; else whatever the processor has."""

    @property
    def places(self) -> int | None:
        """What ``ranksPerNode: auto`` counts, on one node; None: not said."""
        return self.numa_nodes if self.pinning == "numa" else self.sockets


class MpiSpec(Section):
    """What starts the ranks of several workers."""

    implementation: Literal["OpenMPI", "Intel", "MPICH"] = "OpenMPI"
    """The one that the image holds. Default: Open MPI, versions 4 and 5."""
    worker_wait_seconds: Annotated[int, Field(ge=10, le=86_400)] = 600
    """Seconds that the launcher waits for name and ssh of every worker before the attempt counts as failed."""


class NetworkSpec(Section):
    """What pods get of their node's network and memory beyond the ordinary: for InfiniBand and RoCE.

    Pod Security forbids both below ``privileged``, and jobs may set them only where the operator's settings allow
    it; a profile may always.
    """

    host_network: bool = False
    """true: pods use the node's own network; then one worker fits on a node."""
    lock_memory: bool = False
    """true: the capability IPC_LOCK, since RDMA locks the memory that it registers. Implied by resources.rdma."""


class SecurityContextSpec(Section):
    """As whom pods run. Any user works without rebuilding an image: its passwd entry is mounted."""

    run_as_user: UserId | None = None
    """Numeric user. Empty: the image's own, which is not root."""
    run_as_group: UserId | None = None
    """Numeric group. Empty: the image's own, or that of runAsUser's number if that is set."""
    fs_group: UserId | None = None
    """Group that owns files of volumes. Kubernetes does not apply it to NFS: the share's own permissions decide."""
    supplemental_groups: Annotated[tuple[UserId, ...], Field(max_length=32)] = ()
    """Further groups, such as the one that owns the share."""


class SchedulingSpec(Section):
    """Which nodes, when, and in whose queue."""

    node_selector: Labels = {}
    """Labels that nodes must have."""
    affinity: Affinity | None = None
    """Kubernetes' affinity."""
    tolerations: Annotated[tuple[Toleration, ...], Field(max_length=32)] = ()
    """Taints that the pods accept."""
    topology_spread_constraints: Annotated[tuple[TopologySpread, ...], Field(max_length=8)] = ()
    """How workers are spread."""
    priority_class_name: ObjectName | None = None
    """Kubernetes priority."""
    scheduler_name: ObjectName | None = None
    """Empty: the cluster's default."""
    runtime_class_name: ObjectName | None = None
    """Container runtime, such as ``nvidia``. Empty: the cluster's default."""


class RoleSpec(Section):
    """What differs for one role: the launcher, or the workers. Every section given here replaces the job's own."""

    resources: ResourcesSpec | None = None
    """In place of spec.resources. The launcher never gets accelerators; empty: 1 core and 2Gi for a launcher."""
    security_context: SecurityContextSpec | None = None
    """In place of spec.securityContext. Both roles need the same user where they share files."""
    node_selector: Labels | None = None
    """In place of spec.scheduling.nodeSelector; the launcher may run on nodes without GPUs."""
    tolerations: Annotated[tuple[Toleration, ...], Field(max_length=32)] | None = None
    """In place of spec.scheduling.tolerations."""


class WorkspaceSpec(Section):
    """The user's own code on a volume, run in place of the trainer by every rank of the training run."""

    volume: VolumeSource
    """Mounted at /mnt/workspace, read-only; ranks start in that folder."""
    command: Annotated[tuple[Word, ...], Field(min_length=1, max_length=64)]
    """Program and its first arguments. Horovod's environment is there, and the run configuration's path in
    BERT_RUN_CONFIG."""
    args: Annotated[tuple[Word, ...], Field(max_length=256)] = ()
    """Further arguments."""


class ProxySpec(Section):
    """Web proxies, set in capitals and in small letters for every container."""

    http: FilePath | None = None
    """HTTP_PROXY."""
    https: FilePath | None = None
    """HTTPS_PROXY."""
    no_proxy: FilePath | None = None
    """NO_PROXY. The addresses of services and pods are never proxied by MPI or ssh."""
