"""``BertPretrainJob`` as the user writes it: fields, units, defaults and the reason for each default.

The only source of the schema, the definition and the reference page: the docstring of a field is what users read in
docs/reference/job.md and in ``kubectl explain``. Rules between fields are in ``rules``; what an empty field becomes for
a run is in ``render.run_config``. Field names are camelCase in YAML and snake_case here.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import ConfigDict, Field

from bert_job.section import FROM_PROFILE, NAME_PATTERN, FilePath, Section
from bert_job.training import TrainingSpec
from bert_operator import names
from bert_operator.api.schema.cluster import (
    CpuSpec,
    EnvironmentSource,
    EnvironmentVariable,
    ImagePullSecret,
    ImageReference,
    MpiSpec,
    NetworkSpec,
    PodMetadataSpec,
    ProxySpec,
    PullPolicy,
    ResourcesSpec,
    RoleSpec,
    SchedulingSpec,
    SecurityContextSpec,
    VolumeSource,
    VolumeSpec,
    WorkspaceSpec,
)
from bert_operator.api.schema.scheduling import LabeledName, ObjectName


class Metadata(Section):
    """The part of Kubernetes' object metadata that the operator reads; the rest is ignored."""

    model_config = ConfigDict(extra="ignore")

    name: Annotated[str, Field(min_length=1, max_length=names.MAX_JOB_NAME, pattern=NAME_PATTERN)]
    """Name of the job. At most 45 characters, so that the host names made from it stay within 63."""
    namespace: Annotated[str, Field(min_length=1, max_length=63)] = "default"
    """Kubernetes namespace; outside a cluster only a label. Default: ``default``, like kubectl."""
    uid: Annotated[str, Field(max_length=64)] | None = None
    """Unique identity of this object; set by the API server, empty without a cluster."""
    generation: int | None = None
    """Counts changes of the spec; set by the API server, empty without a cluster."""


class DatasetSpec(Section):
    """Location of the shards: a prepare stage writes them, training reads them."""

    path: FilePath | None = None
    """Root folder. A relative path is relative to the folder in which the command runs, in a cluster to the mount of
    this section's volume; ``.`` is that folder itself. Empty: ``data`` in the output folder, where a prepare stage
    writes it. Without a prepare stage it is required, unless every stage that reads data names shards. Set it to share
    one dataset between jobs."""
    vocabulary_file: FilePath | None = None
    """An existing vocabulary: of WordPiece one token per line or a ``tokenizer.json``, of byte-level BPE a
    ``tokenizer.json``; or a folder with ``vocab.txt`` or ``tokenizer.json``, such as one of weights. Empty: that of the
    dataset's folder; for a job that only fine-tunes an initialCheckpoint, without dataset.path, that beside it."""
    volume: VolumeSource | None = None
    """In a cluster: the volume to mount, read-only while training; relative paths of this section, of text and of
    shards are relative to its mount. Empty: the output's volume."""
    on_unreadable_shard: Literal["Skip", "Stop"] | None = None
    """What to do about a shard that is damaged, missing or has changed since the run began. ``Stop``, the default: the
    job fails and names it. ``Skip``: training continues without it, reports that in log and metrics, and still leaves
    it out after a restart."""


class OutputSpec(Section):
    """Output folder and volume."""

    path: FilePath
    """Folder for data, checkpoints, metrics, report and export. A relative path is relative to the folder in
    which the command runs, or to the volume's mount; ``.`` is that folder itself, which then holds nothing else. One
    folder belongs to one job."""
    volume: VolumeSource | None = None
    """In a cluster: the volume to mount, shared by all workers. Required there, unless a volume of spec.volumes
    holds the path."""
    if_exists: Literal["Fail", "Resume", "New"] = "Fail"
    """What to do if an earlier job of this name has left a run in the folder. ``Fail``, so that nothing is
    overwritten by accident; ``Resume`` from its latest valid checkpoint; ``New``: move its content into ``previous/``
    and start over. Retries of the same job always resume."""


DEFAULT_HANG_SECONDS = (120, 1800)
"""Lower and upper limit."""


class RunPolicy(Section):
    """Starting, retrying, stopping and cleaning up the job. May be changed while the job runs."""

    suspend: bool = False
    """true: write a checkpoint, stop and wait. Set it to false again to resume from there in a new attempt."""
    application_retries: Annotated[int, Field(ge=0, le=20)] = 1
    """Retries after the program itself failed (exit code 1). Default: 1, since a program that fails twice usually fails
    again. Data preparation and training have separate budgets."""
    infrastructure_retries: Annotated[int, Field(ge=0, le=100)] = 3
    """Retries in a row after a process was killed or hung, its machine was lost, or storage failed after the first
    step. A new checkpoint, or a finished part of a data build, resets the count, so that a job that dies once a day
    continues. A reported checkpoint counts for at most 2 x infrastructureRetries + 1 failures, until an attempt resumes
    from it. Bad input (exit code 2) is never retried."""
    active_deadline_seconds: Annotated[int, Field(ge=1, le=31_536_000)] | None = None
    """Seconds after which the job is stopped with a checkpoint and marked as failed. Empty: no limit."""
    start_deadline_seconds: Annotated[int, Field(ge=1, le=31_536_000)] | None = None
    """Seconds that the pods of an attempt may wait for nodes and images before the job is marked as failed; time in a
    queue does not count. Empty: no limit."""
    stop_grace_seconds: Annotated[int, Field(ge=1, le=86_400)] = 120
    """Grace period in seconds for a pod to write its checkpoint before it is killed."""
    on_hang: Literal["Restart", "Notify"] | None = None
    """What to do when a rank makes no progress for 5 times the longest step of its stage. ``Restart``, the default: end
    the attempt as an infrastructure failure and resume from the latest checkpoint. ``Notify``: let it continue. Either
    way the log gets the stack traces of all ranks, and log and status name the rank that blocks the others. Evaluation,
    export, the first steps of a stage and other work without a regular pace may take hangMaxSeconds."""
    hang_min_seconds: Annotated[int, Field(ge=10, le=86_400)] | None = None
    """Minimum seconds without progress before a rank counts as hung, however short its steps are. Default: 120."""
    hang_max_seconds: Annotated[int, Field(ge=10, le=604_800)] | None = None
    """Maximum seconds without progress before a rank counts as hung, however long its steps are. Default: 1800."""
    ttl_seconds_after_finished: Annotated[int, Field(ge=0, le=315_360_000)] | None = None
    """Seconds after which a finished job and its pods are deleted; files on volumes are kept. Empty: never."""
    checkpoints_after_success: Literal["Keep", "Delete"] = "Keep"
    """Whether to keep checkpoints once every stage is done; export and metrics are always kept."""

    @property
    def hang_limits(self) -> tuple[int, int]:
        """The lower and the upper limit for hangs in seconds, defaults filled in."""
        lower, upper = self.hang_min_seconds, self.hang_max_seconds
        defaults = DEFAULT_HANG_SECONDS
        return (defaults[0] if lower is None else lower, defaults[1] if upper is None else upper)


class JobSpec(TrainingSpec):
    """Specification of the job."""

    profile: LabeledName | None = None
    """Name of a profile in the operator's settings, which fills in cluster-specific fields that this job leaves out:
    image, resources, volumes, users and the like. Empty: the default profile, if there is one. Ignored without a
    cluster."""
    image: Annotated[ImageReference | None, FROM_PROFILE] = None
    """Container image of the trainer. Empty: the default image of the operator's installation."""
    image_pull_policy: Annotated[PullPolicy | None, FROM_PROFILE] = None
    """When nodes pull the image. Empty: ``Always`` for the tag latest, else ``IfNotPresent``, as Kubernetes does."""
    image_pull_secrets: Annotated[tuple[ImagePullSecret, ...], Field(max_length=16), FROM_PROFILE] = ()
    """Credentials of private registries."""
    workers: Annotated[int, Field(ge=1, le=4096)] = 1
    """Number of worker pods or machines. Default: 1, a single pod without ssh."""
    slots_per_worker: Annotated[int, Field(ge=1, le=256), FROM_PROFILE] = 1
    """Ranks (training processes) per worker: one per GPU, or one per CPU socket. Default: 1. Leave it out with
    cpu.ranksPerNode: auto."""
    mpi: Annotated[MpiSpec, FROM_PROFILE] = MpiSpec()
    """The MPI that launches the ranks."""
    dataset: DatasetSpec = DatasetSpec()
    """The data to train on."""
    output: OutputSpec
    """Output folder, and what to do with earlier results in it."""
    resources: Annotated[ResourcesSpec, FROM_PROFILE] = ResourcesSpec()
    """Resources of one worker: cores, memory, GPUs, network devices."""
    cpu: Annotated[CpuSpec, FROM_PROFILE] = CpuSpec()
    """CPU layout on Xeon nodes: ranks, threads, pinning."""
    network: Annotated[NetworkSpec, FROM_PROFILE] = NetworkSpec()
    """Access to the node's network and locked memory, for InfiniBand and RoCE."""
    security_context: Annotated[SecurityContextSpec, FROM_PROFILE] = SecurityContextSpec()
    """User and groups of the pods."""
    pod_metadata: Annotated[PodMetadataSpec | None, FROM_PROFILE] = None
    """Labels and annotations of the pods. Empty: the operator's own alone."""
    service_account_name: Annotated[ObjectName | None, FROM_PROFILE] = None
    """ServiceAccount of the pods, for identities that a cloud gives to it; its token is not mounted, since ranks never
    talk to the API server. One of ``limits.serviceAccounts`` in the operator's settings; without that list none may be
    named. Empty: the namespace's default."""
    scheduling: Annotated[SchedulingSpec, FROM_PROFILE] = SchedulingSpec()
    """Nodes that the pods may run on, their priority and scheduler."""
    queue_name: Annotated[LabeledName | None, FROM_PROFILE] = None
    """Kueue LocalQueue that admits the attempts. Empty: no queue, attempts start at once."""
    workload_priority_class: Annotated[LabeledName | None, FROM_PROFILE] = None
    """Kueue WorkloadPriorityClass of the attempts: their order in the queue, and who is preempted for whom. The pods'
    own priority stays scheduling.priorityClassName. Each new attempt queues behind others of its priority. Empty: Kueue
    uses scheduling.priorityClassName. Only with queueName."""
    launcher: Annotated[RoleSpec, FROM_PROFILE] = RoleSpec()
    """Overrides for the MPI launcher."""
    worker: Annotated[RoleSpec, FROM_PROFILE] = RoleSpec()
    """Overrides for the workers, and for the single pod of a job with one worker."""
    env: Annotated[tuple[EnvironmentVariable, ...], Field(max_length=128), FROM_PROFILE] = ()
    """Environment variables of every rank."""
    env_from: Annotated[tuple[EnvironmentSource, ...], Field(max_length=16), FROM_PROFILE] = ()
    """Secrets and ConfigMaps whose keys become environment variables of every rank."""
    volumes: Annotated[tuple[VolumeSpec, ...], Field(max_length=16), FROM_PROFILE] = ()
    """Additional volumes, in every pod of the data preparation and of the training: launcher, workers, single pods."""
    workspace: WorkspaceSpec | None = None
    """Your own training program, run in place of the trainer. Empty: the trainer."""
    proxy: Annotated[ProxySpec, FROM_PROFILE] = ProxySpec()
    """HTTP proxies."""
    managed_by: Literal["bert-operator.dev/operator", "kueue.x-k8s.io/multikueue"] | None = None
    """Controller that runs the job, as in Kubernetes Jobs; immutable. ``bert-operator.dev/operator``, the default: the
    operator of this cluster. ``kueue.x-k8s.io/multikueue``, reserved for MultiKueue: the operator ignores the job,
    creates nothing and writes no status. Ignored without a cluster."""
    run_policy: RunPolicy = RunPolicy()
    """Starting, retrying, stopping and cleaning up the job."""

    @property
    def ranks_per_worker(self) -> int:
        """Training processes per worker: slotsPerWorker, or the number of places with cpu.ranksPerNode: auto.

        1 while their number is not known.
        """
        return self.slots_per_worker if self.cpu.ranks_per_node is None else self.cpu.places or 1

    @property
    def ranks(self) -> int:
        """Training processes over all workers."""
        return self.workers * self.ranks_per_worker

    @property
    def cpus_per_worker(self) -> int | None:
        """CPUs, as Kubernetes counts them, that the ranks of one worker need; None: cpu.coresPerRank is not given."""
        if self.cpu.cores_per_rank is None:
            return None
        return self.cpu.cores_per_rank * self.ranks_per_worker * (self.cpu.threads_per_core or 1)

    def resolve_ranks(self) -> Self:
        """Return the spec with the number of ranks per worker written to slotsPerWorker."""
        cpu = self.cpu.model_copy(update={"ranks_per_node": None})
        return self.model_copy(update={"slots_per_worker": self.ranks_per_worker, "cpu": cpu})


class BertPretrainJob(Section):
    """One job: from text to a pretrained BERT."""

    api_version: Literal["bert-operator.dev/v1alpha1"]
    """``bert-operator.dev/v1alpha1``."""
    kind: Literal["BertPretrainJob"]
    """``BertPretrainJob``."""
    metadata: Metadata
    """Name and namespace."""
    spec: JobSpec
    """Specification of the job."""

    @property
    def ref(self) -> names.JobRef:
        """Namespace and name of the job."""
        return names.JobRef(self.metadata.namespace, self.metadata.name)

    def with_world(self, *, workers: int, slots_per_worker: int) -> Self:
        """Return the job with another number of workers and slots. Check the rules about ranks again afterwards."""
        changes = {"workers": workers, "slots_per_worker": slots_per_worker}
        return self.model_copy(update={"spec": self.spec.resolve_ranks().model_copy(update=changes)})
