"""What ``check`` finds in a job that an operator would take: an image of nobody's, nodes of another kind. Pure.

The operator itself runs such a job as it is written, or waits until somebody has named an image. Whoever asks whether a
job suits a cluster wants to know before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from bert_job.problems import Problem, render_value
from bert_operator.api.parsing.profiles import profile_of
from bert_operator.api.schema.bert_pretrain_job import BertPretrainJob
from bert_operator.api.schema.cluster import DEFAULT_ACCELERATOR
from bert_operator.cluster.settings import Settings
from bert_operator.render.images import PLACEHOLDER_REGISTRY
from bert_operator.spec_documents import count_ranks

Document = dict[str, Any]

_OF_PROCESSORS = (
    *("pinning", "ranksPerNode", "sockets", "numaNodes", "coresPerRank", "threadsPerCore"),
    *("openmp", "allocator", "dnnlMaxCpuIsa"),
)
"""Fields of ``cpu`` that say how ranks use the processors of a node."""


def find_mismatches(
    document: Document, job: BertPretrainJob, settings: Settings, *, knows_cluster: bool
) -> Iterator[Problem]:
    """Yield reasons why a valid job will not run as intended.

    Args:
        document: As the user wrote it.
        job: The same, completed by its profile.
        settings: Of the operator.
        knows_cluster: They are those of a cluster, and not the defaults.
    """
    yield from _image_problems(job, settings, knows_cluster=knows_cluster)
    seen = settings.seen_from(job.metadata.namespace)
    name = job.spec.profile or seen.default_profile
    profile = profile_of(document["spec"], seen.profiles, seen.default_profile)
    if profile is not None:
        yield from _device_problems(document["spec"], job, str(name), profile, seen)


def _image_problems(job: BertPretrainJob, settings: Settings, *, knows_cluster: bool) -> Iterator[Problem]:
    image = job.spec.image or settings.trainer_image
    if not image.startswith(f"{PLACEHOLDER_REGISTRY}/") or (job.spec.image is None and not knows_cluster):
        return
    where = "spec.image" if job.spec.image is not None else "trainerImage (of the settings)"
    yield Problem(
        path=where,
        got=render_value(image),
        allowed=f"an image in a registry of yours; {PLACEHOLDER_REGISTRY} resolves nowhere, and the job would be "
        "Blocked with ImageNotNamed",
        next_step="push the trainer's image, and write its name there (docs/guides/install.md, Images)",
    )


def _device_problems(
    own: Document, job: BertPretrainJob, name: str, profile: Document, settings: Settings
) -> Iterator[Problem]:
    trains = any(stage.pretrain or stage.evaluate or stage.finetune for stage in job.spec.stages)
    path, accelerator = _accelerator(own)
    gpus = _accelerator(profile)[1]
    processors = [
        field for field in _OF_PROCESSORS if _section(own, "cpu").get(field) not in (None, "none", "system", "gnu")
    ]
    if not trains:
        return
    if accelerator is not None and gpus is None and not _chooses_nodes(own):
        device = accelerator.get("resourceClaim") or accelerator.get("resourceName") or DEFAULT_ACCELERATOR
        yield Problem(
            path=path,
            got=render_value(device),
            allowed=f"nothing under profile {name}, which has no accelerators: pods that ask for some may wait "
            "for a node for ever",
            next_step=f"{_name_another(settings, has_gpus=True)}, choose nodes by nodeSelector, or leave the "
            "accelerator out",
        )
    elif accelerator is None and gpus is not None and processors:
        device = gpus.get("resourceClaim") or gpus.get("resourceName") or DEFAULT_ACCELERATOR
        yield Problem(
            path="spec.cpu",
            got=f"{', '.join(processors)}, and no accelerator",
            allowed=f"a job for accelerators under profile {name}, which gives every rank one ({device})",
            next_step=f"{_name_another(settings, has_gpus=False)}, or write resources: {{accelerator: {{}}}} if ranks "
            "are meant to train on them",
        )
    else:
        if accelerator is not None and gpus is not None:
            yield from _too_many_devices(own, name, profile)
        # Of nodes that the job is not meant for, the cores are no matter.
        yield from _too_many_cores(own, job, name, profile, settings)
    if job.spec.precision == "tf32" and (job.spec.worker.resources or job.spec.resources).accelerator is None:
        yield Problem(
            path="spec.precision",
            got='"tf32"',
            allowed="fp32, bf16, bf32, avx-fp32 or fp16 without accelerators: tf32 is a mode of NVIDIA's GPUs",
            next_step="write bf16 or bf32 for Xeons, or add resources.accelerator",
        )


def _too_many_devices(own: Document, name: str, profile: Document) -> Iterator[Problem]:
    """Yield where a worker asks for more devices than the profile gives one."""
    slots, most = own.get("slotsPerWorker"), profile.get("slotsPerWorker")
    if isinstance(slots, int) and isinstance(most, int) and slots > most and not _chooses_nodes(own):
        yield Problem(
            path="spec.slotsPerWorker",
            got=f"{slots}, each with an accelerator",
            allowed=f"at most {most} under profile {name}, whose workers have as many",
            next_step=f"write slotsPerWorker: {most} and more workers, or choose nodes with {slots} by "
            "scheduling.nodeSelector",
        )


def _too_many_cores(
    own: Document, job: BertPretrainJob, name: str, profile: Document, settings: Settings
) -> Iterator[Problem]:
    """Yield where the ranks of a pod have more cores than the profile gives those of one node.

    Such as four ranks, one per NUMA node, under a profile whose cores are those of a socket.
    """
    cpu, ranks = job.spec.cpu, job.spec.ranks_per_worker
    node = _section(profile, "cpu")
    each, places = node.get("coresPerRank"), node.get("numaNodes" if node.get("pinning") == "numa" else "sockets")
    resources = job.spec.worker.resources or job.spec.resources
    # Ranks that are not pinned share the CPUs that resources.cpu asks for.
    asks_otherwise = cpu.pinning == "none" and resources.cpu is not None
    if not isinstance(each, int) or not isinstance(places, int) or cpu.cores_per_rank is None or asks_otherwise:
        return
    most = each * max(places, count_ranks(profile))
    if cpu.cores_per_rank * ranks <= most or _chooses_nodes(own):
        return
    pins_alike = (key for key, it in settings.profiles.items() if _section(it, "cpu").get("pinning") == cpu.pinning)
    others = ", ".join(sorted(set(pins_alike) - {name}))
    lower = f"coresPerRank: {most // ranks}" if most >= ranks else "fewer ranks"
    yield Problem(
        path="spec.cpu.coresPerRank",
        got=f"{cpu.cores_per_rank} x {ranks} ranks: {cpu.cores_per_rank * ranks} cores in a pod",
        allowed=f"at most {most} cores in a pod under profile {name}, whose nodes have no more for ranks: the pod "
        "may wait for a node for ever",
        next_step=f"write {lower}, name a profile for such ranks{f' ({others})' if others else ''}, or choose nodes by "
        "scheduling.nodeSelector",
    )


def _accelerator(spec: Document) -> tuple[str, Mapping[str, Any] | None]:
    """Return where a spec asks for accelerators of its workers, and which; None where it asks for none."""
    for path, holder in (("worker.resources", _section(spec, "worker")), ("resources", spec)):
        found = _section(holder, "resources").get("accelerator")
        if isinstance(found, Mapping):
            return f"spec.{path}.accelerator", found
    return "", None


def _chooses_nodes(spec: Document) -> bool:
    """Return whether a job says itself on which nodes it runs."""
    scheduling = _section(spec, "scheduling")
    return bool(
        scheduling.get("nodeSelector") or scheduling.get("affinity") or _section(spec, "worker").get("nodeSelector")
    )


def _name_another(settings: Settings, *, has_gpus: bool) -> str:
    kind = "with accelerators" if has_gpus else "without accelerators"
    fitting = [
        name
        for name, profile in sorted(settings.profiles.items())
        if (_accelerator(profile)[1] is not None) == has_gpus
    ]
    return f"name a profile {kind} ({', '.join(fitting) or 'these settings have none'})"


def _section(holder: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = holder.get(name)
    return found if isinstance(found, Mapping) else {}
