"""Job files: YAML that means the same to kubectl and to this operator, or is refused.

Only the syntax is left to a library; what scalars mean is decided in ``plain_scalars``. Duplicate keys, tags, merge
keys and aliases that expand without end are refused. Whether the document is a valid job is decided in ``validation``
(docs/adr/0003).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    DocumentEndEvent,
    DocumentStartEvent,
    Event,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
    StreamEndEvent,
    StreamStartEvent,
)

from bert_job.foreign_text import printable
from bert_job.problems import render_path
from bert_operator import names
from bert_operator.api.parsing import plain_scalars, yaml_mistakes
from bert_operator.errors import DocumentError

MAX_BYTES = 1_048_576
"""Longest file. The API server takes objects of 1.5 MiB; a job is a few kilobytes."""
_MAX_NODES = 20_000
MAX_STREAM_BYTES = 16 * MAX_BYTES
"""Longest stream of several objects: one definition of a resource alone may take half a megabyte."""
_INPUT = Path("-")
# A level takes two frames of Python's stack, which has 1,000.
_MAX_DEPTH = 50
# Of objects of other kinds; definitions of resources have some forty.
_MAX_STREAM_DEPTH = 200

Json = Any
"""What JSON can hold: dictionaries with text keys, lists, text, numbers, booleans, None."""


def read_job_document(path: Path) -> dict[str, Json]:
    """Read the one ``BertPretrainJob`` that a file holds, among any objects of other kinds.

    path: ``-`` for standard input.

    Raises:
        DocumentError: the file cannot be read, is not YAML, is ambiguous, or holds no job or several.
    """
    jobs = read_job_stream(path).jobs
    if len(jobs) > 1:
        raise DocumentError(
            f"{source_of(path)}: holds {len(jobs)} objects of kind {names.KIND}; allowed: one, among objects of other "
            "kinds",
            hint="write each to a file of its own",
        )
    return jobs[0]


@dataclass(frozen=True, slots=True)
class JobStream:
    """The jobs of a file or stream, in its order, and how many objects of other kinds stand among them."""

    jobs: tuple[dict[str, Json], ...]
    others: int


def read_job_stream(path: Path) -> JobStream:
    """Read every ``BertPretrainJob`` that a file holds. path: ``-`` for standard input.

    Objects of other kinds need only be YAML.

    Raises:
        DocumentError: the file cannot be read, is not YAML, holds no job, or one that is ambiguous.
    """
    source = source_of(path)
    text = _read_text(path, MAX_STREAM_BYTES)
    jobs: list[dict[str, Json]] = []
    others = 0
    try:
        for events in _split(YAML(typ="safe", pure=True).parse(text), source):
            kind = _kind_of(events)
            if kind not in (names.KIND, "List", f"{names.KIND}List"):
                others += 1
                continue
            (document,) = _Builder(iter(events), source).documents()
            # ``kubectl get -o yaml`` prints a list.
            objects = [document] if kind == names.KIND else _items_of(document)
            found = [item for item in objects if item.get("kind") == names.KIND]
            jobs += found
            others += len(objects) - len(found)
    except YAMLError as error:
        raise _not_yaml(error, source, text) from error
    if not jobs:
        held = count_others(others) if others else "no object"
        raise DocumentError(
            f"{source}: holds {held}, and no {names.KIND}", hint=f"write a document with kind: {names.KIND}"
        )
    return JobStream(tuple(jobs), others)


def source_of(path: Path) -> str:
    """Return the name that messages use for the file a job was read from."""
    return "standard input" if path == _INPUT else str(path)


def count_others(others: int) -> str:
    """Describe how many objects of other kinds there are, in words."""
    return f"{others} object{'s' if others > 1 else ''} of other kinds"


def _read_text(path: Path, max_bytes: int) -> str:
    is_input, source = path == _INPUT, source_of(path)
    try:
        # One byte more than there may be: enough to tell, however much would follow.
        data = sys.stdin.buffer.read(max_bytes + 1) if is_input else path.read_bytes()
    except OSError as error:
        raise DocumentError(f"{source}: cannot read the job ({error.strerror})") from error
    if len(data) > max_bytes:
        found = f"more than {max_bytes}" if is_input else f"{len(data)}"
        raise DocumentError(f"{source}: {found} bytes; a job file has at most {max_bytes}")
    try:
        # Some editors begin UTF-8 with a byte order mark.
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DocumentError(f"{source}: not UTF-8 (byte {error.start})", hint="save the file as UTF-8") from error


def _split(events: Iterator[Event], source: str) -> Iterator[list[Event]]:
    """Yield the events of one document after the other; empty documents are left out, as kubectl does."""
    document: list[Event] = []
    depth = 0
    for event in events:
        match event:
            case StreamStartEvent() | StreamEndEvent():
                continue
            case DocumentStartEvent():
                document = []
            case DocumentEndEvent():
                if any(not isinstance(each, ScalarEvent) or each.value not in ("", "null", "~") for each in document):
                    yield document
            case _:
                document.append(event)
                if isinstance(event, MappingStartEvent | SequenceStartEvent):
                    depth += 1
                elif isinstance(event, MappingEndEvent | SequenceEndEvent):
                    depth -= 1
                if depth > _MAX_STREAM_DEPTH:  # the library takes minutes for some thousands
                    raise DocumentError(
                        f"{source}: more than {_MAX_STREAM_DEPTH} levels of nesting; allowed: up to those"
                    )


def _items_of(document: Json) -> list[dict[str, Json]]:
    items = document.get("items")
    return [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []


def _kind_of(events: list[Event]) -> str | None:
    """Return what the field ``kind`` at the top of a document says."""
    depth, is_key, key = 0, True, ""
    for event in events:
        if isinstance(event, MappingEndEvent | SequenceEndEvent):
            depth -= 1
        elif depth == 1 and is_key:
            key = event.value if isinstance(event, ScalarEvent) else ""
            is_key = False
            continue
        elif depth == 1 and key == "kind" and isinstance(event, ScalarEvent):
            return str(event.value)
        if isinstance(event, MappingStartEvent | SequenceStartEvent):
            depth += 1
        elif depth == 1:
            # A value has ended, be it a scalar, an alias or a section.
            is_key = True
    return None


def parse_documents(text: str, *, source: str = "job") -> list[Json]:
    """Parse the documents of a YAML text; empty documents are left out, as in kubectl.

    Raises:
        DocumentError: not YAML, or not the same in YAML 1.1 and 1.2; the message names the line.
    """
    try:
        # Events, not values: the library's constructors would have settled already what a plain scalar means.
        return _Builder(YAML(typ="safe", pure=True).parse(text), source).documents()
    except YAMLError as error:
        raise _not_yaml(error, source, text) from error


def _not_yaml(error: YAMLError, source: str, text: str) -> DocumentError:
    if not isinstance(error, MarkedYAMLError):
        # Of the library's own words the first line says what, the second one where.
        what = str(error).splitlines()[0]
        return DocumentError(f"{source}: not YAML ({what})", hint="take that character out")
    found = yaml_mistakes.explain(error, text)
    where = f"{source}:{found.line}: not YAML: {found.cause} (column {found.column})"
    return DocumentError(f"{where}: {found.shown}" if found.shown else where, hint=found.next_step)


class _Builder:
    """Builds values from a stream of events, by recursive descent."""

    def __init__(self, events: Iterator[Event], source: str) -> None:
        self._events = events
        self._source = source
        # Value, and its number of nodes: an alias counts as many, or nine lines of aliases make a billion values.
        self._anchors: dict[str, tuple[Json, int]] = {}
        self._nodes = 0
        self._path: list[str | int] = []

    def documents(self) -> list[Json]:
        found = []
        for event in self._events:
            match event:
                case StreamStartEvent() | DocumentEndEvent() | StreamEndEvent():
                    continue
                case DocumentStartEvent():
                    # Anchors hold within one document.
                    self._anchors.clear()
                case _:
                    found.append(self._value(event, depth=0))
        return [document for document in found if document is not None]

    def _value(self, event: Event, depth: int) -> Json:
        if depth > _MAX_DEPTH:
            raise self._error(
                event, f"nested deeper than {_MAX_DEPTH} levels; allowed: up to those, a job has about ten"
            )
        if isinstance(event, AliasEvent):
            return self._alias(event)
        assert isinstance(event, ScalarEvent | SequenceStartEvent | MappingStartEvent), "an event out of place"
        before = self._nodes
        self._count(event, 1)
        self._refuse_tag(event)
        value: Json
        match event:
            case ScalarEvent():
                value = self._scalar(event)
            case SequenceStartEvent():
                value = list(self._items(depth))
            case MappingStartEvent():
                value = self._mapping(event, depth)
        # After the value: an alias inside its own anchor is refused, as JSON has no cycles.
        if event.anchor:
            self._anchors[event.anchor] = (value, self._nodes - before)
        return value

    def _items(self, depth: int) -> Iterator[Json]:
        self._path.append(0)
        while not isinstance(event := next(self._events), SequenceEndEvent):
            yield self._value(event, depth + 1)
            self._path[-1] += 1  # type: ignore[operator]  # a number, whatever lies further down
        self._path.pop()

    def _mapping(self, start: Event, depth: int) -> dict[str, Json]:
        mapping: dict[str, Json] = {}
        while not isinstance(event := next(self._events), MappingEndEvent):
            # Quoted, it is a key like any other.
            if isinstance(event, ScalarEvent) and event.value == "<<" and event.style is None:
                raise self._error(
                    event, "the merge key '<<' is read by some YAML versions only", hint="write the fields out"
                )
            key = self._value(event, depth + 1)
            if not isinstance(key, str):
                raise self._error(event, f"keys must be strings, not {key!r}; quote it")
            if key in mapping:
                raise self._error(event, f"duplicate key {key!r} in one object; keep one")
            self._path.append(key)
            mapping[key] = self._value(next(self._events), depth + 1)
            self._path.pop()
        return mapping

    def _scalar(self, event: ScalarEvent) -> plain_scalars.Scalar:
        text: str = event.value
        # implicit[0]: the tag of a plain scalar is to be found out. Quoted and block scalars, and !!str, are text.
        if event.style is not None or not event.implicit[0]:
            return text
        value = plain_scalars.read_1_2(text)
        if plain_scalars.is_not_finite(text) or value in (math.inf, -math.inf):
            raise self._error(
                event,
                f"{text} is a number that JSON, and so Kubernetes, does not have",
                hint="write a finite number, or quote it if it is text",
            )
        if (both := plain_scalars.disagreement(text)) is not None:
            where = f"{render_path(tuple(self._path))}: " if self._path else ""
            message = f"{where}{text} is {both.yaml_1_1} and {both.yaml_1_2} in YAML 1.2"
            otherwise = f", or write {both.unambiguous}" if both.unambiguous else ""
            hint = f'quote it ("{text}") if it is text, as values of env are{otherwise}'
            raise self._error(event, message, hint=hint)
        return value

    def _alias(self, event: AliasEvent) -> Json:
        if event.anchor not in self._anchors:
            raise self._error(
                event,
                f"the alias *{event.anchor} has no complete anchor before it",
                hint=f"put &{event.anchor} before the value that it stands for, or write that value out",
            )
        value, nodes = self._anchors[event.anchor]
        self._count(event, nodes)
        return value

    def _count(self, event: Event, nodes: int) -> None:
        self._nodes += nodes
        if self._nodes > _MAX_NODES:
            raise self._error(
                event, f"more than {_MAX_NODES} values, aliases expanded; allowed: up to those, a job has a few dozen"
            )

    def _refuse_tag(self, event: ScalarEvent | SequenceStartEvent | MappingStartEvent) -> None:
        is_text = isinstance(event, ScalarEvent) and event.tag == "tag:yaml.org,2002:str"
        if event.tag is not None and not is_text:
            # In a tag %1B stands for an escape character.
            raise self._error(event, f"the tag {printable(event.tag)} is not supported", hint="leave it out")

    def _error(self, event: Event, message: str, *, hint: str | None = None) -> DocumentError:
        return DocumentError(f"{self._source}:{event.start_mark.line + 1}: {message}", hint=hint)
