"""Rules for what volumes are made of: images, which are read-only, and what a user namespace cannot mount.

Pure, like ``pod_rules``, and like there silent about whatever a profile may still fill in.
"""

from __future__ import annotations

from collections.abc import Iterator

from bert_job.problems import render_value
from bert_job.rules.cel import PREPARES, Cel
from bert_job.rules.rule import Rule, Violation, rule
from bert_operator.api.schema.bert_pretrain_job import JobSpec
from bert_operator.api.schema.cluster import SecurityContextSpec, VolumeSource


@rule(
    Cel(
        JobSpec,
        f"!{PREPARES} || !has(self.dataset) || !has(self.dataset.volume) || !has(self.dataset.volume.image)",
        "dataset.volume",
    ),
    allowed="a volume that the prepare stage can write to: persistentVolumeClaim, nfs or hostPath",
    next_step="leave the prepare stage out if the image holds the dataset; if it holds a corpus, mount it by volumes",
)
def a_prepared_dataset_is_written(spec: JobSpec) -> Iterator[Violation]:
    """Refuse to build a dataset in an image, which nobody can write to."""
    volume = spec.dataset.volume
    if volume is not None and volume.image is not None and any(stage.prepare is not None for stage in spec.stages):
        yield Violation("dataset.volume.image", render_value(volume.image.reference))


def _is_mapped(role: str) -> str:
    """Return whether the job itself gives a role's pods user ids of their own; over the spec.

    A role's section replaces the job's as a whole (``RoleSpec``).
    """

    def is_false(section: str) -> str:
        return f"has({section}.hostUsers) && !{section}.hostUsers"

    return (
        f"(has(self.{role}) && has(self.{role}.securityContext) ? {is_false(f'self.{role}.securityContext')} : "
        f"has(self.securityContext) && {is_false('self.securityContext')})"
    )


_ANY_IS_MAPPED = f"({_is_mapped('worker')} || {_is_mapped('launcher')})"
_OF_THE_NODE = "(has({0}.nfs) || has({0}.hostPath))"


def _mapped(role: SecurityContextSpec | None, spec: JobSpec) -> bool:
    return (role or spec.security_context).host_users is False


def _volumes(spec: JobSpec) -> Iterator[tuple[str, VolumeSource | None]]:
    yield "dataset.volume", spec.dataset.volume
    yield "output.volume", spec.output.volume
    yield "workspace.volume", None if spec.workspace is None else spec.workspace.volume
    for number, entry in enumerate(spec.volumes):
        yield f"volumes[{number}].source", entry.source


@rule(
    *(
        Cel(
            JobSpec,
            f"!{_ANY_IS_MAPPED} || !has(self.{section}) || !has(self.{section}.volume) || "
            f"!{_OF_THE_NODE.format(f'self.{section}.volume')}",
            f"{section}.volume",
        )
        for section in ("dataset", "output", "workspace")
    ),
    Cel(
        JobSpec,
        f"!{_ANY_IS_MAPPED} || !has(self.volumes) || "
        f"!self.volumes.exists(entry, {_OF_THE_NODE.format('entry.source')})",
        subject="volumes[].source",
    ),
    allowed="a persistentVolumeClaim with securityContext.hostUsers: false, since NFS cannot map user ids, and root of "
    "the pod would write to a folder of the node as the node's root",
    next_step="use a claim whose file system supports idmapped mounts, or leave hostUsers out",
)
def user_namespaces_mount_claims(spec: JobSpec) -> Iterator[Violation]:
    """Refuse inline NFS and folders of the node in pods with user ids of their own.

    What a claim is made of is not known here: kubelet reports one that is NFS (``cluster.blockers``).
    """
    if _mapped(spec.worker.security_context, spec) or _mapped(spec.launcher.security_context, spec):
        for path, volume in _volumes(spec):
            if volume is not None and volume.nfs is not None:
                yield Violation(f"{path}.nfs", render_value(f"{volume.nfs.server}:{volume.nfs.path}"))
            if volume is not None and volume.host_path is not None:
                yield Violation(f"{path}.hostPath", render_value(volume.host_path.path))


@rule(
    Cel(
        JobSpec,
        f"!{_is_mapped('worker')} || !has(self.network) || !has(self.network.hostNetwork) || !self.network.hostNetwork",
        "network",
    ),
    allowed="false with hostUsers: false: Kubernetes takes no pod with user ids of its own on its node's network",
    next_step="leave one of the two out",
)
def user_namespaces_have_their_network(spec: JobSpec) -> Iterator[Violation]:
    """Refuse the node's network for workers with user ids of their own; the launcher never has it."""
    if spec.network.host_network and _mapped(spec.worker.security_context, spec):
        yield Violation("network.hostNetwork", "true")


VOLUME_RULES: tuple[Rule[JobSpec], ...] = (
    a_prepared_dataset_is_written,
    user_namespaces_mount_claims,
    user_namespaces_have_their_network,
)
