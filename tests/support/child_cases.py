"""Jobs whose children are looked at: as golden files, by the API server and by mpi-operator.

Each is the sample job with results on a claim, changed in one respect. ``security`` is the strictest Pod Security
level that its pods meet.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from bert_operator.api.parsing.validation import parse_job
from bert_operator.api.schema.bert_pretrain_job import BertPretrainJob
from bert_operator.errors import InvalidJob
from bert_operator.names import PREPARE_RUN, TRAINING_RUN
from bert_operator.render.children import render_child
from bert_operator.render.frozen import Frozen, freeze
from bert_operator.state.runs import ChildSpec, list_runs
from job_changes import Change, both, put
from job_documents import draw_document
from sample_job import PREPARE, Document, sample_document

IMAGE = "registry.example.com/bert-trainer:1"
UID = "0b5c3a1e-6a1d-4d55-9b7e-2f6f3a1d2c3b"
DRAWN = 1500

Level = Literal["restricted", "baseline", "privileged"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildCase:
    """A job, the run whose child is looked at, and what Pod Security says of its pods."""

    change: Change
    run: str = TRAINING_RUN
    attempt: int = 1
    security: Level = "restricted"
    refused_for: str = ""
    """Of the refusal in a stricter namespace."""


def claim(name: str, **fields: object) -> Document:
    return {"persistentVolumeClaim": {"claimName": name}, **fields}


def nfs(path: str, **fields: object) -> Document:
    return {"nfs": {"server": "nas.example.com", "path": path}, **fields}


def two_workers(implementation: str = "OpenMPI") -> Change:
    return both(put("workers", value=2), put("mpi", value={"implementation": implementation}))


GPUS = both(
    put("workers", value=4),
    put("slotsPerWorker", value=8),
    put("precision", value="bf16"),
    put(
        "resources",
        value={
            "cpu": 96,
            "memory": "900Gi",
            "sharedMemory": "64Gi",
            "accelerator": {"gpuMemoryLimitGiB": 70},
            "rdma": {"resourceName": "rdma/hca_shared_devices_a"},
        },
    ),
    put("scheduling", value={"nodeSelector": {"pool": "gpu"}, "runtimeClassName": "nvidia"}),
    put("launcher", value={"nodeSelector": {"pool": "cpu"}}),
)

XEON_SOCKETS = both(
    two_workers(),
    put("slotsPerWorker", value=4),
    put(
        "cpu",
        value={
            "coresPerRank": 24,
            "pinning": "socket",
            "sockets": 2,
            "allocator": "jemalloc",
            "openmp": "intel",
            "dnnlMaxCpuIsa": "AVX512_CORE_AMX",
        },
    ),
    put("resources", value={"memory": "360Gi"}),
)

CLAIMS = both(
    put("output", value={"path": "bert/run-7", "volume": claim("team", subPath="results", mountPath="/mnt/results")}),
    put("dataset", value={"path": "wiki", "volume": claim("team", subPath="corpora")}),
    put(
        "volumes",
        value=[
            {"name": "wheels", "source": claim("wheels", mountPath="/mnt/wheels")},
            {"name": "scratch", "source": claim("scratch", mountPath="/mnt/scratch"), "readOnly": False},
        ],
    ),
)

SHARES = both(
    put("output", value={"path": "run-7", "volume": nfs("/export/results", subPath="bert")}),
    put("dataset", value={"path": "wiki", "volume": nfs("/export/corpora", mountPath="/mnt/corpora")}),
)

USER = {"runAsUser": 20_007, "runAsGroup": 500, "fsGroup": 600, "supplementalGroups": [700, 500]}

ENVIRONMENT = both(
    two_workers(),
    put("cpu", value={"coresPerRank": 8}),
    put(
        "env",
        value=[
            {"name": "NCCL_DEBUG", "value": "INFO"},
            {"name": "OMP_NUM_THREADS", "value": "4"},
            {"name": "PROMPT", "value": "$(HOME) costs $$5, not $5"},
            {"name": "EMPTY", "value": ""},
            {"name": "WANDB_API_KEY", "secret": {"name": "keys", "key": "wandb"}},
            {"name": "TEAM", "configMap": {"name": "settings", "key": "team"}},
        ],
    ),
    put("envFrom", value=[{"secret": "more-keys", "prefix": "S3_"}, {"configMap": "settings"}]),
    put("proxy", value={"http": "http://proxy.example.com:3128", "noProxy": ".example.com,10.0.0.0/8"}),
    put("imagePullSecrets", value=[{"name": "registry"}]),
    put("imagePullPolicy", value="Always"),
    put("runPolicy", value={"stopGraceSeconds": 600}),
)

WORKSPACE = both(
    two_workers(),
    put(
        "workspace",
        value={
            "volume": claim("code", subPath="bert", mountPath="/mnt/code"),
            "command": ["python", "train.py"],
            "args": ["--config", "$(BERT_RUN_CONFIG)", "--", "--price=$5"],
        },
    ),
)

SCHEDULING = both(
    two_workers(),
    put(
        "scheduling",
        value={
            "nodeSelector": {"pool": "cpu"},
            "affinity": {
                "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {
                        "nodeSelectorTerms": [
                            {"matchExpressions": [{"key": "cpu-family", "operator": "In", "values": ["xeon"]}]}
                        ]
                    }
                },
                "podAntiAffinity": {
                    "preferredDuringSchedulingIgnoredDuringExecution": [
                        {
                            "weight": 50,
                            "podAffinityTerm": {"topologyKey": "kubernetes.io/hostname", "labelSelector": {}},
                        }
                    ]
                },
            },
            "tolerations": [{"key": "dedicated", "value": "training", "effect": "NoSchedule"}],
            "topologySpreadConstraints": [{"topologyKey": "topology.kubernetes.io/zone"}],
            "priorityClassName": "system-node-critical",
            "schedulerName": "other-scheduler",
        },
    ),
    put("launcher", value={"tolerations": [], "nodeSelector": {}, "resources": {"cpu": "500m"}}),
)

CLAIMED_DEVICES = both(
    put("workers", value=2),
    put("slotsPerWorker", value=8),
    put("precision", value="bf16"),
    put(
        "resources",
        value={
            "memory": "900Gi",
            "accelerator": {"resourceClaim": "gpus"},
            "resourceClaims": [
                {"name": "gpus", "resourceClaimTemplateName": "eight-gpus", "request": "gpu"},
                {"name": "fabric", "resourceClaimName": "shared-fabric"},
            ],
        },
    ),
)

DATA_IN_AN_IMAGE = both(
    two_workers(),
    put("dataset", value={"path": "wiki", "volume": {"image": {"reference": "registry.example.com/wikipedia:128"}}}),
    put(
        "volumes",
        value=[
            {
                "name": "glue",
                "source": {
                    "image": {
                        "reference": "registry.example.com/glue@sha256:" + "0" * 64,
                        "pullPolicy": "IfNotPresent",
                    },
                    "subPath": "tasks",
                    "mountPath": "/mnt/glue",
                },
            }
        ],
    ),
    lambda spec: spec["stages"].pop(PREPARE),
)

CHILD_CASES: dict[str, ChildCase] = {
    "single-pod": ChildCase(change=put("slotsPerWorker", value=1)),
    "prepare": ChildCase(
        change=both(GPUS, put("dataset", value={"volume": claim("corpora")})), run=PREPARE_RUN, attempt=3
    ),
    "prepare-in-three-workers": ChildCase(
        change=both(
            GPUS,
            put("dataset", value={"volume": claim("corpora")}),
            put("cpu", value={"pinning": "core", "coresPerRank": 12}),
            put("stages", PREPARE, "prepare", "workers", value=3),
            put("stages", PREPARE, "prepare", "numProcesses", value=16),
        ),
        run=PREPARE_RUN,
        attempt=2,
    ),
    "two-workers-open-mpi": ChildCase(change=two_workers()),
    "two-workers-intel-mpi": ChildCase(change=two_workers("Intel")),
    "two-workers-mpich": ChildCase(change=two_workers("MPICH"), attempt=12),
    "gpus-and-rdma": ChildCase(change=GPUS, security="privileged", refused_for="IPC_LOCK"),
    "network-of-the-node": ChildCase(
        change=both(two_workers("OpenMPI"), put("network", value={"hostNetwork": True, "lockMemory": True})),
        security="privileged",
        refused_for="host",
    ),
    "xeon-by-sockets": ChildCase(change=XEON_SOCKETS),
    "xeon-counted": ChildCase(
        change=both(
            two_workers("Intel"),
            put("slotsPerWorker", value=1),
            put("precision", value="fp16"),
            put("cpu", value={"ranksPerNode": "auto", "pinning": "numa", "sockets": 2, "numaNodes": 4}),
        )
    ),
    "xeon-by-cores": ChildCase(
        change=both(put("cpu", value={"coresPerRank": 14, "pinning": "core"}), put("slotsPerWorker", value=4))
    ),
    "xeon-hyper-threads": ChildCase(
        change=both(
            XEON_SOCKETS,
            put("slotsPerWorker", value=2),
            put("cpu", value={"pinning": "socket", "sockets": 2, "coresPerRank": 26, "threadsPerCore": 2}),
        )
    ),
    "xeon-hyper-threads-alone": ChildCase(
        change=both(
            put("slotsPerWorker", value=1),
            put("cpu", value={"pinning": "core", "coresPerRank": 26, "threadsPerCore": 2}),
        )
    ),
    "claims": ChildCase(change=CLAIMS),
    "shares": ChildCase(change=SHARES, security="baseline", refused_for="restricted volume types"),
    "folder-of-the-node": ChildCase(
        change=put("output", "volume", value={"hostPath": {"path": "/data"}}),
        security="privileged",
        refused_for="hostPath",
    ),
    "user": ChildCase(change=both(two_workers(), put("securityContext", value=USER))),
    "user-by-role": ChildCase(
        change=both(
            two_workers(),
            put("securityContext", value={"supplementalGroups": [700]}),
            put("launcher", value={"securityContext": {"runAsUser": 65_534}}),
            put("worker", value={"securityContext": USER}),
        )
    ),
    "root": ChildCase(
        change=both(two_workers(), put("securityContext", value={"runAsUser": 0, "supplementalGroups": [700]})),
        security="baseline",
        refused_for="runAsNonRoot != true",
    ),
    "user-namespaces": ChildCase(
        change=both(
            two_workers(), put("securityContext", value={"runAsUser": 1000, "fsGroup": 600, "hostUsers": False})
        )
    ),
    "root-of-a-user-namespace": ChildCase(
        change=both(
            put("workers", value=1),
            put("launcher", value={"securityContext": {}}),
            put("securityContext", value={"runAsUser": 0, "hostUsers": False}),
        ),
        security="baseline",
        refused_for="unrestricted capabilities",
    ),
    "devices-by-claims": ChildCase(change=CLAIMED_DEVICES),
    "data-in-an-image": ChildCase(change=DATA_IN_AN_IMAGE),
    "environment": ChildCase(change=ENVIRONMENT),
    "workspace": ChildCase(change=WORKSPACE),
    "scheduling": ChildCase(change=SCHEDULING),
    "queue": ChildCase(change=both(two_workers(), put("queueName", value="team-a"))),
    "huge-pages": ChildCase(
        change=put("resources", value={"memory": "8Gi", "hugepages": {"2Mi": "1Gi", "1Gi": "2Gi"}})
    ),
}


def case_job(name: str, namespace: str = "default") -> BertPretrainJob:
    """Return the job of a case as the API server would hand it out."""
    document = sample_document(both(put("output", "volume", value=claim("results")), CHILD_CASES[name].change))
    document["metadata"] |= {"namespace": namespace, "uid": UID}
    return parse_job(document)


@cache
def every_job() -> tuple[BertPretrainJob, ...]:
    """Return the jobs of all cases and those of so many drawn documents that are valid, most with several workers."""
    found = [case_job(name) for name in CHILD_CASES]
    for number in range(DRAWN):
        document = draw_document(number)
        with contextlib.suppress(InvalidJob, KeyError, TypeError):
            document["metadata"]["uid"] = UID
            if number % 3:
                document["spec"]["workers"] = 2 + number % 5
            found.append(parse_job(document))
    return tuple(found)


def case_frozen(name: str, namespace: str = "default") -> Frozen:
    """Return what its attempts are rendered from."""
    return freeze(case_job(name, namespace), default_image=IMAGE)


def case_child(name: str, namespace: str = "default") -> Document:
    """Return its child."""
    case, frozen = CHILD_CASES[name], case_frozen(name, namespace)
    return render_child(frozen, child_of(frozen, case.run, case.attempt))


def child_of(frozen: Frozen, run: str, attempt: int) -> ChildSpec:
    """Return the attempt at a run of a job."""
    (found,) = (each for each in list_runs(frozen.job) if each.name == run)
    return ChildSpec(run=run, attempt=attempt, stages=found.stages, ranks=found.ranks)


def templates(child: Document) -> Iterator[tuple[str, Document]]:
    """Yield the role and the pod template of every kind of pod that a child has."""
    if child["kind"] == "Job":
        yield "single", child["spec"]["template"]
    for role, replicas in child["spec"].get("mpiReplicaSpecs", {}).items():
        yield role.lower(), replicas["template"]


def container(template: Document) -> Any:
    """Return a template's only container."""
    (only,) = template["spec"]["containers"]
    return only
