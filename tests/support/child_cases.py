"""Jobs whose children are looked at: as golden files, by the API server and by mpi-operator.

Each is the sample job with results on a claim, changed in one respect (``fixtures/jobs/children.yaml``). ``security``
is the strictest Pod Security level that its pods meet.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from bert_operator.api.parsing.validation import parse_job
from bert_operator.api.schema.bert_pretrain_job import BertPretrainJob
from bert_operator.errors import InvalidJob
from bert_operator.names import TRAINING_RUN
from bert_operator.render.children import render_child
from bert_operator.render.frozen import Frozen, freeze
from bert_operator.state.runs import ChildSpec, list_runs
from job_changes import JOBS, both, load_entries, patched, put
from job_documents import draw_document
from sample_job import Document, sample_document

IMAGE = "registry.example.com/bert-trainer:1"
UID = "0b5c3a1e-6a1d-4d55-9b7e-2f6f3a1d2c3b"
DRAWN = 1500

Level = Literal["restricted", "baseline", "privileged"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildCase:
    """A job, the run whose child is looked at, and what Pod Security says of its pods."""

    change: Mapping[str, Any]
    """A patch of its spec (``job_changes``)."""
    run: str = TRAINING_RUN
    attempt: int = 1
    security: Level = "restricted"
    refused_for: str = ""
    """Of the refusal in a stricter namespace."""


def claim(name: str, **fields: object) -> Document:
    return {"persistentVolumeClaim": {"claimName": name}, **fields}


CHILD_CASES = {name: ChildCase(**case) for name, case in load_entries(JOBS / "children.yaml").items()}


def case_job(name: str, namespace: str = "default") -> BertPretrainJob:
    """Return the job of a case as the API server would hand it out."""
    document = sample_document(both(put("output", "volume", value=claim("results")), patched(CHILD_CASES[name].change)))
    document["metadata"] |= {"namespace": namespace, "uid": UID}
    return parse_job(document)


@cache
def every_job() -> tuple[BertPretrainJob, ...]:
    """Return the jobs of all cases and those of so many drawn documents that are valid, most with several workers."""
    found = [case_job(name) for name in CHILD_CASES]
    for number in range(DRAWN):
        document = draw_document(number)
        with contextlib.suppress(InvalidJob, KeyError, TypeError):
            document["metadata"]["uid"] = UID
            if number % 3:
                document["spec"]["workers"] = 2 + number % 5
            found.append(parse_job(document))
    return tuple(found)


def case_frozen(name: str, namespace: str = "default") -> Frozen:
    """Return what its attempts are rendered from."""
    return freeze(case_job(name, namespace), default_image=IMAGE)


def case_child(name: str, namespace: str = "default") -> Document:
    """Return its child."""
    case, frozen = CHILD_CASES[name], case_frozen(name, namespace)
    return render_child(frozen, child_of(frozen, case.run, case.attempt))


def child_of(frozen: Frozen, run: str, attempt: int) -> ChildSpec:
    """Return the attempt at a run of a job."""
    (found,) = (each for each in list_runs(frozen.job) if each.name == run)
    return ChildSpec(run=run, attempt=attempt, stages=found.stages, ranks=found.ranks)


def templates(child: Document) -> Iterator[tuple[str, Document]]:
    """Yield the role and the pod template of every kind of pod that a child has."""
    if child["kind"] == "Job":
        yield "single", child["spec"]["template"]
    for role, replicas in child["spec"].get("mpiReplicaSpecs", {}).items():
        yield role.lower(), replicas["template"]


def container(template: Document) -> Any:
    """Return a template's only container."""
    (only,) = template["spec"]["containers"]
    return only
