"""Progress records: one logfmt line each on a run's standard output, and what reads them.

``bert-trainer/1 event=progress job=... attempt=1 stage=phase1 step=120 steps=700 loss=6.104 ...``

Whoever prints them is the trainer; the operator turns them into status, displays into bars and sentences. The prefix
carries the version of this contract; job and attempt tell a line of this attempt from one of its predecessor, and
``attempt_run`` a line of a later run of the attempt, whose pods a queue has suspended and started again. Values with
spaces, quotes or equals signs are quoted as JSON strings. A number that is not finite is left out: its absence says so.

A line that is read comes from a process that may be dying, or hostile, so nothing here raises: what is not a record of
this version, or could not be written into a status, is None.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

PREFIX = "bert-trainer/1 "
ATTEMPT_VARIABLE = "BERT_ATTEMPT"
"""Number of the attempt, set by whoever starts a rank and reads its records; people are shown something else."""

_MAX_LINE = 8192
_MAX_FIELDS = 64
_LARGEST = 10**15  # steps or seconds: more than any run has, and still a number that every JSON parser reads exactly
_NUMBER = re.compile(r"[-+0-9.eE]+")
_WORD = re.compile(r'([A-Za-z_][A-Za-z0-9_]*)=("(?:[^"\\]|\\.)*"|[^\s"=]*)(?: |$)')


Value = str | int | float | None


def format_line(fields: Mapping[str, Value]) -> str:
    """Render one record; keys with the value None or a non-finite number are left out."""
    kept = {key: value for key, value in fields.items() if value is not None and not _is_infinite(value)}
    return PREFIX + " ".join(f"{key}={_quote(value)}" for key, value in kept.items())


def _is_infinite(value: Value) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def _quote(value: str | int | float) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    # File names may hold bytes that are not UTF-8: Python keeps those as lone surrogates, which cannot be encoded.
    text = str(value).encode(errors="replace").decode()
    plain = text and text.isprintable() and not any(character in text for character in ' "=')
    return text if plain else json.dumps(text)


@dataclass(frozen=True, slots=True)
class ProgressRecord:
    """One record; ``job`` and ``attempt`` distinguish this attempt's lines from those of earlier ones."""

    event: str
    job: str | None
    attempt: int | None
    fields: Mapping[str, str]
    """Everything else, as text."""

    @property
    def stage(self) -> str | None:
        """Name of its stage."""
        return self.fields.get("stage")

    def text(self, key: str) -> str | None:
        """Return a field as text."""
        return self.fields.get(key)

    def number(self, key: str) -> float | None:
        """Return a field as a finite number, None if it is absent or no number."""
        text = self.fields.get(key, "")
        # Python reads more than the trainer writes: 1_0, digits of any script, and white space around them.
        if not _NUMBER.fullmatch(text):
            return None
        try:
            value = float(text)
        except ValueError:
            return None
        return value if math.isfinite(value) else None

    def count(self, key: str) -> int | None:
        """Return a field as an integer, None if it is absent or no integer."""
        return _integer(self.fields.get(key))


def parse_progress_line(line: str) -> ProgressRecord | None:
    """Return the record in a line; None for any other line, however similar.

    Lines longer than 8,192 characters and records with more than 64 fields are rejected, as are records whose steps or
    seconds are negative or absurdly large, or whose text is not valid Unicode.
    """
    # The length first: the expression below must not run over megabytes of a hostile line.
    line = line.rstrip("\r\n")
    if not line.startswith(PREFIX) or len(line) > _MAX_LINE:
        return None
    fields: dict[str, str] = {}
    position = len(PREFIX)
    while position < len(line):
        match = _WORD.match(line, position)
        # A repeated key has no meaning that two readers would agree on.
        if match is None or match[1] in fields or len(fields) == _MAX_FIELDS:
            return None
        value = _unquote(match[2])
        if value is None:
            return None
        fields[match[1]] = value
        position = match.end()
    event = fields.pop("event", None)
    if not event:
        return None
    job, attempt = fields.pop("job", None), _integer(fields.pop("attempt", None))
    record = ProgressRecord(event, job, attempt, MappingProxyType(fields))
    return record if _is_usable(record) else None


def starts_like_record(line: str) -> bool:
    """Return whether a line starts like a record; it may be malformed."""
    return line.startswith(PREFIX)


def _is_usable(record: ProgressRecord) -> bool:
    figures = (record.count("step"), record.count("steps"), record.number("remaining_s"))
    return all(0 <= figure <= _LARGEST for figure in figures if figure is not None) and (
        record.stage is None or record.stage.isprintable()
    )


def _unquote(word: str) -> str | None:
    if not word.startswith('"'):
        return word
    try:
        value = json.loads(word)
    except ValueError:
        return None
    return value if isinstance(value, str) and _is_text(value) else None


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:  # half of a surrogate pair
        return False
    return True


def _integer(text: str | None) -> int | None:
    # 18 digits are below 2**63; of more than 4,300 int() makes a ValueError.
    if text is None or not re.fullmatch(r"-?[0-9]{1,18}", text):
        return None
    return int(text)
