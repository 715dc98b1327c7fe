"""Ranks of one machine by torchrun, for ``bert-operator local`` where there is no Open MPI: ``... RANKS PROGRAM...``.

torchrun itself ends with 1 whatever has failed, after a page of text among the ranks' lines. This runs the same
launcher and says in one line which rank failed first, and ends as that rank did. It serves ``collectives: torch``
alone: torch.distributed finds the other ranks by the variables that torchrun sets.
"""

from __future__ import annotations

import logging
import signal
import sys
from collections.abc import Iterable
from dataclasses import dataclass

PREFIX = "torchrun: "
"""Begins every line of the launcher itself."""

_SIGNAL_BASE = 128
_FAILED, _STOPPED = 1, 3
# torchrun looks at its ranks ten times a second and then ends the others, by SIGTERM and 30 s later by SIGKILL: of what
# ends within this time of the first failure, nothing but a SIGTERM is torchrun's. Its times are whole seconds.
_SAME_TIME_S = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RankEnd:
    """How a rank ended that did not succeed."""

    rank: int
    code: int
    """Its exit code; -n for signal n."""
    seen_at_s: int


def choose_cause(ends: Iterable[RankEnd]) -> RankEnd:
    """Return the rank that failed first, of several that torchrun found together the one that names a cause.

    A rank that loses another one ends with 1, within a millisecond: seldom is it the one that torchrun lists first.
    """
    first, *others = sorted(ends, key=lambda end: end.seen_at_s)
    if first.code != _FAILED:
        return first
    consequences = (_FAILED, _STOPPED, -signal.SIGTERM)
    together = (end for end in others if end.seen_at_s - first.seen_at_s <= _SAME_TIME_S)
    return next((end for end in together if end.code not in consequences), first)


def main(arguments: list[str]) -> int:
    """Run the ranks and return the exit code of the first that failed, 128 + n for signal n; 0 if none did.

    arguments: The number of ranks, and the program with its own arguments.
    """
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import parse_args, run

    # Its warnings and errors say again, with a path of a source file, what the last line says.
    logging.disable(logging.ERROR)
    # By name it would ask DNS for this machine's own, which laptops do not always have.
    where = ("--standalone", "--local-addr", "127.0.0.1")
    try:
        ranks = ("--nproc-per-node", arguments[0])
        run(parse_args([*where, *ranks, "--no-python", *arguments[1:]]))  # type: ignore[no-untyped-call]
    except ChildFailedError as error:
        cause = choose_cause(
            RankEnd(rank=rank, code=failure.exitcode, seen_at_s=failure.timestamp)
            for rank, failure in error.failures.items()
        )
        end = f"exit code {cause.code}" if cause.code >= 0 else f"signal {-cause.code}"
        sys.stderr.write(f"{PREFIX}rank {cause.rank} ended with {end}\n")
        return cause.code if cause.code >= 0 else _SIGNAL_BASE - cause.code
    except SignalException as error:
        return _SIGNAL_BASE + int(error.sigval)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
