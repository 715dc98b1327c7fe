"""What the operator renders, the trainer reads."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from bert_job import recipes
from bert_job import run_config as trainer
from bert_job import run_stages as stages
from bert_job.evaluation import DataRangeSpec, TargetSpec
from bert_job.optimization import WarmupSpec
from bert_operator.api.parsing.documents import read_job_document
from bert_operator.api.parsing.validation import parse_job
from bert_operator.api.schema import bert_pretrain_job
from bert_operator.render import run_config
from bert_trainer.config import checks
from bert_trainer.errors import InputError
from examples import Example, list_examples
from sample_job import EVALUATE, PHASE1, PREPARE, sample_job

Spec = dict[str, Any]


def load(job: bert_pretrain_job.BertPretrainJob) -> trainer.RunConfig:
    """Render for two ranks on one host and read the JSON text back as the trainer does."""
    document = run_config.render_run_config(job, uid="uid-1", ranks=job.spec.ranks, hosts=1, output_folder="/out")
    return checks.parse_run_config(json.loads(json.dumps(document)))


def pretrain(**fields: object) -> Callable[[Spec], None]:
    return lambda spec: spec["stages"][PHASE1]["pretrain"].update(fields)


JOBS: dict[str, Callable[[Spec], object] | None] = {
    "as it is": None,
    "every preset: base": lambda spec: spec.update(model={"preset": "base"}),
    "every preset: large": lambda spec: spec.update(model={"preset": "large"}),
    "every preset: distilbert": lambda spec: spec.update(model={"preset": "distilbert"}),
    "own sizes": lambda spec: spec.update(
        model={
            "hiddenSize": 64,
            "numHiddenLayers": 1,
            "numAttentionHeads": 4,
            "intermediateSize": 100,
            "hiddenActivation": "gelu_new",
            "objective": "mlm",
            "maxPositionEmbeddings": 128,
        }
    ),
    "no clipping": lambda spec: spec.update(optimizer={"name": "adamw", "maxGradientNorm": 0}),
    "no decay of weights": lambda spec: spec.update(optimizer={"weightDecay": 0}),
    "ready shards": lambda spec: spec.update(
        dataset={"vocabularyFile": "vocab.txt"},
        stages=[
            {"name": "p", "pretrain": {**spec["stages"][PHASE1]["pretrain"], "shards": "s"}},
            {"name": "e", "evaluate": {"shards": "h", "maxSamples": 100}},
        ],
    ),
    "shared dataset": lambda spec: spec.update(dataset={"path": "/data"}, stages=spec["stages"][1:]),
    "shortest sequences": pretrain(sequenceLength=8),
    "samples and steps of warm-up": pretrain(length={"samples": 1000}, warmup={"steps": 3}),
    "epochs and no warm-up": pretrain(length={"epochs": 0.5}, warmup={"steps": 0}),
    "range": pretrain(dataRange={"start": 0.1, "end": 0.9}),
    "evaluated while it trains, to a target": pretrain(
        evaluation={"everySamples": 640, "startSamples": 1280, "maxSamples": 100, "shards": "eval"},
        target={"maskedLmAccuracy": 0.72},
        checkpoint={"periodic": False},
    ),
    "measured on the last tenth": lambda spec: (
        pretrain(dataRange={"end": 0.9}, evaluation={"everyEpochs": 0.5, "dataRange": {"start": 0.9}})(spec),
        spec["stages"][EVALUATE]["evaluate"].update(dataRange={"start": 0.9}),
    ),
    "nothing held out, measured on a part": lambda spec: (
        spec["stages"][PREPARE]["prepare"].update(heldOutFraction=0),
        pretrain(dataRange={"end": 0.9}, evaluation={"everySteps": 5, "dataRange": {"start": 0.9}})(spec),
        spec["stages"][EVALUATE]["evaluate"].update(dataRange={"start": 0.9}),
    ),
    "reset, micro-batch means": pretrain(optimizerState="reset", lossNormalization="microBatchMean"),
    "everything logged": lambda spec: spec.update(
        logging={"everySteps": 1, "tensorboard": False, "prometheusPort": 0, "sampleLedger": True}
    ),
    "steps to trace": lambda spec: spec.update(
        profileSteps={"first": 2, "last": 3, "stage": "phase1", "allRanks": True}
    ),
    "a size that is found": pretrain(microBatchSize="auto"),
    "without Horovod": lambda spec: spec.update(collectives="torch"),
    "layers computed twice": lambda spec: spec.update(activationCheckpointing=True),
    "another engine": lambda spec: spec.update(engine="ort"),
    "checkpoints by steps": lambda spec: spec.update(checkpoint={"everySteps": 5}),
    "several corpora": lambda spec: (
        spec["stages"][PREPARE]["prepare"].pop("text"),
        spec["stages"][PREPARE]["prepare"].update(
            corpora=[
                {"path": "wiki.xml.bz2", "format": "wikipedia", "weight": 2.5, "language": "pt-BR"},
                {"path": "books", "documents": "files", "lines": "wrapped"},
                {"path": "web.jsonl", "format": "jsonLines", "textField": "body"},
                {"path": "results4", "format": "mlperf", "checksums": "md5.txt"},
                {"path": "builtin:python-docs", "weight": 0.2},
            ]
        ),
    ),
    "vocabulary given": lambda spec: (
        spec["stages"][PREPARE]["prepare"].pop("vocabularySize"),
        spec.update(dataset={"vocabularyFile": "v.txt"}),
    ),
}


@pytest.mark.parametrize("example", list_examples(), ids=lambda example: example.name)
def test_every_example_loads_in_the_trainer(example: Example) -> None:
    job = parse_job(read_job_document(example.path))
    assert load(job).job.name == job.metadata.name


def test_there_are_examples() -> None:
    assert list_examples()


@pytest.mark.parametrize("case", JOBS)
def test_every_job_loads_in_the_trainer(case: str) -> None:
    config = load(sample_job(JOBS[case]))
    assert config.world == trainer.WorldConfig(ranks=2, hosts=1)
    assert config.model.vocabulary_size is None


@pytest.mark.parametrize("objective", [None, "mlm"])
def test_a_model_in_a_file_is_left_for_the_trainer_to_read(objective: str | None) -> None:
    model = {"configFile": "bert_config.json", "layerNormEpsilon": 1e-6, "vocabularyPadMultiple": 64}
    if objective is not None:
        model["objective"] = objective
    job = sample_job(lambda spec: spec.update(model=model))
    assert load(job).model == trainer.ModelFile(
        config_file="bert_config.json",
        layer_norm_epsilon=1e-6,
        vocabulary_pad_multiple=64,
        objective=objective,  # type: ignore[arg-type]
    )
    document = run_config.render_run_config(job, uid="u", ranks=2, hosts=1, output_folder="/o", data_base="/mnt/data")
    assert document["model"]["config_file"] == "/mnt/data/bert_config.json"


def test_a_path_may_be_as_long_as_a_job_s_wherever_it_is_placed() -> None:
    long = "a" * 1024
    job = sample_job(
        lambda spec: (
            spec.update(initialCheckpoint={"path": long}),
            spec["stages"][PREPARE]["prepare"].update(text=long),
            spec["stages"][PHASE1]["pretrain"].update(shards=long, evaluation={"everySteps": 5, "shards": long}),
            spec["stages"][EVALUATE]["evaluate"].update(shards=long),
        )
    )
    document = run_config.render_run_config(job, uid="u", ranks=2, hosts=1, output_folder="/o", data_base="/mnt/data")
    assert json.dumps(document).count(f"/mnt/data/{long}") == 5
    checks.parse_run_config(document)


def test_identity_and_folders_arrive() -> None:
    config = load(sample_job())
    assert (config.job.namespace, config.job.name, config.job.uid) == ("default", "demo", "uid-1")
    assert (config.output_folder, config.dataset.folder) == ("/out", "/out/data")
    assert load(sample_job(JOBS["shared dataset"])).dataset.folder == "/data"


def test_defaults_are_resolved() -> None:
    config = load(sample_job())
    prepare, phase1, evaluate, export = config.stages
    assert isinstance(prepare, stages.PrepareStage)
    assert isinstance(phase1, stages.PretrainStage)
    assert isinstance(evaluate, stages.EvaluateStage)
    assert isinstance(export, stages.ExportStage)
    assert prepare.vocabulary_size == 4096
    assert (phase1.max_predictions_per_sequence, phase1.micro_batch_size) == (20, 32)
    assert phase1.warmup == WarmupSpec(proportion=0.1)
    assert (evaluate.sequence_length, evaluate.max_predictions_per_sequence) == (128, 20)
    assert (config.checkpoint.every_steps, config.checkpoint.every_seconds) == (None, 600)


@pytest.mark.parametrize(
    ("optimizer", "given", "rendered"),
    [
        ("adamw", None, "keepWithStepCount"),
        ("lamb", None, "keep"),
        ("adamw", "keep", "keep"),
        ("lamb", "keepWithStepCount", "keepWithStepCount"),
        ("adamw", "reset", "reset"),
    ],
)
def test_warm_moments_keep_their_step_count_with_adamw(optimizer: str, given: str | None, rendered: str) -> None:
    def change(spec: Spec) -> None:
        spec.update(optimizer={"name": optimizer})
        if given is not None:
            pretrain(optimizerState=given)(spec)

    phase1 = load(sample_job(change)).stages[PHASE1]
    assert isinstance(phase1, stages.PretrainStage)
    assert phase1.optimizer_state == rendered


def test_both_sides_take_horovod_where_a_job_names_no_library() -> None:
    assert sample_job().spec.collectives is None, "a frozen job without it is one that the release before reads"
    assert load(sample_job()).collectives == "horovod"
    assert load(sample_job(JOBS["without Horovod"])).collectives == "torch"


def test_an_evaluation_takes_the_lengths_of_the_phase_before_it() -> None:
    def change(spec: Spec) -> None:
        phase2 = {
            **spec["stages"][PHASE1]["pretrain"],
            "sequenceLength": 512,
            "maxPredictionsPerSequence": 76,
        }
        spec["stages"].insert(EVALUATE, {"name": "phase2", "pretrain": phase2})
        spec["stages"].append({"name": "again", "evaluate": {"sequenceLength": 128}})

    *_, evaluate, _, again = load(sample_job(change)).stages
    assert isinstance(evaluate, stages.EvaluateStage)
    assert isinstance(again, stages.EvaluateStage)
    assert (evaluate.sequence_length, evaluate.max_predictions_per_sequence) == (512, 76)
    assert (again.sequence_length, again.max_predictions_per_sequence) == (128, 20)


def test_paths_of_corpora_are_placed() -> None:
    job = sample_job(JOBS["several corpora"])
    document = run_config.render_run_config(job, uid="u", ranks=2, hosts=1, output_folder="/o", data_base="/mnt/data")
    corpora = document["stages"][PREPARE]["corpora"]
    assert [corpus["path"] for corpus in corpora] == [
        "/mnt/data/wiki.xml.bz2",
        "/mnt/data/books",
        "/mnt/data/web.jsonl",
        "/mnt/data/results4",
        "builtin:python-docs",
    ]
    assert corpora[3]["checksums"] == "/mnt/data/md5.txt"


def test_an_evaluation_while_training_is_rendered_in_full() -> None:
    def first(**fields: object) -> stages.PretrainStage:
        job = sample_job(pretrain(**fields))
        document = run_config.render_run_config(job, uid="u", ranks=2, hosts=1, output_folder="/o", data_base="/mnt")
        stage = checks.parse_run_config(document).stages[PHASE1]
        assert isinstance(stage, stages.PretrainStage)
        return stage

    assert (first().evaluation, first().target, first().checkpoint) == (None, None, None)
    held_out = first(evaluation={"everySteps": 5}, target={"maskedLmAccuracy": 1}, maxPredictionsPerSequence=12)
    assert held_out.target == TargetSpec(masked_lm_accuracy=1.0)
    assert held_out.evaluation == stages.Evaluation(
        every_steps=5,
        max_samples=None,
        micro_batch_size=32,
        max_predictions_per_sequence=12,
        shards=None,
        data_range=None,
    )
    own = first(shards="mine", dataRange={"end": 0.9}, evaluation={"everyEpochs": 2, "dataRange": {"start": 0.9}})
    assert own.evaluation is not None
    assert (own.evaluation.shards, own.evaluation.every_epochs) == ("/mnt/mine", 2.0)
    assert own.evaluation.data_range == DataRangeSpec(start=0.9, end=1.0)
    named = first(evaluation={"everySamples": 64, "shards": "eval"})
    assert named.evaluation is not None
    assert (named.evaluation.shards, named.evaluation.data_range) == ("/mnt/eval", None)


@pytest.mark.parametrize(
    ("own", "every", "periodic", "start"),
    [
        pytest.param({"periodic": False}, (100, None, 5000), False, 640, id="the rest is the job's"),
        pytest.param({"everySeconds": 60}, (None, 60, None), True, 640, id="intervals are one setting"),
        pytest.param({"minSamplesToStart": 0}, (100, None, 5000), True, 0, id="zero is a value"),
    ],
)
def test_a_stage_s_checkpoint_settings_replace_the_job_s(
    own: Spec, every: tuple[int | None, ...], periodic: bool, start: int
) -> None:
    def change(spec: Spec) -> None:
        spec["checkpoint"] = {"everySteps": 100, "everySamples": 5000, "minSamplesToStart": 640}
        pretrain(checkpoint=own)(spec)

    stage = load(sample_job(change)).stages[PHASE1]
    assert isinstance(stage, stages.PretrainStage)
    found = stage.checkpoint
    assert found is not None
    assert (found.every_steps, found.every_seconds, found.every_samples) == every
    assert (found.periodic, found.min_samples_to_start) == (periodic, start)


def test_the_published_numbers_of_predictions_are_the_defaults() -> None:
    assert [recipes.predictions_of_length(length) for length in (8, 64, 128, 512)] == [4, 12, 20, 80]


def test_the_default_micro_batch_does_not_depend_on_the_ranks() -> None:
    # A job may go on with another number of ranks; what is frozen must stay the same.
    one, two = (load(sample_job(lambda spec, n=n: spec.update(slotsPerWorker=n))) for n in (1, 2))
    assert one.stages == two.stages


@pytest.mark.parametrize(
    ("version", "remedy"),
    [
        (3, "the operator is of a newer release; name the trainer image"),
        (0, "the operator is of an older release than this image: upgrade it"),
        (None, "what the operator renders"),
    ],
)
def test_of_two_releases_the_older_one_is_named_with_what_to_do(version: int | None, remedy: str) -> None:
    document = run_config.render_run_config(sample_job(), uid="u", ranks=2, hosts=1, output_folder="/o")
    with pytest.raises(InputError, match=f"contract_version is {version}, this trainer reads 1 and 2") as refused:
        checks.parse_run_config({**document, "contract_version": version})
    assert remedy in str(refused.value)


def test_a_field_of_a_newer_operator_is_refused_with_what_to_do() -> None:
    document = run_config.render_run_config(sample_job(), uid="u", ranks=2, hosts=1, output_folder="/o")
    with pytest.raises(InputError, match="brand_new: got 1") as refused:
        checks.parse_run_config({**document, "brand_new": 1})
    assert "the operator is of a newer release" in str(refused.value)


def test_what_is_rendered_is_complete() -> None:
    """The frozen document leaves nothing open, so that a later release's defaults do not change what it means."""
    document = run_config.render_run_config(sample_job(), uid="u", ranks=2, hosts=1, output_folder="/o")
    prepare, pretrained, evaluate, export = document["stages"]
    for model, section in (
        (trainer.RunConfig, document),
        (trainer.ModelConfig, document["model"]),
        (trainer.OptimizerConfig, document["optimizer"]),
        (trainer.CheckpointConfig, document["checkpoint"]),
        (stages.PrepareStage, prepare),
        (stages.PretrainStage, pretrained),
        (stages.EvaluateStage, evaluate),
        (stages.ExportStage, export),
    ):
        assert {name for name, field in model.model_fields.items() if not field.exclude} == section.keys(), model


@pytest.mark.parametrize("name", ["a/../../../victim", "..", "", "Phase", "a" * 41])
def test_a_stage_s_name_is_no_path_for_the_trainer_either(name: str) -> None:
    document = run_config.render_run_config(sample_job(), uid="u", ranks=2, hosts=1, output_folder="/o")
    document["stages"][-1]["name"] = name
    with pytest.raises(InputError, match=r"stages\.\d+\.\S*name"):
        checks.parse_run_config(document)
