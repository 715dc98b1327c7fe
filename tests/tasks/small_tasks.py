"""A vocabulary, a fine-tuning stage and splits that fit into a test."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from bert_job.run_stages import FinetuneStage
from bert_trainer.dataset.tokens.wordpiece import SPECIAL_TOKENS, Vocabulary
from bert_trainer.tasks.examples import SpanExample, Split, TextExample
from whole_configs import whole_stage

_STAGE: dict[str, Any] = {
    "kind": "finetune",
    "name": "finetune",
    "data": {},
    "sequence_length": 64,
    "global_batch_size": 8,
    "micro_batch_size": 8,
    "epochs": 1,
    "learning_rate": 2e-5,
}


def finetune_stage(**changes: object) -> FinetuneStage:
    """Return a stage with some fields changed."""
    return FinetuneStage.model_validate_json(json.dumps(whole_stage({**_STAGE, **changes})))


def vocabulary_of(*tokens: str) -> Vocabulary:
    """Return a vocabulary of the special tokens, ids 0 to 4, and these from 5 on."""
    everything = (*SPECIAL_TOKENS, *tokens)
    digest = hashlib.sha256("\n".join(everything).encode()).hexdigest()
    return Vocabulary(everything, digest, *range(5))


def texts(*rows: Sequence[Any], name: str = "validation") -> Split:
    """Return examples of (first, second, label), numbered from 0."""
    examples = [TextExample(str(number), first, second, label) for number, (first, second, label) in enumerate(rows)]
    return Split(name, tuple(examples))


def spans(*rows: tuple[str, str, Sequence[tuple[str, int]]], name: str = "validation") -> Split:
    """Return examples of (question, context, answers), with ids q0, q1, ...."""
    examples = [
        SpanExample(f"q{number}", question, context, tuple(answers))
        for number, (question, context, answers) in enumerate(rows)
    ]
    return Split(name, tuple(examples))
