"""The rule that a spec stays as it is once its job has started. The API server alone can check it: it knows both specs.

Who manages a job stays from the beginning: two controllers would have it otherwise, each with pods of its own.

The controller does not look: it runs what the first attempt has frozen (``render.frozen``).
"""

from __future__ import annotations

from bert_job.rules.cel import CelRule, describe
from bert_operator.api.schema.bert_pretrain_job import JobSpec

MUTABLE = ("runPolicy",)
"""Fields of the spec that may change once the job has started."""
_ALWAYS = ("managedBy",)
"""Fields of the spec that may not change before either."""

# The status is a subresource: a write to the job itself leaves it as it is, so no user can start over by clearing it.
_STARTED = "has(oldSelf.status) && has(oldSelf.status.attempt) && oldSelf.status.attempt > 0"
# Lists whose entries have names are equal in any order, but stages are done in theirs.
_SAME_ORDER = "self.spec.stages.map(stage, stage.name) == oldSelf.spec.stages.map(stage, stage.name)"


def immutability_rules() -> tuple[CelRule, ...]:
    """Return one rule per field of the spec that must not change; over the root, where the status is in sight."""
    # A rule with oldSelf is evaluated on updates alone. One rule for each field, so that the message names it.
    fields = [field.alias or name for name, field in JobSpec.model_fields.items()]
    return tuple(
        CelRule(
            (_stays(name) if name in _ALWAYS else f"!({_STARTED}) || ({_stays(name)})")
            + (f" && {_SAME_ORDER}" if name == "stages" else ""),
            describe(
                f"the value that the job was {'created' if name in _ALWAYS else 'started'} with",
                f"{'' if name in _ALWAYS else 'change runPolicy only, or '}delete the job and create another one",
            ),
            f"spec.{name}",
            "FieldValueForbidden",
        )
        for name in fields
        if name not in MUTABLE
    )


def _stays(name: str) -> str:
    # has() on both sides: a field that is added or removed has changed, and reading one that is absent is an error.
    return (
        f"has(self.spec.{name}) == has(oldSelf.spec.{name}) && "
        f"(!has(self.spec.{name}) || self.spec.{name} == oldSelf.spec.{name})"
    )
