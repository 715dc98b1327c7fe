"""The text of the MLPerf BERT benchmark, and whether it is the published one.

A folder (``results4``) of 500 parts made from the English Wikipedia of 2020-01-01, one sentence per line and an
empty line between articles, and ``eval.txt``, the articles that the benchmark evaluates on and no training may
see. MLCommons publishes the MD5 of every file in a list; six of them and the sizes stand in its README, too
(mlcommons/training, retired_benchmarks/bert/README.md).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from bert_trainer.errors import InputError
from bert_trainer.system.files import digest_file, files_in, unreadable

logger = logging.getLogger(__name__)

LIST_NAME = "bert_reference_results_text_md5.txt"
LIST_NAMES = (LIST_NAME, "bert-preprocessed-wikipedia-dataset.md5")
"""As it came from Google Drive, and as MLCommons' storage has it."""
NUM_PARTS = 500
EVALUATION_FILE = "eval.txt"

PUBLISHED: dict[str, tuple[int, str]] = {
    "eval.txt": (32_851_144, "2a220f790517261547b1b45ed3ada07a"),
    "part-00000-of-00500": (27_150_902, "a64a7c31eff5cd38ae6d94f7a6229dab"),
    "part-00001-of-00500": (27_198_569, "549a9ed4f805257245bec936563abfd0"),
    "part-00002-of-00500": (27_395_616, "1a1366ddfc03aef9d41ce552ee247abf"),
    "part-00497-of-00500": (24_775_043, "66835aa75d4855f2e678e8f3d73812e9"),
    "part-00498-of-00500": (24_575_505, "e6d68a7632e9f4aa1a94128cce556dc9"),
    "part-00499-of-00500": (21_873_644, "b3b087ad24e3770d879a351664cebc5a"),
}
"""Bytes and MD5 of the files that the README names."""

_PART = re.compile(r"part-\d{5}-of-(\d{5})")
# md5sum writes two spaces, or a space and an asterisk for files that were read as binary.
_LIST_LINE = re.compile(r"([0-9a-fA-F]{32}) [ *](?:\./)?(\S.*)")
_SHOWN = 10


@dataclass(frozen=True, slots=True)
class Difference:
    """A file that is not what was published."""

    name: str
    found: str
    published: str


def list_parts(folder: Path) -> list[Path]:
    """Return the parts in a folder, sorted; without ``eval.txt``."""
    return [path for path in files_in(folder) if _PART.fullmatch(path.name)]


def looks_like_mlperf(folder: Path) -> bool:
    """Return whether a folder holds parts named as the benchmark's."""
    return any(path.name.endswith(f"-of-{NUM_PARTS:05d}") for path in list_parts(folder))


def find_checksums(folder: Path) -> Path | None:
    """Return the published list, where it lies in the folder or beside it."""
    places = (place / name for place in (folder, folder.parent) for name in LIST_NAMES)
    return next((path for path in places if path.is_file()), None)


def read_checksums(path: Path) -> dict[str, str]:
    """Read a list as ``md5sum`` writes it and return the MD5 of each file name.

    Raises:
        InputError: the file cannot be read or a line is none of such a list.
    """
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot read the list of checksums ({error})") from error
    checksums: dict[str, str] = {}
    for number, line in enumerate(lines, start=1):
        if line.strip():
            match = _LIST_LINE.fullmatch(line.rstrip())
            if match is None:
                raise InputError(
                    f"{path}:{number}: got {line[:80]!r}; allowed: an MD5, two spaces and a file name, as md5sum writes"
                )
            # By name alone: the list may have been made from another folder.
            checksums[PurePosixPath(match[2]).name] = match[1].lower()
    if not checksums:
        raise InputError(f"{path}: the list of checksums is empty")
    return checksums


def check_parts(
    folder: Path,
    checksums: Path | None,
    check: Callable[[], None],
    compared: Callable[[int, int], None] = lambda done, total: None,
) -> None:
    """Make sure that a folder holds the published text, all of it and nothing else.

    Args:
        folder: Of the parts.
        checksums: The published list. None: the files that the README names are compared, and a warning says so.
        check: Called now and then; may raise.
        compared: Called with how many of how many bytes were read for that.

    Raises:
        InputError: names each file that is missing, is not part of the benchmark, or differs.
    """
    if checksums is not None:
        published = read_checksums(checksums)
        where = str(checksums)
    else:
        published = {name: md5 for name, (_, md5) in PUBLISHED.items()}
        where = "the benchmark's README"
        logger.warning(
            "%s: compared with the 6 parts that %s names only; put %s beside the folder to compare all",
            folder,
            where,
            LIST_NAME,
        )
    wanted = {name for name in published if _PART.fullmatch(name)} if checksums is not None else _all_parts()
    differences = [*_names_that_differ(folder, wanted), *_contents_that_differ(folder, published, check, compared)]
    if differences:
        shown = [f"  {item.name}: {item.found}; published: {item.published}" for item in differences[:_SHOWN]]
        more = [f"  and {len(differences) - _SHOWN} more"] if len(differences) > _SHOWN else []
        raise InputError(
            "\n".join([f"{folder}: {len(differences)} file(s) differ from {where}", *shown, *more]),
            hint="transfer them again; text that is not the benchmark's can be read with format: text",
        )


def _all_parts() -> set[str]:
    return {f"part-{number:05d}-of-{NUM_PARTS:05d}" for number in range(NUM_PARTS)}


def _names_that_differ(folder: Path, wanted: set[str]) -> list[Difference]:
    there = {path.name for path in list_parts(folder)}
    missing = [Difference(name, "missing", "a part of the text") for name in sorted(wanted - there)]
    return missing + [Difference(name, "found", "no such part") for name in sorted(there - wanted)]


def _contents_that_differ(
    folder: Path, published: dict[str, str], check: Callable[[], None], compared: Callable[[int, int], None]
) -> list[Difference]:
    differences = []
    # The evaluation text is not read for training: it may be absent, but not another one.
    there = {name: md5 for name, md5 in sorted(published.items()) if (folder / name).is_file()}
    sizes = {name: (folder / name).stat().st_size for name in there}
    done = 0

    def advance(num_bytes: int) -> None:
        nonlocal done
        done += num_bytes
        compared(done, sum(sizes.values()))
        check()

    for name, md5 in there.items():
        published_size = _published_size(name, md5)
        # A wrong size spares reading the file: of one that was cut off, for example.
        if published_size not in (None, sizes[name]):
            differences.append(Difference(name, f"{sizes[name]:,} bytes", f"{published_size:,} bytes"))
            advance(sizes[name])
        elif (digest := _md5(folder / name, advance)) != md5:
            differences.append(Difference(name, f"MD5 {digest}", md5))
    return differences


def _published_size(name: str, md5: str) -> int | None:
    """Return the bytes of a file, where the README names them; they spare its reading where they differ."""
    size, known = PUBLISHED.get(name, (None, None))
    return size if known == md5 else None


def _md5(path: Path, advance: Callable[[int], None]) -> str:
    try:
        return digest_file(path, "md5", advance)
    except OSError as error:
        raise unreadable(path, error) from error
