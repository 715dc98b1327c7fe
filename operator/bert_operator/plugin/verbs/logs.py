"""``logs``."""

from __future__ import annotations

import argparse

from bert_job.foreign_text import sanitize
from bert_operator.errors import EXIT_SUCCEEDED
from bert_operator.plugin.context import Context
from bert_operator.plugin.following import Follower, LogSelection


def add_logs_options(parser: argparse.ArgumentParser) -> None:
    """Options of ``logs``."""
    parser.add_argument("name", metavar="NAME", help="of the job")
    parser.add_argument(
        "-f",
        "--follow",
        action="store_true",
        help="go on until the job ends: through attempts, runs and lost connections; waits for a pod that is not there",
    )
    parser.add_argument(
        "--rank",
        type=_number,
        metavar="N",
        help="lines of one rank, without its tag; the launcher's own count as those of rank 0",
    )
    parser.add_argument(
        "--attempt", type=_number, metavar="K", help="default: the newest one, and with -f all after it"
    )
    parser.add_argument("--tail", type=_number, metavar="N", help="begin with the last N lines; default: all")
    parser.add_argument("--timestamps", action="store_true", help="with the time at which each line was written")


def run_logs(arguments: argparse.Namespace, context: Context) -> int:
    """Print the log of a job: that of its only pod, or of its launcher, which has the lines of all ranks.

    Each line is printed once, however often the connection breaks. On a terminal it loses what controls that, colours
    excepted. What is waited for, and which pod is read, goes to standard error.
    """
    wanted = LogSelection(
        rank=arguments.rank,
        attempt=arguments.attempt,
        tail=arguments.tail,
        follow=arguments.follow,
        timestamps=arguments.timestamps,
    )
    console = context.console
    follower = Follower(context.kubectl, wanted, say=console.remark, tell_wait=console.wait, pause=context.pause)
    is_terminal = console.output.isatty()
    for line in follower.lines(arguments.name):
        console.show(sanitize(line) if is_terminal else line)
    return EXIT_SUCCEEDED


def _number(text: str) -> int:
    if not text.isdecimal() or len(text) > 9:
        raise argparse.ArgumentTypeError(f"got {text!r}; allowed: a number from 0 to 999999999")
    return int(text)
