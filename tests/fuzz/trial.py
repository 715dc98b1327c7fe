"""One input shown to one reader, and what may not come of it.

A reader reads, or refuses with an error of the project that names the file and says what is allowed or what to do. It
raises nothing else, takes no more than five seconds of a processor and no gigabyte of memory, starts no process, opens
no connection, carries out nothing that stands in the file, and changes no file outside of its own folder.
"""

from __future__ import annotations

import os
import resource
import sys
import time
import traceback
from dataclasses import dataclass
from pathlib import Path

from fuzz_reader import NoInput, Reader

MAX_SECONDS = 5.0
"""Of processor time: a busy machine makes nothing slow."""
SLOW = "slow"
"""The place of a finding of that kind."""
MAX_MB = 1000
_ADDRESS_SPACE = 4 << 30
"""More than what is allowed, so that the measure above finds it and the machine is safe all the same."""
_FORBIDDEN = ("os.system", "os.exec", "os.posix_spawn", "os.fork", "os.forkpty", "subprocess.Popen", "socket.connect")
_FORBIDDEN += ("socket.getaddrinfo", "socket.bind", "ctypes.dlopen", "pty.spawn", "urllib.Request")
# What Python's own pickle imports. PyTorch's reader of weights alone has a list of its own, and does not ask it.
_FORBIDDEN += ("pickle.find_class",)
_CHANGES = {
    "os.mkdir": ((0, 2),),
    "os.rmdir": ((0, 1),),
    "os.remove": ((0, 1),),
    "os.rename": ((0, 2), (1, 3)),
    "os.link": ((0, 2), (1, 3)),
    "os.symlink": ((1, 2),),
    "os.chmod": ((0, 2),),
    "os.chown": ((0, 3),),
    "os.utime": ((0, 3),),
    "os.truncate": ((0, None),),
}
"""What changes files other than by opening them: which arguments are a path and the folder that it is relative to.

Sources: Python's table of audit events, https://docs.python.org/3/library/audit_events.html"""
_FOLLOWS = ("open", "os.chmod", "os.chown", "os.utime", "os.truncate")
"""What changes the file that a link leads to; the rest changes the link."""


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
        if event in ("exec", "compile"):
            self._see_code(event, arguments)
        elif event == "open" and isinstance(arguments[2], int):
            if arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC):
                self._see_change(event, arguments[0], None)
        else:
            for path, folder in _CHANGES.get(event, ()):
                self._see_change(event, arguments[path], None if folder is None else arguments[folder])

    def _see_code(self, event: str, arguments: tuple[object, ...]) -> None:
        """Let modules be imported that a reader has not needed before, and nothing else be compiled or carried out."""
        if event == "exec":
            name = getattr(arguments[0], "co_filename", "")
        else:
            name = os.fsdecode(arguments[1]) if isinstance(arguments[1], str | bytes) else ""
        # ast.literal_eval, by which NumPy reads headers, compiles to a tree without giving a name.
        if name == "<unknown>" and event == "compile":
            return
        if not (name.startswith("<frozen ") or (os.path.isfile(name) and not self._is_ours(name))):
            raise Forbidden(f"{event} of {name!r}: {arguments[0]!r}"[:500])

    def _see_change(self, event: str, path: object, folder: object) -> None:
        if isinstance(path, int):
            return  # a file that is open; how it was opened has been seen
        name = os.fsdecode(path)  # type: ignore[arg-type]
        if isinstance(folder, int) and folder >= 0:
            name = os.path.join(os.readlink(f"/proc/self/fd/{folder}"), name)
        # What stands for a link itself is not looked for behind it.
        if not self._is_ours(name if event in _FOLLOWS else os.path.dirname(os.path.abspath(name))):
            raise Forbidden(f"{'writes' if event == 'open' else event} {name}"[:500])

    def _is_ours(self, name: str) -> bool:
        assert self.place is not None
        return Path(os.path.realpath(name)).is_relative_to(os.path.realpath(self.place))


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
    shown: bool = True
    """False where the input made no file."""


def limit_memory() -> None:
    """Let this process have some gigabytes more than it has, and not all of the machine's."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + _ADDRESS_SPACE
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def judge(reader: Reader, data: bytes, place: Path) -> Verdict:
    """Show an input to a reader. place: a folder for the file."""
    if not _installed:
        # A module that a reader imports late, such as numpy.ma, would write below the interpreter's packages.
        sys.dont_write_bytecode = True
        sys.addaudithook(_watch)
        _installed.append(_watch)
    path = place / reader.file_name
    path.write_bytes(data)
    started, held_mb, before_mb = time.process_time(), _held_bytes() / 2**20, peak_mb()
    problem = where = ""
    refused = False
    _watch.place = place
    try:
        reader.read(path)
    except reader.refusals as error:
        refused = True
        problem = _problem_of_refusal(reader, path, error)
        where = _place_of(error)
    except NoInput:
        return Verdict(0.0, before_mb, shown=False)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - whatever it is, it is the finding
        problem, where = f"raised {type(error).__name__}: {str(error)[:300]!r}", _place_of(error)
    finally:
        _watch.place = None
    seconds, most = time.process_time() - started, peak_mb()
    if not problem and seconds > MAX_SECONDS:
        problem, where = f"took {seconds:.1f} s of a processor; allowed: {MAX_SECONDS:g}", SLOW
    # Of a process that held more before this input, the highest is not this input's.
    if not problem and most > before_mb and most - held_mb > MAX_MB:
        problem, where = f"the process grew from {held_mb:.0f} to {most:.0f} MB; allowed: {MAX_MB} more", "large"
    return Verdict(seconds, most, problem, where, refused)


def _held_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


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
