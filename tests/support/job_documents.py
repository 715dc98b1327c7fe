"""Jobs drawn by chance from the schema: valid ones, limits and what lies just outside, wrong types, broken rules.

A document begins as the sample job, gets further sections, then changes of ``rule_cases``, and in the end sometimes a
mistake or two; about a third is valid. Everything follows from the number that a document is drawn with.
"""

from __future__ import annotations

import contextlib
import copy
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any

from bert_operator.api.parsing.validation import parse_job
from bert_operator.api.schema.bert_pretrain_job import BertPretrainJob
from bert_operator.api.schema.cluster import SERVER_PATTERN
from bert_operator.api.schema.scheduling import LABEL_PATTERN, OBJECT_NAME_PATTERN
from bert_operator.errors import InvalidJob
from rule_cases import RULE_CASES
from sample_job import Document, sample_document

Schema = Mapping[str, Any]

# What matches a pattern, and what does not.
TEXTS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = MappingProxyType(
    {
        r"^[a-z]([-a-z0-9]*[a-z0-9])?$": (("a", "a1", "x-y"), ("A", "1a", "a-", "a_b", "a.b", "é", "a\n")),
        r"^([1-9][0-9]*(\.[0-9]{1,3})?|0\.[0-9]{0,2}[1-9])(m|k|Ki|M|Mi|G|Gi|T|Ti|P|Pi)?$": (
            ("1", "500m", "64Gi", "0.5", "1.250Ti", "0.001"),
            ("0", "-1", "1e3", "01", "1.", "0.10", "64 Gi", "64GB", "Gi", "1.0001", "1\n", "+1"),
        ),
        r"^(/[A-Za-z0-9_-][A-Za-z0-9._-]*)+$": (
            ("/mnt/x", "/data", "/mnt/a/b.c", "/tmpfs", "/mnt/output", "/mnt/dataset", "/tmp/x", "/tmp", "/etc"),
            ("mnt/x", "/", "/mnt/", "/mnt//x", "/mnt/../etc", "/a b", "/a:b", "/mnt/x\n"),
        ),
        r"^([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$": (
            ("zone", "team", "kubernetes.io/hostname", "example.com/A_b.c", "a" * 63, "a" * 253 + "/" + "b" * 63),
            ("a b", "/a", "a/", "a/b/c", "-a", "Example.com/a", "a" * 64, "é", "a\n"),
        ),
        r"^([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$": (
            ("", "a", "V100-SXM2", "a_b.c", "true"),
            ("a b", "-a", "a/b", "é", "a\n"),
        ),
        OBJECT_NAME_PATTERN: (
            ("a", "keys", "0a", "a.b-c", "a-a1-ssh", "a" * 253),
            ("A", "a_b", "-a", "a/b", "a.", "a..b", "a.-b", "a\n"),
        ),
        LABEL_PATTERN: (("a", "0a", "a-b", "a" * 63), ("A", "a.b", "a_b", "-a", "a-", "a\n")),
        SERVER_PATTERN: (
            ("nas", "10.0.0.1", "nas.example.com", "nas_1", "fe80::1", "2001:db8::", "[fe80::1%eth0]"),
            ("nas:/export", "nas:2049", "-a", "nas\n", "nas.", "[nas]", "fe80::1%eth0"),
        ),
        r"^[A-Za-z_][A-Za-z0-9_]*$": (
            ("A", "_a", "NCCL_DEBUG", "HOME", "BERT_ATTEMPT"),
            ("1A", "A-B", "A.B", "A B", "A\n", "é"),
        ),
        r"^[a-z]{2,3}(-[A-Za-z]+)*$": (
            ("en", "pt-BR", "zh-Hant", "gsw"),
            ("e", "EN", "english", "en_GB", "en-", "en\n"),
        ),
        r"^[-._A-Za-z0-9]+$": (("a", "wandb.key", "-", "A_1"), ("a/b", "a b", "a\n", "é")),
        r"^[!-~]+$": (("trainer:1", "registry.example.com:5000/a/b@sha256:0", "~"), ("a b", "a\n", "é", "a\u00a0b")),
        r"^/": (("/", "/data", "/a b"), ("data", "./data", "\n/data", " /data")),
        r"^[^/]": (("a", "a/b", " /a", "\n"), ("/a", "//")),
    }
)

# Sections of which one field stands alone, and that field's choices.
ALTERNATIVES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "VolumeSource": ("persistentVolumeClaim", "nfs", "hostPath", "image"),
        "FurtherVolumeSource": ("persistentVolumeClaim", "nfs", "hostPath", "image", "secret", "configMap", "emptyDir"),
        "ResourceClaimSpec": ("resourceClaimName", "resourceClaimTemplateName"),
        "EnvironmentVariable": ("value", "secret", "configMap"),
        "EnvironmentSource": ("secret", "configMap"),
        "LengthSpec": ("steps", "epochs", "samples"),
        "WarmupSpec": ("steps", "proportion"),
        "TopologyRequest": ("required", "preferred", "unconstrained"),
        "PrepareSpec": ("text", "corpora"),
        "Stage": ("prepare", "pretrain", "evaluate", "finetune", "export"),
    }
)

WRONG: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**31, 2**53 + 1, 10**30, 1.0, 1.5, -0.0, 1e30, 1e-300, "", "1", "true", "null", "a",
    "Auto", "ß" * 5000, [], [None], ["a"], [1], {}, {"a": None}, {"a": "b"},
)  # fmt: skip

PATHS = ("data", "/data/wiki", "runs/demo", "runs/demo/", "a b", "é", "s3://bucket/x", "builtin:python-docs")


@dataclass(frozen=True, slots=True)
class Place:
    """Something in a document: what holds it, under which key, and what the schema says of it."""

    holder: Any
    key: str | int
    schema: Schema


def draw_document(number: int) -> Document:
    """Return the document of this number."""
    chance = random.Random(number)
    document = sample_document()
    for _ in range(chance.choice((0, 0, 1, 1, 2))):
        _use_a_rule(chance, document)
    for _ in range(chance.choice((0, 1, 2, 3, 5, 8))):
        _add_a_field(chance, document)
    for _ in range(chance.choice((0, 0, 0, 1, 1, 2))):
        _make_a_mistake(chance, document)
    if chance.random() < 0.03:
        names = ("x" * 45, "x" * 46, "a.b", "Demo", "1st", "a-", "", None, 7)
        document["metadata"] = {"name": chance.choice(names)}
    return document


def draw_value(chance: random.Random, field: str) -> Any:
    """Return a value that the schema allows for a field, named as ``RunPolicy.suspend``."""
    section, _, name = field.partition(".")
    return _draw(chance, root()["$defs"][section]["properties"][name], name)


def add_fields(chance: random.Random, document: Document, count: int) -> None:
    """Give sections of a document so many fields that they may have, or other values; rules may break by it."""
    for _ in range(count):
        _add_a_field(chance, document)


def fields_of(document: Document) -> set[str]:
    """Return the fields that stand in a document's spec, named as ``RunPolicy.suspend``."""
    sections = ((place.holder[place.key], place.schema) for place in _places(random.Random(0), document))
    return {
        f"{schema['title']}.{name}"
        for section, schema in sections
        if "properties" in schema and isinstance(section, dict)
        for name in section
    }


def all_fields() -> set[str]:
    """Return every field that a job's spec may have in any of its sections, named as ``RunPolicy.suspend``."""
    outside = {"BertPretrainJob", "Metadata", "JobMetadata"}
    sections = {name: schema for name, schema in root()["$defs"].items() if name not in outside}
    return {f"{name}.{field}" for name, schema in sections.items() for field in schema.get("properties", {})}


def as_kubectl_sends_it(value: Any) -> Any:
    """Return a value with whole numbers as integers: kubectl reads YAML and JSON alike and writes 2.0 as 2.

    The API server itself takes 2.0 for an integer as long as no rule reads the field.
    """
    if isinstance(value, dict):
        return {key: as_kubectl_sends_it(item) for key, item in value.items()}
    if isinstance(value, list):
        return [as_kubectl_sends_it(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 2**63 else value


def patterns(schema: Any) -> set[str]:
    """Return every pattern in a schema."""
    parts = list(schema.values()) if isinstance(schema, dict) else schema if isinstance(schema, list) else []
    own = {schema["pattern"]} if isinstance(schema, dict) and isinstance(schema.get("pattern"), str) else set()
    return own.union(*(patterns(part) for part in parts))


@cache
def root() -> Schema:
    """Return the JSON schema of a job, as pydantic tells it."""
    return BertPretrainJob.model_json_schema(by_alias=True)


def _resolve(schema: Schema, chance: random.Random) -> Schema:
    """Follow references; of several types that are allowed take one."""
    while "$ref" in schema or "anyOf" in schema:
        if "$ref" in schema:
            schema = root()["$defs"][schema["$ref"].rsplit("/", 1)[-1]]
        else:
            schema = chance.choice([choice for choice in schema["anyOf"] if choice.get("type") != "null"])
    return schema


def _use_a_rule(chance: random.Random, document: Document) -> None:
    case = RULE_CASES[chance.choice(sorted(RULE_CASES))]
    change = case.keeps if chance.random() < 0.7 else case.breaks
    # An earlier change may have taken away what this one is about.
    with contextlib.suppress(IndexError, KeyError, TypeError):
        change(document["spec"])


def _add_a_field(chance: random.Random, document: Document) -> None:
    """Give some section a field that it may have, or another value."""
    sections = [place for place in _places(chance, document) if "properties" in place.schema]
    place = chance.choice(sections)
    section = place.holder[place.key]
    alone = ALTERNATIVES.get(place.schema.get("title", ""), ())
    names = [name for name in place.schema["properties"] if name not in alone]
    if names:
        name = chance.choice(names)
        section[name] = _draw(chance, place.schema["properties"][name], name)


def _make_a_mistake(chance: random.Random, document: Document) -> None:
    places = list(_places(chance, document))
    if not places:
        return
    place = chance.choice(places)
    match chance.choice(("wrong", "wrong", "wrong", "outside", "outside", "unknown", "missing")):
        case "wrong":
            place.holder[place.key] = chance.choice(WRONG)
        case "outside":
            place.holder[place.key] = _outside(chance, place.schema)
        case "unknown" if isinstance(place.holder[place.key], dict):
            place.holder[place.key][chance.choice(("colour", "replicas", "train_batch_size", "steps", "name"))] = 1
        case _:
            del place.holder[place.key]


def _places(chance: random.Random, document: Document) -> Iterator[Place]:
    """Yield the spec and everything in it that the schema knows."""
    if "spec" in document:
        yield from _below(chance, Place(document, "spec", _resolve({"$ref": "#/$defs/JobSpec"}, chance)))


def _below(chance: random.Random, place: Place) -> Iterator[Place]:
    yield place
    value, schema = place.holder[place.key], place.schema
    entries: list[tuple[str | int, Schema]] = []
    if isinstance(value, dict):
        fields, others = schema.get("properties", {}), schema.get("additionalProperties")
        entries = [(key, fields.get(key, others)) for key in value if fields.get(key, others)]
    elif isinstance(value, list) and "items" in schema:
        entries = [(number, schema["items"]) for number in range(len(value))]
    for key, inner in entries:
        yield from _below(chance, Place(value, key, _resolve(inner, chance)))


def _draw(chance: random.Random, schema: Schema, name: str = "") -> Any:
    """Return a value that the schema allows, limits more often than the rest."""
    schema = _resolve(schema, chance)
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return chance.choice(schema["enum"])
    match schema["type"]:
        case "boolean":
            return chance.random() < 0.5
        case "integer":
            low, high = schema["minimum"], schema["maximum"]
            value = chance.choice((low, high, chance.randint(low, high), min(high, low + chance.randint(0, 8))))
            return float(value) if chance.random() < 0.05 and value < 2**53 else value
        case "number":
            return _number(chance, schema)
        case "string":
            return _text(chance, schema, name)
        case "array":
            low = schema.get("minItems", 0)
            count = chance.choice((low, low + 1, low + 1, low + 2))
            return [_draw(chance, schema["items"], name) for _ in range(min(count, schema["maxItems"]))]
    if schema.get("additionalProperties"):
        keys = TEXTS[r"^([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$"]
        known = chance.sample(keys[0], chance.randint(0, 2)) + chance.sample(keys[1], int(chance.random() < 0.1))
        return {key: _draw(chance, schema["additionalProperties"]) for key in known}
    return _section(chance, schema)


def _section(chance: random.Random, schema: Schema) -> Document:
    alone = ALTERNATIVES.get(schema["title"], ())
    names = [
        name
        for name in schema["properties"]
        if name in schema.get("required", ()) or (name not in alone and chance.random() < 0.25)
    ]
    if alone:
        names += chance.sample(alone, chance.choice((1,) * 10 + (0, 2)))
    return {name: _draw(chance, schema["properties"][name], name) for name in names}


def _number(chance: random.Random, schema: Schema) -> float:
    low = schema.get("minimum", schema.get("exclusiveMinimum"))
    high = schema.get("maximum", schema.get("exclusiveMaximum"))
    choices = [low + (high - low) * chance.random(), high / 2, high / 1000]
    choices += [low] if "minimum" in schema else [low + 1e-9]
    choices += [high, int(high)] if "maximum" in schema else [high - 1e-9]
    value: float = chance.choice(choices)
    return value if low <= value <= high else high / 2


def _text(chance: random.Random, schema: Schema, name: str) -> str:
    if "pattern" in schema:
        return chance.choice(TEXTS[schema["pattern"]][0])
    if name in ("path", "text", "shards", "vocabularyFile", "folder", "train"):
        return chance.choice(PATHS)
    low, high = schema.get("minLength", 0), schema["maxLength"]
    return chance.choice(("a" * max(1, low), "a" * high, "😀" * high, " \t\n", "$(HOME)"))


def _outside(chance: random.Random, schema: Schema) -> Any:
    """Return what the schema just does not allow any more."""
    if "enum" in schema or "const" in schema:
        return chance.choice((str(schema.get("const") or schema["enum"][0]).upper(), "other", 1))
    match schema.get("type"):
        case "integer":
            return chance.choice((schema["minimum"] - 1, schema["maximum"] + 1, schema["minimum"] + 0.5))
        case "number":
            limits = [schema["minimum"] - 1e-9] if "minimum" in schema else [schema["exclusiveMinimum"]]
            limits += [schema["maximum"] + 1e-6] if "maximum" in schema else [schema["exclusiveMaximum"]]
            return chance.choice(limits)
        case "string":
            texts = ["x" * (schema["maxLength"] + 1)] + [""] * ("minLength" in schema)
            return chance.choice([*texts, *TEXTS.get(schema.get("pattern", ""), ((), ()))[1]])
        case "array":
            entry = _draw(chance, schema["items"])
            while len(str(entry)) > 1000:  # many of them would be more than the API server reads
                entry = _draw(chance, schema["items"])
            return chance.choice(([], [entry] * (schema["maxItems"] + 1), [None], [entry, None], [entry, entry]))
        case "boolean":
            return chance.choice((0, 1, "false", "yes"))
    return chance.choice(({}, [], None, "text"))


def wrong_fields(documents: int) -> Iterator[tuple[str, Document]]:
    """Yield, for every field that stands in so many first documents, a valid one with each of ``WRONG`` in its place.

    What is yielded first says which field of which section, and what stands there.
    """
    chance, seen = random.Random(0), set()
    for document in map(draw_document, range(documents)):
        try:
            parse_job(document)
        except InvalidJob:
            continue
        for place in list(_places(chance, document)):
            section = place.holder[place.key]
            for name in section if "properties" in place.schema and isinstance(section, dict) else ():
                field = f"{place.schema['title']}.{name}"
                if field not in seen and name in place.schema["properties"]:
                    seen.add(field)
                    yield from _with_each(document, section, name, field)


def _with_each(document: Document, section: Document, name: str, field: str) -> Iterator[tuple[str, Document]]:
    before = section[name]
    for value in WRONG:
        section[name] = value
        yield f"{field} = {value!r:.20}", copy.deepcopy(document)
    section[name] = before
