"""``bert-data``: build, look at and check sharded datasets.

Parses arguments, starts the verb and turns errors into exit codes; each verb is a module of ``commands``.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Callable, Sequence

from bert_trainer.dataset.commands import build, chop, convert, evaluation_set, fetch, inspect_shards, read, verify
from bert_trainer.dataset.commands.terminal import print_line
from bert_trainer.errors import EXIT_FAILED, TrainerError

_VERBS = (build, read, fetch, convert, chop, evaluation_set, inspect_shards, verify)
"""In the order of ``--help``."""


def main(argv: Sequence[str] | None = None) -> int:
    """Return the exit code: 0 done, 1 failed or a bad shard, 2 wrong input, 3 stopped on request, 4 a volume failed."""
    arguments = _parser().parse_args(argv)
    # At INFO readers log every file and why something in it is left out: bert-data read asks for that.
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s", stream=sys.stderr)
    try:
        command: Callable[[argparse.Namespace], int] = arguments.command
        return command(arguments)
    except TrainerError as error:
        print_line(f"bert-data: {error}", sys.stderr)
        return error.exit_code
    except BrokenPipeError:
        sys.stdout = None  # what is left in its buffer has no reader
        return EXIT_FAILED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bert-data",
        description="Text to sharded pretraining data, and back to something readable.",
        epilog="Exit codes: 0 done, 1 failed or a bad shard, 2 wrong input, 3 stopped on request, 4 a volume "
        "filled up or failed while build used it.",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for verb in _VERBS:
        verb.add_command(commands)
    return parser


if __name__ == "__main__":
    sys.exit(main())
