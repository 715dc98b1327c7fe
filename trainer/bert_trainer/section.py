"""What every part of the run configuration has in common, and the numbers that parts share."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Positive = Annotated[int, Field(ge=1)]
Probability = Annotated[float, Field(ge=0, lt=1)]


class Section(BaseModel):
    """A part of the document: unknown keys are refused, values never change."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)
