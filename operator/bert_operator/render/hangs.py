"""Environment variables that say when a rank has hung, and what follows. Pure."""

from __future__ import annotations

from bert_operator.api.schema.bert_pretrain_job import RunPolicy


def hang_environment(policy: RunPolicy) -> dict[str, str]:
    """Return the variables for ``bert-pod`` and the trainer; none where the job leaves it at the defaults.

    In the pods' environment, not in the run configuration, which is frozen: runPolicy may change between attempts.
    """
    found: dict[str, str] = {}
    if policy.on_hang is not None:
        found["BERT_ON_HANG"] = policy.on_hang
    if policy.hang_min_seconds is not None or policy.hang_max_seconds is not None:
        found["BERT_HANG_LIMITS_S"] = ",".join(map(str, policy.hang_limits))
    return found
