"""What a job asks for beyond the limits of its namespace is refused with path, value, allowed values and next step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic.alias_generators import to_snake

from bert_operator.cluster.limit_rules import find_asked
from bert_operator.cluster.limits import Bounds
from bert_operator.cluster.settings import Settings, load_settings
from bert_operator.cluster.settings_rules import frozen_problems, read_cluster_job
from bert_operator.errors import InvalidJob, SettingsError
from job_changes import Change, both, only, put
from sample_job import PHASE1, Document, sample_document

OWN = put("output", value={"path": "x", "volume": {"persistentVolumeClaim": {"claimName": "results"}}})
MUST, SHOULD = "requiredDuringSchedulingIgnoredDuringExecution", "preferredDuringSchedulingIgnoredDuringExecution"
POOL = {"matchExpressions": [{"key": "pool", "operator": "Exists"}]}
BY_NAME = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node-1"]}]}
NEAR: Document = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {}, "namespaces": ["team-b"]}


def settings_with(*, profiles: Document | None = None, default: str | None = None, **limits: Any) -> Settings:
    document = {"limits": limits, "profiles": profiles or {}, "defaultProfile": default}
    return Settings.model_validate({key: value for key, value in document.items() if value is not None})


def document_of(change: Change, namespace: str = "team-a") -> Document:
    document = sample_document(both(OWN, change))
    document["metadata"] |= {"namespace": namespace, "uid": "u"}
    return document


def problems(change: Change, settings: Settings, namespace: str = "team-a") -> list[str]:
    try:
        read_cluster_job(document_of(change, namespace), settings)
    except InvalidJob as invalid:
        return [str(problem) for problem in invalid.problems]
    return []


def volume_of(reference: str) -> Document:
    return {"image": {"reference": reference}, "mountPath": "/mnt/x"}


def nfs_of(path: str, server: str = "nas.example") -> Document:
    return {"nfs": {"server": server, "path": path}, "mountPath": "/mnt/x"}


CLAIMED = {"name": "gpu", "resourceClaimTemplateName": "t"}

CASES: dict[str, tuple[Change, str, Any, Any, str]] = {
    # change; limit; a value that refuses it; one that lets it; path of the problem
    "image": (put("image", value="evil.example/x:1"), "images", ["good.example"], ["evil.example"], "spec.image"),
    "image of data": (
        both(only(PHASE1), put("dataset", value={"path": "d", "volume": volume_of("evil.example/x:1")})),
        "images",
        [],
        ["evil.example/x"],
        "spec.dataset.volume.image.reference",
    ),
    "image of a volume": (
        put("volumes", value=[{"name": "v", "source": volume_of("evil.example/x:1")}]),
        "images",
        ["evil.example/xy"],
        ["evil.example/x:"],
        "spec.volumes[0].source.image.reference",
    ),
    "NFS": (
        put("output", value={"path": "x", "volume": nfs_of("/bert/a")}),
        "nfsExports",
        ["other.example", "nas.example:/ber", "nas.example:/bert/a/b", "nas"],
        ["nas.example"],
        "spec.output.volume.nfs",
    ),
    "NFS of a volume": (
        put("volumes", value=[{"name": "v", "source": nfs_of("/bert/a")}]),
        "nfsExports",
        [],
        ["nas.example:/bert/"],
        "spec.volumes[0].source.nfs",
    ),
    "accelerator": (
        put("resources", value={"accelerator": {"resourceName": "example.com/fuse"}}),
        "extendedResources",
        ["nvidia.com/gpu"],
        ["example.com/fuse"],
        "spec.resources.accelerator.resourceName",
    ),
    "accelerator without a name": (
        put("worker", value={"resources": {"accelerator": {}}}),
        "extendedResources",
        ["example.com/fuse"],
        ["nvidia.com/gpu"],
        "spec.worker.resources.accelerator.resourceName",
    ),
    "template of a claim": (
        put("resources", value={"accelerator": {"resourceClaim": "gpu"}, "resourceClaims": [CLAIMED]}),
        "resourceClaims",
        ["gpu"],
        ["t"],
        "spec.resources.resourceClaims[0].resourceClaimTemplateName",
    ),
    "claim": (
        put("resources", value={"resourceClaims": [{"name": "gpu", "resourceClaimName": "shared"}]}),
        "resourceClaims",
        [],
        ["shared"],
        "spec.resources.resourceClaims[0].resourceClaimName",
    ),
    "priority": (
        put("scheduling", value={"priorityClassName": "system-node-critical"}),
        "priorityClasses",
        ["low"],
        ["system-node-critical"],
        "spec.scheduling.priorityClassName",
    ),
    "priority in a queue": (
        both(put("queueName", value="team"), put("workloadPriorityClass", value="first")),
        "workloadPriorityClasses",
        ["last"],
        ["first"],
        "spec.workloadPriorityClass",
    ),
    "account": (put("serviceAccountName", value="gcs"), "serviceAccounts", ["s3"], ["gcs"], "spec.serviceAccountName"),
    "label": (
        put("podMetadata", value={"labels": {"team": "nlp", "cost": "7"}}),
        "podLabels",
        ["team"],
        ["team", "cost"],
        "spec.podMetadata.labels",
    ),
    "annotation": (
        put("podMetadata", value={"annotations": {"karpenter.sh/do-not-disrupt": "true"}}),
        "podAnnotations",
        ["karpenter.sh"],
        ["karpenter.sh/do-not-disrupt"],
        "spec.podMetadata.annotations",
    ),
    "queue of a gang": (
        put("scheduling", value={"schedulingPolicy": {"queue": "nlp"}}),
        "schedulingQueues",
        ["nl"],
        ["nlp"],
        "spec.scheduling.schedulingPolicy.queue",
    ),
    "priority of a gang": (
        put("scheduling", value={"schedulingPolicy": {"priorityClass": "high"}}),
        "priorityClasses",
        ["low"],
        ["high"],
        "spec.scheduling.schedulingPolicy.priorityClass",
    ),
    "scheduler": (
        put("scheduling", value={"schedulerName": "mine"}),
        "schedulerNames",
        [],
        ["mine"],
        "spec.scheduling.schedulerName",
    ),
    "runtime": (
        put("scheduling", value={"runtimeClassName": "nvidia"}),
        "runtimeClasses",
        [],
        ["nvidia"],
        "spec.scheduling.runtimeClassName",
    ),
    "toleration": (
        put("scheduling", value={"tolerations": [{"key": "gpu", "operator": "Exists"}]}),
        "tolerations",
        ["cpu"],
        ["gpu"],
        "spec.scheduling.tolerations[0]",
    ),
    "toleration of a role": (
        put("launcher", value={"tolerations": [{"key": "control-plane", "operator": "Exists"}]}),
        "tolerations",
        [],
        ["control-plane"],
        "spec.launcher.tolerations[0]",
    ),
    "node selector": (
        put("scheduling", value={"nodeSelector": {"pool": "a"}}),
        "nodeLabels",
        ["zone"],
        ["pool"],
        "spec.scheduling.nodeSelector",
    ),
    "node selector of a role": (
        put("worker", value={"nodeSelector": {"pool": "a"}}),
        "nodeLabels",
        [],
        ["pool"],
        "spec.worker.nodeSelector",
    ),
    "node affinity": (
        put("scheduling", value={"affinity": {"nodeAffinity": {MUST: {"nodeSelectorTerms": [POOL]}}}}),
        "nodeLabels",
        ["zone"],
        ["pool"],
        f"spec.scheduling.affinity.nodeAffinity.{MUST}.nodeSelectorTerms[0].matchExpressions",
    ),
    "preferred nodes": (
        put("scheduling", value={"affinity": {"nodeAffinity": {SHOULD: [{"weight": 1, "preference": BY_NAME}]}}}),
        "nodeLabels",
        ["zone"],
        ["metadata.name"],
        f"spec.scheduling.affinity.nodeAffinity.{SHOULD}[0].preference.matchFields",
    ),
    "others kept off": (
        put("scheduling", value={"affinity": {"podAntiAffinity": {MUST: [NEAR]}}}),
        "affinityNamespaces",
        [],
        ["team-b"],
        f"spec.scheduling.affinity.podAntiAffinity.{MUST}[0].namespaces",
    ),
    "others' nodes": (
        put("scheduling", value={"affinity": {"podAffinity": {SHOULD: [{"weight": 1, "podAffinityTerm": NEAR}]}}}),
        "affinityNamespaces",
        ["team-c"],
        ["team-b"],
        f"spec.scheduling.affinity.podAffinity.{SHOULD}[0].podAffinityTerm.namespaces",
    ),
    "grace": (
        put("runPolicy", value={"stopGraceSeconds": 601}),
        "stopGraceSeconds",
        600,
        601,
        "spec.runPolicy.stopGraceSeconds",
    ),
    "ranks": (put("workers", value=4), "ranksPerNamespace", 7, 8, "spec.workers"),
    "GPUs": (put("resources", value={"accelerator": {"perWorker": 2}}), "gpusPerNamespace", 1, 2, "spec.workers"),
    "claims": (
        put("resources", value={"resourceClaims": [CLAIMED]}),
        "gpusPerNamespace",
        100,
        None,
        "spec.resources.resourceClaims[0]",
    ),
}


@pytest.mark.parametrize(("change", "limit", "narrow", "wide", "path"), CASES.values(), ids=CASES)
def test_what_is_beyond_a_limit_is_refused_and_what_is_within_is_not(
    change: Change, limit: str, narrow: Any, wide: Any, path: str
) -> None:
    (problem,) = problems(change, settings_with(**{limit: narrow}))
    assert problem.startswith(f"{path}: got ")
    assert f"limits.{limit} in the operator's settings" in problem
    assert problems(change, settings_with(**{limit: wide})) == []
    # Of these left out means none.
    lists_nothing = getattr(Bounds(), to_snake(limit)) == ()
    assert (problems(change, settings_with()) == []) is not lists_nothing


@pytest.mark.parametrize(
    ("path", "is_let"),
    [("/bert", True), ("/bert/", True), ("/bert/a/..b", True), ("/bert/../etc", False), ("/bert/..", False)]
    + [("/", False), ("/bertha", False), ("//bert", False)],
)
def test_a_folder_of_a_server_stands_for_all_below_and_for_nothing_beside(path: str, is_let: bool) -> None:
    change = put("volumes", value=[{"name": "v", "source": nfs_of(path)}])
    assert (problems(change, settings_with(nfsExports=["nas.example:/bert"])) == []) is is_let
    assert problems(change, settings_with(nfsExports=["nas.example"])) == []


def test_an_address_with_colons_is_a_server_as_well() -> None:
    change = put("volumes", value=[{"name": "v", "source": nfs_of("/a", server="fd00::1")}])
    assert problems(change, settings_with(nfsExports=["fd00::1"])) == []
    assert problems(change, settings_with(nfsExports=["fd00::1:/a"])) == []
    mapped = put("volumes", value=[{"name": "v", "source": nfs_of("/a/.b/..c/...", server="::ffff:10.0.0.1")}])
    assert problems(mapped, settings_with(nfsExports=["::ffff:10.0.0.1"])) == []
    assert problems(mapped, settings_with(nfsExports=["::ffff:10.0.0.1:/a/.b/..c/"])) == []
    assert len(problems(change, settings_with(nfsExports=["fd00"]))) == 1


RDMA = put("resources", value={"rdma": {"resourceName": "rdma/hca"}})


def test_a_network_device_is_an_extended_resource() -> None:
    allowing = {"allowLockMemory": True}
    settings = Settings.model_validate({**allowing, "limits": {"extendedResources": ["nvidia.com/gpu"]}})
    (problem,) = problems(RDMA, settings)
    assert problem.startswith('spec.resources.rdma.resourceName: got "rdma/hca"')
    assert problems(RDMA, Settings.model_validate({**allowing, "limits": {"extendedResources": ["rdma/hca"]}})) == []


@pytest.mark.parametrize("named", [{"resourceName": "example.com/card"}, {"resourceClaim": "gpu"}])
def test_a_job_may_say_how_many_of_a_profile_s_devices_it_wants(named: Document) -> None:
    profile = {"resources": {"accelerator": named, "resourceClaims": [CLAIMED]}}
    settings = settings_with(profiles={"p": profile}, default="p", extendedResources=[], resourceClaims=[])
    assert problems(put("resources", value={"accelerator": {"perWorker": 8}}), settings) == []
    (problem,) = problems(put("worker", value={"resources": {"accelerator": {"perWorker": 8}}}), settings)
    assert 'got "nvidia.com/gpu"' in problem, "the profile says nothing about these"


def test_a_toleration_without_a_key_is_one_of_every_taint() -> None:
    wildcard = put("scheduling", value={"tolerations": [{"operator": "Exists"}]})
    (problem,) = problems(wildcard, settings_with(tolerations=["gpu", "every"]))
    assert 'got "every taint"' in problem


def test_pods_of_the_own_namespace_are_no_matter_of_limits() -> None:
    own = {**NEAR, "namespaces": ["team-a"]}
    change = put("scheduling", value={"affinity": {"podAntiAffinity": {MUST: [own]}}})
    assert problems(change, settings_with(affinityNamespaces=[])) == []
    assert len(problems(change, settings_with(affinityNamespaces=[]), namespace="team-b")) == 1


def test_what_a_job_does_not_ask_for_needs_no_entry() -> None:
    everything = {case[1]: [] for case in CASES.values()} | {"ranksPerNamespace": 2, "gpusPerNamespace": 0}
    assert problems(lambda _: None, settings_with(**everything | {"stopGraceSeconds": 120})) == []
    (problem,) = problems(lambda _: None, settings_with(stopGraceSeconds=119))
    assert "got 120" in problem, "what is left out is asked for as well, where its default is"


NAMES_A_CLASS = put("scheduling", value={"priorityClassName": "urgent"})


def test_no_priority_class_is_allowed_until_the_limits_name_it() -> None:
    """Left out, any would be, and a pod of a job that fills the node would evict the operator."""
    (problem,) = problems(NAMES_A_CLASS, Settings())
    assert problem == (
        'spec.scheduling.priorityClassName: got "urgent"; allowed: none of a job\'s own; next: remove it or name an '
        "allowed one, or have an administrator change limits.priorityClasses in the operator's settings"
    )
    assert len(problems(NAMES_A_CLASS, settings_with(images=["docker.io"]))) == 1
    assert len(problems(NAMES_A_CLASS, settings_with(priorityClasses=["batch"]))) == 1
    assert problems(NAMES_A_CLASS, settings_with(priorityClasses=["batch", "urgent"])) == []
    assert problems(NAMES_A_CLASS, settings_with(priorityClasses="any")) == []
    assert problems(NAMES_A_CLASS, settings_with(namespaces={"team-a": {"priorityClasses": ["urgent"]}})) == []
    assert len(problems(NAMES_A_CLASS, settings_with(namespaces={"team-a": {"images": None}}))) == 1
    assert problems(lambda _: None, Settings(profiles={"p": {"scheduling": {"priorityClassName": "urgent"}}})) == []


def test_a_job_that_was_started_with_a_class_needs_it_in_the_limits_for_its_next_attempt() -> None:
    frozen = frozen_with(scheduling={"priorityClassName": "urgent"})
    (problem,) = frozen_problems(document_of(NAMES_A_CLASS), frozen, Settings())
    assert problem.path == "spec.scheduling.priorityClassName"
    settings = settings_with(priorityClasses=["urgent"])
    assert list(frozen_problems(document_of(NAMES_A_CLASS), frozen, settings)) == []


def test_a_namespace_may_have_limits_of_its_own() -> None:
    limits = {"images": ["good.example"], "namespaces": {"team-a": {"images": "any", "tolerations": []}}}
    change = put("image", value="evil.example/x")
    assert problems(change, settings_with(**limits)) == []
    assert len(problems(change, settings_with(**limits), namespace="team-b")) == 1
    tolerates = put("scheduling", value={"tolerations": [{"key": "gpu", "operator": "Exists"}]})
    assert len(problems(tolerates, settings_with(**limits))) == 1
    assert problems(tolerates, settings_with(**limits), namespace="team-b") == []


PROFILE: Document = {
    "image": "site.example/trainer:2",
    "scheduling": {
        "priorityClassName": "batch",
        "tolerations": [{"operator": "Exists"}],
        "nodeSelector": {"pool": "a"},
    },
    "resources": {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "t"}]},
}
NOTHING = {"images": [], "priorityClasses": [], "tolerations": [], "nodeLabels": [], "gpusPerNamespace": 8}
NOTHING |= {"nfsExports": [], "extendedResources": [], "resourceClaims": []}


def test_what_a_profile_adds_an_administrator_has_allowed() -> None:
    settings = settings_with(profiles={"p": PROFILE}, default="p", **NOTHING)
    assert problems(lambda _: None, settings) == []
    assert problems(put("image", value=settings.trainer_image), settings) == []
    (problem,) = problems(put("image", value="site.example/other"), settings)
    assert problem.startswith("spec.image: ")


def frozen_with(**fields: Any) -> Document:
    return {"image": "registry.invalid/bert-operator/trainer:0.1.9", "runPolicy": {"stopGraceSeconds": 120}, **fields}


def test_a_started_job_is_held_against_the_limits_of_now() -> None:
    settings = settings_with(profiles={"p": PROFILE}, default="p", **NOTHING, stopGraceSeconds=120)
    document = document_of(lambda _: None)
    assert list(frozen_problems(document, frozen_with(**PROFILE), settings)) == []
    assert list(frozen_problems(document, frozen_with(image="site.example/trainer:1"), settings)) == [], "an older tag"
    assert list(frozen_problems(document, frozen_with(), settings)) == [], "the default image, of an earlier tag"
    for fields, path in (
        ({"image": "evil.example/x"}, "spec.image"),
        ({"scheduling": {"nodeSelector": {"zone": "a"}}}, "spec.scheduling.nodeSelector"),
        ({"output": {"volume": nfs_of("/a")}}, "spec.output.volume.nfs"),
        ({"resources": {"accelerator": {"resourceName": "a/b"}}}, "spec.resources.accelerator.resourceName"),
        ({"runPolicy": {"stopGraceSeconds": 121}}, "spec.runPolicy.stopGraceSeconds"),
    ):
        (problem,) = frozen_problems(document, frozen_with(**fields), settings)
        assert (problem.path, problem.got.endswith("from when the job was started")) == (path, True)


def test_a_profile_is_used_in_its_namespaces_alone_and_grants_there_alone() -> None:
    granting = {"output": {"volume": {"hostPath": {"path": "/data"}}}, "network": {"hostNetwork": True}}
    settings = Settings.model_validate(
        {"profiles": {"rdma": granting, "plain": {}}, "profileNamespaces": {"rdma": ["team-a"]}}
    )
    uses = both(put("profile", value="rdma"), put("output", value={"path": "x"}))
    assert problems(uses, settings) == []
    (problem,) = problems(uses, settings, namespace="team-b")
    assert problem.startswith('spec.profile: got "rdma"')
    assert "plain" in problem
    frozen = {"output": {"volume": {"hostPath": {"path": "/data"}}}}
    by_namespace = {
        namespace: [problem.path for problem in frozen_problems(document_of(uses, namespace), frozen, settings)]
        for namespace in ("team-a", "team-b")
    }
    assert by_namespace == {"team-a": [], "team-b": ["spec.output.volume.hostPath"]}


def test_where_the_default_profile_may_not_be_used_jobs_get_none() -> None:
    document = {"profiles": {"p": {"image": "p:1"}}, "defaultProfile": "p", "profileNamespaces": {"p": ["team-a"]}}
    settings = Settings.model_validate(document)
    images = [read_cluster_job(document_of(lambda _: None, name), settings).spec.image for name in ("team-a", "team-b")]
    assert images == ["p:1", None]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("profileNamespaces: {nobody: [team-a]}", "profileNamespaces.nobody: got a profile that is not there"),
        ("limits: {image: [x]}", "limits.image"),
        ("limits: {images: ['']}", "limits.images.0"),
        ("limits: {nfsExports: [nas.example/bert]}", "limits.nfsExports.0"),
        *(
            (f"limits: {{nfsExports: ['{entry}']}}", "limits.nfsExports.0: got .*; .*allowed: SERVER, or SERVER:/")
            for entry in ("nas:bert", "nas:", "a:b", "nas:/bert/../x", "nas:/..", "fd00::1:bert")
        ),
        ("limits: {namespaces: {Team: {}}}", "limits.namespaces.Team"),
        ("limits: {namespaces: {team: {namespaces: {}}}}", "limits.namespaces.team.namespaces"),
        ("limits: {ranksPerNamespace: -1}", "limits.ranksPerNamespace"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(text: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(text)
    with pytest.raises(SettingsError, match=words):
        load_settings(file)


def test_nothing_hostile_in_a_frozen_document_makes_the_search_fail() -> None:
    strange: Document = {"scheduling": None, "volumes": None, "dataset": "x", "resources": {"resourceClaims": None}}
    assert [asked.bound for asked in find_asked(strange)] == ["stop_grace_seconds"]


def test_results_are_not_written_to_a_folder_that_goes_with_its_pod() -> None:
    def scratch(source: Document) -> Change:
        volume = {"name": "v", "readOnly": False, "source": {**source, "mountPath": "/scratch"}}
        return both(put("volumes", value=[volume]), put("output", value={"path": "/scratch/run"}))

    assert problems(scratch({"persistentVolumeClaim": {"claimName": "c"}}), Settings()) == []
    (problem,) = problems(scratch({"emptyDir": {}}), Settings())
    assert problem.startswith('spec.output.path: got "/scratch/run"; allowed: a folder on a writable mount: there is')


def test_an_unknown_field_speaks_of_another_release_only_where_the_cluster_knows_it() -> None:
    document = document_of(put("tolerance", value=1))
    for metadata, expected in (({"uid": "u"}, True), ({}, False)):
        stored = {**document, "metadata": {"name": "demo", "namespace": "team-a", **metadata}}
        with pytest.raises(InvalidJob) as caught:
            read_cluster_job(stored, Settings())
        assert ("newer release" in str(caught.value)) is expected
