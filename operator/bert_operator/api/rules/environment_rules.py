"""Variables that a field of the job decides as well: what contradicts that field, and what is only seldom meant. Pure.

A variable of ``spec.env`` wins over the operator's (``render.pods``), so that two answers to one question would end as
one of them, without a word. What Secrets and ConfigMaps hold is not known here.

Sources: OpenMP 5.2, chapter 21; Intel's and GNU's OpenMP manuals for KMP_ and GOMP_; oneDNN's and jemalloc's manuals;
mpirun of Open MPI 4 and 5, Intel MPI's developer reference, Hydra; CUDA's and torchrun's documentation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from bert_job.problems import render_value
from bert_job.rules.rule import Rule, Violation, rule
from bert_operator.api.schema.bert_pretrain_job import JobSpec


@dataclass(frozen=True, slots=True)
class _Decided:
    """A field that says what a variable says, and what it makes of it."""

    field: str
    value: Callable[[JobSpec], str | None]
    """None: the field leaves the variable alone."""


def _threads(spec: JobSpec) -> str | None:
    return None if spec.cpu.cores_per_rank is None else str(spec.cpu.cores_per_rank)


_THREADS = _Decided("cpu.coresPerRank", _threads)
_INSTRUCTIONS = _Decided("cpu.dnnlMaxCpuIsa", lambda spec: spec.cpu.dnnl_max_cpu_isa)
_HTTP = _Decided("proxy.http", lambda spec: spec.proxy.http)
_HTTPS = _Decided("proxy.https", lambda spec: spec.proxy.https)
_NO_PROXY = _Decided("proxy.noProxy", lambda spec: spec.proxy.no_proxy)

_DECIDED: Mapping[str, _Decided] = MappingProxyType(
    {
        "OMP_NUM_THREADS": _THREADS,
        "MKL_NUM_THREADS": _THREADS,
        "DNNL_MAX_CPU_ISA": _INSTRUCTIONS,
        "ONEDNN_MAX_CPU_ISA": _INSTRUCTIONS,
        "http_proxy": _HTTP,
        "HTTP_PROXY": _HTTP,
        "https_proxy": _HTTPS,
        "HTTPS_PROXY": _HTTPS,
        "no_proxy": _NO_PROXY,
        "NO_PROXY": _NO_PROXY,
        "BERT_ALLOCATOR": _Decided("cpu.allocator", lambda spec: spec.cpu.allocator),
        "BERT_OPENMP": _Decided("cpu.openmp", lambda spec: spec.cpu.openmp),
        "BERT_ON_HANG": _Decided("runPolicy.onHang", lambda spec: spec.run_policy.on_hang or "Restart"),
    }
)
"""What a field says in full: another value contradicts it."""

_OF_THE_LAUNCHER = frozenset(
    {
        *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK"),
        *(f"OMPI_COMM_WORLD_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "NODE_RANK")),
        *("PMI_RANK", "PMI_SIZE", "PMIX_RANK", "PMIX_NAMESPACE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
        *(f"HOROVOD_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")),
        *("HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_GLOO_RENDEZVOUS_PORT", "HOROVOD_HOSTNAME"),
    }
)
"""Another value for every rank: one value for all of them starts no world."""
_MEETING_POINT = frozenset({"MASTER_ADDR", "MASTER_PORT"})
"""Found by the trainer's ranks among themselves. Own programs may need them."""

_BINDING = frozenset(
    {
        *("I_MPI_PIN", "I_MPI_PIN_CELL", "I_MPI_PIN_DOMAIN", "I_MPI_PIN_ORDER", "I_MPI_PIN_PROCESSOR_LIST"),
        *("OMPI_MCA_hwloc_base_binding_policy", "OMPI_MCA_rmaps_base_binding_policy"),
        *("PRTE_MCA_hwloc_default_binding_policy", "HYDRA_BINDING"),
    }
)
_NO_BINDING = frozenset({"", "0", "disable", "false", "no", "none", "off"})

_DEVICES = frozenset({"CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"})

_OF_INTELS_OPENMP = frozenset({"KMP_AFFINITY", "KMP_BLOCKTIME", "KMP_HW_SUBSET"})
_OF_THREADS_IN_A_RANK = frozenset({"KMP_AFFINITY", "KMP_HW_SUBSET", "OMP_PLACES", "OMP_PROC_BIND"})


def _values(spec: JobSpec) -> Iterator[tuple[str, str, str]]:
    """Yield path, name and value of every variable whose value stands in the job."""
    for number, variable in enumerate(spec.env):
        if variable.value is not None:
            yield f"env[{number}].value", variable.name, variable.value


def _named(name: str, value: str) -> str:
    return f"{render_value(value)} for {name}"


@rule(
    # Not for the API server: a profile may hold either of the two.
    allowed="what the field says that decides it",
    next_step="leave the variable out",
)
def variables_repeat_their_fields(spec: JobSpec) -> Iterator[Violation]:
    """Refuse a variable with another value than its field's: coresPerRank: 28 beside one thread binds 27 idle cores."""
    for path, name, value in _values(spec):
        decided = _DECIDED.get(name)
        wanted = None if decided is None else decided.value(spec)
        # Of a list of threads the first entry is that of the outer level.
        own = value.partition(",")[0].strip() if decided is _THREADS else value
        if decided is not None and wanted is not None and own != wanted:
            yield Violation(
                path,
                _named(name, value),
                allowed=f"{render_value(wanted)}, which spec.{decided.field} makes of it",
                next_step=f"leave the variable out, or {decided.field}, in the job and in its profile",
            )


@rule(
    # Not for the API server: a profile may hold variables, and the launcher's are too many for its budget.
    allowed="no value: the launcher gives every rank its own",
    next_step="leave it out; workers, slotsPerWorker and cpu.ranksPerNode decide how many ranks there are",
)
def ranks_are_numbered_by_the_launcher(spec: JobSpec) -> Iterator[Violation]:
    """Refuse one number, or one meeting point, for all ranks."""
    for path, name, value in _values(spec):
        if name in _OF_THE_LAUNCHER or (name in _MEETING_POINT and spec.workspace is None):
            yield Violation(path, _named(name, value))


@rule(
    # Not for the API server: a profile may hold variables, and pinning.
    allowed="none or off: ranks bind themselves as cpu.pinning says, and the launcher switches MPI's own binding off",
    next_step="leave it out, and write cpu.pinning: core, socket or numa",
)
def ranks_are_bound_by_one(spec: JobSpec) -> Iterator[Violation]:
    """Refuse to have MPI bind ranks: its command line switches that off, and the value would be lost."""
    for path, name, value in _values(spec):
        if name in _BINDING and value.strip().lower() not in _NO_BINDING:
            yield Violation(path, _named(name, value))


def _names_cores(name: str, value: str) -> bool:
    """Return whether a variable lists processors of the machine, by their numbers."""
    return (
        (name == "GOMP_CPU_AFFINITY" and bool(value.strip()))
        or (name == "KMP_AFFINITY" and "proclist" in value)
        or (name == "OMP_PLACES" and value.strip().startswith("{"))
    )


@rule(
    # Not for the API server: a profile may hold variables, pinning and the number of ranks.
    allowed="no numbers of processors: they would be the same for every rank of a worker",
    next_step="leave it out, and write cpu.pinning: core, socket or numa",
)
def ranks_have_cores_of_their_own(spec: JobSpec) -> Iterator[Violation]:
    """Refuse the same processors for several ranks, or for ranks that are bound to others."""
    if spec.cpu.pinning == "none" and spec.ranks_per_worker == 1:
        return
    for path, name, value in _values(spec):
        if _names_cores(name, value):
            yield Violation(path, _named(name, value))


@rule(
    # Not for the API server: a profile may hold variables, devices and the number of ranks.
    allowed="as many devices as a worker has ranks",
    next_step="leave it out: a pod sees the devices that it has asked for, and no others",
)
def ranks_see_their_devices(spec: JobSpec) -> Iterator[Violation]:
    """Refuse to hide devices that ranks have been given."""
    ranks = spec.ranks_per_worker
    if (spec.worker.resources or spec.resources).accelerator is None:
        return
    for path, name, value in _values(spec):
        if name in _DEVICES and _count_devices(value) < ranks:
            allowed = f"as many devices as a worker has ranks, {ranks}, since resources.accelerator asks for them"
            yield Violation(path, _named(name, value), allowed=allowed)


def _count_devices(value: str) -> int:
    # CUDA reads up to the first number that is none.
    devices = [entry.strip() for entry in value.split(",")]
    valid = devices.index("-1") if "-1" in devices else len(devices)
    return len([entry for entry in devices[:valid] if entry])


def environment_remarks(spec: JobSpec) -> Iterator[str]:
    """Yield remarks on variables that have no effect, or replace what a field sets for good reasons."""
    for number, variable in enumerate(spec.env):
        decided = _DECIDED.get(variable.name)
        wanted = None if decided is None or variable.value is not None else decided.value(spec)
        if decided is not None and wanted is not None:
            yield (
                f"spec.env[{number}]: {variable.name} comes from a Secret or ConfigMap and wins over "
                f"spec.{decided.field}, which makes {wanted} of it; leave one of the two out"
            )
    for path, name, value in _values(spec):
        if (remark := _remark(spec, name, value)) is not None:
            yield f"spec.{path}: {name}: {remark}"


def _remark(spec: JobSpec, name: str, value: str) -> str | None:
    cpu = spec.cpu
    if name in _OF_INTELS_OPENMP and cpu.openmp == "gnu":
        return "only Intel's OpenMP reads it, which ranks load with cpu.openmp: intel"
    if name in _OF_THREADS_IN_A_RANK and cpu.pinning != "none":
        return f"places threads inside the cores that cpu.pinning: {cpu.pinning} gives a rank, in place of its own rule"
    if name == "MALLOC_CONF" and cpu.allocator != "jemalloc":
        return "only jemalloc reads it, which ranks preload with cpu.allocator: jemalloc"
    if name.startswith("HOROVOD_") and spec.collectives == "torch":
        return "only Horovod reads it, and ranks sum gradients by collectives: torch"
    off = (name == "NCCL_IB_DISABLE" and value not in ("", "0")) or (name == "NCCL_NET" and value.lower() == "socket")
    if off and (spec.worker.resources or spec.resources).rdma is not None:
        return "gradients take TCP, and the cards that resources.rdma asks for are idle"
    return None


ENVIRONMENT_RULES: tuple[Rule[JobSpec], ...] = (
    variables_repeat_their_fields,
    ranks_are_numbered_by_the_launcher,
    ranks_are_bound_by_one,
    ranks_have_cores_of_their_own,
    ranks_see_their_devices,
)
