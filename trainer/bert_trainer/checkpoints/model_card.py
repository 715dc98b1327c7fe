"""The model card of an export: what the model is, what it was trained on and how well it does.

Pure: facts in, text out, the same for the same facts. Front matter as the Hugging Face Hub defines it
(https://huggingface.co/docs/hub/model-cards). Names come from users and from files: in the front matter YAML quotes
them, in the text they are escaped, so that they can be neither markup nor HTML. Paths and machines have no place here.
"""

from __future__ import annotations

import html
import math
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

_LONGEST_NAME = 200
# "www." alone makes a link, too.
_MARKUP = re.compile(r"([\\`*_{}\[\]()#+!|~$:@]|(?i:(?<=www)\.))")
_LANGUAGE = re.compile(r"[a-z]{2,3}")

Row = tuple[str, str]


@dataclass(frozen=True, slots=True)
class TrainedStage:
    """What one pretraining stage has done."""

    name: str
    sequence_length: int
    """Tokens."""
    global_batch_size: int
    """Sequences."""
    steps: int
    """Optimizer steps."""
    learning_rate: float
    """Peak."""
    loss: float | None
    """Of the last logging interval, in nats."""
    shards: str
    """What was read, for people."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """What was measured with these weights, by an evaluate stage or after a pretrain stage; shares in [0, 1]."""

    stage: str
    sequence_length: int
    samples: int
    masked_lm_accuracy: float | None
    masked_lm_loss: float | None
    """Nats."""
    next_sentence_accuracy: float | None
    unigram_baseline: float | None
    """Masked-LM accuracy of always answering the most frequent token."""
    folder: str | None = None
    """Name of the shards, if they are others than the data set's."""
    part: tuple[float, float] | None = None
    """Of the training samples, as shares of their number; None: held-out samples."""

    @property
    def samples_are(self) -> str:
        """What was measured on, for people."""
        if self.part is None:
            return "held-out documents" if self.folder is None else f"held-out shards of {self.folder}"
        shards = "the training shards" if self.folder is None else f"the training shards of {self.folder}"
        return f"{self.part[0]:g} to {self.part[1]:g} of {shards}"


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Everything that a card states."""

    name: str
    form: str
    """Format of the export."""
    architecture: str
    objective: str
    lower_case: bool
    sizes: Sequence[Row]
    data_name: str
    """Of the corpora, for people."""
    languages: Sequence[str]
    data: Sequence[Row]
    stages: Sequence[TrainedStage]
    measurements: Sequence[Measurement]
    run: Sequence[Row]
    """Hashes, precision, versions."""


def render_card(facts: ModelFacts) -> str:
    """Return the content of ``README.md``."""
    front = yaml.safe_dump(_metadata(facts), sort_keys=False, allow_unicode=True, width=1000)
    heads = "the masked-LM and the next-sentence head" if facts.objective == "mlm+nsp" else "the masked-LM head"
    name, case = escape(facts.name), "lower-cased, without accents" if facts.lower_case else "cased"
    parts = [
        f"---\n{front}---",
        f"# {name}",
        f"A {_ARCHITECTURES[facts.architecture]} encoder with {heads}, pretrained on {escape(facts.data_name)}. "
        f"Text is {case}. It has been trained for no task but pretraining.",
        f"## Use\n\n{_USES[facts.form]}",
        f"## Sizes\n\n{_table(('', ''), facts.sizes)}",
        f"## Data\n\n{_table(('', ''), facts.data)}",
        f"## Training\n\n{_training(facts.stages)}",
        f"## Evaluation\n\n{_evaluation(facts.measurements)}",
        f"## Run\n\n{_table(('', ''), facts.run)}",
        "Nothing is said here about the licence: it depends on that of the text.",
    ]
    return "\n\n".join(parts) + "\n"


def escape(text: str) -> str:
    """Return text as one line of Markdown that shows it as it is: no markup, no HTML, no control characters."""
    line = _one_line(text)
    return _MARKUP.sub(r"\\\1", html.escape(line, quote=False)) or "(no name)"


def _one_line(text: str) -> str:
    """Return text with everything unprintable as spaces, such as line breaks and changes of direction, and cut."""
    kept = "".join(" " if unicodedata.category(char)[0] in "CZ" else char for char in text)
    line = " ".join(kept.split())
    return line if len(line) <= _LONGEST_NAME else line[: _LONGEST_NAME - 1] + "…"


_ARCHITECTURES = {"bert": "BERT", "distilbert": "DistilBERT"}
_TAGS = {"huggingface": ["transformers"], "onnx": ["onnx"], "tensorflow": ["tensorflow"]}
_USES: Mapping[str, str] = {
    "huggingface": """```python
from transformers import AutoModelForPreTraining, AutoTokenizer, pipeline

folder = "."  # this folder
fill_mask = pipeline("fill-mask", model=folder)
print(fill_mask("a sentence with a [MASK] in it"))
tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForPreTraining.from_pretrained(folder)
```""",
    "onnx": """```python
import numpy as np
import onnxruntime
from tokenizers import Tokenizer

tokenizer, session = Tokenizer.from_file("tokenizer.json"), onnxruntime.InferenceSession("model.onnx")
tokenizer.enable_padding()
rows = tokenizer.encode_batch(["a sentence with a [MASK] in it", "another one"])
fields = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}
wanted = [entry.name for entry in session.get_inputs()]
inputs = {name: np.array([getattr(row, fields[name]) for row in rows], dtype=np.int64) for name in wanted}
logits, *_ = session.run(None, inputs)  # (rows, tokens, entries of the vocabulary)
```

`model.onnx` takes rows padded to any common length; an `attention_mask` of 0 marks padding. It needs operators of
version 17, which ONNX Runtime has since 1.12.""",
    "tensorflow": """A checkpoint with the names of Google's original TensorFlow code, its `bert_config.json` and its
`vocab.txt`.""",
}


def _metadata(facts: ModelFacts) -> dict[str, Any]:
    languages = list(dict.fromkeys(code for it in facts.languages if (code := it.split("-")[0])))
    metadata: dict[str, Any] = {"language": [code for code in languages if _LANGUAGE.fullmatch(code)]}
    if facts.form == "huggingface":
        metadata["library_name"] = "transformers"
    metadata |= {
        "pipeline_tag": "fill-mask",
        "tags": [facts.architecture, "masked-lm", "pretraining", *_TAGS[facts.form]],
        "model-index": _model_index(facts),
    }
    return {name: value for name, value in metadata.items() if value}


def _model_index(facts: ModelFacts) -> list[dict[str, Any]]:
    results = []
    for it in facts.measurements:
        figures = [
            ("accuracy", f"Masked-LM accuracy at {it.sequence_length} tokens", it.masked_lm_accuracy),
            ("accuracy", f"Next-sentence accuracy at {it.sequence_length} tokens", it.next_sentence_accuracy),
            ("loss", f"Masked-LM loss at {it.sequence_length} tokens, nats", it.masked_lm_loss),
        ]
        metrics = [
            {"type": kind, "name": label, "value": value}
            for kind, label, value in figures
            if value is not None and math.isfinite(value)
        ]
        if metrics:
            task = {"type": "fill-mask", "name": "Masked language modeling"}
            results.append({"task": task, "dataset": _measured_data(facts.data_name, it), "metrics": metrics})
    return [{"name": _one_line(facts.name) or "unnamed", "results": results}] if results else []


def _measured_data(data_name: str, measurement: Measurement) -> dict[str, str]:
    name = _one_line(measurement.folder or data_name) or "unnamed"
    part = measurement.part
    kind = "held out" if part is None else f"{part[0]:g} to {part[1]:g} of the training samples"
    # The Hub wants the id of a data set, which text on a volume does not have: a word that cannot be one of its own.
    return {"type": re.sub(r"[^A-Za-z0-9.-]+", "-", name).strip("-.") or "unnamed", "name": f"{name}, {kind}"}


def _training(stages: Sequence[TrainedStage]) -> str:
    if not stages:
        return "The weights are those that the run began with."
    rows = [
        (
            it.name,
            str(it.sequence_length),
            f"{it.global_batch_size:,}",
            f"{it.steps:,}",
            f"{it.steps * it.global_batch_size:,}",
            f"{it.learning_rate:g}",
            _number(it.loss, ".4f"),
            it.shards,
        )
        for it in stages
    ]
    head = ("stage", "tokens per sequence", "batch", "steps", "samples", "peak learning rate", "last loss", "shards")
    return _table(head, rows)


def _evaluation(measurements: Sequence[Measurement]) -> str:
    if not measurements:
        return "These weights have not been evaluated."
    head = (
        *("stage", "tokens per sequence", "measured on", "samples", "masked-LM accuracy", "masked-LM loss"),
        *("next-sentence accuracy", "most frequent token alone"),
    )
    rows = [
        (
            it.stage,
            str(it.sequence_length),
            it.samples_are,
            f"{it.samples:,}",
            _number(it.masked_lm_accuracy, ".4f"),
            _number(it.masked_lm_loss, ".4f"),
            _number(it.next_sentence_accuracy, ".4f"),
            _number(it.unigram_baseline, ".4f"),
        )
        for it in measurements
    ]
    notes = ["Accuracy is a share of the masked tokens."]
    if any(it.part is not None for it in measurements):
        notes.append("Samples of one document may lie on both sides of a cut through training shards.")
    return _table(head, rows) + "\n\n" + " ".join(notes)


def _number(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *([escape(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
