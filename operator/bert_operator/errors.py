"""The operator's error tree and exit codes.

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

from collections.abc import Sequence

from bert_job.problems import Problem

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


class InvalidJob(InputError):
    """The job holds values that cannot work, or combinations of values; ``problems`` has all of one kind."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        """Build the text from the problems, of which there is at least one."""
        self.problems = tuple(problems)
        count = len(self.problems)
        lines = "\n".join(f"  {problem}" for problem in self.problems)
        super().__init__(f"The job has {count} problem{'s' if count > 1 else ''}:\n{lines}")
