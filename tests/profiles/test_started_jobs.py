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
    document["metadata"] |= {"namespace": "default", "uid": UID, "generation": 3}
    return document


def read(
    document: Document, config_map: Document | None, *, profiles: Document | None = None, observed: int | None = None
) -> Any:
    """Read a started job.

    profiles: by default the settings have lost its profile. observed: generation that its status speaks of.
    """

    async def get(path: str, **_: str) -> Document:
        if config_map is None:
            raise ApiError(404, "NotFound", path)
        return config_map

    reconciler = object.__new__(Reconciler)
    freezer = Freezer(SimpleNamespace(get=get), Settings())  # type: ignore[arg-type]
    reconciler.__dict__ |= {"_settings": Settings(profiles=profiles or {}), "_freezer": freezer}
    status = JobStatus(attempt=1, frozen_hash=data_hash(frozen()), observed_generation=observed)
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


def test_nothing_frozen_is_taken_that_could_be_replaced_before_a_pod_mounts_it() -> None:
    with pytest.raises(Unusable):
        read(job(), {**frozen(), "immutable": False})


def test_it_is_invalid_where_nothing_was_frozen() -> None:
    with pytest.raises(InvalidJob, match=r"spec\.profile"):
        read(job(), None)


# With it the job breaks a rule: it binds to sockets, and nothing says how many there are.
CHANGED_PROFILE = {"p": {"slotsPerWorker": 4, "output": {"volume": CLAIM}}}


def test_rules_are_not_checked_again_for_a_generation_that_was_accepted() -> None:
    found = read(job(), None, profiles=CHANGED_PROFILE, observed=3)
    assert found.spec.slots_per_worker == 4


@pytest.mark.parametrize("observed", [None, 2])
def test_rules_are_checked_for_a_generation_that_no_status_speaks_of(observed: int | None) -> None:
    with pytest.raises(InvalidJob, match=r"spec\.cpu\.sockets"):
        read(job(), None, profiles=CHANGED_PROFILE, observed=observed)


def test_where_it_breaks_rules_by_now_it_goes_on_as_it_was_frozen() -> None:
    found = read(job(), frozen(), profiles=CHANGED_PROFILE, observed=2)
    assert found.spec.cpu.sockets == 2
