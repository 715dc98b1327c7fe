"""The frozen configuration of a job in the cluster: written once, and believed only if the operator wrote it.

Whoever may write ConfigMaps in a namespace can put another one in its place, under any owner and with any annotation.
So the hash of what it holds goes into the job's status first, which only the operator may write; what the ConfigMap
holds counts if it has that hash. Where the status has none, nothing counts but what would be frozen now.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from bert_operator.api.schema.bert_pretrain_job import BertPretrainJob
from bert_operator.api.schema.conditions import ObstacleReason
from bert_operator.api.schema.status import JobStatus
from bert_operator.cluster.client import ApiClient, ApiError
from bert_operator.cluster.images import is_of_same_repository
from bert_operator.cluster.paths import path_of
from bert_operator.cluster.settings import EARLIER_TRAINER_IMAGES, Settings
from bert_operator.cluster.settings_rules import frozen_problems, read_cluster_job
from bert_operator.errors import InvalidJob
from bert_operator.render import names
from bert_operator.render.frozen import Frozen, agrees, data_hash, freeze, render_config_map, spec_document, thaw
from bert_operator.state.observed import Blocker

Document = dict[str, Any]
WriteHash = Callable[[str], Awaitable[None]]
"""Puts the hash into the job's status, over the version that was read."""

_START_AGAIN = "delete the job and apply it again: with output.ifExists Resume it goes on from its newest checkpoint"


class Unusable(Exception):
    """The frozen configuration must not, or cannot, be used; ``blocker`` says why and what next."""

    def __init__(self, blocker: Blocker) -> None:
        """Blocker: what to put into the status."""
        super().__init__(blocker.message)
        self.blocker = blocker


class Draft(NamedTuple):
    """What a job is to be frozen with."""

    frozen: Frozen
    config_map: Document
    hash: str


class Freezer:
    """Writes frozen configurations and reads them back."""

    def __init__(self, api: ApiClient, settings: Settings) -> None:
        """Settings: of now, by which everything is judged again."""
        self._api = api
        self._settings = settings

    def draft(self, job: BertPretrainJob) -> Draft:
        """Return what a job that passed all rules is to be frozen with."""
        frozen = freeze(job, default_image=self._settings.trainer_image)
        config_map = render_config_map(frozen)
        return Draft(frozen, config_map, data_hash(config_map))

    async def find(self, document: Document, status: JobStatus) -> Frozen | None:
        """Return what a started job was frozen with; None where there is nothing.

        Raises:
            Unusable: there is something else, or what there is cannot be read.
            ApiError: the API server did not answer.
        """
        config_map = await self._get(document)
        return None if config_map is None else self._believe(config_map, document, status)

    async def obtain(self, document: Document, status: JobStatus, draft: Draft | None, write_hash: WriteHash) -> Frozen:
        """Return what the next attempt is made from; freezes the job where nothing has run yet.

        status: as written last. draft: of the first attempt, its hash in the status; None where that was made before.

        Raises:
            Unusable: nothing may be run.
            ApiError: the API server refused, or did not answer.
        """
        config_map = None if draft else await self._get(document)
        if config_map is None:
            if _has_run(status):
                raise Unusable(_missing(document))
            draft = draft or self.draft(self._judge(document))
            if draft.hash != status.frozen_hash:
                # Written down by a process that died before it froze anything, under settings that were others.
                await write_hash(draft.hash)
                status = status.model_copy(update={"frozen_hash": draft.hash})
            path = path_of("ConfigMap", draft.config_map["metadata"]["namespace"])
            config_map = await create_or_get(self._api, path, draft.config_map)
            if _is_believed(config_map, status) and _is_owned(config_map, document):
                return draft.frozen
        if not _is_believed(config_map, status) and (status.frozen_hash is None or not _has_run(status)):
            self._check_same(config_map, document, status)
            await write_hash(data_hash(config_map))
            status = status.model_copy(update={"frozen_hash": data_hash(config_map)})
        frozen = self._believe(config_map, document, status)
        problems = list(frozen_problems(document, spec_document(frozen.job), self._settings))
        if problems:
            raise Unusable(_rejected(InvalidJob(problems)))
        return frozen

    def _judge(self, document: Document) -> BertPretrainJob:
        """Return a job by the settings of now, which may be others than when its attempt was written down."""
        try:
            return read_cluster_job(document, self._settings)
        except InvalidJob as invalid:
            raise Unusable(_rejected(invalid)) from invalid

    def _believe(self, config_map: Document, document: Document, status: JobStatus) -> Frozen:
        """Return what a ConfigMap holds if the operator wrote it for this job."""
        _check_owner(config_map, document)
        if not _is_believed(config_map, status):
            raise Unusable(_untrusted(document, status))
        try:
            return thaw(document, config_map["data"])
        except (InvalidJob, KeyError, RecursionError, ValueError) as error:
            raise Unusable(_unreadable(document, error)) from error

    def _check_same(self, config_map: Document, document: Document, status: JobStatus) -> None:
        """Raise Unusable unless a ConfigMap that nothing vouches for is what would be written now.

        Nothing vouches for that of a job which release 0.1.0 has started, or whose status was lost. What runPolicy was
        when it was written makes no difference.
        """
        _check_owner(config_map, document)
        try:
            job = read_cluster_job(document, self._settings)
        except InvalidJob as invalid:
            raise Unusable(_untrusted(document, status)) from invalid
        takes_default = job.spec.image is None and status.frozen_hash is None
        if not agrees(config_map, self.draft(job).frozen, lambda image: takes_default and self._was_default(image)):
            raise Unusable(_untrusted(document, status))

    def _was_default(self, image: str) -> bool:
        """Tell whether an image may have been that of jobs that name none, in the release before or its settings."""
        return image in EARLIER_TRAINER_IMAGES or is_of_same_repository(image, self._settings.trainer_image)

    async def _get(self, document: Document) -> Document | None:
        metadata = document["metadata"]
        try:
            return await self._api.get(path_of("ConfigMap", metadata["namespace"], _name(document)))
        except ApiError as error:
            if error.status == 404:
                return None
            raise


async def create_or_get(api: ApiClient, path: str, document: Document) -> Document:
    """Create an object; return the one that has the name already, whosever it is."""
    try:
        return await api.create(path, document)
    except ApiError as error:
        if error.status != 409 or error.reason != "AlreadyExists":
            raise
    return await api.get(f"{path}/{document['metadata']['name']}")


def _is_believed(config_map: Document, status: JobStatus) -> bool:
    # What can be changed may be another thing by the time that a pod reads it.
    return data_hash(config_map) == status.frozen_hash and config_map.get("immutable") is True


def _has_run(status: JobStatus) -> bool:
    """Tell whether anybody ever saw a child of the job."""
    return status.child is not None or bool(status.failures or status.completed_runs)


def _name(document: Document) -> str:
    return names.config_map_name(document["metadata"]["name"])


def _is_owned(config_map: Document, document: Document) -> bool:
    owners = {owner.get("uid") for owner in config_map["metadata"].get("ownerReferences") or ()}
    return document["metadata"]["uid"] in owners


def _check_owner(config_map: Document, document: Document) -> None:
    if not _is_owned(config_map, document):
        message = f"ConfigMap {_name(document)} exists and is not this job's. Next: delete it, or rename the job"
        raise Unusable(Blocker(reason=ObstacleReason.NAME_TAKEN, message=message))


def _missing(document: Document) -> Blocker:
    reason = ObstacleReason.FROZEN_CONFIGURATION_MISSING
    message = f"{reason.sentence} Next: restore ConfigMap {_name(document)}, or {_START_AGAIN}"
    return Blocker(reason=reason, message=message)


def _untrusted(document: Document, status: JobStatus) -> Blocker:
    reason = ObstacleReason.FROZEN_CONFIGURATION_UNTRUSTED
    name = _name(document)
    if status.frozen_hash is None:
        found = (
            f"status.frozenHash is empty, so ConfigMap {name} would have to hold what is frozen by the settings of now"
        )
        remedy = f"have trainerImage and profiles as they were until the job is done, or {_START_AGAIN}"
    else:
        found = f"ConfigMap {name} can be changed, or has another hash than status.frozenHash"
        remedy = f"restore it as it was, or {_START_AGAIN}" if _has_run(status) else "delete it"
    return Blocker(reason=reason, message=f"{reason.sentence} Found: {found}. Next: {remedy}")


def _unreadable(document: Document, error: Exception) -> Blocker:
    reason = ObstacleReason.FROZEN_CONFIGURATION_UNREADABLE
    told = "; ".join(map(str, error.problems)) if isinstance(error, InvalidJob) else str(error)
    message = f"{reason.sentence} Next: run the release of the operator that has started it, or {_START_AGAIN}. {told}"
    return Blocker(reason=reason, message=f"{_name(document)}: {message}")


def _rejected(invalid: InvalidJob) -> Blocker:
    return Blocker(reason=ObstacleReason.REJECTED, message="; ".join(map(str, invalid.problems)))
