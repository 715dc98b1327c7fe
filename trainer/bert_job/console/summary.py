"""The summary of a local job, from the trainer's report.json in the output folder.

Every figure may be missing: the trainer may be older, or the job has no such stage.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from bert_job.durations import render_duration
from bert_job.foreign_text import visible

_MAX_REPORT_BYTES = 4_194_304
_RUN = (("seed", "bestSeed"), ("rank", "bestRank"), ("epoch", "bestEpoch"))

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
    return _visible(report) if isinstance(report, dict) else None


def _visible(value: Any) -> Any:
    """Return a value of JSON whose texts show all that they hold: whoever may write there writes the report."""
    if isinstance(value, dict):
        return {visible(key): _visible(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_visible(item) for item in value]
    return visible(value) if isinstance(value, str) else value


def print_summary(
    console: Console, report: Report | None, folder: Path, next_steps: Sequence[tuple[str, str]] = ()
) -> None:
    """Print the results and their paths. next_steps: what to do now and how, printed last."""
    parts: list[RenderableType] = [Text()]
    if report is not None:
        parts += [_stages(report), *_results(report)]
    parts += [Text(f"{label:<12} {shown(Path(path))}") for label, path in _paths(report or {}, folder)]
    parts += _filled_masks(report or {})
    if next_steps:
        parts += [Text("\nWhat to do next:"), *(Text(f"  {label:<15} {how}") for label, how in next_steps)]
    console.print(Group(*parts), soft_wrap=True)


def _word(token: str) -> str:
    """Return a token; quoted unless it is a word, as a full stop among others would not be seen."""
    return token if token.isalnum() else f'"{token}"'


def shown(path: Path) -> str:
    """Return a path as somebody in the current folder would type it."""
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def _filled_masks(report: Report) -> Iterator[Text]:
    found = report.get("filledMasks")
    masks = [mask for mask in found if isinstance(mask, dict)] if isinstance(found, list) else []
    if masks:
        yield Text("\nOne word hidden in sentences that it was not trained on, and what the model puts there:")
    for mask in masks:
        before, after = (f"{mask.get(key) or ''}" for key in ("before", "after"))
        yield Text(f"  {before} " if before else "  ").append("[MASK]", style="bold").append(f" {after}")
        guesses = mask.get("guesses")
        words = [it for it in guesses if isinstance(it, dict)] if isinstance(guesses, list) else []
        shown = ", ".join(f"{_word(str(it.get('token')))} {_form(it, 'probability', '.0%')}" for it in words)
        yield Text(f"    {shown}; the true word: ").append(str(mask.get("truth", "")), style="bold")


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
        yield from _finetuning(stage)
    held_out = report.get("heldOut")
    if isinstance(held_out, dict):
        accuracy, before = _number(held_out, "maskedLmAccuracy"), _number(held_out, "maskedLmAccuracyBefore")
        baseline = _number(held_out, "unigramBaseline")
        if accuracy is not None:
            line = Text("Masked-LM accuracy on held-out documents: ").append(f"{accuracy:.1%}", style="bold")
            line.append(f" (untrained {before:.1%})" if before is not None else "")
            line.append(f"; most frequent token alone {baseline:.1%}" if baseline is not None else "")
            yield line
        yield from _verdict(held_out)
        pairs = _number(held_out, "nextSentenceAccuracy")
        if pairs is not None:
            majority = _number(held_out, "nextSentenceBaseline")
            alone = f"; more frequent answer alone {majority:.1%}" if majority is not None else ""
            yield Text(f"Next-sentence accuracy: {pairs:.1%}{alone}")
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
    yield from _verdict(stage)


def _verdict(found: Report) -> Iterator[Text]:
    """Yield what the trainer says of a model that does no better than the most frequent token."""
    if isinstance(verdict := found.get("verdict"), str):
        yield Text(f"{verdict[:1].upper()}{verdict[1:]}", style="yellow")


def _finetuning(stage: Report) -> Iterator[Text]:
    """Yield what the best run of a finetune stage reached, how far all of them are apart, and the baseline."""
    result = stage.get("result")
    if not isinstance(result, dict) or not (figures := _metrics(result, "metrics")):
        return
    line = Text(f"{stage.get('name', '')}: ").append(figures[0], style="bold")
    line.append("".join(f", {figure}" for figure in figures[1:]))
    kept = ", ".join(f"{label} {_form(result, key, '.10g')}" for label, key in _RUN if _number(result, key) is not None)
    about = "; ".join(part for part in (_spread(result), kept) if part)
    line.append(f" ({about})" if about else "")
    baseline = _metrics(result, "majority")
    line.append(f"; majority: {', '.join(baseline)}" if baseline else "")
    yield line


def _spread(result: Mapping[str, Any]) -> str:
    """Return how far several runs are apart; empty for one."""
    runs, mean, std = (_number(result, key) for key in ("runs", "mean", "std"))
    if runs is None or runs <= 1:
        return ""
    spread = "" if mean is None or std is None else f": mean {mean:.3f}, standard deviation {std:.3f}"
    return f"best of {runs:.0f} runs{spread}"


def _metrics(result: Mapping[str, Any], key: str) -> list[str]:
    """Return the metrics of a result as words, the deciding one first."""
    found, first = result.get(key), result.get("metric")
    if not isinstance(found, dict):
        return []
    names = sorted((name for name in found if _number(found, name) is not None), key=lambda name: name != first)
    return [f"{name} {_form(found, name, '.3f')}" for name in names]


def _paths(report: Report, folder: Path) -> Iterator[tuple[str, str]]:
    yield "output", str(folder)
    exports = report.get("exports")
    models = list(exports.values()) if isinstance(exports, dict) else []
    for label, path in (("checkpoint", report.get("checkpoint")), *(("model", path) for path in models)):
        if isinstance(path, str) and path:
            yield label, path
    stages = [stage.get("name") for stage in report.get("stages") or ()]
    predictions = [("predictions", f"finetune/{name}/predictions") for name in stages]
    for label, name in (*predictions, ("loss curve", "loss.png"), ("report", "report.html")):
        if (folder / name).exists():
            yield label, str(folder / name)


def _number(section: Mapping[str, Any], key: str) -> float | None:
    value = section.get(key)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _form(section: Mapping[str, Any], key: str, form: str) -> str:
    value = _number(section, key)
    return "" if value is None else format(value, form)
