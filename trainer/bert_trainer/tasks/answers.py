"""Where an answer stands in its context."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from bert_job.foreign_text import printable
from bert_trainer.errors import InputError
from bert_trainer.tasks.delimited import excerpt

_NEAR = 2
"""Characters by which an offset may be wrong."""
_DISTANCES = sorted(range(-_NEAR, _NEAR + 1), key=abs)
_SHOWN = 5


@dataclass(slots=True)
class AnswerCheck:
    """Locates the answers of one file and collects those that are not at the stated place."""

    path: Path
    num_moved: int = 0
    """Answers whose offset was wrong by a character or two."""
    _moved: list[str] = field(default_factory=list)
    _lost: list[str] = field(default_factory=list)
    _num_lost: int = 0

    def locate(self, name: str, context: str, answer: str, start: int | None) -> tuple[str, int] | None:
        """Return the answer and its offset; None, and remembered, where it is not there.

        Args:
            name: Of the question, for the message.
            context: The text that holds the answer.
            answer: As it stands in the context.
            start: Offset of its first character; None: its first occurrence.
        """
        found = _find(context, answer, start)
        if isinstance(found, str):
            self._num_lost += 1
            if len(self._lost) < _SHOWN:
                self._lost.append(f"{name} has {found}")
            return None
        if start is not None and found != start:
            self.num_moved += 1
            if len(self._moved) < _SHOWN:
                self._moved.append(f"{name} from {start} to {found}")
        return answer, found

    def notes(self) -> list[str]:
        """Return warnings for the log.

        Raises:
            InputError: answers are not in their contexts; names the first ones and how many there are.
        """
        if self._num_lost:
            more = f", and {self._num_lost - len(self._lost)} more" if self._num_lost > len(self._lost) else ""
            raise InputError(
                f"{printable(self.path)}: answers that are not in their contexts: {self._num_lost}: "
                f"{'; '.join(self._lost)}{more}",
                hint="each answer must be a part of its context, letter by letter, and its start be counted in "
                "characters from 0; correct these, or take them out: none is skipped silently",
            )
        if not self.num_moved:
            return []
        more = f", and {self.num_moved - len(self._moved)} more" if self.num_moved > len(self._moved) else ""
        return [
            f"{printable(self.path)}: answers up to {_NEAR} characters from where the file says: {self.num_moved}: "
            f"{'; '.join(self._moved)}{more}"
        ]


def _find(context: str, answer: str, start: int | None) -> int | str:
    """Return the offset of an answer, or in words what is wrong with it."""
    if not answer.strip():
        return "an empty answer"
    if start is None:
        first = context.find(answer)
        return first if first >= 0 else f"{excerpt(answer)}, which is not there"
    # Programs that strip a context shift all its offsets; the nearest first.
    for distance in _DISTANCES:
        if start + distance >= 0 and context.startswith(answer, start + distance):
            return start + distance
    elsewhere = context.find(answer)
    there = excerpt(context[start : start + len(answer)]) if 0 <= start < len(context) else "nothing"
    found_at = f"; it stands at {elsewhere}" if elsewhere >= 0 else ""
    return f"{excerpt(answer)} at {start}, where {there} stands{found_at}"
