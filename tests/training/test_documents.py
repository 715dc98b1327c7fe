"""Training on shards of documents: the same on any number of ranks, attention inside documents unless asked otherwise.

Inputs: sixty documents of a few words, built as rows of documents; a model of one layer, fp64, dropout 0.1.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file

from at_step import AtStep
from bert_job.run_config import DatasetConfig, RunConfig
from bert_job.run_stages import PrepareStage
from bert_trainer.config.checks import parse_run_config
from bert_trainer.dataset.build.pipeline import build_dataset
from bert_trainer.errors import InputError
from bert_trainer.output.metrics import read_metrics
from bert_trainer.parallel.world import SingleRank
from bert_trainer.training.run import run_stages
from bert_trainer.training.session import Session
from shard_runs import evaluate_stage
from silent import Silent
from threaded_world import ThreadedWorld, run_threads
from tiny_run import MODEL, PREDICTIONS, SEQUENCE_LENGTH, pretrain_stage, run_document

LENGTH = (SEQUENCE_LENGTH, PREDICTIONS)


def build(folder: Path, **settings: Any) -> Path:
    rng = np.random.default_rng(3)
    words = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta"]
    text = folder / "text.txt"
    folder.mkdir(parents=True, exist_ok=True)
    text.write_text(
        "\n\n".join(
            "\n".join(" ".join(rng.choice(words, rng.integers(3, 9)).tolist()) for _ in range(rng.integers(1, 9)))
            for _ in range(60)
        )
    )
    stage = PrepareStage(text=str(text), vocabulary_size=120, num_shards=3, num_processes=1, **settings)
    build_dataset(stage, DatasetConfig(folder=str(folder / "data"), vocabulary_file=None), [LENGTH], Silent())
    return folder / "data"


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("documents"), samples="documents")


def config_of(folder: Path, dataset: Path, *, ranks: int = 1, objective: str = "mlm", **stage: Any) -> RunConfig:
    document = run_document(
        folder,
        dataset,
        world={"ranks": ranks, "hosts": 1},
        precision="fp64",
        model={**MODEL, "objective": objective},
        stages=[pretrain_stage(global_batch_size=11, micro_batch_size=4, **stage), evaluate_stage()],
    )
    return parse_run_config(document)


def train(folder: Path, dataset: Path, **settings: Any) -> tuple[dict[str, Any], list[float]]:
    """Return the final weights, and the losses of the steps and then of the evaluation."""
    config = config_of(folder, dataset, **settings)

    def rank(world: ThreadedWorld) -> None:
        run_stages(Session.open(config, world, attempt=1), AtStep())

    run_threads(config.world.ranks, rank)
    losses = [record["mlm_loss"] for record in read_metrics(folder) if record.get("mlm_loss") is not None]
    return load_file(next(folder.glob("checkpoints/phase1-*06")) / "model.safetensors"), losses


@pytest.mark.parametrize("masking", ["static", "dynamic"])
def test_any_number_of_ranks_gives_the_same_weights_and_losses(tmp_path: Path, masking: str) -> None:
    dataset = build(tmp_path / masking, samples="documents", masking=masking)
    weights, losses = train(tmp_path / "one", dataset, masking=masking)
    others, their_losses = train(tmp_path / "two", dataset, ranks=2, masking=masking)
    assert max(float((weights[name] - others[name]).abs().max()) for name in weights) < 1e-10
    assert losses == pytest.approx(their_losses, abs=1e-10)
    assert len(losses) == 6 + 2, "steps, and the evaluation before and after"


def test_attention_across_documents_is_asked_for(tmp_path: Path, dataset: Path) -> None:
    _, apart = train(tmp_path / "apart", dataset, cross_document_attention=False)
    _, together = train(tmp_path / "together", dataset, cross_document_attention=True)
    # From the first step on, and where the model is measured before it.
    assert all(one != other for one, other in zip(apart, together, strict=True))


def test_next_sentences_need_pairs(tmp_path: Path, dataset: Path) -> None:
    with pytest.raises(InputError, match="holds documents, in which there are no next sentences"):
        train(tmp_path, dataset, objective="mlm+nsp")


def test_attention_across_documents_needs_documents(tmp_path: Path) -> None:
    pairs = build(tmp_path / "pairs")
    with pytest.raises(InputError, match="holds pairs, and cross_document_attention of the stage phase1 is true"):
        train(tmp_path / "run", pairs, cross_document_attention=True)


def test_a_resumed_run_that_skips_lost_shards_knows_what_the_others_hold(tmp_path: Path, dataset: Path) -> None:
    copied = shutil.copytree(dataset, tmp_path / "data")
    train(tmp_path / "run", copied)
    next(copied.glob("seq_len_*/training_0000.hdf5")).unlink()
    document = config_of(tmp_path / "run", copied).model_dump(mode="json")
    document["dataset"]["on_unreadable_shard"] = "Skip"
    session = Session.open(parse_run_config(document), SingleRank(), attempt=2)
    session.close()
    assert session.data.training[0].splits_documents
    assert session.data.evaluation[1].splits_documents
