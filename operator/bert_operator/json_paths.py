"""Values in JSON documents that nobody has checked. Pure; the standard library alone."""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]


def dig(document: Any, *keys: str | int) -> Any:
    """Return the value at a path of keys and indices; None if any part is missing or of another type."""
    for key in keys:
        if isinstance(key, int):
            document = document[key] if isinstance(document, list) and len(document) > key else None
        else:
            document = document.get(key) if isinstance(document, dict) else None
    return document


def entries(document: Any, *keys: str | int) -> list[Json]:
    """Return the objects of a list at a path; an empty list where there is none."""
    found = dig(document, *keys)
    return [item for item in found if isinstance(item, dict)] if isinstance(found, list) else []


def mapping(document: Any, *keys: str | int) -> Json:
    """Return the object at a path; an empty one where there is none."""
    found = dig(document, *keys)
    return found if isinstance(found, dict) else {}
