"""Rules inside one section of a job, in the form of ``bert_job.rules.section_rule``; those of its training are there.

Rules between sections are in ``job_rules`` and ``pod_rules``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from pydantic.alias_generators import to_camel

from bert_job.problems import ABSENT, render_value
from bert_job.rules.section_rule import COMPLETED_BY_PROFILES, SectionRule, exactly_one
from bert_job.rules.section_rules import TRAINING_SECTION_RULES
from bert_job.section import Section
from bert_operator.api.schema import cluster, scheduling
from bert_operator.api.schema.bert_pretrain_job import DEFAULT_HANG_SECONDS, OutputSpec, RunPolicy
from bert_operator.names import SIDECAR_LABEL

RESERVED_NAMES = (
    "BERT_ATTEMPT",
    "BERT_LOG_FOLDER",
    "BERT_RUN_CONFIG",
    "BERT_TERMINATION_LOG",
    "HOME",
    "HYDRA_HOST_FILE",
    "HYDRA_LAUNCH_EXTRA_ARGS",
    "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS",
    "I_MPI_HYDRA_HOST_FILE",
    "I_MPI_PERHOST",
    "K_MPI_JOB_ROLE",
    "NVIDIA_DRIVER_CAPABILITIES",
    "NVIDIA_VISIBLE_DEVICES",
    "OMPI_MCA_orte_default_hostfile",
    "OMPI_MCA_orte_keep_fqdn_hostnames",
    "OMPI_MCA_orte_set_default_slots",
    "OMPI_MCA_plm_rsh_args",
)
"""Variables that the operator or mpi-operator sets; a user's value would be lost."""

RESERVED_MOUNTS = ("/dev", "/etc", "/home", "/proc", "/root", "/run", "/sys", "/usr")
"""Folders of the image, the system or the operator, in and below which nothing may be mounted."""
_TMP = "/tmp"  # noqa: S108 - in the pod
"""A folder of the pod's own, for temporary files. Below it Kubernetes mounts what it is told to: it mounts the shorter
path first."""


# Otherwise a user who may create jobs, but not read Secrets, could have any attempt's ssh key put into a pod.
_SSH_KEY = "-a[0-9]+-ssh$"
"""Ending of the Secrets in which mpi-operator keeps attempts' ssh keys: whoever has one can log in to their pods."""


def _values_fit_operator(section: Any) -> bool:
    count = len(section.values)
    if section.operator in ("Exists", "DoesNotExist"):
        return count == 0
    return count == 1 if section.operator in ("Gt", "Lt") else count > 0


_VALUES = SectionRule(
    holds=_values_fit_operator,
    cel=(
        "self.operator in ['Exists', 'DoesNotExist'] ? (!has(self.values) || self.values.size() == 0) : "
        "(has(self.values) && (self.operator in ['Gt', 'Lt'] ? self.values.size() == 1 : self.values.size() > 0))"
    ),
    field="values",
    allowed="none for Exists and DoesNotExist, one for Gt and Lt, at least one for In and NotIn",
    next_step="add the values, or choose another operator",
    got=lambda section: f"{len(section.values)} with operator {section.operator}",
)


def _under(path: str, folders: tuple[str, ...]) -> bool:
    # With the slash, or /tmpfs would be taken for a folder of /tmp. MOUNT_PATTERN has refused dots and double slashes.
    return any(f"{path}/".startswith(f"{folder}/") for folder in folders)


_MOUNT = SectionRule(
    holds=lambda volume: (
        volume.mount_path is None or not (volume.mount_path == _TMP or _under(volume.mount_path, RESERVED_MOUNTS))
    ),
    cel=f"!has(self.mountPath) || (self.mountPath != '{_TMP}' && "
    f"![{', '.join(repr(folder + '/') for folder in RESERVED_MOUNTS)}]"
    ".exists(folder, (self.mountPath + '/').startsWith(folder)))",
    field="mountPath",
    allowed=f"a folder outside {', '.join(RESERVED_MOUNTS)}, and not {_TMP} itself",
    next_step="mount it below /mnt",
    got=lambda volume: str(volume.mount_path),
)


def _no_ssh_key(name: Callable[[Any], str | None], field: str) -> SectionRule:
    """Refuse a Secret that holds the ssh key of some job's attempt."""
    return SectionRule(
        holds=lambda section: name(section) is None or re.search(_SSH_KEY, str(name(section))) is None,
        cel=f"!has(self.secret) || !self.{field}.matches('{_SSH_KEY}')",
        field=field,
        allowed="a Secret whose name does not end as those of attempts' ssh keys do, in -a1-ssh and so on",
        next_step="give your own Secret another name",
        got=lambda section: str(name(section)),
    )


def _no_image(allowed: str, next_step: str) -> SectionRule:
    """Refuse an image as the volume of a section."""
    return SectionRule(
        holds=lambda section: section.volume is None or section.volume.image is None,
        cel="!has(self.volume) || !has(self.volume.image)",
        field="volume.image",
        allowed=allowed,
        next_step=next_step,
        got=lambda section: render_value(section.volume.image.reference),
    )


_UNWRITABLE = ("image", "secret", "config_map")
"""Sources of volumes that a pod can only read."""


_RESERVED_KEYS = r"^([^/]*\.)?(kubernetes\.io|k8s\.io|x-k8s\.io|kubeflow\.org|bert-operator\.dev)/"
"""Of labels and annotations that Kubernetes, Kueue, mpi-operator and this operator read."""


def _no_reserved_keys(field: str) -> SectionRule:
    """Refuse keys that say something to whoever runs the pods."""

    def found(section: Any) -> list[str]:
        return [key for key in getattr(section, field) if re.match(_RESERVED_KEYS, key) or key == SIDECAR_LABEL]

    return SectionRule(
        holds=lambda section: not found(section),
        cel=f"!has(self.{field}) || self.{field}.all(key, "
        f"!key.matches({json.dumps(_RESERVED_KEYS)}) && key != '{SIDECAR_LABEL}')",
        field=field,
        allowed="keys outside kubernetes.io, k8s.io, x-k8s.io, kubeflow.org and bert-operator.dev, and not "
        f"{SIDECAR_LABEL}",
        next_step="leave them out: what they stand for has fields of its own, such as queueName and scheduling",
        got=lambda section: ", ".join(found(section)),
    )


def _claim_of_accelerator(resources: cluster.ResourcesSpec) -> str | None:
    return None if resources.accelerator is None else resources.accelerator.resource_claim


def _claims(resources: cluster.ResourcesSpec) -> list[str]:
    return [claim.name for claim in resources.resource_claims or ()]


_SOURCES = ("persistent_volume_claim", "nfs", "host_path", "image")
_IN_ONE_WAY = "say where the files are, in one way"

SECTION_RULES: Mapping[type[Section], tuple[SectionRule, ...]] = MappingProxyType(
    {
        cluster.VolumeSource: (exactly_one(*_SOURCES, next_step=_IN_ONE_WAY), _MOUNT),
        cluster.FurtherVolumeSource: (
            exactly_one(*_SOURCES, "secret", "config_map", "empty_dir", next_step=_IN_ONE_WAY),
            _MOUNT,
            _no_ssh_key(lambda volume: volume.secret and volume.secret.name, "secret.name"),
        ),
        cluster.PodMetadataSpec: (_no_reserved_keys("labels"), _no_reserved_keys("annotations")),
        cluster.VolumeSpec: (
            SectionRule(
                holds=lambda volume: volume.source.mount_path is not None,
                cel="has(self.source.mountPath)",
                field="source.mountPath",
                allowed="an absolute path",
                next_step="say where the ranks find it",
                got=lambda _: ABSENT,
            ),
            SectionRule(
                holds=lambda volume: (
                    volume.read_only or all(getattr(volume.source, name) is None for name in _UNWRITABLE)
                ),
                cel="!has(self.readOnly) || self.readOnly || !("
                + " || ".join(f"has(self.source.{to_camel(name)})" for name in _UNWRITABLE)
                + ")",
                field="readOnly",
                allowed="true for an image, a Secret or a ConfigMap, which nobody can write to",
                next_step="leave it out, or use a persistentVolumeClaim",
                got=lambda _: "false",
            ),
        ),
        OutputSpec: (
            _no_image(
                "persistentVolumeClaim, nfs or hostPath: nobody can write results into an image",
                "use a claim, for example {persistentVolumeClaim: {claimName: results}}",
            ),
        ),
        cluster.WorkspaceSpec: (
            _no_image(
                "persistentVolumeClaim, nfs or hostPath: Kubernetes mounts images without the right to execute",
                "build the program into an image made from the trainer's, and name that in spec.image",
            ),
        ),
        cluster.EnvironmentVariable: (
            exactly_one("value", "secret", "config_map", next_step='an empty text is value: ""'),
            SectionRule(
                holds=lambda variable: variable.name not in RESERVED_NAMES,
                cel=f"!(self.name in [{', '.join(repr(name) for name in RESERVED_NAMES)}])",
                field="name",
                allowed="a name that neither the operator nor mpi-operator sets",
                next_step="leave it out: its value would be lost",
                got=lambda variable: variable.name,
            ),
            _no_ssh_key(lambda variable: variable.secret and variable.secret.name, "secret.name"),
        ),
        cluster.EnvironmentSource: (
            exactly_one("secret", "config_map", next_step="write one entry for each"),
            _no_ssh_key(lambda source: source.secret, "secret"),
        ),
        cluster.ResourcesSpec: (
            # In CEL this rule, as those of CpuSpec below, would refuse a job whose profile has the other field.
            SectionRule(
                holds=lambda resources: resources.hugepages is None or resources.memory is not None,
                cel=COMPLETED_BY_PROFILES,
                field="memory",
                allowed="an amount, since Kubernetes gives huge pages only together with memory",
                next_step="add resources.memory",
                got=lambda _: ABSENT,
            ),
            SectionRule(
                holds=lambda resources: _claim_of_accelerator(resources) in (None, *_claims(resources)),
                cel=COMPLETED_BY_PROFILES,
                field="accelerator.resourceClaim",
                allowed="the name of an entry of resourceClaims in the same section",
                next_step="add the entry, or correct the name",
                got=lambda resources: render_value(_claim_of_accelerator(resources)),
            ),
        ),
        cluster.AcceleratorSpec: (
            SectionRule(
                holds=lambda accelerator: (
                    accelerator.resource_claim is None or accelerator.resource_name == cluster.DEFAULT_ACCELERATOR
                ),
                cel="!has(self.resourceClaim) || !has(self.resourceName) || "
                f"self.resourceName == '{cluster.DEFAULT_ACCELERATOR}'",
                field="resourceName",
                allowed="none with resourceClaim, which brings the devices",
                next_step="leave one of the two out",
                got=lambda accelerator: render_value(accelerator.resource_name),
            ),
        ),
        cluster.ResourceClaimSpec: (
            exactly_one(
                *("resource_claim_name", "resource_claim_template_name"),
                next_step="name a template for devices of every worker's own, or one claim for all",
            ),
        ),
        cluster.CpuSpec: (
            SectionRule(
                holds=lambda cpu: cpu.pinning != "socket" or cpu.sockets is not None,
                cel=COMPLETED_BY_PROFILES,
                field="sockets",
                allowed="the number of sockets of a node, to pin by socket",
                next_step="add sockets, or choose another pinning",
                got=lambda _: ABSENT,
            ),
            SectionRule(
                holds=lambda cpu: cpu.pinning != "numa" or cpu.numa_nodes is not None,
                cel=COMPLETED_BY_PROFILES,
                field="numaNodes",
                allowed="the number of NUMA nodes of a node, to pin by numa",
                next_step="add numaNodes, or choose another pinning",
                got=lambda _: ABSENT,
            ),
            SectionRule(
                holds=lambda cpu: cpu.pinning != "core" or cpu.cores_per_rank is not None,
                cel=COMPLETED_BY_PROFILES,
                field="coresPerRank",
                allowed="the cores of one rank, to pin by core",
                next_step="add coresPerRank, or choose another pinning",
                got=lambda _: ABSENT,
            ),
        ),
        cluster.SecurityContextSpec: (
            SectionRule(
                # fsGroup makes every mounted Secret readable to the group, whatever its own mode says.
                holds=lambda user: user.run_as_user != 0 or user.fs_group is None,
                cel="!has(self.runAsUser) || self.runAsUser != 0 || !has(self.fsGroup)",
                field="fsGroup",
                allowed="none for root: ssh refuses keys that a group may read if their owner uses them",
                next_step="leave fsGroup out, or run as another user",
                got=lambda user: str(user.fs_group),
            ),
        ),
        scheduling.LabelExpression: (_VALUES,),
        scheduling.NodeExpression: (_VALUES,),
        scheduling.Toleration: (
            SectionRule(
                # The API server has the same rules for pods, but sees these only in a child: the job would be blocked,
                # not refused.
                holds=lambda toleration: toleration.key is not None or toleration.operator == "Exists",
                cel="has(self.key) || self.operator == 'Exists'",
                field="key",
                allowed="a key, or operator: Exists, which takes every taint",
                next_step="name the taint",
                got=lambda _: ABSENT,
            ),
            SectionRule(
                holds=lambda toleration: toleration.operator != "Exists" or not toleration.value,
                cel="self.operator != 'Exists' || !has(self.value) || self.value == ''",
                field="value",
                allowed="none with operator: Exists",
                next_step="leave it out, or write operator: Equal",
                got=lambda toleration: str(toleration.value),
            ),
            SectionRule(
                holds=lambda toleration: toleration.toleration_seconds is None or toleration.effect == "NoExecute",
                cel="!has(self.tolerationSeconds) || (has(self.effect) && self.effect == 'NoExecute')",
                field="effect",
                allowed="NoExecute together with tolerationSeconds",
                next_step="leave tolerationSeconds out, or write effect: NoExecute",
                got=lambda toleration: toleration.effect or ABSENT,
            ),
        ),
        **TRAINING_SECTION_RULES,
        scheduling.TopologyRequest: (
            exactly_one("required", "preferred", "unconstrained", next_step="keep one of them"),
            SectionRule(
                holds=lambda topology: topology.unconstrained is not False,
                cel="!has(self.unconstrained) || self.unconstrained",
                field="unconstrained",
                allowed="true",
                next_step="write true, or leave topology out",
                got=lambda _: "false",
            ),
        ),
        RunPolicy: (
            SectionRule(
                holds=lambda policy: policy.hang_limits[0] <= policy.hang_limits[1],
                cel=f"(has(self.hangMinSeconds) ? self.hangMinSeconds : {DEFAULT_HANG_SECONDS[0]}) <= "
                f"(has(self.hangMaxSeconds) ? self.hangMaxSeconds : {DEFAULT_HANG_SECONDS[1]})",
                field="hangMaxSeconds",
                allowed=f"hangMinSeconds, {DEFAULT_HANG_SECONDS[0]} if it is empty, or more",
                next_step="set hangMinSeconds lower, or hangMaxSeconds higher",
                got=lambda policy: f"{policy.hang_limits[1]} with hangMinSeconds {policy.hang_limits[0]}",
            ),
        ),
    }
)
