"""A small valid job as a document, to be changed by tests."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from bert_operator.api.parsing.validation import parse_job
from bert_operator.api.schema.bert_pretrain_job import BertPretrainJob

Document = dict[str, Any]

_DOCUMENT: Document = {
    "apiVersion": "bert-operator.dev/v1alpha1",
    "kind": "BertPretrainJob",
    "metadata": {"name": "demo"},
    "spec": {
        "slotsPerWorker": 2,
        "model": {"preset": "tiny"},
        "stages": [
            {"name": "prepare", "prepare": {"text": "builtin:python-docs", "vocabularySize": 4096}},
            {
                "name": "phase1",
                "pretrain": {
                    "sequenceLength": 128,
                    "globalBatchSize": 64,
                    "learningRate": 0.003,
                    "length": {"steps": 100},
                },
            },
            {"name": "evaluate", "evaluate": {}},
            {"name": "export", "export": {}},
        ],
        "output": {"path": "runs/demo"},
    },
}

PREPARE, PHASE1, EVALUATE, EXPORT = range(4)
"""Positions of the stages."""


def sample_document(change: Callable[[Document], object] | None = None) -> Document:
    """Return a fresh document, changed in place by ``change``, which is given its spec."""
    document = copy.deepcopy(_DOCUMENT)
    if change is not None:
        change(document["spec"])
    return document


def sample_job(change: Callable[[Document], object] | None = None) -> BertPretrainJob:
    """Return the same as a valid job."""
    return parse_job(sample_document(change))
