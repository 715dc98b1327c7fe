"""What a plain (unquoted) YAML scalar means, by each of the two versions of YAML that are in use.

Kubernetes' tools read YAML 1.1 in go-yaml's dialect (``resolve.go`` of yaml.v2, used by sigs.k8s.io/yaml);
newer libraries read YAML 1.2 (core schema, section 10.3.2). Both are written out here, so that a file whose
meaning depends on the reader can be refused. Quoted scalars are strings in both and do not come here.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

Scalar = str | int | float | bool | None

_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_INT_1_2 = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_INT_GO = re.compile(r"([-+]?)(?:0[xX]([0-9a-fA-F]+)|0[bB]([01]+)|0[oO]?([0-7]+)|([1-9][0-9]*|0))")
_GO_POINT_FIRST = re.compile(r"\.[0-9]+(_[0-9]+)*([eE][-+]?[0-9]+(_[0-9]+)*)?")
_BASE_60 = re.compile(r"[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?")
_LEADING_ZERO = re.compile(r"[-+]?0[0-9]+")
# int64 and uint64, which go-yaml tries in this order before float64.
_GO_INT_RANGE = range(-(2**63), 2**64)


def _spellings(*words: str) -> frozenset[str]:
    # The three spellings of both specifications; yEs is text.
    return frozenset(form for word in words for form in (word, word.capitalize(), word.upper()))


_NULL = _spellings("null") | {"", "~"}
_TRUE = _spellings("true")
_FALSE = _spellings("false")
_GO_TRUE = _TRUE | _spellings("on", "yes", "y")
_GO_FALSE = _FALSE | _spellings("off", "no", "n")
_NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")


def read_1_2(text: str) -> Scalar:
    """Read a plain scalar as YAML 1.2 (core schema)."""
    if text in _NULL:
        return None
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    if _INT_1_2.fullmatch(text):
        digits, base = {"0o": (text[2:], 8), "0x": (text[2:], 16)}.get(text[:2], (text, 10))
        return int(digits, base)
    if _FLOAT.fullmatch(text):
        return float(text)
    return text


def read_1_1(text: str) -> Scalar:
    """Read a plain scalar as kubectl does: YAML 1.1 with go-yaml's extensions."""
    if text in _NULL:
        return None
    if text in _GO_TRUE or text in _GO_FALSE:
        return text in _GO_TRUE
    # go-yaml decides by the first character whether a scalar can be a number at all (resolveTable).
    if not text or text[0] not in "+-.0123456789":
        return text
    plain = text.replace("_", "") if text[0] != "." or _GO_POINT_FIRST.fullmatch(text) else text
    if match := _INT_GO.fullmatch(plain):
        sign, *digits = match.groups()
        number = next(int(part, base) for part, base in zip(digits, (16, 2, 8, 10), strict=True) if part)
        number = -number if sign == "-" else number
        return number if number in _GO_INT_RANGE else float(number)
    if _FLOAT.fullmatch(plain) and math.isfinite(value := float(plain)):
        return value
    return text


def is_not_finite(text: str) -> bool:
    """Return whether this is infinity or NaN, which YAML has and JSON, hence Kubernetes, does not."""
    return _NOT_FINITE.fullmatch(text) is not None


@dataclass(frozen=True, slots=True)
class Disagreement:
    """The two meanings of one scalar, in words, and how to say the first one unmistakably."""

    yaml_1_1: str
    yaml_1_2: str
    unambiguous: str | None
    """None if no plain scalar is unambiguous."""


def disagreement(text: str) -> Disagreement | None:
    """Return how YAML 1.1 and YAML 1.2 read the scalar if they differ, else None.

    Base-60 numbers (``12:30:00``) and leading zeros count as different even where go-yaml happens to agree
    with YAML 1.2, because other YAML 1.1 readers do not.
    """
    if text == "=":
        return Disagreement("a default value mark in some YAML 1.1 readers", "the text '='", None)
    if _BASE_60.fullmatch(text):
        number = f"the number {_base_60(text):.10g} in some YAML 1.1 readers"
        return Disagreement(number, _describe(read_1_2(text)), None)
    old, new = read_1_1(text), read_1_2(text)
    # The type as well: in Python True == 1 and 1 == 1.0.
    if type(old) is type(new) and old == new and not _LEADING_ZERO.fullmatch(text):
        return None
    unambiguous = _describe(old).removeprefix("the number ")
    if _LEADING_ZERO.fullmatch(text) and old == new:
        return Disagreement("octal or text in some YAML 1.1 readers", _describe(new), unambiguous)
    return Disagreement(f"{_describe(old)} in YAML 1.1 (kubectl)", _describe(new), unambiguous)


def _base_60(text: str) -> float:
    value = 0.0
    for part in text.lstrip("+-").replace("_", "").split(":"):
        value = value * 60 + float(part)
    return -value if text.startswith("-") else value


def _describe(value: Scalar) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        value = int(value)
    return f"the text {value!r}" if isinstance(value, str) else f"the number {value}"
