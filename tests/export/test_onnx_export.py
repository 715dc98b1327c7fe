"""The ONNX graph computes what the model computes, for every kind of model and for rows of any length."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from numpy.typing import NDArray

from bert_job.run_config import ModelConfig
from bert_trainer.checkpoints.onnx_export import ONNX_FILE, WEIGHTS_FILE, write_onnx_model
from bert_trainer.model.batch import make_batch
from bert_trainer.model.bert import Bert
from random_rows import model_config, modern_config, random_model, random_samples

LENGTHS = [24, 5, 17]
ENTRIES = 93
"""No multiple of 8: the table of the model is longer."""
CONFIGS = {
    "bert": model_config(32),
    "gelu_new, three segments": model_config(32, hidden_activation="gelu_new", segment_types=3),
    "mlm only": model_config(32, objective="mlm"),
    "distilbert": model_config(32, architecture="distilbert", objective="mlm"),
    "modernbert": modern_config(),
}


def small_model(config: ModelConfig = CONFIGS["bert"], dtype: torch.dtype = torch.float32) -> Bert:
    return random_model(config, ENTRIES, seed=1, dtype=dtype)


def check_same(model: Bert, folder: Path) -> dict[str, NDArray[np.float32]]:
    """Compare every output on padded rows; return the inputs' and outputs' arrays by name."""
    samples = random_samples(LENGTHS, sequence_length=24, predictions=4, vocabulary_size=ENTRIES, seed=1)
    session = onnxruntime.InferenceSession(folder / ONNX_FILE)
    given = {
        "input_ids": samples.input_ids, "attention_mask": samples.input_mask, "token_type_ids": samples.segment_ids
    }  # fmt: skip
    inputs = {entry.name: given[entry.name].astype(np.int64) for entry in session.get_inputs()}
    outputs = dict(zip([it.name for it in session.get_outputs()], session.run(None, inputs), strict=True))
    batch, is_real = make_batch(samples, np.arange(len(LENGTHS))), samples.input_mask.astype(bool)
    with torch.no_grad():
        hidden_ND = model.encode(batch)
        logits_NV = model.masked_lm_logits(hidden_ND)[:, :ENTRIES]
        expected = {"prediction_logits": logits_NV, "last_hidden_state": hidden_ND}
        if model.nsp is not None:
            expected["seq_relationship_logits"] = model.next_sentence_logits(hidden_ND, batch)
    assert outputs.keys() == expected.keys()
    for name, tensor in expected.items():
        found = outputs[name] if name == "seq_relationship_logits" else outputs[name][is_real]
        np.testing.assert_allclose(found, tensor.float().numpy(), rtol=1e-5, atol=1e-5, err_msg=name)
    return {**inputs, **outputs}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("written")
    write_onnx_model(small_model(), folder)
    return folder


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_the_graph_computes_what_the_model_computes(tmp_path: Path, config: ModelConfig) -> None:
    # In double precision, which becomes single.
    model = small_model(config, torch.float64)
    write_onnx_model(model, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [ONNX_FILE, WEIGHTS_FILE]
    onnx.checker.check_model(tmp_path / ONNX_FILE, full_check=True)
    found = check_same(model, tmp_path)
    assert ("token_type_ids" in found) == (config.architecture == "bert")
    assert found["prediction_logits"].shape == (3, 24, ENTRIES)
    assert found["prediction_logits"].dtype == np.float32


def test_batch_and_length_are_free_and_the_tables_size_is_the_limit(written: Path) -> None:
    session = onnxruntime.InferenceSession(written / ONNX_FILE)
    assert {entry.name: (entry.type, entry.shape) for entry in session.get_inputs()} == {
        name: ("tensor(int64)", ["batch", "sequence"]) for name in ("input_ids", "attention_mask", "token_type_ids")
    }
    for rows, length in ((1, 1), (2, 64)):
        ones = np.ones((rows, length), dtype=np.int64)
        hidden = session.run(["last_hidden_state"], {"input_ids": ones, "attention_mask": ones, "token_type_ids": ones})
        assert hidden[0].shape == (rows, length, 32)
    ones = np.ones((1, 65), dtype=np.int64)
    with pytest.raises(onnxruntime.capi.onnxruntime_pybind11_state.Fail, match="64 by 65"):
        session.run(None, {"input_ids": ones, "attention_mask": ones, "token_type_ids": ones})


def test_a_row_of_padding_alone_gives_numbers(written: Path) -> None:
    session = onnxruntime.InferenceSession(written / ONNX_FILE)
    zeros = np.zeros((2, 7), dtype=np.int64)
    outputs = session.run(None, {"input_ids": zeros, "attention_mask": zeros, "token_type_ids": zeros})
    assert all(np.isfinite(output).all() for output in outputs)


def test_weights_are_beside_the_graph_and_the_table_of_tokens_is_there_once(tmp_path: Path) -> None:
    model = random_model(CONFIGS["bert"], 3 * 4093, seed=1, dtype=torch.float32)
    write_onnx_model(model, tmp_path)
    named = onnx.load(tmp_path / ONNX_FILE, load_external_data=False).graph.initializer
    places = [{it.key: it.value for it in tensor.external_data} for tensor in named if tensor.external_data]
    assert {place["location"] for place in places} == {WEIGHTS_FILE}, "a name without a folder"
    count = sum(weights.numel() for weights in model.unpadded_weights().values())
    # Biases of a few numbers are in the graph.
    assert 0.99 < (tmp_path / WEIGHTS_FILE).stat().st_size / (4 * count) < 1.1
    tables = [tensor for tensor in onnx.load(tmp_path / ONNX_FILE).graph.initializer if 3 * 4093 in tensor.dims]
    (table,) = [onnx.numpy_helper.to_array(tensor) for tensor in tables if len(tensor.dims) == 2]
    assert table.tobytes() == model.embeddings.tokens.weight[: 3 * 4093].detach().numpy().tobytes()


def test_the_same_model_gives_the_same_bytes(written: Path, tmp_path: Path) -> None:
    write_onnx_model(small_model(), tmp_path)
    for file in (ONNX_FILE, WEIGHTS_FILE):
        assert (tmp_path / file).read_bytes() == (written / file).read_bytes()
