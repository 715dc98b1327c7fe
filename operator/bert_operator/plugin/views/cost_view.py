"""``cost``: what a job has taken over all attempts, what it will have taken in the end, and at which price. Pure.

Hours are those of the phases Running and Stopping, which the status counts by run; amounts are those that pods ask for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bert_job.durations import render_duration
from bert_job.foreign_text import one_line
from bert_operator.doctor.demands import worker_requests
from bert_operator.doctor.objects import amount
from bert_operator.json_paths import mapping
from bert_operator.names import PREPARE_RUN, TRAINING_RUN
from bert_operator.plugin.job import Job, kind_of
from bert_operator.plugin.prices import NODE, Prices
from bert_operator.plugin.terminal import Cell, Ink, fold, table
from bert_operator.timestamps import time_of

_HOUR_S = 3600.0
_GIB = 1024.0**3
_TAKING = ("Running", "Stopping")
_LAUNCHER = {"cpu": 1.0, "memory": 2.0}
"""What the launcher of several workers asks for, where the job does not say: a CPU, and GiB of memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Resource use of a job."""

    hours: Mapping[str, float]
    """So far, by resource: hours of one node, one CPU, one GiB (memory) or one device."""
    expected: Mapping[str, float] | None
    """At the end, likewise; None where nothing tells when that is."""
    unknown: Sequence[str] = field(default=())
    """What is not in it, and why, in sentences."""


def find_cost(job: Job, spec: Mapping[str, Any], now_s: float, *, is_frozen: bool) -> Cost:
    """Return the resource use of a job.

    Args:
        job: As kubectl has it.
        spec: With what its profile adds.
        now_s: Seconds since 1970.
        is_frozen: Whether that is so; False: it is the job's own spec alone.
    """
    unknown: list[str] = []
    seconds = _seconds(job, now_s, unknown)
    rates = {run: _rates(spec, run) for run in (PREPARE_RUN, TRAINING_RUN)}
    hours = _hours(seconds, rates)
    left_s = _left_s(job, unknown)
    expected = None
    if job.has_ended:
        expected = hours
    elif left_s is not None:
        run = str(job.status.get("run") or TRAINING_RUN)
        expected = _hours({**seconds, run: seconds.get(run, 0.0) + left_s}, rates)
    if not is_frozen:
        unknown.append(
            "What a profile adds to the job: its frozen configuration is not there, or may not be read, so amounts are "
            "those of the job's own spec."
        )
    if missing := [name for name in ("cpu", "memory") if name not in rates[TRAINING_RUN]]:
        unknown.append(f"The {' and '.join(missing)} of its pods: the job asks for none by number.")
    resources = mapping(dict(spec), "worker", "resources") or mapping(dict(spec), "resources")
    if resources.get("resourceClaims") or mapping(resources, "accelerator").get("resourceClaim"):
        unknown.append("Devices that come by resource claims: how many there are stands in the claims.")
    waited_s = sum(
        float(item.get("seconds") or 0)
        for item in job.status.get("phaseTimes") or ()
        if item.get("phase") == "Pending" and item.get("run")
    )
    if waited_s >= 1:
        unknown.append(
            f"{render_duration(waited_s)} of waiting to start, in which some of its pods may have held nodes while "
            f"others were waited for or images pulled."
        )
    return Cost(hours=hours, expected=expected, unknown=unknown)


def _seconds(job: Job, now_s: float, unknown: list[str]) -> dict[str, float]:
    """Return the seconds in which pods ran, by run."""
    since_s, found = time_of(job.status.get("phaseSince")), dict[str, float]()
    first_s = time_of(job.status.get("startTime"))
    if since_s is None:
        # An operator that did not count: no more than all of the time.
        if first_s is not None:
            ended_s = time_of(job.status.get("completionTime"))
            found[TRAINING_RUN] = max(0.0, (now_s if ended_s is None else ended_s) - first_s)
            unknown.append(
                "When each attempt began: the operator that looks after this job does not count that. All the time "
                "since the first attempt counts as training, waits and pauses included."
            )
        return found
    counted_s = 0.0
    for item in job.status.get("phaseTimes") or ():
        spent_s = float(item.get("seconds") or 0)
        counted_s += spent_s
        if item.get("phase") in _TAKING:
            run = str(item.get("run"))
            found[run] = found.get(run, 0.0) + spent_s
    if job.phase in _TAKING:
        run = str(job.status.get("run"))
        found[run] = found.get(run, 0.0) + max(0.0, now_s - since_s)
    if first_s is not None and (before_s := since_s - counted_s - first_s) > 60:
        unknown.append(f"The first {render_duration(before_s)}, in which an older operator did not count the time.")
    return found


def _rates(spec: Mapping[str, Any], run: str) -> dict[str, float]:
    """Return what a run takes at one time: nodes, CPUs, GiB of memory, devices."""
    workers = _count(spec.get("workers"))
    of_worker = {name: float(value) for name, value in worker_requests(dict(spec)).items()}
    if run == PREPARE_RUN:
        # Preparing data takes no devices, and may have other workers.
        stages = [stage for stage in spec.get("stages") or () if kind_of(stage) == "prepare"]
        workers = _count(mapping(stages[0], "prepare").get("workers")) if stages else 1
        of_worker = {name: value for name, value in of_worker.items() if name in ("cpu", "memory")}
    if "memory" in of_worker:
        of_worker["memory"] /= _GIB
    rates = {NODE: float(workers), **{name: workers * value for name, value in of_worker.items()}}
    if workers > 1:
        own = mapping(dict(spec), "launcher", "resources")
        launcher = {"cpu": float(amount(own.get("cpu"))), "memory": float(amount(own.get("memory"))) / _GIB}
        for name, value in (launcher if own else _LAUNCHER).items():
            if name in rates:
                rates[name] += value
    return rates


def _hours(seconds: Mapping[str, float], rates: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    found: dict[str, float] = {}
    for run, spent_s in seconds.items():
        for name, rate in rates.get(run, {}).items():
            found[name] = found.get(name, 0.0) + rate * spent_s / _HOUR_S
    return found


def _left_s(job: Job, unknown: list[str]) -> float | None:
    """Return the seconds until the present stage ends; None where nothing tells."""
    if job.has_ended:
        return 0.0
    left = job.progress.get("estimatedRemainingSeconds")
    if left is None:
        unknown.append("How long it will still take: it has not reported that yet.")
        return None
    if later := [stage.name for stage in job.stages() if stage.state == "waiting"]:
        unknown.append(f"How long the stages after this one will take: {', '.join(map(one_line, later))}.")
    unknown.append("Attempts that will still fail; what they take comes on top.")
    return float(left)


def _count(value: object) -> int:
    return value if isinstance(value, int) and value > 0 else 1


def show_cost(job: Job, cost: Cost, prices: Prices, ink: Ink, width: int) -> list[str]:
    """Return a table of hours and prices, and what is not in it."""
    head = ["HOURS OF ONE", "SO FAR", "AT THE END"]
    money = f" {one_line(prices.currency)}" if prices.currency else ""
    if prices.of_an_hour:
        head += [f"PRICE{money}", "COST SO FAR", "COST AT THE END"]
    rows: list[list[Cell]] = []
    for name in cost.hours:
        price = prices.of_an_hour.get(name)
        expected = None if cost.expected is None else cost.expected[name]
        row: list[Cell] = [_label(name), _number(cost.hours[name]), _number(expected)]
        if prices.of_an_hour:
            row += [
                "-" if price is None else f"{price:g}",
                _money(cost.hours[name], price),
                _money(expected, price),
            ]
        rows.append(row)
    if prices.of_an_hour:
        so_far, end = _total(cost.hours, prices), None if cost.expected is None else _total(cost.expected, prices)
        rows.append([("total", "bold"), "", "", "", (f"{so_far:.2f}", "bold"), "-" if end is None else f"{end:.2f}"])
    shown = (
        table(head, rows, ink)
        if cost.hours
        else ["It has not run yet, so it has taken nothing." if not job.attempt else "None of its time is counted yet."]
    )
    lines = [f"{job.namespace}/{job.name}  {job.phase}, all attempts", "", *shown, ""]
    for sentence in not_known(cost, prices):
        first, *rest = fold(sentence, width - 2, "")
        lines += [f"- {first}", *(f"  {line}" for line in rest)]
    return lines


def not_known(cost: Cost, prices: Prices) -> list[str]:
    """Return what the figures do not include, as sentences."""
    unpriced = [_label(name) for name in cost.hours if name not in prices.of_an_hour]
    unused = [one_line(name) for name in prices.of_an_hour if name not in cost.hours]
    found = [f"Not known: {sentence[0].lower()}{sentence[1:]}" for sentence in cost.unknown]
    if prices.of_an_hour and unpriced:
        found.append(f"Without a price, and not in the total: {', '.join(unpriced)}.")
    if cost.hours and unused:
        found.append(f"With a price, and not asked for by number: {', '.join(unused)}.")
    if NODE in prices.of_an_hour and len(prices.of_an_hour.keys() & cost.hours.keys()) > 1:
        found.append(
            "The total has the price of nodes and of what is in them: prices of one kind count all of it once."
        )
    found.append("Never in it: volumes, network, the operator, and nodes that stay on when the job has left them.")
    return found


def document_of(job: Job, cost: Cost, prices: Prices) -> dict[str, Any]:
    """Return the cost as a JSON document."""
    return {
        "namespace": job.namespace,
        "name": job.name,
        "phase": job.phase,
        "hours": _rounded(cost.hours),
        "expectedHours": None if cost.expected is None else _rounded(cost.expected),
        "prices": dict(prices.of_an_hour),
        "currency": prices.currency or None,
        "cost": round(_total(cost.hours, prices), 4) if prices.of_an_hour else None,
        "expectedCost": None
        if cost.expected is None or not prices.of_an_hour
        else round(_total(cost.expected, prices), 4),
        "notKnown": not_known(cost, prices),
    }


def _rounded(hours: Mapping[str, float]) -> dict[str, float]:
    return {name: round(value, 4) for name, value in hours.items()}


def _label(name: str) -> str:
    return {"memory": "GiB of memory", NODE: "node (a pod of ranks)"}.get(name, one_line(name))


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _money(hours: float | None, price: float | None) -> str:
    return "-" if hours is None or price is None else f"{hours * price:.2f}"


def _total(hours: Mapping[str, float], prices: Prices) -> float:
    return sum(spent * prices.of_an_hour.get(name, 0.0) for name, spent in hours.items())
