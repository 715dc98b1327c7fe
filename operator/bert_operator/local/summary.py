"""The summary of a local job, from the trainer's report.json in the output folder.

Every figure may be missing: the trainer may be older, or the job has no such stage.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from bert_operator.timestamps import render_duration

_MAX_REPORT_BYTES = 4_194_304

Report = Mapping[str, Any]


def read_report(folder: Path) -> Report | None:
    """Return the report in an output folder, None if there is none that can be read."""
    path = folder / "report.json"
    try:
        if path.stat().st_size > _MAX_REPORT_BYTES:
            return None
        report = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return report if isinstance(report, dict) else None


def print_summary(console: Console, report: Report | None, folder: Path) -> None:
    """Print the results and their paths."""
    parts: list[RenderableType] = [Text()]
    if report is not None:
        parts += [_stages(report), *_results(report)]
    parts += [Text(f"{label:<12} {path}") for label, path in _paths(report or {}, folder)]
    console.print(Group(*parts), soft_wrap=True)


def _stages(report: Report) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("stage")
    for name in ("steps", "loss first", "last", "sequences/s", "real tokens/s", "time"):
        table.add_column(name, justify="right")
    for stage in report.get("stages") or ():
        seconds = _number(stage, "seconds")
        table.add_row(
            str(stage.get("name", "")),
            _form(stage, "steps", ",.0f"),
            _form(stage, "lossFirst", ".3f"),
            _form(stage, "lossLast", ".3f"),
            _form(stage, "samplesPerSecond", ",.1f"),
            _form(stage, "realTokensPerSecond", ",.0f"),
            "" if seconds is None else render_duration(seconds),
        )
    return table


def _results(report: Report) -> Iterator[Text]:
    for stage in report.get("stages") or ():
        yield from _evaluations(stage)
    held_out = report.get("heldOut")
    if isinstance(held_out, dict):
        accuracy, before = _number(held_out, "maskedLmAccuracy"), _number(held_out, "maskedLmAccuracyBefore")
        baseline = _number(held_out, "unigramBaseline")
        if accuracy is not None:
            line = Text("Masked-LM accuracy on held-out documents: ").append(f"{accuracy:.1%}", style="bold")
            line.append(f" (untrained {before:.1%})" if before is not None else "")
            line.append(f"; most frequent token alone {baseline:.1%}" if baseline is not None else "")
            yield line
        pairs = _number(held_out, "nextSentenceAccuracy")
        if pairs is not None:
            yield Text(f"Next-sentence accuracy: {pairs:.1%}")
    seconds, cpu_seconds, ranks = (_number(report, key) for key in ("seconds", "cpuSeconds", "ranks"))
    if seconds is not None:
        line = Text(f"{render_duration(seconds)}")
        line.append(f" with {ranks:.0f} rank{'s' if ranks > 1 else ''}" if ranks else "")
        line.append(f", {render_duration(cpu_seconds)} of processor time" if cpu_seconds is not None else "")
        yield line


def _evaluations(stage: Report) -> Iterator[Text]:
    """Yield the last evaluation of a stage while it trained, and what became of its target."""
    evaluations, target = stage.get("evaluations"), stage.get("target")
    last = evaluations[-1] if isinstance(evaluations, list) and evaluations else None
    if not isinstance(last, dict) or (accuracy := _number(last, "maskedLmAccuracy")) is None:
        return
    line = Text(f"{stage.get('name', '')}: masked-LM accuracy ").append(f"{accuracy:.1%}", style="bold")
    line.append(f" at step {_form(last, 'step', ',.0f')}")
    if isinstance(target, dict) and isinstance(target.get("message"), str):
        line.append(f"; {target['message']}")
    yield line


def _paths(report: Report, folder: Path) -> Iterator[tuple[str, str]]:
    yield "output", str(folder)
    exports = report.get("exports")
    # Releases up to 0.1 report the last one alone.
    models = list(exports.values()) if isinstance(exports, dict) else [report.get("export")]
    for label, path in (("checkpoint", report.get("checkpoint")), *(("model", path) for path in models)):
        if isinstance(path, str) and path:
            yield label, path
    curve = folder / "loss.png"
    if curve.exists():
        yield "loss curve", str(curve)


def _number(section: Mapping[str, Any], key: str) -> float | None:
    value = section.get(key)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _form(section: Mapping[str, Any], key: str, form: str) -> str:
    value = _number(section, key)
    return "" if value is None else format(value, form)
