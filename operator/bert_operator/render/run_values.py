"""What the stages of a run configuration have in common: defaults that depend on a length, and fields that are set."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bert_operator.api.schema.finetuning import FinetuneOptimizerSpec
from bert_operator.api.schema.optimization import OptimizerSpec
from bert_operator.api.schema.section import Section

TOKENS_PER_PASS = 4096
"""Default size of a micro-batch: 32 sequences of 128 tokens, 8 of 512."""

Document = dict[str, Any]
Place = Callable[[str | None], str | None]


def default_micro_batch_size(sequence_length: int) -> int:
    """Return the default sequences of a micro-batch, which has 4,096 tokens."""
    return max(1, TOKENS_PER_PASS // sequence_length)


def render_optimizer(optimizer: OptimizerSpec | FinetuneOptimizerSpec) -> Document:
    """Render an optimizer; the trainer has no norm where nothing is clipped, as it always had."""
    return {**optimizer.model_dump(), "max_gradient_norm": optimizer.max_gradient_norm or None}


def set_fields(section: Section) -> Document:
    """Render the fields that are set; of a union the one."""
    return {name: value for name, value in section.model_dump().items() if value is not None}
