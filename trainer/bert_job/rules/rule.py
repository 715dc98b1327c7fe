"""What a rule between fields is made of: a check in Python, the same in CEL, and what to say where it does not hold.

All of it stands in one place, at the rule, and both programs run it: the operator on jobs, the trainer on what it is
given. ``section_rule`` has a shorter form for rules inside one section. tests/api_server holds the two languages
together on generated documents.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from bert_job.problems import Problem
from bert_job.rules.cel import Cel, CelRule

Subject = TypeVar("Subject", contravariant=True)
"""What a check looks at. A rule over a training holds for a job, which is one."""


@dataclass(frozen=True, slots=True)
class Violation:
    """One violation of a rule: where, what was found, what is allowed."""

    path: str
    """Below the spec, or below the stage; empty: that itself."""
    got: str
    allowed: str = ""
    """The rule's words with the numbers of this job. Empty: as they are."""
    next_step: str = ""
    """The same for the next step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule(Generic[Subject]):
    """A rule between fields in Python and CEL. Both are asked only where all fields are valid."""

    check: Callable[[Subject], Iterator[Violation]]
    cel: tuple[Cel, ...]
    """Several where it stands at several fields. What the API server is not given of a rule is said at that rule."""
    allowed: str
    next_step: str

    def problem(self, found: Violation, path: str) -> Problem:
        """Return the problem for a violation in a subject at ``path``."""
        return Problem(
            path=f"{path}.{found.path}" if found.path else path,
            got=found.got,
            allowed=found.allowed or self.allowed,
            next_step=found.next_step or self.next_step,
        )

    def cel_at(self, sections: Collection[str]) -> Iterator[CelRule]:
        """Yield the rule's CEL validations for a section, by the names of its class and those it inherits from."""
        # By name: the definition is made from the JSON schema, whose titles are the names of classes.
        return (cel.with_message(self.allowed, self.next_step) for cel in self.cel if cel.section.__name__ in sections)


def rule(
    *cel: Cel, allowed: str, next_step: str
) -> Callable[[Callable[[Subject], Iterator[Violation]]], Rule[Subject]]:
    """Decorator: make a rule of the Python check below it."""

    def make(check: Callable[[Subject], Iterator[Violation]]) -> Rule[Subject]:
        return Rule(check=check, cel=cel, allowed=allowed, next_step=next_step)

    return make
