"""Fine-tuning in the sample job, for tests to change: what its stages are called in ``fixtures/jobs/rules``."""

from __future__ import annotations

import copy

from job_changes import JOBS, Change, Spec, load_anchors
from sample_job import EXPORT

_ANCHORS = load_anchors(JOBS / "rules/finetuning.yaml")
MRPC, OWN, SPANS, MODEL = (_ANCHORS[name] for name in ("mrpc", "own", "spans", "model"))


def finetune(base: Spec = MRPC, *, name: str = "task", **fields: object) -> Change:
    """Insert a finetune stage before the sample's export."""
    # A copy: later changes must not reach into the tables above.
    return lambda spec: spec["stages"].insert(EXPORT, {"name": name, "finetune": copy.deepcopy({**base, **fields})})


def data(base: Spec, **fields: object) -> Change:
    """Insert a finetune stage whose files differ in these fields."""
    return finetune(base, data={**base["data"], **fields})


def alone(start: Spec, **fields: object) -> Change:
    """Fine-tune and export, without data of pretraining."""

    def change(spec: Spec) -> None:
        finetune(**fields)(spec)
        spec["stages"] = spec["stages"][EXPORT:]
        spec["initialCheckpoint"] = dict(start)

    return change
