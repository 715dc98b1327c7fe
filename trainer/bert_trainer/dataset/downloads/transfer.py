"""Download of one file over HTTP: resumed after interruptions, verified, and renamed to its place only when complete.

Until then it lies beside the target as ``.NAME.RANDOM.partial``, with the server's validator (ETag or Last-Modified) in
``.NAME.RANDOM.partial.version``, so that only the same version is resumed. Proxies are those of the environment
(``https_proxy``, ``no_proxy``), as ``urllib`` reads them. Redirects from https to http are refused.
"""

from __future__ import annotations

import http.client
import os
import re
import shutil
import stat
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from email.message import Message
from pathlib import Path
from typing import IO, Protocol

from bert_trainer.dataset.downloads.catalogue import Checksum, RemoteFile
from bert_trainer.errors import InputError, TrainerError
from bert_trainer.system.atomic_files import disk_errors, open_no_link, random_suffix
from bert_trainer.system.files import digest_file

USER_AGENT = "bert-pretrain-operator/0.1 (bert-data fetch; Python urllib)"
_PIECE_BYTES = 1 << 18
_TIMEOUT_S = 60.0
_TRIES = 6
"""In a row without a byte, after which a transfer fails: one that makes progress may be interrupted any number of
times."""
_MAX_WAIT_S = 60.0
_TRANSIENT = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Status codes after which another try may succeed."""
_CONTENT_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+|\*)")


class Watcher(Protocol):
    """Receives the progress of transfers."""

    def begin(self, name: str, total: int | None, done: int) -> None:
        """Begin a file: its name, its bytes if they are known, and how many are there already."""

    def advance(self, num_bytes: int) -> None:
        """Add so many bytes."""

    def note(self, text: str) -> None:
        """Show a line to the user."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """How files are fetched."""

    watcher: Watcher
    wait: Callable[[float], None]
    """Let seconds pass before another try; may raise."""
    check: Callable[[], None] = lambda: None
    """Called several times a second; may raise."""
    timeout_s: float = _TIMEOUT_S

    def fetch(self, file: RemoteFile, folder: Path) -> Path:
        """Make sure that a file is there, complete and as published, and return its path.

        Raises:
            InputError: the address is dead, or the file, there before or downloaded, is not the published one; says
            what
                to put where.
            TrainerError: the network or the server failed repeatedly, or the disk is full.
        """
        target = folder / file.path
        with disk_errors(target.parent):
            target.parent.mkdir(parents=True, exist_ok=True)
        if target.exists():
            self._verify(target, file, kept=True)
            self.watcher.note(f"{target}: already there")
            return target
        partial = _Partial(target)
        self._download(file, target, partial)
        try:
            self._verify(partial.path, file, kept=False)
        except InputError:
            partial.remove()
            raise
        with disk_errors(target.parent):
            partial.path.replace(target)
            partial.remove()
        return target

    def read(self, url: str, *, most: int) -> bytes:
        """Return the content of a small file of at most so many bytes, retried as ``fetch`` does.

        Raises:
            InputError, TrainerError: as ``fetch``.
        """
        tries = 0
        while True:
            try:
                with _open(url, {}, self.timeout_s) as answer:
                    # One more than allowed: that is how a longer one is told from one that just fits.
                    content = answer.read(most + 1)
            except (urllib.error.URLError, OSError, http.client.HTTPException) as error:
                tries += 1
                self._wait_or_give_up(error, tries, url, url)
                continue
            if len(content) > most:
                raise InputError(f"{url}: more than {most} bytes; expected: a short list")
            return content

    def _download(self, file: RemoteFile, target: Path, partial: _Partial) -> None:
        hint = _what_to_put(file, target)
        tries = 0
        began = False
        while True:
            before = partial.size
            try:
                with _open(file.url, partial.request_headers(), self.timeout_s) as answer:
                    total = partial.accept(answer, file, hint)
                    _check_room(target, total, partial.size)
                    if not began or before != partial.size:
                        self.watcher.begin(target.name, total, partial.size)
                        began = True
                    self._receive(answer, partial)
                # Without a length the end of the connection is the end of the file; the checksum decides.
                if total is None or partial.size >= total:
                    return
                problem: Exception = http.client.IncompleteRead(b"", total - partial.size)
            except urllib.error.HTTPError as error:
                error.close()
                if error.code == 416:
                    # "Range not satisfiable": the file was complete when the process ended before renaming it. Any
                    # other length is that of another file.
                    if error.headers.get("Content-Range") == f"bytes */{partial.size}":
                        return
                    partial.remove()
                problem = error
            except (urllib.error.URLError, http.client.HTTPException, OSError) as error:
                problem = error
            # A try that brought bytes counts as progress, however it ended.
            tries = 0 if partial.size > before else tries + 1
            self._wait_or_give_up(problem, tries, file.url, hint)

    def _receive(self, answer: http.client.HTTPResponse, partial: _Partial) -> None:
        with partial.open() as stream:
            while piece := answer.read(_PIECE_BYTES):
                # The write alone: an OSError of the connection is tried again, one of the disk must not be.
                with disk_errors(partial.path):
                    stream.write(piece)
                self.watcher.advance(len(piece))
                self.check()

    def _verify(self, path: Path, file: RemoteFile, *, kept: bool) -> None:
        """Compare a file with what was published. kept: it was there before."""
        place = f"{path}: there already, but" if kept else f"{file.url}: what came"
        hint = (
            f"delete {path} to fetch it again" if kept else "fetch it again; if it stays so, the published file changed"
        )
        size = path.stat().st_size
        if file.size is not None and size != file.size:
            raise InputError(f"{place} has {size} bytes, {file.size} were published", hint=hint)
        if file.checksum is None:
            if not file.members:
                digest = self.digest(path, "sha256")
                self.watcher.note(f"{Path(file.path).name}: no checksum is published; SHA-256 {digest}")
            return
        found = self.digest(path, file.checksum.algorithm)
        if found != file.checksum.digest:
            name = _name(file.checksum)
            raise InputError(f"{place} has the {name} {found}; published: {file.checksum.digest}", hint=hint)

    def digest(self, path: Path, algorithm: str) -> str:
        """Return a file's digest, hexadecimal, and report progress to the watcher. Raises TrainerError."""

        def advance(num_bytes: int) -> None:
            self.watcher.advance(num_bytes)
            self.check()

        part = _PART.fullmatch(path.name)
        with disk_errors(path):
            self.watcher.begin(f"check {part[1] if part else path.name}", path.stat().st_size, 0)
            return digest_file(path, algorithm, advance)

    def _wait_or_give_up(self, problem: Exception, tries: int, url: str, hint: str) -> None:
        if isinstance(problem, urllib.error.HTTPError) and problem.code not in (*_TRANSIENT, 416):
            raise InputError(f"{url}: the server answers {problem.code} {problem.reason}", hint=hint) from problem
        said = describe_failure(problem)
        if tries >= _TRIES:
            raise TrainerError(f"{url}: given up after {tries} tries ({said})", hint=hint) from problem
        # Bounded, also where the server asks for more.
        seconds = min(_MAX_WAIT_S, max(_retry_after(problem), 2.0**tries - 1))
        self.watcher.note(f"{url}: {said}; trying again in {seconds:.0f} s")
        self.wait(seconds)


# The random part is missing where a release before has named it.
_PART = re.compile(r"\.(.+?)(?:\.[0-9a-f]{16})?\.partial")


def _part_of(target: Path) -> Path | None:
    """Return the newest part of a file that an earlier run of the same user has left."""
    found = [
        (path.lstat().st_mtime_ns, path)
        for path in target.parent.glob(".*.partial")
        # Of another user it may be anything, and a link may lead anywhere.
        if (match := _PART.fullmatch(path.name))
        and match[1] == target.name
        and stat.S_ISREG(path.lstat().st_mode)
        and path.lstat().st_uid == os.geteuid()
    ]
    return max(found)[1] if found else None


class _Partial:
    """The downloaded part of a file, and the version that it belongs to."""

    def __init__(self, target: Path) -> None:
        with disk_errors(target.parent):
            self.path = _part_of(target) or target.with_name(f".{target.name}.{random_suffix()}.partial")
        self._version_path = self.path.with_name(f"{self.path.name}.version")

    @property
    def size(self) -> int:
        return self.path.stat().st_size if self.path.exists() else 0

    def open(self) -> IO[bytes]:
        with disk_errors(self.path):
            return open_no_link(self.path, "ab")

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)
        self._version_path.unlink(missing_ok=True)

    def request_headers(self) -> dict[str, str]:
        """Return the headers that ask for the rest. Without a validator nothing can be resumed."""
        if not self.size:
            return {}
        if not self._version_path.exists():
            self.remove()
            return {}
        # If-Range: the server sends the rest of this version (206), or all of another one (200), in one round trip.
        return {"Range": f"bytes={self.size}-", "If-Range": self._version_path.read_text()}

    def accept(self, answer: http.client.HTTPResponse, file: RemoteFile, hint: str) -> int | None:
        """Prepare for the answer, the rest or all of the file, and return the size of all of it.

        Raises:
            InputError: it is a web page, or of another size than was published.
        """
        # A captive portal answers every address with its own page, and with status 200.
        if answer.headers.get_content_type() == "text/html" and not file.path.endswith((".html", ".htm")):
            raise InputError(f"{file.url}: the server answers with a web page", hint=hint)
        total = self._total(answer)
        if total is not None and file.size is not None and total != file.size:
            self.remove()
            raise InputError(f"{file.url}: the server's file has {total} bytes, {file.size} were published", hint=hint)
        version = _version(answer.headers)
        with disk_errors(self.path):
            # Before the first byte: a part whose version is not known could not be resumed.
            if version:
                with open_no_link(self._version_path, "w") as stream:
                    stream.write(version)
            else:
                self._version_path.unlink(missing_ok=True)
        return total if total is not None else file.size

    def _total(self, answer: http.client.HTTPResponse) -> int | None:
        if answer.status == 206:
            match = _CONTENT_RANGE.fullmatch(answer.headers.get("Content-Range", ""))
            if match is not None and int(match[1]) == self.size:
                return None if match[2] == "*" else int(match[2])
            # Another range than requested: appended, it would corrupt the file.
            self.remove()
            raise http.client.HTTPException(f"answers with the range {answer.headers.get('Content-Range')!r}")
        self.path.unlink(missing_ok=True)
        length = answer.headers.get("Content-Length", "")
        return int(length) if length.isdecimal() else None


class _NoDowngrade(urllib.request.HTTPRedirectHandler):
    """Follows redirects, but not from https to http."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Message, newurl: str
    ) -> urllib.request.Request | None:
        if req.full_url.startswith("https:") and not newurl.startswith("https:"):
            raise InputError(f"{req.full_url}: redirects to {newurl}; allowed: https")
        return super().redirect_request(req, fp, code, msg, headers, newurl)  # type: ignore[arg-type]


def describe_failure(problem: Exception) -> str:
    """Return what went wrong with a connection, in few words."""
    if isinstance(problem, urllib.error.HTTPError):
        return f"{problem.code} {problem.reason}"
    if isinstance(problem, http.client.IncompleteRead):
        return f"the connection broke off, {problem.expected} bytes are left"
    reason = problem.reason if isinstance(problem, urllib.error.URLError) else problem
    return f"{type(reason).__name__}: {reason}" if isinstance(reason, Exception) else str(reason)


def _open(url: str, headers: dict[str, str], timeout_s: float) -> http.client.HTTPResponse:
    # With a content encoding, sizes and ranges would be those of the encoded bytes.
    request = urllib.request.Request(url, headers={"User-Agent": USER_AGENT, "Accept-Encoding": "identity", **headers})
    answer: http.client.HTTPResponse = urllib.request.build_opener(_NoDowngrade).open(request, timeout=timeout_s)
    return answer


def _version(headers: Message) -> str | None:
    """Return the validator of a file's version: a strong ETag (If-Range allows no weak one), or its date."""
    tag = headers.get("ETag")
    return tag if tag and not tag.startswith("W/") else headers.get("Last-Modified")


def _retry_after(problem: Exception) -> float:
    if isinstance(problem, urllib.error.HTTPError) and problem.headers is not None:
        with suppress(ValueError):  # it may also be a date
            return float(problem.headers.get("Retry-After", "0"))
    return 0.0


def _check_room(target: Path, total: int | None, there: int) -> None:
    free = shutil.disk_usage(target.parent).free
    if total is not None and total - there > free:
        raise InputError(
            f"{target}: {total - there} more bytes are needed, {free} are free on this disk",
            hint="free space, or choose another --output",
        )


def _what_to_put(file: RemoteFile, target: Path) -> str:
    size = f", {file.size} bytes" if file.size is not None else ""
    digest = f", {_name(file.checksum)} {file.checksum.digest}" if file.checksum else ""
    return (
        f"without a network, put {os.path.basename(file.path)}{size}{digest} from anywhere at {target} and run this "
        "again; behind a proxy, set https_proxy"
    )


def _name(checksum: Checksum) -> str:
    return {"sha256": "SHA-256", "sha1": "SHA-1", "md5": "MD5"}[checksum.algorithm]
