"""Numbers that a regression learns."""

from __future__ import annotations

import math
from pathlib import Path

from bert_trainer.errors import InputError
from bert_trainer.tasks.delimited import at, excerpt


def parse_rating(text: str, path: Path, line: int) -> float:
    """Return a number to be predicted.

    Raises:
        InputError: it is none, or not finite; names the line.
    """
    try:
        rating = float(text)
    except ValueError:
        rating = math.nan
    if not math.isfinite(rating):
        raise InputError(
            f"{at(path, line)}: got {excerpt(text)} to predict; allowed: a finite number",
            hint="correct it, or take the row out of the file",
        )
    return rating
