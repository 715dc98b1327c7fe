"""Which of a job's volumes a message is about, in the words of its manifest. Pure."""

from __future__ import annotations

import re

from bert_operator.api.rules.mounts import DATASET_MOUNT, OUTPUT_MOUNT, WORKSPACE_MOUNT
from bert_operator.api.schema.bert_pretrain_job import JobSpec
from bert_operator.api.schema.cluster import FurtherVolumeSource, VolumeSource


def describe_volume(spec: JobSpec, message: str) -> str:
    """Return the volume that holds the path in a message, such as ``claim results``; empty if none does."""
    mounts = (
        (spec.dataset.volume, DATASET_MOUNT),
        (spec.output.volume, OUTPUT_MOUNT),
        (spec.workspace.volume if spec.workspace else None, WORKSPACE_MOUNT),
        *((volume.source, "") for volume in spec.volumes),
    )
    found = {mount: _name(volume) for volume, default in mounts if volume and (mount := volume.mount_path or default)}
    named = [mount for mount in found if re.search(rf"{re.escape(mount)}(?![-.\w])", message)]
    # The longest: one may be mounted below another.
    return found[max(named, key=len)] if named else ""


def _name(volume: VolumeSource) -> str:
    if volume.persistent_volume_claim is not None:
        return f"claim {volume.persistent_volume_claim.claim_name}"
    if volume.nfs is not None:
        return f"NFS {volume.nfs.server}:{volume.nfs.path}"
    if volume.host_path is not None:
        return f"hostPath {volume.host_path.path}"
    if volume.image is not None:
        return f"image {volume.image.reference}"
    if isinstance(volume, FurtherVolumeSource) and (files := volume.secret or volume.config_map) is not None:
        return f"{'ConfigMap' if volume.secret is None else 'Secret'} {files.name}"
    return "an emptyDir"
