"""How large a job may be as a whole, measured in Python and, by the API server, in CEL. Pure.

Every field has a limit of its own, but together they would let a job be 30 MB, and the API server takes 1.5 MB. The
measure is the length of the spec as JSON with every field that it may have, and thus an upper bound: field names,
numbers and words to choose from count whether they are there or not, texts and the entries of lists and maps as they
are. Escapes are not counted.

Both measures are made from the same tree of the schema, so a new field is counted in both by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from bert_job.problems import Problem
from bert_operator.api.schema.json_schema import Node, job_node

MAX_BYTES = 256 * 1024

ALLOWED = f"at most {MAX_BYTES // 1024} KiB as a whole, long texts and lists together"
NEXT_STEP = "put long values into a ConfigMap that envFrom names, and long commands into a file of the workspace"

# JSON's longest number, -1.7976931348623157e+308, has 24 characters; an amount as text has 20 and two quotes.
_SCALAR = 24
# Brackets and braces come in pairs as quotes do.
_QUOTES, _COMMA, _COLON = 2, 1, 1


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of the schema: what it takes whatever it holds, and what its size depends on."""

    fixed: int
    is_text: bool = False
    fields: Mapping[str, _Part] = field(default_factory=dict)
    """Of a section: those whose size is not fixed."""
    entries: _Part | None = None
    """Of a list."""
    values: _Part | None = None
    """Of a map."""

    @property
    def varies(self) -> bool:
        return self.is_text or bool(self.fields) or self.entries is not None or self.values is not None


def size_problems(document: Mapping[str, Any]) -> list[Problem]:
    """Return at most one problem about the total size of a valid job."""
    found = spec_size(document["spec"])
    if found <= MAX_BYTES:
        return []
    return [Problem(path="spec", got=f"{found / 1024:.1f} KiB", allowed=ALLOWED, next_step=NEXT_STEP)]


def spec_size(spec: Mapping[str, Any]) -> int:
    """Return the size of a valid spec in bytes, as the rule measures it."""
    part = _spec_part()
    return part.fixed + _measure(part, spec)


def spec_size_expression() -> str:
    """Return the same measure in CEL over ``self``, the spec, as a comparison with the limit."""
    # What is fixed is summed up here and not in CEL: every term costs, and costs multiply with the limits of the lists
    # around it.
    part = _spec_part()
    return f"{part.fixed} + {_express(part, 'self', 0)} <= {MAX_BYTES}"


@cache
def _spec_part() -> _Part:
    return _part_of(job_node().fields["spec"])


def _part_of(node: Node) -> _Part:
    if len(node.choices) > 1:
        # An amount, as a number or as a short text. CEL would have to ask which, and cannot name hugepages.2Mi at all.
        return _Part(_SCALAR)
    words = node.schema.get("enum") or ([node.schema["const"]] if "const" in node.schema else [])
    if words:
        return _Part(_QUOTES + max(len(str(word)) for word in words))
    if node.schema["type"] == "string":
        return _Part(_QUOTES, is_text=True)
    if node.entries is not None:
        return _Part(_QUOTES, entries=_part_of(node.entries))
    if node.values is not None:
        return _Part(_QUOTES, values=_part_of(node.values))
    if node.fields:
        fields = {name: _part_of(field) for name, field in node.fields.items()}
        names = sum(_QUOTES + len(name) + _COLON + _COMMA for name in fields)
        fixed = _QUOTES + names + sum(part.fixed for part in fields.values())
        return _Part(fixed, fields={name: part for name, part in fields.items() if part.varies})
    return _Part(_SCALAR)


def _measure(part: _Part, value: Any) -> int:
    """Return the bytes of a value beside the fixed ones."""
    if part.is_text:
        # Half a surrogate pair is possible in JSON and has no UTF-8; it must not end the check of a size.
        return len(value.encode(errors="surrogatepass"))
    if part.entries is not None:
        return sum(part.entries.fixed + _COMMA + _measure(part.entries, item) for item in value)
    if part.values is not None:
        key = _QUOTES + _COLON + _COMMA + part.values.fixed
        # A null is no entry (``json_values``).
        known = ((name, item) for name, item in value.items() if item is not None)
        return sum(key + len(name.encode()) + _measure(part.values, item) for name, item in known)
    found = ((inner, value.get(name)) for name, inner in part.fields.items())
    return sum(_measure(inner, item) for inner, item in found if item is not None)


def _express(part: _Part, path: str, depth: int) -> str:
    """Return the same as an expression. depth: number of the loop variables around it."""
    if part.is_text:
        # size() of a text counts characters, and one may have four bytes.
        return f"bytes({path}).size()"
    # A loop inside a loop needs another variable, or it would hide the outer one.
    name = f"v{depth}"
    if part.entries is not None:
        return f"{path}.map({name}, {_loop(part.entries, name, part.entries.fixed + _COMMA, depth)}).sum()"
    if part.values is not None:
        fixed = _QUOTES + _COLON + _COMMA + part.values.fixed
        value = _loop(part.values, f"{path}[{name}]", fixed, depth)
        return f"{path}.map({name}, bytes({name}).size() + {value}).sum()"
    # has() of every field that varies, also of those with a default: of a section that a profile may fill in the server
    # has filled in nothing.
    terms = (
        f"(has({path}.{key}) ? {_express(inner, f'{path}.{key}', depth)} : 0)" for key, inner in part.fields.items()
    )
    return " + ".join(terms)


def _loop(part: _Part, path: str, fixed: int, depth: int) -> str:
    return f"{fixed} + {_express(part, path, depth + 1)}" if part.varies else str(fixed)
