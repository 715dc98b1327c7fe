"""The CustomResourceDefinition, made from the pydantic models: structural, described, with defaults and rules.

Pure. Kubernetes takes OpenAPI 3.0 in a restricted form, a structural schema, which differs from pydantic's JSON schema
in a few points, all handled here: no references, no unions with null, exclusive limits as booleans, defaults that are
valid by themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bert_job.rules.cel import CelRule, describe
from bert_job.section import NAME_PATTERN
from bert_operator import names
from bert_operator.api.parsing.profiles import PLATFORM_FIELDS
from bert_operator.api.rules.all_rules import cel_rules
from bert_operator.api.rules.immutability import immutability_rules
from bert_operator.api.schema.bert_pretrain_job import JobSpec
from bert_operator.api.schema.json_schema import Node, job_node
from bert_operator.api.schema.scheduling import QUALIFIED_NAME_PATTERN
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
# Entries of a map list may have several owners, and the server refuses a name that is used twice. An atomic list is
# replaced as a whole, and is compared with its order.
_LISTS_BY_NAME = frozenset({"stages", "env", "resourceClaims", "volumes"})
"""Lists whose entries have a name, by which server-side apply and kubectl patch merge them."""

# A structural schema has no propertyNames: keys can be checked in CEL alone. The limits are those of LabelKey.
_KEYS = CelRule(
    f"self.all(key, key.size() <= 317 && key.matches('{QUALIFIED_NAME_PATTERN}'))",
    describe("keys as Kubernetes writes labels, such as example.com/pool", "correct the key"),
)

# The newest result stands last, and in it the main figure first.
_ACCURACY = ".status.results[-1:].metrics[0].value"

_COLUMNS = (
    ("Stage", "string", ".status.stage", "What is being done", 0),
    ("Phase", "string", ".status.phase", "Where the job stands", 0),
    ("Step", "integer", ".status.progress.step", "Optimizer steps of the stage", 0),
    ("Loss", "string", ".status.progress.loss", "Training loss, mean of the last logging interval", 0),
    ("Seq/s", "string", ".status.progress.sequencesPerSecond", "Sequences per second over all ranks", 0),
    ("ETA", "string", ".status.progress.eta", "Time left in the stage", 0),
    ("Age", "date", ".metadata.creationTimestamp", "Since the job was created", 0),
    ("Steps", "integer", ".status.progress.totalSteps", "Optimizer steps that the stage has", 1),
    ("Attempt", "integer", ".status.attempt", "Attempts so far", 1),
    ("Workers", "integer", ".spec.workers", "Pods that train", 1),
    (
        "Accuracy",
        "string",
        _ACCURACY,
        "Masked-LM accuracy, or the metric of a task, in the latest evaluation of any stage",
        1,
    ),
    ("Reason", "string", ".status.reason", "Why the job is in its phase", 1),
    ("Message", "string", ".status.message", "The same in a sentence", 1),
    ("Logs", "string", ".status.logs", "Command that follows the newest attempt's log", 1),
)


def render_crd() -> Document:
    """Return the definition as the API server takes it."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        # Kubernetes asks for exactly this name.
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
                # kubectl get all lists jobs, too.
                "categories": ["all"],
            },
            "versions": [
                {
                    "name": names.API_VERSION.partition("/")[2],
                    "served": True,
                    "storage": True,
                    # A subresource: whoever may only edit jobs cannot write the status, on which immutability and the
                    # frozen hash rely.
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
    job = _section(job_node())
    del job["properties"]["apiVersion"], job["properties"]["kind"], job["properties"]["metadata"]
    job["required"] = ["spec"]
    job["properties"] = {
        # The API server has a schema of its own for these three. Of metadata a definition may restrict name and
        # generateName, and nothing else.
        "apiVersion": {"type": "string"},
        "kind": {"type": "string"},
        "metadata": {
            "type": "object",
            "properties": {
                "name": {"type": "string", "maxLength": names.MAX_JOB_NAME, "pattern": NAME_PATTERN},
            },
        },
        **job["properties"],
        # No generation is negative: until the operator has looked at a job, its status is not that of its spec, which
        # tools that wait for objects would otherwise take it for (kstatus).
        "status": {**_section(Node.root(JobStatus)), "default": {"observedGeneration": names.UNSEEN_GENERATION}},
    }
    job["x-kubernetes-validations"] = [_validation(rule) for rule in immutability_rules()]
    return job


def _translate(node: Node, name: str = "", *, profiled: bool = False) -> Document:
    """Return the schema of one field. profiled: a profile may fill it in."""
    result = _quantity(node.choices) if len(node.choices) > 1 else _single(node, name, profiled)
    if description := node.schema.get("description"):
        result["description"] = _one_line(description)
    default = node.schema.get("default")
    # Found when the definition is generated, not by a user whose null the server, or a tool before it, prunes.
    if node.is_nullable and ("default" not in node.schema or default is not None):
        raise ValueError(f"{name}: null would not be the same as leaving the field out; give it a value of its own")
    # The server writes defaults into the object that it stores. A profile could then not tell them from the user's
    # own values, so its fields get none.
    if default is not None and not profiled:
        default = _without_empty(default)
        # Defaults of nested fields are filled in only where the section that holds them is there: hence {}.
        if default not in ({}, []) or _has_defaults(result):
            result["default"] = default
    return result


def _single(node: Node, name: str, profiled: bool) -> Document:
    schema = node.schema
    if "properties" in schema:
        return _section(node, profiled)
    if "const" in schema:
        return {"type": "string", "enum": [schema["const"]]}
    result = {key: schema[key] for key in _KEPT if key in schema}
    for limit, base in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if limit in schema:
            # OpenAPI 3.0, unlike JSON Schema since draft 6, has the exclusive limits as marks of the others.
            result |= {base: schema[limit], limit: True}
    if result["type"] == "integer":
        result["format"] = "int64"
    if node.entries is not None:
        result["items"] = _translate(node.entries)
        if name in _LISTS_BY_NAME:
            result |= {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}
        elif name == "conditions":
            result |= {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]}
        else:
            result["x-kubernetes-list-type"] = "atomic"
    if node.values is not None:
        result["additionalProperties"] = _translate(node.values)
        result["x-kubernetes-validations"] = [_validation(_KEYS)]
    return result


def _quantity(choices: Sequence[Node]) -> Document:
    """Return an amount: an integer, or text, which has a unit or is one certain word."""
    # A structural schema allows anyOf between types in this one form only. pattern and maxLength act on text,
    # minimum and maximum on numbers, so that they may stand side by side.
    text = next(choice.schema for choice in choices if choice.schema.get("type") == "string")
    number = next(choice.schema for choice in choices if choice.schema.get("type") == "integer")
    return {
        "x-kubernetes-int-or-string": True,
        "anyOf": [{"type": "integer"}, {"type": "string"}],
        "pattern": text.get("pattern", f"^{text.get('const')}$"),
        "maxLength": text.get("maxLength", len(text.get("const", ""))),
        "minimum": number["minimum"],
        "maximum": number["maximum"],
    }


def _section(node: Node, profiled: bool = False) -> Document:
    schema, title = node.schema, node.schema.get("title", "")
    result: Document = {"type": "object"}
    if schema.get("description"):
        result["description"] = _one_line(schema["description"])
    # Fields that stand here are kept; the server prunes all others without a word, unless the client asks for strict
    # validation, as kubectl does.
    result["properties"] = {
        name: _translate(field, name, profiled=profiled or (title == JobSpec.__name__ and name in PLATFORM_FIELDS))
        for name, field in node.fields.items()
    }
    if schema.get("required"):
        result["required"] = sorted(schema["required"])
    # pydantic's title of a section is the name of its class.
    if rules := list(cel_rules(title)):
        result["x-kubernetes-validations"] = [_validation(rule) for rule in rules]
    return result


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
    """Return a default without empty fields; reading it back means the same."""
    # A default has to be valid by the schema, and null is not.
    if not isinstance(value, dict):
        return value
    cleaned = {key: _without_empty(item) for key, item in value.items()}
    return {key: item for key, item in cleaned.items() if item not in (None, [], {})}


def _one_line(docstring: str) -> str:
    """Return a docstring as plain text, without markup: kubectl explain prints it as it is."""
    return " ".join(docstring.replace("``", "").split())
