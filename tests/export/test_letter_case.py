"""Whether an exported tokenizer drops capitals: as the text was prepared, or as the weights that a run began with say.

Inputs: shards without a description of their own, and folders of weights with and without a tokenizer's settings.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from bert_job.run_stages import PrepareStage
from bert_job.weights import InitialCheckpointSpec
from bert_trainer.checkpoints.model_export import export_model
from bert_trainer.dataset.tokens.wordpiece import SPECIAL_TOKENS, read_vocabulary
from bert_trainer.parallel.world import SingleRank
from bert_trainer.training.letter_case import lower_case_of
from bert_trainer.training.session import Session
from in_process import train
from tiny_run import pretrain_stage, run_config, write_dataset

PREPARE = PrepareStage(text="builtin:demo", lower_case=False)


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Session:
    folder = tmp_path_factory.mktemp("foreign")
    config = run_config(folder / "run", write_dataset(folder / "data"), stages=[pretrain_stage(length={"steps": 3})])
    session = Session.open(config, SingleRank(), attempt=1)
    session.close()
    return session


def start(folder: Path, load: str = "weights") -> InitialCheckpointSpec:
    return InitialCheckpointSpec.model_validate({"path": str(folder), "format": "huggingface", "load": load})


def write_settings(folder: Path, text: str) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "tokenizer_config.json").write_text(text)
    return folder


def test_a_cased_model_that_went_on_with_another_programs_shards_is_exported_cased(
    session: Session, tmp_path: Path
) -> None:
    cased = tmp_path / "cased"
    export_model("huggingface", session.learner.model, session.data.vocabulary, cased, lower_case=False)
    begun_with = {"path": str(cased), "format": "huggingface", "load": "weights"}
    stages = [pretrain_stage(length={"steps": 3}), {"kind": "export"}]
    train(
        run_config(tmp_path / "run", Path(session.config.dataset.folder), stages=stages, initial_checkpoint=begun_with)
    )
    folder = tmp_path / "run" / "export" / "huggingface"
    assert AutoTokenizer.from_pretrained(folder).tokenize("w1 W2") == ["w1", "[UNK]"]
    assert "Text is cased." in (folder / "README.md").read_text()


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ('{"do_lower_case": false}', False),
        ('{"do_lower_case": true}', True),
        ('{"do_lower_case": "no"}', True),
        ("{}", True),
        ("[" * 100_000, True),
    ],
    ids=["cased", "lower-case", "no truth value", "unsaid", "hostile"],
)
@pytest.mark.usefixtures("no_collection")
def test_the_weights_that_a_run_began_with_say_it(
    session: Session, tmp_path: Path, settings: str, expected: bool
) -> None:
    # The vocabulary, the last to be asked, has no capital letter.
    begun_with = start(write_settings(tmp_path, settings))
    assert lower_case_of(session.config.stages, begun_with, session.data) is expected


def test_weights_that_were_only_looked_at_say_nothing(session: Session, tmp_path: Path) -> None:
    folder = write_settings(tmp_path, '{"do_lower_case": false}')
    assert lower_case_of(session.config.stages, start(folder, load="none"), session.data) is True


def test_the_prepare_stage_has_the_first_word(session: Session, tmp_path: Path) -> None:
    begun_with = start(write_settings(tmp_path, '{"do_lower_case": true}'))
    assert lower_case_of((PREPARE, *session.config.stages), begun_with, session.data) is False


@pytest.mark.parametrize(("words", "expected"), [(["a", "b"], True), (["a", "B"], False)])
def test_without_settings_capital_letters_in_the_vocabulary_tell(
    session: Session, tmp_path: Path, words: list[str], expected: bool
) -> None:
    file = tmp_path / "vocab.txt"
    file.write_text("\n".join([*SPECIAL_TOKENS, *words]) + "\n")
    data = replace(session.data, vocabulary=read_vocabulary(file))
    assert lower_case_of(session.config.stages, None, data) is expected
