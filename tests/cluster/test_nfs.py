"""Shares that the kubelet mounts: inline where Pod Security allows it, by a claim where it does not.

Inputs: a stand-in for mount.nfs on the node (nfs_stand_in.py), so only on the one-node cluster. Observed: what the
kubelet mounted, what ranks wrote there, the condition Blocked.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from job_cluster import JobCluster, Json, Namespace
from nfs_stand_in import NfsStandIn
from real_jobs import DATA_JOB, RealJob, training_job

pytestmark = pytest.mark.timeout(400)
SERVER = "nfs.example.com"
Fresh = Callable[..., Namespace]


@pytest.fixture(scope="module")
def shares(cluster: JobCluster) -> NfsStandIn:
    """The servers of the node."""
    if cluster.node is None:
        pytest.skip("needs a mount.nfs of its own on the node, which only the one-node cluster has")
    return cluster.node.nfs


def nfs_job(name: str, data: Json, output: Json) -> Json:
    """Return a short job in one pod whose data and output are shares."""
    job = training_job(
        name,
        workers=1,
        dataset={"path": "data", "volume": data},
        output={"path": name, "volume": output},
    )
    for stage in job["spec"]["stages"][:2]:
        stage["pretrain"]["length"] = {"steps": 2}
    return job


def copy_dataset(data: Namespace, share: Path) -> None:
    assert data.folder is not None
    shutil.copytree(data.folder / DATA_JOB / "data", share / "data")


def test_a_share_is_mounted_inline(data: Namespace, shares: NfsStandIn, fresh: Fresh) -> None:
    copy_dataset(data, shares.export(SERVER, "/exports/corpus"))
    results = shares.export(SERVER, "/exports/results")
    namespace = fresh("nfs-inline", "baseline")
    namespace.apply(
        nfs_job(
            "inline",
            {"nfs": {"server": SERVER, "path": "/exports/corpus"}},
            {"nfs": {"server": SERVER, "path": "/exports/results"}},
        )
    )
    RealJob(namespace, "inline").wait_phase("Succeeded")
    mounted = {(mount.server, mount.path) for mount in shares.mounts()}
    assert mounted == {(SERVER, "/exports/corpus"), (SERVER, "/exports/results")}
    assert (results / "inline/export/huggingface/model.safetensors").exists()
    assert (results / "inline/run.json").stat().st_uid == 54321


def test_where_inline_shares_are_forbidden_the_condition_says_to_use_a_claim(fresh: Fresh) -> None:
    namespace = fresh("nfs-forbidden")
    share = {"nfs": {"server": SERVER, "path": "/exports/results"}}
    namespace.apply(nfs_job("forbidden", share, share))
    job = RealJob(namespace, "forbidden")
    status = job.wait(lambda status: blocked(status), "the condition")
    condition = blocked(status)
    assert condition["reason"] == "PodSecurityViolated"
    assert "persistentVolumeClaim" in condition["message"]
    assert "nfs" in condition["message"]


def test_a_claim_carries_the_mount_options(data: Namespace, shares: NfsStandIn, fresh: Fresh) -> None:
    folder = shares.export(SERVER, "/exports/by-claim")
    copy_dataset(data, folder)
    namespace = fresh("nfs-claim")
    size = {"storage": "1Gi"}
    common = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    volume = {
        **common,
        "capacity": size,
        "nfs": {"server": SERVER, "path": "/exports/by-claim"},
        "mountOptions": ["nfsvers=4.2", "hard", "noatime"],
        "persistentVolumeReclaimPolicy": "Retain",
    }
    claim = {**common, "volumeName": "nfs-by-claim", "resources": {"requests": size}}
    namespace.apply(
        {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "nfs-by-claim"}, "spec": volume},
        {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "shared"}, "spec": claim},
    )
    by_claim = {"persistentVolumeClaim": {"claimName": "shared"}}
    namespace.apply(nfs_job("by-claim", {**by_claim, "mountPath": "/mnt/data"}, by_claim))
    RealJob(namespace, "by-claim").wait_phase("Succeeded")
    (mount, *_) = [mount for mount in shares.mounts() if mount.path == "/exports/by-claim"]
    assert (mount.server, mount.options) == (SERVER, frozenset({"nfsvers=4.2", "hard", "noatime"}))
    assert (folder / "by-claim/export/huggingface/model.safetensors").exists()


def test_a_share_that_does_not_exist_is_named(shares: NfsStandIn, fresh: Fresh) -> None:
    assert shares.mounts() is not None
    namespace = fresh("nfs-missing", "baseline")
    share = {"nfs": {"server": SERVER, "path": "/exports/nowhere"}}
    namespace.apply(nfs_job("missing", share, share))
    status = RealJob(namespace, "missing").wait(lambda status: blocked(status), "the condition")
    assert blocked(status)["reason"] == "VolumeFailed"
    assert f"{SERVER}:/exports/nowhere" in blocked(status)["message"]


def blocked(status: Json) -> Json:
    """Return the condition Blocked while it is true."""
    found = [item for item in status.get("conditions", ()) if (item["type"], item["status"]) == ("Blocked", "True")]
    return found[0] if found else {}
