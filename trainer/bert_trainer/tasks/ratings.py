"""Numbers that a regression learns."""

from __future__ import annotations

import math
from pathlib import Path

from bert_trainer.errors import InputError
from bert_trainer.tasks.delimited import at, excerpt

MAX_RATING = 3.4e38
"""Of fp32, which targets are kept in."""


def parse_rating(text: str, path: Path, line: int) -> float:
    """Return a number to be predicted, as fp32 holds it.

    Raises:
        InputError: it is none, or not finite; names the line.
    """
    try:
        rating = float(text)
    except ValueError:
        rating = math.nan
    if math.isnan(rating) or abs(rating) > MAX_RATING:
        raise InputError(
            f"{at(path, line)}: got {excerpt(text)} to predict; allowed: a finite number of fp32",
            hint="correct it, or take the row out of the file",
        )
    return rating
