"""``report.html``: everything about a run on one page that needs no network and no script.

A function of the files in the output folder alone, like ``report.json``. Every text in it comes from somebody else and
goes through ``markup``, which escapes it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from bert_job.run_stages import FinetuneStage, PretrainStage
from bert_trainer.errors import InputError
from bert_trainer.output.markup import Markup, facts, join, render_page, section, table, tag
from bert_trainer.output.metrics import METRICS_FILE, Record
from bert_trainer.output.page_style import STYLE
from bert_trainer.output.report import list_by_step
from bert_trainer.output.report_charts import render_charts
from bert_trainer.output.run_facts import Attempt, Run, load_run
from bert_trainer.system.atomic_files import write_atomically
from bert_trainer.system.files import shown

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
            f"{shown(folder / METRICS_FILE)}: got records that no trainer writes ({type(error).__name__}: {error})",
            hint="restore the file, or move it away: what is reported then has no curves",
        ) from error
    write_atomically(folder / PAGE_FILE, page)
    return folder / PAGE_FILE


def render_report(run: Run) -> bytes:
    """Return the page."""
    config = run.config
    title = config.job.name if config.job.namespace == "default" else f"{config.job.namespace}/{config.job.name}"
    return render_page(
        f"{title}: report",
        STYLE,
        _head(title, run),
        section("Curves", *render_charts(run)),
        section("Stages", _stages(run)),
        section("Evaluation", *_evaluation(run)),
        section("Where the time went", _times(run)),
        section("Attempts", _attempts(run)),
        section("Data", _data(run)),
        section("Environment", _environment(run)),
        section("Inputs", *_inputs(run)),
        section("Configuration", *_configuration(run)),
        tag("footer", tag("p", f"Last record {run.last_record}. {run.folder.absolute()}", class_="note")),
    )


def _head(title: str, run: Run) -> Markup:
    state = _STATES.get(run.state, "Not finished")
    kind = run.state or "open"
    why = run.attempts[-1].message if run.state in ("failed", "stopped") else ""
    held_out = run.report.get("heldOut") or {}
    trained = [stage for stage in run.report["stages"] if stage["steps"]]
    tiles = [
        ("masked-LM accuracy, held out", form(held_out.get("maskedLmAccuracy"), ".1%")),
        ("most frequent token alone", form(held_out.get("unigramBaseline"), ".1%")),
        *((f"{it['name']}: {it['result']['metric']}", form(_best(it), ".3f")) for it in trained if it.get("result")),
        ("last loss", form(trained[-1]["lossLast"], ".3f") if trained else ""),
        ("optimizer steps", form(sum(stage["steps"] for stage in trained) or None, ",.0f")),
        ("real tokens per second", form(_throughput(trained), ",.0f")),
        ("time", duration(run.report["seconds"])),
        ("attempts", form(run.report["attempts"] or None, "d")),
    ]
    return tag(
        "header",
        tag("span", state, class_=f"state {kind}"),
        tag("h1", title),
        tag("p", _sentence(run)),
        tag("p", why) if why else "",
        tag("div", *(tag("div", tag("b", value), tag("span", label), class_="tile") for label, value in tiles if value),
            class_="tiles"),
    )  # fmt: skip


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
        size = f"{model['architecture'].replace('bert', 'BERT')} of {layers} layers x {hidden}, "
    kinds = ", ".join(stage.name for stage in run.config.stages)
    ranks = f"{world.ranks} rank{'s' if world.ranks > 1 else ''}"
    return f"{size}{kinds}; {ranks}, {run.config.precision}, inputs {run.inputs.sha256[:12]}"


def _stages(run: Run) -> Markup:
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
    return table(header, rows, numbers=range(2, 10)) if rows else Markup()


def _evaluation(run: Run) -> list[Markup]:
    parts = []
    held_out = run.report.get("heldOut") or {}
    if held_out.get("maskedLmAccuracy") is not None:
        names = (("masked-LM accuracy", "maskedLmAccuracy"), ("next-sentence accuracy", "nextSentenceAccuracy"))
        rows = [
            (name, form(held_out.get(f"{key}Before"), ".1%"), form(held_out.get(key), ".1%")) for name, key in names
        ]
        baseline, samples = form(held_out.get("unigramBaseline"), ".1%"), form(held_out.get("samples"), ",d")
        note = f"On {samples} held-out samples. Always naming the most frequent token gives {baseline}."
        if pairs := form(held_out.get("nextSentenceBaseline"), ".1%"):
            note += f" The more frequent answer alone is right for {pairs} of the sentence pairs."
        loss = form(held_out.get("maskedLmLoss"), ".3f")
        parts += [
            table(("", "untrained", "trained"), [row for row in rows if row[2]], numbers=(1, 2)),
            tag("p", note + (f" Masked-LM loss {loss} nats." if loss else ""), class_="note"),
            *_verdict(held_out),
        ]
    parts += [part for stage in run.report["stages"] for part in _stage_results(stage)]
    return [*parts, *_masks(run)]


def _stage_results(stage: Mapping[str, Any]) -> Iterable[Markup]:
    result = stage.get("result")
    if result:
        yield tag("h3", f"{stage['name']}: {result['task']}")
        rows = [
            (name, form(value, ".4f"), form(result["majority"].get(name), ".4f"))
            for name, value in result["metrics"].items()
        ]
        yield table(("metric", "best run", "majority baseline"), rows, numbers=(1, 2))
        if result.get("runs"):
            mean, std = form(result["mean"], ".4f"), form(result["std"], ".4f")
            yield tag("p", f"{result['runs']} runs: mean {mean}, standard deviation {std}", class_="note")
    found = stage.get("evaluations") or []
    if found:
        figures = [
            (
                form(it["step"], ",d"),
                form(it["maskedLmAccuracy"], ".2%"),
                form(it["nextSentenceAccuracy"], ".2%"),
                form(it.get("nextSentenceBaseline"), ".2%"),
                form(it["maskedLmLoss"], ".4f"),
            )
            for it in found[-_MAX_EVALUATIONS:]
        ]
        yield tag("h3", f"{stage['name']}: while it trained")
        header = (
            "step",
            "masked-LM accuracy",
            "next-sentence accuracy",
            "more frequent answer alone",
            "masked-LM loss",
        )
        several = tag("summary", f"{len(found)} evaluations")
        yield tag("details", several, table(header, figures, numbers=range(5)))
    yield from _verdict(stage)
    if (stage.get("target") or {}).get("message"):
        yield tag("p", stage["target"]["message"], class_="note")


def _verdict(found: Mapping[str, Any]) -> Iterable[Markup]:
    """Return what is said of a model that does no better than the most frequent token."""
    if found.get("verdict"):
        yield tag("p", tag("b", f"{found['verdict']}"))


def _masks(run: Run) -> list[Markup]:
    if not run.masks:
        return []
    parts = [tag("h3", "One word hidden, in sentences that it was not trained on")]
    for mask in run.masks:
        guesses = [
            tag(
                "span",
                f"{_word(it['token'])} {it['probability']:.0%}",
                class_="right" if it["token"] == mask["truth"] else "guess",
            )
            for it in mask["guesses"]
        ]
        commas = [part for guess in guesses for part in (guess, ", ")][:-1]
        sentence = tag("p", f"{mask['before']} ", tag("mark", "[MASK]"), f" {mask['after']}", dir="auto")
        parts.append(tag("blockquote", sentence, tag("p", *commas, "; the true word: ", tag("b", mask["truth"]))))
    note = "Sentences and words were chosen by the seed, before the model was asked."
    return [*parts, tag("p", note, class_="note")]


def _word(token: str) -> str:
    """Return a token; quoted unless it is a word, as a full stop among others would not be seen."""
    return token if token.isalnum() else f"\u201c{token}\u201d"


def _times(run: Run) -> Markup:
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
    return table([header[at] for at in kept], [[row[at] for at in kept] for row in rows], numbers=range(1, len(kept)))


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


def _attempts(run: Run) -> Markup:
    starts = list(dict.fromkeys(attempt.uid for attempt in run.attempts))

    def row(attempt: Attempt) -> tuple[str, ...]:
        number = f"{attempt.number}" + (f", run {attempt.run}" if attempt.run > 1 else "")
        # Without a cluster every start counts from 1 again.
        number += f" of start {starts.index(attempt.uid) + 1}" if len(starts) > 1 else ""
        end = attempt.end or ("running, or killed" if attempt is run.attempts[-1] else "killed, or lost")
        times = (duration(attempt.run_s), duration(attempt.cpu_s))
        return (number, attempt.began, attempt.reached, *times, end, attempt.message)

    header = ("attempt", "from", "to", "time", "processor time", "end", "")
    if not run.attempts:
        return Markup()
    shown_rows = [row(attempt) for attempt in run.attempts]
    first = max(min(it.number for it in run.attempts if it.uid == uid) for uid in starts)
    note = ""
    if first > 1:
        note = "Attempts without a record prepared the data, or ended before their first one."
    return join([table(header, shown_rows, numbers=(3, 4)), tag("p", note, class_="note") if note else Markup()])


def _data(run: Run) -> Markup:
    dataset, counts = run.dataset, run.dataset.get("counts") or {}
    if not dataset:
        return tag("p", f"Shards were given ready: {run.config.dataset.folder}", class_="note")
    pairs = [
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
    lengths = [it for it in dataset.get("lengths") or [] if isinstance(it, dict)]
    header = ("sequence length", "predictions", "training samples", "held out", "files")
    rows = [
        (
            form(it.get("sequence_length"), "d"),
            form(it.get("max_predictions"), "d"),
            form(it.get("samples_training"), ",d"),
            form(it.get("samples_held_out"), ",d"),
            f"{len(it.get('training') or ()) + len(it.get('held_out') or ())}",
        )
        for it in lengths
    ]
    return join([facts(pairs), table(header, rows, numbers=range(5)) if rows else Markup()])


def _with_unit(value: str, unit: str) -> str:
    return f"{value} {unit}" if value else ""


def _environment(run: Run) -> Markup:
    environment = dict(run.environment)
    versions = environment.pop("versions", None)
    pairs = [(str(name).replace("_", " "), str(value)) for name, value in environment.items() if value != "none"]
    if isinstance(versions, dict):
        pairs += [(str(name), str(value)) for name, value in versions.items()]
    return facts(pairs) if pairs else tag("p", "No attempt has recorded it.", class_="note")


def _inputs(run: Run) -> list[Markup]:
    inputs = run.inputs
    note = (
        "Two runs with this hash were asked for the same thing: settings that decide what is learnt, vocabulary, text, "
        "shards, release. Ranks, machines, paths and interruptions are no part of it."
    )
    if inputs.missing:
        note += f" It does not cover {', '.join(inputs.missing)}."
    rows = [(name, tag("code", value)) for name, value in inputs.parts.items()]
    whole = tag("p", tag("code", inputs.sha256))
    return [whole, tag("p", note, class_="note"), table(("part", "SHA-256, or version"), rows)]


def _configuration(run: Run) -> list[Markup]:
    document = json.dumps(run.config.model_dump(mode="json", exclude_none=True), indent=2, ensure_ascii=False)
    summary = tag("summary", f"run-config.json, {len(document.splitlines())} lines")
    return [tag("details", summary, tag("pre", document))]


def form(value: Any, how: str) -> str:
    """Return a number as text; nothing for what is none, or not finite."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return ""
    return format(round(value) if how.endswith("d") else value, how)


def duration(seconds: Any) -> str:
    """Return a duration as people write it; nothing for what is none."""
    if not form(seconds, ".0f"):
        return ""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02d} min"
    return f"{whole // 3600}:{whole % 3600 // 60:02d} h"
