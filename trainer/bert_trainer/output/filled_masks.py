"""``filled-masks.json``: sentences with one word hidden, and what the model took it for.

In the output folder and nowhere else: a log has other readers than the text.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bert_trainer.system.atomic_files import write_json_atomically

FILLED_MASKS_FILE = "filled-masks.json"


@dataclass(frozen=True, slots=True)
class FilledMask:
    """One sentence."""

    before: str
    """The text before the hidden word."""
    after: str
    truth: str
    """The hidden word."""
    guesses: tuple[tuple[str, float], ...]
    """The model's likeliest tokens with their probability in [0, 1], the likeliest first."""


def write_filled_masks(folder: Path, masks: tuple[FilledMask, ...]) -> None:
    """Replace the file in the output folder."""
    write_json_atomically(folder / FILLED_MASKS_FILE, {"format": 1, "masks": [asdict(mask) for mask in masks]})


def read_filled_masks(folder: Path) -> list[dict[str, Any]]:
    """Return what was written, as ``report.json`` has it; nothing where there is none, or none that can be read."""
    try:
        found = json.loads((folder / FILLED_MASKS_FILE).read_text())["masks"]
        return [
            {
                "before": str(it["before"]),
                "after": str(it["after"]),
                "truth": str(it["truth"]),
                "guesses": [{"token": str(token), "probability": float(share)} for token, share in it["guesses"]],
            }
            for it in found
        ]
    except (ArithmeticError, LookupError, OSError, RecursionError, TypeError, ValueError):
        return []
