"""``list`` and ``status``."""

from __future__ import annotations

import argparse
import json

from bert_job.foreign_text import one_line
from bert_operator.errors import EXIT_SUCCEEDED, InputError
from bert_operator.plugin.context import Context
from bert_operator.plugin.job import Job
from bert_operator.plugin.kubectl import JOBS
from bert_operator.plugin.reading import gather_status, print_jobs, read_jobs
from bert_operator.plugin.views.list_view import is_in_phase, parse_phases, show_list
from bert_operator.plugin.views.status_view import show_status, summarize
from bert_operator.yaml_text import render_yaml

_OUTPUTS = ("wide", "name", "json", "yaml")
_PRINTERS = ("jsonpath", "jsonpath-file", "go-template", "go-template-file", "custom-columns", "custom-columns-file")
"""Outputs that kubectl makes, of what stands behind an equals sign."""


class _WithPrinters(tuple[str, ...]):
    """Outputs of our own, which are those that are listed and completed, and kubectl's with a template."""

    def __contains__(self, word: object) -> bool:
        name, is_given, _ = str(word).partition("=")
        return super().__contains__(word) or bool(is_given) and name in _PRINTERS


def add_list_options(parser: argparse.ArgumentParser) -> None:
    """Options of ``list``."""
    parser.add_argument("-A", "--all-namespaces", action="store_true", help="jobs of every namespace")
    parser.add_argument("-l", "--selector", metavar="LABELS", help="only jobs with these labels, as in kubectl get")
    parser.add_argument(
        "-o",
        "--output",
        choices=_WithPrinters(_OUTPUTS),
        help="wide: with workers, checkpoint, every reason, image; name: one name a line; json, yaml: the jobs as "
        "kubectl has them, also jsonpath=TEMPLATE, go-template=TEMPLATE and custom-columns=COLUMNS, as in kubectl get",
    )
    parser.add_argument(
        "--phase",
        metavar="PHASES",
        help="only jobs in these phases, such as running,queued; blocked: what is in the way",
    )


def run_list(arguments: argparse.Namespace, context: Context) -> int:
    """Show jobs as a table, those that wait for a person first."""
    if arguments.output is not None and "=" in arguments.output:
        return _list_by_kubectl(arguments, context)
    wanted = None if arguments.phase is None else parse_phases(arguments.phase)
    jobs = read_jobs(context.kubectl, selector=arguments.selector, everywhere=arguments.all_namespaces)
    jobs = [job for job in jobs if wanted is None or is_in_phase(job, wanted)]
    match arguments.output:
        case "json":
            context.console.show(json.dumps(_as_list(jobs), indent=2, ensure_ascii=False))
        case "yaml":
            context.console.show(render_yaml(_as_list(jobs)).rstrip("\n"))
        case "name":
            context.console.show(f"{JOBS}/{job.name}" for job in jobs)
        case _ if jobs:
            shown = show_list(
                jobs,
                context.console.ink,
                context.now(),
                wide=arguments.output == "wide",
                with_namespace=arguments.all_namespaces,
            )
            context.console.show(shown)
        case _:
            place = "any namespace" if arguments.all_namespaces else _namespace(context)
            phases = f" with --phase {one_line(arguments.phase)}" if wanted is not None else ""
            context.console.remark(f"No BertPretrainJobs in {place}{phases}.")
    return EXIT_SUCCEEDED


def _list_by_kubectl(arguments: argparse.Namespace, context: Context) -> int:
    if arguments.phase is not None:
        raise InputError(
            f"got --phase beside -o {one_line(arguments.output)}; allowed: one of them",
            hint="kubectl prints such lists by itself; -o json --phase has the jobs for other programs",
        )
    text = print_jobs(
        context.kubectl, arguments.output, selector=arguments.selector, everywhere=arguments.all_namespaces
    )
    context.console.show(text.removesuffix("\n"))
    return EXIT_SUCCEEDED


def add_status_options(parser: argparse.ArgumentParser) -> None:
    """Options of ``status``."""
    parser.add_argument("name", metavar="NAME", help="of the job")
    parser.add_argument(
        "-v", "--verbose", action="store_true", help="with pods, conditions, all figures and all failures"
    )
    parser.add_argument(
        "-o",
        "--output",
        choices=_OUTPUTS,
        help="wide: as -v; name: the name alone; json, yaml: what is shown, for programs",
    )


def run_status(arguments: argparse.Namespace, context: Context) -> int:
    """Show one screen about a job."""
    seen = gather_status(context.kubectl, arguments.name, context.now(), context.where)
    match arguments.output:
        case "json":
            context.console.show(json.dumps(summarize(seen), indent=2, ensure_ascii=False))
        case "yaml":
            context.console.show(render_yaml(summarize(seen)).rstrip("\n"))
        case "name":
            context.console.show(f"{JOBS}/{seen.job.name}")
        case output:
            verbose = arguments.verbose or output == "wide"
            context.console.show(show_status(seen, context.console.ink, verbose=verbose, width=context.console.width))
    return EXIT_SUCCEEDED


def _as_list(jobs: list[Job]) -> dict[str, object]:
    return {"apiVersion": "v1", "kind": "List", "items": [job.document for job in jobs]}


def _namespace(context: Context) -> str:
    return f"namespace {context.kubectl.namespace}" if context.kubectl.namespace else "the context's namespace"
