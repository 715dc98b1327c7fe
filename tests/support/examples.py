"""The manifests of examples/, the overlays that each is meant for, and what they are rendered to."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from bert_operator.api.parsing.documents import read_job_document
from bert_operator.cluster.render_command import NO_UID
from bert_operator.cluster.settings import Settings, load_settings
from bert_operator.cluster.settings_rules import read_cluster_job
from bert_operator.render.children import render_child
from bert_operator.render.frozen import freeze, render_config_map
from bert_operator.state.runs import ChildSpec, list_runs
from child_cases import Document, templates

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
OVERLAYS = ROOT / "deploy/kustomize/overlays"
NAMESPACE = "bert"  # of every overlay

_OVERLAYS = re.compile(r"^# Overlays: (.+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Example:
    """One manifest."""

    path: Path
    overlays: tuple[str, ...]
    """Folders of deploy/kustomize/overlays, as its head names them."""

    @property
    def name(self) -> str:
        """Its path below examples/, without ``/job.yaml`` or ``.yaml``: ``03-single-node``, ``10-nvidia/8-gpus``."""
        return self.path.relative_to(EXAMPLES).with_suffix("").as_posix().removesuffix("/job")


def list_examples() -> tuple[Example, ...]:
    """Return every manifest in the order of their names."""
    return tuple(Example(path, read_overlays(path.read_text())) for path in sorted(EXAMPLES.glob("*/*.yaml")))


def read_example(name: str) -> Document:
    """Return the document of one manifest."""
    (found,) = (example for example in list_examples() if example.name == name)
    return read_job_document(found.path)


def read_overlays(text: str) -> tuple[str, ...]:
    """Return the overlays that the head of a manifest names; the head ends with the first line that is no comment."""
    head = re.split(r"^[^#]", text, maxsplit=1, flags=re.MULTILINE)[0]
    found = _OVERLAYS.search(head)
    return tuple(found[1].split(", ")) if found else ()


@cache
def settings_of(overlay: str) -> Settings:
    """Return the operator's settings in an overlay."""
    return load_settings(OVERLAYS / overlay / "settings.yaml")


@dataclass(frozen=True, slots=True)
class Rendered:
    """What the operator creates for the first attempts at a job."""

    job: Document
    config_map: Document
    children: tuple[Document, ...]

    def pods(self) -> Iterator[Document]:
        """Yield a pod from each of the children's templates, named after its child and role."""
        for child in self.children:
            for role, template in templates(child):
                name = f"{child['metadata']['name']}-{role}"
                metadata = {**template["metadata"], "name": name, "namespace": NAMESPACE}
                yield {"apiVersion": "v1", "kind": "Pod", **template, "metadata": metadata}


def render(document: Document, overlay: str) -> Rendered:
    """Render a job as the operator of an overlay does; raises InvalidJob with everything that it refuses."""
    metadata = {**document["metadata"], "namespace": NAMESPACE}
    settings = settings_of(overlay)
    job = read_cluster_job({**document, "metadata": {**metadata, "uid": NO_UID}}, settings)
    frozen = freeze(job, default_image=settings.trainer_image)
    runs = list_runs(frozen.job)
    children = (ChildSpec(run=run.name, attempt=1, stages=run.stages, ranks=run.ranks) for run in runs)
    return Rendered(
        job={**document, "metadata": metadata},
        config_map=render_config_map(frozen),
        children=tuple(render_child(frozen, child) for child in children),
    )
