"""Names that the operator gives or limits: jobs, runs, and how long they may be. Strings only, no I/O."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

API_GROUP = "bert-operator.dev"
API_VERSION = f"{API_GROUP}/v1alpha1"
KIND = "BertPretrainJob"
UNSEEN_GENERATION = -1
"""``status.observedGeneration`` of a job that no operator has looked at."""

OUTPUT_ANNOTATION = f"{API_GROUP}/output-folder"
"""Of a job of this machine: its output folder, absolute."""

# Both stand in labels of children: under other names those of running jobs would not be found after an upgrade.
PREPARE_RUN = "prepare"
TRAINING_RUN = "training"

CONTAINER = "trainer"
"""Of every pod, whatever others add beside it."""

SIDECAR_LABEL = "sidecar.istio.io/inject"
"""Of every pod, ``false``: Istio's sidecar would intercept the connections between ranks."""

MAX_JOB_NAME = 45
"""Characters. A child is called after its job and attempt (``-a12``), its launcher's host name adds
``-launcher``, and a host name ends at 63; the rest is spare for the suffixes that Kubernetes draws."""


MANAGER = f"{API_GROUP}/operator"
"""Whom ``spec.managedBy`` names in a job that this operator carries out, as it does where nobody is named."""


def is_managed_elsewhere(spec: object) -> bool:
    """Return whether another controller carries out the job with this spec, which nobody may have checked."""
    manager = spec.get("managedBy") if isinstance(spec, Mapping) else None
    # Whatever its name: a newer definition may allow managers that this release does not know.
    return manager is not None and manager != MANAGER


class JobRef(NamedTuple):
    """Namespace and name of a job; used as a key."""

    namespace: str
    name: str

    def __str__(self) -> str:
        """Render as ``namespace/name``, for people."""
        return f"{self.namespace}/{self.name}"
