"""A job that has started runs what was frozen, whatever becomes of its profile."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from bert_operator.api.schema.status import JobStatus
from bert_operator.cluster.client import ApiError
from bert_operator.cluster.freezing import Freezer, Unusable
from bert_operator.cluster.reconciler import Reconciler
from bert_operator.cluster.settings import Settings
from bert_operator.cluster.settings_rules import read_cluster_job
from bert_operator.errors import InvalidJob
from bert_operator.render.frozen import data_hash, freeze, render_config_map
from sample_job import Document, sample_document

CLAIM = {"persistentVolumeClaim": {"claimName": "bert"}}
PROFILE: Document = {"slotsPerWorker": 4, "cpu": {"sockets": 2}, "output": {"volume": CLAIM}}
UID = "0f3c"


def job() -> Document:
    """A job that is sound only together with its profile."""
    document = sample_document(
        lambda spec: (spec.pop("slotsPerWorker"), spec.update(profile="p", cpu={"pinning": "socket"}))
    )
    document["metadata"] |= {"namespace": "default", "uid": UID}
    return document


def read(document: Document, config_map: Document | None) -> Any:
    """Read a started job under settings that have lost its profile."""

    async def get(path: str, **_: str) -> Document:
        if config_map is None:
            raise ApiError(404, "NotFound", path)
        return config_map

    reconciler = object.__new__(Reconciler)
    freezer = Freezer(SimpleNamespace(get=get), Settings())  # type: ignore[arg-type]
    reconciler.__dict__ |= {"_settings": Settings(), "_freezer": freezer}
    status = JobStatus(attempt=1, frozen_hash=data_hash(frozen()))
    return asyncio.run(reconciler._read(document, status))


def frozen() -> Document:
    settings = Settings(profiles={"p": PROFILE})
    return render_config_map(freeze(read_cluster_job(job(), settings), default_image="trainer"))


def test_it_goes_on_without_its_profile_as_it_was_frozen() -> None:
    document = job()
    document["spec"]["runPolicy"] = {"suspend": True}
    found = read(document, frozen())
    assert (found.spec.slots_per_worker, found.spec.cpu.sockets, found.spec.image) == (4, 2, "trainer")
    assert found.spec.run_policy.suspend, "what may change while it runs is the job's own"


def test_nothing_frozen_is_taken_from_another_job_of_its_name() -> None:
    foreign = frozen()
    foreign["metadata"]["ownerReferences"][0]["uid"] = "other"
    with pytest.raises(Unusable):
        read(job(), foreign)


def test_it_is_invalid_where_nothing_was_frozen() -> None:
    with pytest.raises(InvalidJob, match=r"spec\.profile"):
        read(job(), None)
