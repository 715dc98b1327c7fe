"""Rules that only the operator can judge: they depend on its settings, or on paths that the API cannot read. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from bert_operator.api import mounts
from bert_operator.api.v1alpha1 import BertPretrainJob, JobSpec
from bert_operator.cluster.settings import Settings
from bert_operator.problems import ABSENT, Problem, render_value


def cluster_problems(job: BertPretrainJob, settings: Settings) -> Iterator[Problem]:
    """Yield what keeps a valid job from running in this cluster."""
    yield from _output_is_on_a_volume(job.spec)
    yield from _ranks_can_be_counted(job.spec)
    if not settings.allow_host_path:
        yield from _no_folders_of_the_node(job.spec)


def _output_is_on_a_volume(spec: JobSpec) -> Iterator[Problem]:
    """Refuse results that would be lost with the pod."""
    path, base = spec.output.path, mounts.output_base(spec)
    if not path.startswith("/"):
        if base is None:
            yield Problem(
                path="spec.output.volume",
                got=ABSENT,
                allowed="a volume for output.path, which is relative: without one the results are lost with the pod",
                next_step="add output.volume, for example {persistentVolumeClaim: {claimName: results}}",
            )
        return
    writable = {entry.source.mount_path for entry in spec.volumes if not entry.read_only}
    folders = [folder for folder in (base, *writable) if folder is not None]
    if not any(f"{path}/".startswith(f"{folder}/") for folder in folders):
        yield Problem(
            path="spec.output.path",
            got=render_value(path),
            allowed=f"a folder on a writable mount: {', '.join(sorted(folders)) or 'there is none'}",
            next_step="write a path below a mount, or a relative one, which counts from output.volume",
        )


def _ranks_can_be_counted(spec: JobSpec) -> Iterator[Problem]:
    """Refuse a count of what nobody has told: pods are made before anybody sees their nodes."""
    if spec.cpu.ranks_per_node is not None and spec.cpu.places is None:
        field, noun = ("numaNodes", "NUMA nodes") if spec.cpu.pinning == "numa" else ("sockets", "sockets")
        yield Problem(
            path=f"spec.cpu.{field}",
            got=ABSENT,
            allowed=f"the number of {noun} of a node, from which cpu.ranksPerNode: auto counts the ranks",
            next_step=f"add cpu.{field}, as lscpu on a node shows it, or write slotsPerWorker in place of auto",
        )


def _no_folders_of_the_node(spec: JobSpec) -> Iterator[Problem]:
    volumes = [
        ("dataset.volume", spec.dataset.volume),
        ("output.volume", spec.output.volume),
        ("workspace.volume", spec.workspace.volume if spec.workspace else None),
        *((f"volumes[{number}].source", entry.source) for number, entry in enumerate(spec.volumes)),
    ]
    for path, volume in volumes:
        if volume is not None and volume.host_path is not None:
            yield Problem(
                path=f"spec.{path}.hostPath",
                got=render_value(volume.host_path.path),
                allowed="persistentVolumeClaim or nfs: this operator does not allow folders of the node",
                next_step="use a claim, or have allowHostPath set in the operator's settings",
            )
