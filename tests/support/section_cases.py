"""The cases of ``rule_cases`` that are about one section of the job alone: volumes, variables, labels, taints."""

from __future__ import annotations

from job_changes import LARGE_ENV, Change, put
from rule_case import RuleCase

CLAIM = {"persistentVolumeClaim": {"claimName": "shared"}}
P1 = "spec.stages[1].pretrain"


def volume(**fields: object) -> dict[str, object]:
    return {**CLAIM, **fields}


def volumes(*mounts: str) -> list[dict[str, object]]:
    return [{"name": f"v{number}", "source": volume(mountPath=mount)} for number, mount in enumerate(mounts)]


def variable(**fields: object) -> Change:
    return put("env", value=[{"name": "NCCL_DEBUG", **fields}])


def toleration(**fields: object) -> Change:
    return put("scheduling", "tolerations", value=[fields])


def terms(operator: str, *values: str) -> Change:
    required = {
        "nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": operator, "values": list(values)}]}]
    }
    path = ("affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution")
    return put("scheduling", *path, value=required)


def selector(operator: str, *values: str) -> Change:
    expressions = [{"key": "app", "operator": operator, "values": list(values)}]
    spread = {"topologyKey": "zone", "labelSelector": {"matchExpressions": expressions}}
    return put("scheduling", "topologySpreadConstraints", value=[spread])


SECTION_CASES: dict[str, RuleCase] = {
    "volume in one way": RuleCase(
        put("output", "volume", value=volume(mountPath="/mnt/results", subPath="bert")),
        put("output", "volume", value=volume(nfs={"server": "nas", "path": "/export"})),
        "spec.output.volume",
        ("got persistentVolumeClaim and nfs", "exactly one of persistentVolumeClaim, nfs, hostPath, image"),
    ),
    "volume in some way": RuleCase(
        put("output", "volume", value={"hostPath": {"path": "/data"}}),
        put("output", "volume", value={"mountPath": "/data"}),
        "spec.output.volume",
        ("got nothing", "in one way"),
    ),
    "volume outside the system's folders": RuleCase(
        put("dataset", value={"volume": volume(mountPath="/tmpfs")}),
        put("dataset", value={"volume": volume(mountPath="/etc/data")}),
        "spec.dataset.volume.mountPath",
        ("got /etc/data", "outside /dev, /etc", "below /mnt"),
    ),
    "volume below the pod's own folder": RuleCase(
        put("output", "volume", value=volume(mountPath="/tmp/output")),
        put("output", "volume", value=volume(mountPath="/tmp")),
        "spec.output.volume.mountPath",
        ("got /tmp;", "not /tmp itself", "below /mnt"),
    ),
    "further volume with a place": RuleCase(
        put("volumes", value=volumes("/mnt/a")),
        put("volumes", value=[{"name": "a", "source": CLAIM}]),
        "spec.volumes[0].source.mountPath",
        ("got nothing", "an absolute path"),
    ),
    "variable with one value": RuleCase(
        variable(secret={"name": "keys", "key": "wandb"}),
        variable(value="INFO", configMap={"name": "keys", "key": "wandb"}),
        "spec.env[0]",
        ("got value and configMap", "exactly one of value, secret, configMap"),
    ),
    "variable with a value": RuleCase(variable(value=""), variable(), "spec.env[0]", ("got nothing", 'value: ""')),
    "variable of the user's own": RuleCase(
        variable(value="INFO"),
        put("env", value=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]),
        "spec.env[0].name",
        ("got NVIDIA_VISIBLE_DEVICES", "its value would be lost"),
    ),
    "no key": RuleCase(variable(value=""), put("envFrom", value=[{"secret": "a-a1-ssh"}]), "spec.envFrom[0].secret"),
    "no key in one variable": RuleCase(
        variable(secret={"name": "a-a1-keys", "key": "k"}),
        variable(secret={"name": "a-a1-ssh", "key": "k"}),
        "spec.env[0].secret.name",
        ("got a-a1-ssh", "another name"),
    ),
    "size": RuleCase(variable(value=""), put("env", value=LARGE_ENV), "spec", ("at most 256 KiB as a whole",)),
    "source of variables": RuleCase(
        put("envFrom", value=[{"secret": "keys", "prefix": "W_"}]),
        put("envFrom", value=[{"secret": "keys", "configMap": "settings"}]),
        "spec.envFrom[0]",
        ("got secret and configMap", "one entry for each"),
    ),
    "group of volumes": RuleCase(
        put("securityContext", value={"runAsUser": 1000, "fsGroup": 1000}),
        put("securityContext", value={"runAsUser": 0, "fsGroup": 1000}),
        "spec.securityContext.fsGroup",
        ("got 1000", "none for root"),
    ),
    "values of a pod's labels": RuleCase(
        selector("Exists"),
        selector("In"),
        "spec.scheduling.topologySpreadConstraints[0].labelSelector.matchExpressions[0].values",
        ("got 0 with operator In", "at least one for In"),
    ),
    "no values of a pod's labels": RuleCase(
        selector("In", "a", ""),
        selector("DoesNotExist", "a"),
        "spec.scheduling.topologySpreadConstraints[0].labelSelector.matchExpressions[0].values",
        ("got 1 with operator DoesNotExist",),
    ),
    "values of a node's labels": RuleCase(
        terms("Gt", "3"),
        terms("Lt", "3", "4"),
        "spec.scheduling.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0]"
        ".matchExpressions[0].values",
        ("got 2 with operator Lt", "one for Gt and Lt"),
    ),
    "taint by name": RuleCase(
        toleration(operator="Exists"),
        toleration(value="a"),
        "spec.scheduling.tolerations[0].key",
        ("got nothing", "which takes every taint"),
    ),
    "taint by its value": RuleCase(
        toleration(key="a", value="b"),
        toleration(key="a", operator="Exists", value="b"),
        "spec.scheduling.tolerations[0].value",
        ("got b", "none with operator: Exists"),
    ),
    "taint for some time": RuleCase(
        toleration(key="a", operator="Exists", effect="NoExecute", tolerationSeconds=0),
        toleration(key="a", operator="Exists", effect="NoSchedule", tolerationSeconds=0),
        "spec.scheduling.tolerations[0].effect",
        ("got NoSchedule", "NoExecute together with tolerationSeconds"),
    ),
    "moments of another trainer": RuleCase(
        put("initialCheckpoint", value={"path": "p", "load": "weightsAndOptimizer", "format": "nvidia"}),
        put("initialCheckpoint", value={"path": "p", "load": "weightsAndOptimizer", "format": "huggingface"}),
        "spec.initialCheckpoint.load",
        ("got weightsAndOptimizer from huggingface", "load: weights"),
    ),
}
