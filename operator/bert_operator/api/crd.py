"""The CustomResourceDefinition, made from the pydantic models: structural, described, with defaults and rules.

Pure. OpenAPI 3.0 as Kubernetes restricts it differs from pydantic's JSON schema in a few points, all handled
here: no references, no unions with null, exclusive limits as booleans, defaults that have to be complete.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from bert_operator import names
from bert_operator.api.parsing.profiles import PLATFORM_FIELDS
from bert_operator.api.rules.all_rules import cel_rules
from bert_operator.api.rules.cel import CelRule, describe
from bert_operator.api.rules.immutability import immutability_rules
from bert_operator.api.schema.bert_pretrain_job import BertPretrainJob, JobSpec
from bert_operator.api.schema.scheduling import QUALIFIED_NAME_PATTERN
from bert_operator.api.schema.section import NAME_PATTERN
from bert_operator.api.schema.status import JobStatus

Document = dict[str, Any]

PLURAL = "bertpretrainjobs"

_KEPT = (
    "type",
    "enum",
    "minimum",
    "maximum",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "pattern",
    "maxProperties",
)
_LISTS_BY_NAME = frozenset({"stages", "env", "volumes"})
"""Lists whose entries are told apart by their name, which server-side apply and kubectl patch then use."""

_KEYS = CelRule(
    f"self.all(key, key.size() <= 317 && key.matches('{QUALIFIED_NAME_PATTERN}'))",
    describe("keys as Kubernetes writes labels, such as example.com/pool", "correct the key"),
)

_COLUMNS = (
    ("Stage", "string", ".status.stage", "What is being done", 0),
    ("Phase", "string", ".status.phase", "Where the job stands", 0),
    ("Step", "integer", ".status.progress.step", "Optimizer steps of the stage", 0),
    ("Loss", "string", ".status.progress.loss", "Training loss, smoothed", 0),
    ("Seq/s", "string", ".status.progress.sequencesPerSecond", "Sequences per second over all ranks", 0),
    ("ETA", "string", ".status.progress.eta", "Time left in the stage", 0),
    ("Age", "date", ".metadata.creationTimestamp", "Since the job was created", 0),
    ("Steps", "integer", ".status.progress.totalSteps", "Optimizer steps that the stage has", 1),
    ("Attempt", "integer", ".status.attempt", "Attempts so far", 1),
    ("Workers", "integer", ".spec.workers", "Pods that train", 1),
    ("Reason", "string", ".status.reason", "Why the job is in its phase", 1),
    ("Message", "string", ".status.message", "The same in a sentence", 1),
    ("Logs", "string", ".status.logs", "Command that follows the newest attempt's log", 1),
)


def render_crd() -> Document:
    """Return the definition as the API server takes it."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{PLURAL}.{names.API_GROUP}"},
        "spec": {
            "group": names.API_GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": names.KIND,
                "listKind": f"{names.KIND}List",
                "plural": PLURAL,
                "singular": names.KIND.lower(),
                "shortNames": ["bpj"],
                "categories": ["all"],
            },
            "versions": [
                {
                    "name": names.API_VERSION.partition("/")[2],
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": [_column(*column) for column in _COLUMNS],
                    "schema": {"openAPIV3Schema": _root_schema()},
                }
            ],
        },
    }


def _column(name: str, kind: str, path: str, description: str, priority: int) -> Document:
    column = {"name": name, "type": kind, "jsonPath": path, "description": description}
    return {**column, "priority": priority} if priority else column


def _root_schema() -> Document:
    job = _Translator(BertPretrainJob).translate_root()
    del job["properties"]["apiVersion"], job["properties"]["kind"], job["properties"]["metadata"]
    job["required"] = ["spec"]
    job["properties"] = {
        # The API server knows these three; of metadata it lets nobody restrict more than the name.
        "apiVersion": {"type": "string"},
        "kind": {"type": "string"},
        "metadata": {
            "type": "object",
            "properties": {
                "name": {"type": "string", "maxLength": names.MAX_JOB_NAME, "pattern": NAME_PATTERN},
            },
        },
        **job["properties"],
        "status": _Translator(JobStatus).translate_root(),
    }
    job["x-kubernetes-validations"] = [_validation(rule) for rule in immutability_rules()]
    return job


class _Translator:
    """Turns one model's JSON schema into a structural schema."""

    def __init__(self, model: type[BaseModel]) -> None:
        self._root = model.model_json_schema(by_alias=True)
        self._definitions = self._root.get("$defs", {})

    def translate_root(self) -> Document:
        return self._object(self._root)

    def _translate(self, schema: Mapping[str, Any], name: str = "", *, profiled: bool = False) -> Document:
        """Profiled: a profile may fill the field in, which a default written by the server would prevent."""
        description = schema.get("description")
        nullable = any(choice.get("type") == "null" for choice in schema.get("anyOf", ()))
        choices = [choice for choice in schema.get("anyOf", (schema,)) if choice.get("type") != "null"]
        result = self._quantity(choices) if len(choices) > 1 else self._single(choices[0], name, profiled)
        if description:
            result["description"] = _one_line(description)
        default = schema.get("default")
        if default is None and nullable and "default" not in schema:
            raise ValueError(f"{name}: a field that may be null needs a default")
        if default is not None and not profiled:
            if nullable:
                # null has a meaning of its own here, and must not be replaced by the default.
                result["nullable"] = True
            default = _without_empty(default)
            if default not in ({}, []) or self._has_defaults(result):
                result["default"] = default
        return result

    def _single(self, schema: Mapping[str, Any], name: str, profiled: bool) -> Document:
        if "$ref" in schema:
            definition = self._definitions[schema["$ref"].rsplit("/", 1)[-1]]
            is_object = definition.get("type") == "object"
            return self._object(definition, profiled) if is_object else self._translate(definition)
        if "const" in schema:
            return {"type": "string", "enum": [schema["const"]]}
        result = {key: schema[key] for key in _KEPT if key in schema}
        for limit, base in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
            if limit in schema:
                result |= {base: schema[limit], limit: True}
        if result["type"] == "integer":
            result["format"] = "int64"
        if result["type"] == "array":
            result["items"] = self._translate(schema["items"])
            if name in _LISTS_BY_NAME:
                result |= {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}
            elif name == "conditions":
                result |= {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]}
            else:
                result["x-kubernetes-list-type"] = "atomic"
        if result["type"] == "object":
            result["additionalProperties"] = self._translate(schema["additionalProperties"])
            # A structural schema cannot say how keys are spelt.
            result["x-kubernetes-validations"] = [_validation(_KEYS)]
        return result

    def _quantity(self, choices: list[Mapping[str, Any]]) -> Document:
        """Return an amount: an integer, or text, which has a unit or is one certain word."""
        text = next(choice for choice in choices if choice.get("type") == "string")
        number = next(choice for choice in choices if choice.get("type") == "integer")
        return {
            "x-kubernetes-int-or-string": True,
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "pattern": text.get("pattern", f"^{text.get('const')}$"),
            "maxLength": text.get("maxLength", len(text.get("const", ""))),
            "minimum": number["minimum"],
            "maximum": number["maximum"],
        }

    def _object(self, schema: Mapping[str, Any], profiled: bool = False) -> Document:
        is_spec = schema.get("title") == JobSpec.__name__
        result: Document = {"type": "object"}
        if schema.get("description"):
            result["description"] = _one_line(schema["description"])
        result["properties"] = {
            name: self._translate(field, name, profiled=profiled or (is_spec and name in PLATFORM_FIELDS))
            for name, field in schema.get("properties", {}).items()
        }
        if schema.get("required"):
            result["required"] = sorted(schema["required"])
        if rules := list(cel_rules(schema.get("title", ""))):
            result["x-kubernetes-validations"] = [_validation(rule) for rule in rules]
        return result

    @staticmethod
    def _has_defaults(schema: Document) -> bool:
        """Tell whether an empty object would be filled with anything."""
        return any("default" in field for field in schema.get("properties", {}).values())


def _validation(rule: CelRule) -> Document:
    validation = {"rule": rule.expression, "message": rule.message}
    if rule.field:
        validation["fieldPath"] = f".{rule.field}"
    if rule.reason:
        validation["reason"] = rule.reason
    return validation


def _without_empty(value: Any) -> Any:
    """Return a default without fields that hold nothing; reading it back means the same."""
    if not isinstance(value, dict):
        return value
    cleaned = {key: _without_empty(item) for key, item in value.items()}
    return {key: item for key, item in cleaned.items() if item not in (None, [], {})}


def _one_line(docstring: str) -> str:
    """Return a docstring as kubectl explain prints it: plain words, no markup."""
    return " ".join(docstring.replace("``", "").split())
