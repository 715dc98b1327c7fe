"""Turns pydantic's errors about a job into problems for people, with allowed values taken from the schema.

What is valid is decided by pydantic alone.
"""

from __future__ import annotations

import copy
import difflib
import re
from collections.abc import Iterable, Mapping
from functools import cache
from types import MappingProxyType
from typing import Any

from pydantic import ValidationError
from pydantic.alias_generators import to_camel
from pydantic_core import ErrorDetails

from bert_job.preparation import LANGUAGE_PATTERN
from bert_job.problems import ABSENT, UNKNOWN_FIELD, Path, Problem, render_path, render_value
from bert_job.section import NAME_PATTERN
from bert_operator.api.schema import cluster, scheduling
from bert_operator.api.schema.json_schema import Node, Schema, job_node

PATTERNS = MappingProxyType(
    {
        NAME_PATTERN: "lower-case letters, digits and dashes, beginning with a letter",
        LANGUAGE_PATTERN: "the code of a language, such as en or pt-BR",
        cluster.QUANTITY_PATTERN: "a positive number with or without a unit of m, k, Ki, M, Mi, G, Gi, T, Ti, P, Pi",
        cluster.MOUNT_PATTERN: "an absolute path without spaces, dots at the start of a name, and / at the end",
        scheduling.QUALIFIED_NAME_PATTERN: "a label's name, such as example.com/pool",
        scheduling.LABEL_VALUE_PATTERN: "letters, digits, and -_. between them",
        scheduling.OBJECT_NAME_PATTERN: "lower-case letters, digits, and -. between them",
        scheduling.LABEL_PATTERN: "lower-case letters, digits, and - between them",
        cluster.SERVER_PATTERN: "a host name or address, without a port or path",
        r"^[A-Za-z_][A-Za-z0-9_]*$": "letters, digits and underscores, not beginning with a digit",
        r"^[-._A-Za-z0-9]+$": "letters, digits, and -_.",
        r"^[!-~]+$": "without spaces",
        r"^/": "beginning with /",
        r"^[^/]": "not beginning with /",
    }
)

# Names that the original scripts (Google's, NVIDIA's, Hugging Face's), MPIJobs and pods use for what is called
# otherwise here.
_FOREIGN_NAMES = MappingProxyType(
    {
        "trainbatchsize": "use globalBatchSize, over all ranks: train_batch_size times the number of GPUs",
        "batchsize": "use globalBatchSize, over all ranks, and microBatchSize for one pass on one rank",
        "perdevicetrainbatchsize": "use microBatchSize, and globalBatchSize for all ranks and passes",
        "gradientaccumulationsteps": "leave it out: it follows from globalBatchSize and microBatchSize",
        "maxseqlength": "use sequenceLength",
        "maxpredictionsperseq": "use maxPredictionsPerSequence",
        "maxsteps": "use length: {steps: N}",
        "numtrainsteps": "use length: {steps: N}",
        "numtrainepochs": "use length: {epochs: N}",
        "steps": "use length: {steps: N}",
        "epochs": "use length: {epochs: N}",
        "warmupproportion": "use warmup: {proportion: P}",
        "warmupsteps": "use warmup: {steps: N}",
        "numwarmupsteps": "use warmup: {steps: N}",
        "lr": "use learningRate",
        "numgpus": "use workers and slotsPerWorker",
        "ranks": "use workers and slotsPerWorker",
        "fp16": "use precision: fp16",
        "vocabfile": "use vocabularyFile",
        "vocabsize": "use vocabularySize, in the prepare stage",
        "backofflimit": "use applicationRetries and infrastructureRetries",
        "cleanpodpolicy": "leave it out: pods that ended stay until the job is deleted, those that still run do not",
        "limits": "use accelerator, cpu and memory, which are limits and requests at once",
        "mpiimplementation": "use mpi: {implementation: ...}",
        "mpireplicaspecs": "use workers, and worker and launcher for what differs",
        "replicas": "use spec.workers; there is one launcher",
        "requests": "use accelerator, cpu and memory, which are limits and requests at once",
        "valuefrom": "use secret: {name: ..., key: ...} or configMap: {name: ..., key: ...}",
    }
)


def problems_of(error: ValidationError) -> list[Problem]:
    """Turn pydantic's errors into problems, in the order of the document's fields; one for each path."""
    problems: dict[Path, Problem] = {}
    for item in error.errors():
        if not _is_long_enough(item):
            problems.setdefault(_path_of(item), _problem(item))
    return list(problems.values())


def _is_long_enough(error: ErrorDetails) -> bool:
    """Tell whether a list is too short only without its wrong entries, which have errors of their own."""
    got = error["input"]
    return error["type"] == "too_short" and isinstance(got, list | tuple) and len(got) >= error["ctx"]["min_length"]


def drop_unknown(document: dict[str, Any], errors: Iterable[ErrorDetails]) -> dict[str, Any]:
    """Return a copy without the fields that these errors call unknown."""
    # The caller goes on with its own document, nested objects included.
    kept = copy.deepcopy(document)
    for error in errors:
        *way, name = error["loc"]
        section: Any = kept
        for part in way:
            section = section[part]
        section.pop(name, None)  # gone already where one object stands at two places
    return kept


def _path_of(error: ErrorDetails) -> Path:
    """Return where the document is wrong."""
    # Where several types are allowed pydantic adds the name of the one that it tried, and has an error for each.
    path = error["loc"]
    return path[:-1] if path and "anyOf" in _subschema(path[:-1]) else path


def _problem(error: ErrorDetails) -> Problem:
    path, kind, got = _path_of(error), error["type"], error["input"]
    if kind == "extra_forbidden":
        return _unknown_field(path)
    schema = _subschema(path)
    if kind == "missing":
        # The first clause of the field's docstring says what is missing.
        meaning = str(schema.get("description", "")).split(". ")[0].split(": ")[0].replace("\n", " ").rstrip(".")
        return Problem(
            path=render_path(path),
            got=ABSENT,
            allowed=_describe(schema),
            next_step=f"add it ({meaning[:1].lower()}{meaning[1:]})" if meaning else "add it",
        )
    return Problem(
        path=render_path(path),
        got=render_value(got),
        allowed=_describe(schema),
        next_step=_usual_advice(path, got) or _advice(schema, got),
    )


_USUAL = MappingProxyType(
    {
        ("pretrain", "learningRate"): "1e-4 with adamw and 256 sequences a step, to 6e-3 with lamb and 65536",
        ("finetune", "learningRate"): "2e-5 to 5e-5",
        ("optimizer", "weightDecay"): "0.01, a fraction",
        ("warmup", "proportion"): "0.01 to 0.3, a fraction",
        ("model", "hiddenDropout"): "0 to 0.1, a fraction",
        ("model", "attentionDropout"): "0 to 0.1, a fraction",
        ("pretrain", "maskedLmProbability"): "0.15, a fraction",
        ("prepare", "maskedLmProbability"): "0.15, a fraction",
    }
)
"""What published runs have, by section and field: the bounds of a field are wide, and tell little."""


def _usual_advice(path: Path, got: object) -> str:
    usual = _USUAL.get((str(path[-2]), str(path[-1]))) if len(path) > 1 else None
    is_number = isinstance(got, int | float) and not isinstance(got, bool)
    return f"choose a usual value: {usual}" if usual is not None and is_number else ""


def _unknown_field(path: Path) -> Problem:
    fields = sorted(_subschema(path[:-1]).get("properties", ()))
    return Problem(
        path=render_path(path),
        got=UNKNOWN_FIELD,
        allowed=", ".join(fields) or "no field",
        next_step=_field_advice(path, fields),
    )


def _field_advice(path: Path, fields: list[str]) -> str:
    # From the surest guess down: another spelling, a name of other programs, a field of another section, a typo.
    name, section = str(path[-1]), re.sub(r"\[\d+\]", "[]", render_path(path[:-1]))
    # train_batch_size, train-batch-size and trainBatchSize are one name to people.
    plain = name.replace("_", "").replace("-", "").lower()
    for field in fields:
        if field.lower() == plain:
            return f"write {field}"
    if plain in _FOREIGN_NAMES:
        return _FOREIGN_NAMES[plain]
    if homes := _homes().get(to_camel(name)):
        homes = [home for home in homes if home.startswith(f"{section}.")] or homes
        return f"move it to {homes[0]}" if len(homes) == 1 else f"move it to one of {', '.join(homes)}"
    if close := difflib.get_close_matches(name, fields, n=1):
        return f"did you mean {close[0]}?"
    return "remove it"


def _advice(schema: Schema, got: object) -> str:
    # Order matters: bool is an int in Python, and an amount (anyOf) has no type of its own.
    kind = schema.get("type")
    if isinstance(got, dict) and schema.get("additionalProperties"):
        return "correct the keys"
    words = [choice["const"] for choice in schema.get("anyOf", ()) if "const" in choice]
    if words:
        return f"write a number without quotes, or {' or '.join(words)}"
    if isinstance(got, float) and "anyOf" in schema:
        return "put it in quotes"
    if isinstance(got, bool) and kind in {"integer", "number"}:
        return "write a number"
    if isinstance(got, str) and kind in {"integer", "number"}:
        return _number_advice(got, kind)
    if isinstance(got, str) and kind == "boolean":
        return "write true or false without quotes"
    if isinstance(got, bool | int | float) and kind == "string" and "enum" not in schema and "const" not in schema:
        return "put it in quotes"
    choices = [str(choice) for choice in schema.get("enum", ())]
    if isinstance(got, str) and choices:
        exact = [choice for choice in choices if choice.lower() == got.lower()]
        close = exact or difflib.get_close_matches(got.lower(), choices, n=2)
        return f"did you mean {' or '.join(close)}?" if close else "choose one of them"
    if kind == "object":
        return "write its fields indented below it"
    if kind == "array":
        return "begin every entry with '- '"
    return "choose an allowed value"


def _number_advice(got: str, kind: str) -> str:
    """Say what to write in place of a text where a number stands."""
    if kind == "integer" and re.fullmatch(r"[0-9]{1,3}(,[0-9]{3})+", got):
        return f"write {got.replace(',', '')}, without commas"
    if re.fullmatch(r"[-+]?[0-9]*,[0-9]+([eE][-+]?[0-9]+)?", got):
        return f"write {got.replace(',', '.')}, with a decimal point"
    try:
        float(got)
    except ValueError:
        return "write a number"
    return "write a number without quotes"


def _describe(schema: Schema) -> str:
    """Say in words what a schema allows."""
    if "const" in schema:
        return str(schema["const"])
    if "enum" in schema:
        return " | ".join(str(choice) for choice in schema["enum"])
    if "anyOf" in schema:
        return " or ".join(_describe(choice) for choice in schema["anyOf"])
    match schema.get("type"):
        case "integer":
            return f"an integer{_range(schema)}"
        case "number":
            return f"a number{_range(schema)}"
        case "boolean":
            return "true | false"
        case "string":
            length = (
                f" of {schema.get('minLength', 0)} to {schema['maxLength']} characters" if "maxLength" in schema else ""
            )
            made_of = f", {PATTERNS[schema['pattern']]}" if schema.get("pattern") in PATTERNS else ""
            return f"text{length}{made_of}"
        case "array":
            return f"a list of {schema.get('minItems', 0)} to {schema.get('maxItems', 'any number of')} entries"
        case "object" if schema.get("additionalProperties"):
            keys, values = PATTERNS[scheduling.QUALIFIED_NAME_PATTERN], _describe(schema["additionalProperties"])
            return f"at most {schema['maxProperties']} keys, each {keys}, with {values}"
        case "object":
            return f"an object with the fields {', '.join(sorted(schema.get('properties', ())))}"
    return "a value"


def _range(schema: Schema) -> str:
    words = []
    for key, text in (
        ("minimum", "at least"),
        ("exclusiveMinimum", "above"),
        ("maximum", "at most"),
        ("exclusiveMaximum", "below"),
    ):
        if key in schema:
            words.append(f"{text} {_number(schema[key])}")
    return f", {' and '.join(words)}" if words else ""


def _number(limit: float) -> str:
    return str(limit) if isinstance(limit, int) else f"{limit:.15g}"


def _node(path: Path) -> Node | None:
    """Return what may stand at a path; None where the path leaves the schema."""
    node: Node | None = job_node()
    for part in path:
        node = node and node.child(part)
    return node


def _subschema(path: Path) -> Schema:
    """Return the schema of what stands at a path; an empty one where the path leaves the schema."""
    node = _node(path)
    return {} if node is None else node.schema


@cache
def _homes() -> Mapping[str, list[str]]:
    """Map every field name below ``spec`` to the sections that have it."""
    homes: dict[str, list[str]] = {}
    for section, name in job_node().fields["spec"].walk("spec"):
        homes.setdefault(name, []).append(section)
    return homes
