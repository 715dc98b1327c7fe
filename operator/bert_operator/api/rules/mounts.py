"""Where a job's volumes appear in its pods. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from bert_operator.api.schema.bert_pretrain_job import JobSpec

DATASET_MOUNT = "/mnt/dataset"
OUTPUT_MOUNT = "/mnt/output"
WORKSPACE_MOUNT = "/mnt/workspace"


def list_mounts(spec: JobSpec) -> Iterator[tuple[str, str]]:
    """Yield every volume's path below ``spec`` and the folder at which it is mounted."""
    for path, volume, default in (
        ("dataset.volume", spec.dataset.volume, DATASET_MOUNT),
        ("output.volume", spec.output.volume, OUTPUT_MOUNT),
        ("workspace.volume", spec.workspace.volume if spec.workspace else None, WORKSPACE_MOUNT),
    ):
        # Defaults count as well: a volume of the user's may not be mounted at /mnt/output either.
        if volume is not None:
            yield path, volume.mount_path or default
    for number, entry in enumerate(spec.volumes):
        if entry.source.mount_path is not None:
            yield f"volumes[{number}].source", entry.source.mount_path


def output_base(spec: JobSpec) -> str | None:
    """Return the folder that a relative ``output.path`` is relative to in a pod; None without an output volume."""
    volume = spec.output.volume
    return None if volume is None else volume.mount_path or OUTPUT_MOUNT


def dataset_base(spec: JobSpec) -> str | None:
    """Return the folder that relative data paths are relative to: the dataset's volume, else the output's."""
    volume = spec.dataset.volume
    return output_base(spec) if volume is None else volume.mount_path or DATASET_MOUNT
