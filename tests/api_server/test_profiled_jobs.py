"""The API server sees a job without its profile, and lets pass what a profile completes."""

from __future__ import annotations

from typing import Any

import pytest

from bert_operator.cluster.settings import Settings
from bert_operator.cluster.settings_rules import read_cluster_job
from cluster_api import Api
from sample_job import Document, sample_document

CLAIM = {"persistentVolumeClaim": {"claimName": "bert"}}

COMPLETED: dict[str, tuple[Document, Document]] = {
    "pinned to the profile's sockets": ({"cpu": {"pinning": "socket"}}, {"cpu": {"sockets": 2}, "slotsPerWorker": 2}),
    "pinned to the profile's NUMA nodes": (
        {"cpu": {"pinning": "numa"}},
        {"cpu": {"numaNodes": 2}, "slotsPerWorker": 2},
    ),
    "pinned to the profile's cores": ({"cpu": {"pinning": "core"}}, {"cpu": {"coresPerRank": 4}}),
    "counted from the profile's sockets": ({"cpu": {"ranksPerNode": "auto"}}, {"cpu": {"sockets": 2}}),
    "sockets for the profile's slots": (
        {"cpu": {"pinning": "socket", "sockets": 2}},
        {"slotsPerWorker": 4},
    ),
    "huge pages beside the profile's memory": (
        {"resources": {"hugepages": {"2Mi": "1Gi"}}},
        {"resources": {"memory": "8Gi"}},
    ),
    "more of the profile's devices": (
        {"resources": {"accelerator": {"perWorker": 8}}},
        {"resources": {"accelerator": {"resourceName": "example.com/gpu"}}, "slotsPerWorker": 8},
    ),
    "a volume from the profile": (
        {},
        {"output": {"volume": CLAIM}, "dataset": {"volume": CLAIM | {"subPath": "data"}}},
    ),
}


def job_with(own: Document) -> Document:
    def change(spec: Document) -> Any:
        spec.pop("slotsPerWorker")
        spec.update(profile="p", **own)

    return sample_document(change)


@pytest.mark.parametrize("case", COMPLETED)
def test_a_job_that_its_profile_completes_is_accepted(api: Api, case: str) -> None:
    own, profile = COMPLETED[case]
    stored = api.create(job_with(own), "default", dry_run=True).expect(201)
    whole = {"output": {"volume": CLAIM}, **profile}
    job = read_cluster_job(stored, Settings(profiles={"p": whole}))
    assert job.spec.output.volume is not None


def test_the_api_server_writes_no_default_that_would_win_over_a_profile(api: Api) -> None:
    stored = api.create(job_with({"cpu": {"coresPerRank": 2}}), "default", dry_run=True).expect(201)
    profile = {
        "slotsPerWorker": 4,
        "mpi": {"implementation": "MPICH"},
        "collectives": "torch",
        "cpu": {"openmp": "intel", "allocator": "jemalloc"},
        "output": {"volume": CLAIM},
    }
    spec = read_cluster_job(stored, Settings(profiles={"p": profile})).spec
    assert (spec.slots_per_worker, spec.mpi.implementation, spec.collectives) == (4, "MPICH", "torch")
    assert (spec.cpu.openmp, spec.cpu.allocator, spec.cpu.cores_per_rank) == ("intel", "jemalloc", 2)
