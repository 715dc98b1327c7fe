"""The operator itself: its Deployment, its pod, its memory, its rights."""

from __future__ import annotations

from collections.abc import Iterator

from bert_operator.doctor.finding import Finding, error, warning
from bert_operator.doctor.objects import amount, containers, name_of, namespace_of, place_of, render_amount, template_of
from bert_operator.doctor.rights import Right, find_missing
from bert_operator.doctor.snapshot import OPERATOR_SELECTOR, Snapshot
from bert_operator.json_paths import Json, dig, entries, mapping

RESTARTS = 3
"""Restarts of a pod from which on they are no accident."""
NEAR = 0.8
"""Of the memory limit."""

_EVERYWHERE = {
    ("bert-operator.dev", "bertpretrainjobs"): "get list watch delete",
    ("bert-operator.dev", "bertpretrainjobs/status"): "patch",
    ("bert-operator.dev", "bertpretrainjobs/finalizers"): "update",
    ("batch", "jobs"): "get list watch create delete",
    ("kubeflow.org", "mpijobs"): "get list watch create delete",
    ("kueue.x-k8s.io", "workloads"): "get list",
    ("", "configmaps"): "get create",
    ("networking.k8s.io", "networkpolicies"): "get create update",
    ("", "pods"): "list watch",
    ("", "pods/log"): "get",
    ("", "nodes"): "get",
    ("", "events"): "get list watch create patch",
}
NEEDED = tuple(Right(*what, verb) for what, verbs in _EVERYWHERE.items() for verb in verbs.split())
"""What deploy/kustomize/base/rbac.yaml grants; a test holds the two together."""
_NODES = Right("", "nodes", "get")
"""A binding in a namespace cannot grant it, and nothing but the health of nodes is lost without it."""
_LOST_WITHOUT = {
    ("", "nodes"): "sick nodes are not noticed",
    ("kueue.x-k8s.io", "workloads"): "why a queue holds a job back is not told",
}
"""What is lost without rights that jobs can do without."""

_WHY = "no job starts, and none that runs is followed, until it works again; pods that run go on"


def check_operator(snapshot: Snapshot) -> Iterator[Finding]:
    """Check that exactly one operator runs, is ready and stable."""
    found = snapshot.operators()
    if not found:
        problem = "no Deployment of the operator (label app.kubernetes.io/name=bert-operator, argument run)"
        yield error(problem, "nobody carries out jobs", "install it: docs/guides/install.md")
        return
    if len(found) > 1:
        places = ", ".join(place_of(item) for item in found)
        why = "two operators that work in the same namespaces write the same statuses"
        yield error(f"{len(found)} Deployments of the operator: {places}", why, "delete all but one")
    for deployment in found:
        if not dig(deployment, "status", "availableReplicas"):
            yield _unavailable(deployment, _pods_of(snapshot, deployment))
            continue
        for pod in _pods_of(snapshot, deployment):
            for state in entries(pod, "status", "containerStatuses"):
                restarts = int(state.get("restartCount") or 0)
                last = mapping(state, "lastState", "terminated")
                if restarts >= RESTARTS and last.get("reason") != "OOMKilled":
                    problem = f"Pod {place_of(pod)}: {restarts} restarts; it ended last with {_ending(last)}"
                    yield error(problem, _WHY, f"kubectl -n {namespace_of(pod)} logs {name_of(pod)} --previous")


def _unavailable(deployment: Json, pods: list[Json]) -> Finding:
    namespace, place = namespace_of(deployment), place_of(deployment)
    if dig(deployment, "spec", "replicas") == 0:
        remedy = f"kubectl -n {namespace} scale deployment {name_of(deployment)} --replicas 1"
        return error(f"Deployment {place} is scaled to 0", _WHY, remedy)
    for pod in pods:
        for state in entries(pod, "status", "containerStatuses"):
            waiting, last = mapping(state, "state", "waiting"), mapping(state, "lastState", "terminated")
            if waiting:
                words = f"{waiting.get('reason')} {waiting.get('message') or ''}".strip()
                after = f"; it ended last with {_ending(last)}" if last else ""
                remedy = f"kubectl -n {namespace} describe pod {name_of(pod)}"
                if last:
                    remedy = f"kubectl -n {namespace} logs {name_of(pod)} --previous"
                return error(f"Deployment {place}: its pod waits, {words}{after}", _WHY, remedy)
    remedy = f"kubectl -n {namespace} describe pods -l {OPERATOR_SELECTOR}"
    return error(f"Deployment {place} has no available pod", _WHY, remedy)


def _ending(terminated: Json) -> str:
    code = terminated.get("exitCode")
    meaning = " (its settings or arguments are refused)" if code == 2 else ""
    return f"{terminated.get('reason') or 'an unknown reason'}, exit code {code}{meaning}"


def _pods_of(snapshot: Snapshot, deployment: Json) -> list[Json]:
    pods = snapshot.items("operator pods")
    return [pod for pod in pods if namespace_of(pod) == namespace_of(deployment)]


def check_memory(snapshot: Snapshot) -> Iterator[Finding]:
    """Check whether the operator was OOM-killed or, with metrics-server, is close to its memory limit."""
    used = {name_of(item): item for item in snapshot.items("operator metrics")}
    for deployment in snapshot.operators():
        limits = {str(item.get("name")): dig(item, "resources", "limits", "memory")
                  for item in containers(template_of(deployment))}  # fmt: skip
        remedy = (
            "raise resources.limits.memory of the Deployment (chart: resources): 100 MB are enough for a thousand "
            "jobs with five pods each"
        )
        for pod in _pods_of(snapshot, deployment):
            for state in entries(pod, "status", "containerStatuses"):
                if dig(state, "lastState", "terminated", "reason") == "OOMKilled":
                    limit = limits.get(str(state.get("name")))
                    problem = f"Pod {place_of(pod)}: killed for its memory (OOMKilled), limit {limit}, "
                    yield error(f"{problem}{state.get('restartCount')} restarts", _WHY, remedy)
            for container in entries(used.get(name_of(pod)), "containers"):
                limit, now = amount(limits.get(str(container.get("name")))), amount(dig(container, "usage", "memory"))
                if limit and now > NEAR * limit:
                    share = f"{render_amount('memory', now)} of {render_amount('memory', limit)}"
                    yield warning(f"Pod {place_of(pod)}: uses {share} of memory", "it will be killed soon", remedy)


def check_rights(snapshot: Snapshot) -> Iterator[Finding]:
    """Check that the operator's ServiceAccount has every permission that it uses."""
    namespaces = snapshot.watched_namespaces()
    needed = [right for right in NEEDED if not (namespaces and right == _NODES)]
    for deployment in snapshot.operators():
        home = namespace_of(deployment)
        account = str(template_of(deployment).get("serviceAccountName") or "default")
        for where in namespaces or ("",):
            missing = find_missing(snapshot, account, home, needed, where)
            if not missing:
                continue
            lost = [_LOST_WITHOUT.get((right.group, right.resource), "") for right in missing]
            level = warning if all(lost) else error
            yield level(
                f"ServiceAccount {home}/{account}: lacks {', '.join(map(str, missing))}"
                f"{f' in the namespace {where}' if where else ''}",
                "jobs are Blocked with the reason Forbidden" if level is error else "; ".join(dict.fromkeys(lost)),
                "apply deploy/kustomize/base/rbac.yaml (or components/namespaced) of the operator's release again",
            )
