"""A run whose model a file describes trains as one whose sizes the job gives, and resumes with what it began with.

Inputs: the toy data set and a ``bert_config.json`` of the tiny model. Observed: the parameters after training, bit by
bit; the refusal of another vocabulary.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from bert_job.run_config import RunConfig
from bert_trainer.__main__ import main
from bert_trainer.config.checks import parse_run_config
from bert_trainer.errors import InputError
from bert_trainer.parallel.world import SingleRank
from bert_trainer.training.session import Session
from in_process import run_to_end, train
from tiny_run import VOCABULARY_SIZE, pretrain_stage, run_config, run_document, write_dataset

SAME = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "max_position_embeddings")
KEYS = {
    **{name: name for name in (*SAME, "initializer_range")},
    "hidden_act": "hidden_activation",
    "hidden_dropout_prob": "hidden_dropout",
    "attention_probs_dropout_prob": "attention_dropout",
}
"""A file's keys, and our names."""


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    return write_dataset(tmp_path / "data")


def document_from_file(folder: Path, dataset: Path, *, layers: int = 1, words: int = VOCABULARY_SIZE) -> dict[str, Any]:
    """Write the tiny model's file and return a run that names it."""
    document = run_document(folder, dataset, stages=[pretrain_stage(length={"steps": 4})])
    sizes = {key: document["model"][name] for key, name in KEYS.items()}
    file = dataset / "bert_config.json"
    content = {**sizes, "num_hidden_layers": layers, "type_vocab_size": 2, "vocab_size": words}
    file.write_text(json.dumps(content))
    model = {"config_file": str(file), "layer_norm_epsilon": 1e-12, "vocabulary_pad_multiple": 8, "objective": None}
    return {**document, "model": model}


def from_file(folder: Path, dataset: Path, **changes: int) -> RunConfig:
    return parse_run_config(document_from_file(folder, dataset, **changes))


def test_it_trains_bit_by_bit_as_with_sizes(tmp_path: Path, dataset: Path) -> None:
    by_file = train(from_file(tmp_path / "file", dataset))
    by_sizes = train(run_config(tmp_path / "sizes", dataset, stages=[pretrain_stage(length={"steps": 4})]))
    assert torch.equal(by_file.learner.parameters.values, by_sizes.learner.parameters.values)


def test_a_resumed_run_does_not_notice_that_the_file_has_changed(tmp_path: Path, dataset: Path) -> None:
    config = from_file(tmp_path / "run", dataset)
    first = train(config)
    from_file(tmp_path / "run", dataset, layers=2)
    again = Session.open(config, SingleRank(), attempt=2)
    run_to_end(again)
    assert again.resumed_from is not None
    assert torch.equal(again.learner.parameters.values, first.learner.parameters.values)


def test_a_vocabulary_of_another_size_is_refused_with_the_file_that_names_it(tmp_path: Path, dataset: Path) -> None:
    config = from_file(tmp_path / "run", dataset, words=62)
    words = r"has 61 entries, model.vocabulary_size of .*bert_config.json says 62(.|\n)*or a file with vocab_size 61"
    with pytest.raises(InputError, match=words):
        Session.open(config, SingleRank(), attempt=1)


def test_a_check_reads_the_file(tmp_path: Path, dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run-config.json"
    path.write_text(json.dumps(document_from_file(tmp_path / "run", dataset)))
    assert main(["--config", str(path), "--check"]) == 0
    (dataset / "bert_config.json").write_text("{}")
    assert main(["--config", str(path), "--check"]) == 2
    assert "model.config_file" in capsys.readouterr().err
