"""A real API server takes everything that deploy/ and charts/ hold, rules in CEL included, and the rights mean it.

Needs the control plane of tests/api_server besides (tools/control_plane/build.sh).
"""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from cluster_api import wait_until
from control_plane import ControlPlane, namespace_of
from manifests import (
    CHART,
    KUSTOMIZE,
    Json,
    Refused,
    copy_tree,
    helm_template,
    kustomize,
    parse,
    program,
    run,
    switch_on,
)

OVERLAYS = sorted(path.name for path in (KUSTOMIZE / "overlays").iterdir())


def apply(bench: ControlPlane, documents: list[Json], namespace: str = "bert") -> None:
    """Apply documents on the server's side, those first that others need."""
    first = ("Namespace", "CustomResourceDefinition")
    for document in sorted(documents, key=lambda item: item["kind"] not in first):
        if document["kind"] == "CustomResourceDefinition":
            bench.api.apply_crd(document)
            continue
        place = document["metadata"].get("namespace") or namespace
        bench.api.server_side_apply(document, place).expect(200, 201)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_overlay_is_taken_with_all_of_its_components(bench: ControlPlane, overlay: str, tmp_path: Path) -> None:
    tree = copy_tree(tmp_path)
    components = [path.name for path in (KUSTOMIZE / "components").iterdir()]
    switch_on(tree / "overlays" / overlay, *components)
    documents = parse(kustomize(tree / "overlays" / overlay))
    apply(bench, documents)
    for kind in ("persistentvolumes", "persistentvolumeclaims"):
        namespace = "bert" if kind == "persistentvolumeclaims" else ""
        for item in bench.api.list(f"v1/{kind}", namespace):
            # The next overlay's have the same names and other sources, which may not change.
            bench.api.patch(f"v1/{kind}", item["metadata"]["name"], {"metadata": {"finalizers": []}}, namespace)
            bench.api.delete(f"v1/{kind}", item["metadata"]["name"], namespace).expect(200, 404)


def test_what_the_chart_renders_is_taken(bench: ControlPlane) -> None:
    values: Json = {
        "networkPolicy": {"enabled": True},
        "podDisruptionBudget": {"enabled": True},
        "monitoring": {"podMonitor": {"enabled": True}, "alerts": {"enabled": True}, "dashboards": {"enabled": True}},
    }
    bench.api.server_side_apply(namespace_of("bert-operator")).expect()
    apply(bench, [item for item in parse(helm_template(values=values)) if item["kind"] != "Pod"])


@pytest.mark.parametrize("variant", ["single-node", "multi-node"])
def test_jobs_are_taken_with_every_choice_of_components(bench: ControlPlane, variant: str, tmp_path: Path) -> None:
    apply(bench, parse(kustomize(KUSTOMIZE / "overlays/single-node")))
    names = ["claim", "ready-data", "own-model"]
    choices = [chosen for count in range(len(names) + 1) for chosen in itertools.combinations(names, count)]
    for number, chosen in enumerate([*choices, ("profile",), ("own-program",), ("profile", "ready-data")]):
        jobs = copy_tree(tmp_path / str(number), "jobs")
        switch_on(jobs / variant, *chosen)
        for document in parse(kustomize(jobs / variant)):
            bench.api.server_side_apply(document, "bert", dry_run=True).expect(200, 201)


def allowed(
    bench: ControlPlane, user: str, verb: str, resource: str, *, namespace: str = "bert", part: str = ""
) -> bool:
    """Ask the API server whether a user may do something."""
    group, _, resource = resource.rpartition("/")
    about = {"group": group, "resource": resource, "verb": verb, "namespace": namespace, "subresource": part}
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "metadata": {},
        "spec": {"user": user, "resourceAttributes": about},
    }
    answer: bool = bench.api.create(review).expect()["status"]["allowed"]
    return answer


def bind(bench: ControlPlane, user: str, role: str, kind: str = "ClusterRole", namespace: str = "bert") -> None:
    bench.api.server_side_apply(
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": {"name": f"{user}-{role}", "namespace": namespace},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}],
        }
    ).expect(200, 201)


def test_people_get_their_rights_from_roles_that_they_have(bench: ControlPlane) -> None:
    apply(bench, parse(kustomize(KUSTOMIZE / "overlays/single-node")))
    jobs = "bert-operator.dev/bertpretrainjobs"
    bind(bench, "ann", "edit")
    bind(bench, "joe", "view")
    bind(bench, "eve", "bert-operator-admin", "Role", "bert-operator")
    wait_until(lambda: allowed(bench, "ann", "create", jobs), "aggregation to reach edit")
    wait_until(lambda: allowed(bench, "joe", "list", jobs), "aggregation to reach view")
    assert not allowed(bench, "joe", "create", jobs)
    assert not allowed(bench, "ann", "update", jobs, part="status")
    assert not allowed(bench, "ann", "create", jobs, namespace="default")
    assert allowed(bench, "joe", "get", "kubeflow.org/mpijobs")
    assert not allowed(bench, "ann", "create", "kubeflow.org/mpijobs")
    assert allowed(bench, "eve", "patch", "apps/deployments", namespace="bert-operator")
    assert not allowed(bench, "eve", "patch", "apps/deployments")
    assert not allowed(bench, "eve", "get", "secrets", namespace="bert-operator")


def test_helm_takes_over_what_kustomize_made_goes_back_and_keeps_jobs(bench: ControlPlane) -> None:
    apply(bench, parse(kustomize(KUSTOMIZE / "base")))
    apply(bench, parse(kustomize(KUSTOMIZE / "jobs/single-node")), "bert-operator")
    config = bench.kubeconfig(bench.admin_token)

    def helm(*words: str) -> str:
        return run(program("helm"), *words, "--kubeconfig", config, "--namespace", "bert-operator")

    def is_bound_everywhere() -> bool:
        return bench.api.get("rbac.authorization.k8s.io/v1/clusterrolebindings", "bert-operator").status == 200

    with pytest.raises(Refused, match="invalid ownership metadata"):
        helm("install", "bert-operator", str(CHART))
    helm("install", "bert-operator", str(CHART), "--take-ownership")
    helm("upgrade", "bert-operator", str(CHART), "--set", "watchNamespaces={default}")
    assert not is_bound_everywhere()
    helm("rollback", "bert-operator")
    assert is_bound_everywhere()
    helm("uninstall", "bert-operator")
    assert bench.api.get("apps/v1/deployments", "bert-operator", "bert-operator").status == 404
    jobs = bench.api.list("bert-operator.dev/v1alpha1/bertpretrainjobs", "bert-operator")
    assert [job["metadata"]["name"] for job in jobs] == ["bert-single-node"]
    helm("install", "bert-operator", str(CHART))
