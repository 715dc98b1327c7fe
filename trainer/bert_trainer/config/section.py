"""What all sections of the run configuration share: validation, numbers with limits, names of shard layouts.

Imports nothing heavy: worker processes of a build start with it.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Positive = Annotated[int, Field(ge=1)]
Probability = Annotated[float, Field(ge=0, lt=1)]


class Section(BaseModel):
    """A part of the document: unknown keys are refused, values never change."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


LayoutName = Literal["compact", "nvidia", "intel", "mlperf", "mlperf-variable", "mlperf-packed"]
