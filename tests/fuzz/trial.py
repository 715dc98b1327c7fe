"""One input shown to one reader, and what may not come of it.

A reader reads, or refuses with an error of the project that names the file and says what is allowed or what to do. It
raises nothing else, takes no more than five seconds of a processor and no gigabyte of memory, starts no process, opens
no connection, and writes no file outside of its own folder.
"""

from __future__ import annotations

import os
import resource
import sys
import time
import traceback
from dataclasses import dataclass
from pathlib import Path

from fuzz_reader import Reader

MOST_SECONDS = 5.0
"""Of processor time: a busy machine makes nothing slow."""
MOST_MB = 1000
_ADDRESS_SPACE = 4 << 30
"""More than what is allowed, so that the measure above finds it and the machine is safe all the same."""
_FORBIDDEN = ("os.system", "os.exec", "os.posix_spawn", "os.fork", "os.forkpty", "subprocess.Popen", "socket.connect")
_FORBIDDEN += ("socket.getaddrinfo", "socket.bind", "ctypes.dlopen", "pty.spawn", "urllib.Request")


_ADVICE = ("allowed", "expected", "should", "; next: ", "quote it", "keep one", "save the file", "required")
"""One of these is in a refusal that has no hint."""


class Forbidden(BaseException):
    """A reader did what loading a file never needs."""


class _Watch:
    """Raises where a reader does what it may not; an audit hook, which cannot be taken away again."""

    def __init__(self) -> None:
        self.place: Path | None = None
        """The only folder in which files may be written; None: nobody is watched."""

    def __call__(self, event: str, arguments: tuple[object, ...]) -> None:
        if self.place is None:
            return
        if event in _FORBIDDEN:
            raise Forbidden(f"{event}{arguments!r}"[:500])
        if event == "open" and isinstance(arguments[0], str | bytes | os.PathLike):
            flags = arguments[2] if isinstance(arguments[2], int) else 0
            path = os.fsdecode(arguments[0])
            if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) and not path.startswith(str(self.place)):
                raise Forbidden(f"writes {path}"[:500])


_watch = _Watch()
_installed: list[_Watch] = []


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of an input."""

    seconds: float
    """Of processor time."""
    peak_mb: float
    """Most memory that this process has ever had."""
    problem: str = ""
    """What may not happen; empty: nothing of it did."""
    place: str = ""
    """Where: inputs that end at the same place are one finding."""
    refused: bool = False


def limit_memory() -> None:
    """Let this process have some gigabytes more than it has, and not all of the machine's."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + _ADDRESS_SPACE
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def judge(reader: Reader, data: bytes, place: Path) -> Verdict:
    """Show an input to a reader. place: a folder for the file."""
    if not _installed:
        sys.addaudithook(_watch)
        _installed.append(_watch)
    path = place / reader.file_name
    path.write_bytes(data)
    started, before_mb = time.process_time(), peak_mb()
    problem = where = ""
    refused = False
    _watch.place = place
    try:
        reader.read(path)
    except reader.refusals as error:
        refused = True
        problem = _problem_of_refusal(reader, path, error)
        where = _place_of(error)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - whatever it is, it is the finding
        problem, where = f"raised {type(error).__name__}: {str(error)[:300]!r}", _place_of(error)
    finally:
        _watch.place = None
    seconds, most = time.process_time() - started, peak_mb()
    if not problem and seconds > MOST_SECONDS:
        problem, where = f"took {seconds:.1f} s of a processor; allowed: {MOST_SECONDS:g}", "slow"
    if not problem and most > MOST_MB and most - before_mb > 1:
        problem, where = f"the process grew from {before_mb:.0f} to {most:.0f} MB; allowed: {MOST_MB}", "large"
    return Verdict(seconds, most, problem, where, refused)


def peak_mb() -> float:
    """Return the most memory that this process has had, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _problem_of_refusal(reader: Reader, path: Path, error: BaseException) -> str:
    """Return what is wrong with how an input is refused; empty: nothing."""
    text = str(error)
    chain: BaseException | None = error
    while chain is not None:
        if isinstance(chain, MemoryError):
            return f"asked for memory that is not there: {text[:300]!r}"
        chain = chain.__cause__ or chain.__context__
    if reader.names_file and str(path.parent) not in text:
        return f"a refusal that does not name the file: {text[:300]!r}"
    if reader.advises and not getattr(error, "hint", None) and not any(words in text for words in _ADVICE):
        return f"a refusal that says neither what is allowed nor what to do: {text[:300]!r}"
    if any(not (sign.isprintable() or sign == "\n") for sign in text):
        return f"a refusal with signs that cannot be printed: {text[:300]!r}"
    if len(text) > 20_000:
        return f"a refusal of {len(text)} characters"
    return ""


def _place_of(error: BaseException) -> str:
    """Return the innermost line of the project that an error came through, and its kind."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "bert_operator" in frame.filename or "bert_trainer" in frame.filename]
    last = ours[-1] if ours else frames[-1]
    return f"{type(error).__name__} at {Path(last.filename).name}:{last.lineno}"
