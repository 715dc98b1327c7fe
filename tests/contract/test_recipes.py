"""The replaced recipes' numbers, as manifests: what they resolve to is held to the recipes' own arithmetic.

The figures are those that the recipes publish; batches of NVIDIA's are per GPU before their division by the
accumulation steps. What pods look like: ``test_recipe_pods``.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from bert_job.run_config import RunConfig
from bert_job.run_stages import FinetuneStage, PrepareStage, PretrainStage
from bert_operator.api.parsing.validation import parse_job
from bert_operator.render.run_config import render_run_config
from bert_trainer.config.checks import parse_run_config
from bert_trainer.optim.schedule import learning_rate
from bert_trainer.training.data_loader import num_micro_batches
from bert_trainer.training.finetuning.task_learner import scaled_schedule
from examples import list_examples, read_example

# Manifests whose whole resolved configuration is a golden file: one of every recipe. The others differ from it in what
# the tables below hold.
GOLDEN = (
    *("01-laptop", "02-two-workers", "03-single-node", "04-fast-enough", "05-to-a-target"),
    *("06-fine-tuning", "10-nvidia/8-gpus", "11-onnx-runtime", "12-intel-pytorch/8-nodes-2-ranks", "13-mlperf"),
    *("14-intel-mrpc", "15-squad", "16-azure-cola/large", "17-intel-tensorflow/single-node"),
    *("18-wikipedia", "19-modernbert/laptop"),
)


def resolve(example: str) -> dict[str, Any]:
    return render(read_example(example))


def render(document: dict[str, Any]) -> dict[str, Any]:
    job = parse_job(document)
    return render_run_config(
        job, uid="uid-1", ranks=job.spec.ranks, hosts=job.spec.workers, output_folder=job.spec.output.path
    )


@dataclass(frozen=True)
class Phase:
    """One phase of a recipe as it is published, with learning rates worked out from the recipe's own formula.

    NVIDIA: p = (step + 1) / steps; peak x p / warm-up below the warm-up, else peak x sqrt(1 - p).
    MLPerf and Intel: peak x (1 - p). TensorFlow counts p from step / steps; its rates come a step later here.
    """

    sequence_length: int
    predictions: int
    batch_per_rank: int
    """Before its division by the accumulation steps."""
    accumulation: int
    micro_batch_size: int
    global_batch_size: int
    learning_rate: float
    warmup: float
    steps: int
    rates: dict[int, float]
    """By the number of updates before."""
    loss: str = "microBatchMean"
    optimizer_state: str = "keep"


def nvidia_1(batch_per_rank: int, accumulation: int, micro_batch_size: int, global_batch_size: int) -> Phase:
    # The first step, the last of the warm-up, the first of the decay, half of the phase, the last one.
    rates = {0: 2.9986e-6, 1999: 5.9973e-3, 2000: 5.0759e-3, 3518: 4.2426e-3, 7037: 0.0}
    sizes = (batch_per_rank, accumulation, micro_batch_size, global_batch_size)
    return Phase(128, 20, *sizes, 6e-3, 0.2843, 7038, rates)


def nvidia_2(batch_per_rank: int, accumulation: int, micro_batch_size: int, global_batch_size: int) -> Phase:
    rates = {0: 1.9994e-5, 199: 3.9987e-3, 200: 3.7340e-3, 780: 2.8293e-3, 1562: 0.0}
    sizes = (batch_per_rank, accumulation, micro_batch_size, global_batch_size)
    return Phase(512, 80, *sizes, 4e-3, 0.128, 1563, rates)


# The first step, a quarter, half, the step at which the script ends (4,500,000 sequences), the last of the schedule.
INTEL_RATES = {0: 3.4997e-4, 3424: 2.625e-4, 6849: 1.75e-4, 10_044: 9.3376e-5, 13_699: 0.0}


def intel(sequence_length: int, batch_per_rank: int, state: str = "keep") -> Phase:
    sizes = (batch_per_rank, 1, batch_per_rank, 448)
    return Phase(sequence_length, 76, *sizes, 3.5e-4, 0.0, 13_700, INTEL_RATES, optimizer_state=state)


MLPERF_RATES = {0: 4.24937e-4, 1674: 3.1875e-4, 3349: 2.125e-4, 5019: 1.06567e-4, 6699: 0.0}
TENSORFLOW_RATES = {0: 5.37415e-5, 4: 4.24275e-5, 9: 2.8285e-5, 14: 1.41425e-5, 19: 0.0}
MLPERF = Phase(512, 76, 56, 1, 56, 448, 4.25e-4, 0.0, 6700, MLPERF_RATES)
# 32 on each of two processes; 4e-5 x sqrt(2); divided by the sum of the predictions' weights.
TENSORFLOW = Phase(
    *(512, 76, 32, 1, 32, 64, 5.657e-5, 0.0, 20, TENSORFLOW_RATES),
    loss="global",
    optimizer_state="keepWithStepCount",
)

# hosts, ranks on each, precision, optimizer, phases
NVIDIA = ("fp16", ("lamb", 0.9, 0.999, 1e-6, 0.01, True, 1.0, "none"))
ORT = ("fp16", ("lamb", 0.9, 0.999, 1e-6, 0.01, True, 1.0, "zero1"))
INTEL = ("bf16", ("lamb", 0.9, 0.999, 1e-6, 0.01, False, 0.0, "none"))
GOOGLE = ("fp32", ("adamw", 0.9, 0.999, 1e-6, 0.01, False, 1.0, "none"))
RECIPES: dict[str, tuple[int, int, tuple[str, tuple[Any, ...]], tuple[Phase, ...]]] = {
    "10-nvidia/8-gpus": (1, 8, NVIDIA, (nvidia_1(8192, 128, 64, 65_536), nvidia_2(4096, 256, 16, 32_768))),
    "10-nvidia/16-gpus": (2, 8, NVIDIA, (nvidia_1(4096, 64, 64, 65_536), nvidia_2(2048, 128, 16, 32_768))),
    "10-nvidia/v2-8-gpus": (1, 8, NVIDIA, (nvidia_1(16_320, 340, 48, 130_560), nvidia_2(8160, 1020, 8, 65_280))),
    "10-nvidia/v2-16-gpus": (2, 8, NVIDIA, (nvidia_1(16_320, 340, 48, 261_120), nvidia_2(8160, 1020, 8, 130_560))),
    "11-onnx-runtime": (1, 4, ORT, (nvidia_1(16_320, 340, 48, 65_280), nvidia_2(8160, 1020, 8, 32_640))),
    "12-intel-pytorch/8-nodes-1-rank": (8, 1, INTEL, (intel(128, 56), intel(512, 56, "reset"))),
    "12-intel-pytorch/8-nodes-2-ranks": (8, 2, INTEL, (intel(128, 28), intel(512, 28, "reset"))),
    "12-intel-pytorch/8-nodes-4-ranks": (8, 4, INTEL, (intel(128, 14), intel(512, 14, "reset"))),
    "12-intel-pytorch/16-nodes-1-rank": (16, 1, INTEL, (intel(128, 28), intel(512, 28, "reset"))),
    "12-intel-pytorch/16-nodes-2-ranks": (16, 2, INTEL, (intel(128, 14), intel(512, 14, "reset"))),
    "12-intel-pytorch/phase2": (8, 2, INTEL, (intel(512, 28),)),
    "13-mlperf": (1, 8, NVIDIA, (MLPERF,)),
    "17-intel-tensorflow/single-node": (1, 2, GOOGLE, (TENSORFLOW,)),
    "17-intel-tensorflow/multi-node": (2, 1, GOOGLE, (TENSORFLOW,)),
}


def pretrain_stages(config: RunConfig) -> list[PretrainStage]:
    return [stage for stage in config.stages if isinstance(stage, PretrainStage)]


@pytest.mark.parametrize("example", RECIPES)
def test_ranks_precision_and_optimizer_are_the_recipe_s(example: str) -> None:
    hosts, slots, (precision, wanted), _ = RECIPES[example]
    config = parse_run_config(resolve(example))
    assert (config.world.hosts, config.world.ranks, config.precision) == (hosts, hosts * slots, precision)
    own = config.optimizer
    moments = (own.name, own.beta1, own.beta2, own.epsilon)
    assert (*moments, own.weight_decay, own.bias_correction, own.max_gradient_norm, own.partitioning) == wanted


@pytest.mark.parametrize("example", RECIPES)
def test_batches_passes_and_lengths_are_the_recipe_s(example: str) -> None:
    hosts, slots, _, phases = RECIPES[example]
    ranks = hosts * slots
    for stage, phase in zip(pretrain_stages(parse_run_config(resolve(example))), phases, strict=True):
        assert phase.batch_per_rank * ranks == phase.global_batch_size  # the recipe's own arithmetic
        assert phase.batch_per_rank == phase.accumulation * phase.micro_batch_size
        assert stage.sequence_length == phase.sequence_length
        assert stage.max_predictions_per_sequence == phase.predictions
        assert stage.global_batch_size == phase.global_batch_size
        assert stage.micro_batch_size == phase.micro_batch_size
        passes = num_micro_batches(stage.global_batch_size, stage.micro_batch_size, ranks)
        assert passes == phase.accumulation * ranks
        assert stage.length.steps == phase.steps
        assert (stage.loss_normalization, stage.optimizer_state) == (phase.loss, phase.optimizer_state)


@pytest.mark.parametrize("example", RECIPES)
def test_learning_rates_are_those_of_the_recipe_s_formula(example: str) -> None:
    *_, phases = RECIPES[example]
    for stage, phase in zip(pretrain_stages(parse_run_config(resolve(example))), phases, strict=True):
        assert stage.learning_rate == phase.learning_rate
        assert (stage.warmup.proportion or 0.0) == phase.warmup
        assert len(phase.rates) == 5
        found = {step: learning_rate(stage, step, phase.steps) for step in phase.rates}
        assert found == pytest.approx(phase.rates, rel=2e-5)


@pytest.mark.parametrize("example", [name for name in RECIPES if name.startswith("12-intel")])
def test_intel_s_phases_train_on_parts_of_their_own_and_are_measured_on_neither(example: str) -> None:
    """As its CONTAINER.md has it: phase 1 the first 90 % of the dataset, phase 2 the other 10 % but a hundredth."""
    parts = {128: (0.0, 0.9), 512: (0.9, 0.99)}
    stages = pretrain_stages(parse_run_config(resolve(example)))
    for stage in stages:
        assert (stage.data_range.start, stage.data_range.end) == parts[stage.sequence_length]
        assert stage.shards == f"2048_shards_uncompressed_{stage.sequence_length}"
        evaluation = stage.evaluation
        assert evaluation is not None
        assert evaluation.data_range is not None
        assert (evaluation.data_range.start, evaluation.data_range.end, evaluation.shards) == (0.99, 1.0, stage.shards)
        # Other lengths are other samples of the same text: none is measured on that a phase has trained on.
        assert evaluation.data_range.start >= max(end for _, end in parts.values())
        # 156.8 million sequences at 512 tokens: none of phase 2's is read twice.
        if stage.sequence_length == 512:
            assert 448 * (stage.length.steps or 0) < 0.09 * 156_800_000
        assert (evaluation.every_samples, evaluation.start_samples, evaluation.max_samples) == (150_000, None, 10_000)
        assert evaluation.micro_batch_size == 16
        assert stage.target is not None
        assert stage.target.masked_lm_accuracy == 0.72


@pytest.mark.parametrize("example", [name for name in RECIPES if name.startswith("12-intel")])
def test_intel_s_ranks_are_bound_with_its_libraries_where_no_profile_says_so(example: str) -> None:
    cpu = parse_job(read_example(example)).spec.cpu
    place = {1: ("core", None, None), 2: ("socket", 2, None), 4: ("numa", None, 4)}[RECIPES[example][1]]
    assert (cpu.pinning, cpu.sockets, cpu.numa_nodes, cpu.allocator, cpu.openmp) == (*place, "jemalloc", "intel")


@pytest.mark.parametrize(
    ("example", "path", "form"),
    [
        ("12-intel-pytorch/phase2", "checkpoint_phase1_dir", "huggingface"),
        ("13-mlperf", "mlperf", "tensorflow"),
        ("14-intel-mrpc", "uncased_L-12_H-768_A-12", "tensorflow"),
        ("14-intel-mrpc/fp32-single-node", "bert_official/MRPC", "tensorflow"),
        ("14-intel-mrpc/fp32-multi-node", "bert_official/MRPC", "tensorflow"),
        ("15-squad", "wwm_uncased_L-24_H-1024_A-16", "tensorflow"),
        ("17-intel-tensorflow/single-node", "wwm_uncased_L-24_H-1024_A-16", "tensorflow"),
        ("17-intel-tensorflow/multi-node", "wwm_uncased_L-24_H-1024_A-16", "tensorflow"),
    ],
)
def test_recipes_that_start_from_a_checkpoint_do(example: str, path: str, form: str) -> None:
    start = parse_run_config(resolve(example)).initial_checkpoint
    assert start is not None
    assert (start.path, start.format, start.load) == (path, form, "weights")


def test_ortmodule_s_memory_is_limited_and_nvidia_s_sums_are_in_fp16() -> None:
    assert parse_run_config(resolve("11-onnx-runtime")).gpu_memory_limit_gib == 15
    assert parse_run_config(resolve("11-onnx-runtime")).reduction.compression == "none"
    assert parse_run_config(resolve("10-nvidia/8-gpus")).reduction.compression == "fp16"


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
    assert (stage.learning_rate, stage.warmup.steps, stage.length.steps) == (4.25e-4, 0, 6700)


def test_wikipedia_is_prepared_alone_by_nvidia_s_numbers() -> None:
    config = parse_run_config(resolve("18-wikipedia"))
    (stage,) = config.stages
    assert isinstance(stage, PrepareStage)
    (corpus,) = stage.corpora
    assert (corpus.path, corpus.format, stage.seed, stage.masked_lm_probability) == ("enwiki", "wikipedia", 12345, 0.15)
    assert (stage.recipe, stage.dupe_factor) == ("nvidia", 5)
    lengths = [(each.sequence_length, each.max_predictions_per_sequence) for each in stage.lengths]
    assert lengths == [(128, 20), (512, 80)]


def test_mlperf_s_text_is_prepared_alone_by_its_numbers() -> None:
    config = parse_run_config(resolve("18-wikipedia/mlperf"))
    (stage,) = config.stages
    assert isinstance(stage, PrepareStage)
    (corpus,) = stage.corpora
    assert (corpus.path, corpus.format, config.dataset.vocabulary_file) == ("results4", "mlperf", "vocab.txt")
    assert (stage.recipe, stage.dupe_factor) == ("mlperf", 10)
    lengths = [(each.sequence_length, each.max_predictions_per_sequence) for each in stage.lengths]
    assert lengths == [(128, 76), (512, 76)]


def finetune_stage(config: RunConfig) -> FinetuneStage:
    (stage,) = (stage for stage in config.stages if isinstance(stage, FinetuneStage))
    return stage


@pytest.mark.parametrize(
    ("example", "hosts", "ranks", "precision", "folder", "epochs", "rate"),
    [
        ("14-intel-mrpc", 1, 2, "bf16", "glue/MRPC", 3, 2.828427e-5),
        ("14-intel-mrpc/fp32-single-node", 1, 1, "fp32", "bert_official/MRPC", 30, 2e-5),
        ("14-intel-mrpc/fp32-multi-node", 2, 2, "fp32", "bert_official/MRPC", 30, 2.828427e-5),
    ],
)
def test_intel_s_processes_scale_their_learning_rate_and_keep_their_own_models(
    example: str, hosts: int, ranks: int, precision: str, folder: str, epochs: int, rate: float
) -> None:
    config = parse_run_config(resolve(example))
    stage = finetune_stage(config)
    assert (config.world.hosts, config.world.ranks, config.precision) == (hosts, ranks, precision)
    # The script multiplies 2e-5 by the square root of its processes, whose gradients it does not synchronize.
    assert (stage.learning_rate, stage.learning_rate_scaling) == (2e-5, "sqrtRanks")
    assert scaled_schedule(stage, config.world.ranks).learning_rate == pytest.approx(rate)
    assert (stage.synchronize_gradients, stage.global_batch_size) == (False, 32)
    assert (stage.task, stage.data.folder, stage.lower_case) == ("mrpc", folder, True)
    assert (stage.epochs, stage.sequence_length) == (epochs, 128)
    assert (stage.warmup.proportion, stage.decay, stage.after_warmup) == (0.1, "linear", "published")
    optimizer = stage.optimizer
    assert (optimizer.name, optimizer.epsilon, optimizer.bias_correction) == ("adamw", 1e-6, False)


def test_squad_is_trained_by_intel_s_numbers() -> None:
    config = parse_run_config(resolve("15-squad"))
    stage = finetune_stage(config)
    assert (stage.task, stage.sequence_length, stage.doc_stride) == ("squad", 384, 128)
    assert (stage.global_batch_size, stage.learning_rate, stage.epochs) == (24, 3e-5, 2)
    assert (stage.max_query_length, stage.max_answer_length, stage.lower_case) == (64, 30, True)
    assert (stage.learning_rate_scaling, stage.synchronize_gradients) == ("none", True)


AZURE_MODELS = {"large": ("bert", 24), "base": ("bert", 12), "distilbert": ("distilbert", 6)}


@pytest.mark.parametrize(
    ("name", "micro_batch_size", "accumulation", "rows", "partitioning", "steps_per_epoch", "rates"),
    [
        # 500 steps of warm-up; the first step, the 100th, the last of the warm-up, half of the decay, the last one.
        ("large", 93, 1, 1488, "zero1", 6, {0: 6e-8, 99: 6e-6, 499: 3e-5, 549: 1.5e-5, 599: 0.0}),
        # Shorter than the warm-up, whose peak the rate never reaches.
        ("base", 532, 1, 8512, "none", 2, {0: 6e-8, 49: 3e-6, 99: 6e-6, 149: 9e-6, 199: 1.2e-5}),
        ("distilbert", 512, 2, 16_384, "none", 1, {0: 6e-8, 24: 1.5e-6, 49: 3e-6, 74: 4.5e-6, 99: 6e-6}),
        # Without DeepSpeed. BERT-base's run ends with its warm-up.
        ("large-vanilla", 64, 1, 1024, "none", 9, {0: 6e-8, 99: 6e-6, 499: 3e-5, 699: 1.5e-5, 899: 0.0}),
        ("base-vanilla", 128, 1, 2048, "none", 5, {0: 6e-8, 99: 6e-6, 199: 1.2e-5, 299: 1.8e-5, 499: 3e-5}),
        ("distilbert-vanilla", 256, 1, 4096, "none", 3, {0: 6e-8, 74: 4.5e-6, 149: 9e-6, 224: 1.35e-5, 299: 1.8e-5}),
    ],
)
def test_azure_s_numbers_are_those_of_its_three_models(
    name: str,
    micro_batch_size: int,
    accumulation: int,
    rows: int,
    partitioning: str,
    steps_per_epoch: int,
    rates: dict[int, float],
) -> None:
    config = parse_run_config(resolve(f"16-azure-cola/{name}"))
    stage = finetune_stage(config)
    assert (config.world.ranks, config.world.hosts, config.precision) == (16, 2, "fp16")
    assert (stage.task, stage.start_from, config.initial_checkpoint) == ("cola", "random", None)
    assert (config.model.architecture, config.model.num_hidden_layers) == AZURE_MODELS[name.removesuffix("-vanilla")]
    assert rows == micro_batch_size * accumulation * 16
    assert (stage.global_batch_size, stage.micro_batch_size) == (rows, micro_batch_size)
    assert num_micro_batches(stage.global_batch_size, stage.micro_batch_size, 16) == accumulation * 16
    assert -(-8551 // stage.global_batch_size) == steps_per_epoch  # CoLA's sentences
    assert (stage.learning_rate, stage.warmup.steps, stage.epochs) == (3e-5, 500, 100)
    found = {step: learning_rate(stage, step, 100 * steps_per_epoch) for step in rates}
    assert found == pytest.approx(rates, rel=1e-6)
    optimizer = stage.optimizer
    assert (optimizer.name, optimizer.beta1, optimizer.beta2, optimizer.weight_decay) == ("adamw", 0.8, 0.999, 3e-7)
    assert (optimizer.partitioning, stage.evaluate_every_epochs) == (partitioning, 1)


# Length, sequences of a step and of a pass, passes of a GPU, steps, what they come to, rates by updates before.
MODERN: dict[str, tuple[int, int, int, int, int, float, dict[int, float]]] = {
    # 1.7 T tokens, warm-up over 3 B: 635.78 steps; the rate stays.
    "19-modernbert/ettin-8-gpus": (
        *(1024, 4608, 96, 6, 360_278, 1.7e12),
        {0: 8e-4 / 636, 317: 4e-4, 635: 8e-4, 636: 8e-4, 360_277: 8e-4},
    ),
    # 286,720,000 samples, warm-up over 6 %: 4,200 steps; linear from there.
    "19-modernbert/mosaic-8-gpus": (
        *(128, 4096, 512, 1, 70_000, 286_720_000 * 128),
        {0: 5e-4 / 4200, 2099: 2.5e-4, 4199: 5e-4, 37_099: 2.5e-4, 69_999: 0.0},
    ),
}


@pytest.mark.parametrize("example", MODERN)
def test_modernbert_s_batches_come_to_the_published_tokens(example: str) -> None:
    length, sequences, micro_batch_size, passes, steps, tokens, rates = MODERN[example]
    config = parse_run_config(resolve(example))
    (stage,) = pretrain_stages(config)
    assert (config.world.hosts, config.world.ranks, config.precision) == (1, 8, "bf16")
    assert sequences == micro_batch_size * passes * 8
    assert (stage.sequence_length, stage.global_batch_size, stage.micro_batch_size) == (
        length,
        sequences,
        micro_batch_size,
    )
    assert num_micro_batches(stage.global_batch_size, stage.micro_batch_size, 8) == passes * 8
    assert stage.length.steps == steps
    assert steps * sequences * length == pytest.approx(tokens, rel=1e-5)
    found = {step: learning_rate(stage, step, steps) for step in rates}
    assert found == pytest.approx(rates, rel=1e-3, abs=1e-12)
    assert (stage.masking, stage.masked_lm_probability) == ("dynamic", 0.3)
    own, model = config.optimizer, config.model
    assert (own.name, own.beta1, own.beta2, own.epsilon) == ("adamw", 0.9, 0.98, 1e-6)
    # Published fully decoupled: 1e-5 of the weights in a step at the full rate.
    assert own.weight_decay * stage.learning_rate == pytest.approx(1e-5)
    assert (model.num_hidden_layers, model.hidden_size, model.intermediate_size) == (22, 768, 1152)
    assert (model.attention_window, model.global_attention_every) == (128, 3)


@pytest.mark.parametrize("example", GOLDEN)
def test_an_example_of_every_recipe_resolves_to_its_golden_configuration(
    example: str, golden: Callable[[str, str], None]
) -> None:
    golden(f"run-config/{example.replace('/', '-')}.json", json.dumps(resolve(example), indent=2) + "\n")


def test_every_folder_has_a_golden_configuration() -> None:
    assert {name.split("/")[0] for name in GOLDEN} == {example.name.split("/")[0] for example in list_examples()}
