"""``report.html``: everything about a run on one page that needs no network and no script.

A function of the files in the output folder alone, like ``report.json``. Here is what the page says; how it looks is
in ``templates/report.html``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bert_job.foreign_text import printable
from bert_job.model import ARCHITECTURES
from bert_job.run_stages import FinetuneStage, PretrainStage
from bert_trainer.errors import InputError
from bert_trainer.output.metrics import METRICS_FILE, Record
from bert_trainer.output.pages import Table, duration, form, render
from bert_trainer.output.report import list_by_step
from bert_trainer.output.report_charts import plan_charts
from bert_trainer.output.run_facts import Attempt, Run, load_run
from bert_trainer.system.atomic_files import write_atomically

PAGE_FILE = "report.html"
_STATES = {"succeeded": "Succeeded", "failed": "Failed", "stopped": "Stopped"}
_MAX_EVALUATIONS = 200


def write_page(folder: Path, *, is_done: bool = False) -> Path:
    """Write the page into an output folder and return its path. is_done: as ``run_facts.load_run``.

    Raises:
        InputError: the folder holds no run, or what no trainer writes.
    """
    run = load_run(folder, is_done=is_done)
    try:
        page = render_report(run)
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise InputError(
            f"{printable(folder / METRICS_FILE)}: got records that no trainer writes ({type(error).__name__}: {error})",
            hint="restore the file, or move it away: what is reported then has no curves",
        ) from error
    write_atomically(folder / PAGE_FILE, page)
    return folder / PAGE_FILE


def render_report(run: Run) -> bytes:
    """Return the page."""
    config = run.config
    held_out = run.report.get("heldOut") or {}
    return render(
        "report.html",
        run=run,
        title=config.job.name if config.job.namespace == "default" else f"{config.job.namespace}/{config.job.name}",
        state=_STATES.get(run.state, "Not finished"),
        sentence=_sentence(run),
        tiles=_tiles(run, held_out),
        charts=plan_charts(run),
        stages=_stages(run),
        held_out=_held_out(held_out),
        results=[found for stage in run.report["stages"] if (found := _stage_results(stage))],
        quoted=_word,
        times=_times(run),
        attempts=_attempts(run),
        lacks_attempts=_first_attempt(run) > 1,
        data=_data(run),
        lengths=_lengths(run),
        environment=_environment(run),
        configuration=json.dumps(config.model_dump(mode="json", exclude_none=True), indent=2, ensure_ascii=False),
    )


def _tiles(run: Run, held_out: Mapping[str, Any]) -> list[tuple[str, str]]:
    trained = [stage for stage in run.report["stages"] if stage["steps"]]
    return [
        ("masked-LM accuracy, held out", form(held_out.get("maskedLmAccuracy"), ".1%")),
        ("most frequent token alone", form(held_out.get("unigramBaseline"), ".1%")),
        *((f"{it['name']}: {it['result']['metric']}", form(_best(it), ".3f")) for it in trained if it.get("result")),
        ("last loss", form(trained[-1]["lossLast"], ".3f") if trained else ""),
        ("optimizer steps", form(sum(stage["steps"] for stage in trained) or None, ",.0f")),
        ("real tokens per second", form(_throughput(trained), ",.0f")),
        ("time", duration(run.report["seconds"])),
        ("attempts", form(run.report["attempts"] or None, "d")),
    ]


def _best(stage: Mapping[str, Any]) -> Any:
    return stage["result"]["metrics"].get(stage["result"]["metric"])


def _throughput(trained: list[Mapping[str, Any]]) -> float | None:
    seconds = sum(stage["seconds"] for stage in trained)
    tokens = sum((stage["realTokensPerSecond"] or 0.0) * stage["seconds"] for stage in trained)
    return tokens / seconds if seconds and tokens else None


def _sentence(run: Run) -> str:
    model, world = run.config.model.model_dump(), run.config.world
    size = ""
    if "hidden_size" in model:
        layers, hidden = model["num_hidden_layers"], model["hidden_size"]
        size = f"{ARCHITECTURES[model['architecture']]} of {layers} layers x {hidden}, "
    kinds = ", ".join(stage.name for stage in run.config.stages)
    ranks = f"{world.ranks} rank{'s' if world.ranks > 1 else ''}"
    return f"{size}{kinds}; {ranks}, {run.config.precision}, inputs {run.inputs.sha256[:12]}"


def _stages(run: Run) -> Table:
    rows = [
        (
            str(stage["name"]),
            str(stage["kind"]),
            form(stage["sequenceLength"], "d"),
            form(stage["globalBatchSize"], ",d"),
            form(stage["steps"], ",d"),
            form(stage["lossFirst"], ".3f"),
            form(stage["lossLast"], ".3f"),
            form(stage["samplesPerSecond"], ",.1f"),
            form(stage["realTokensPerSecond"], ",.0f"),
            duration(stage["seconds"]),
        )
        for stage in run.report["stages"]
    ]
    header = ("stage", "kind", "length", "batch", "steps", "first loss", "last", "sequences/s", "real tokens/s", "time")
    return Table(header, rows, numbers=range(2, 10))


def _held_out(held_out: Mapping[str, Any]) -> Table | None:
    if held_out.get("maskedLmAccuracy") is None:
        return None
    names = (("masked-LM accuracy", "maskedLmAccuracy"), ("next-sentence accuracy", "nextSentenceAccuracy"))
    rows = [(name, form(held_out.get(f"{key}Before"), ".1%"), form(held_out.get(key), ".1%")) for name, key in names]
    return Table(("", "untrained", "trained"), [row for row in rows if row[2]], numbers=(1, 2))


def _stage_results(stage: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return what is known of how well a stage does; None where nothing is."""
    result, found = stage.get("result"), stage.get("evaluations") or []
    if not (result or found or stage.get("verdict") or (stage.get("target") or {}).get("message")):
        return None
    metrics = result and Table(
        ("metric", "best run", "majority baseline"),
        [
            (name, form(value, ".4f"), form(result["majority"].get(name), ".4f"))
            for name, value in result["metrics"].items()
        ],
        numbers=(1, 2),
    )
    evaluations = found and Table(
        ("step", "masked-LM accuracy", "next-sentence accuracy", "more frequent answer alone", "masked-LM loss"),
        [
            (
                form(it["step"], ",d"),
                form(it["maskedLmAccuracy"], ".2%"),
                form(it["nextSentenceAccuracy"], ".2%"),
                form(it.get("nextSentenceBaseline"), ".2%"),
                form(it["maskedLmLoss"], ".4f"),
            )
            for it in found[-_MAX_EVALUATIONS:]
        ],
        numbers=range(5),
    )
    return {"stage": stage, "metrics": metrics, "evaluations": evaluations}


def _word(token: str) -> str:
    """Return a token; quoted unless it is a word, as a full stop among others would not be seen."""
    return token if token.isalnum() else f"\u201c{token}\u201d"


def _times(run: Run) -> Table:
    """Return what steps waited for: means over the intervals of a stage, weighted by their seconds."""
    rows = []
    for stage in run.config.stages:
        if not isinstance(stage, PretrainStage | FinetuneStage):
            continue
        found = list_by_step(list(run.records), stage.name)
        saves = [it for it in run.records if (it["event"], it.get("stage")) == ("checkpoint", stage.name)]
        if found:
            rows.append(
                (
                    stage.name,
                    form(_mean(found, "data_wait_share"), ".1%"),
                    _milliseconds(_mean(found, "reduction_s")),
                    _milliseconds(_mean(found, "reduction_exposed_s")),
                    form(_most(found, "token_imbalance"), ".2f"),
                    form(_scaled(_most(found, "memory_bytes"), 1e-9), ".2f"),
                    f"{len(saves)}" + (f" x {_most(saves, 'seconds'):.2f} s at most" if saves else ""),
                    form(found[-1].get("skipped_steps"), "d"),
                )
            )
    header = (
        *("stage", "waiting for data", "reduction, ms per step", "of it not hidden", "token imbalance, worst"),
        *("memory of a rank, GB", "checkpoints", "steps skipped"),
    )
    kept = [at for at in range(len(header)) if any(row[at] for row in rows)]
    return Table([header[at] for at in kept], [[row[at] for at in kept] for row in rows], numbers=range(1, len(kept)))


def _mean(records: list[Record], key: str) -> float | None:
    found = [(float(it[key] or 0), float(it.get("interval_s") or 0)) for it in records if it.get(key) is not None]
    seconds = sum(weight for _, weight in found)
    return sum(value * weight for value, weight in found) / seconds if seconds else None


def _most(records: list[Record], key: str) -> float | None:
    return max((float(it[key] or 0) for it in records if it.get(key) is not None), default=None)


def _scaled(value: float | None, scale: float) -> float | None:
    return None if value is None else value * scale


def _milliseconds(seconds: float | None) -> str:
    return form(_scaled(seconds, 1000.0), ",.1f")


def _attempts(run: Run) -> Table:
    starts = list(dict.fromkeys(attempt.uid for attempt in run.attempts))

    def row(attempt: Attempt) -> tuple[str, ...]:
        number = f"{attempt.number}" + (f", run {attempt.run}" if attempt.run > 1 else "")
        # Without a cluster every start counts from 1 again.
        number += f" of start {starts.index(attempt.uid) + 1}" if len(starts) > 1 else ""
        end = attempt.end or ("running, or killed" if attempt is run.attempts[-1] else "killed, or lost")
        times = (duration(attempt.run_s), duration(attempt.cpu_s))
        return (number, attempt.began, attempt.reached, *times, end, attempt.message)

    header = ("attempt", "from", "to", "time", "processor time", "end", "")
    return Table(header, [row(attempt) for attempt in run.attempts], numbers=(3, 4))


def _first_attempt(run: Run) -> int:
    """Return the number of the first attempt with a record: the highest of those of all starts."""
    first: dict[str, int] = {}
    for attempt in run.attempts:
        first[attempt.uid] = min(attempt.number, first.get(attempt.uid, attempt.number))
    return max(first.values(), default=1)


def _data(run: Run) -> list[tuple[str, str]]:
    dataset, counts = run.dataset, run.dataset.get("counts") or {}
    return [
        ("text", str(dataset.get("source") or "")),
        ("documents read", form(counts.get("documents_read"), ",d")),
        ("near-duplicates dropped", form(counts.get("duplicates_dropped"), ",d")),
        ("documents to train on", form(counts.get("documents_training"), ",d")),
        ("documents held out", form(counts.get("documents_held_out"), ",d")),
        ("tokens to train on", form(counts.get("tokens_training"), ",d")),
        ("tokens held out", form(counts.get("tokens_held_out"), ",d")),
        ("vocabulary", _with_unit(form(dataset.get("vocabulary_entries"), ",d"), "entries")),
        ("unknown tokens", form(dataset.get("unknown_share"), ".3%")),
        ("prepared in", duration(dataset.get("seconds"))),
    ]


def _lengths(run: Run) -> Table:
    rows = [
        (
            form(it.get("sequence_length"), "d"),
            form(it.get("max_predictions"), "d"),
            form(it.get("samples_training"), ",d"),
            form(it.get("samples_held_out"), ",d"),
            f"{len(it.get('training') or ()) + len(it.get('held_out') or ())}",
        )
        for it in run.dataset.get("lengths") or []
        if isinstance(it, dict)
    ]
    header = ("sequence length", "predictions", "training samples", "held out", "files")
    return Table(header, rows, numbers=range(5))


def _with_unit(value: str, unit: str) -> str:
    return f"{value} {unit}" if value else ""


def _environment(run: Run) -> list[tuple[str, str]]:
    environment = dict(run.environment)
    versions = environment.pop("versions", None)
    pairs = [(str(name).replace("_", " "), str(value)) for name, value in environment.items() if value != "none"]
    return pairs + ([(str(name), str(value)) for name, value in versions.items()] if isinstance(versions, dict) else [])
