"""Hidden states, logits, losses and every gradient are those of Hugging Face's models with the same weights.

Real widths, few layers, no dropout, rows of unequal length. Hugging Face computes on padded rows with an
attention mask, this trainer on real tokens only.

The measure is the 2-norm of the difference over the 2-norm of the reference, for each tensor. Key biases are
the exception: they add the same number to all scores of a query, which the softmax ignores, so that their
gradient is 0 in exact arithmetic and rounding is all that is left. They are measured against the gradient of
their layer's key weights.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForPreTraining,
    DistilBertConfig,
    DistilBertForMaskedLM,
    ModernBertConfig,
    ModernBertForMaskedLM,
)

from bert_job.run_config import ModelConfig
from bert_trainer.checkpoints.huggingface_export import huggingface_config, huggingface_name, huggingface_tensors
from bert_trainer.dataset.shards.samples import Samples
from bert_trainer.model.batch import make_batch
from bert_trainer.model.bert import Bert
from random_rows import model_config, modern_config, random_model, random_samples

VOCABULARY_SIZE = 1003  # no multiple of 8: the token table has five rows that are no entry
SEQUENCE_LENGTH = 40
LENGTHS = (40, 5, 23, 17, 38)
WORST = {torch.float32: 1e-5, torch.float64: 1e-10}
IGNORED = -100  # Hugging Face's label for "not predicted"

CASES = {
    "tiny mlm+nsp gelu": model_config(128),
    "tiny mlm+nsp gelu_new": model_config(128, hidden_activation="gelu_new"),
    "tiny mlm gelu": model_config(128, objective="mlm"),
    "tiny mlm gelu_new": model_config(128, objective="mlm", hidden_activation="gelu_new"),
    "base": model_config(768),
    "large": model_config(1024),
    "distilbert": model_config(768, architecture="distilbert", objective="mlm"),
    # Four layers: all kinds of them. Some rows are longer than the window, 17 tokens, and some are not.
    "modernbert": modern_config(768),
    "modernbert gelu_new": modern_config(128, hidden_activation="gelu_new"),
    "modernbert with the same theta everywhere": modern_config(128, local_rope_theta=160_000.0),
    # Training computes attention by other operations than evaluation. At this probability nothing is dropped.
    "base on the path of training": model_config(768, hidden_dropout=1e-15, attention_dropout=1e-15),
}


@dataclass
class Comparison:
    """Relative errors by tensor name."""

    outputs: dict[str, float] = field(default_factory=dict)
    losses: dict[str, float] = field(default_factory=dict)
    gradients: dict[str, float] = field(default_factory=dict)
    beyond_vocabulary: list[Tensor] = field(default_factory=list)
    """Logits and gradients of the rows that are no vocabulary entry."""


def error(ours: Tensor, theirs: Tensor, floor: float = 0.0) -> float:
    assert ours.shape == theirs.shape
    difference, size = (float(torch.linalg.vector_norm(x.detach())) for x in (ours - theirs, theirs))
    return difference / max(size, floor)


def reference_model(model: Bert, dtype: torch.dtype) -> torch.nn.Module:
    """Return Hugging Face's model with our weights; nothing may be missing but what is tied."""
    entries = huggingface_config(model)
    kind: Any = {
        "BertForPreTraining": BertForPreTraining,
        "BertForMaskedLM": BertForMaskedLM,
        "DistilBertForMaskedLM": DistilBertForMaskedLM,
        "ModernBertForMaskedLM": ModernBertForMaskedLM,
    }[entries["architectures"][0]]
    configs = {DistilBertForMaskedLM: DistilBertConfig, ModernBertForMaskedLM: ModernBertConfig}
    config: Any = configs.get(kind, BertConfig)
    theirs = kind(config(**entries, pad_token_id=0, attn_implementation="eager")).to(dtype).eval()
    tied = {"cls.predictions.decoder.weight", "cls.predictions.decoder.bias", "vocab_projector.weight"}
    tied |= {"decoder.weight"}
    missing, unexpected = theirs.load_state_dict(huggingface_tensors(model), strict=False)
    assert set(missing) <= tied
    assert not unexpected
    return theirs


def labels_of(samples: Samples) -> Tensor:
    """Return (B, T), ``IGNORED`` where nothing is predicted."""
    labels_BT = torch.full(samples.input_ids.shape, IGNORED)
    for row, places in enumerate(samples.masked_lm_positions):
        for column, position in enumerate(places):
            if position > 0:
                labels_BT[row, position] = int(samples.masked_lm_ids[row, column])
    return labels_BT


def run_reference(theirs: torch.nn.Module, samples: Samples, *, bert: bool, pairs: bool) -> dict[str, Tensor]:
    inputs: dict[str, Tensor] = {
        "input_ids": torch.from_numpy(samples.input_ids).long(),
        "attention_mask": torch.from_numpy(samples.input_mask).long(),
        "labels": labels_of(samples),
    }
    if bert:
        inputs["token_type_ids"] = torch.from_numpy(samples.segment_ids).long()
    if pairs:
        inputs["next_sentence_label"] = torch.from_numpy(samples.next_sentence_labels).long()
    result = theirs(**inputs, output_hidden_states=True)
    result.loss.backward()
    logits_BTV = result.prediction_logits if pairs else result.logits
    is_real_BT, is_masked_BT = inputs["attention_mask"].bool(), inputs["labels"] != IGNORED
    cross_entropy = torch.nn.functional.cross_entropy
    found = {
        "hidden": result.hidden_states[-1][is_real_BT],
        "mlm logits": logits_BTV[is_masked_BT],
        "mlm loss": cross_entropy(logits_BTV[is_masked_BT], inputs["labels"][is_masked_BT]),
        "loss": result.loss,
    }
    if pairs:
        found["nsp logits"] = result.seq_relationship_logits
        found["nsp loss"] = cross_entropy(found["nsp logits"], inputs["next_sentence_label"])
    return found


@cache
def compare(case: str, dtype: torch.dtype) -> Comparison:
    config: ModelConfig = CASES[case]
    samples = random_samples(
        LENGTHS, sequence_length=SEQUENCE_LENGTH, predictions=6, vocabulary_size=VOCABULARY_SIZE, seed=3
    )
    ours = random_model(config, VOCABULARY_SIZE, seed=5, dtype=dtype)
    theirs = reference_model(ours, dtype)
    pairs = config.objective == "mlm+nsp"
    expected = run_reference(theirs, samples, bert=config.architecture == "bert", pairs=pairs)

    batch = make_batch(samples, np.arange(len(LENGTHS)))
    keys = batch.dropout_keys(0, 0)
    hidden_ND = ours.encode(batch, keys)
    logits_MV = ours.masked_lm_logits(hidden_ND[batch.masked_index_M])
    sums = ours(batch, keys)
    loss = sums.masked_lm / batch.num_masked + sums.next_sentence / batch.num_rows
    loss.backward()

    found = Comparison(beyond_vocabulary=[logits_MV[:, VOCABULARY_SIZE:].detach().clone()])
    found.outputs["hidden"] = error(hidden_ND, expected["hidden"])
    found.outputs["mlm logits"] = error(logits_MV[:, :VOCABULARY_SIZE], expected["mlm logits"])
    found.losses["mlm loss"] = error(sums.masked_lm / batch.num_masked, expected["mlm loss"])
    found.losses["loss"] = error(loss, expected["loss"])
    if pairs:
        logits_B2 = ours.next_sentence_logits(hidden_ND, batch)
        found.outputs["nsp logits"] = error(logits_B2, expected["nsp logits"])
        found.losses["nsp loss"] = error(sums.next_sentence / batch.num_rows, expected["nsp loss"])

    reference = {name: parameter.grad for name, parameter in theirs.named_parameters()}
    norms = {name: float(torch.linalg.vector_norm(gradient)) for name, gradient in reference.items()}
    for name, parameter in ours.named_parameters():
        gradient, their_name = parameter.grad, huggingface_name(name, config.architecture)
        if len(gradient) > VOCABULARY_SIZE and name in ("embeddings.tokens.weight", "mlm_bias"):
            found.beyond_vocabulary.append(gradient[VOCABULARY_SIZE:].clone())
            gradient = gradient[:VOCABULARY_SIZE]
        floor = norms[their_name.replace("bias", "weight")] if name.endswith("key.bias") else 0.0
        found.gradients[name] = error(gradient, reference.pop(their_name), floor)
    assert not reference, "every one of their parameters has been compared"
    return found


each_case = pytest.mark.parametrize("case", CASES)
# transformers turns and weighs in fp32 whatever the type of a ModernBERT: there is no reference in fp64.
in_each_dtype = pytest.mark.parametrize(
    ("case", "dtype"),
    [
        pytest.param(case, dtype, id=f"{case}-{str(dtype).removeprefix('torch.')}")
        for case, config in CASES.items()
        for dtype in WORST
        if dtype == torch.float32 or config.architecture != "modernbert"
    ],
)


@in_each_dtype
def test_hidden_states_and_logits_are_equal(case: str, dtype: torch.dtype) -> None:
    outputs = compare(case, dtype).outputs
    assert max(outputs.values()) <= WORST[dtype], outputs


@in_each_dtype
def test_losses_are_equal(case: str, dtype: torch.dtype) -> None:
    losses = compare(case, dtype).losses
    assert max(losses.values()) <= WORST[dtype], losses


@in_each_dtype
def test_every_gradient_is_equal(case: str, dtype: torch.dtype) -> None:
    gradients = compare(case, dtype).gradients
    assert max(gradients.values()) <= WORST[dtype], {n: e for n, e in gradients.items() if e > WORST[dtype]}


@each_case
def test_rows_that_are_no_vocabulary_entry_are_never_predicted_and_never_change(case: str) -> None:
    logits_MV, *gradients = compare(case, torch.float32).beyond_vocabulary
    assert logits_MV.shape[-1] == 5
    assert torch.all(logits_MV == -torch.inf)
    assert len(gradients) == 2
    assert not any(gradient.any() for gradient in gradients)


def test_the_tolerance_would_notice_the_other_form_of_gelu() -> None:
    """Of all the choices that a model can differ in, the two forms of GELU are the closest."""
    samples = random_samples(
        LENGTHS, sequence_length=SEQUENCE_LENGTH, predictions=6, vocabulary_size=VOCABULARY_SIZE, seed=3
    )
    batch = make_batch(samples, np.arange(len(LENGTHS)))
    exact, approximate = (
        random_model(CASES[f"tiny mlm+nsp {name}"], VOCABULARY_SIZE, seed=5, dtype=torch.float64).encode(batch)
        for name in ("gelu", "gelu_new")
    )
    assert error(approximate, exact) > 5 * WORST[torch.float32]
