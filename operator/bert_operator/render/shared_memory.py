"""How large a worker's /dev/shm is where the job does not say: by its ranks, and by what their libraries keep there.

Per rank of a pod, while buckets of 16 MiB are summed, measured with 2, 4 and 8 ranks: Open MPI 5 asks for a segment of
16 MiB (Open MPI 4: of 4), and sends by TCP where it does not find as much free; Intel MPI writes up to 17 MiB, and dies
of a bus error where they are not there; MPICH writes 5 MiB, Open MPI's UCX 4. Gloo and the trainer's own data
path write nothing. NCCL makes segments of 9.2 MiB: where GPUs reach each other neither by NVLink nor by PCIe, one for
each neighbour in a ring and a tree on each of up to 16 channels; not measured here, sizes as NCCL's users report them.
The table is in docs/concepts/network.md. Pure.
"""

from __future__ import annotations

from bert_operator.api.schema.bert_pretrain_job import JobSpec
from bert_operator.api.schema.cluster import Quantity, ResourcesSpec
from bert_operator.names import PREPARE_RUN
from bert_operator.state.runs import run_placement

USUAL_GIB = 1
"""What is enough for most jobs. Also of pods without ranks."""
MPI_RANK_MIB = 32  # twice the largest above
GPU_RANK_MIB = 1024  # 16 channels with 4 neighbours each are 590


def size_shared_memory(spec: JobSpec) -> JobSpec:
    """Return the spec with the size of /dev/shm where 1Gi would be too small and the job names none.

    The kernel gives memory only to pages that are written. They count against the pod's memory, and kubelet makes
    /dev/shm no larger than that.
    """
    own = spec.worker.resources
    return _with_sizes(
        spec,
        spec.resources.shared_memory or _needed(spec, spec.resources),
        None if own is None else own.shared_memory or _needed(spec, own),
    )


def _needed(spec: JobSpec, resources: ResourcesSpec) -> str | None:
    """Return what is needed; None if 1Gi is enough."""
    needed_mib = spec.slots_per_worker * (MPI_RANK_MIB if resources.accelerator is None else GPU_RANK_MIB)
    preparing = run_placement(spec, PREPARE_RUN)
    if preparing.workers > 1:
        needed_mib = max(needed_mib, preparing.slots * MPI_RANK_MIB)
    gib = -(-needed_mib // 1024)  # rounded up
    return f"{gib}Gi" if gib > USUAL_GIB else None


def _with_sizes(spec: JobSpec, size: Quantity | None, worker_size: Quantity | None) -> JobSpec:
    resources = spec.resources.model_copy(update={"shared_memory": size})
    worker = spec.worker
    if worker.resources is not None:
        own = worker.resources.model_copy(update={"shared_memory": worker_size})
        worker = worker.model_copy(update={"resources": own})
    return spec.model_copy(update={"resources": resources, "worker": worker})
