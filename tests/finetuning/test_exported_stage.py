"""An export stage behind a finetune stage writes its best weights, with a card that is true."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from huggingface_hub import ModelCard
from transformers import AutoModelForSequenceClassification, AutoTokenizer, pipeline

from bert_job.run_stages import FinetuneStage
from bert_trainer.config.checks import parse_run_config
from bert_trainer.errors import TrainerError
from bert_trainer.output.metrics import read_metrics
from bert_trainer.parallel.world import SingleRank
from bert_trainer.training.finetuning.best import load_finetuned
from bert_trainer.training.model_export import export_and_report
from bert_trainer.training.session import Session
from in_process import train
from tiny_finetune import finetune_document, finetune_stage, write_task
from tiny_run import pretrain_stage, run_document, write_dataset, write_vocabulary
from whole_configs import whole_stage

EXPORT = whole_stage({"kind": "export"})
GRAPH = {**EXPORT, "name": "graph", "format": "onnx"}
OFFICIAL = Path(__file__).parents[1] / "fixtures/tasks/glue"
TEXTS = ["w7 w5 w9", "w7 w8 w9", "w30 w31 W5"]


def table_of(card: str, section: str) -> str:
    return card.partition(f"## {section}\n")[2].partition("\n## ")[0]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Session, Path]:
    """Return a run that pretrains, exports, fine-tunes two seeds from that, exports, and fine-tunes from nothing."""
    folder = tmp_path_factory.mktemp("cluster-volume-7")
    task = write_task(folder / "task")
    early = {**EXPORT, "name": "early"}
    stages = [
        pretrain_stage("phase1", length={"steps": 3}),
        early,
        finetune_stage(task, "rule", start_from="pretrained", run_seeds=[42, 43]),
        {**EXPORT, "name": "fine"},
        GRAPH,
        finetune_stage(task, "again", epochs=1, learning_rate_scaling="sqrtRanks"),
        EXPORT,
    ]
    config = parse_run_config(run_document(folder / "run", write_dataset(folder / "wiki"), stages=stages))
    return train(config), folder / "run"


def card_of(run: tuple[Session, Path], name: str) -> str:
    return (run[1] / "export" / name / "README.md").read_text()


def test_every_export_has_what_the_training_stage_before_it_left(run: tuple[Session, Path]) -> None:
    kinds = {}
    for folder in sorted((run[1] / "export").iterdir()):
        kinds[folder.name] = json.loads((folder / "config.json").read_text())["architectures"]
    assert kinds == {
        "huggingface": ["BertForSequenceClassification"],
        "huggingface-early": ["BertForPreTraining"],
        "huggingface-fine": ["BertForSequenceClassification"],
        "onnx": ["BertForSequenceClassification"],
    }
    session, exports = run[0], run[1] / "export"
    for name, index in (("huggingface-fine", 2), ("huggingface", 5)):
        theirs = AutoModelForSequenceClassification.from_pretrained(exports / name)
        stage = session.config.stages[index]
        assert isinstance(stage, FinetuneStage)
        ours, _ = load_finetuned(Path(session.config.output_folder), stage, session.learner.model)
        assert torch.equal(theirs.classifier.weight, ours.head.weight)
        assert torch.equal(theirs.bert.encoder.layer[0].output.dense.weight, ours.layers[0].ffn_out.weight)


def test_texts_get_the_same_classes_by_name_everywhere(run: tuple[Session, Path]) -> None:
    folder = run[1] / "export" / "huggingface-fine"
    assert json.loads((folder / "config.json").read_text())["id2label"] == {"0": "no", "1": "yes"}
    answers = pipeline("text-classification", model=str(folder))(TEXTS, top_k=None)
    inputs = AutoTokenizer.from_pretrained(folder)(TEXTS, padding=True, return_tensors="np")
    session = onnxruntime.InferenceSession(run[1] / "export" / "onnx" / "model.onnx")
    (logits,) = session.run(None, {it.name: inputs[it.name].astype(np.int64) for it in session.get_inputs()})
    shares = torch.from_numpy(logits).softmax(-1)
    for answer, of_row in zip(answers, shares, strict=True):
        assert {it["label"]: it["score"] for it in answer} == pytest.approx(
            {"no": float(of_row[0]), "yes": float(of_row[1])}, abs=1e-5
        )


def test_the_card_states_scores_baselines_and_all_seeds(run: tuple[Session, Path]) -> None:
    card, best_folder = card_of(run, "huggingface-fine"), run[1] / "finetune" / "rule" / "best"
    best = json.loads((best_folder / "result.json").read_text())
    (end,) = [it for it in read_metrics(run[1]) if (it.get("stage"), it.get("when")) == ("rule", "after")]
    assert "fine-tuned on train.tsv (task classification) from the pretraining below. Text is lower-cased" in card
    for name, value in best["metrics"].items():
        assert f"| {name} | {value:.4f} | {end[f'majority_{name}']:.4f} |" in card
    assert best["metrics"].keys() == {"accuracy", "f1"}
    assert f"epoch {best['epoch']:g} of seed {best['seed']}." in card
    assert f"runs: {end['mean']:.4f} ± {end['std']:.4f} (sample standard deviation)" in card
    settings = table_of(card, "Fine-tuning")
    assert "| seeds | 42, 43 |" in settings
    assert "| peak learning rate | 0.003, linear decay |" in settings
    assert "| examples to train on | 50 in 50 rows |" in settings
    assert "| examples evaluated on | 24 |" in settings
    weights = hashlib.sha256((best_folder / "model.safetensors").read_bytes()).hexdigest()
    assert f"| best weights, SHA-256 | {weights} |" in card
    assert "| phase1 | 32 | 16 | 3 |" in table_of(card, "Pretraining")
    assert "cluster-volume-7" not in card


def test_a_stage_from_random_weights_says_so_and_shows_no_pretraining(run: tuple[Session, Path]) -> None:
    card = card_of(run, "huggingface")
    assert "fine-tuned on train.tsv (task classification) from random weights." in card
    assert "phase1" not in card
    assert "±" not in card, "one run has no spread"


def test_the_early_export_is_the_pretrained_model(run: tuple[Session, Path]) -> None:
    assert "It has been trained for no task but pretraining." in card_of(run, "huggingface-early")


@pytest.mark.parametrize("name", ["huggingface-fine", "huggingface", "onnx"])
def test_the_hub_reads_the_cards(run: tuple[Session, Path], name: str) -> None:
    found = ModelCard(card_of(run, name), ignore_metadata_errors=False).data.to_dict()
    assert found["pipeline_tag"] == "text-classification"
    assert [it["name"] for it in found["model-index"][0]["results"][0]["metrics"]] == ["accuracy", "f1"]


def test_an_official_task_has_its_names_for_classes(tmp_path: Path) -> None:
    task = write_vocabulary(tmp_path / "task")
    stage = finetune_stage(task, "sst-2", task="sst-2", data={"folder": str(OFFICIAL)}, epochs=1)
    session = train(parse_run_config(finetune_document(tmp_path / "run", task, stage, EXPORT, checkpoint={})))
    session.close()
    export = tmp_path / "run" / "export" / "huggingface"
    assert json.loads((export / "config.json").read_text())["id2label"] == {"0": "negative", "1": "positive"}
    card = (export / "README.md").read_text()
    assert "| 1 | positive |" in table_of(card, "Classes")
    assert "for one of 2 classes for a text, fine-tuned on SST-2 (task sst-2)" in card
    written = (tmp_path / "run" / "finetune" / "sst-2" / "predictions" / "SST-2.tsv").read_text()
    assert {line.partition("\t")[2] for line in written.splitlines()[1:]} <= {"0", "1"}, "as GLUE's server takes them"


def test_weights_that_were_damaged_since_are_not_exported(tmp_path: Path) -> None:
    task = write_task(tmp_path / "task", train=12, validation=4, test=2)
    document: dict[str, Any] = finetune_document(
        tmp_path / "run", task, finetune_stage(task, epochs=1), EXPORT, checkpoint={}
    )
    session = train(parse_run_config(document))
    weights = tmp_path / "run" / "finetune" / "rule" / "best" / "model.safetensors"
    damaged = bytearray(weights.read_bytes())
    damaged[-1] ^= 1
    weights.write_bytes(damaged)
    again = Session.open(session.config, SingleRank(), attempt=2)
    with pytest.raises(TrainerError, match="finetune/rule/best"):
        export_and_report(again, 1, again.config.stages[1])  # type: ignore[arg-type]
    again.close()
    assert [path.name for path in (tmp_path / "run" / "export").iterdir()] == ["huggingface"], "the first one stays"
