"""A model card holds what it is told, whatever that is: names are neither markup, nor HTML, nor YAML."""

from __future__ import annotations

import dataclasses
import html
import math
import re
from typing import Any

import pytest
from huggingface_hub import ModelCard

from bert_trainer.checkpoints.model_card import Measurement, ModelFacts, TrainedStage, escape, render_card

FACTS = ModelFacts(
    name="demo",
    form="huggingface",
    architecture="bert",
    objective="mlm+nsp",
    lower_case=True,
    sizes=[("layers", "2")],
    data_name="wiki",
    languages=["en", "de-CH", "en"],
    data=[("documents held out", "1,000")],
    stages=[TrainedStage("phase1", 128, 256, 1000, 4e-4, 2.5, "9,999 samples in 8 shards")],
    measurements=[Measurement("evaluate", 128, 500, 0.61, 1.75, None, 0.05)],
    run=[("precision", "bf16")],
)
HOSTILE = [
    "</td><script>alert(1)</script>",
    "a\n---\nlicense: mit",
    "'\": {[*&!|>%@`#",
    "[click](javascript:alert(1)) ![x](http://example.com/x.png) <https://example.com> www.example.com",
    "| a | b |\r\n|---|---|",
    "`code` **bold** ~~gone~~ $x^2$ &lt;b&gt;",
    "\u202egnp.exe\u2028\x00\x1b[31m\ud800",
    "x" * 5000,
    "\n",
    "",
    "null",
    "Wörter 東京 🤗",
]


def metadata(card: str) -> dict[str, Any]:
    """Return the front matter as the Hub finds it."""
    return ModelCard(card, ignore_metadata_errors=False).data.to_dict()


def test_the_front_matter_and_the_tables_of_a_card() -> None:
    card = render_card(FACTS)
    assert card.startswith(
        """---
language:
- en
- de
library_name: transformers
pipeline_tag: fill-mask
tags:
- bert
- masked-lm
- pretraining
- transformers
model-index:
- name: demo
  results:
  - task:
      type: fill-mask
      name: Masked language modeling
    dataset:
      type: wiki
      name: wiki, held out
      config: evaluate
      split: held out
    metrics:
    - type: accuracy
      name: Masked-LM accuracy at 128 tokens
      value: 0.61
    - type: loss
      name: Masked-LM loss at 128 tokens, nats
      value: 1.75
---

# demo

A BERT encoder with the masked-LM and the next-sentence head, pretrained on wiki. Text is"""
    )
    assert "| phase1 | 128 | 256 | 1,000 | 256,000 | 0.0004 | 2.5000 | 9,999 samples in 8 shards |" in card
    assert "| evaluate | 128 | held-out documents | 500 | 0.6100 | 1.7500 | 0.0500 | – | – |" in card
    assert "Accuracy is a share of the masked tokens.\n" in card
    assert "| precision | bf16 |" in card


@pytest.mark.parametrize(
    ("changes", "samples", "name", "kind"),
    [
        ({"part": (0.9, 1.0)}, "0.9 to 1 of the training shards", "wiki, 0.9 to 1 of the training samples", "wiki"),
        ({"folder": "eval_4k"}, r"held-out shards of eval\_4k", "eval_4k, held out", "eval-4k"),
        (
            {"folder": "books", "part": (0.0, 0.25)},
            "0 to 0.25 of the training shards of books",
            "books, 0 to 0.25 of the training samples",
            "books",
        ),
    ],
    ids=["a part", "other shards", "a part of other shards"],
)
def test_what_was_measured_on_is_said_as_it_was(changes: dict[str, Any], samples: str, name: str, kind: str) -> None:
    measurement = dataclasses.replace(FACTS.measurements[0], **changes)
    card = render_card(dataclasses.replace(FACTS, measurements=[measurement]))
    assert f"| evaluate | 128 | {samples} | 500 | 0.6100 | 1.7500 | 0.0500 | – | – |" in card
    (result,) = metadata(card)["model-index"][0]["results"]
    split = name.partition(", ")[2]
    assert result["dataset"] == {"type": kind, "name": name, "config": "evaluate", "split": split}
    assert ("lie on both sides of a cut" in card) == ("part" in changes)
    assert "held-out documents" not in card


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_names_that_users_chose_stay_names(text: str) -> None:
    stage = TrainedStage(text, 128, 256, 1000, 4e-4, 2.5, text)
    measured = dataclasses.replace(FACTS.measurements[0], stage=text, folder=text)
    facts = dataclasses.replace(
        FACTS,
        name=text,
        data_name=text,
        stages=[stage],
        measurements=[measured],
        data=[(text, text)],
        languages=[text],
    )
    card = render_card(facts)
    card.encode()
    found = metadata(card)
    assert found.keys() <= {"language", "library_name", "pipeline_tag", "tags", "model-index"}
    assert found["tags"] == metadata(render_card(FACTS))["tags"]
    assert isinstance(found["model-index"][0]["name"], str)
    body = card.split("\n---\n", 1)[1]
    assert re.findall(r"^#+ .*$", body, flags=re.MULTILINE)[1:] == [
        "## Use", "## Sizes", "## Data", "## Training", "## Evaluation", "## Run"
    ]  # fmt: skip
    without_code = re.sub(r"```.*?```", "", body, flags=re.DOTALL)
    assert not re.search(r"<|(?<!\\)[\[*~]|(?<!\\)`|javascript:|(?<!\\):/", without_code)
    tables = [line for line in without_code.splitlines() if line.startswith("|")]
    cells = {len(re.findall(r"(?<!\\)\|", line)) for line in tables}
    assert cells == {3, 9, 10}, "no row has got more cells"
    assert max(map(len, card.splitlines())) < 1000


def test_escaped_text_shows_what_it_was() -> None:
    assert escape("a_b [c](d) <e> & 50 % | f") == r"a\_b \[c\]\(d\) &lt;e&gt; &amp; 50 % \| f"
    shown = html.unescape(re.sub(r"\\(.)", r"\1", escape("a_b <e> & f")))
    assert shown == "a_b <e> & f"
    assert escape("a\r\n\tb\x00c") == "a b c"
    assert escape(" \n") == "(no name)"


def test_what_was_measured_on_parts_of_one_data_set_stays_apart() -> None:
    held_out = Measurement("evaluate", 128, 500, 0.61, None, None, None)
    trained_on = Measurement("trained", 128, 500, 0.9, None, None, None, part=(0.9, 1.0))
    (model,) = metadata(render_card(dataclasses.replace(FACTS, measurements=[held_out, trained_on])))["model-index"]
    found = [(it["dataset"]["name"], it["metrics"][0]["value"]) for it in model["results"]]
    assert found == [("wiki, held out", 0.61), ("wiki, 0.9 to 1 of the training samples", 0.9)]


def test_figures_that_are_none_are_left_out() -> None:
    nothing = Measurement("evaluate", 128, 0, math.nan, math.inf, None, None)
    card = render_card(dataclasses.replace(FACTS, measurements=[nothing], stages=[]))
    assert "model-index" not in card
    assert "The weights are those that the run began with." in card
    assert "These weights have not been evaluated." in render_card(dataclasses.replace(FACTS, measurements=[]))
