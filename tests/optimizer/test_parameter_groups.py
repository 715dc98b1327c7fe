"""Which of BERT's tensors are decayed and have a trust ratio; the model computes on the flat buffer."""

from __future__ import annotations

import pytest
import torch

from bert_job.run_config import ModelConfig
from bert_trainer.checkpoints.huggingface_export import huggingface_name
from bert_trainer.model.bert import Bert
from bert_trainer.parallel.flat_parameters import FlatParameters
from random_rows import model_config, random_batch
from whole_configs import model_settings

CONFIGS = {
    "bert": model_config(128),
    "mlm only": model_config(128, objective="mlm"),
    "distilbert": model_config(128, architecture="distilbert", objective="mlm"),
}
EXCLUDED = ("bias", "gamma", "beta", "LayerNorm", "layer_norm")
"""Parts of names in the original scripts; the last is DistilBERT's spelling."""


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_what_the_original_scripts_exclude_by_name_lies_behind_the_decayed_part(config: ModelConfig) -> None:
    flat = FlatParameters(Bert(config, 61))
    for span in flat.spans:
        name = huggingface_name(span.name, config.architecture)
        excluded = any(part in name for part in EXCLUDED)
        assert (span.start >= flat.num_decayed) == excluded, name
        assert (span.stop <= flat.num_decayed) != excluded, name


def test_bert_large_has_as_many_decayed_and_undecayed_parameters_as_published() -> None:
    """Counts from the log of Intel's BERT-large training."""
    with torch.device("meta"):
        model = Bert(
            model_settings(
                hidden_size=1024,
                num_hidden_layers=24,
                num_attention_heads=16,
                intermediate_size=4096,
                vocabulary_pad_multiple=1,
            ),
            30_522,
        )
    sizes = [(parameter.ndim, parameter.numel()) for parameter in model.parameters()]
    assert sum(size for dimensions, size in sizes if dimensions >= 2) == 335_869_952
    assert sum(size for dimensions, size in sizes if dimensions < 2) == 356_156


def test_spans_do_not_overlap_and_hold_every_parameter() -> None:
    model = Bert(CONFIGS["bert"], 61)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    flat = FlatParameters(model)
    spans = sorted(flat.spans, key=lambda span: span.start)
    assert all(left.stop <= right.start for left, right in zip(spans, spans[1:], strict=False))
    views = flat.named(flat.values)
    assert views.keys() == before.keys()
    assert all(torch.equal(views[name], tensor) for name, tensor in before.items())


def test_the_model_computes_with_the_flat_values_and_its_gradients_arrive_there() -> None:
    model = Bert(CONFIGS["bert"], 61)
    flat = FlatParameters(model)
    batch = random_batch([20, 7], sequence_length=20, predictions=4, vocabulary_size=61, seed=1)
    for passes in (1, 2):  # the second one adds to the first
        sums = model(batch)
        (sums.masked_lm + sums.next_sentence).backward()
        gradients = flat.named(flat.gradients)
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None
            assert parameter.grad.data_ptr() == gradients[name].data_ptr()
        if passes == 1:
            once = flat.gradients.clone()
    torch.testing.assert_close(flat.gradients, 2 * once)
    with torch.no_grad():
        flat.values.zero_()
    assert float(model(batch).masked_lm.detach()) == pytest.approx(batch.num_masked * torch.log(torch.tensor(61.0)))
