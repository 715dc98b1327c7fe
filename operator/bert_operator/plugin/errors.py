"""What ends a verb, and the exit code that it ends with.

    OperatorError            exit code 1
    ├── ApiRefused           the API server said no; carries ``status``
    │   └── NoSuchObject     it is not there; exit code 3
    ├── Unreachable          what was waited for cannot happen any more
    └── WaitTimeout          it did not happen in time; exit code 4

A wrong command line, a manifest that breaks rules and a missing kubectl are InputErrors: exit code 2.
"""

from __future__ import annotations

from bert_operator.errors import OperatorError

EXIT_NOT_FOUND = 3
EXIT_TIMEOUT = 4
EXIT_INTERRUPTED = 130


class ApiRefused(OperatorError):
    """kubectl failed: the API server refused the request or did not respond."""

    def __init__(self, message: str, *, status: int = 0, hint: str | None = None, said: str = "") -> None:
        """Build the text. status: of the answer in HTTP; 0: there was none. said: what kubectl or the server wrote."""
        self.status, self.said = status, said
        super().__init__(message, hint=hint)


class NoSuchObject(ApiRefused):
    """There is no object of this name."""

    exit_code = EXIT_NOT_FOUND


class Unreachable(OperatorError):
    """The job has ended or was deleted, so that the awaited state can no longer be reached."""


class WaitTimeout(OperatorError):
    """The awaited state was not reached in time."""

    exit_code = EXIT_TIMEOUT
