"""Text that is split already needs no tokenizer: pretraining goes on with weights whose own is not carried out here.

Inputs: a prepared data set, and one without a description; weights whose tokenizer has added words or is another's.
Observed: the warning, the vocabulary, and a refusal where text would yet have to be split.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bert_trainer.checkpoints.model_export import export_model
from bert_trainer.dataset.shards.dataset_info import DATASET_FILE
from bert_trainer.dataset.tokens.wordpiece import read_vocabulary
from bert_trainer.errors import InputError
from bert_trainer.model.bert import Bert
from bert_trainer.parallel.world import SingleRank
from bert_trainer.training.session import Session
from in_process import train
from shard_runs import describe_build
from tiny_run import pretrain_stage, run_config, write_dataset

ADDED = ("added_tokens.json", '{"covid": 45}', "tokens: got the tokens 'covid'")
FOREIGN = ("tokenizer_config.json", '{"tokenizer_class": "CamembertTokenizer"}', "tokenizer_class")


def write_weights(folder: Path, dataset: Path) -> Path:
    config = run_config(folder, dataset)
    vocabulary = read_vocabulary(dataset / "vocab.txt")
    model = Bert(config.sizes, len(vocabulary.tokens))
    model.initialize(1)
    export_model("huggingface", model, vocabulary, folder, lower_case=True)
    return folder


def start(weights: Path) -> dict[str, object]:
    return {"path": str(weights), "format": "huggingface", "load": "weights"}


@pytest.mark.parametrize(("name", "content", "said"), [ADDED, FOREIGN], ids=["added", "foreign"])
def test_pretraining_on_prepared_text_goes_on_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, content: str, said: str
) -> None:
    dataset = write_dataset(tmp_path / "data")
    describe_build(dataset, complete=True)
    weights = write_weights(tmp_path / "weights", dataset)
    (weights / name).write_text(content)
    config = run_config(tmp_path / "run", dataset, initial_checkpoint=start(weights))
    session = Session.open(config, SingleRank(), attempt=1)
    session.close()
    assert session.data.vocabulary == read_vocabulary(dataset / "vocab.txt")
    (warning,) = [record.message for record in caplog.records if said in record.message]
    assert warning.startswith(f"{weights / name}: ")
    assert warning.endswith("which is what counts")
    assert not (tmp_path / "run" / "tokenizer_config.json").exists()


def test_a_run_that_has_trained_goes_on_as_it_began(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    dataset = write_dataset(tmp_path / "data")
    assert not (dataset / DATASET_FILE).exists()
    weights = write_weights(tmp_path / "weights", dataset)
    said = json.loads((weights / "tokenizer_config.json").read_text())
    stages = [pretrain_stage(length={"steps": 3})]
    config = run_config(tmp_path / "run", dataset, stages=stages, initial_checkpoint=start(weights))
    train(config)
    # An earlier release kept no record, and heeded neither of these.
    (tmp_path / "run" / "tokenizer_config.json").unlink(missing_ok=True)
    for changed in ({**said, "strip_accents": False}, {**said, "tokenizer_class": "CamembertTokenizer"}):
        (weights / "tokenizer_config.json").write_text(json.dumps(changed))
        caplog.clear()
        session = Session.open(config, SingleRank(), attempt=2)
        session.close()
        assert session.data.vocabulary == read_vocabulary(dataset / "vocab.txt")
        assert [record for record in caplog.records if "which is what counts" in record.message]


def test_a_new_run_whose_text_nothing_describes_is_refused(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "data")
    weights = write_weights(tmp_path / "weights", dataset)
    (weights / ADDED[0]).write_text(ADDED[1])
    with pytest.raises(InputError, match=ADDED[2]):
        Session.open(run_config(tmp_path / "run", dataset, initial_checkpoint=start(weights)), SingleRank(), attempt=1)
