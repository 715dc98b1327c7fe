"""What is kept of a job of this machine while it runs and afterwards, and the process that runs it.

A job runs as long as ``bert-operator local`` holds the lock of its folder, which ends with that process, however it
ends: no process number has to be trusted. Whoever has started it holds its standard input, at whose end it stops.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from bert_operator.errors import EXIT_BAD_INPUT, InputError, LaunchError, OperatorError
from bert_operator.files import open_no_link, replace_text

POLL_S = 0.1
_START_S = 120.0
"""From its start until it has looked at the job: Python's start and imports on a busy machine."""
_MANIFEST, _JOB, _RUN, _STATUS = "manifest.json", "job.json", "run.json", "status.json"
_LOG, _LOCK = "log", "lock"

Json = dict[str, Any]

_STARTED: list[subprocess.Popen[bytes]] = []
"""Of this interpreter, until they have ended: a client that is collected must not take its jobs along."""


def find_operator() -> str:
    """Return the program. Raises LaunchError."""
    # Beside the interpreter first: in a virtual environment that is not activated it is not in PATH.
    beside = Path(sys.executable).with_name("bert-operator")
    program = str(beside) if beside.is_file() else shutil.which("bert-operator")
    if program is None:
        raise LaunchError(
            f"bert-operator: got nothing beside {sys.executable} or in PATH; allowed: the program that runs jobs here",
            hint="pip install 'bert-pretrain-operator[operator,trainer]' into this environment",
        )
    return program


class JobFolder:
    """The folder of one job, by its name."""

    def __init__(self, path: Path) -> None:
        """Prepare it; nothing is created yet."""
        self.path = path

    @property
    def exists(self) -> bool:
        """Whether there is such a job."""
        return (self.path / _RUN).is_file()

    @property
    def is_running(self) -> bool:
        """Whether its process is there. Raises OperatorError where the lock cannot be opened."""
        _forget_ended()
        with contextlib.suppress(FileNotFoundError), self._open_lock() as lock:
            return not _try_lock(lock)
        return False

    @property
    def manifest(self) -> Json:
        """The job as it was submitted."""
        return _read_json(self.path / _MANIFEST)

    @property
    def run(self) -> Json:
        """How it was started: ``cwd``, ``options``, ``pid``; and ``suspend``, whether it is asked to stop."""
        return _read_json(self.path / _RUN)

    @property
    def status(self) -> Json:
        """What ``bert-operator local --status`` has written; empty before."""
        return _read_json(self.path / _STATUS)

    def start(self, manifest: Mapping[str, Any], *, cwd: str, options: Sequence[str], goes_on: bool) -> None:
        """Start its process, and return once that has taken the job.

        Args:
            manifest: The job.
            cwd: Where it runs.
            options: Of ``bert-operator local``.
            goes_on: Whether it resumes what its last run has left, log included.

        Raises:
            InputError: The job, or an option, cannot be; a new job is forgotten.
            OperatorError: It could not be started.
        """
        program = find_operator()
        self.path.mkdir(parents=True, exist_ok=True)
        with self._open_lock(create=True) as lock:
            if not _try_lock(lock, wait_s=_START_S):
                raise OperatorError(f"{self.path}: the process of the last run does not end", hint="delete the job")
            replace_text(self.path / _MANIFEST, _as_json(manifest))
            replace_text(self.path / _JOB, _as_json(_resuming(manifest) if goes_on else manifest))
            (self.path / _STATUS).unlink(missing_ok=True)
            words = ["local", str(self.path / _JOB), "--plain", "--stop-at-eof", *options]
            with _open(self.path / _LOG, "ab" if goes_on else "wb") as log:
                begin = log.tell()
                process = subprocess.Popen(
                    [program, *words, "--status", str(self.path / _STATUS)],
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    cwd=cwd,
                    # Ctrl-C in the terminal, or a notebook's interrupt, is not for the job.
                    start_new_session=True,
                    # The lock belongs to every holder of the file: the child keeps it, and none of the child's own.
                    pass_fds=(lock.fileno(),),
                )
            _STARTED.append(process)
            run = {"cwd": cwd, "options": list(options), "pid": process.pid, "suspend": False}
            replace_text(self.path / _RUN, _as_json(run))
        self._await_start(process, begin, goes_on=goes_on)

    def _await_start(self, process: subprocess.Popen[bytes], begin: int, *, goes_on: bool) -> None:
        until_s = time.monotonic() + _START_S
        while not (self.path / _STATUS).exists():
            if process.poll() is not None:
                said = (self.path / _LOG).read_bytes()[begin:].decode(errors="replace").strip()
                if not goes_on:
                    self.remove()
                _raise(process.returncode, said or f"{find_operator()} ended with {process.returncode}")
            if time.monotonic() > until_s:
                process.terminate()
                raise OperatorError(f"{self.path}: bert-operator has not begun after {_START_S:g} s")
            time.sleep(POLL_S)

    def ask_to_stop(self) -> None:
        """Send SIGTERM, on which a checkpoint is written; nothing where it does not run."""
        pid = self.run.get("pid")
        if isinstance(pid, int) and self.is_running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)

    def await_end(self, timeout_s: float) -> bool:
        """Wait until its process is gone; return whether it is."""
        until_s = time.monotonic() + timeout_s
        while self.is_running:
            if time.monotonic() > until_s:
                return False
            time.sleep(POLL_S)
        return True

    def mark(self, *, suspend: bool) -> None:
        """Keep whether the job is asked to be stopped."""
        replace_text(self.path / _RUN, _as_json({**self.run, "suspend": suspend}))

    def remove(self) -> None:
        """Delete the folder of a job that does not run."""
        shutil.rmtree(self.path, ignore_errors=True)

    def lines(self, *, follow: Callable[[], bool] = lambda: False) -> Iterator[str]:
        """Yield the lines of the log. follow: whether more may come; asked before the end is looked for."""
        rest = b""
        with contextlib.suppress(FileNotFoundError), _open(self.path / _LOG, "rb") as log:
            while True:
                goes_on = follow()
                while data := log.read(1 << 16):
                    *lines, rest = (rest + data).split(b"\n")
                    yield from (line.decode(errors="replace") for line in lines)
                if not goes_on:
                    break
                time.sleep(POLL_S)
        if rest:
            yield rest.decode(errors="replace")

    def _open_lock(self, *, create: bool = False) -> IO[Any]:
        return _open(self.path / _LOCK, "a" if create else "r")


def read_operator_manifest(path: Path) -> Json:
    """Return the job in a file, which ``bert-operator`` reads: YAML is not of the standard library.

    Raises:
        InputError: It holds no valid job, or several.
        OperatorError: It cannot be read.
    """
    words = [find_operator(), "render", "--show", "manifest", str(path)]
    answer = subprocess.run(words, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    if answer.returncode != 0:
        _raise(answer.returncode, answer.stderr.strip())
    found: Json = json.loads(answer.stdout)
    return found


def _open(path: Path, mode: str) -> IO[Any]:
    """Open a lock or a log. Raises OperatorError for a link or what else cannot be opened, FileNotFoundError."""
    try:
        return open_no_link(path, mode)
    except FileNotFoundError:
        raise
    except OSError as error:
        got = "a symbolic link" if path.is_symlink() else error.strerror
        raise OperatorError(
            f"{path}: got {got}; allowed: a file that this user may read and write",
            hint="see who else may write in the folder, end the job's process if it is there, and delete the file",
        ) from error


def _resuming(manifest: Mapping[str, Any]) -> Json:
    """Return a job that continues what is in its output folder: to the trainer every start is another run."""
    spec = manifest["spec"]
    return {**manifest, "spec": {**spec, "output": {**spec["output"], "ifExists": "Resume"}}}


def _forget_ended() -> None:
    for process in list(_STARTED):
        if process.poll() is not None:
            if process.stdin is not None:
                process.stdin.close()
            with contextlib.suppress(ValueError):  # another thread was faster
                _STARTED.remove(process)


def _raise(code: int, said: str) -> None:
    message, _, hint = said.partition("\nhint: ")
    raise (InputError if code == EXIT_BAD_INPUT else OperatorError)(message, hint=hint or None)


def _try_lock(file: Any, wait_s: float = 0.0) -> bool:
    # Where it is missing, on Windows, the client of a cluster can be imported all the same.
    import fcntl

    until_s = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until_s:
                return False
            time.sleep(POLL_S)
        else:
            return True


def _read_json(path: Path) -> Json:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _as_json(content: Mapping[str, Any]) -> str:
    return json.dumps(content, indent=2)
