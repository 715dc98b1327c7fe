"""A run that an earlier release has begun goes on: its document means what this release would render for the same job.

Inputs: the examples' run configurations as contract version 1 had them. Observed: what the trainer reads.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bert_job.run_stages import PrepareStage
from bert_operator.api.parsing.validation import parse_job, parse_started_job
from bert_operator.errors import InvalidJob
from bert_trainer.config.checks import parse_run_config
from sample_job import sample_document

TESTS = Path(__file__).parents[1]
DOCUMENTS = json.loads((TESTS / "fixtures" / "run_configs_1.json").read_text())


def test_every_kept_document_is_of_the_earlier_version() -> None:
    assert {document["contract_version"] for document in DOCUMENTS.values()} == {1}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_document_of_version_1_means_the_same(name: str) -> None:
    today = json.loads((TESTS / "golden" / "run-config" / f"{name}.json").read_text())
    assert parse_run_config(DOCUMENTS[name]) == parse_run_config(today)


def test_a_started_job_that_would_go_back_to_a_checkpoint_skips() -> None:
    document = sample_document()
    document["spec"]["health"] = {"onUnhealthy": "Rollback", "onLoss": "Stop", "maxRollbacks": 3}
    health = parse_started_job(document).spec.health
    assert health is not None
    assert (health.on_unhealthy, health.on_loss) == ("Skip", "Stop")
    with pytest.raises(InvalidJob, match=r'onUnhealthy: got "Rollback"; allowed: Skip \| Stop'):
        parse_job(document)
    changed = {**DOCUMENTS[min(DOCUMENTS)], "health": {"on_unhealthy": "Rollback", "max_rollbacks": 3}}
    read = parse_run_config(changed).health
    assert read is not None
    assert read.on_unhealthy == "Skip"


def test_a_started_job_whose_data_has_a_layout_that_is_read_alone_goes_on() -> None:
    document = sample_document()
    document["spec"]["stages"][0]["prepare"]["layout"] = "tfrecord"
    prepare = parse_started_job(document).spec.stages[0].prepare
    assert prepare is not None
    assert prepare.layout == "compact"
    with pytest.raises(InvalidJob, match='layout: got "tfrecord"'):
        parse_job(document)
    name = next(name for name, kept in DOCUMENTS.items() if kept["stages"][0]["kind"] == "prepare")
    first, *others = DOCUMENTS[name]["stages"]
    kept = {**DOCUMENTS[name], "stages": [{**first, "layout": "mlperf-packed"}, *others]}
    (stage, *_) = parse_run_config(kept).stages
    assert isinstance(stage, PrepareStage)
    assert stage.layout == "compact"
