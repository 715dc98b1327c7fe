"""Activation checkpointing costs time and saves memory; it changes no bit of the result."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from bert_trainer.config.checks import parse_run_config
from bert_trainer.model.batch import Batch, make_batch
from bert_trainer.model.bert import Bert
from bert_trainer.training.run import train
from tiny_run import PREDICTIONS, SEQUENCE_LENGTH, VOCABULARY_SIZE, make_samples, run_document, write_dataset
from whole_configs import model_settings

LAYERS = 6


def model(*, recompute: bool) -> Bert:
    config = model_settings(
        hidden_size=32,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=64,
        hidden_dropout=0.1,
        attention_dropout=0.1,
    )
    bert = Bert(config, VOCABULARY_SIZE)
    bert.initialize(3)
    bert.activation_checkpointing = recompute
    return bert


def batch() -> Batch:
    samples = make_samples(12, np.random.default_rng(5), sequence_length=SEQUENCE_LENGTH, predictions=PREDICTIONS)
    return make_batch(samples, np.arange(12))


def gradients(bert: Bert, precision: torch.dtype) -> tuple[Tensor, dict[str, Tensor]]:
    rows = batch()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == torch.bfloat16):
        sums = bert(rows, rows.dropout_keys(7, 11))
    loss = sums.masked_lm + sums.next_sentence
    loss.backward()
    return loss.detach(), {name: value.grad for name, value in bert.named_parameters() if value.grad is not None}


def bytes_kept(bert: Bert) -> int:
    """Return what lies in memory between the two passes for the backward pass, each storage once, weights left out."""
    weights = {parameter.untyped_storage().data_ptr() for parameter in bert.parameters()}
    kept: dict[int, tuple[Tensor, int]] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = (tensor, storage.nbytes())  # the reference keeps its address from being reused
        return tensor

    rows = batch()
    with saved_tensors_hooks(keep, lambda tensor: tensor):
        bert(rows, rows.dropout_keys(7, 11))
    return sum(size for _, size in kept.values())


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_losses_and_gradients_are_equal_bit_by_bit(precision: torch.dtype) -> None:
    plain_loss, plain = gradients(model(recompute=False), precision)
    loss, recomputed = gradients(model(recompute=True), precision)
    assert torch.equal(loss, plain_loss)
    assert plain.keys() == recomputed.keys()
    assert len(plain) > LAYERS * 16
    assert all(torch.equal(plain[name], recomputed[name]) for name in plain)
    assert any(float(gradient.abs().max()) > 0 for gradient in plain.values())


def test_a_fraction_of_the_activations_is_kept() -> None:
    plain, recomputed = bytes_kept(model(recompute=False)), bytes_kept(model(recompute=True))
    assert 0 < recomputed < plain / 3


def test_nothing_is_computed_twice_without_gradients() -> None:
    bert, rows, calls = model(recompute=True), batch(), []
    for layer in bert.layers:
        layer.query.register_forward_pre_hook(lambda *_: calls.append(1))
    with torch.no_grad():
        bert(rows)
    assert len(calls) == LAYERS
    bert(rows, rows.dropout_keys(1, 1)).masked_lm.backward()
    assert len(calls) == 3 * LAYERS


def test_a_run_comes_out_the_same_and_may_go_on_with_it(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "data")
    whole = run_document(tmp_path / "whole", dataset)
    train(parse_run_config(whole), attempt=1)
    changed = run_document(tmp_path / "changed", dataset, activation_checkpointing=True)
    train(parse_run_config(changed), attempt=1)
    one, other = (
        load_file(tmp_path / name / "checkpoints" / "phase1-00000006" / "model.safetensors")
        for name in ("whole", "changed")
    )
    assert all(torch.equal(one[name], other[name]) for name in one)
    # Of the settings of a run in the folder this one may change.
    train(parse_run_config(run_document(tmp_path / "whole", dataset, activation_checkpointing=True)), attempt=2)
