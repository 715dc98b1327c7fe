"""Which rank is slower than the others, and than itself: two scores per rank and interval. Pure but for its clock.

A score is a rank's own work per step (``compute_timer``) over the reference's: 1 is as fast, 2 half as fast. The
references are those of NVIDIA's resiliency extension (NVRx, usage guide of its straggler detection), whose scores
are the inverse: the other ranks, of which NVRx takes the best and this the median, and the rank's own best interval.

Ranks have unequal work: padding-free batches differ in tokens, and rows may not divide evenly. So each comparison is
made by seconds and by seconds per real token, and the smaller result counts. A rank that works longer because it has
more tokens is as fast per token. One with fewer tokens, whose steps have costs that do not shrink with them, takes more
per token but no longer than the others. A slow one is slow by both.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bert_trainer.output.metrics import RankFigures, Record

LIMIT = 1.25
"""Above this a rank is named: the others idle for a fifth of every step.

NVRx's guide takes 0.7, here 1.43, for one report. Where ranks share cores with other programs an interval may exceed it
by chance; what the operator's status says needs several in a row, so that the limit can be lower.
"""


@dataclass(frozen=True, slots=True)
class Work:
    """Work of one rank in an interval, per step."""

    seconds: float
    """Without waits for others."""
    tokens: float
    """Real ones."""

    @property
    def is_any(self) -> bool:
        """Whether there is something to compare."""
        return self.seconds > 0 and self.tokens > 0

    def over(self, seconds: float, per_token: float) -> float:
        """Return the ratio of this work to a reference."""
        return min(self.seconds / seconds, self.seconds / self.tokens / per_token)


def score_against_others(works: Sequence[Work]) -> list[float | None]:
    """Return each rank's work over the median of all others; None for a rank without work, or without others."""
    scores: list[float | None] = []
    for rank, work in enumerate(works):
        others = [other for number, other in enumerate(works) if number != rank and other.is_any]
        if not work.is_any or not others:
            scores.append(None)
            continue
        seconds = statistics.median(other.seconds for other in others)
        per_token = statistics.median(other.seconds / other.tokens for other in others)
        scores.append(work.over(seconds, per_token))
    return scores


class Stragglers:
    """Scores all ranks of a stage, interval by interval, and remembers for how long one has been slow."""

    def __init__(self, hosts: Sequence[str], clock: Callable[[], float] = time.monotonic) -> None:
        """Know nothing yet.

        Args:
            hosts: Machine or pod of every rank.
            clock: Returns seconds.
        """
        self._hosts, self._clock = tuple(hosts), clock
        self._best: list[tuple[float, float] | None] = [None] * len(hosts)
        """Fewest seconds per step, and per token, of each rank."""
        self._slow: dict[str, tuple[int, float]] = {}
        """Of each host with a slow rank: for how many intervals in a row, and since when."""
        self._intervals = 0
        self._last_s = clock()

    def add(self, works: Sequence[Work]) -> tuple[Record, RankFigures]:
        """Return the figures of an interval: of the slowest rank, if it is above the limit, and the scores of all."""
        self._intervals += 1
        began_at_s, self._last_s = self._last_s, self._clock()
        own = [self._score_against_itself(rank, work) for rank, work in enumerate(works)]
        scores = score_against_others(works)
        # The first interval compiles kernels and fills caches, each rank at its own pace.
        slow = {rank: score for rank, score in enumerate(scores) if score is not None and score > LIMIT}
        if self._intervals == 1:
            slow = {}
        # By host: of a machine with several ranks another one may be the slowest each time.
        self._slow = {
            host: (self._slow.get(host, (0, began_at_s))[0] + 1, self._slow.get(host, (0, began_at_s))[1])
            for host in {self._hosts[rank] for rank in slow}
        }
        figures: Record = {}
        if slow:
            rank = max(slow, key=slow.__getitem__)
            intervals, since_s = self._slow[self._hosts[rank]]
            figures = {
                "slow_rank": rank,
                "slow_rank_host": self._hosts[rank],
                "slow_rank_score": slow[rank],
                "slow_rank_own_score": own[rank],
                "slow_rank_intervals": intervals,
                "slow_rank_s": self._last_s - since_s,
            }
        return figures, {"rank_scores": _rounded(scores), "rank_own_scores": _rounded(own)}

    def _score_against_itself(self, rank: int, work: Work) -> float | None:
        if not work.is_any:
            return None
        per_token = work.seconds / work.tokens
        best = self._best[rank] or (work.seconds, per_token)
        self._best[rank] = best = min(best[0], work.seconds), min(best[1], per_token)
        return work.over(*best)


def _rounded(scores: Sequence[float | None]) -> list[float | None]:
    # A record holds one of every rank.
    return [None if score is None else round(score, 3) for score in scores]
