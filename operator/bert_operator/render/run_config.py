"""The run configuration of a job: its training with defaults resolved (bert_job.resolve), and where it runs. Pure."""

from __future__ import annotations

from functools import partial
from typing import Any

from bert_job.resolve import resolve_run
from bert_job.run_config import (
    DatasetConfig,
    JobIdentity,
    WorldConfig,
)
from bert_operator.api.schema.bert_pretrain_job import BertPretrainJob
from bert_operator.names import PREPARE_RUN
from bert_operator.state.runs import run_placement

Document = dict[str, Any]


def render_run_config(
    job: BertPretrainJob,
    *,
    uid: str,
    ranks: int,
    hosts: int,
    output_folder: str,
    data_base: str | None = None,
    in_pods: bool = False,
) -> Document:
    """Return the run configuration of a valid job.

    Args:
        job: The job.
        uid: Of the job, not of an attempt.
        ranks: What the launcher will start.
        hosts: What it will start them on.
        output_folder: Absolute, in the file system of the ranks.
        data_base: Folder that data paths are relative to; None: the working directory of the ranks.
        in_pods: Ranks have the devices that the job asks for, and none are to be done without.
    """
    spec = job.spec
    place = partial(place_path, base=data_base)
    accelerator = (spec.worker.resources or spec.resources).accelerator
    preparing = run_placement(spec, PREPARE_RUN)
    explicit = next((stage.prepare.num_processes for stage in spec.stages if stage.prepare is not None), None)
    config = resolve_run(
        spec,
        place,
        num_processes=preparing.slots if preparing.workers > 1 else explicit,
        delete_checkpoints=spec.run_policy.checkpoints_after_success == "Delete",
        job=JobIdentity(name=job.ref.name, namespace=job.ref.namespace, uid=uid),
        output_folder=output_folder,
        if_exists=spec.output.if_exists,
        world=WorldConfig(ranks=ranks, hosts=hosts),
        # Otherwise a pod whose driver is missing would train on its few cores, for weeks.
        device="cuda" if in_pods and accelerator is not None else "auto",
        gpu_memory_limit_gib=None if accelerator is None else accelerator.gpu_memory_limit_gib,
        dataset=DatasetConfig(
            folder=place(spec.dataset.path) or f"{output_folder}/data",
            vocabulary_file=place(spec.dataset.vocabulary_file),
            on_unreadable_shard=spec.dataset.on_unreadable_shard or "Stop",
        ),
    )
    return config.model_dump(mode="json")


def place_path(path: str | None, *, base: str | None) -> str | None:
    """Return a relative path below ``base``; absolute paths, builtin texts and None unchanged."""
    if path is None or base is None or path.startswith(("/", "builtin:")):
        return path
    return f"{base}/{path}"
