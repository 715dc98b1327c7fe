"""The cases of ``rule_cases`` that are about what a job asks of its pods: ranks, devices, variables, places."""

from __future__ import annotations

from job_changes import both, put
from rule_case import RuleCase
from section_cases import CLAIM, volume, volumes

PINNED_TO_CORES = {"coresPerRank": 26, "threadsPerCore": 2, "pinning": "core"}
PINNED_TO_SOCKETS = {"pinning": "socket", "sockets": 2, "threadsPerCore": 2}


def gpus(**claim: str) -> dict[str, object]:
    """Return resources whose GPUs come by a claim."""
    return {"accelerator": {"resourceClaim": "gpus"}, "resourceClaims": [{"name": "gpus", **claim}]}


TEMPLATE = {"resourceClaimTemplateName": "two-gpus"}

POD_CASES: dict[str, RuleCase] = {
    "a claim in one way": RuleCase(
        put("resources", value={"resourceClaims": [{"name": "nic", "resourceClaimName": "nic"}]}),
        put("resources", value={"resourceClaims": [{"name": "nic"}]}),
        "spec.resources.resourceClaims[0]",
        ("got nothing", "exactly one of resourceClaimName, resourceClaimTemplateName"),
    ),
    "names of claims": RuleCase(
        put("worker", value={"resources": {"resourceClaims": [{"name": name, **TEMPLATE} for name in ("a", "b")]}}),
        put("worker", value={"resources": {"resourceClaims": [{"name": name, **TEMPLATE} for name in ("a", "a")]}}),
        "spec.worker.resources.resourceClaims[1].name",
        ('got "a"', "a name that no other entry has"),
    ),
    "GPUs by a claim or by a resource": RuleCase(
        put("resources", value=gpus(**TEMPLATE)),
        put(
            "resources",
            value={**gpus(**TEMPLATE), "accelerator": {"resourceClaim": "gpus", "resourceName": "amd.com/gpu"}},
        ),
        "spec.resources.accelerator.resourceName",
        ('got "amd.com/gpu"', "none with resourceClaim", "leave one of the two out"),
    ),
    "GPUs of every worker's own": RuleCase(
        both(put("workers", value=2), put("resources", value=gpus(**TEMPLATE))),
        both(put("workers", value=2), put("resources", value=gpus(resourceClaimName="all-gpus"))),
        "spec.resources.accelerator.resourceClaim",
        ('got "gpus"', "resourceClaimTemplateName", "workers: 1"),
    ),
    "GPUs of every worker's own, workers apart": RuleCase(
        put("worker", value={"resources": gpus(resourceClaimName="all-gpus")}),
        both(put("workers", value=2), put("worker", value={"resources": gpus(resourceClaimName="all-gpus")})),
        "spec.worker.resources.accelerator.resourceClaim",
    ),
    "a precision of processors and a claim": RuleCase(
        both(put("precision", value="tf32"), put("resources", value=gpus(**TEMPLATE))),
        both(put("precision", value="bf32"), put("resources", value=gpus(**TEMPLATE))),
        "spec.precision",
        ('got "bf32"',),
    ),
    "a device of the claim for every rank": RuleCase(
        put("resources", value={**gpus(**TEMPLATE), "accelerator": {"resourceClaim": "gpus", "perWorker": 2}}),
        put("resources", value={**gpus(**TEMPLATE), "accelerator": {"resourceClaim": "gpus", "perWorker": 1}}),
        "spec.resources.accelerator.perWorker",
        ("got 1", "at least slotsPerWorker 2"),
    ),
    "equal ranks on sockets": RuleCase(
        both(put("cpu", value={"pinning": "socket", "sockets": 2}), put("slotsPerWorker", value=4)),
        both(put("cpu", value={"pinning": "socket", "sockets": 2}), put("slotsPerWorker", value=3)),
        "spec.slotsPerWorker",
        ("got 3", "a multiple of cpu.sockets 2", "slotsPerWorker: 2"),
    ),
    "equal ranks on NUMA nodes": RuleCase(
        both(put("cpu", value={"pinning": "numa", "numaNodes": 4}), put("slotsPerWorker", value=4)),
        both(put("cpu", value={"pinning": "numa", "numaNodes": 4, "sockets": 2})),
        "spec.slotsPerWorker",
        ("got 2", "a multiple of cpu.numaNodes 4", "slotsPerWorker: 4"),
    ),
    "ranks counted once": RuleCase(
        both(put("cpu", value={"ranksPerNode": "auto", "sockets": 2}), put("slotsPerWorker", value=1)),
        put("cpu", value={"ranksPerNode": "auto", "sockets": 2}),
        "spec.slotsPerWorker",
        ("got 2", "none with cpu.ranksPerNode: auto", "leave one of the two out"),
    ),
    "counted ranks in a batch": RuleCase(
        both(put("cpu", value={"ranksPerNode": "auto", "sockets": 8}), put("slotsPerWorker", value=1)),
        both(
            put("cpu", value={"ranksPerNode": "auto", "sockets": 8, "numaNodes": 64, "pinning": "numa"}),
            put("slotsPerWorker", value=1),
            put("stages", 1, "pretrain", "globalBatchSize", value=63),
        ),
        "spec.stages[1].pretrain.globalBatchSize",
        ("got 63", "64"),
    ),
    "CPUs for pinned ranks": RuleCase(
        both(put("cpu", value=PINNED_TO_CORES), put("resources", value={"cpu": 104})),
        both(put("cpu", value=PINNED_TO_CORES), put("resources", value={"cpu": 102})),
        "spec.resources.cpu",
        ("got 102", "at least 104: coresPerRank 26 x 2 ranks x threadsPerCore 2", "leave the field out"),
    ),
    "CPUs for pinned ranks, workers apart": RuleCase(
        both(
            put("cpu", value={"pinning": "core", "coresPerRank": 4, "threadsPerCore": 1}),
            put("worker", value={"resources": {"cpu": 8}}),
            put("resources", value={"cpu": 1}),
        ),
        both(
            put("cpu", value={"pinning": "core", "coresPerRank": 4, "threadsPerCore": 1}),
            put("worker", value={"resources": {"cpu": 7}}),
            put("resources", value={"cpu": 8}),
        ),
        "spec.worker.resources.cpu",
        ("got 7", "at least 8: coresPerRank 4 x 2 ranks x threadsPerCore 1"),
    ),
    "whole cores for pinned ranks": RuleCase(
        both(put("cpu", value=PINNED_TO_SOCKETS), put("resources", value={"cpu": 8})),
        both(put("cpu", value=PINNED_TO_SOCKETS), put("resources", value={"cpu": 9})),
        "spec.resources.cpu",
        ("got 9", "a multiple of cpu.threadsPerCore", "round it up"),
    ),
    "whole cores for pinned ranks, workers apart": RuleCase(
        both(put("cpu", value=PINNED_TO_SOCKETS), put("worker", value={"resources": {"cpu": 8}})),
        both(put("cpu", value=PINNED_TO_SOCKETS), put("worker", value={"resources": {"cpu": 9}})),
        "spec.worker.resources.cpu",
        ("got 9",),
    ),
    "a precision of processors": RuleCase(
        put("precision", value="bf32"),
        both(put("precision", value="bf32"), put("resources", value={"accelerator": {}})),
        "spec.precision",
        ('got "bf32"', "tf32, bf16, fp16 or fp32", "write tf32"),
    ),
    "a precision of processors, workers apart": RuleCase(
        both(
            put("precision", value="avx-fp32"),
            put("resources", value={"accelerator": {}}),
            put("worker", value={"resources": {"cpu": 4}}),
        ),
        both(put("precision", value="avx-fp32"), put("worker", value={"resources": {"accelerator": {}}})),
        "spec.precision",
        ('got "avx-fp32"', "leave the accelerator out"),
    ),
    "exact arithmetic, compressed": RuleCase(
        put("reduction", value={"compression": "fp16"}),
        both(put("precision", value="fp64"), put("reduction", value={"compression": "fp16"})),
        "spec.reduction.compression",
        ('got "fp16"', "none with precision fp64", "leave it out"),
    ),
    "a device for every rank": RuleCase(
        put("resources", value={"accelerator": {"perWorker": 2}}),
        put("resources", value={"accelerator": {"perWorker": 1}}),
        "spec.resources.accelerator.perWorker",
        ("got 1", "at least slotsPerWorker 2", "leave the field out"),
    ),
    "a device for every rank, workers apart": RuleCase(
        put("worker", value={"resources": {"accelerator": {}}}),
        put("worker", value={"resources": {"accelerator": {"perWorker": 1}}}),
        "spec.worker.resources.accelerator.perWorker",
        ("got 1", "at least slotsPerWorker 2"),
    ),
    "names of variables": RuleCase(
        put("env", value=[{"name": "A", "value": "1"}, {"name": "B", "value": "1"}]),
        put("env", value=[{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]),
        "spec.env[1].name",
        ('got "A"', "a name that no other entry has"),
    ),
    "names of volumes": RuleCase(
        put("volumes", value=volumes("/mnt/a", "/mnt/b")),
        put("volumes", value=[{**entry, "name": "v"} for entry in volumes("/mnt/a", "/mnt/b")]),
        "spec.volumes[1].name",
        ('got "v"', "a name that no other entry has"),
    ),
    "places of data and results": RuleCase(
        both(put("dataset", value={"volume": CLAIM}), put("output", "volume", value=CLAIM)),
        both(put("dataset", value={"volume": CLAIM}), put("output", "volume", value=volume(mountPath="/mnt/dataset"))),
        "spec.output.volume.mountPath",
        ("a folder of its own", "spec.dataset.volume is mounted there"),
    ),
    "places of results and code": RuleCase(
        both(put("workspace", value={"volume": CLAIM, "command": ["x"]}), put("output", "volume", value=CLAIM)),
        both(
            put("workspace", value={"volume": volume(mountPath="/mnt/output"), "command": ["x"]}),
            put("output", "volume", value=CLAIM),
        ),
        "spec.workspace.volume.mountPath",
        ("spec.output.volume is mounted there",),
    ),
    "places of further volumes": RuleCase(
        both(put("output", "volume", value=CLAIM), put("volumes", value=volumes("/mnt/output/a"))),
        both(put("output", "volume", value=CLAIM), put("volumes", value=volumes("/mnt/output"))),
        "spec.volumes[0].source.mountPath",
        ("spec.output.volume is mounted there",),
    ),
    "places of two further volumes": RuleCase(
        put("volumes", value=volumes("/mnt/a", "/mnt/a/b")),
        put("volumes", value=volumes("/mnt/a", "/mnt/a")),
        "spec.volumes[1].source.mountPath",
        ("spec.volumes[0].source is mounted there",),
    ),
}

PROFILE_CASES: dict[str, RuleCase] = {
    "steps to trace in order": RuleCase(
        put("profileSteps", value={"first": 3, "last": 3}),
        put("profileSteps", value={"first": 3, "last": 2}),
        "spec.profileSteps.last",
        ("got 2 with first 3",),
    ),
    "few steps to trace": RuleCase(
        put("profileSteps", value={"first": 1, "last": 100}),
        put("profileSteps", value={"first": 1, "last": 101}),
        "spec.profileSteps.last",
        ("100 steps in all at most",),
    ),
    "a stage to trace that trains": RuleCase(
        put("profileSteps", value={"first": 1, "last": 2, "stage": "phase1"}),
        put("profileSteps", value={"first": 1, "last": 2, "stage": "phase9"}),
        "spec.profileSteps.stage",
        ("a pretrain or finetune stage",),
    ),
    "a stage to trace": RuleCase(
        put("profileSteps", value={"first": 1, "last": 2, "stage": "phase1"}),
        put("profileSteps", value={"first": 1, "last": 2, "stage": "evaluate"}),
        "spec.profileSteps.stage",
        ('got "evaluate"', "phase1"),
    ),
}

POD_CONTROLLER_CASES: dict[str, RuleCase] = {
    # Amounts in text: why CEL cannot judge them stands at the rules.
    "CPUs for pinned ranks, as text": RuleCase(
        both(put("cpu", value=PINNED_TO_CORES), put("resources", value={"cpu": "104"})),
        both(put("cpu", value=PINNED_TO_CORES), put("resources", value={"cpu": "102000m"})),
        "spec.resources.cpu",
        ('got "102000m"', "at least 104"),
    ),
    "whole CPUs for pinned ranks, as text": RuleCase(
        both(
            put("cpu", value={"pinning": "core", "coresPerRank": 4, "threadsPerCore": 1}),
            put("resources", value={"cpu": "8000m"}),
        ),
        both(
            put("cpu", value={"pinning": "core", "coresPerRank": 4, "threadsPerCore": 1}),
            put("resources", value={"cpu": "8500m"}),
        ),
        "spec.resources.cpu",
        ('got "8500m"', "a whole number where ranks are pinned"),
    ),
    "the claim of an accelerator": RuleCase(
        put("resources", value=gpus(**TEMPLATE)),
        put("resources", value={**gpus(**TEMPLATE), "accelerator": {"resourceClaim": "gpu"}}),
        "spec.resources.accelerator.resourceClaim",
        ('got "gpu"', "an entry of resourceClaims", "correct the name"),
    ),
    "huge pages with memory": RuleCase(
        put("resources", value={"hugepages": {"2Mi": "1Gi"}, "memory": "4Gi"}),
        put("resources", value={"hugepages": {"2Mi": "1Gi"}}),
        "spec.resources.memory",
        ("got nothing", "only together with memory"),
    ),
    "sockets to pin by": RuleCase(
        put("cpu", value={"pinning": "socket", "sockets": 2}),
        put("cpu", value={"pinning": "socket"}),
        "spec.cpu.sockets",
        ("got nothing", "add sockets"),
    ),
    "NUMA nodes to pin by": RuleCase(
        put("cpu", value={"pinning": "numa", "numaNodes": 1}),
        put("cpu", value={"pinning": "numa", "sockets": 2}),
        "spec.cpu.numaNodes",
        ("got nothing", "add numaNodes"),
    ),
    "cores to pin by": RuleCase(
        put("cpu", value={"pinning": "core", "coresPerRank": 8}),
        put("cpu", value={"pinning": "core"}),
        "spec.cpu.coresPerRank",
        ("got nothing", "add coresPerRank"),
    ),
}
"""What the operator alone refuses: a profile may still add what is missing."""
