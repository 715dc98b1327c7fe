"""Writes JSON values as YAML that every parser, of 1.1 or 1.2, reads alike. Pure.

In block style, without anchors or tags. Texts are plain only where no reader could take them for something else;
otherwise they are JSON strings, which YAML has as well.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*")
_OTHERS = frozenset({"true", "false", "yes", "no", "on", "off", "y", "n", "null"})
"""Words that are no texts in YAML 1.1 or 1.2, in any case."""


def render_yaml(value: Any) -> str:
    """Return a document that ends with a line feed."""
    return "\n".join(_lines(value)) + "\n"


def _lines(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            yield from _entry(f"{_scalar(str(key))}:", item)
    elif _is_list(value) and value:
        for item in value:
            first, *rest = _lines(item)
            yield f"- {first}"
            yield from (f"  {line}" for line in rest)
    else:
        yield _scalar(value)


def _entry(key: str, item: Any) -> Iterator[str]:
    if isinstance(item, Mapping) and item:
        yield key
        yield from (f"  {line}" for line in _lines(item))
    elif _is_list(item) and item:
        yield key
        # Not indented, as kubectl writes lists.
        yield from _lines(item)
    else:
        yield f"{key} {_scalar(item)}"


def _scalar(value: Any) -> str:
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _OTHERS:
        return value
    if isinstance(value, float) and "e" in (text := repr(value)) and "." not in text:
        # 1e-05 is a text in YAML 1.1.
        return text.replace("e", ".0e")
    if isinstance(value, tuple):
        value = list(value)
    return "".join(_sign(sign) for sign in json.dumps(value, ensure_ascii=False))


def _sign(sign: str) -> str:
    """Return a sign of a JSON string, escaped if YAML would not have it as it is."""
    if sign.isprintable() and sign != "\ufeff":
        return sign
    return f"\\u{ord(sign):04x}" if ord(sign) < 0x10000 else f"\\U{ord(sign):08x}"


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)
