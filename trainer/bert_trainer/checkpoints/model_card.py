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

from bert_job.model import ARCHITECTURES, Architecture
from bert_trainer.dataset.tokens.byte_bpe import ByteBpe
from bert_trainer.dataset.tokens.wordpiece_settings import WordPieceSettings

_MAX_NAME = 200
# "www." alone makes a link, too.
_MARKUP = re.compile(r"([\\`*_{}\[\]()#+!|~$:@]|(?i:(?<=www)\.))")
_LANGUAGE = re.compile(r"[a-z]{2,3}")

Row = tuple[str, str]


@dataclass(frozen=True, slots=True)
class TrainedStage:
    """Summary of one pretraining stage."""

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
    """Evaluation of these weights, by an evaluate stage or after a pretrain stage; shares in [0, 1]."""

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
    next_sentence_baseline: float | None = None
    """Next-sentence accuracy of always giving the more frequent answer."""

    @property
    def samples_are(self) -> str:
        """Description of the evaluated samples."""
        if self.part is None:
            return "held-out documents" if self.folder is None else f"held-out shards of {self.folder}"
        shards = "the training shards" if self.folder is None else f"the training shards of {self.folder}"
        return f"{self.part[0]:g} to {self.part[1]:g} of {shards}"


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Facts that a card states."""

    name: str
    form: str
    """Format of the export."""
    architecture: Architecture
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
    tokenizer: WordPieceSettings | ByteBpe = WordPieceSettings()
    """How text is split, apart from its case."""


def render_card(facts: ModelFacts) -> str:
    """Return the content of ``README.md``."""
    with_pairs = facts.objective == "mlm+nsp"
    heads = "the masked-LM and the next-sentence head" if with_pairs else "the masked-LM head"
    name, case = escape(facts.name), facts.tokenizer.describe(facts.lower_case)
    parts = [
        front_matter(_metadata(facts)),
        f"# {name}",
        f"A {ARCHITECTURES[facts.architecture]} encoder with {heads}, pretrained on {escape(facts.data_name)}. "
        f"Text is {case}. It has been trained for no task but pretraining.",
        f"## Use\n\n{_USES[facts.form].replace('PURPOSE', 'PreTraining' if with_pairs else 'MaskedLM')}",
        f"## Sizes\n\n{table(('', ''), facts.sizes)}",
        f"## Data\n\n{table(('', ''), facts.data)}",
        f"## Training\n\n{training_table(facts.stages)}",
        f"## Evaluation\n\n{_evaluation(facts.measurements)}",
        f"## Run\n\n{table(('', ''), facts.run)}",
        NO_LICENCE,
    ]
    return "\n\n".join(parts) + "\n"


NO_LICENCE = "Nothing is said here about the licence: it depends on that of the text."


def front_matter(metadata: Mapping[str, Any]) -> str:
    """Return the YAML front matter of a card."""
    return f"---\n{yaml.safe_dump(dict(metadata), sort_keys=False, allow_unicode=True, width=1000)}---"


def escape(text: str) -> str:
    """Return text as one line of Markdown that shows it as it is: no markup, no HTML, no control characters."""
    line = one_line(text)
    return _MARKUP.sub(r"\\\1", html.escape(line, quote=False)) or "(no name)"


def one_line(text: str) -> str:
    """Return text on one line, cut, with unprintable characters as spaces."""
    kept = "".join(" " if unicodedata.category(char)[0] in "CZ" else char for char in text)
    line = " ".join(kept.split())
    return line if len(line) <= _MAX_NAME else line[: _MAX_NAME - 1] + "…"


_TAGS = {"huggingface": ["transformers"], "onnx": ["onnx"], "tensorflow": ["tensorflow"]}
_USES: Mapping[str, str] = {
    "huggingface": """```python
from transformers import AutoModelForPURPOSE, AutoTokenizer, pipeline

folder = "."  # this folder
fill_mask = pipeline("fill-mask", model=folder)
print(fill_mask("a sentence with a [MASK] in it"))
tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForPURPOSE.from_pretrained(folder)
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

`model.onnx` takes rows padded to any common length; an `attention_mask` of 0 marks padding. Its weights
are in `model.onnx.data`; its operators, of version 18, are in ONNX Runtime since 1.14.""",
    "tensorflow": """A checkpoint with the names of Google's original TensorFlow code, its `bert_config.json` and its
`vocab.txt`.

`hidden_act` there is `gelu`, the only name of either form that this code knows. Since 2019 it computes the tanh form,
`gelu_new` of the table below; code of 2018 and transformers' conversion compute the form with the error function,
`gelu`. The other form than the model's changes its results by some 1e-4.""",
}


def _metadata(facts: ModelFacts) -> dict[str, Any]:
    tags = ["masked-lm", "pretraining"]
    return metadata_of(facts, pipeline_tag="fill-mask", tags=tags, index=_model_index(facts))


def metadata_of(
    facts: ModelFacts, *, pipeline_tag: str, tags: Sequence[str], index: list[dict[str, Any]]
) -> dict[str, Any]:
    """Return the front matter. tags: beside those of architecture and format; index: the Hub's ``model-index``."""
    languages = list(dict.fromkeys(code for it in facts.languages if (code := it.split("-")[0])))
    metadata: dict[str, Any] = {"language": [code for code in languages if _LANGUAGE.fullmatch(code)]}
    if facts.form == "huggingface":
        metadata["library_name"] = "transformers"
    metadata |= {
        "pipeline_tag": pipeline_tag,
        "tags": [facts.architecture, *tags, *_TAGS[facts.form]],
        "model-index": index,
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
    return [{"name": one_line(facts.name) or "unnamed", "results": results}] if results else []


def _measured_data(data_name: str, measurement: Measurement) -> dict[str, str]:
    name = one_line(measurement.folder or data_name) or "unnamed"
    part = measurement.part
    kind = "held out" if part is None else f"{part[0]:g} to {part[1]:g} of the training samples"
    # The Hub takes results of the same type, config and split for one.
    return {"type": data_id(name), "name": f"{name}, {kind}", "config": one_line(measurement.stage), "split": kind}


def data_id(name: str) -> str:
    """Return what stands for a data set's id, which the Hub wants and data on a volume does not have."""
    # A word that cannot be one of the Hub's own.
    return re.sub(r"[^A-Za-z0-9.-]+", "-", name).strip("-.") or "unnamed"


def training_table(stages: Sequence[TrainedStage]) -> str:
    """Return a table of the pretraining stages."""
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
            shown_number(it.loss, ".4f"),
            it.shards,
        )
        for it in stages
    ]
    head = ("stage", "tokens per sequence", "batch", "steps", "samples", "peak learning rate", "last loss", "shards")
    return table(head, rows)


def _evaluation(measurements: Sequence[Measurement]) -> str:
    if not measurements:
        return "These weights have not been evaluated."
    head = (
        *("stage", "tokens per sequence", "measured on", "samples", "masked-LM accuracy", "masked-LM loss"),
        *("most frequent token alone", "next-sentence accuracy", "more frequent answer alone"),
    )
    rows = [
        (
            it.stage,
            str(it.sequence_length),
            it.samples_are,
            f"{it.samples:,}",
            shown_number(it.masked_lm_accuracy, ".4f"),
            shown_number(it.masked_lm_loss, ".4f"),
            shown_number(it.unigram_baseline, ".4f"),
            shown_number(it.next_sentence_accuracy, ".4f"),
            shown_number(it.next_sentence_baseline, ".4f"),
        )
        for it in measurements
    ]
    notes = ["Accuracy is a share of the masked tokens."]
    if any(it.part is not None for it in measurements):
        notes.append("Samples of one document may lie on both sides of a cut through training shards.")
    return table(head, rows) + "\n\n" + " ".join(notes)


def shown_number(value: float | None, form: str) -> str:
    """Return a number in a format of ``format``'s, a dash for none."""
    return "–" if value is None else format(value, form)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table whose cells, but not whose head, come from elsewhere."""
    lines = [head, ["---"] * len(head), *([escape(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
