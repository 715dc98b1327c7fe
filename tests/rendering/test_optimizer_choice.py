"""The optimizer of a job that names none: by its largest batch, chosen once, the same for every attempt and --small.

Inputs: jobs, and ConfigMaps as releases leave them. Observed: run configurations, frozen specs, remarks.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bert_job.optimizers import MAX_ADAMW_BATCH, PUBLISHED
from bert_operator.api.crd import render_crd
from bert_operator.api.parsing.validation import advise, parse_job, parse_started_job
from bert_operator.api.schema.bert_pretrain_job import BertPretrainJob
from bert_operator.api.small_job import SmallJobTarget, shrink
from bert_operator.local.command import keep_started_optimizer
from bert_operator.render.frozen import Frozen, freeze, render_config_map, thaw
from bert_operator.render.run_config import render_run_config
from examples import list_examples, read_example
from job_changes import both, pretrain, put
from sample_job import PHASE1, Document, sample_document, sample_job

IMAGE = "registry.invalid/trainer:1"


def with_batches(*batches: int, name: str | None = None) -> Callable[[Document], None]:
    """Return a change: one pretrain stage for each batch, and an optimizer if one is named."""

    def change(spec: Document) -> None:
        first = spec["stages"][PHASE1]
        spec["stages"][PHASE1 : PHASE1 + 1] = [
            {"name": f"phase{number}", "pretrain": {**first["pretrain"], "globalBatchSize": batch}}
            for number, batch in enumerate(batches, 1)
        ]
        if name is not None:
            spec["optimizer"] = {"name": name}

    return change


def rendered(job: BertPretrainJob) -> Document:
    return render_run_config(job, uid="u", ranks=2, hosts=1, output_folder="/out")


def named(job: BertPretrainJob) -> Any:
    return rendered(job)["optimizer"]["name"]


@pytest.mark.parametrize(
    ("batches", "chosen", "state"),
    [
        ((64,), "adamw", "keepWithStepCount"),
        ((256, 128), "adamw", "keepWithStepCount"),
        ((8192,), "adamw", "keepWithStepCount"),
        ((8193,), "lamb", "keep"),
        # The largest one decides, wherever it stands: a state is carried from stage to stage.
        ((64, 65_536), "lamb", "keep"),
        ((65_536, 64), "lamb", "keep"),
    ],
)
def test_the_largest_batch_decides(batches: tuple[int, ...], chosen: str, state: str) -> None:
    document = rendered(sample_job(with_batches(*batches)))
    assert document["optimizer"]["name"] == chosen
    assert {it["optimizer_state"] for it in document["stages"] if it["kind"] == "pretrain"} == {state}


@pytest.mark.parametrize("batch", [64, 65_536])
@pytest.mark.parametrize("name", ["adamw", "lamb"])
def test_an_optimizer_that_is_named_is_taken(name: str, batch: int) -> None:
    assert named(sample_job(with_batches(batch, name=name))) == name


def test_settings_without_a_name_leave_it_open() -> None:
    document = rendered(sample_job(put("optimizer", value={"weightDecay": 0.1})))
    assert (document["optimizer"]["name"], document["optimizer"]["weight_decay"]) == ("adamw", 0.1)


def test_a_job_without_pretraining_keeps_the_document_that_it_has_always_had() -> None:
    assert named(parse_job(read_example("15-squad"))) == "lamb"
    document = read_example("15-squad")
    small = shrink(document, parse_job(document), SmallJobTarget(has_path=lambda _: True, in_cluster=False))
    assert "optimizer" not in small.document["spec"]


def test_the_definition_writes_no_name_into_jobs() -> None:
    (version,) = render_crd()["spec"]["versions"]
    spec = version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    assert "default" not in spec["optimizer"]["properties"]["name"]
    assert "name" not in spec["optimizer"].get("default", {})


@pytest.mark.parametrize("example", list_examples(), ids=lambda example: example.name)
def test_every_example_that_pretrains_names_its_optimizer(example: Any) -> None:
    job = parse_job(read_example(example.name))
    if any(stage.pretrain for stage in job.spec.stages):
        assert job.spec.optimizer.name is not None


def frozen_job(change: Callable[[Document], object]) -> Frozen:
    document = sample_document(change)
    document["metadata"] |= {"namespace": "team", "uid": "uid-1"}
    return freeze(parse_job(document), default_image=IMAGE)


@pytest.mark.parametrize(("batch", "chosen"), [(64, "adamw"), (65_536, "lamb")])
def test_the_choice_is_frozen(batch: int, chosen: str) -> None:
    config_map = render_config_map(frozen_job(with_batches(batch)))
    assert json.loads(config_map["data"]["spec.json"])["optimizer"]["name"] == chosen
    assert json.loads(config_map["data"]["run-config.json"])["optimizer"]["name"] == chosen


def test_a_retry_runs_what_was_frozen_and_not_what_would_be_chosen_now() -> None:
    before = render_config_map(frozen_job(with_batches(64, name="lamb")))
    # As its owner wrote it: without a name.
    document = {**sample_document(with_batches(64)), "metadata": {"name": "demo", "namespace": "team", "uid": "uid-1"}}
    again = thaw(document, before["data"])
    assert again.job.spec.optimizer.name == "lamb"
    assert render_config_map(again)["data"] == before["data"]


def test_a_started_job_is_read_without_a_name() -> None:
    assert parse_started_job(sample_document()).spec.optimizer.name is None


@pytest.mark.parametrize("in_cluster", [False, True])
@pytest.mark.parametrize(
    ("change", "chosen"),
    [
        (with_batches(64), "adamw"),
        (with_batches(65_536, 32_768), "lamb"),
        (with_batches(64, name="lamb"), "lamb"),
        (with_batches(65_536, name="adamw"), "adamw"),
        (both(with_batches(65_536), put("optimizer", value={"weightDecay": 0.1})), "lamb"),
    ],
)
def test_small_keeps_the_optimizer_of_the_whole_job(
    change: Callable[[Document], object], chosen: str, in_cluster: bool
) -> None:
    document = sample_document(change)
    here = SmallJobTarget(has_path=lambda _: False, in_cluster=in_cluster)
    small = shrink(document, parse_job(document), here)
    job = parse_job(small.document)
    assert named(job) == named(parse_job(document)) == chosen
    assert max(it.pretrain.global_batch_size for it in job.spec.stages if it.pretrain) == 8
    said = [change for change in small.changes if change.startswith("spec.optimizer.name")]
    assert said == (
        ['spec.optimizer.name: nothing -> "lamb" (as with 65536 sequences per step)']
        if chosen == "lamb" and "name" not in document["spec"].get("optimizer", {})
        else []
    )


@pytest.mark.parametrize(
    ("text", "if_exists", "name", "kept"),
    [
        ('{"optimizer": {"name": "lamb"}}', "Resume", None, "lamb"),
        ('{"optimizer": {"name": "lamb"}}', "Resume", "adamw", "adamw"),
        ('{"optimizer": {"name": "lamb"}}', "New", None, "adamw"),
        *((text, "Resume", None, "adamw") for text in ("", "[]", "{", '{"optimizer": {"name": ["lamb"]}}')),
        (None, "Resume", None, "adamw"),
    ],
)
def test_a_run_on_this_machine_goes_on_with_the_optimizer_that_it_began_with(
    tmp_path: Path, text: str | None, if_exists: str, name: str | None, kept: str
) -> None:
    if text is not None:
        (tmp_path / "run-config.json").write_text(text)
    job = sample_job(both(with_batches(64, name=name), put("output", "ifExists", value=if_exists)))
    assert named(keep_started_optimizer(job, tmp_path)) == kept


def remarks(batch: int, rate: float, name: str | None = None, model: Document | None = None) -> list[str]:
    changes = both(with_batches(batch, name=name), put("model", value=model or {"preset": "base"}))
    return advise(sample_job(both(changes, pretrain(learningRate=rate))))


@pytest.mark.parametrize(
    ("batch", "rate", "name"),
    [
        # Every published pair of docs/guides/learning-rates.md.
        *((256, 1e-4, "adamw"), (2048, 7e-4, "adamw"), (8192, 1e-3, "adamw"), (8192, 4e-4, "adamw")),
        *((4096, 5e-4, "adamw"), (512, 6.25e-4, "lamb"), (4096, 1.77e-3, "lamb"), (16_384, 3.54e-3, "lamb")),
        *((32_768, 5e-3, "lamb"), (65_536, 6e-3, "lamb"), (32_768, 4e-3, "lamb"), (448, 3.5e-4, "lamb")),
        *((448, 4.25e-4, "lamb"), (2048, 2e-3, "lamb"), (3072, 2.4e-3, "lamb"), (261_120, 6e-3, "lamb")),
        # Continued training, at a fifth.
        (256, 2e-5, "adamw"),
    ],
)
def test_what_is_published_is_not_remarked_on(batch: int, rate: float, name: str) -> None:
    assert remarks(batch, rate, name) == []


@pytest.mark.parametrize(
    ("batch", "rate", "name", "said"),
    [
        (256, 2e-3, "lamb", "globalBatchSize: 256 with lamb, which is for batches of thousands of sequences"),
        (
            65_536,
            6e-3,
            "adamw",
            "globalBatchSize: 65536 with adamw, published up to 8192; next: optimizer: {name: lamb}",
        ),
        # LAMB's rate with AdamW, and the other way round.
        (256, 2e-3, None, "learningRate: 0.002 with adamw and 256 sequences per step, where 7e-05 to 0.0003 are usual"),
        (65_536, 1e-4, None, "learningRate: 0.0001 with lamb and 65536 sequences per step, where 0.004 to 0.01 are"),
    ],
)
def test_an_unusual_pair_is_remarked_on(batch: int, rate: float, name: str | None, said: str) -> None:
    (remark,) = remarks(batch, rate, name)
    assert remark.startswith(f"spec.stages[{PHASE1}].pretrain.{said}")
    assert "docs/guides/learning-rates.md" in remark


def test_a_narrow_model_takes_a_higher_rate_with_adamw() -> None:
    assert remarks(256, 2e-3, model={"preset": "tiny"}) == []
    assert remarks(256, 2e-3, model={"preset": "large"}) != []
    assert remarks(256, 2e-2, model={"preset": "tiny"}) != []


def test_no_example_is_remarked_on() -> None:
    said = {
        example.name: [it for it in advise(parse_job(read_example(example.name))) if "learning-rates" in it]
        for example in list_examples()
    }
    assert [name for name, found in said.items() if found] == []


def test_the_default_is_published_for_its_batches() -> None:
    assert PUBLISHED["adamw"].largest_batch == MAX_ADAMW_BATCH >= PUBLISHED["lamb"].smallest_batch
