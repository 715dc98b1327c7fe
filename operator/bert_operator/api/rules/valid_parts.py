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
    """The parts of a job that are valid and the user's own. ``broken``: paths below ``spec`` of all others."""

    broken: frozenset[Path] = frozenset()

    @classmethod
    def of(cls, document_paths: Iterable[Path]) -> ValidParts:
        """Build from the paths of invalid parts in the document; those outside ``spec`` are ignored."""
        return cls(frozenset(path[1:] for path in document_paths if path[:1] == ("spec",)))

    @property
    def is_complete(self) -> bool:
        """Whether the whole job is valid as written, so that every rule applies."""
        return not self.broken

    def is_there(self, path: Path) -> bool:
        """Return whether the user wrote this section; fields inside it may be invalid."""
        # Broken is this path or one above it.
        return not any(bad == path[: len(bad)] for bad in self.broken)

    def is_whole(self, path: Path) -> bool:
        """Return whether this field and everything inside it is valid."""
        return self.is_there(path) and not any(path == bad[: len(path)] for bad in self.broken)

    def has_its_fields(self, path: Path) -> bool:
        """Return whether all direct fields of this section are the user's own; nested ones may be invalid."""
        return self.is_there(path) and not any(
            len(bad) == len(path) + 1 and bad[: len(path)] == path for bad in self.broken
        )
