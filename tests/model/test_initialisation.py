"""Weights start from N(0, 0.02), biases at 0, LayerNorm at 1 and 0, as a function of the seed alone."""

from __future__ import annotations

import math

import pytest
import torch

from bert_job.run_config import ModelConfig
from bert_trainer.model.bert import Bert
from random_rows import model_config, modern_config

VOCABULARY_SIZE = 1003
CONFIGS = {
    "bert": model_config(128),
    "mlm only": model_config(128, objective="mlm"),
    "distilbert": model_config(128, architecture="distilbert", objective="mlm"),
}


def initialized(config: ModelConfig, seed: int) -> Bert:
    model = Bert(config, VOCABULARY_SIZE)
    model.initialize(seed)
    return model


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_weights_are_normal_with_a_deviation_of_two_hundredths(config: ModelConfig) -> None:
    """Each bound is 5 standard errors wide: one false alarm in 1.7 million for an unknown seed."""
    for name, parameter in initialized(config, 1).named_parameters():
        if parameter.ndim < 2:
            continue
        weights = parameter.detach()[:VOCABULARY_SIZE]
        count = weights.numel()
        assert abs(float(weights.mean())) < 5 * 0.02 / math.sqrt(count), name
        assert float(weights.std()) == pytest.approx(0.02, rel=5 / math.sqrt(2 * count)), name
        beyond_two = float((weights.abs() > 2 * 0.02).double().mean())  # of a normal distribution: 4.55 %
        assert beyond_two == pytest.approx(0.0455, abs=5 * math.sqrt(0.0455 / count)), name


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_biases_are_0_and_layer_norms_1(config: ModelConfig) -> None:
    vectors = {n: p for n, p in initialized(config, 1).named_parameters() if p.ndim == 1}
    ones = {name for name in vectors if name.endswith("norm.weight")}
    # Two norms for each of two layers, one after the embeddings, one in the masked-LM head.
    assert len(ones) == 6
    assert all(bool((vectors[name] == 1).all()) for name in ones)
    assert all(bool((vectors[name] == 0).all()) for name in vectors.keys() - ones)


def test_the_deviation_is_the_configured_one() -> None:
    model = initialized(model_config(128, initializer_range=0.5), 1)
    assert float(model.mlm_transform.weight.detach().std()) == pytest.approx(0.5, rel=0.03)


def test_modernbert_s_weights_are_megatron_s_cut_off_at_two_deviations() -> None:
    """0.02, less by the root of twice the layers where branches end and in the head; cut off, 0.88 of that is left."""
    config = modern_config(128)
    for name, parameter in initialized(config, 1).named_parameters():
        if parameter.ndim < 2:
            continue
        ends = ("attention_output.weight", "ffn_out.weight", "mlm_transform.weight")
        deviation = 0.02 / math.sqrt(2 * config.num_hidden_layers) if name.endswith(ends) else 0.02
        weights = parameter.detach()[:VOCABULARY_SIZE]
        assert float(weights.abs().max()) <= 2 * deviation * (1 + 1e-6), name
        assert float(weights.std()) == pytest.approx(0.8796 * deviation, rel=5 / math.sqrt(2 * weights.numel())), name


def test_modernbert_has_one_bias_that_of_the_tied_decoder() -> None:
    vectors = {name: p.detach() for name, p in initialized(modern_config(128), 1).named_parameters() if p.ndim == 1}
    assert [name for name in vectors if name.endswith("bias")] == ["mlm_bias"]
    assert not vectors.pop("mlm_bias").any()
    # Two norms for each of four layers but the first one's, behind the embeddings and the layers, and in the head.
    assert len(vectors) == 2 * 4 - 1 + 3
    assert all(bool((vector == 1).all()) for vector in vectors.values())


def test_rows_that_are_no_vocabulary_entry_are_0() -> None:
    tokens = initialized(CONFIGS["bert"], 1).embeddings.tokens.weight
    assert tokens.shape[0] == 1008
    assert not tokens[VOCABULARY_SIZE:].any()
    assert tokens[VOCABULARY_SIZE - 1].any()


def test_it_is_a_function_of_the_seed_alone() -> None:
    torch.manual_seed(1)
    first = initialized(CONFIGS["bert"], 7).state_dict()
    torch.manual_seed(2)
    torch.rand(3)
    again, other = initialized(CONFIGS["bert"], 7).state_dict(), initialized(CONFIGS["bert"], 8).state_dict()
    assert all(torch.equal(tensor, again[name]) for name, tensor in first.items())
    assert not torch.equal(first["mlm_transform.weight"], other["mlm_transform.weight"])


def test_no_two_tensors_start_alike() -> None:
    """Tensors of one shape drawn from the same numbers would be copies of each other."""
    drawn = [p.flatten()[:8] for p in initialized(CONFIGS["bert"], 1).parameters() if p.ndim > 1]
    assert len({tuple(numbers.tolist()) for numbers in drawn}) == len(drawn)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_precision_does_not_change_it(dtype: torch.dtype) -> None:
    drawn = Bert(CONFIGS["bert"], VOCABULARY_SIZE).to(dtype)
    drawn.initialize(7)
    expected = initialized(CONFIGS["bert"], 7)
    for name, parameter in drawn.named_parameters():
        assert torch.equal(parameter, expected.get_parameter(name).to(dtype)), name


def test_it_leaves_other_random_numbers_alone() -> None:
    model = Bert(CONFIGS["bert"], VOCABULARY_SIZE)
    before = torch.get_rng_state()
    model.initialize(1)
    assert torch.equal(torch.get_rng_state(), before)
