"""``bert-operator render`` and ``check`` for a cluster: a job as an operator with these settings reads it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert_operator.api.schema.bert_pretrain_job import BertPretrainJob
from bert_operator.cluster.settings import Settings
from bert_operator.cluster.settings_rules import read_cluster_job
from bert_operator.names import is_managed_elsewhere
from bert_operator.render.children import render_child
from bert_operator.render.frozen import RUN_CONFIG_KEY, Frozen, freeze, render_config_map
from bert_operator.render.network_policy import render_network_policy
from bert_operator.state.runs import ChildSpec, list_runs
from bert_operator.yaml_text import render_yaml

Document = dict[str, Any]

SHOWN = ("run-config", "job", "objects")

NO_UID = "00000000-0000-0000-0000-000000000000"


@dataclass(frozen=True, slots=True)
class ClusterJob:
    """A job completed by its profile, with the settings that apply to it."""

    job: BertPretrainJob
    settings: Settings

    def show(self, what: str) -> str:
        """Return one of ``SHOWN``, without a final line break: JSON for the trainer, or YAML for kubectl."""
        frozen = self._freeze()
        if what == "run-config":
            text: str = render_config_map(frozen)["data"][RUN_CONFIG_KEY]
            return text
        if what == "job":
            head = {"apiVersion": frozen.job.api_version, "kind": frozen.job.kind}
            metadata = {"name": frozen.job.ref.name, "namespace": frozen.job.ref.namespace}
            return write_job({**head, "metadata": metadata, "spec": frozen.document})
        if is_managed_elsewhere(frozen.document):
            return f"# Nothing: spec.managedBy is {frozen.job.spec.managed_by}; the operator leaves such a job alone"
        listed = _list_objects(frozen, self.settings)
        return "\n".join(f"---\n# {remark}\n{write_job(document)}" for remark, document in listed)

    def _freeze(self) -> Frozen:
        metadata = self.job.metadata.model_copy(update={"uid": NO_UID})
        job = self.job.model_copy(update={"metadata": metadata})
        return freeze(job, default_image=self.settings.trainer_image)


def _list_objects(frozen: Frozen, settings: Settings) -> Iterator[tuple[str, Document]]:
    """Yield everything that the operator creates if no attempt fails, in order, and when it does."""
    yield "before the first attempt, once: every attempt of every run reads it", render_config_map(frozen)
    if settings.job_network_policy:
        policy = render_network_policy(
            frozen,
            monitoring_namespace=settings.monitoring_namespace,
            proxies=settings.seen_from(frozen.job.ref.namespace).list_proxies(),
            egress=settings.job_egress,
        )
        if policy is not None:
            yield "before every attempt: whom the pods of this job reach, and who reaches them", policy
    before = ""
    for run in list_runs(frozen.job):
        child = ChildSpec(run=run.name, attempt=1, stages=run.stages, ranks=run.ranks)
        when = f"once {before} has succeeded" if before else "when the job starts"
        if frozen.job.spec.queue_name:
            when += f", suspended until Kueue admits it from queue {frozen.job.spec.queue_name}"
        stages = f"stage{'s' if len(run.stages) > 1 else ''} {', '.join(run.stages)}"
        document = render_child(frozen, child)
        made = "; mpi-operator makes its pods" if document["kind"] == "MPIJob" else ""
        retries = "retries are the same as a2, a3, ..."
        yield f"{when}: {stages}, {run.ranks} rank{'s' if run.ranks > 1 else ''}{made}; {retries}", document
        before = f"the run {run.name}"


def read_for_cluster(document: Document, settings: Settings) -> ClusterJob:
    """Read a job's document as an operator with these settings does.

    Raises:
        InvalidJob: The operator would reject the job.
    """
    return ClusterJob(read_cluster_job(document, settings), settings)


def describe_settings(path: Path | None, job: BertPretrainJob, settings: Settings) -> str:
    """Describe the settings that a job was checked against, and the profile that completed it."""
    profile = job.spec.profile or settings.default_profile
    by = "the operator's default settings (--settings FILE for those of your cluster)" if path is None else str(path)
    return f"{by}, {f'profile {profile}' if profile else 'no profile'}"


def write_job(document: Document) -> str:
    """Return a job, or another object, as YAML that kubectl takes, without a final line break."""
    return render_yaml(document).rstrip("\n")
