"""The job's types as a tree: what may stand at every place of a document. The only reader of pydantic's JSON schema.

The definition (``crd``), the size bound, the reading of JSON values and messages about mistakes are all made from it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache, cached_property
from typing import Any

from pydantic import BaseModel

from bert_operator.api.schema.bert_pretrain_job import BertPretrainJob

Schema = Mapping[str, Any]


class Node:
    """A position in the document tree. References are resolved, and ``null`` is dropped from types.

    pydantic writes an optional field as ``anyOf`` of its type and ``null``, and a section as ``$ref``.
    """

    # Nodes are made when they are asked for and then kept: every job that is read walks through them. The types hold no
    # section that contains itself, so that the tree is finite.

    def __init__(self, schema: Schema, definitions: Mapping[str, Schema]) -> None:
        """schema: as pydantic has it. definitions: what its references lead to."""
        self._definitions = definitions
        self.is_nullable = any(choice.get("type") == "null" for choice in schema.get("anyOf", ()))
        self.schema = self._resolve(schema)

    @classmethod
    def root(cls, model: type[BaseModel]) -> Node:
        """Return the position of a whole document of a model."""
        schema = model.model_json_schema(by_alias=True)
        return cls(schema, schema.get("$defs", {}))

    def _resolve(self, schema: Schema) -> Schema:
        while "$ref" in schema or "anyOf" in schema:
            own = {key: value for key, value in schema.items() if key not in {"$ref", "anyOf"}}
            if "$ref" in schema:
                target = self._definitions[schema["$ref"].rsplit("/", 1)[-1]]
            else:
                choices = [choice for choice in schema["anyOf"] if choice.get("type") != "null"]
                if len(choices) > 1:
                    return {**own, "anyOf": choices}
                target = choices[0]
            # The field's own description and default are meant, not those of its type. pydantic leaves a field without
            # a description if it equals that of its section.
            schema = {**target, **own}
        return schema

    @cached_property
    def choices(self) -> tuple[Node, ...]:
        """The alternative types of a quantity (number or text); for anything else the position itself."""
        return tuple(self._node(choice) for choice in self.schema.get("anyOf", ())) or (self,)

    @cached_property
    def fields(self) -> Mapping[str, Node]:
        """Fields of a section."""
        return {name: self._node(schema) for name, schema in self.schema.get("properties", {}).items()}

    @cached_property
    def entries(self) -> Node | None:
        """Entry type of a list."""
        return self._node(self.schema["items"]) if "items" in self.schema else None

    @cached_property
    def values(self) -> Node | None:
        """Value type of a map."""
        schema = self.schema.get("additionalProperties")
        # A section has it too, as False: no further fields.
        return self._node(schema) if schema else None

    def child(self, part: str | int) -> Node | None:
        """Return the position at a key or index; None if nothing may be there."""
        return self.entries if isinstance(part, int) else self.fields.get(part, self.values)

    def walk(self, path: str) -> Iterator[tuple[str, str]]:
        """Yield every field below, each with the section that it is in; ``[]`` stands for every entry of a list."""
        for name, node in self.fields.items():
            yield path, name
            if node.entries is not None:
                yield from node.entries.walk(f"{path}.{name}[]")
            else:
                yield from node.walk(f"{path}.{name}")

    def _node(self, schema: Schema) -> Node:
        return Node(schema, self._definitions)


@cache
def job_node() -> Node:
    """Return the position of a whole job."""
    return Node.root(BertPretrainJob)
