"""Writes JSON values as YAML that every reader, of 1.1 or 1.2, reads alike. The only writer of YAML. Pure.

In block style, without anchors or tags. Texts are plain only where no reader could take them for something else, and
blocks where they have lines of their own; otherwise they are JSON strings, which YAML has as well. The standard library
alone, since ``kubectl bert`` writes YAML, too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*")
_SENTENCE = re.compile(r"[A-Za-z][^\s:#]*( [^\s:#]+)+")
"""Words with spaces are text in all versions; without ``: `` and `` #``, which end a plain scalar."""
_OTHERS = frozenset({"true", "false", "yes", "no", "on", "off", "y", "n", "null"})
"""Words that are no texts in YAML 1.1 or 1.2, in any case."""
_MAX_KEY = 1000
"""Characters of a key that stands before its colon without a mark; readers give up at 1,024."""
_BREAK = re.compile(r"(?<=\S) (?=\S)")


def render_yaml(value: Any, *, width: int = 0) -> str:
    """Return a document that ends with a line feed.

    value: what JSON can hold; tuples are lists. width: fold longer texts of one line at so many characters; 0: none.

    Raises ValueError for infinity and NaN, TypeError for anything else that JSON does not have.
    """
    return "\n".join(_lines(value, width, 0)) + "\n"


def _lines(value: Any, width: int, depth: int) -> Iterator[str]:
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            yield from _entry(str(key), item, width, depth)
    elif _is_list(value) and value:
        for item in value:
            first, *rest = _lines(item, width, depth + 2)
            yield f"- {first}"
            yield from _indent(rest)
    else:
        first, *rest = _scalar(value, width - depth if width else 0)
        yield first
        # In a list, or as the whole document.
        yield from rest


def _entry(name: str, item: Any, width: int, depth: int) -> Iterator[str]:
    (key,) = _scalar(name, 0, is_key=True)
    if is_long := len(key) > _MAX_KEY:
        yield f"? {key}"
        key = ""
    if isinstance(item, Mapping) and item:
        yield f"{key}:"
        yield from _indent(_lines(item, width, depth + 2))
    elif _is_list(item) and item:
        yield f"{key}:"
        # Not indented, as kubectl writes lists.
        lines = _lines(item, width, depth)
        yield from _indent(lines) if is_long else lines
    else:
        first, *rest = _scalar(item, width - depth - 2 if width else 0)
        yield f"{key}: {first}"
        yield from _indent(rest)


def _indent(lines: Iterator[str] | list[str]) -> Iterator[str]:
    # An empty line of a block stays empty: with spaces in it some editors would take it away.
    return (f"  {line}" if line else "" for line in lines)


def _scalar(value: Any, width: int, *, is_key: bool = False) -> list[str]:
    """Return the lines of a scalar; those after the first are to be indented by whatever it stands in."""
    if isinstance(value, str):
        if not is_key and (block := _block(value, width)):
            return block
        if (_WORD.fullmatch(value) and value.lower() not in _OTHERS) or (not is_key and _is_sentence(value)):
            return [value]
    if isinstance(value, float) and "e" in (text := repr(value)) and "." not in text:
        # 1e-05 is a text in YAML 1.1.
        return [text.replace("e", ".0e")]
    if isinstance(value, tuple):
        value = list(value)
    return ["".join(_sign(sign) for sign in json.dumps(value, ensure_ascii=False, allow_nan=False))]


def _is_sentence(text: str) -> bool:
    return text.isprintable() and _SENTENCE.fullmatch(text) is not None


def _block(text: str, width: int) -> list[str]:
    """Return a text as a block of its own lines, or folded; nothing where that would not be the same text."""
    body = text.removesuffix("\n")
    lines = body.split("\n")
    # A block's indentation is that of its first line, and its last lines are what the reader keeps of them.
    if not body or not body[0].isprintable() or body[0].isspace() or not lines[-1].strip() or "\ufeff" in text:
        return []
    if not all(line.replace("\t", "").isprintable() for line in lines):
        return []
    if len(lines) > 1:
        return ["|" if text != body else "|-", *lines]
    is_folded = width and len(text) > width and text == body and "\t" not in text and not text.endswith(" ")
    return [">-", *_fold(text, width)] if is_folded else []


def _fold(text: str, width: int) -> Iterator[str]:
    """Yield lines of at most so many characters, if words allow it; a reader puts one space between them."""
    line = ""
    for word in _BREAK.split(text):
        if line and len(line) + 1 + len(word) > width:
            yield line
            line = word
        else:
            line = f"{line} {word}" if line else word
    yield line


def _sign(sign: str) -> str:
    """Return a sign of a JSON string, escaped if YAML would not have it as it is."""
    if sign.isprintable() and sign != "\ufeff":
        return sign
    return f"\\u{ord(sign):04x}" if ord(sign) < 0x10000 else f"\\U{ord(sign):08x}"


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)
