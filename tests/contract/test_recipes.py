"""The replaced recipes' numbers, as manifests: what they resolve to is held to the recipes' own arithmetic.

The figures are those that the recipes publish; batches of NVIDIA's are per GPU before their division by the
accumulation count. Whole resolved configurations are golden files (``tests/golden/run-config``).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from bert_operator.api.parsing.documents import read_job_document
from bert_operator.api.parsing.validation import parse_job
from bert_operator.render.run_config import render_run_config
from bert_trainer.config.checks import parse_run_config
from bert_trainer.config.finetuning import FinetuneStage
from bert_trainer.config.run_config import RunConfig
from bert_trainer.config.stages import PretrainStage
from bert_trainer.optim.schedule import learning_rate
from bert_trainer.training.data_loader import num_micro_batches

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def resolve(example: str) -> dict[str, Any]:
    return render(read_job_document(EXAMPLES / example / "job.yaml"))


def render(document: dict[str, Any]) -> dict[str, Any]:
    job = parse_job(document)
    return render_run_config(
        job, uid="uid-1", ranks=job.spec.ranks, hosts=job.spec.workers, output_folder=job.spec.output.path
    )


@dataclass(frozen=True)
class Phase:
    """One phase of a recipe as it is published."""

    sequence_length: int
    predictions: int
    batch_per_rank: int
    accumulation: int
    micro_batch_size: int
    global_batch_size: int
    learning_rate: float
    warmup: float
    steps: int


NVIDIA_PHASE_1 = Phase(128, 20, 8192, 128, 64, 65_536, 6e-3, 0.2843, 7038)
NVIDIA_PHASE_2 = Phase(512, 80, 4096, 256, 16, 32_768, 4e-3, 0.128, 1563)
INTEL = Phase(128, 76, 64, 1, 64, 2048, 3.5e-4, 0.0, 13_700)

RECIPES = {
    "10-nvidia-8-ranks": (8, 1, "fp16", (NVIDIA_PHASE_1, NVIDIA_PHASE_2)),
    "11-nvidia-4-ranks": (
        4,
        1,
        "fp16",
        (
            Phase(128, 20, 16_320, 340, 48, 65_280, 6e-3, 0.2843, 7038),
            Phase(512, 80, 8160, 1020, 8, 32_640, 4e-3, 0.128, 1563),
        ),
    ),
    "12-intel-mlperf": (
        32,
        8,
        "bf16",
        (INTEL, Phase(512, 76, 64, 4, 16, 2048, 3.5e-4, 0.0, 13_700)),
    ),
}


@pytest.mark.parametrize("example", sorted(RECIPES))
def test_the_resolved_numbers_are_the_recipes(example: str) -> None:
    ranks, hosts, precision, phases = RECIPES[example]
    config: RunConfig = parse_run_config(resolve(example))
    assert (config.world.ranks, config.world.hosts, config.precision, config.seed) == (
        ranks,
        hosts,
        precision,
        42,
    )
    assert (config.model.num_hidden_layers, config.model.hidden_size) == (24, 1024)
    assert config.optimizer.name == "lamb"
    stages = [stage for stage in config.stages if isinstance(stage, PretrainStage)]
    for stage, phase in zip(stages, phases, strict=True):
        assert phase.batch_per_rank * ranks == phase.global_batch_size  # the recipe's own arithmetic
        assert phase.batch_per_rank == phase.accumulation * phase.micro_batch_size
        assert stage.sequence_length == phase.sequence_length
        assert stage.max_predictions_per_sequence == phase.predictions
        assert stage.global_batch_size == phase.global_batch_size
        assert stage.micro_batch_size == phase.micro_batch_size
        passes = num_micro_batches(stage.global_batch_size, stage.micro_batch_size, ranks)
        assert passes == phase.accumulation * ranks
        assert stage.schedule.learning_rate == phase.learning_rate
        assert (stage.schedule.warmup.proportion or 0.0) == phase.warmup
        assert stage.length.steps == phase.steps


def test_mlperf_starts_from_its_checkpoint_and_is_evaluated_by_its_rule() -> None:
    config: RunConfig = parse_run_config(resolve("13-mlperf"))
    (stage,) = (stage for stage in config.stages if isinstance(stage, PretrainStage))
    start, evaluation, target = config.initial_checkpoint, stage.evaluation, stage.target
    assert start is not None
    assert (start.format, start.load) == ("tensorflow", "weights")
    assert evaluation is not None
    assert target is not None
    assert target.masked_lm_accuracy == 0.72
    # Every floor(0.05 x (230.23 x batch + 3,000,000) / 25,000) x 25,000 samples, beginning with as many.
    every = int(0.05 * (230.23 * stage.global_batch_size + 3_000_000) / 25_000) * 25_000
    assert (evaluation.every_samples, evaluation.start_samples, evaluation.max_samples) == (every, None, 10_000)
    assert (stage.global_batch_size, stage.micro_batch_size * config.world.ranks) == (448, 448)
    assert (stage.schedule.learning_rate, stage.schedule.warmup.steps, stage.length.steps) == (4.25e-4, 0, 6700)


def finetune_stage(config: RunConfig) -> FinetuneStage:
    (stage,) = (stage for stage in config.stages if isinstance(stage, FinetuneStage))
    return stage


def test_intel_s_two_processes_keep_their_learning_rate_and_their_own_models() -> None:
    config = parse_run_config(resolve("14-intel-mrpc"))
    stage = finetune_stage(config)
    assert (config.world.ranks, config.precision) == (2, "bf16")
    # The script multiplies 2e-5 by the square root of its two processes, whose gradients it does not synchronize.
    assert (stage.schedule.learning_rate, stage.learning_rate_scaling) == (2e-5, "sqrtRanks")
    assert (stage.synchronize_gradients, stage.global_batch_size) == (False, 32)
    assert (stage.task, stage.epochs, stage.sequence_length) == ("mrpc", 3, 128)
    assert (stage.schedule.warmup.proportion, stage.schedule.decay, stage.schedule.after_warmup) == (
        0.1,
        "linear",
        "published",
    )
    assert (stage.optimizer.epsilon, stage.optimizer.bias_correction) == (1e-6, False)


def test_squad_is_trained_by_intel_s_numbers() -> None:
    config = parse_run_config(resolve("15-squad"))
    stage = finetune_stage(config)
    assert (stage.task, stage.sequence_length, stage.doc_stride) == ("squad", 384, 128)
    assert (stage.global_batch_size, stage.schedule.learning_rate, stage.epochs) == (24, 3e-5, 2)
    assert (stage.max_query_length, stage.max_answer_length, stage.lower_case) == (64, 30, True)
    assert (stage.learning_rate_scaling, stage.synchronize_gradients) == ("none", True)


@pytest.mark.parametrize(
    ("preset", "micro_batch_size", "accumulation", "partitioning", "steps_per_epoch"),
    [("large", 93, 1, "zero1", 6), ("base", 532, 1, "none", 2), ("distilbert", 512, 2, "none", 1)],
)
def test_azure_s_numbers_are_those_of_its_three_models(
    preset: str, micro_batch_size: int, accumulation: int, partitioning: str, steps_per_epoch: int
) -> None:
    document = read_job_document(EXAMPLES / "16-azure-cola" / "job.yaml")
    text = (EXAMPLES / "16-azure-cola" / "README.md").read_text()
    rows = micro_batch_size * accumulation * 16
    (row,) = (line for line in text.splitlines() if f"| `{preset}` |" in line)
    assert f"| {micro_batch_size} | {rows} = " in row
    assert f"| `{partitioning}` |" in row
    if preset != "large":
        document["spec"]["model"] = {"preset": preset}
        document["spec"]["optimizer"] = {"partitioning": partitioning}
        document["spec"]["stages"][0]["finetune"] |= {"globalBatchSize": rows, "microBatchSize": micro_batch_size}
    config = parse_run_config(render(document))
    stage = finetune_stage(config)
    assert (config.world.ranks, config.world.hosts, config.precision) == (16, 2, "fp16")
    assert (stage.task, stage.start_from, config.initial_checkpoint) == ("cola", "random", None)
    assert (stage.global_batch_size, stage.micro_batch_size) == (rows, micro_batch_size)
    assert num_micro_batches(stage.global_batch_size, stage.micro_batch_size, 16) == accumulation * 16
    assert -(-8551 // stage.global_batch_size) == steps_per_epoch  # CoLA's sentences
    assert (stage.schedule.learning_rate, stage.schedule.warmup.steps, stage.epochs) == (3e-5, 500, 100)
    optimizer = stage.optimizer
    assert (optimizer.name, optimizer.beta1, optimizer.beta2, optimizer.weight_decay) == ("adamw", 0.8, 0.999, 3e-7)
    assert (optimizer.partitioning, stage.evaluate_every_epochs) == (partitioning, 1)


@pytest.mark.parametrize("example", sorted(path.parent.name for path in EXAMPLES.glob("*/job.yaml")))
def test_every_example_resolves_to_its_golden_configuration(example: str, golden: Callable[[str, str], None]) -> None:
    golden(f"run-config/{example}.json", json.dumps(resolve(example), indent=2) + "\n")


def test_nvidias_learning_rates_come_out_of_the_example() -> None:
    config = parse_run_config(resolve("10-nvidia-8-ranks"))
    first, second = (stage for stage in config.stages if isinstance(stage, PretrainStage))
    rates = [
        learning_rate(first.schedule, 0, 7038),
        learning_rate(first.schedule, 1999, 7038),
        learning_rate(first.schedule, 2000, 7038),
        learning_rate(second.schedule, 199, 1563),
        learning_rate(second.schedule, 200, 1563),
    ]
    assert rates == pytest.approx([2.9986e-6, 5.997e-3, 5.076e-3, 3.999e-3, 3.734e-3], rel=2e-4)
