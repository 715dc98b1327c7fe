"""The base of all sections of the run configuration, and the types of values that several of them hold."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Positive = Annotated[int, Field(ge=1)]
Count = Annotated[int, Field(ge=0)]
PositiveFloat = Annotated[float, Field(gt=0)]
Probability = Annotated[float, Field(ge=0, lt=1)]
Fraction = Annotated[float, Field(gt=0, lt=1)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]
# As the operator has it: names become parts of paths (export/<format>-<name>) and of labels.
StageName = Annotated[str, Field(min_length=1, max_length=40, pattern=r"^[a-z]([-a-z0-9]*[a-z0-9])?$")]

MAX_UNKNOWN_SHARE = 0.1
"""One token in ten. With the vocabulary of a text's own language the share is below 0.005; capitals that an uncased
vocabulary lacks give 0.1, another script nearly 1."""
UnknownShare = Annotated[float, Field(gt=0, le=1)]


class Section(BaseModel):
    """A part of the document: unknown keys are refused, values never change.

    A field that the operator renders has no default: the operator resolves it, and a second default here could only
    disagree. One that a later release adds does need a default, as long as runs that were frozen without it may resume.
    """

    # Forbidden: a trainer that passed over a setting which only a newer operator knows would train something else.
    # Neither infinity nor NaN: JSON has no such numbers, and Python's reader makes one of 1e400.
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False)
