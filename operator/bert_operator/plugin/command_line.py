"""The command line of ``kubectl bert``, whose verbs are also subcommands of ``bert-operator``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bert_operator import __version__
from bert_operator.errors import EXIT_SUCCEEDED, OperatorError
from bert_operator.plugin.completion import complete
from bert_operator.plugin.console import Console
from bert_operator.plugin.context import Context, Verb, common_options, kubectl_of
from bert_operator.plugin.errors import EXIT_INTERRUPTED
from bert_operator.plugin.kubectl import Kubectl
from bert_operator.plugin.verbs import (
    collecting,
    costing,
    examining,
    logs,
    looking,
    measuring,
    steering,
    submitting,
    surveying,
)

EXIT_CODES = """\
Exit codes: 0 done, 1 refused or failed, 2 wrong input, 3 no such object, 4 time is up, 130 stopped by Ctrl-C.
"""
COMPLETE = "__complete"
"""The word with which kubectl_complete-bert asks what may follow."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A verb on the command line."""

    name: str
    help: str
    """A few words for the list of verbs; the function's docstring is the sentence in its own help."""
    add_options: Callable[[argparse.ArgumentParser], None]
    run: Verb
    is_shared: bool = True
    """Whether it is a subcommand of ``bert-operator`` as well; False: that has one of this name already."""


VERBS: tuple[Entry, ...] = (
    Entry("list", "jobs as a table, those that wait for a person first", looking.add_list_options, looking.run_list),
    Entry("status", "one screen about a job", looking.add_status_options, looking.run_status),
    Entry("logs", "the log of a job, through all its attempts", logs.add_logs_options, logs.run_logs),
    Entry("suspend", "stop jobs with a checkpoint", steering.add_suspend_options, steering.run_suspend),
    Entry("resume", "let suspended jobs go on", steering.add_resume_options, steering.run_resume),
    Entry("retry", "start a failed job again", steering.add_retry_options, steering.run_retry),
    Entry("wait", "wait for what becomes of a job", steering.add_wait_options, steering.run_wait),
    Entry("delete", "delete jobs; their files stay", steering.add_delete_options, steering.run_delete),
    Entry("events", "what has happened to a job and its pods", surveying.add_events_options, surveying.run_events),
    Entry("tree", "a job with everything that it owns", surveying.add_tree_options, surveying.run_tree),
    Entry("submit", "create jobs, or change them", submitting.add_submit_options, submitting.run_submit),
    Entry("export", "a job as a manifest", submitting.add_export_options, submitting.run_export),
    Entry("plot", "a figure over the steps", measuring.add_plot_options, measuring.run_plot),
    Entry("top", "what the pods of jobs use", measuring.add_top_options, measuring.run_top),
    Entry("cost", "node-hours and their price", costing.add_cost_options, costing.run_cost),
    Entry("collect", "a support bundle, without names", collecting.add_collect_options, collecting.run_collect),
    Entry("lint", "all problems of job files", submitting.add_lint_options, submitting.run_lint),
    Entry("render", "what a job would become", submitting.add_render_options, submitting.run_render, is_shared=False),
    Entry("doctor", "look for what is wrong with a cluster", examining.add_doctor_options, examining.run_doctor),
    Entry("version", "of plugin, operator and cluster", examining.add_version_options, examining.run_version),
)


def add_verbs(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
    surround: Callable[[Kubectl], Context] = Context,
    *,
    is_operator: bool = False,
) -> dict[str, argparse.ArgumentParser]:
    """Add the verbs to a command line and return their parsers by name.

    ``command`` of what they parse runs the verb and returns its exit code.

    Args:
        commands: Where verbs are added.
        surround: Makes the surroundings of a verb; tests have clocks of their own.
        is_operator: Whether the command line is that of ``bert-operator``.
    """
    parsers: dict[str, argparse.ArgumentParser] = {}
    parent = common_options(is_again=True)
    for entry in VERBS:
        if is_operator and not entry.is_shared:
            continue
        parser = commands.add_parser(
            entry.name,
            help=entry.help,
            description=" ".join((entry.run.__doc__ or "").split()),
            epilog=EXIT_CODES,
            parents=[parent],
        )
        entry.add_options(parser)
        parser.set_defaults(command=_in(surround, entry.run))
        parsers[entry.name] = parser
    return parsers


def _in(surround: Callable[[Kubectl], Context], run: Verb) -> Callable[[argparse.Namespace], int]:
    def command(arguments: argparse.Namespace) -> int:
        try:
            context = surround(kubectl_of(arguments))
            context.console.colours = getattr(arguments, "color", None) or "auto"
            return run(arguments, context)
        except KeyboardInterrupt:
            # Whatever is being shown ends here, on a line of its own.
            Console().remark("")
            return EXIT_INTERRUPTED

    return command


def main(argv: Sequence[str] | None = None, surround: Callable[[Kubectl], Context] = Context) -> int:
    """Run one verb and return its exit code.

    Args:
        argv: Without the program's name; None: that of this process.
        surround: As in ``add_verbs``.
    """
    words = sys.argv[1:] if argv is None else list(argv)
    parser, verbs = _parser(surround)
    if words[:1] == [COMPLETE]:
        Console().show(complete(words[1:], verbs))
        return EXIT_SUCCEEDED
    arguments = parser.parse_args(words)
    try:
        code: int = arguments.command(arguments)
    except OperatorError as error:
        Console().remark(str(error))
        return error.exit_code
    except BrokenPipeError:
        sys.stdout = None  # Python would flush the rest of its buffer at exit, and fail
        return 1
    return code


def _parser(
    surround: Callable[[Kubectl], Context],
) -> tuple[argparse.ArgumentParser, dict[str, argparse.ArgumentParser]]:
    description = "Look after BertPretrainJobs in a cluster, by your own kubectl and its context."
    parser = argparse.ArgumentParser(
        prog="kubectl bert", description=description, epilog=EXIT_CODES, parents=[common_options()]
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    return parser, add_verbs(parser.add_subparsers(required=True, metavar="VERB"), surround)
