"""What the release before froze for a job is still read, by the operator and by the trainer."""

from __future__ import annotations

import json

from bert_operator.api.parsing.validation import parse_job
from bert_operator.render.frozen import RUN_CONFIG_KEY, read_frozen
from bert_trainer.config.checks import parse_run_config
from kept_release import release_before


def test_the_trainer_reads_its_run_configuration() -> None:
    data = release_before().manifest("frozen-configmap")["data"]
    assert parse_run_config(json.loads(data[RUN_CONFIG_KEY])).world.ranks == 2


def test_the_operator_reads_its_spec() -> None:
    kept = release_before()
    job = kept.manifest("job")
    frozen = read_frozen(kept.manifest("frozen-configmap")["data"])
    assert parse_job({**job, "spec": frozen}).spec.workers == 2
