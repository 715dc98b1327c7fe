"""What may befall the objects that the operator makes and needs: rights, owners, labels, quota, the frozen ConfigMap.

Some of it has no effect before the next attempt; a rank is killed then, so that there is one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cluster_api import Api, wait_until
from consistency import MPI_JOBS, attempt_of, find_children, has_ended, wait_consistent
from control_plane import fill_documents, namespace_of
from control_plane_faults import A_LITTLE, end_healing, node_of, slow_ranks
from fault import Fault, NotInEffect, Scene
from job_cluster import CLAIM, READER, USER, Json
from node import volume_folder
from node_processes import processes_of
from operator_process import ACCOUNT, JOBS
from operator_process import USER as OPERATOR_USER
from real_jobs import GROUP

BINDINGS = "rbac.authorization.k8s.io/v1/clusterrolebindings"
CONFIG_MAPS, NAMESPACES, PODS, VOLUMES = "v1/configmaps", "v1/namespaces", "v1/pods", "v1/persistentvolumes"
QUOTAS = "v1/resourcequotas"
QUOTA = "used-up"
FINALIZER = f"{GROUP}/held-by-chaos"
EFFECT_S = 60.0
"""Longest wait until a fault shows where it should."""
LEAVE_S = 150.0
"""Longest wait for a namespace to go: its pods have runPolicy.stopGraceSeconds, by default 120."""


def api_of(scene: Scene) -> Api:
    return node_of(scene).api


def newest_child(scene: Scene) -> Json:
    """Return the job's running MPIJob. Raises NotInEffect."""
    children = [child for child in find_children(scene.job) if not has_ended(child)]
    if not children:
        raise NotInEffect("the job had no child at this moment")
    return max(children, key=attempt_of)


def revoke_rights(scene: Scene) -> None:
    slow_ranks(scene, A_LITTLE)
    api = api_of(scene)
    scene.kept["subjects"] = api.get(BINDINGS, ACCOUNT, "").expect()["subjects"]
    api.patch(BINDINGS, ACCOUNT, {"subjects": []}).expect()
    wait_rights(api, granted=False)


def give_rights_back(scene: Scene) -> None:
    api = api_of(scene)
    api.patch(BINDINGS, ACCOUNT, {"subjects": scene.kept["subjects"]}).expect()
    wait_rights(api, granted=True)
    end_healing(scene)


def wait_rights(api: Api, *, granted: bool) -> None:
    """Wait until the API server goes by the rights that were written."""
    operator = api.as_user(OPERATOR_USER)
    wait_until(lambda: (operator.get(JOBS, "").status == 200) == granted, "the rights to count")


def remove_owner(scene: Scene) -> None:
    """Make an orphan of the child. Not of the ConfigMap: the operator may not delete any, so that it would stay."""
    child, orphan = newest_child(scene)["metadata"]["name"], {"metadata": {"ownerReferences": None}}
    api_of(scene).patch(MPI_JOBS, child, orphan, scene.namespace.name).expect()


def overwrite_labels(scene: Scene) -> None:
    api, space = api_of(scene), scene.namespace.name
    stolen = {"metadata": {"labels": {f"{GROUP}/job": "another-job"}}}
    child = newest_child(scene)["metadata"]["name"]
    api.patch(MPI_JOBS, child, stolen, space).expect()
    for pod in api.list(PODS, space, labelSelector=f"{GROUP}/job={scene.job.name}"):
        api.patch(PODS, pod["metadata"]["name"], stolen, space).expect(200, 404)


def use_up_quota(scene: Scene) -> None:
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": QUOTA}, "spec": {"hard": {"pods": "1"}}}
    api, space = api_of(scene), scene.namespace.name
    api.create(quota, space).expect()
    # Pods are counted before it holds.
    wait_until(lambda: (api.get(QUOTAS, QUOTA, space).body.get("status") or {}).get("used"), "the quota to count")
    scene.job.kill_a_rank()
    wait_blocked(scene, "QuotaExceeded")


def free_quota(scene: Scene) -> None:
    api_of(scene).delete(QUOTAS, QUOTA, scene.namespace.name).expect()


def wait_blocked(scene: Scene, reason: str) -> None:
    """Wait until the status says what blocks the job. Raises NotInEffect where the job ends instead."""

    def is_blocked() -> bool:
        status = scene.job.status()
        if status.get("phase") in ("Succeeded", "Failed"):
            raise NotInEffect(f"the job {status['phase']} before it was blocked")
        return any(
            (item["type"], item["status"], item["reason"]) == ("Blocked", "True", reason)
            for item in status.get("conditions", ())
        )

    wait_until(is_blocked, lambda: f"{reason}; the status is {scene.job.status()}", timeout_s=EFFECT_S, every_s=0.3)


def delete_frozen(scene: Scene) -> None:
    api, name, space = api_of(scene), f"{scene.job.name}-frozen", scene.namespace.name
    found = api.get(CONFIG_MAPS, name, space)
    if found.status == 404:
        raise NotInEffect("it had been deleted before")
    scene.kept["frozen"] = found.expect()
    api.delete(CONFIG_MAPS, name, space).expect()


def delete_frozen_before_a_retry(scene: Scene) -> None:
    delete_frozen(scene)
    scene.job.kill_a_rank()
    wait_blocked(scene, "FrozenConfigurationMissing")


def put_frozen_back(scene: Scene) -> None:
    frozen = scene.kept["frozen"]
    kept = {key: frozen["metadata"].get(key) for key in ("name", "labels", "annotations", "ownerReferences")}
    metadata = {key: value for key, value in kept.items() if value}
    api_of(scene).create({**frozen, "metadata": metadata}, scene.namespace.name).expect()


def hold_child(scene: Scene) -> None:
    """Put a finalizer on the child, and return once it is deleted and cannot go."""
    api, space, name = api_of(scene), scene.namespace.name, newest_child(scene)["metadata"]["name"]
    scene.kept["child"] = name
    change_finalizers(api, name, space, lambda before: [*before, FINALIZER])
    scene.job.kill_a_rank()

    def is_held() -> bool:
        child = api.get(MPI_JOBS, name, space)
        return child.status == 200 and "deletionTimestamp" in child.body["metadata"]

    wait_until(
        is_held, lambda: f"{name} to be deleted; the status is {scene.job.status()}", timeout_s=EFFECT_S, every_s=0.3
    )


def let_child_go(scene: Scene) -> None:
    def without(before: list[str]) -> list[str]:
        return [one for one in before if one != FINALIZER]

    change_finalizers(api_of(scene), scene.kept["child"], scene.namespace.name, without)


def change_finalizers(api: Api, name: str, space: str, change: Callable[[list[str]], list[str]]) -> None:
    """Change an MPIJob's finalizers, of which the garbage collector has one of its own."""

    def is_written() -> bool:
        metadata = api.get(MPI_JOBS, name, space).expect()["metadata"]
        new = {"finalizers": change(metadata.get("finalizers") or []), "resourceVersion": metadata["resourceVersion"]}
        return api.patch(MPI_JOBS, name, {"metadata": new}, space).status == 200

    wait_until(is_written, f"the finalizers of {name}")


def delete_namespace(scene: Scene) -> None:
    """Delete the namespace, and return once it is gone with all that was in it."""
    api, space = api_of(scene), scene.namespace.name
    job = scene.namespace.find("bpj", scene.job.name)
    assert job is not None, f"{scene.job.name} is gone"
    scene.kept["job"] = {key: job[key] for key in ("apiVersion", "kind", "spec")}
    scene.kept["labels"] = api.get(NAMESPACES, space).expect()["metadata"]["labels"]
    # Until the pods are told to stop, which takes the namespace's controller a while.
    slow_ranks(scene, A_LITTLE)
    pods = api.list(PODS, space)
    api.delete(NAMESPACES, space).expect()
    wait_until(lambda: api.get(NAMESPACES, space).status == 404, f"{space} to go", timeout_s=LEAVE_S, every_s=0.3)
    left = [pod["metadata"]["name"] for pod in pods if processes_of(pod["metadata"]["uid"])]
    assert not left, f"the namespace is gone, and processes of its pods are not: {left}"


def make_namespace_again(scene: Scene) -> None:
    """Make the namespace, its volume with the same files and the job anew, under the same names."""
    end_healing(scene)
    api, space, node = api_of(scene), scene.namespace.name, node_of(scene)
    labels = {key: value for key, value in scene.kept["labels"].items() if not key.startswith("kubernetes.io/")}
    api.create(namespace_of(space, labels)).expect()
    wait_until(lambda: api.get("v1/serviceaccounts", "default", space).status == 200, "its ServiceAccount")
    volume = f"{space}-{CLAIM}"
    api.delete(VOLUMES, volume).expect(200, 404)
    wait_until(lambda: api.get(VOLUMES, volume).status == 404, "the released volume to go")
    for document in fill_documents("volume", namespace=space, claim=CLAIM, folder=volume_folder(node, space)):
        api.create(document).expect()
    reader = fill_documents("reader", name=READER, image=scene.cluster.trainer_image, user=USER, claim=CLAIM)
    scene.namespace.apply(*reader)
    scene.namespace.wait_pod(READER, "Running")
    # Last: from here on it is measured how long the job needs.
    scene.namespace.apply({**scene.kept["job"], "metadata": {"name": scene.job.name}})


UNTOUCHED: dict[str, Any] = {"group": "objects", "steps_interrupted": False, "settled": wait_consistent}

FAULTS = (
    Fault(
        name="operator's rights revoked for 20 s",
        inject=revoke_rights,
        heal=give_rights_back,
        hold_s=20.0,
        one_job=True,
        **UNTOUCHED,
    ),
    Fault(name="owner references removed", inject=remove_owner, **UNTOUCHED),
    Fault(name="labels overwritten", inject=overwrite_labels, **UNTOUCHED),
    Fault(name="frozen ConfigMap deleted", inject=delete_frozen, **UNTOUCHED, a_job_per_moment=True),
    Fault(
        name="frozen ConfigMap deleted before a retry",
        group="objects",
        inject=delete_frozen_before_a_retry,
        heal=put_frozen_back,
        settled=wait_consistent,
    ),
    Fault(
        name="quota used up before a retry",
        group="objects",
        inject=use_up_quota,
        heal=free_quota,
        hold_s=5.0,
        settled=wait_consistent,
        own_namespace=True,
    ),
    Fault(
        name="finalizer that blocks a child",
        group="objects",
        inject=hold_child,
        heal=let_child_go,
        hold_s=10.0,
        settled=wait_consistent,
    ),
    Fault(
        name="namespace deleted while running",
        group="objects",
        inject=delete_namespace,
        heal=make_namespace_again,
        own_namespace=True,
    ),
)
