"""Keeps the NetworkPolicy of a job as the settings want it, from before its first pod on."""

from __future__ import annotations

from typing import Any

from bert_operator.api.schema.bert_pretrain_job import BertPretrainJob
from bert_operator.api.schema.conditions import BlockerReason
from bert_operator.cluster.client import ApiClient, ApiError
from bert_operator.cluster.freezing import Unusable, create_or_get, get_or_create
from bert_operator.cluster.paths import path_of
from bert_operator.cluster.settings import Settings
from bert_operator.render import names
from bert_operator.render.frozen import Frozen
from bert_operator.render.network_policy import render_network_policy
from bert_operator.state.observed import Blocker

Document = dict[str, Any]


class NetworkPolicies:
    """Creates and updates the NetworkPolicies of jobs; stateless."""

    def __init__(self, api: ApiClient, settings: Settings) -> None:
        """Take the current settings, which decide anew before every attempt."""
        self._api = api
        self._settings = settings

    def list_names(self, job: BertPretrainJob) -> list[tuple[str, str]]:
        """Return kind and name of the objects that ``ensure`` would create."""
        is_made = self._settings.job_network_policy and not job.spec.network.host_network
        return [("NetworkPolicy", names.network_policy_name(job.ref.name))] if is_made else []

    async def ensure(self, frozen: Frozen, *, is_first: bool) -> None:
        """Create or update a job's NetworkPolicy, unless the settings disable it or the job uses hostNetwork.

        One that an attempt has left is corrected, since settings change, and people's changes to it are lost: what a
        job may do beyond it belongs into a policy of its own. The garbage collector deletes it with the job.

        Args:
            frozen: What the job runs.
            is_first: Whether the pods are those of its first attempt, before which there is no policy yet.

        Raises:
            Unusable: An object of another owner has its name, or nothing may be written; no pod is to start then.
            ApiError: The API server refused, or did not answer.
        """
        if not self._settings.job_network_policy:
            return
        wanted = render_network_policy(
            frozen,
            monitoring_namespace=self._settings.monitoring_namespace,
            proxies=self._settings.seen_from(frozen.job.ref.namespace).list_proxies(),
            egress=self._settings.job_egress,
        )
        if wanted is None:
            return
        path = path_of("NetworkPolicy", frozen.job.ref.namespace)
        try:
            found = await (create_or_get if is_first else get_or_create)(self._api, path, wanted)
            if not _is_owned(found, frozen):
                raise Unusable(_name_taken(wanted))
            if found["spec"] != wanted["spec"]:
                version = {"resourceVersion": found["metadata"]["resourceVersion"]}
                document = {**wanted, "metadata": {**wanted["metadata"], **version}}
                await self._api.replace(f"{path}/{wanted['metadata']['name']}", document)
        except ApiError as error:
            if error.status != 403:
                raise
            raise Unusable(_forbidden(error)) from error


def _is_owned(found: Document, frozen: Frozen) -> bool:
    return frozen.uid in {owner.get("uid") for owner in found["metadata"].get("ownerReferences") or ()}


def _name_taken(wanted: Document) -> Blocker:
    name = wanted["metadata"]["name"]
    message = f"NetworkPolicy {name} exists and is not this job's. Next: delete it, or rename the job"
    return Blocker(reason=BlockerReason.NAME_TAKEN, message=message)


def _forbidden(error: ApiError) -> Blocker:
    # Without the policy no pod starts: who has switched it on relies on it.
    message = (
        f"The operator may not write the job's NetworkPolicy: {error.message}. Next: grant it get, create and update "
        "on networkpolicies of networking.k8s.io, as the roles that come with this release do, or set "
        "jobNetworkPolicy: false in its settings"
    )
    return Blocker(reason=BlockerReason.FORBIDDEN, message=message)
