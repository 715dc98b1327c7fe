"""Starts kubectl, the only way to the cluster: its contexts, credentials and proxies are those of whoever calls.

Nothing else here starts a process. What kubectl says when it fails becomes an error with what was asked, what came back
and a next step.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import queue
import re
import shlex
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bert_job.foreign_text import one_line
from bert_operator.errors import LaunchError, OperatorError
from bert_operator.names import API_GROUP
from bert_operator.plugin.errors import ApiRefused, NoSuchObject, WaitTimeout

JOBS = f"bertpretrainjobs.{API_GROUP}"
"""The resource with its group: other groups may have a kind of the same name."""

# ``kubectl logs`` writes it in small letters, behind another word.
_FROM_SERVER = re.compile(r"^(?:error: )?[Ee]rror from server(?: \((\w+)\))?: (.*)", re.DOTALL)
_LAST_FROM_SERVER = re.compile(r"\n(?=(?:error: )?[Ee]rror from server)")
# What client-go logs while an aggregated API is down, and what admission remarks: neither is why kubectl failed.
_BESIDE = re.compile(r"[IWEF][0-9]{4} |Warning: ")
_STATUS = {
    "BadRequest": 400,
    "Unauthorized": 401,
    "Forbidden": 403,
    "NotFound": 404,
    "MethodNotAllowed": 405,
    "AlreadyExists": 409,
    "Conflict": 409,
    "Gone": 410,
    "Expired": 410,
    "Invalid": 422,
    "TooManyRequests": 429,
    "InternalError": 500,
    "ServiceUnavailable": 503,
    "Timeout": 504,
}
_SILENT = ("Unable to connect to the server", "The connection to the server", "i/o timeout", "no route to host")
_NO_KIND = ("doesn't have a resource type", "no matches for kind", "the server could not find the requested resource")
_UNKNOWN = ("must be logged in", "Unauthorized")
_HINTS = {
    401: "log in to the cluster again; kubectl auth whoami says as whom it knows you",
    403: "ask whoever runs the cluster for the roles view (to look) or edit (to change) in this namespace",
}
"""By status."""
_MAX_ANSWER = 4000
"""Characters of an error that are shown."""
_MAX_ERRORS = 100_000
"""Characters of standard error that are looked at, from its end."""
_MAX_LINE = 1_048_576
"""Bytes; a longer line is passed on in pieces of that size."""
_MAX_OPENING_S = 30.0
"""Within which a watch shows what is there."""
_MAX_LINES_AHEAD = 1000
"""Lines that are read before somebody takes them: kubectl waits for a reader that is slow, as it does in a pipe."""


@dataclass(frozen=True, slots=True)
class Ended:
    """Result of a kubectl process."""

    code: int
    output: str
    errors: str


@dataclass(frozen=True, slots=True)
class Kubectl:
    """kubectl with the options of one command line: context, kubeconfig, namespace."""

    options: tuple[str, ...] = ()
    """Before the words of every call."""
    namespace: str | None = None
    """None: that of the context."""
    program: str = "kubectl"

    @property
    def where(self) -> str:
        """Options that select the same cluster and namespace in further commands, each preceded by a blank."""
        namespace = ("-n", self.namespace) if self.namespace else ()
        return "".join(f" {shlex.quote(word)}" for word in (*namespace, *self.options))

    def within(self, namespace: str | None) -> Kubectl:
        """Return kubectl for another namespace."""
        return replace(self, namespace=namespace)

    def run(self, *words: str, given: str | None = None, timeout_s: float | None = None) -> Ended:
        """Run a command and wait for its end, whatever its exit code.

        Args:
            words: What stands behind ``kubectl`` and the options.
            given: Its standard input; None: an empty one.
            timeout_s: After which it is ended.

        Raises:
            LaunchError: There is no kubectl.
            WaitTimeout: It did not end in time.
        """
        try:
            with _found(self.program):
                ended = subprocess.run(
                    self._command(words),
                    input=given or "",
                    capture_output=True,
                    text=True,
                    errors="replace",
                    check=False,
                    timeout=timeout_s,
                )
        except subprocess.TimeoutExpired as late:
            raise WaitTimeout(f"kubectl {words[0]} did not end within {timeout_s:g} s") from late
        return Ended(ended.returncode, ended.stdout, ended.stderr)

    def call(self, *words: str, given: str | None = None, timeout_s: float | None = None) -> str:
        """Return the output of a command.

        Raises:
            ApiRefused: It failed; NoSuchObject where the server knows no such object.
            WaitTimeout: It did not end in time.
        """
        ended = self.run(*words, given=given, timeout_s=timeout_s)
        if ended.code:
            raise explain(words, ended.errors)
        return ended.output

    def read(self, *words: str, given: str | None = None, timeout_s: float | None = None) -> Any:
        """Return the object or list that it prints as JSON. Raises as ``call``."""
        return decode(self.call(*words, "-o", "json", given=given, timeout_s=timeout_s), words)

    def get_raw(self, path: str) -> Any:
        """Return what the API server answers at a path such as ``/api/v1/nodes``, decoded. Raises ApiRefused."""
        # The namespace stands in the path; kubectl ignores the option here.
        return decode(self.call("get", "--raw", path), ("get", "--raw", path))

    @contextlib.contextmanager
    def lines(self, *words: str) -> Iterator[LineStream]:
        """Run a command in the background and read its lines; it is stopped at the end of the block."""
        with _found(self.program):
            process = subprocess.Popen(
                self._command(words),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
        stream = LineStream(process, words)
        try:
            yield stream
        finally:
            stream.close()

    def watch(self, kind: str, name: str, until_s: float | None = None) -> Iterator[tuple[str, Any]]:
        """Yield an object, then its changes, as ``(ADDED | MODIFIED | DELETED, object)`` until the server hangs up.

        Args:
            kind: The resource, as in ``JOBS``.
            name: Of the object.
            until_s: Of time.monotonic(), when to give up.

        Raises:
            WaitTimeout: The time has come.
            ApiRefused: It failed; NoSuchObject where there is no such object.
        """
        left_s = None if until_s is None else max(0.0, until_s - time.monotonic())
        known = self.read("get", kind, name, timeout_s=left_s)
        yield "ADDED", known
        # As a list of one. ``kubectl get NAME --watch`` reads the object, begins a watch from "now" and drops its first
        # event as known: a change between the two is never told, and a job that starts at once seems to wait for ever.
        # A list has a version from which the watch goes on.
        words = ("get", kind, f"--field-selector=metadata.name={name}")
        with self.lines(*words, "--watch", "--output-watch-events", "-o", "json") as stream:
            soon_s = time.monotonic() + _MAX_OPENING_S
            lines = stream.read(soon_s if until_s is None else min(soon_s, until_s))
            # In a watch, kubectl writes each event on a line of its own.
            try:
                first = next(lines, None)
            except WaitTimeout:
                if until_s is not None and time.monotonic() >= until_s:
                    raise
                return  # it was deleted since it was read, and an empty list says nothing
            for line in () if first is None else itertools.chain([first], stream.read(until_s)):
                event = decode(line, words)
                change = str(event.get("type")), event.get("object")
                if change != ("ADDED", known):  # the list begins with what has just been read
                    yield change
            stream.expect_success()

    def _command(self, words: Sequence[str]) -> list[str]:
        where = ("--namespace", self.namespace) if self.namespace else ()
        return [self.program, *self.options, *where, *words]


class LineStream:
    """Output lines of a kubectl process in the background."""

    def __init__(self, process: subprocess.Popen[bytes], words: Sequence[str]) -> None:
        """Begin to read, in threads: a pipe that nobody reads would stop kubectl."""
        self._process, self._words = process, words
        self._lines: queue.Queue[str | None] = queue.Queue(_MAX_LINES_AHEAD)
        self._errors: list[str] = []
        self._readers = [
            threading.Thread(target=self._read_output, daemon=True),
            threading.Thread(target=self._read_errors, daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    def read(self, until_s: float | None = None) -> Iterator[str]:
        """Yield lines without their ends. Raises WaitTimeout at ``until_s`` (time.monotonic())."""
        while True:
            left_s = None if until_s is None else max(0.0, until_s - time.monotonic())
            try:
                line = self._lines.get(timeout=left_s)
            except queue.Empty:
                raise WaitTimeout(f"kubectl {' '.join(self._words)}: time is up") from None
            if line is None:
                return
            yield line

    def expect_success(self) -> None:
        """Wait for the process. Raises ApiRefused if it failed."""
        if self._process.wait():
            self._readers[1].join()
            raise explain(self._words, "".join(self._errors))

    def close(self) -> None:
        """Stop the process if it still runs."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        # The reader may wait for room: everything that is left is taken, up to the end.
        while self._readers[0].is_alive():
            with contextlib.suppress(queue.Empty):
                self._lines.get(timeout=0.05)
        self._readers[1].join()
        for pipe in (self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()

    def _read_output(self) -> None:
        assert self._process.stdout is not None
        # Bytes: in text Python would take the carriage returns of a progress bar for ends of lines.
        while line := self._process.stdout.readline(_MAX_LINE):
            self._lines.put(line.decode(errors="replace").rstrip("\n"))
        self._lines.put(None)

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        self._errors.append(self._process.stderr.read().decode(errors="replace"))


def decode(text: str, words: Sequence[str]) -> Any:
    """Return a JSON document that kubectl has printed. Raises OperatorError if it is none."""
    try:
        return json.loads(text)
    except ValueError as error:
        raise OperatorError(
            f"kubectl {' '.join(words)}: got {text[:60]!r}, which is no JSON ({error})",
            hint="run the same command by itself; a wrapper around kubectl may print to its standard output",
        ) from error


def explain(words: Sequence[str], errors: str) -> ApiRefused:
    """Return the error for what kubectl has printed to standard error."""
    asked = "kubectl " + " ".join([word for word in words if word not in ("-o", "json")][:4])
    # It quotes names and messages that anybody may have given to objects.
    lines = [one_line(line) for line in errors[-_MAX_ERRORS:].splitlines() if line.strip()]
    text = "\n".join([line for line in lines if not _BESIDE.match(line)] or lines) or "it failed without a word"
    text = _LAST_FROM_SERVER.split(text)[-1][:_MAX_ANSWER]
    if any(sign in text for sign in _NO_KIND) and JOBS in " ".join(words):
        return ApiRefused(
            f"{asked}: the cluster does not know BertPretrainJobs",
            status=404,
            said=text,
            hint="install the operator (docs/guides/install.md), or name another cluster by --context",
        )
    found = _FROM_SERVER.match(text)
    if found is not None:
        reason, message = found[1] or "InternalError", found[2]
        status = _STATUS.get(reason, 500)
        if reason == "NotFound":
            hint = "kubectl bert list -A shows every job"
            return NoSuchObject(f"{asked}: {message}", status=status, hint=hint, said=message)
        return ApiRefused(f"{asked}: {reason}: {message}", status=status, hint=_HINTS.get(status), said=message)
    if any(sign in text for sign in _SILENT):
        return ApiRefused(
            f"{asked}: the API server does not answer: {text}",
            hint="kubectl cluster-info; --context and --kubeconfig choose another cluster",
            said=text,
        )
    said = text.removeprefix("error: ")
    status = 401 if any(sign in text for sign in _UNKNOWN) else 0
    return ApiRefused(f"{asked}: {said}", status=status, hint=_HINTS.get(status), said=said)


@contextlib.contextmanager
def _found(program: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise LaunchError(
            f"{program}: cannot be started ({error.strerror or error})",
            hint="install kubectl (https://kubernetes.io/docs/tasks/tools) and put it into PATH",
        ) from error
