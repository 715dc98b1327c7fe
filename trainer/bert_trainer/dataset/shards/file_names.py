"""Names of shards: the split that a file belongs to, and gaps in numbered sets. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bert_trainer.dataset.shards.header import Split
from bert_trainer.errors import InputError

HELD_OUT_WORDS = ("held_out", "test", "eval")
"""Ours, NVIDIA's and MLPerf's."""
TRAINING_WORDS = ("training", "part")
"""Ours and NVIDIA's; then MLPerf's and Intel's, which counts only if no file has the first."""

# Not inside a longer word: "training" in "retraining" says nothing; digits and underscores separate.
_WORD = re.compile(rf"(?<![A-Za-z])({'|'.join((*TRAINING_WORDS, *HELD_OUT_WORDS))})(?![A-Za-z])")
# part_7_of_2048, part-00007-of-00500; then any name that ends with a number.
_COUNTED = re.compile(r"(?P<before>.*?)(?P<number>\d+)(?P<between>[_-]of[_-])(?P<total>\d+)")
_NUMBERED = re.compile(r"(?P<before>.*?)(?P<number>\d+)")
_NAMES_SHOWN = 3


def select_split(files: Sequence[Path], split: Split) -> list[Path]:
    """Return the files of a split, in order.

    The last of the known words in a name decides, so ``wiki_test_0`` is held out wherever the text came from. Where no
    file is named as one to train on, those without any known word are.
    """
    held_out = {path for path in files if split_of(path) == "held_out"}
    if split == "held_out":
        return [path for path in files if path in held_out]
    for word in TRAINING_WORDS:
        if found := [path for path in files if word in path.name and path not in held_out]:
            return found
    return [path for path in files if path not in held_out]


def last_word(name: str) -> str | None:
    """Return the last of the known words in a name; None if it has none."""
    words = _WORD.findall(name)
    return words[-1] if words else None


def split_of(path: Path) -> Split:
    """Return the split of one file; a name without a known word counts as training."""
    return "held_out" if last_word(path.name) in HELD_OUT_WORDS else "training"


@dataclass(slots=True)
class _Numbered:
    """Files whose names differ only in a number."""

    before: str
    after: str
    total: int | None
    """Number of files, if the names state it."""
    numbers: dict[int, str] = field(default_factory=dict)
    """Numbers as they are written in the names, by value."""

    def missing(self) -> list[str]:
        """Return the missing names. Numbers start with 0, or with 1 if no file has 0."""
        first = 0
        if 0 not in self.numbers and (1 in self.numbers if self.total is None else self.total in self.numbers):
            first = 1
        stop = max(self.numbers) + 1 if self.total is None else first + self.total
        # Zero-padded like the others.
        width = max((len(text) for text in self.numbers.values() if text.startswith("0")), default=1)
        absent = (number for number in range(first, stop) if number not in self.numbers)
        return [f"{self.before}{number:0{width}d}{self.after}" for number in absent]


def check_numbers(folder: Path, files: Iterable[Path]) -> None:
    """Refuse a set of shards with a gap: training on it would silently skip a part of the data.

    Names such as ``part_7_of_2048`` and ``part-00007-of-00500`` state the number of files; of other names that end with
    a number, all from 0 or 1 to the last one must exist.

    Raises:
        InputError: some are missing, or the folder holds files of two cuts, as ``_of_2048`` beside ``_of_4096``.
    """
    found: dict[tuple[str, str], _Numbered] = {}
    totals: dict[str, set[int]] = {}
    for path in files:
        # TensorFlow writes the number behind the suffix: wiki.tfrecord-00007-of-00500.
        behind = _COUNTED.fullmatch(path.name)
        if match := behind or _COUNTED.fullmatch(path.stem):
            total: int | None = int(match["total"])
            after = f"{match['between']}{match['total']}{'' if behind else path.suffix}"
            totals.setdefault(match["before"], set()).add(int(match["total"]))
        elif match := _NUMBERED.fullmatch(path.stem):
            total, after = None, path.suffix
        else:
            continue
        group = found.setdefault((match["before"], after), _Numbered(match["before"], after, total))
        group.numbers[int(match["number"])] = match["number"]
    for before, several in totals.items():
        if len(several) > 1:
            raise InputError(
                f"{folder}: holds files {before}* of {' and of '.join(map(str, sorted(several)))}; allowed: one set",
                hint="move the files of the other set out of the folder",
            )
    for group in found.values():
        # A single file may have any number.
        if (group.total is not None or len(group.numbers) > 1) and (missing := group.missing()):
            shown = ", ".join(missing[:_NAMES_SHOWN]) + (", ..." if len(missing) > _NAMES_SHOWN else "")
            there, names = len(group.numbers), f"{group.before}*{group.after}"
            raise InputError(
                f"{folder}: got {there} of {there + len(missing)} shards {names}; missing {shown}; "
                "allowed: every number up to the last",
                hint="copy or build what is missing; to train without it, renumber the files",
            )
