"""A fine-tuned model loads by transformers' Auto classes and in ONNX Runtime, with its names and the same numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from transformers import AutoModelForQuestionAnswering, AutoModelForSequenceClassification, AutoTokenizer, pipeline

from bert_trainer.checkpoints.model_export import export_model
from bert_trainer.dataset.tokens.wordpiece import Vocabulary, read_vocabulary, train_vocabulary
from bert_trainer.errors import InputError
from bert_trainer.model.task_model import TaskModel
from random_rows import model_config
from task_rows import CLASSES, random_task_model, task_rows

TEXT = ["The quick brown fox jumps over the lazy dog; the dog sleeps on.", "東京 and Café are words, too."]
LENGTHS = (24, 8, 17)
LABELS = ("entailment", "neutral", 'a "third": 東京 \ud800')
KINDS = ("classification", "regression", "spans")
ARCHITECTURES = ("bert", "distilbert")

each_kind = pytest.mark.parametrize("kind", KINDS)
each_architecture = pytest.mark.parametrize("architecture", ARCHITECTURES)


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Vocabulary:
    path = tmp_path_factory.mktemp("vocabulary") / "given.txt"
    path.write_bytes(train_vocabulary(TEXT * 2, size=90, lower_case=True))
    return read_vocabulary(path)


def make_model(architecture: str, kind: str, vocabulary: Vocabulary, dtype: torch.dtype = torch.float32) -> TaskModel:
    config = model_config(32, architecture=architecture, objective="mlm", hidden_dropout=0.15)
    return random_task_model(config, kind, vocabulary.size, dtype=dtype)


def export(form: str, model: TaskModel, vocabulary: Vocabulary, folder: Path) -> Path:
    labels = LABELS if model.head_config.kind == "classification" else ()
    export_model(form, model, vocabulary, folder, lower_case=True, labels=labels, card="# A model\n")
    return folder


def our_logits(model: TaskModel, vocabulary: Vocabulary) -> tuple[np.ndarray[Any, Any], dict[str, torch.Tensor]]:
    """Return logits of three rows, and the rows padded."""
    rows = task_rows(model.head_config.kind, LENGTHS, vocabulary_size=vocabulary.size, seed=4)
    batch, _ = rows.batch(range(3))
    with torch.no_grad():
        found = model.logits(batch).float().numpy()
    return found, rows.padded(range(3), segments=model.config.architecture == "bert")


@each_kind
@each_architecture
def test_transformers_loads_it_by_its_task_and_gives_the_same_logits(
    tmp_path: Path, vocabulary: Vocabulary, architecture: str, kind: str
) -> None:
    model = make_model(architecture, kind, vocabulary)
    folder = export("huggingface", model, vocabulary, tmp_path / "export")
    assert sorted(path.name for path in folder.iterdir()) == [
        "README.md", "config.json", "model.safetensors", "special_tokens_map.json", "tokenizer.json",
        "tokenizer_config.json", "vocab.txt",
    ]  # fmt: skip
    auto: Any = AutoModelForQuestionAnswering if kind == "spans" else AutoModelForSequenceClassification
    theirs, loading = auto.from_pretrained(folder, output_loading_info=True)
    assert not any(loading.values()), "nothing is missing, unexpected or of another shape"
    family = "DistilBert" if architecture == "distilbert" else "Bert"
    expected = f"{family}For{'QuestionAnswering' if kind == 'spans' else 'SequenceClassification'}"
    assert (type(theirs).__name__, theirs.config.architectures) == (expected, [expected])
    logits, inputs = our_logits(model, vocabulary)
    with torch.no_grad():
        found = theirs.eval()(**inputs)
    if kind == "spans":
        is_real = inputs["attention_mask"].bool()
        theirs_N2 = torch.stack([found.start_logits, found.end_logits], dim=-1)[is_real]
        np.testing.assert_allclose(theirs_N2.numpy(), logits, rtol=1e-5, atol=1e-5)
    else:
        np.testing.assert_allclose(found.logits.numpy(), logits, rtol=1e-5, atol=1e-5)


@each_architecture
def test_the_configuration_names_classes_and_problem(tmp_path: Path, vocabulary: Vocabulary, architecture: str) -> None:
    dropout = "classifier_dropout" if architecture == "bert" else "seq_classif_dropout"
    written = {}
    for kind in KINDS:
        folder = export("huggingface", make_model(architecture, kind, vocabulary), vocabulary, tmp_path / kind)
        written[kind] = json.loads((folder / "config.json").read_text())
    classes = written["classification"]
    assert classes["id2label"] == {"0": LABELS[0], "1": LABELS[1], "2": LABELS[2]}
    assert classes["label2id"] == {LABELS[0]: 0, LABELS[1]: 1, LABELS[2]: 2}
    assert classes["problem_type"] == "single_label_classification"
    assert classes[dropout] == (0.15 if architecture == "bert" else 0.2)
    assert written["regression"]["id2label"] == {"0": "rating"}
    assert written["regression"]["problem_type"] == "regression"
    assert not {"id2label", "problem_type", dropout} & written["spans"].keys()


def test_a_pipeline_answers_with_the_names_of_classes(tmp_path: Path, vocabulary: Vocabulary) -> None:
    model = make_model("bert", "classification", vocabulary)
    folder = export("huggingface", model, vocabulary, tmp_path / "export")
    answers = pipeline("text-classification", model=str(folder))(TEXT[0], top_k=None)
    assert sorted(answer["label"] for answer in answers) == sorted(LABELS)
    inputs = AutoTokenizer.from_pretrained(folder)(TEXT[0], return_tensors="pt")
    with torch.no_grad():
        shares = AutoModelForSequenceClassification.from_pretrained(folder)(**inputs).logits[0].softmax(-1)
    assert answers[0]["label"] == LABELS[int(shares.argmax())]
    assert answers[0]["score"] == pytest.approx(float(shares.max()), abs=1e-6)


@each_kind
@each_architecture
def test_the_graph_computes_the_same_on_padded_rows(
    tmp_path: Path, vocabulary: Vocabulary, architecture: str, kind: str
) -> None:
    model = make_model(architecture, kind, vocabulary, torch.float64)
    folder = export("onnx", model, vocabulary, tmp_path / "export")
    onnx.checker.check_model(folder / "model.onnx", full_check=True)
    logits, inputs = our_logits(model, vocabulary)
    session = onnxruntime.InferenceSession(folder / "model.onnx")
    assert [entry.name for entry in session.get_inputs()] == list(inputs)
    found = session.run(None, {name: tensor.numpy() for name, tensor in inputs.items()})
    outputs = {entry.name: (entry.shape, array) for entry, array in zip(session.get_outputs(), found, strict=True)}
    if kind == "spans":
        assert {name: shape for name, (shape, _) in outputs.items()} == {
            "start_logits": ["batch", "sequence"], "end_logits": ["batch", "sequence"]
        }  # fmt: skip
        is_real = inputs["attention_mask"].bool().numpy()
        found_N2 = np.stack([outputs["start_logits"][1], outputs["end_logits"][1]], axis=-1)[is_real]
        np.testing.assert_allclose(found_N2, logits, rtol=1e-5, atol=1e-5)
    else:
        assert outputs["logits"][0] == ["batch", CLASSES if kind == "classification" else 1]
        np.testing.assert_allclose(outputs["logits"][1], logits, rtol=1e-5, atol=1e-5)


@each_kind
def test_the_names_of_tensorflows_code_have_no_form_for_it(tmp_path: Path, vocabulary: Vocabulary, kind: str) -> None:
    with pytest.raises(InputError, match="got 'tensorflow' for a fine-tuned model; allowed: huggingface or onnx"):
        export("tensorflow", make_model("bert", kind, vocabulary), vocabulary, tmp_path / "export")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("labels", [(), ("a", "b"), ("a", "b", "b")])
def test_names_that_are_not_one_for_each_class_are_refused(
    tmp_path: Path, vocabulary: Vocabulary, labels: tuple[str, ...]
) -> None:
    model = make_model("bert", "classification", vocabulary)
    with pytest.raises(ValueError, match="allowed: 3 different ones"):
        export_model("huggingface", model, vocabulary, tmp_path / "export", lower_case=True, labels=labels)
