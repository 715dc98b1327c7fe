"""Pages from the templates in ``templates``, which need no network and no script.

Names and texts of a report come from other people: file names, corpora, messages of programs. Jinja escapes whatever
a template shows, so that no text can become a tag.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bert_job.durations import render_duration

if TYPE_CHECKING:
    from jinja2 import Environment


@dataclass(frozen=True, slots=True)
class Table:
    """A table of texts."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    numbers: Sequence[int] = ()
    """Columns that are set to the right."""


def render(template: str, **values: Any) -> bytes:
    """Return a page. template: file of the folder; values: what it shows.

    Raises:
        LookupError: it shows a value that is not given.
    """
    from jinja2 import TemplateError

    try:
        page = templates().get_template(template).render(values)
    except TemplateError as error:
        raise LookupError(f"{template}: {error}") from error
    # A file name may hold bytes that are not UTF-8, which Python keeps as lone surrogates.
    return page.encode(errors="replace")


@cache
def templates() -> Environment:
    """Return the environment of the templates."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined  # takes 0.1 s, and few processes make a page

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).with_name("templates")),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"number": form, "duration": duration}
    return environment


def form(value: Any, how: str) -> str:
    """Return a number as text; nothing for what is none, or not finite."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return ""
    try:
        return format(round(value) if how.endswith("d") else value, how) if math.isfinite(value) else ""
    except OverflowError:  # an integer beyond all floating-point numbers
        return ""


def duration(seconds: Any) -> str:
    """Return a duration as people write it; nothing for what is none."""
    return render_duration(seconds) if form(seconds, ".0f") else ""
