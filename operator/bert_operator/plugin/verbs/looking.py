"""``list`` and ``status``."""

from __future__ import annotations

import argparse
import json

from bert_operator.errors import EXIT_SUCCEEDED
from bert_operator.plugin.context import Context
from bert_operator.plugin.job import Job
from bert_operator.plugin.kubectl import JOBS
from bert_operator.plugin.reading import read_jobs, see
from bert_operator.plugin.views.list_view import show_list
from bert_operator.plugin.views.status_view import show_status, summarize
from bert_operator.plugin.yaml_text import render_yaml

_OUTPUTS = ("wide", "name", "json", "yaml")


def add_list_options(parser: argparse.ArgumentParser) -> None:
    """Options of ``list``."""
    parser.add_argument("-A", "--all-namespaces", action="store_true", help="jobs of every namespace")
    parser.add_argument("-l", "--selector", metavar="LABELS", help="only jobs with these labels, as in kubectl get")
    parser.add_argument(
        "-o",
        "--output",
        choices=_OUTPUTS,
        help="wide: with checkpoint, reason and image; name: one name a line; json, yaml: the jobs as kubectl has them",
    )


def run_list(arguments: argparse.Namespace, context: Context) -> int:
    """Show jobs as a table, those that wait for a person first."""
    jobs = read_jobs(context.kubectl, selector=arguments.selector, everywhere=arguments.all_namespaces)
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
            context.console.remark(f"No BertPretrainJobs in {place}.")
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
    seen = see(context.kubectl, arguments.name, context.now(), context.where)
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
