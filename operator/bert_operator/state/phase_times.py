"""How long a job has been in each of its phases, over all attempts: what it has cost, and where the time went. Pure.

Only changes of phase or run are counted, so a job that stays where it is has its status left alone. The seconds are
those between writes: an operator that was away for a while counts a change when it sees it.
"""

from __future__ import annotations

from bert_operator.api.schema.status import JobStatus, Phase, PhaseTime
from bert_operator.timestamps import parse_time


def count_time(
    previous: JobStatus, phase: Phase, run: str | None, now: str
) -> tuple[tuple[PhaseTime, ...], str | None]:
    """Return the time in every phase that is over, and since when the job is in its present one; None: not counted.

    Args:
        previous: The last status. One without ``phaseSince`` is new, or of an operator that did not count, or the
            API server still has a schema without it: counting begins with the next change. Beginning at once would
            write every status anew, and with that schema at every look.
        phase: The present one.
        run: What the newest attempt does.
        now: RFC 3339.
    """
    since = previous.phase_since
    if (previous.phase, previous.run) == (phase, run):
        return previous.phase_times, since
    if since is None:
        return previous.phase_times, now
    try:
        # Both in whole seconds, so that sums have no rounding; a clock that was set back counts for nothing.
        seconds = max(0, int(parse_time(now) - parse_time(since)))
    except ValueError:
        return previous.phase_times, now
    times = {(item.phase, item.run): item.seconds for item in previous.phase_times}
    times[previous.phase, previous.run] = times.get((previous.phase, previous.run), 0) + seconds
    listed = (PhaseTime(phase=in_phase, run=of_run, seconds=spent) for (in_phase, of_run), spent in times.items())
    return tuple(item for item in listed if item.seconds), now
