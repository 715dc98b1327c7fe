"""Environment variables that tune ranks to their processors: threads, allocator, OpenMP, oneDNN. Pure.

Sources: the tuning guides of PyTorch for CPUs, Intel's OpenMP and jemalloc; oneDNN's manual for the instruction sets.
"""

from __future__ import annotations

from bert_operator.api.schema.bert_pretrain_job import JobSpec

_ISA_OF_PRECISION = {
    "fp32": "AVX512_CORE_AMX",
    "bf32": "AVX512_CORE_AMX",
    "bf16": "AVX512_CORE_AMX",
    # Newer than AVX512_CORE_AMX; without it oneDNN computes fp16 in fp32.
    "fp16": "AVX512_CORE_AMX_FP16",
}
# Decay times are as good as infinite: shapes change from step to step, and pages that were returned to the kernel would
# have to be faulted in again.
_JEMALLOC = (
    "oversize_threshold:1,background_thread:true,metadata_thp:auto,dirty_decay_ms:9000000000,muzzy_decay_ms:9000000000"
)


def trains_on_cpus(spec: JobSpec) -> bool:
    """Return whether the workers have no accelerators."""
    return (spec.worker.resources or spec.resources).accelerator is None


def processor_environment(spec: JobSpec) -> dict[str, str]:
    """Return the variables that follow from ``cpu`` and ``precision``; ``spec.env`` overrides them."""
    cpu = spec.cpu
    # Words, not libraries: bert-pod rank looks for the file on the machine that it runs on (the trainer's pod/rank.py).
    found: dict[str, str] = {"BERT_ALLOCATOR": cpu.allocator, "BERT_OPENMP": cpu.openmp}
    if cpu.cores_per_rank is not None:
        found["OMP_NUM_THREADS"] = str(cpu.cores_per_rank)
    isa = cpu.dnnl_max_cpu_isa or (_ISA_OF_PRECISION.get(spec.precision) if trains_on_cpus(spec) else None)
    if isa is not None:
        found["DNNL_MAX_CPU_ISA"] = isa
    if cpu.allocator == "jemalloc":
        found["MALLOC_CONF"] = _JEMALLOC
    if cpu.openmp == "intel":
        # Threads that spin longer after a parallel region take the cores from Horovod's background thread.
        found["KMP_BLOCKTIME"] = "1"
        if cpu.pinning != "none":
            # Counted within the cores that a rank is bound to; unbound ranks would all take the first cores.
            found["KMP_AFFINITY"] = "granularity=fine,compact,1,0"
    return found
