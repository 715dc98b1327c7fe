"""What every section of a job has in common: how it is validated, and the scalars that sections share."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

Count = Annotated[int, Field(ge=1, le=2**31 - 1)]
Rows = Annotated[int, Field(ge=1, le=4_194_304)]
RowsOrAuto = Rows | Literal["auto"]
MAX_TOKENS = 8192
"""Of a row."""
Tokens = Annotated[int, Field(ge=8, le=MAX_TOKENS)]
Seed = Annotated[int, Field(ge=0, le=2**31 - 1)]
Share = Annotated[float, Field(ge=0, lt=1)]
PositiveFloat = Annotated[float, Field(gt=0, le=1e6)]
Norm = Annotated[float, Field(ge=0, le=1e6)]
"""0 where nothing is clipped: a null would be deleted by every tool that merges, and be the default."""
MAX_PATH_CHARACTERS = 1024
FilePath = Annotated[str, Field(min_length=1, max_length=MAX_PATH_CHARACTERS)]

MAX_UNKNOWN_SHARE = 0.1
"""One token in ten may be [UNK]. With the vocabulary of a text's own language the share is below 0.005; capitals that
an uncased vocabulary lacks give 0.1, another script nearly 1."""

SPECIAL_TOKENS = 3
"""Of a row with two texts: [CLS] and two [SEP], which are never masked."""

NAME_PATTERN = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"
Name = Annotated[str, Field(min_length=1, max_length=40, pattern=NAME_PATTERN)]

FROM_PROFILE = "may come from a profile"
"""Marks a field of the spec that belongs to a cluster: a profile of the operator's settings may fill it in."""


class Section(BaseModel):
    """Base of all sections: unknown fields are refused, values are not coerced, instances are frozen.

    Code makes sections by the names of their fields. What documents call the fields, their readers say: camelCase in a
    job, snake_case in a run configuration.
    """

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        alias_generator=to_camel,
        validate_by_name=True,
        use_attribute_docstrings=True,
        allow_inf_nan=False,
    )


@cache
def keys_of(kind: type[Section]) -> dict[str, str]:
    """Return the YAML key of each field."""
    return {name: field.alias or name for name, field in kind.model_fields.items()}


def sections_in(annotation: Any) -> tuple[type[Section], ...]:
    """Return the section types that a type annotation mentions."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return (annotation,)
    return tuple(kind for part in get_args(annotation) for kind in sections_in(part))


def single_errors(error: ValidationError) -> list[ErrorDetails]:
    """Return what is wrong with single values: a list is also called too short where its entries are wrong."""
    items = error.errors()
    within = {item["loc"][:length] for item in items for length in range(len(item["loc"]))}
    return [item for item in items if item["loc"] not in within]
