"""Notes in which modules of the project a value is seen: Python runs this first in every process below ``crossings``.

A module *handles* a value where a function of it has the value itself, text or an array that holds it, or a section,
dict or list that holds one of these directly, in an argument, a variable or what it returns. An object that has the
whole text of a document in one of its fields does not count as holding what stands in it. A value *passes* a module
where anything that a function of it is given or returns leads to the value, however deep.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import Counter
from types import CodeType, FrameType
from typing import Any

OUTPUT = os.environ.get("CROSSINGS_OUTPUT")
WORD = os.environ.get("CROSSINGS_WORD", "")
NUMBER = float(os.environ.get("CROSSINGS_NUMBER", "nan"))
"""The value as a number, or the token of the word; both are compared with what is found."""
KIND = os.environ.get("CROSSINGS_KIND", "")
"""Module and name of a class: its instances are the value instead."""
UNTIL = os.environ.get("CROSSINGS_UNTIL", "")
"""Module, and function of it, whose first call ends the walk."""
PACKAGES = ("bert_operator", "bert_trainer")
LOOKS = 60
"""At each function and kind of event: most are called thousands of times with the same."""
DEPTH = 12
MANY = 4096

_looks: Counter[tuple[CodeType, str]] = Counter()
_seen: set[tuple[str, str]] = set()


def _is_value(value: Any) -> bool:
    """Return whether it is the value, or text or an array with it."""
    if KIND:
        return f"{type(value).__module__}.{type(value).__qualname__}" == KIND
    if isinstance(value, bool | type(None)):
        return False
    if isinstance(value, int | float):
        return value == NUMBER
    if isinstance(value, str):
        return WORD in value
    if isinstance(value, bytes | bytearray):
        return WORD.encode() in value
    if isinstance(value, memoryview):
        return WORD.encode() in bytes(value)
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        try:
            return bool((value == NUMBER).any())
        except Exception:
            return False
    return False


def _parts(value: Any) -> list[Any]:
    """Return what a container or an object of the project holds directly."""
    if isinstance(value, dict):
        return [*value.values(), *value.keys()][:MANY]
    if isinstance(value, list | tuple | set | frozenset):
        return list(value)[:MANY]
    if not type(value).__module__.startswith(PACKAGES):
        return []
    slots = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
    return [*getattr(value, "__dict__", {}).values(), *(getattr(value, name, None) for name in slots)]


def _holds(value: Any) -> bool:
    """Return whether it is the value, or holds it directly."""
    if _is_value(value):
        return True
    is_plain = type(value) in (dict, list, tuple, set, frozenset)
    return any(_is_value(part) for part in _parts(value) if is_plain or not isinstance(part, str | bytes))


def _leads_to(value: Any, depth: int, known: set[int]) -> bool:
    if _is_value(value):
        return True
    if depth == 0 or id(value) in known:
        return False
    known.add(id(value))
    return any(_leads_to(part, depth - 1, known) for part in _parts(value))


def _note(kind: str, module: str) -> None:
    if (kind, module) not in _seen:
        _seen.add((kind, module))
        # At once, and whole: a process of a pool ends without a word.
        with open(str(OUTPUT), "a") as file:
            file.write(f"{kind} {module}\n")


def _look(frame: FrameType, event: str, result: Any) -> None:
    module = frame.f_globals.get("__name__", "")
    if event not in ("call", "return") or not module.startswith(PACKAGES):
        return
    if f"{module}.{frame.f_code.co_name}" == UNTIL:
        sys.setprofile(None)
        threading.setprofile(None)
        _note("ends", module)
        return
    if ("handles", module) in _seen or _looks[frame.f_code, event] > LOOKS:
        return
    _looks[frame.f_code, event] += 1
    values = [*frame.f_locals.values(), *([result] if event == "return" else [])]
    if any(map(_holds, values)):
        _note("passes", module)
        _note("handles", module)
    elif ("passes", module) not in _seen and any(_leads_to(value, DEPTH, set()) for value in values):
        _note("passes", module)


if OUTPUT:
    threading.setprofile(_look)
    sys.setprofile(_look)
