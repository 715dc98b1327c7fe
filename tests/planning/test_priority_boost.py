"""Who is spared when a queue needs room: the job with most unsaved work, and nobody before its equal."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from bert_job.progress import ProgressRecord
from bert_operator.state.priority_boost import choose_boost, find_unsaved_s

AFTER_S = (60.0, 300.0, 900.0, 1800.0)


def record(event: str, *, stage: str = "phase1", attempt: int = 1, **fields: str) -> ProgressRecord:
    return ProgressRecord(event, "uid", attempt, {"stage": stage, **fields})


PROGRESS = record("progress", step="120", checkpoint_age_s="400")


@pytest.mark.parametrize(
    ("progress", "checkpoint", "unsaved_s"),
    [
        (None, None, 0.0),
        (PROGRESS, None, 400.0),
        (PROGRESS, record("checkpoint", step="100"), 400.0),
        (PROGRESS, record("checkpoint", step="120"), 0.0),
        (PROGRESS, record("checkpoint", step="121"), 0.0),
        # Of the stage before, which had more steps; and of the attempt before, which got further.
        (PROGRESS, record("checkpoint", stage="phase0", step="900"), 400.0),
        (PROGRESS, record("checkpoint", attempt=0, step="900"), 400.0),
        # What a program prints is not to be trusted.
        (record("progress", step="120"), None, 0.0),
        (record("progress", step="120", checkpoint_age_s="-5"), None, 0.0),
        (record("progress", step="many", checkpoint_age_s="70"), record("checkpoint", step="many"), 70.0),
    ],
)
def test_unsaved_work_counts_from_the_last_checkpoint(
    progress: ProgressRecord | None, checkpoint: ProgressRecord | None, unsaved_s: float
) -> None:
    assert find_unsaved_s(progress, checkpoint) == unsaved_s


@pytest.mark.parametrize(
    ("unsaved_s", "boost"), [(0.0, 0), (59.9, 0), (60.0, 1), (299.0, 1), (300.0, 2), (900.0, 3), (1800.0, 4), (1e9, 4)]
)
def test_boost_rises_in_few_steps_and_is_bounded(unsaved_s: float, boost: int) -> None:
    assert choose_boost(unsaved_s, AFTER_S) == boost


@dataclass
class Running:
    """A job of Kueue's as ``CandidatesOrdering`` of its scheduler sees it, and what it would lose."""

    name: int
    admitted_s: float
    checkpoint_every_s: float
    saved_s: float
    history: list[int] = field(default_factory=list)

    def unsaved_s(self, now_s: float) -> float:
        return (now_s - self.saved_s) % self.checkpoint_every_s

    def boost(self, now_s: float) -> int:
        return choose_boost(self.unsaved_s(now_s), AFTER_S)


def test_a_hundred_preemptions_lose_less_than_by_kueues_own_choice() -> None:
    """Kueue takes the lowest priority first, and of equals the one that was admitted last (ordering.go)."""
    drawn = random.Random(25)
    lost_s = {"own": 0.0, "boosted": 0.0}
    for _ in range(100):
        now_s = 86_400.0
        jobs = [
            Running(number, drawn.uniform(0, now_s), drawn.choice([600.0, 1800.0, 3600.0]), drawn.uniform(0, 3600))
            for number in range(drawn.randint(2, 8))
        ]
        own = min(jobs, key=lambda job: -job.admitted_s)
        boosted = min(jobs, key=lambda job: (job.boost(now_s), -job.admitted_s))
        lost_s["own"] += own.unsaved_s(now_s)
        lost_s["boosted"] += boosted.unsaved_s(now_s)
        assert boosted.boost(now_s) == min(job.boost(now_s) for job in jobs)
    print(f"boost: preemptions=100 lost_s={lost_s['boosted']:.0f} lost_s_by_kueue={lost_s['own']:.0f}")
    assert lost_s["boosted"] < lost_s["own"]


@pytest.mark.parametrize("seed", range(20))
def test_equals_never_preempt_each_other(seed: int) -> None:
    """An hour of two jobs of one class and quota for one: who waits has no boost, who runs none below 0."""
    drawn = random.Random(seed)
    unsaved_s, writes, written = 0.0, 0, 0
    for _ in range(3600):
        unsaved_s = 0.0 if drawn.random() < 1 / 700 else unsaved_s + 1.0
        wanted = choose_boost(unsaved_s, AFTER_S)
        if wanted != written:
            writes, written = writes + 1, wanted
        waiting = 0
        # Kueue's rule for candidates: only what is lower than who waits (withinClusterQueue: LowerPriority).
        assert not written < waiting
    assert writes <= 3600 / 60, "at most one for each age that is reached, and one for each checkpoint"
