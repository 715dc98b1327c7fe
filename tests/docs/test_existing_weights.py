"""What the guide on existing weights tells to write is what the operator and the command line take."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import yaml

from bert_trainer.__main__ import parse_arguments
from bert_trainer.checkpoints.initial_weights import READERS
from sample_job import sample_job

PAGE = (Path(__file__).parents[2] / "docs" / "guides" / "existing-weights.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def test_the_job_of_the_guide_is_valid() -> None:
    (text,) = blocks("yaml")
    given: dict[str, Any] = yaml.safe_load(text)["spec"]

    def change(spec: dict[str, Any]) -> None:
        spec.update(given)
        del spec["stages"][0]

    spec = sample_job(change).spec
    assert spec.model.config_file == "google/bert_config.json"
    assert spec.initial_checkpoint is not None


def test_the_commands_of_the_guide_are_taken() -> None:
    (text,) = blocks("sh")
    commands = [shlex.split(line) for line in text.splitlines()]
    parsed = [parse_arguments(command[1:]) for command in commands if command[0] == "bert-train"]
    assert [(str(given.path), given.format, given.to) for given in parsed] == [
        ("results", "nvidia", "huggingface"),
        ("ckpt_8601.pt", "nvidia", "huggingface"),
        ("runs/wiki", "bert-trainer", "onnx"),
    ]


def test_every_format_has_a_row() -> None:
    assert set(re.findall(r"^\| `([a-z-]+)` \|", PAGE, re.MULTILINE)) == set(READERS)
