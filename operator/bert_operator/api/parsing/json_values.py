"""Reads JSON values as the API server does, where strict validation alone would not. Pure.

Lists become tuples, which they are in a job. Nulls that mean "use the default" are dropped, and 2.0 is the integer 2,
as which kubectl sends it: JSON has one kind of number.
"""

from __future__ import annotations

from typing import Any

from bert_operator.api.schema.json_schema import Node, job_node


def normalise(document: Any) -> Any:
    """Return a copy in which no field is null that has a default and may not be null itself, and integers are int.

    Its lists are tuples.

    ``optimizer.maxGradientNorm`` keeps its null, which switches clipping off. Entries of lists are left as they
    are: a null among them is a mistake.
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
        if item is not None or not _null_is_its_default(fields.get(key))
    }


def _null_is_its_default(node: Node | None) -> bool:
    """Tell whether the API server would put a default in place of null."""
    return node is not None and "default" in node.schema and not node.is_nullable


def _takes_integers(node: Node) -> bool:
    return any(choice.schema.get("type") == "integer" for choice in node.choices)
