"""The form of a rule inside one section: what has to hold, in Python and CEL, and what to say where it does not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from pydantic.alias_generators import to_camel

from bert_job.problems import ABSENT
from bert_job.rules.cel import CelRule, describe


@dataclass(frozen=True, slots=True, kw_only=True)
class SectionRule:
    """A rule inside one section: a condition in Python and CEL, and its message."""

    holds: Callable[[Any], bool]
    cel: str
    """The same over ``self``, the section; ``COMPLETED_BY_PROFILES``: for the controller alone."""
    allowed: str
    next_step: str
    got: Callable[[Any], str]
    field: str = ""
    """Name (camelCase) of the field to blame; empty: the section."""

    def to_cel(self) -> Iterator[CelRule]:
        """Yield the CEL validation, unless profiles may complete the section."""
        if self.cel != COMPLETED_BY_PROFILES:
            yield CelRule(self.cel, describe(self.allowed, self.next_step), self.field)


COMPLETED_BY_PROFILES = ""
"""In place of CEL: a profile, which the API server does not see, may add the field that is missing."""


def exactly_one(*fields: str, next_step: str) -> SectionRule:
    """Return a rule that exactly one of these fields is set."""
    names = [to_camel(field) for field in fields]

    def given(section: Any) -> list[str]:
        return [name for field, name in zip(fields, names, strict=True) if getattr(section, field) is not None]

    # exists_one() fails on more than one as well as on none; xor of has() would not, with three fields.
    return SectionRule(
        holds=lambda section: len(given(section)) == 1,
        cel=f"[{', '.join(f'has(self.{name})' for name in names)}].exists_one(given, given)",
        allowed=f"exactly one of {', '.join(names)}",
        next_step=next_step,
        got=lambda section: " and ".join(given(section)) or ABSENT,
    )
