"""What ends a verb, and the exit code that it ends with.

    OperatorError            exit code 1
    ├── ApiRefused           the API server said no; carries ``status``
    │   └── NoSuchObject     it is not there; exit code 3
    ├── Unreachable         what was waited for cannot happen any more
    └── WaitTimeout             it did not happen in time; exit code 4

A wrong command line, a manifest that breaks rules and a missing kubectl are InputErrors: exit code 2.
"""

from __future__ import annotations

from bert_operator.errors import OperatorError

EXIT_NOT_FOUND = 3
EXIT_TIMEOUT = 4
EXIT_INTERRUPTED = 130


class ApiRefused(OperatorError):
    """kubectl could not do what was asked: the API server refused it, or gave no answer."""

    def __init__(self, message: str, *, status: int = 0, hint: str | None = None) -> None:
        """Build the text. status: of the answer in HTTP; 0: there was none."""
        self.status = status
        super().__init__(message, hint=hint)


class NoSuchObject(ApiRefused):
    """There is no object of this name."""

    exit_code = EXIT_NOT_FOUND


class Unreachable(OperatorError):
    """The job has ended, or gone, in another way than the one that was waited for."""


class WaitTimeout(OperatorError):
    """What was waited for did not happen before the deadline."""

    exit_code = EXIT_TIMEOUT
