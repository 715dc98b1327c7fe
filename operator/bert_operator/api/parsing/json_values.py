"""Reads JSON values as the API server does, where strict validation alone would not. Pure.

Nulls that mean "use the default" are dropped, and 2.0 is the integer 2, as which kubectl sends it: JSON has one kind
of number.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from bert_operator.api.schema.bert_pretrain_job import BertPretrainJob

Schema = Mapping[str, Any]


def normalise(document: Any) -> Any:
    """Return a copy in which no field is null that has a default and may not be null itself, and integers are int.

    ``optimizer.maxGradientNorm`` keeps its null, which switches clipping off. Entries of lists are left as they
    are: a null among them is a mistake.
    """
    return _walk(document, _schema())


@cache
def _schema() -> Schema:
    return BertPretrainJob.model_json_schema(by_alias=True)


def _walk(value: Any, schema: Schema) -> Any:
    schema = _resolve(schema)
    if isinstance(value, list):
        return [_walk(item, schema.get("items", {})) for item in value]
    if isinstance(value, float) and value.is_integer() and _takes_integers(schema):
        return int(value)
    if not isinstance(value, dict):
        return value
    if "additionalProperties" in schema and schema["additionalProperties"]:
        # Entries of a map that hold null are no entries, as in kubectl apply.
        return {key: item for key, item in value.items() if item is not None}
    properties = schema.get("properties", {})
    return {
        key: _walk(item, properties.get(key, {}))
        for key, item in value.items()
        if item is not None or not _has_another_default(properties.get(key, {}))
    }


def _resolve(schema: Schema) -> Schema:
    """Return what a reference, or the part of a union that is not null, stands for."""
    for choice in schema.get("anyOf", ()):
        if "$ref" in choice or choice.get("type") in ("array", "object"):
            schema = choice
    if "$ref" in schema:
        definition: Schema = _schema()["$defs"][schema["$ref"].rsplit("/", 1)[-1]]
        return definition
    return schema


def _has_another_default(schema: Schema) -> bool:
    nullable = any(choice.get("type") == "null" for choice in schema.get("anyOf", ()))
    return "default" in schema and not nullable


def _takes_integers(schema: Schema) -> bool:
    return any(choice.get("type") == "integer" for choice in (schema, *schema.get("anyOf", ())))
