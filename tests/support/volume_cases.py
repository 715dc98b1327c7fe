"""The cases of ``rule_cases`` that are about images as volumes, and about what user namespaces cannot mount."""

from __future__ import annotations

from collections.abc import Mapping

from job_changes import Change, both, put
from rule_case import RuleCase
from sample_job import PREPARE
from section_cases import CLAIM

IMAGE = {"image": {"reference": "registry.example.com/wikipedia:128"}}
NFS = {"nfs": {"server": "nas", "path": "/export"}}
MAPPED = {"hostUsers": False}


def without_prepare(spec: dict[str, object]) -> None:
    stages = spec["stages"]
    assert isinstance(stages, list)
    del stages[PREPARE]


def mapped(change: Change) -> Change:
    return both(put("securityContext", value=MAPPED), change)


def extra(source: Mapping[str, object], **fields: object) -> Change:
    return put("volumes", value=[{"name": "extra", "source": {**source, "mountPath": "/mnt/extra"}, **fields}])


VOLUME_CASES: dict[str, RuleCase] = {
    "a dataset in an image": RuleCase(
        both(put("dataset", value={"path": "wiki", "volume": IMAGE}), without_prepare),
        put("dataset", value={"path": "wiki", "volume": IMAGE}),
        "spec.dataset.volume.image",
        ('got "registry.example.com/wikipedia:128"', "a volume that the prepare stage can write to", "by volumes"),
    ),
    "an image is read": RuleCase(
        extra(IMAGE),
        extra(IMAGE, readOnly=False),
        "spec.volumes[0].readOnly",
        ("got false", "true for an image", "leave it out"),
    ),
    "results in an image": RuleCase(
        put("output", "volume", value=CLAIM),
        put("output", "volume", value=IMAGE),
        "spec.output.volume.image",
        ("nobody can write results into an image",),
    ),
    "a program in an image": RuleCase(
        put("workspace", value={"volume": CLAIM, "command": ["x"]}),
        put("workspace", value={"volume": IMAGE, "command": ["x"]}),
        "spec.workspace.volume.image",
        ("without the right to execute", "spec.image"),
    ),
    "shares in a user namespace": RuleCase(
        mapped(put("output", "volume", value=CLAIM)),
        mapped(put("output", "volume", value=NFS)),
        "spec.output.volume.nfs",
        ('got "nas:/export"', "a persistentVolumeClaim with", "leave hostUsers out"),
    ),
    "data of a share in a user namespace": RuleCase(
        mapped(put("dataset", value={"volume": CLAIM})),
        mapped(put("dataset", value={"volume": NFS})),
        "spec.dataset.volume.nfs",
    ),
    "code of a share in a user namespace": RuleCase(
        both(
            put("securityContext", value=MAPPED),
            put("worker", value={"securityContext": {}}),
            put("launcher", value={"securityContext": {"hostUsers": True}}),
            put("workspace", value={"volume": NFS, "command": ["x"]}),
        ),
        both(
            put("launcher", value={"securityContext": MAPPED}),
            put("workspace", value={"volume": NFS, "command": ["x"]}),
        ),
        "spec.workspace.volume.nfs",
    ),
    "folders of the node in a user namespace": RuleCase(
        both(put("worker", value={"securityContext": MAPPED}), extra(IMAGE)),
        both(put("worker", value={"securityContext": MAPPED}), extra({"hostPath": {"path": "/data"}})),
        "spec.volumes[0].source.hostPath",
        ('got "/data"', "as the node's root"),
    ),
    "the node's network in a user namespace": RuleCase(
        both(put("launcher", value={"securityContext": MAPPED}), put("network", value={"hostNetwork": True})),
        mapped(put("network", value={"hostNetwork": True})),
        "spec.network.hostNetwork",
        ("got true", "leave one of the two out"),
    ),
}
