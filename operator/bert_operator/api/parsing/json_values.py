"""Reads JSON values as the API server does, where strict validation alone would not. Pure.

Lists become tuples, which they are in a job. A field that is null is left out, and 2.0 is the integer 2, as which
kubectl sends it: JSON has one kind of number.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bert_job.problems import Path
from bert_operator.api.schema.json_schema import Node, job_node


def normalise(document: Any) -> Any:
    """Return a copy without nulls for optional fields, with int where the schema takes integers, and with tuples.

    A required field keeps its null, and so do entries of lists: there it is a mistake.
    """
    return _normalise(document, job_node())


def _normalise(value: Any, node: Node | None) -> Any:
    if isinstance(value, list):
        entries = node and node.entries
        return tuple([_normalise(item, entries) for item in value])
    # Only where the schema takes integers: a learning rate of 1.0 stays a float.
    if isinstance(value, float) and value.is_integer() and node is not None and _takes_integers(node):
        return int(value)
    if not isinstance(value, dict):
        return value
    if node is not None and node.values is not None:
        # Entries of a map that hold null are no entries, as in kubectl apply.
        return {key: item for key, item in value.items() if item is not None}
    fields = {} if node is None else node.fields
    return {
        key: _normalise(item, fields.get(key))
        for key, item in value.items()
        if item is not None or not _may_be_left_out(fields.get(key))
    }


def find_nulls(document: Any) -> Iterator[tuple[Path, Any]]:
    """Yield each null that stands in place of a default, with that default."""
    yield from _find_nulls(document, job_node(), ())


def _find_nulls(value: Any, node: Node | None, path: Path) -> Iterator[tuple[Path, Any]]:
    if isinstance(value, list):
        for number, item in enumerate(value):
            yield from _find_nulls(item, node and node.entries, (*path, number))
    elif isinstance(value, dict):
        for key, item in value.items():
            field = None if node is None else node.fields.get(key)
            if item is None and field is not None and (default := _own_default(field)) not in (None, [], {}):
                yield (*path, key), default
            yield from _find_nulls(item, field, (*path, key))


def _own_default(field: Node) -> Any:
    """Return a field's default; of a section what differs from the defaults of the fields in it."""
    default = field.schema.get("default")
    if not isinstance(default, dict):
        return default
    inside = {name: node.schema.get("default") for name, node in field.fields.items()}
    return {name: value for name, value in default.items() if value != inside.get(name)}


def _may_be_left_out(node: Node | None) -> bool:
    return node is not None and "default" in node.schema


def _takes_integers(node: Node) -> bool:
    return any(choice.schema.get("type") == "integer" for choice in node.choices)
