"""``status``: one screen about a job, what a person has to act on first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bert_job.foreign_text import one_line
from bert_operator.plugin.job import Job, Pod, Stage
from bert_operator.plugin.queue_place import QueuePlace
from bert_operator.plugin.terminal import Cell, Colour, Ink, fold, table
from bert_operator.plugin.views.next_step import next_step
from bert_operator.plugin.views.phases import age, phase_cell, text_or_dash
from bert_operator.plugin.views.time_spent import TimeSpent, time_in_phases
from bert_operator.timestamps import time_of

_LABEL_WIDTH = 12
_BAR_WIDTH = 24
_SPARK_WIDTH = 40
_FAILURES_SHOWN = 3
_KINDS = {"Application": "the program", "Infrastructure": "infrastructure", "InvalidInput": "input"}
_EVALUATION_FIGURES = {
    "mlm_accuracy": "masked-LM accuracy",
    "unigram_baseline": "most frequent token alone",
    "nsp_accuracy": "next-sentence accuracy",
    "nsp_baseline": "more frequent answer alone",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusData:
    """All data for the status screen."""

    job: Job
    pods: Sequence[Pod] = ()
    losses: Sequence[tuple[int, float]] = ()
    """Step and loss of the present stage, as the log of the newest attempt has them."""
    place: QueuePlace | None = None
    """In a queue of Kueue."""
    spent: TimeSpent | None = None
    """Where the time of the newest attempt went."""
    missing: Sequence[str] = ()
    """What could not be read, and why."""
    now_s: float
    """Seconds since 1970."""
    where: str = ""
    """The options that lead a command to the job, such as `` -n team``."""


def show_status(seen: StatusData, ink: Ink, *, verbose: bool = False, width: int = 100) -> list[str]:
    """Return the status screen. verbose: with conditions, all failures, pods and figures."""
    job = seen.job
    lines = [_head(seen, ink), ""]
    for label, colour, finding in _attention(seen):
        lines += _labelled(ink.paint(label, colour), finding, width, len(label))
    if len(lines) > 2:
        lines.append("")
    lines += _stage_lines(job, ink)
    lines.append("")
    for label, text in _figures(seen, ink):
        lines += _labelled(label, text, width)
    if job.failures:
        lines += ["", *_failure_lines(job, seen.now_s, ink, verbose=verbose, width=width)]
    if verbose:
        lines += [line for part in _details(seen, ink) for line in ("", *part)]
    lines.append("")
    lines += _labelled("Next", next_step(job, seen.where), width)
    lines += [line for text in seen.missing for line in _labelled("Not shown", one_line(text), width)]
    return lines


def summarize(seen: StatusData) -> dict[str, Any]:
    """Return the status as a JSON document for ``status -o json``. Keys are stable; new ones may be added."""
    job = seen.job
    return {
        "namespace": job.namespace,
        "name": job.name,
        "uid": job.uid,
        "phase": job.phase,
        "reason": job.reason,
        "message": job.message,
        "suspended": job.is_suspended,
        "image": job.status.get("image") or job.spec.get("image"),
        "attempt": job.attempt,
        "attemptRun": job.status.get("attemptRun") or (1 if job.attempt else None),
        "stages": [{"name": stage.name, "kind": stage.kind, "state": stage.state} for stage in job.stages()],
        "queue": None if seen.place is None else seen.place.document(),
        "progress": dict(job.progress),
        "losses": [{"step": step, "loss": loss} for step, loss in seen.losses],
        "timeSpent": [spent.document() for spent in (seen.spent, time_in_phases(job, seen.now_s)) if spent is not None],
        "checkpoint": job.status.get("checkpoint"),
        "results": list(job.status.get("results") or ()),
        "failures": list(job.failures),
        "conditions": list(job.status.get("conditions") or ()),
        "pods": [
            {"name": pod.name, "role": pod.role, "attempt": pod.attempt, "phase": pod.phase, "node": pod.node}
            for pod in seen.pods
        ],
        "next": next_step(job, seen.where),
        "notShown": list(seen.missing),
    }


def _head(seen: StatusData, ink: Ink) -> str:
    job = seen.job
    cell = phase_cell(job)
    phase = cell if isinstance(cell, str) else ink.paint(*cell)
    workers = int(job.spec.get("workers") or 1)
    parts = [ink.paint(f"{job.namespace}/{job.name}", "bold"), phase]
    if job.is_suspended and job.phase not in ("Stopped", "Stopping"):
        parts.append(ink.paint("suspended", "yellow"))
    if job.attempt:
        parts.append(job.attempt_text)
    parts += [f"{workers} worker{'s' if workers != 1 else ''}", f"created {age(job.created_s, seen.now_s)} ago"]
    return "  ".join(parts)


def _attention(seen: StatusData) -> Iterator[tuple[str, Colour, str]]:
    """Yield what somebody has to know of before all else: a label, its colour, a sentence."""
    job, stopped = seen.job, seen.job.condition("Stopped")
    if job.phase == "Stopped":
        since = age(time_of(stopped.get("lastTransitionTime")), seen.now_s) if stopped else "-"
        yield "PAUSED", "yellow", f"for {since}, by spec.runPolicy.suspend; it holds no nodes and no pods"
    for item in job.findings():
        yield "ATTENTION", "red", f"{item.get('type')}, {item.get('reason')}: {one_line(item.get('message', ''))}"
    if job.phase in ("Failed", "Invalid"):
        yield "ATTENTION", "red", f"{job.reason}: {one_line(job.message)}"
    if job.phase == "Unseen":
        sentence = "No operator has looked at this job yet: is it running, and does it watch this namespace?"
        yield "ATTENTION", "red", sentence
    elif job.is_stale and not job.has_ended:
        yield "ATTENTION", "yellow", "The operator has not seen the latest change of the spec yet."


def _stage_lines(job: Job, ink: Ink) -> list[str]:
    stages = job.stages()
    names = max((len(stage.name) for stage in stages), default=0)
    kinds = max((len(stage.kind) for stage in stages), default=0)
    return [f"  {_mark(stage, ink)} {stage.name:<{names}}  {stage.kind:<{kinds}}  {_so_far(stage, job, ink)}".rstrip()
            for stage in stages]  # fmt: skip


def _mark(stage: Stage, ink: Ink) -> str:
    marks: Mapping[str, tuple[str, str, Colour]] = {
        "done": ("✓", "x", "green"),
        "current": ("▶", ">", "blue"),
        "failed": ("✗", "!", "red"),
        "waiting": ("·", ".", "dim"),
    }
    sign, instead, colour = marks[stage.state]
    return ink.paint(ink.sign(sign, instead), colour)


def _so_far(stage: Stage, job: Job, ink: Ink) -> str:
    if stage.state in ("done", "waiting"):
        return stage.state
    progress = job.progress
    step, total = progress.get("step"), progress.get("totalSteps")
    if total is None:
        return "" if step is None else f"step {step}"
    share = (step or 0) / total if total else 0.0
    left = f"  {progress['eta']} left" if progress.get("eta") and job.phase == "Running" else ""
    return f"{ink.bar(share, _BAR_WIDTH)} {int(100 * min(1.0, share)):3d}%  step {step or 0} of {total}{left}"


def _figures(seen: StatusData, ink: Ink) -> Iterator[tuple[str, str]]:
    job, figures = seen.job, seen.job.figures()
    if seen.place is not None:
        elsewhere = f"{seen.place.before_in_cluster} with those of other queues for the same quota"
        yield "Queue", f"{one_line(seen.place.queue)}: {seen.place.before} before it, {elsewhere}"
    if job.progress.get("loss") is not None:
        yield "Loss", " ".join(filter(None, (str(job.progress["loss"]), _curve(seen, ink))))
    if job.progress.get("sequencesPerSecond") is not None:
        tokens = _number(figures.get("real_tokens_per_s"))
        more = f", {tokens:,.0f} tokens/s" if tokens is not None else ""
        yield "Speed", f"{job.progress['sequencesPerSecond']} sequences/s{more}"
    if job.progress.get("lastUpdatedTime") and job.phase == "Running":
        yield "Reported", f"{age(time_of(job.progress['lastUpdatedTime']), seen.now_s)} ago"
    if job.status.get("checkpoint"):
        checkpoint = job.status["checkpoint"]
        yield "Checkpoint", f"{one_line(checkpoint.get('stage'))} step {checkpoint.get('step')}"
    for result in job.status.get("results") or ():
        yield "Evaluated", _result(result)
    yield "Image", text_or_dash(job.status.get("image") or job.spec.get("image"))
    yield "Output", output_of(job)
    started_s, ended_s = time_of(job.status.get("startTime")), time_of(job.status.get("completionTime"))
    if started_s is not None:
        took = age(started_s, ended_s if ended_s is not None else seen.now_s)
        yield "Time", f"{took} since the first attempt" if ended_s is None else f"{took} from first attempt to end"
    for label, spent in zip(("Spent on", "In all"), (seen.spent, time_in_phases(job, seen.now_s)), strict=True):
        if spent is not None and spent.seconds:
            yield label, spent.sentence()


def output_of(job: Job) -> str:
    """Return the location of a job's results."""
    output = job.spec.get("output") or {}
    volume = output.get("volume") or {}
    claim = (volume.get("persistentVolumeClaim") or {}).get("claimName")
    where = f"claim {claim}, " if claim else f"{next(iter(volume))} volume, " if volume else ""
    return one_line(f"{where}{output.get('path', '-')}")


def _curve(seen: StatusData, ink: Ink) -> str:
    if len(seen.losses) < 2:
        return ""
    (first_step, first), (last_step, _) = seen.losses[0], seen.losses[-1]
    line = ink.sparkline([loss for _, loss in seen.losses], _SPARK_WIDTH)
    return f" {ink.paint(line, 'blue')}  from {first:.4g} at step {first_step}, to step {last_step}"


def _result(result: Mapping[str, Any]) -> str:
    metrics = [(str(item.get("name")), str(item.get("value"))) for item in result.get("metrics") or ()]
    shown = [f"{_EVALUATION_FIGURES.get(name, name)} {value}" for name, value in metrics[:3]]
    step = f" at step {result['step']}" if result.get("step") is not None else ""
    met = {True: ", target met", False: ", below its target"}.get(result.get("targetMet"), "")  # type: ignore[arg-type]
    return one_line(f"{result.get('stage')}{step}: {', '.join(shown)}{met}")


def _failure_lines(job: Job, now_s: float, ink: Ink, *, verbose: bool, width: int) -> list[str]:
    shown = job.failures if verbose else job.failures[-_FAILURES_SHOWN:]
    hidden = len(job.failures) - len(shown)
    lines = ["Failed attempts" + (f" (the newest {len(shown)} of {len(job.failures)}; -v: all)" if hidden else "")]
    for failure in shown:
        reason = one_line(failure.get("reason"))
        facts = ", ".join(_facts_of(failure, now_s))
        first, *rest = fold(f"{reason}: {facts}", width - 5, "")
        # Painted when it is folded: colours take no columns.
        lines.append(f"  {failure.get('attempt')}  {first.replace(reason, ink.paint(reason, 'red'), 1)}")
        lines += [f"     {line}" for line in rest]
        for said in str(failure.get("message") or "").splitlines():
            lines += [f"     {line}" for line in fold(one_line(said), width - 5, "")]
    return lines


def _facts_of(failure: Mapping[str, Any], now_s: float) -> list[str]:
    at, where = failure.get("checkpoint"), [failure.get("pod"), failure.get("node")]
    end = ""
    if failure.get("signal") is not None:
        end = f"signal {failure['signal']}"
    elif failure.get("exitCode") is not None:
        end = f"exit code {failure['exitCode']}"
    facts = [
        f"{failure.get('run')} run, {age(time_of(failure.get('finishedAt')), now_s)} ago",
        end,
        " on ".join(str(part) for part in where if part),
        f"counted as {_KINDS.get(str(failure.get('kind')), failure.get('kind'))}",
        f"newest checkpoint {at.get('stage')} step {at.get('step')}" if at else "no checkpoint by then",
    ]
    return [one_line(fact) for fact in facts if fact]


def _details(seen: StatusData, ink: Ink) -> Iterator[list[str]]:
    job = seen.job
    if seen.pods:
        rows: list[list[Cell]] = [
            [
                pod.name,
                pod.role,
                str(pod.attempt),
                pod.phase,
                pod.node or "-",
                age(pod.created_s, seen.now_s),
                one_line(pod.trouble or ""),
            ]
            for pod in seen.pods
        ]
        yield table(["POD", "ROLE", "ATTEMPT", "PHASE", "NODE", "AGE", "WHY"], rows, ink)
    conditions = job.status.get("conditions") or ()
    if conditions:
        rows = [
            [
                str(item.get("type")),
                str(item.get("status")),
                str(item.get("reason")),
                age(time_of(item.get("lastTransitionTime")), seen.now_s),
                one_line(item.get("message", "")),
            ]
            for item in conditions
        ]
        yield table(["CONDITION", "STATUS", "REASON", "FOR", "MESSAGE"], rows, ink)
    if job.figures():
        rows = [[one_line(name), one_line(value)] for name, value in job.figures().items()]
        yield table(["FIGURE", "VALUE"], rows, ink)
    facts = [
        ("uid", job.uid),
        ("frozenHash", job.status.get("frozenHash")),
        ("minOperatorVersion", job.status.get("minOperatorVersion")),
        ("avoidedNodes", ", ".join(job.status.get("avoidedNodes") or ())),
    ]
    yield [f"{name}: {one_line(value)}" for name, value in facts if value]


def _labelled(label: str, text: str, width: int, label_length: int | None = None) -> list[str]:
    blanks = " " * max(1, _LABEL_WIDTH - (len(label) if label_length is None else label_length))
    # Colours count no columns, and lines that have some are short.
    folded = [text] if "\033" in text else fold(text, width - _LABEL_WIDTH, "")
    return [f"{label}{blanks}{folded[0]}", *(" " * _LABEL_WIDTH + line for line in folded[1:])]


def _number(text: str | None) -> float | None:
    try:
        return float(text) if text is not None else None
    except ValueError:
        return None
