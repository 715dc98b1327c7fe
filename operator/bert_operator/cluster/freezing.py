"""The frozen configuration of a job in the cluster: written once, and trusted only if the operator wrote it.

Anyone who may write ConfigMaps in a namespace can replace it, with any owner and any annotation. So the hash of its
content goes into the job's status first, which only the operator may write, and a ConfigMap is trusted if it has that
hash. If the status has none, only a ConfigMap equal to what would be frozen now is trusted.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from bert_operator.api.schema.bert_pretrain_job import BertPretrainJob
from bert_operator.api.schema.conditions import BlockerReason
from bert_operator.api.schema.status import JobStatus
from bert_operator.cluster.client import ApiClient, ApiError
from bert_operator.cluster.paths import path_of
from bert_operator.cluster.settings import Settings
from bert_operator.cluster.settings_rules import frozen_problems, read_cluster_job
from bert_operator.errors import InvalidJob
from bert_operator.render import names
from bert_operator.render.frozen import Frozen, agrees, data_hash, freeze, render_config_map, thaw
from bert_operator.render.images import is_of_same_repository
from bert_operator.state.observed import Blocker

Document = dict[str, Any]
WriteHash = Callable[[str], Awaitable[None]]
"""Writes the hash into the job's status, against the version that was read."""

_START_AGAIN = "delete the job and apply it again: with output.ifExists Resume it goes on from its newest checkpoint"


class Unusable(Exception):
    """The frozen configuration is missing, untrusted or unreadable; ``blocker`` has cause and next step."""

    def __init__(self, blocker: Blocker) -> None:
        """Blocker: what to put into the status."""
        super().__init__(blocker.message)
        self.blocker = blocker


class Draft(NamedTuple):
    """What a job's configuration will be frozen from."""

    frozen: Frozen
    config_map: Document
    hash: str


class Freezer:
    """Writes and reads frozen configurations."""

    def __init__(self, api: ApiClient, settings: Settings) -> None:
        """Take the current settings, by which privileges are checked again before every attempt."""
        self._api = api
        self._settings = settings

    def draft(self, job: BertPretrainJob) -> Draft:
        """Return what to freeze for a job that passed all rules."""
        frozen = freeze(job, default_image=self._settings.trainer_image)
        config_map = render_config_map(frozen)
        return Draft(frozen, config_map, data_hash(config_map))

    # Both readers take the document, not the parsed job: a started job may not parse any more, and its name, uid and
    # runPolicy are all that is needed of it.

    async def find(self, document: Document, status: JobStatus) -> Frozen | None:
        """Return the frozen configuration of a started job; None if it has no ConfigMap.

        Raises:
            Unusable: The ConfigMap is not trusted, or cannot be read.
            ApiError: The API server did not answer.
        """
        config_map = await self._get(document)
        return None if config_map is None else self._read_trusted(config_map, document, status)

    async def obtain(self, document: Document, status: JobStatus, draft: Draft | None, write_hash: WriteHash) -> Frozen:
        """Return the configuration of the next attempt; freeze it first if nothing has run yet.

        Args:
            document: The job's.
            status: As written last.
            draft: Of the first attempt, with its hash in the status; None for every other attempt.
            write_hash: Writes another hash into the status.

        Raises:
            Unusable: Nothing may be run.
            ApiError: The API server refused, or did not answer.
        """
        # With a draft only a crash can have left one already, which create_or_get finds.
        config_map = None if draft else await self._get(document)
        if config_map is None:
            if _has_run(status):
                # Freezing again under the current settings could continue a run with another image or model.
                raise Unusable(_missing(document))
            draft = draft or self.draft(self._read_again(document))
            if draft.hash != status.frozen_hash:
                # A process wrote the attempt into the status and died before it created the ConfigMap; the settings
                # have changed since.
                await write_hash(draft.hash)
                status = status.model_copy(update={"frozen_hash": draft.hash})
            path = path_of("ConfigMap", draft.config_map["metadata"]["namespace"])
            config_map = await create_or_get(self._api, path, draft.config_map)
            # Otherwise it existed already: from before a crash, or planted in between. The checks below decide.
            if _is_as_drafted(config_map, draft) and _is_owned(config_map, document):
                return draft.frozen
        # As long as nothing has run, a ConfigMap that equals our own may be adopted, whoever wrote it.
        if not _is_trusted(config_map, status) and (status.frozen_hash is None or not _has_run(status)):
            self._check_same(config_map, document, status)
            await write_hash(data_hash(config_map))
            status = status.model_copy(update={"frozen_hash": data_hash(config_map)})
        frozen = self._read_trusted(config_map, document, status)
        # For every attempt: an administrator may have withdrawn a privilege since the job was started.
        problems = list(frozen_problems(document, frozen.document, self._settings))
        if problems:
            raise Unusable(_rejected(InvalidJob(problems)))
        return frozen

    def _read_again(self, document: Document) -> BertPretrainJob:
        """Return the job under the current settings, which may have changed since its attempt was written."""
        try:
            return read_cluster_job(document, self._settings)
        except InvalidJob as invalid:
            raise Unusable(_rejected(invalid)) from invalid

    def _read_trusted(self, config_map: Document, document: Document, status: JobStatus) -> Frozen:
        """Return the content of a ConfigMap if the operator wrote it for this job."""
        _check_owner(config_map, document)
        if not _is_trusted(config_map, status):
            raise Unusable(_untrusted(document, status))
        try:
            return thaw(document, config_map["data"])
        except (InvalidJob, KeyError, RecursionError, ValueError) as error:
            raise Unusable(_unreadable(document, error)) from error  # trusted, but written by a newer release

    def _check_same(self, config_map: Document, document: Document, status: JobStatus) -> None:
        """Raise Unusable unless a ConfigMap without a hash in the status equals what would be written now.

        The status is lost where a job is restored from a backup. runPolicy may differ.
        """
        _check_owner(config_map, document)
        try:
            job = read_cluster_job(document, self._settings)
        except InvalidJob as invalid:
            raise Unusable(_untrusted(document, status)) from invalid
        # Only an image that came from the settings may differ: they may have moved to another tag since.
        takes_default = job.spec.image is None and status.frozen_hash is None
        if not agrees(config_map, self.draft(job).frozen, lambda image: takes_default and self._was_default(image)):
            raise Unusable(_untrusted(document, status))

    def _was_default(self, image: str) -> bool:
        """Return whether an image may have been the default in an earlier release or under its settings."""
        return is_of_same_repository(image, self._settings.trainer_image)

    async def _get(self, document: Document) -> Document | None:
        metadata = document["metadata"]
        try:
            return await self._api.get(path_of("ConfigMap", metadata["namespace"], _name(document)))
        except ApiError as error:
            if error.status == 404:
                return None
            raise


async def create_or_get(api: ApiClient, path: str, document: Document) -> Document:
    """Create an object, or return the one that already has its name, whoever owns it.

    Not an apply: an existing object is somebody else's work, or our own from before a crash, and stays as it is.
    """
    try:
        return await api.create(path, document)
    except ApiError as error:
        if error.status != 409 or error.reason != "AlreadyExists":
            raise
    return await api.get(f"{path}/{document['metadata']['name']}")


async def get_or_create(api: ApiClient, path: str, document: Document) -> Document:
    """Return an object, or create it: for objects that usually exist."""
    try:
        return await api.get(f"{path}/{document['metadata']['name']}")
    except ApiError as error:
        if error.status != 404:
            raise
    return await create_or_get(api, path, document)


def _is_trusted(config_map: Document, status: JobStatus) -> bool:
    # A mutable ConfigMap could be replaced between this check and the moment in which a pod mounts it.
    return data_hash(config_map) == status.frozen_hash and config_map.get("immutable") is True


def _is_as_drafted(config_map: Document, draft: Draft) -> bool:
    """Return whether a ConfigMap is what was to be created, whose hash is in the status by then."""
    same = all(config_map.get(field) == draft.config_map[field] for field in ("data", "immutable"))
    return same and not config_map.get("binaryData")


def _has_run(status: JobStatus) -> bool:
    """Return whether the status shows that a child of the job ever existed."""
    return status.child is not None or bool(status.failures or status.completed_runs)


def _name(document: Document) -> str:
    return names.config_map_name(document["metadata"]["name"])


def _is_owned(config_map: Document, document: Document) -> bool:
    owners = {owner.get("uid") for owner in config_map["metadata"].get("ownerReferences") or ()}
    return document["metadata"]["uid"] in owners


def _check_owner(config_map: Document, document: Document) -> None:
    if not _is_owned(config_map, document):
        message = f"ConfigMap {_name(document)} exists and is not this job's. Next: delete it, or rename the job"
        raise Unusable(Blocker(reason=BlockerReason.NAME_TAKEN, message=message))


def _missing(document: Document) -> Blocker:
    reason = BlockerReason.FROZEN_CONFIGURATION_MISSING
    message = f"{reason.sentence} Next: restore ConfigMap {_name(document)}, or {_START_AGAIN}"
    return Blocker(reason=reason, message=message)


def _untrusted(document: Document, status: JobStatus) -> Blocker:
    reason = BlockerReason.FROZEN_CONFIGURATION_UNTRUSTED
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
    reason = BlockerReason.FROZEN_CONFIGURATION_UNREADABLE
    cause = "; ".join(map(str, error.problems)) if isinstance(error, InvalidJob) else str(error)
    message = f"{reason.sentence} Next: run the release of the operator that has started it, or {_START_AGAIN}. {cause}"
    return Blocker(reason=reason, message=f"{_name(document)}: {message}")


def _rejected(invalid: InvalidJob) -> Blocker:
    return Blocker(reason=BlockerReason.REJECTED, message="; ".join(map(str, invalid.problems)))
