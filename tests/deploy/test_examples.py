"""Every example with every overlay that it names: completed by its profile, rendered, and taken by the cluster.

The API server takes a dry run of the job, of its ConfigMap, of every Job and MPIJob, and, since Pod Security judges
pods alone, of a pod from each of their templates.
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest

from bert_operator.errors import InvalidJob
from cluster_api import wait_until
from control_plane import ControlPlane
from examples import NAMESPACE, Example, Rendered, list_examples, read_example, read_overlays, render, settings_of
from manifests import KUSTOMIZE, Json, Refused, check, kustomize, parse

OVERLAYS = sorted(path.name for path in (KUSTOMIZE / "overlays").iterdir())


@cache
def documents_of(overlay: str) -> tuple[Json, ...]:
    return tuple(parse(kustomize(KUSTOMIZE / "overlays" / overlay)))


PAIRS = [
    pytest.param(example, name, id=f"{example.name}, {name}")
    for example in list_examples()
    for name in example.overlays
]
rendered_example = cache(lambda name, overlay: render(read_example(name), overlay))


def hand_over(bench: ControlPlane, rendered: Rendered) -> None:
    """Have the API server judge everything; raises AssertionError with its words where it refuses."""
    for document in (rendered.job, rendered.config_map, *rendered.children, *rendered.pods()):
        answer = bench.api.server_side_apply(document, NAMESPACE, dry_run=True)
        assert answer.status in (200, 201), f"{document['kind']} {document['metadata']['name']}: {answer.message}"


@pytest.fixture(scope="module")
def with_definition(bench: ControlPlane) -> ControlPlane:
    """The API server with the definition of jobs."""
    for document in documents_of("single-node"):
        if document["kind"] == "CustomResourceDefinition":
            bench.api.apply_crd(document)
    return bench


@pytest.fixture
def cluster(with_definition: ControlPlane, overlay: str) -> ControlPlane:
    """The API server with the overlay's namespace and its Pod Security labels."""
    (namespace,) = (
        document
        for document in documents_of(overlay)
        if document["kind"] == "Namespace" and document["metadata"]["name"] == NAMESPACE
    )
    api = with_definition.api
    api.server_side_apply(namespace).expect(200, 201)
    wait_until(lambda: api.get("v1/serviceaccounts", "default", NAMESPACE).status == 200, "ServiceAccount")
    return with_definition


@pytest.mark.parametrize("example", list_examples(), ids=lambda example: example.name)
def test_every_example_says_which_overlays_it_is_meant_for(example: Example) -> None:
    assert example.overlays, f"{example.path}: a line such as `# Overlays: single-node` belongs into its head"
    assert set(example.overlays) <= set(OVERLAYS)


def test_every_overlay_has_an_example() -> None:
    assert {overlay for example in list_examples() for overlay in example.overlays} == set(OVERLAYS)


@pytest.mark.parametrize(("example", "overlay"), PAIRS)
def test_the_cluster_takes_every_example(cluster: ControlPlane, example: Example, overlay: str) -> None:
    hand_over(cluster, rendered_example(example.name, overlay))


def test_every_supported_release_takes_what_examples_are_rendered_to() -> None:
    found = [rendered_example(example.name, overlay) for example in list_examples() for overlay in example.overlays]
    children = [child for each in found for child in each.children]
    # The schema of a Job has the release's own pods in it, that of an MPIJob those of the release it was made with.
    pods = [pod for each in found for pod in each.pods() if each.children[-1]["kind"] == "MPIJob"]
    # As JSON, which is YAML as well and 20 times faster to write.
    check("\n---\n".join(map(json.dumps, [*(each.job for each in found), *children, *pods])))


@pytest.mark.parametrize(("example", "overlay"), PAIRS)
def test_claims_that_pods_mount_are_those_of_the_overlay(example: Example, overlay: str) -> None:
    claims = {item["metadata"]["name"] for item in documents_of(overlay) if item["kind"] == "PersistentVolumeClaim"}
    mounted = {
        volume["persistentVolumeClaim"]["claimName"]
        for pod in rendered_example(example.name, overlay).pods()
        for volume in pod["spec"]["volumes"]
        if "persistentVolumeClaim" in volume
    }
    assert mounted, "results would be lost with the pod"
    assert mounted <= claims


@pytest.mark.parametrize(("example", "overlay"), PAIRS)
def test_no_pod_asks_for_more_than_a_node_of_the_overlay_has(example: Example, overlay: str) -> None:
    settings = settings_of(overlay)
    profile = settings.profiles[read_example(example.name)["spec"].get("profile") or str(settings.default_profile)]
    cpu = profile.get("cpu", {})
    places = cpu.get("numaNodes") or cpu.get("sockets", 1)
    threads = places * cpu.get("coresPerRank", 0) * cpu.get("threadsPerCore", 1)
    node = {"nvidia.com/gpu": profile.get("slotsPerWorker", 0), "cpu": threads or profile["resources"].get("cpu")}
    for pod in rendered_example(example.name, overlay).pods():
        (container,) = pod["spec"]["containers"]
        asked: Json = container.get("resources", {}).get("limits", {})
        for resource, amount in node.items():
            if amount is not None and resource in asked:
                assert cores(asked[resource]) <= amount, (pod["metadata"]["name"], resource)


def cores(amount: str) -> float:
    return float(amount.removesuffix("m")) / (1000 if amount.endswith("m") else 1)


def changed(document: Json, path: str, value: Any) -> Json:
    """Return a document with a value at a path such as ``spec.output.path``."""
    first, _, rest = path.partition(".")
    return {**document, first: changed(document.get(first, {}), rest, value) if rest else value}


def planted(path: str, value: Any) -> Json:
    return changed(read_example("10-nvidia/8-gpus"), path, value)


@pytest.mark.parametrize(
    ("path", "value", "refusal"),
    [
        ("spec.output.path", "/output/nvidia", "spec.output.path: got"),
        ("spec.output.volume", {"hostPath": {"path": "/srv"}}, "hostPath"),
        ("spec.network", {"hostNetwork": True}, "hostNetwork"),
        ("spec.profile", "another", "spec.profile"),
        ("spec.scheduling.priorityClassName", "nobody", "spec.scheduling.priorityClassName: got"),
    ],
)
def test_the_operator_s_refusals_are_noticed(path: str, value: Any, refusal: str) -> None:
    with pytest.raises(InvalidJob, match=refusal):
        render(planted(path, value), "gpu-nfs")


@pytest.mark.parametrize("overlay", ["gpu-nfs"])
@pytest.mark.parametrize(
    ("path", "value", "refusal"),
    [
        ("spec.stages", [], "BertPretrainJob nvidia-8-gpus: .*spec.stages"),
        ("spec.output.volume", {"nfs": {"server": "nas", "path": "/"}}, 'violates PodSecurity "restricted'),
        ("spec.scheduling.runtimeClassName", "nobody", 'RuntimeClass "nobody" not found'),
    ],
)
def test_the_cluster_s_refusals_are_noticed(
    cluster: ControlPlane, overlay: str, path: str, value: Any, refusal: str
) -> None:
    document = planted(path, value)
    whole = render(planted("spec.seed", 1) if path == "spec.stages" else document, overlay)
    with pytest.raises(AssertionError, match=refusal):
        hand_over(cluster, Rendered(changed(whole.job, "spec", document["spec"]), whole.config_map, whole.children))


def test_schemas_notice_a_field_that_a_release_does_not_have() -> None:
    rendered = render(read_example("10-nvidia/8-gpus"), "gpu-nfs")
    child = changed(rendered.children[0], "spec.backoffLimits", 1)
    with pytest.raises(Refused, match="backoffLimits"):
        check(json.dumps(child), ["1.31"])


def test_the_overlays_are_read_from_the_head_alone() -> None:
    assert read_overlays("# A job.\n# Overlays: one, two\napiVersion: x\n") == ("one", "two")
    assert read_overlays("# A job.\napiVersion: x\n# Overlays: one\n") == ()
