"""What every part of the job's schema has in common: how it is validated, and the scalars that parts share."""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

Count = Annotated[int, Field(ge=1, le=2**31 - 1)]
Rows = Annotated[int, Field(ge=1, le=4_194_304)]
RowsOrAuto = Rows | Literal["auto"]
Tokens = Annotated[int, Field(ge=8, le=4096)]
Seed = Annotated[int, Field(ge=0, le=2**31 - 1)]
Share = Annotated[float, Field(ge=0, lt=1)]
PositiveFloat = Annotated[float, Field(gt=0, le=1e6)]
Norm = Annotated[float, Field(ge=0, le=1e6)]
"""0 where nothing is clipped: a null would be deleted by every tool that merges, and be the default."""
FilePath = Annotated[str, Field(min_length=1, max_length=1024)]

SPECIAL_TOKENS = 3
"""Of a row with two texts: [CLS] and two [SEP], which are never masked."""

NAME_PATTERN = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"
Name = Annotated[str, Field(min_length=1, max_length=40, pattern=NAME_PATTERN)]


class Section(BaseModel):
    """Base of all sections: unknown fields are refused, values are not coerced, instances are frozen."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        alias_generator=to_camel,
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
