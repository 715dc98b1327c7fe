"""What became of a job under a fault: resilient, degraded, failed or inconclusive. Pure.

Failed: a wrong end, other weights, samples lost or doubled in the history that survived, or two runs that committed by
turns. Degraded: the right result, but a bar was missed: time, work done again, something left behind. Inconclusive: the
fault had no effect, so that nothing is known.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from fault import Fault
from job_watch import Commit, Step

Verdict = Literal["resilient", "degraded", "failed", "inconclusive"]
Missed = Literal["time", "work", "interrupted", "left behind"]
"""Which bar was missed. Time, and work done again, make a job late; the others are wrong in themselves."""
LATE: frozenset[Missed] = frozenset({"time", "work"})
WORST_FIRST: tuple[Verdict, ...] = ("failed", "degraded", "inconclusive", "resilient")


@dataclass(frozen=True, slots=True)
class Moment:
    """What happened after one injection."""

    step: int
    """Steps that had been trained."""
    recovery_s: float | None = None
    """Seconds until a step again, from the fault or from the moment it was healed; None: the job had to end."""
    trained_again: int = 0
    """Steps that were lost and trained a second time."""
    attempts: int = 0
    """How many more attempts the job needed."""
    settled_s: float | None = None
    """Seconds until the status said what was."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a job has left behind, and what the run without faults left."""

    moments: tuple[Moment, ...]
    phase: str
    reasons: tuple[str, ...] = ()
    """Of the failures on record, in order."""
    ledger: Mapping[Step, Sequence[int]] = field(default_factory=dict)
    """Samples of every step of the history that survived."""
    expected_ledger: Mapping[Step, Sequence[int]] = field(default_factory=dict)
    outcome: Mapping[str, str] = field(default_factory=dict)
    """Checksums of the last checkpoint's files, and evaluations."""
    expected_outcome: Mapping[str, str] = field(default_factory=dict)
    commits: Sequence[Commit] = ()
    left_over: Sequence[str] = ()
    again_allowed: int = 0
    """Steps that a fault may cost: a checkpoint interval and what is trained while one is written."""
    start_s: float = 0.0
    """How long the processes of the undisturbed run took from their start to the first step."""
    not_in_effect: str = ""


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict and why."""

    verdict: Verdict
    findings: tuple[str, ...]
    lost_samples: int
    doubled_samples: int
    missed: tuple[Missed, ...] = ()


def is_right_or_late(job: Mapping[str, Any]) -> bool:
    """Tell of what ``as_json`` has kept of a job whether nothing was wrong but the time that it took."""
    return job["verdict"] == "resilient" or (job["verdict"] == "degraded" and LATE.issuperset(job["missed"]))


def judge(fault: Fault, evidence: Evidence) -> Judgement:
    """Return the verdict on one job."""
    lost, doubled = compare_ledgers(evidence.ledger, evidence.expected_ledger, whole=fault.ends == "Succeeded")
    wrong = [*_wrong_results(fault, evidence)]
    if lost or doubled:
        wrong.append(f"{lost} samples lost and {doubled} doubled")
    missed = [*_missed_bars(fault, evidence)]
    verdict: Verdict = "failed" if wrong else "degraded" if missed else "resilient"
    if evidence.not_in_effect and not wrong:
        verdict = "inconclusive"
        wrong = [evidence.not_in_effect]
    findings = (*wrong, *(text for _, text in missed))
    return Judgement(verdict, findings, lost, doubled, tuple(bar for bar, _ in missed))


def compare_ledgers(
    found: Mapping[Step, Sequence[int]], expected: Mapping[Step, Sequence[int]], *, whole: bool
) -> tuple[int, int]:
    """Return how many samples are missing, and how many are there more often than without faults.

    whole: the run has ended as planned; else it is compared up to where it got, in each stage.
    """
    if not whole:
        last = {stage: max(step for name, step in found if name == stage) for stage, _ in found}
        expected = {key: samples for key, samples in expected.items() if key[1] <= last.get(key[0], -1)}
    ours = Counter((key, sample) for key, samples in found.items() for sample in samples)
    theirs = Counter((key, sample) for key, samples in expected.items() for sample in samples)
    return (theirs - ours).total(), (ours - theirs).total()


def compare_outcomes(found: Mapping[str, str], expected: Mapping[str, str]) -> str:
    """Say what is not as in the undisturbed run, which of ``outcome_of``; empty where nothing is."""
    differing = sorted(name for name in {*found, *expected} if found.get(name) != expected.get(name))
    if not differing:
        return ""
    each = [f"{name}: {found.get(name, 'missing')}, expected {expected.get(name, 'none')}" for name in differing]
    return f"other than the undisturbed run's: {'; '.join(each)}"


def commits_by_turns(commits: Sequence[Commit]) -> str:
    """Say which run committed again after another one had taken its place; empty where none did."""
    order: list[str] = []
    for commit in commits:
        if order and order[-1] == commit.owner:
            continue
        if commit.owner in order:
            return f"{commit.owner} committed {commit.name} after {order[-1]} had taken over"
        order.append(commit.owner)
    return ""


def worst(verdicts: Sequence[Verdict]) -> Verdict:
    """Return the verdict on several jobs together."""
    return next(verdict for verdict in WORST_FIRST if verdict in verdicts)


def as_json(judgement: Judgement, evidence: Evidence) -> dict[str, Any]:
    """Return what is kept of a job."""
    return {
        "verdict": judgement.verdict,
        "findings": list(judgement.findings),
        "missed": list(judgement.missed),
        "lost_samples": judgement.lost_samples,
        "doubled_samples": judgement.doubled_samples,
        "phase": evidence.phase,
        "reasons": list(evidence.reasons),
        "moments": [asdict(moment) for moment in evidence.moments],
    }


def _wrong_results(fault: Fault, evidence: Evidence) -> list[str]:
    wrong = []
    if evidence.phase != fault.ends:
        wrong.append(f"ended {evidence.phase or 'never'} instead of {fault.ends} ({', '.join(evidence.reasons)})")
    elif fault.reason and (not evidence.reasons or evidence.reasons[-1] != fault.reason):
        wrong.append(f"failed for {', '.join(evidence.reasons) or 'no reason'} instead of {fault.reason}")
    if fault.ends == "Succeeded" and fault.same_weights:
        differs = compare_outcomes(evidence.outcome, evidence.expected_outcome)
        wrong += [differs] if differs else []
    if turns := commits_by_turns(evidence.commits):
        wrong.append(turns)
    return wrong


def _missed_bars(fault: Fault, evidence: Evidence) -> list[tuple[Missed, str]]:
    missed: list[tuple[Missed, str]] = []
    for moment in evidence.moments:
        bar_s = fault.step_again_s + evidence.start_s
        if moment.recovery_s is not None and moment.recovery_s > bar_s:
            missed.append(("time", f"a step again after {moment.recovery_s:.1f} s; the bar is {bar_s:.1f} s"))
        if moment.trained_again > evidence.again_allowed:
            text = f"{moment.trained_again} steps trained again; the bar is {evidence.again_allowed}"
            missed.append(("work", text))
        if not fault.steps_interrupted and (moment.attempts or moment.trained_again):
            missed.append(("interrupted", f"training was interrupted: {moment.attempts} more attempts"))
        if moment.settled_s is not None and moment.settled_s > fault.settled_s:
            text = f"the status was right after {moment.settled_s:.1f} s; the bar is {fault.settled_s:.0f} s"
            missed.append(("time", text))
    if evidence.left_over:
        missed.append(("left behind", f"left behind: {', '.join(evidence.left_over)}"))
    return missed
