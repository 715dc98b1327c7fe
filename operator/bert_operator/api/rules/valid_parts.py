"""Which parts of a job are the user's own, and which were filled in for something missing or unreadable.

Rules between fields are checked even where single fields are wrong, so that a person sees all mistakes at once
(``schema_problems.repair``). A rule is skipped if it reads a field that was filled in, so that one mistake is not
reported as two.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from bert_operator.errors import Path


@dataclass(frozen=True, slots=True)
class ValidParts:
    """Answers by the paths that were dropped or replaced. Paths are below ``spec``."""

    broken: frozenset[Path] = frozenset()

    @classmethod
    def of(cls, document_paths: Iterable[Path]) -> ValidParts:
        """Take paths of the whole document; those outside ``spec`` do not matter to rules."""
        return cls(frozenset(path[1:] for path in document_paths if path[:1] == ("spec",)))

    @property
    def is_complete(self) -> bool:
        """Whether all of the job is the user's own, as it is of every valid one: no rule has to be left out."""
        return not self.broken

    def is_there(self, path: Path) -> bool:
        """Tell whether the user wrote this section, whatever may be wrong inside it."""
        # Broken is this path or one above it.
        return not any(bad == path[: len(bad)] for bad in self.broken)

    def is_whole(self, path: Path) -> bool:
        """Tell whether nothing is wrong with this field or anywhere inside it."""
        return self.is_there(path) and not any(path == bad[: len(path)] for bad in self.broken)

    def has_its_fields(self, path: Path) -> bool:
        """Tell whether the section holds just the fields that the user meant, sound inside or not."""
        return self.is_there(path) and not any(
            len(bad) == len(path) + 1 and bad[: len(path)] == path for bad in self.broken
        )
