"""The card of a fine-tuned model: every figure beside its baseline, and names that are neither markup nor YAML."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest
from huggingface_hub import ModelCard

from bert_trainer.checkpoints.fine_tuned_card import Runs, Score, TaskFacts, render_fine_tuned_card
from bert_trainer.checkpoints.model_card import ModelFacts, TrainedStage

FACTS = ModelFacts(
    name="demo",
    form="huggingface",
    architecture="bert",
    objective="mlm+nsp",
    lower_case=True,
    sizes=[("layers", "2")],
    data_name="wiki",
    languages=["en"],
    data=[("documents held out", "1,000")],
    stages=[TrainedStage("phase1", 128, 256, 1000, 4e-4, 2.5, "9,999 samples in 8 shards")],
    measurements=[],
    run=[("precision", "bf16")],
)
TASK = TaskFacts(
    name="mrpc",
    kind="classification",
    labels=("0", "1"),
    data_name="MRPC",
    validation_name="MRPC",
    is_pair=True,
    started_from="the pretraining below",
    settings=[("tokens per row, at most", "96"), ("epochs", "3")],
    data=[("examples to train on", "3,668")],
    scores=[Score("f1", 0.8894, 0.8122), Score("accuracy", 0.8407, None)],
    runs=Runs(metric="f1", best_seed=44, best_epoch=2.5, count=5, mean=0.8711, deviation=0.0123),
)
HOSTILE = ["</td><script>alert(1)</script>", "a\n---\nlicense: mit", "| a | b |\n|---|---|", "x" * 5000, "", "\ud800"]


def metadata(card: str) -> dict[str, Any]:
    """Return the front matter as the Hub finds it."""
    return ModelCard(card, ignore_metadata_errors=False).data.to_dict()


def test_the_front_matter_names_task_and_metrics() -> None:
    found = metadata(render_fine_tuned_card(FACTS, TASK))
    assert (found["pipeline_tag"], found["library_name"]) == ("text-classification", "transformers")
    assert found["tags"] == ["bert", "fine-tuned", "mrpc", "transformers"]
    (result,) = found["model-index"][0]["results"]
    assert result["task"] == {"type": "text-classification", "name": "mrpc"}
    assert result["dataset"] == {"type": "MRPC", "name": "MRPC, validation"}
    assert [(it["name"], it["value"]) for it in result["metrics"]] == [("f1", 0.8894), ("accuracy", 0.8407)]


def test_every_metric_stands_beside_its_baseline_and_the_mean_of_the_runs() -> None:
    card = render_fine_tuned_card(FACTS, TASK)
    assert (
        "A BERT encoder with a head for one of 2 classes for a pair of texts, fine-tuned on MRPC (task mrpc) from "
        "the pretraining below. Text is lower-cased, without accents." in card
    )
    assert "| metric | this model | always the most frequent class |" in card
    assert "| f1 | 0.8894 | 0.8122 |" in card
    assert "| accuracy | 0.8407 | – |" in card
    assert "Chosen by f1: epoch 2.5 of seed 44." in card
    assert "over the best evaluations of 5 runs: 0.8711 ± 0.0123 (sample standard deviation)" in card
    assert "| 1 | 1 |" in card.partition("## Classes")[2]
    assert "| examples to train on | 3,668 |" in card
    assert "| phase1 | 128 | 256 | 1,000 |" in card.partition("## Pretraining")[2]


def test_one_run_has_no_spread_and_no_pretraining_no_section() -> None:
    runs = dataclasses.replace(TASK.runs, count=1, deviation=None)
    card = render_fine_tuned_card(dataclasses.replace(FACTS, stages=[]), dataclasses.replace(TASK, runs=runs))
    assert "±" not in card
    assert "Mean" not in card
    assert "retraining\n" not in card


@pytest.mark.parametrize(
    ("kind", "tag", "baseline"),
    [
        ("regression", "text-classification", "always the mean rating"),
        ("spans", "question-answering", "always the same answer"),
    ],
)
@pytest.mark.parametrize("form", ["huggingface", "onnx"])
def test_other_kinds_have_their_own_words_and_use(form: str, kind: Any, tag: str, baseline: str) -> None:
    task = dataclasses.replace(TASK, kind=kind, labels=())
    card = render_fine_tuned_card(dataclasses.replace(FACTS, form=form), task)
    assert metadata(card)["pipeline_tag"] == tag
    assert baseline in card
    assert "## Classes" not in card
    (code,) = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
    compile(code, "use", "exec")
    assert ("96" in code) == ((form, kind) != ("huggingface", "regression")), "rows as long as in training"


def test_weights_without_an_evaluation_say_so() -> None:
    card = render_fine_tuned_card(FACTS, dataclasses.replace(TASK, scores=[]))
    assert "These weights have not been evaluated." in card
    assert "model-index" not in metadata(card)


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_names_are_text(text: str) -> None:
    task = dataclasses.replace(TASK, data_name=text, validation_name=text, labels=(text, "b"), started_from=text)
    card = render_fine_tuned_card(dataclasses.replace(FACTS, name=text), task)
    assert "<script>" not in card.partition("---\n")[2].partition("\n---\n")[2]
    assert "license" not in metadata(card)
    assert max(map(len, card.splitlines())) < 2000
    card.encode()


def test_many_classes_are_counted() -> None:
    card = render_fine_tuned_card(FACTS, dataclasses.replace(TASK, labels=[f"c{n}" for n in range(1003)]))
    assert "| 99 | c99 |" in card
    assert "c100 " not in card
    assert "And 903 more, which `config.json` names." in card


def test_files_of_one_s_own_are_each_named_for_what_they_were_used() -> None:
    card = render_fine_tuned_card(FACTS, dataclasses.replace(TASK, data_name="a.csv", validation_name="b.csv"))
    assert "fine-tuned on a.csv (task mrpc)" in card
    (result,) = metadata(card)["model-index"][0]["results"]
    assert result["dataset"] == {"type": "b.csv", "name": "b.csv"}


@pytest.mark.parametrize("kind", ["classification", "regression"])
def test_single_texts_are_shown_without_a_pair(kind: Any) -> None:
    task = dataclasses.replace(TASK, kind=kind, labels=("0", "1") if kind == "classification" else (), is_pair=False)
    pipeline = render_fine_tuned_card(FACTS, task)
    assert 'print(classifier("a text", truncation=True))' in pipeline
    graph = render_fine_tuned_card(dataclasses.replace(FACTS, form="onnx"), task)
    assert 'rows = tokenizer.encode_batch(["a text", "another"])' in graph
    for card in (pipeline, graph):
        assert "pair" not in card
        assert " a text, fine-tuned on MRPC" in card


def test_pairs_are_shown_as_pairs() -> None:
    assert 'print(classifier({"text": "a text", "text_pair": "the other text of the pair"}, truncation=True))' in (
        render_fine_tuned_card(FACTS, TASK)
    )
    graph = render_fine_tuned_card(dataclasses.replace(FACTS, form="onnx"), TASK)
    assert 'encode_batch([("a text", "the other text of the pair"), ("another text", "and its pair")])' in graph
