"""Downloads whose files are named by a listing that is fetched first: Wikipedia's dumps and the MLPerf text."""

from __future__ import annotations

import re
from pathlib import PurePosixPath

from bert_trainer.dataset.downloads.catalogue import Checksum, Download, RemoteFile
from bert_trainer.dataset.downloads.transfer import Transfer
from bert_trainer.errors import InputError

WIKIMEDIA = "https://dumps.wikimedia.org"
MLPERF = "https://training.mlcommons-storage.org/metadata/bert-preprocessed-wikipedia-dataset"
"""With ``.uri``: a file that holds the address of the data; with ``.md5``: their checksums."""
MLPERF_LIST = "bert-preprocessed-wikipedia-dataset.md5"

_MAX_BYTES = 4 << 20
_LINE = re.compile(r"([0-9a-f]{32,40})\s+\*?(?:\./)?(\S+)")


def find_wikipedia(transfer: Transfer, language: str, date: str, *, mirror: str | None = None) -> Download:
    """Return a wiki's dump of articles. date: as 20260101, or ``latest``; a date stays available for some months.

    Raises:
        InputError: there is no such dump. TrainerError: as ``Transfer.read``.
    """
    # Both become parts of an address and of patterns.
    if not re.fullmatch(r"[a-z][a-z-]*", language) or not re.fullmatch(r"\d{8}|latest", date):
        raise InputError(
            f"fetch: got language {language!r}, date {date!r}; allowed: a wiki's code as en, and 20260101 or latest"
        )
    wiki = f"{language.replace('-', '_')}wiki"
    listing = f"{WIKIMEDIA}/{wiki}/{date}/{wiki}-{date}-sha1sums.txt"
    wanted = re.compile(rf"{wiki}-(\d{{8}})-pages-articles-multistream\.xml\.bz2")
    for digest, name in _read_list(transfer, listing, mirror):
        if match := wanted.fullmatch(name):
            # "latest" moves to another dump while a download is resumed; the listing's names have a date that does not.
            url = f"{WIKIMEDIA}/{wiki}/{match[1]}/{name}"
            file = RemoteFile(mirrored(url, mirror), name, checksum=Checksum("sha1", digest))
            source = f"{WIKIMEDIA}/{wiki}/{match[1]}/, CC BY-SA 4.0"
            return Download("wikipedia", f"articles of {wiki}, {match[1]}", source, (file,))
    raise InputError(
        f"{listing}: names no file *-pages-articles-multistream.xml.bz2",
        hint="the dump may not be finished: take the date before, or --date latest",
    )


def find_mlperf_text(transfer: Transfer, *, mirror: str | None = None) -> Download:
    """Return the files of the MLPerf text, as MLCommons lists them.

    Raises:
        InputError: the lists are not what they were. TrainerError: as ``Transfer.read``.
    """
    base = transfer.read(mirrored(f"{MLPERF}.uri", mirror), most=_MAX_BYTES).decode(errors="replace").strip()
    if not re.fullmatch(r"https://\S+", base):
        raise InputError(f"{MLPERF}.uri: got {base[:80]!r}; expected: an address")
    files = [
        RemoteFile(
            mirrored(f"{base.rstrip('/')}/{name}", mirror),
            f"results4/{PurePosixPath(name).name}",
            checksum=Checksum("md5", digest),
        )
        for digest, name in _read_list(transfer, f"{MLPERF}.md5", mirror)
    ]
    files.append(RemoteFile(mirrored(f"{MLPERF}.md5", mirror), f"results4/{MLPERF_LIST}"))
    return Download("mlperf-text", "text of the MLPerf BERT benchmark", "MLCommons", tuple(files))


def mirrored(url: str, mirror: str | None) -> str:
    """Return the address of a file at a mirror, which has the original host as the first part of its paths."""
    return url if mirror is None else f"{mirror.rstrip('/')}/{url.partition('://')[2]}"


def _read_list(transfer: Transfer, url: str, mirror: str | None) -> list[tuple[str, str]]:
    """Read a list of checksums and file names."""
    text = transfer.read(mirrored(url, mirror), most=_MAX_BYTES).decode(errors="replace")
    entries = [match for line in text.splitlines() if (match := _LINE.fullmatch(line.strip()))]
    if not entries:
        raise InputError(f"{url}: got {text[:80]!r}; expected: lines of a checksum and a file name")
    names = [(match[1], match[2]) for match in entries]
    # The names become paths here.
    unsafe = [name for _, name in names if ".." in name.split("/") or name.startswith("/")]
    if unsafe:
        raise InputError(f"{url}: names {unsafe[0]!r}, outside its folder")
    return names
