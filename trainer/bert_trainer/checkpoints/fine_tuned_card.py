"""The model card of a fine-tuned model: its task, how well it does it, and beside every figure what needs no model.

Pure, like ``model_card``, whose facts and whose rules for names it shares.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bert_job.model import ARCHITECTURES
from bert_job.tasks import Kind
from bert_trainer.checkpoints.model_card import (
    NO_LICENCE,
    ModelFacts,
    Row,
    data_id,
    escape,
    front_matter,
    metadata_of,
    one_line,
    shown_number,
    table,
    training_table,
)

_MAX_CLASSES = 100
"""Rows of the table of classes."""


@dataclass(frozen=True, slots=True)
class Score:
    """One metric of the exported weights."""

    metric: str
    """As the run's records name it."""
    value: float
    majority: float | None
    """Of always giving the most frequent class, the mean rating, or one fixed answer."""


@dataclass(frozen=True, slots=True)
class Runs:
    """Summary of the stage's runs, by the metric that selected the best one."""

    metric: str
    best_seed: int
    best_epoch: float
    count: int
    """Runs; more than seeds where every rank trained a model of its own."""
    mean: float | None
    deviation: float | None
    """Of the sample; None for one run."""


@dataclass(frozen=True, slots=True)
class TaskFacts:
    """Facts about the fine-tuning that the card states."""

    name: str
    """``mrpc``, for example."""
    kind: Kind
    labels: Sequence[str]
    """Classes by number."""
    data_name: str
    """Data set or file that was trained on, for people."""
    validation_name: str
    """The same of what was evaluated on; equal where both are parts of one data set."""
    is_pair: bool
    """Whether rows are pairs of texts, rather than single ones; those of spans are."""
    started_from: str
    """What the encoder began with, for people."""
    settings: Sequence[Row]
    data: Sequence[Row]
    scores: Sequence[Score]
    runs: Runs


def render_fine_tuned_card(facts: ModelFacts, task: TaskFacts) -> str:
    """Return the content of ``README.md``."""
    case = facts.tokenizer.describe(facts.lower_case)
    use = _USES[facts.form, task.kind].replace("TOKENS", _longest(task))
    for name, of_pairs, of_texts in _INPUTS:
        use = use.replace(name, of_pairs if task.is_pair else of_texts)
    parts = [
        front_matter(_metadata(facts, task)),
        f"# {escape(facts.name)}",
        f"A {ARCHITECTURES[facts.architecture]} encoder with a head for {_what(task)}, fine-tuned on "
        f"{escape(task.data_name)} (task {escape(task.name)}) from {escape(task.started_from)}. Text is {case}.",
        f"## Use\n\n{use}",
        *_classes(task),
        f"## Evaluation\n\n{_evaluation(task)}",
        f"## Fine-tuning\n\n{table(('', ''), [*task.settings, *task.data])}",
    ]
    if facts.stages:
        parts += [
            f"## Pretraining\n\nOn {escape(facts.data_name)}.\n\n{training_table(facts.stages)}",
            f"## Data of the pretraining\n\n{table(('', ''), facts.data)}",
        ]
    parts += [f"## Sizes\n\n{table(('', ''), facts.sizes)}", f"## Run\n\n{table(('', ''), facts.run)}", NO_LICENCE]
    return "\n\n".join(parts) + "\n"


def _what(task: TaskFacts) -> str:
    texts = "a pair of texts" if task.is_pair else "a text"
    if task.kind == "classification":
        return f"one of {len(task.labels)} classes for {texts}"
    if task.kind == "regression":
        return f"a rating of {texts}"
    return "the answer to a question as a span of its context"


def _classes(task: TaskFacts) -> list[str]:
    if task.kind != "classification":
        return []
    shown = [(str(number), label) for number, label in enumerate(task.labels[:_MAX_CLASSES])]
    rest = len(task.labels) - len(shown)
    more = f"\n\nAnd {rest:,} more, which `config.json` names." if rest else ""
    return [f"## Classes\n\n{table(('number', 'name'), shown)}{more}"]


def _evaluation(task: TaskFacts) -> str:
    if not task.scores:
        return "These weights have not been evaluated."
    runs = task.runs
    baseline = {
        "classification": "always the most frequent class",
        "regression": "always the mean rating",
        "spans": "always the same answer",
    }[task.kind]
    rows = [(it.metric, shown_number(it.value, ".4f"), shown_number(it.majority, ".4f")) for it in task.scores]
    notes = [f"Chosen by {escape(runs.metric)}: epoch {runs.best_epoch:g} of seed {runs.best_seed}."]
    if runs.count > 1:
        spread = "" if runs.deviation is None else f" ± {runs.deviation:.4f} (sample standard deviation)"
        mean = f"{shown_number(runs.mean, '.4f')}{spread}"
        notes.append(
            f"Mean {escape(runs.metric)} over the best evaluations of {runs.count} runs: {mean}. That, and not the "
            "best of them, is what another run is likely to give."
        )
    notes.append(
        "The weights were chosen on the same examples that they are evaluated on here, so examples that took no "
        "part will give somewhat less. Fractions and correlations, not percent."
    )
    return table(("metric", "this model", baseline), rows) + "\n\n" + " ".join(notes)


def _longest(task: TaskFacts) -> str:
    return next((value for name, value in task.settings if name == "tokens per row, at most"), "512")


_PIPELINE = """```python
from transformers import pipeline

classifier = pipeline("text-classification", model=".")  # this folder
print(classifier(INPUT, truncation=True))
```"""
_SPANS_PIPELINE = """```python
import torch
from transformers import AutoModelForQuestionAnswering, AutoTokenizer

folder = "."  # this folder
tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForQuestionAnswering.from_pretrained(folder)
inputs = tokenizer("a question", "the context", return_tensors="pt", truncation="only_second", max_length=TOKENS)
with torch.no_grad():
    scores = model(**inputs)
first, last = int(scores.start_logits.argmax()), int(scores.end_logits.argmax())
print(tokenizer.decode(inputs["input_ids"][0, first : last + 1]))
```"""
_GRAPH = """```python
import numpy as np
import onnxruntime
from tokenizers import Tokenizer

tokenizer, session = Tokenizer.from_file("tokenizer.json"), onnxruntime.InferenceSession("model.onnx")
tokenizer.enable_padding()
tokenizer.enable_truncation(TOKENS)
rows = tokenizer.encode_batch(ROWS)
fields = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}
wanted = [entry.name for entry in session.get_inputs()]
inputs = {name: np.array([getattr(row, fields[name]) for row in rows], dtype=np.int64) for name in wanted}
OUTPUTS
```

`model.onnx` takes rows padded to any common length; an `attention_mask` of 0 marks padding. Its weights
are in `model.onnx.data`; its operators, of version 18, are in ONNX Runtime since 1.14."""
_INPUTS = (
    ("INPUT", '{"text": "a text", "text_pair": "the other text of the pair"}', '"a text"'),
    ("TEXTS", '[("a text", "the other text of the pair"), ("another text", "and its pair")]', '["a text", "another"]'),
)
"""What stands for them in ``_USES``: of pairs, of single texts."""
_QUESTIONS = '[("a question", "the context")]'
_OUTPUTS: Mapping[Kind, tuple[str, str]] = {
    "classification": ("TEXTS", "(logits,) = session.run(None, inputs)  # (rows, classes); names are in config.json"),
    "regression": ("TEXTS", "(ratings,) = session.run(None, inputs)  # (rows, 1)"),
    "spans": (
        _QUESTIONS,
        "first, last = session.run(None, inputs)  # (rows, tokens): scores of an answer's first and last token, "
        "padding too",
    ),
}
_USES: Mapping[tuple[str, Kind], str] = {
    ("huggingface", "classification"): f"{_PIPELINE}\n\nGives one of the classes below, with its probability.",
    ("huggingface", "regression"): f"{_PIPELINE}\n\nIts score is the rating.",
    ("huggingface", "spans"): _SPANS_PIPELINE,
    **{
        ("onnx", kind): _GRAPH.replace("ROWS", rows).replace("OUTPUTS", outputs)
        for kind, (rows, outputs) in _OUTPUTS.items()
    },
}


def _metadata(facts: ModelFacts, task: TaskFacts) -> dict[str, Any]:
    pipeline_tag = "question-answering" if task.kind == "spans" else "text-classification"
    name = one_line(task.validation_name) or "unnamed"
    part = ", validation" if task.validation_name == task.data_name else ""
    metrics = [
        {"type": it.metric, "name": it.metric, "value": it.value} for it in task.scores if math.isfinite(it.value)
    ]
    result = {
        "task": {"type": pipeline_tag, "name": task.name},
        "dataset": {"type": data_id(name), "name": f"{name}{part}"},
        "metrics": metrics,
    }
    index = [{"name": one_line(facts.name) or "unnamed", "results": [result]}] if metrics else []
    return metadata_of(facts, pipeline_tag=pipeline_tag, tags=["fine-tuned", task.name], index=index)
