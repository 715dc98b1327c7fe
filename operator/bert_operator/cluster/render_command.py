"""``bert-operator render`` and ``check`` for a cluster: a job as an operator with these settings reads it."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from bert_operator.api.parsing.documents import read_job_document
from bert_operator.api.schema.bert_pretrain_job import BertPretrainJob
from bert_operator.cluster.settings import Settings, load_settings
from bert_operator.cluster.settings_rules import read_cluster_job
from bert_operator.render.children import render_child
from bert_operator.render.frozen import RUN_CONFIG_KEY, Frozen, freeze, render_config_map, spec_document
from bert_operator.state.runs import ChildSpec, list_runs

Document = dict[str, Any]

SHOWN = ("run-config", "job", "objects")

NO_UID = "00000000-0000-0000-0000-000000000000"


@dataclass(frozen=True, slots=True)
class ClusterJob:
    """A job, completed by its profile, and the settings that it was read under."""

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
            return _yaml({**head, "metadata": metadata, "spec": spec_document(frozen.job)})
        children = (
            ChildSpec(run=run.name, attempt=1, stages=run.stages, ranks=run.ranks) for run in list_runs(frozen.job)
        )
        return _yaml(render_config_map(frozen), *(render_child(frozen, child) for child in children))

    def _freeze(self) -> Frozen:
        metadata = self.job.metadata.model_copy(update={"uid": NO_UID})
        job = self.job.model_copy(update={"metadata": metadata})
        return freeze(job, default_image=self.settings.trainer_image)


def read_for_cluster(path: Path, settings: Path | None) -> ClusterJob:
    """Read a job file and the operator's settings; None: all defaults.

    Raises:
        OperatorError: One of the files is invalid, or the operator would reject the job.
    """
    known = load_settings(settings)
    return ClusterJob(read_cluster_job(read_job_document(path), known), known)


def _yaml(*documents: Document) -> str:
    writer = YAML(typ="safe", pure=True)
    writer.default_flow_style = False
    writer.sort_base_mapping_type_on_output = False  # type: ignore[assignment]  # keep the documents' order
    stream = io.StringIO()
    writer.dump_all(documents, stream)
    return stream.getvalue().rstrip("\n")
