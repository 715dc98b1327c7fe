"""A run as its output folder tells it: configuration, records, attempts, environment. Reads files, decides nothing."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert_job.foreign_text import printable
from bert_job.run_config import RunConfig
from bert_trainer.config.checks import parse_run_config
from bert_trainer.errors import InputError
from bert_trainer.output.filled_masks import read_filled_masks
from bert_trainer.output.inputs import Inputs, find_inputs
from bert_trainer.output.metrics import METRICS_FILE, Record, attempt_of, read_metrics
from bert_trainer.output.report import make_report
from bert_trainer.output.run_folder import CONFIG_FILE
from bert_trainer.system.atomic_files import write_json_atomically

ENVIRONMENT_FILE = "environment.json"
"""What the newest attempt ran on."""
_MAX_BYTES = 16 << 20
_ENDS = ("succeeded", "failed", "stopped")


@dataclass(frozen=True, slots=True)
class Attempt:
    """What the records say about one attempt, or one run of it."""

    uid: str
    number: int
    run: int
    """Of the attempt: more than 1 where a queue has suspended it and let it go on."""
    began: str
    """Stage and step of its first record that has them."""
    reached: str
    run_s: float
    cpu_s: float
    """Processor time of all ranks."""
    end: str
    """``succeeded``, ``failed``, ``stopped``, or empty: it runs, or was killed."""
    message: str


@dataclass(frozen=True, slots=True)
class Run:
    """All facts about a run."""

    folder: Path
    config: RunConfig
    records: tuple[Record, ...]
    dataset: Mapping[str, Any]
    """``dataset.json``; empty where shards were given ready."""
    environment: Mapping[str, Any]
    """``environment.json``, or what the newest checkpoint says."""
    masks: list[dict[str, Any]]
    report: Mapping[str, Any]
    """As in ``report.json``, of what there is so far."""
    attempts: tuple[Attempt, ...]
    inputs: Inputs
    last_record: str
    """When the newest record was written, UTC; empty without any."""

    @property
    def state(self) -> str:
        """``succeeded``, ``failed``, ``stopped``, or empty: the newest attempt runs, or was killed."""
        return self.attempts[-1].end if self.attempts else ""


def load_run(folder: Path, *, is_done: bool = False) -> Run:
    """Read an output folder. is_done: the newest attempt succeeds, which its records are about to say.

    Raises:
        InputError: it holds no run, or its files are not what a trainer writes.
    """
    document = _read_object(folder / CONFIG_FILE)
    if document is None:
        raise InputError(
            f"{printable(folder)}: got a folder without {CONFIG_FILE}; allowed: the output folder of a run",
            hint="name a folder that bert-operator local or bert-train has written to",
        )
    config = parse_run_config(document, source=printable(folder / CONFIG_FILE))
    # The folder may have been moved or mounted elsewhere since.
    inside = Path(config.dataset.folder)
    if inside.is_relative_to(config.output_folder):
        inside = folder / inside.relative_to(config.output_folder)
        config = config.model_copy(update={"dataset": config.dataset.model_copy(update={"folder": str(inside)})})
    dataset = _read_object(inside / "dataset.json") or {}
    try:
        records = tuple(record for record in _records(folder) if isinstance(record.get("event"), str))
        report = make_report(config, list(records), dataset, ranks=config.world.ranks)
        attempts = tuple(_list_attempts(records, is_done=is_done))
    except (ArithmeticError, AttributeError, LookupError, OSError, RecursionError, TypeError, ValueError) as error:
        raise InputError(
            f"{printable(folder / METRICS_FILE)}: got records that no trainer writes ({type(error).__name__}: {error})",
            hint="restore the file, or move it away: what is reported then has no curves",
        ) from error
    return Run(
        folder=folder,
        config=config,
        records=records,
        dataset=dataset,
        environment=_read_object(folder / ENVIRONMENT_FILE) or _environment_of_checkpoint(folder),
        masks=read_filled_masks(folder),
        report=report,
        attempts=attempts,
        inputs=find_inputs(config, folder, dataset),
        last_record=_render_time(folder / METRICS_FILE),
    )


def _records(folder: Path) -> Iterable[Record]:
    path = folder / METRICS_FILE
    # Opening a pipe waits for somebody to write into it.
    if path.exists() and not path.is_file():
        raise OSError("no regular file")
    return read_metrics(folder)


def write_environment(folder: Path, environment: Mapping[str, Any]) -> None:
    """Keep what an attempt runs on, beside what its predecessors have written."""
    write_json_atomically(folder / ENVIRONMENT_FILE, dict(environment))


def _list_attempts(records: Iterable[Record], *, is_done: bool) -> list[Attempt]:
    by_attempt: dict[tuple[str, int, int], list[Record]] = {}
    for record in records:
        by_attempt.setdefault(attempt_of(record), []).append(record)
    attempts = []
    for number, ((uid, attempt, run), found) in enumerate(by_attempt.items(), start=1):
        ended = next((record for record in reversed(found) if record["event"] in _ENDS), {})
        end = str(ended.get("event") or "")
        if is_done and number == len(by_attempt):
            end = "succeeded"
        placed = [record for record in found if record.get("stage") is not None]
        attempts.append(
            Attempt(
                uid=uid,
                number=attempt,
                run=run,
                began=_place(placed[:1]),
                reached=_place(placed[-1:]),
                run_s=max(float(record.get("run_s") or 0) for record in found),
                cpu_s=max(float(record.get("cpu_s") or 0) for record in found),
                end=end,
                message=_why(found, ended) if end != "succeeded" else _why(found, {}),
            )
        )
    return attempts


def _place(records: list[Record]) -> str:
    if not records:
        return ""
    step = records[0].get("step")
    return f"{records[0]['stage']}" + ("" if step is None else f", step {step}")


def _why(found: list[Record], ended: Mapping[str, Any]) -> str:
    resumed = next((str(it["message"]) for it in found if it["event"] == "resumed" and it.get("message")), "")
    reason = " ".join(str(ended[key]) for key in ("reason", "message") if ended.get(key))
    return ". ".join(part for part in (resumed, reason) if part)


def _environment_of_checkpoint(folder: Path) -> dict[str, Any]:
    manifests = sorted(folder.glob("checkpoints/*/manifest.json"))
    found = (_read_object(path) or {} for path in reversed(manifests[-4:]))
    return next((it["environment"] for it in found if isinstance(it.get("environment"), dict)), {})


def _read_object(path: Path) -> dict[str, Any] | None:
    """Return a JSON object; None where there is none that can be read."""
    try:
        if not path.is_file() or path.stat().st_size > _MAX_BYTES:
            return None
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _render_time(path: Path) -> str:
    try:
        return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(path.stat().st_mtime))
    except OSError:
        return ""
