"""A checkpoint that TensorFlow has written starts a run, and becomes a Hugging Face folder with the same weights.

Inputs: the kept checkpoints. Observed: what is loaded and imported, bit by bit; what is printed.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from bert_job.run_config import ModelFile
from bert_trainer.__main__ import main
from bert_trainer.checkpoints.conversion import import_weights
from bert_trainer.checkpoints.huggingface_export import huggingface_name
from bert_trainer.config.model_file import read_model_file
from bert_trainer.dataset.tokens.wordpiece import read_vocabulary
from bert_trainer.errors import InputError
from bert_trainer.model.bert import Bert
from weight_sources import load, small_model, write_huggingface, write_vocabulary

IGNORED = {
    "google": [],
    "mlperf": [
        "  ignored: bert/embeddings/LayerNorm/beta/adam_m, bert/embeddings/LayerNorm/beta/adam_v, "
        "bert/embeddings/LayerNorm/gamma/adam_m, bert/embeddings/LayerNorm/gamma/adam_v, "
        "bert/embeddings/position_embeddings/adam_m, bert/embeddings/position_embeddings/adam_v, "
        "bert/embeddings/token_type_embeddings/adam_m, bert/embeddings/token_type_embeddings/adam_v and 85 more"
    ],
}
KEPT = Path(__file__).parents[1] / "fixtures" / "tensorflow"


@pytest.mark.parametrize("name", ["google", "mlperf"])
def test_an_import_holds_the_weights_that_a_run_starts_with(tmp_path: Path, name: str) -> None:

    described = ModelFile(
        config_file=str(KEPT / name / "bert_config.json"),
        layer_norm_epsilon=1e-12,
        vocabulary_pad_multiple=8,
        objective=None,
    )
    vocabulary = read_vocabulary(KEPT / name / "vocab.txt")
    model = Bert(read_model_file(described), vocabulary.size)
    message, _, found, _ = load(KEPT / name, "tensorflow", model, vocabulary)
    assert message == f"Started from the weights of {KEPT / name}"
    account = import_weights(KEPT / name, "tensorflow", tmp_path / "out")
    assert account.splitlines()[1] == "  tensors: 46, with 2,325 parameters (float32)"
    ignored = [line for line in account.splitlines() if line.startswith("  ignored: ")]
    assert ignored == IGNORED[name]
    imported = load_file(tmp_path / "out" / "model.safetensors")
    for ours, tensor in found.items():
        theirs = imported[huggingface_name(ours, "bert")]
        assert torch.equal(tensor[: len(theirs)], theirs), ours


def test_it_is_told_from_other_formats_both_ways(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--format", "huggingface", "--output", str(tmp_path / "out")]
    assert main(["import", str(KEPT / "google"), *options]) == 2
    assert "but `bert_model.ckpt.index` lies there: format: tensorflow" in capsys.readouterr().err
    folder = write_huggingface(tmp_path / "model", small_model())
    with pytest.raises(InputError, match="but `model.safetensors` lies there: format: huggingface"):
        load(folder, "tensorflow", small_model(), write_vocabulary(tmp_path))
