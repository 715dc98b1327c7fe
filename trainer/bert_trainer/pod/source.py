"""Whose records count: those of the job and the attempt that this pod belongs to. Reads the run configuration.

A program may print the log of another job, and programs that are not ours may use our records in part.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

_PROGRAMS = ("bert-train", "bert-data")
_MODULE = "bert_trainer"


@dataclass(frozen=True, slots=True)
class Source:
    """Who writes the records of this pod."""

    job: str | None = None
    """Uid; None: not known, as where no operator has made the pod."""
    attempt: str = "1"
    is_ours: bool = True
    """The program is the trainer: a run of it that ends well says so."""

    def wrote(self, fields: Mapping[str, str]) -> bool:
        """Tell whether a record is this attempt's."""
        if self.job is None:
            return fields.get("attempt", self.attempt) == self.attempt
        return (fields.get("job"), fields.get("attempt")) == (self.job, self.attempt)


def read_source(program: Sequence[str], environment: Mapping[str, str]) -> Source:
    """Return what is known of who writes records here."""
    return Source(
        job=_read_uid(environment.get("BERT_RUN_CONFIG")),
        attempt=environment.get("BERT_ATTEMPT", "1"),
        is_ours=_is_ours(program),
    )


def _is_ours(program: Sequence[str]) -> bool:
    if PurePath(program[0]).name in _PROGRAMS:
        return True
    return "-m" in program[:-1] and program[program.index("-m") + 1].partition(".")[0] == _MODULE


def _read_uid(run_config: str | None) -> str | None:
    """Return the job's uid, None where there is none to be read: the program itself says what is wrong with it."""
    if run_config is None:
        return None
    try:
        uid = json.loads(Path(run_config).read_bytes())["job"]["uid"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return uid if isinstance(uid, str) else None
