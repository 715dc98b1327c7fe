"""The operator's error tree, exit codes, and problems: single mistakes in a job, collected and reported together.

    OperatorError            something that a person has to act on; exit code 1
    ├── InputError           what the user wrote is wrong; exit code 2
    │   ├── DocumentError    the file cannot be read as one job
    │   ├── InvalidJob       the job is readable, but holds values that cannot work; carries ``problems``
    │   ├── LaunchError      a host file, or a launcher that is not installed
    │   └── SettingsError    the operator's own configuration
    └── (anything else is a bug and keeps its traceback)

A message is one sentence; an optional second line begins with ``hint:`` and says what to do next. Nothing here knows
Kubernetes, kopf or the command line.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

EXIT_SUCCEEDED = 0
EXIT_FAILED = 1
EXIT_BAD_INPUT = 2


class OperatorError(Exception):
    """An error that needs a person's action."""

    exit_code = EXIT_FAILED

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        """Build the text.

        Args:
            message: one sentence.
            hint: what to do next, shown on a line of its own.
        """
        self.hint = hint
        super().__init__(f"{message}\nhint: {hint}" if hint else message)


class InputError(OperatorError):
    """Invalid input; retrying without a change cannot help."""

    exit_code = EXIT_BAD_INPUT


class DocumentError(InputError):
    """The file is missing, is not YAML, is ambiguous between YAML versions, or does not hold one job."""


class LaunchError(InputError):
    """The processes cannot be started: a host file is wrong or a launcher is missing."""


class SettingsError(InputError):
    """The operator's own configuration cannot be read, or holds invalid values."""


PathPart = str | int
Path = tuple[PathPart, ...]

ABSENT = "nothing"
"""``got`` of a problem with a missing field, which is reported as required."""

# Compared, not only shown: in a cluster such a field has another next step (cluster.settings_rules).
UNKNOWN_FIELD = "a field that does not exist here"
"""``got`` of a problem with an unknown field."""

_MAX_VALUE = 60
"""Characters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One mistake in a job: ``path`` in kubectl's notation, and what was found, is allowed and to do, as text."""

    path: str
    got: str
    allowed: str
    next_step: str

    def __str__(self) -> str:
        """Render on one line."""
        found = "required" if self.got == ABSENT else f"got {self.got}; allowed"
        return f"{self.path}: {found}: {self.allowed}; next: {self.next_step}"


def render_path(path: Path) -> str:
    """Render keys and list positions as ``spec.stages[1].pretrain``."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            shown = printable(part)
            text += f".{shown}" if text else shown
    return text or "(the document)"


def printable(text: str) -> str:
    """Return text from elsewhere as a terminal and a log may have it: other signs are escaped as Python does."""
    return "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in text)


def render_value(value: object) -> str:
    """Render a value as it stands in YAML's flow style, shortened where it is long."""
    # default=str: messages quote whatever was found, also what JSON has no form for.
    text = printable(json.dumps(value, ensure_ascii=False, default=str))
    return text if len(text) <= _MAX_VALUE else f"{text[: _MAX_VALUE - 3]}..."


class InvalidJob(InputError):
    """The job holds values that cannot work, or combinations of values; ``problems`` has all of one kind."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        """Build the text from the problems, of which there is at least one."""
        self.problems = tuple(problems)
        count = len(self.problems)
        lines = "\n".join(f"  {problem}" for problem in self.problems)
        super().__init__(f"The job has {count} problem{'s' if count > 1 else ''}:\n{lines}")
