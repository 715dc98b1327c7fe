"""Checkpoints of real sizes go from TensorFlow to this trainer and back, bit by bit, and compute the same.

Needs TensorFlow in an environment of its own: ``make test-tensorflow``. TensorFlow writes a checkpoint of BERT-base,
and one of BERT-large with Adam's moments (4 GB), as MLPerf's. NumPy computes in double precision with the variables
that TensorFlow reads; this trainer imports the files without it. At the end TensorFlow reads what this trainer exports.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bert_trainer.checkpoints.model_export import export_model
from bert_trainer.checkpoints.tensorflow_import import read_tensorflow_checkpoint
from bert_trainer.dataset.tokens.wordpiece import SPECIAL_TOKENS, read_vocabulary
from bert_trainer.model.bert import Bert
from tensorflow_cases import SMALL, errors_of, model_of, outputs_of, rows_of, run_tensorflow, write_inputs

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.timeout(3600),
    pytest.mark.skipif("BERT_TEST_TENSORFLOW" not in os.environ, reason="requires BERT_TEST_TENSORFLOW"),
]

WORST = 1e-5
BASE = {
    **SMALL,
    "hidden_size": 768,
    "intermediate_size": 3072,
    "max_position_embeddings": 512,
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
    "vocab_size": 30522,
}
LARGE = {
    **BASE,
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_attention_heads": 16,
    "num_hidden_layers": 24,
}
CASES: dict[str, tuple[dict[str, Any], str, list[str], int]] = {
    "base": (BASE, "bert_model.ckpt", [], 206),
    "large with optimizer state": (LARGE, "model.ckpt-28252", ["--slots"], 398),
}


def write_export(model: Bert, folder: Path) -> None:
    tokens = [*SPECIAL_TOKENS, *(f"w{number}" for number in range(model.vocabulary_size - len(SPECIAL_TOKENS)))]
    (folder / "vocab.txt").write_text("".join(f"{token}\n" for token in tokens))
    export_model("tensorflow", model, read_vocabulary(folder / "vocab.txt"), folder / "export", lower_case=True)


@pytest.mark.parametrize(("config", "name", "options", "num_variables"), CASES.values(), ids=CASES)
def test_there_and_back(
    tmp_path: Path, config: dict[str, Any], name: str, options: list[str], num_variables: int
) -> None:
    (tmp_path / "bert_config.json").write_text(json.dumps(config))
    run_tensorflow("write", tmp_path / "bert_config.json", tmp_path / name, *options)
    samples = rows_of(config)
    write_inputs(samples, tmp_path / "inputs.npz")
    run_tensorflow(
        *("compute", tmp_path / "bert_config.json", tmp_path / name, tmp_path / "inputs.npz", tmp_path / "outputs.npz")
    )

    model = model_of(config)
    started = time.perf_counter()
    tensors, _ = read_tensorflow_checkpoint(tmp_path, model)
    seconds = time.perf_counter() - started
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            tensor = tensors.pop(parameter_name)
            parameter[: len(tensor)].copy_(tensor)
    assert not tensors
    errors = errors_of(outputs_of(model, samples), dict(np.load(tmp_path / "outputs.npz")))
    size = (tmp_path / f"{name}.data-00000-of-00001").stat().st_size
    print(f"\n{name}: {size:,} bytes of data, weights read in {seconds:.1f} s, relative errors {errors}")
    assert max(errors.values()) <= WORST, errors

    write_export(model, tmp_path)
    compared = run_tensorflow("compare", tmp_path / name, tmp_path / "export" / "bert_model.ckpt")
    print(f"{name}: TensorFlow reads {compared.strip()} exported variables, all bit-equal")
    assert int(compared) == num_variables


def test_tensorflow_reads_an_index_of_several_blocks(tmp_path: Path) -> None:
    config = {**SMALL, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 256}
    model = model_of(config)
    model.initialize(1)
    write_export(model, tmp_path)
    prefix = tmp_path / "export" / "bert_model.ckpt"
    assert int(run_tensorflow("compare", prefix, prefix)) == 256 * 16 + 14
