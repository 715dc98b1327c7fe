"""Rules for what a job asks of its pods: ranks and where they are pinned, devices, precision, volumes, variables.

Pure, like ``job_rules``. A profile may fill in most of these fields, and the API server does not see it: in CEL every
one of them needs ``has()``, and a rule says nothing where the job leaves a field to its profile. The operator checks
the completed job.
"""

from __future__ import annotations

from collections.abc import Iterator

from bert_job.problems import render_value
from bert_job.rules.cel import RANKS_PER_WORKER, Cel, has_cpu, is_pinned
from bert_job.rules.rule import Rule, Violation, rule
from bert_operator.api.rules import mounts
from bert_operator.api.schema.bert_pretrain_job import JobSpec
from bert_operator.api.schema.cluster import ResourcesSpec, count_cpus


def _fills(places: str, place: str) -> str:
    """Return the expression for ranks pinned to a place.

    Where the job leaves slotsPerWorker to its profile, the operator alone can judge.
    """
    ranks_are_known = f"({has_cpu('ranksPerNode')} || has(self.slotsPerWorker))"
    applies = f"({is_pinned(place)} && {has_cpu(places)} && {ranks_are_known})"
    return f"!{applies} || {RANKS_PER_WORKER} % self.cpu.{places} == 0"


def _uneven_ranks(spec: JobSpec, places: str, count: int | None) -> Iterator[Violation]:
    if count is not None and spec.ranks_per_worker % count:
        yield Violation(
            "slotsPerWorker",
            str(spec.slots_per_worker),
            allowed=f"a multiple of cpu.{places} {count}, since pinning: {spec.cpu.pinning} spreads ranks evenly",
            next_step=f"write slotsPerWorker: {count}, or choose another pinning",
        )


@rule(
    Cel(JobSpec, _fills("sockets", "socket"), "slotsPerWorker"),
    allowed="a multiple of cpu.sockets with pinning: socket",
    next_step="write slotsPerWorker as the number of sockets, or choose another pinning",
)
def slots_fill_sockets(spec: JobSpec) -> Iterator[Violation]:
    """Refuse ranks that cannot be spread evenly over sockets: some would share theirs, and the others wait for them."""
    if spec.cpu.pinning == "socket":
        yield from _uneven_ranks(spec, "sockets", spec.cpu.sockets)


@rule(
    Cel(JobSpec, _fills("numaNodes", "numa"), "slotsPerWorker"),
    allowed="a multiple of cpu.numaNodes with pinning: numa",
    next_step="write slotsPerWorker as the number of NUMA nodes, or choose another pinning",
)
def slots_fill_numa_nodes(spec: JobSpec) -> Iterator[Violation]:
    """Refuse ranks that cannot be spread evenly over NUMA nodes."""
    if spec.cpu.pinning == "numa":
        yield from _uneven_ranks(spec, "numaNodes", spec.cpu.numa_nodes)


@rule(
    Cel(
        JobSpec,
        # 1 is the default: read back, a job that writes it is the same as one that leaves it out.
        f"!{has_cpu('ranksPerNode')} || !has(self.slotsPerWorker) || self.slotsPerWorker == 1",
        "slotsPerWorker",
    ),
    allowed="none with cpu.ranksPerNode: auto, which counts sockets or NUMA nodes",
    next_step="leave one of the two out",
)
def ranks_are_counted_once(spec: JobSpec) -> Iterator[Violation]:
    """Refuse slotsPerWorker together with cpu.ranksPerNode."""
    if spec.cpu.ranks_per_node is not None and spec.slots_per_worker != 1:
        yield Violation("slotsPerWorker", str(spec.slots_per_worker))


_HAS_ACCELERATOR = (
    "has(self.worker) && has(self.worker.resources) ? has(self.worker.resources.accelerator) : "
    "has(self.resources) && has(self.resources.accelerator)"
)
"""A role's section replaces the job's as a whole (``RoleSpec``)."""


@rule(
    # precision belongs to no profile and has a default: the server has filled it in, and it needs no has().
    Cel(JobSpec, f"!(self.precision in ['bf32', 'avx-fp32']) || !({_HAS_ACCELERATOR})", "precision"),
    allowed="tf32, bf16, fp16 or fp32 where the workers have GPUs",
    next_step="write tf32, which does on GPUs what bf32 does on Xeons, or leave the accelerator out",
)
def precision_fits_the_device(spec: JobSpec) -> Iterator[Violation]:
    """Refuse precisions of CPUs on GPUs. The reverse is found when the rank starts: a CPU may have AMX or not."""
    resources = spec.worker.resources or spec.resources
    # bf32 and avx-fp32 are modes of oneDNN; on a GPU they would silently be fp32.
    if spec.precision in ("bf32", "avx-fp32") and resources.accelerator is not None:
        yield Violation("precision", render_value(spec.precision))


def _is_given(path: str) -> str:
    """Return the expression for a job that has a field: CEL's ``has()`` of it alone needs all sections above it."""
    steps = path.split(".")
    return " && ".join(f"has(self.{'.'.join(steps[:end])})" for end in range(1, len(steps) + 1))


def _device_for_every_rank(resources: str) -> Cel:
    """Return the expression for the devices of the resources at this path."""
    devices = f"{resources}.accelerator.perWorker"
    return Cel(JobSpec, f"!({_is_given(devices)}) || self.{devices} >= {RANKS_PER_WORKER}", devices)


@rule(
    _device_for_every_rank("resources"),
    _device_for_every_rank("worker.resources"),
    allowed="at least slotsPerWorker, since every rank drives a device of its own",
    next_step="leave the field out for one device per slot",
)
def every_rank_has_a_device(spec: JobSpec) -> Iterator[Violation]:
    """Refuse ranks that would share a GPU: NCCL refuses two ranks on one device."""
    ranks = spec.ranks_per_worker
    for path, resources in _resource_sections(spec):
        accelerator = None if resources is None else resources.accelerator
        # Left out, it is the number of slots (render.pods).
        if accelerator is not None and (accelerator.per_worker or ranks) < ranks:
            yield Violation(
                f"{path}.accelerator.perWorker",
                str(accelerator.per_worker),
                allowed=f"at least slotsPerWorker {ranks}, since every rank drives a device of its own",
            )


_MIG = "/mig-"
"""In the names of NVIDIA's devices that are parts of a GPU."""


def _single_mig(resources: str) -> Cel:
    """Return the expression for the accelerator of the resources at this path."""
    name, devices = f"{resources}.accelerator.resourceName", f"self.{resources}.accelerator.perWorker"
    is_one = f"{RANKS_PER_WORKER} == 1 && (!has({devices}) || {devices} == 1)"
    return Cel(JobSpec, f"!({_is_given(name)} && self.{name}.contains('{_MIG}')) || ({is_one})", name)


@rule(
    _single_mig("resources"),
    _single_mig("worker.resources"),
    allowed="a whole GPU, or one rank and one device per worker: CUDA shows a process one of a pod's MIG instances",
    next_step="write slotsPerWorker: 1 and more workers, or ask for nvidia.com/gpu",
)
def mig_instances_are_alone(spec: JobSpec) -> Iterator[Violation]:
    """Refuse several MIG instances in one pod: a process sees the first alone (CUDA's guide to MIG, enumeration)."""
    for path, resources in _resource_sections(spec):
        accelerator = None if resources is None else resources.accelerator
        if accelerator is None or _MIG not in accelerator.resource_name:
            continue
        if spec.ranks_per_worker > 1 or (accelerator.per_worker or 1) > 1:
            yield Violation(f"{path}.accelerator.resourceName", render_value(accelerator.resource_name))


def _worker_resources(spec: JobSpec) -> tuple[str, ResourcesSpec]:
    """Return the resources of workers with their path: a role's section replaces the job's as a whole."""
    if spec.worker.resources is not None:
        return "worker.resources", spec.worker.resources
    return "resources", spec.resources


def _counts_cores(spec: JobSpec) -> bool:
    """Tell whether ranks are pinned to cores whose hardware threads the job counts."""
    return spec.cpu.pinning != "none" and spec.cpu.threads_per_core is not None


def _of_worker_cpus(expression: str) -> tuple[Cel, Cel]:
    """Return an expression over ``{cpu}``, the CPUs of a worker with pinned ranks, at both places where they may stand.

    Only with threadsPerCore, which says that cores are counted: under kubelet's policy ``none`` a pod sees all CPUs,
    whatever it asks for, and jobs that rely on it run, and are suspended and resumed, as before.

    Where they are written as text (500m), the operator alone judges: a field that may be both number and text has no
    limit of length to the server, and whatever reads the text exceeds the cost that a rule may have.
    """
    has_own = "has(self.worker) && has(self.worker.resources)"
    pinned = f"{has_cpu('pinning')} && self.cpu.pinning != 'none' && {has_cpu('threadsPerCore')}"

    def at(path: str, given: str) -> Cel:
        applies = f"{pinned} && {given} && type(self.{path}) == int"
        return Cel(JobSpec, f"!({applies}) || {expression.format(cpu=f'self.{path}')}", path)

    return (
        at("worker.resources.cpu", f"{has_own} && has(self.worker.resources.cpu)"),
        at("resources.cpu", f"!({has_own}) && has(self.resources) && has(self.resources.cpu)"),
    )


@rule(
    *_of_worker_cpus(
        f"!{has_cpu('coresPerRank')} || {{cpu}} >= self.cpu.coresPerRank * {RANKS_PER_WORKER} * self.cpu.threadsPerCore"
    ),
    allowed="at least cpu.coresPerRank x slotsPerWorker x cpu.threadsPerCore where ranks are pinned: each is a CPU",
    next_step="leave the field out for exactly that many",
)
def cpus_hold_the_pinned_ranks(spec: JobSpec) -> Iterator[Violation]:
    """Refuse pods with fewer CPUs than their ranks are to be pinned to: the cores are not there.

    Ranks that are not pinned may share CPUs: slow, but the way to try a job on a small machine.
    """
    path, resources = _worker_resources(spec)
    cpu, needed = spec.cpu, spec.cpus_per_worker
    if not _counts_cores(spec) or resources.cpu is None or needed is None:
        return
    if count_cpus(resources.cpu) < needed:
        yield Violation(
            f"{path}.cpu",
            render_value(resources.cpu),
            allowed=f"at least {needed}: coresPerRank {cpu.cores_per_rank} x {spec.ranks_per_worker} ranks x "
            f"threadsPerCore {cpu.threads_per_core}, since ranks are pinned and each thread of a core is a CPU",
        )


@rule(
    *_of_worker_cpus("{cpu} % self.cpu.threadsPerCore == 0"),
    allowed="a whole number where ranks are pinned, and a multiple of cpu.threadsPerCore: kubelet gives no other pod "
    "cores of its own",
    next_step="leave the field out where cpu.coresPerRank is given, or round it up",
)
def pinned_pods_ask_for_whole_cores(spec: JobSpec) -> Iterator[Violation]:
    """Refuse parts of cores where ranks are pinned: kubelet's static CPU manager would let such a pod share CPUs."""
    path, resources = _worker_resources(spec)
    if resources.cpu is not None and _counts_cores(spec):
        cpus = count_cpus(resources.cpu)
        if cpus.denominator != 1 or cpus % (spec.cpu.threads_per_core or 1):
            yield Violation(f"{path}.cpu", render_value(resources.cpu))


def _shared_devices(resources: str) -> Cel:
    """Return the expression for the claims of the resources at this path."""
    own, claims = f"{resources}.accelerator.resourceClaim", f"self.{resources}.resourceClaims"
    shared = f"claim.name == self.{own} && has(claim.resourceClaimName)"
    is_shared = f"{_is_given(own)} && has({claims}) && {claims}.exists(claim, {shared})"
    return Cel(JobSpec, f"self.workers == 1 || !({is_shared})", own)


@rule(
    _shared_devices("resources"),
    _shared_devices("worker.resources"),
    allowed="an entry with resourceClaimTemplateName: several workers would share the devices of one claim",
    next_step="make a ResourceClaimTemplate of the claim and name that, or write workers: 1",
)
def workers_have_their_own_devices(spec: JobSpec) -> Iterator[Violation]:
    """Refuse workers that would share GPUs: Kubernetes gives a named claim's devices to every pod that names it."""
    for path, resources in _resource_sections(spec):
        if spec.workers == 1 or resources is None or resources.accelerator is None:
            continue
        for claim in resources.resource_claims or ():
            if claim.name == resources.accelerator.resource_claim and claim.resource_claim_name is not None:
                yield Violation(f"{path}.accelerator.resourceClaim", render_value(claim.name))


def _resource_sections(spec: JobSpec) -> tuple[tuple[str, ResourcesSpec | None], ...]:
    return ("resources", spec.resources), ("worker.resources", spec.worker.resources)


@rule(
    # The server says it by the lists' type: keys of x-kubernetes-list-map-keys are unique.
    allowed="a name that no other entry has",
    next_step="remove one of them",
)
def names_differ(spec: JobSpec) -> Iterator[Violation]:
    """Refuse variables, volumes and claims that are named twice: one of the two values would be lost."""
    named = {"env": [entry.name for entry in spec.env], "volumes": [entry.name for entry in spec.volumes]}
    for path, resources in (*_resource_sections(spec), ("launcher.resources", spec.launcher.resources)):
        claims = None if resources is None else resources.resource_claims
        named[f"{path}.resourceClaims"] = [claim.name for claim in claims or ()]
    for field, entries in named.items():
        seen: set[str] = set()
        for number, name in enumerate(entries):
            if name in seen:
                yield Violation(f"{field}[{number}].name", render_value(name))
            seen.add(name)


# Where sections are absent, words that no path can be equal to stand in for their mounts.
_DATASET_MOUNT = (
    "(has(self.dataset) && has(self.dataset.volume) ? "
    f"(has(self.dataset.volume.mountPath) ? self.dataset.volume.mountPath : '{mounts.DATASET_MOUNT}') : 'no dataset')"
)
_OUTPUT_MOUNT = (
    "(has(self.output.volume) ? "
    f"(has(self.output.volume.mountPath) ? self.output.volume.mountPath : '{mounts.OUTPUT_MOUNT}') : 'no output')"
)
_WORKSPACE_MOUNT = (
    "(has(self.workspace) && has(self.workspace.volume) ? (has(self.workspace.volume.mountPath) ? "
    f"self.workspace.volume.mountPath : '{mounts.WORKSPACE_MOUNT}') : 'no workspace')"
)


@rule(
    Cel(
        JobSpec,
        f"{_DATASET_MOUNT} != {_OUTPUT_MOUNT} && {_DATASET_MOUNT} != {_WORKSPACE_MOUNT} && "
        f"{_OUTPUT_MOUNT} != {_WORKSPACE_MOUNT}",
        subject="mountPath of dataset, output and workspace",
    ),
    Cel(
        JobSpec,
        "!has(self.volumes) || !self.volumes.exists(entry, has(entry.source.mountPath) && "
        f"entry.source.mountPath in [{_DATASET_MOUNT}, {_OUTPUT_MOUNT}, {_WORKSPACE_MOUNT}])",
        subject="volumes[].source.mountPath",
    ),
    Cel(
        JobSpec,
        # A loop in a loop costs the square of the list's limit, here 16.
        "!has(self.volumes) || self.volumes.all(entry, !has(entry.source.mountPath) || "
        "self.volumes.exists_one(other, has(other.source.mountPath) && "
        "other.source.mountPath == entry.source.mountPath))",
        subject="volumes[].source.mountPath",
    ),
    allowed="a folder of its own for every volume",
    next_step="choose another folder",
)
def mounts_differ(spec: JobSpec) -> Iterator[Violation]:
    """Refuse two volumes in one place: Kubernetes refuses such a pod."""
    seen: dict[str, str] = {}
    for path, mount in mounts.list_mounts(spec):
        if mount in seen:
            taken = f"a folder of its own; spec.{seen[mount]} is mounted there"
            yield Violation(f"{path}.mountPath", render_value(mount), allowed=taken)
        seen.setdefault(mount, path)


@rule(
    # Not for the API server: a profile may name the queue.
    allowed="nothing without queueName: Kueue reads it of jobs in a queue alone",
    next_step="add queueName, in the job or in its profile, or leave it out",
)
def queues_have_a_name(spec: JobSpec) -> Iterator[Violation]:
    """Refuse queue settings without queueName: they would have no effect."""
    if spec.queue_name is None and spec.workload_priority_class is not None:
        yield Violation("workloadPriorityClass", render_value(spec.workload_priority_class))
    if spec.queue_name is None and spec.scheduling.topology is not None:
        asked = spec.scheduling.topology.model_dump(by_alias=True, exclude_none=True)
        yield Violation("scheduling.topology", render_value(asked))


@rule(
    Cel(
        JobSpec,
        "!has(self.scheduling) || !has(self.scheduling.schedulingPolicy) || "
        "!has(self.scheduling.schedulingPolicy.minAvailable) || "
        "self.scheduling.schedulingPolicy.minAvailable <= self.workers + 1",
        "scheduling.schedulingPolicy.minAvailable",
    ),
    allowed="at most workers + 1, the pods of an attempt with its launcher",
    next_step="lower it, or leave it out for all of them",
)
def gangs_fit_their_pods(spec: JobSpec) -> Iterator[Violation]:
    """Refuse a gang of more pods than there are: it would wait for ever."""
    policy = spec.scheduling.scheduling_policy
    if policy is not None and policy.min_available is not None and policy.min_available > spec.workers + 1:
        yield Violation("scheduling.schedulingPolicy.minAvailable", str(policy.min_available))


POD_RULES: tuple[Rule[JobSpec], ...] = (
    slots_fill_sockets,
    slots_fill_numa_nodes,
    ranks_are_counted_once,
    precision_fits_the_device,
    every_rank_has_a_device,
    mig_instances_are_alone,
    cpus_hold_the_pinned_ranks,
    pinned_pods_ask_for_whole_cores,
    workers_have_their_own_devices,
    names_differ,
    mounts_differ,
    queues_have_a_name,
    gangs_fit_their_pods,
)
