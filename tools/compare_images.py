"""Compare two images file by file: ``python tools/compare_images.py FIRST SECOND``.

Each is an OCI image layout or an archive of one; FOLDER:NAME where a layout holds several images. Prints what differs,
one line each: files that only one of them has, and of the others type, rights, owner, time, size, content and a link's
target; then the configuration (environment, entry point, history). The last line holds the counts. Ends with 1 where
anything differs. What two builds may differ in, and why: images/README.md.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

from release.image_files import Image, ImageError, ImageFile, read_image


def main(words: list[str] | None = None) -> int:
    """Print the differences and return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("first", help="an OCI image layout (FOLDER or FOLDER:NAME) or an archive of one")
    parser.add_argument("second", help="the other one")
    arguments = parser.parse_args(words)
    try:
        first, second = (_read(word) for word in (arguments.first, arguments.second))
    except ImageError as error:
        print(f"compare_images: {error}", file=sys.stderr)
        return 2
    lines = [*compare_files(first, second), *compare_values(first.config, second.config, "configuration")]
    print(*lines, sep="\n", end="\n" if lines else "")
    same = "the same manifest" if first.digest == second.digest else "other manifests"
    print(f"compared: files={len(first.files.keys() | second.files.keys())} differences={len(lines)} ({same})")
    return 1 if lines else 0


def _read(word: str) -> Image:
    path, _, name = word.partition(":")
    return read_image(Path(path), name)


def compare_files(first: Image, second: Image) -> Iterator[str]:
    """Say what differs between the files of two images."""
    for path in sorted(first.files.keys() | second.files.keys()):
        one, other = first.files.get(path), second.files.get(path)
        if one is None or other is None:
            yield f"only in the {'second' if one is None else 'first'}: {path}"
        elif one != other:
            yield f"{path}: {', '.join(_changes(one, other))}"


def _changes(one: ImageFile, other: ImageFile) -> Iterator[str]:
    for field in fields(ImageFile):
        before, after = getattr(one, field.name), getattr(other, field.name)
        if before != after:
            shorten = 12 if field.name == "sha256" else 80
            yield f"{field.name} {str(before)[:shorten]} -> {str(after)[:shorten]}"


def compare_values(one: Any, other: Any, place: str) -> Iterator[str]:
    """Say what differs between two JSON values."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in sorted(one.keys() | other.keys()):
            yield from compare_values(one.get(key), other.get(key), f"{place}.{key}")
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for number, (item, match) in enumerate(zip(one, other, strict=True)):
            yield from compare_values(item, match, f"{place}[{number}]")
    elif one != other:
        yield f"{place}: {one} -> {other}"


if __name__ == "__main__":
    sys.exit(main())
