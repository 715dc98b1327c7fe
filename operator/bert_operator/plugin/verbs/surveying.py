"""``events`` and ``tree``."""

from __future__ import annotations

import argparse
import json

from bert_operator.errors import EXIT_SUCCEEDED
from bert_operator.plugin.context import Context
from bert_operator.plugin.event import read_event
from bert_operator.plugin.reading import read_job
from bert_operator.plugin.related_objects import read_events, read_related_objects
from bert_operator.plugin.views.event_view import show_events
from bert_operator.plugin.views.tree_view import show_tree


def add_events_options(parser: argparse.ArgumentParser) -> None:
    """Options of ``events``."""
    parser.add_argument("name", metavar="NAME", help="of the job")
    parser.add_argument("--warnings", action="store_true", help="only Events of type Warning")
    parser.add_argument("-o", "--output", choices=("json",), help="the Events as kubectl has them")


def run_events(arguments: argparse.Namespace, context: Context) -> int:
    """Show the Events about a job, its children and its pods in one list, the newest last.

    Events of earlier attempts are among them. The API server keeps Events for an hour, unless it is told otherwise.
    """
    job = read_job(context.kubectl, arguments.name)
    events = read_events(context.kubectl, job)
    if arguments.warnings:
        events = [event for event in events if event.get("type") == "Warning"]
    if arguments.output == "json":
        document = {"apiVersion": "v1", "kind": "List", "items": events}
        context.console.show(json.dumps(document, indent=2, ensure_ascii=False))
    elif events:
        context.console.show(show_events([read_event(event) for event in events], context.console.ink, context.now()))
    else:
        context.console.remark(f"No Events about {job.namespace}/{job.name}; the API server keeps them for an hour.")
    return EXIT_SUCCEEDED


def add_tree_options(parser: argparse.ArgumentParser) -> None:
    """Options of ``tree``."""
    parser.add_argument("name", metavar="NAME", help="of the job")


def run_tree(arguments: argparse.Namespace, context: Context) -> int:
    """Show a job with everything that it owns: configuration, network policy, attempts, pods and their nodes."""
    job = read_job(context.kubectl, arguments.name)
    related = read_related_objects(context.kubectl, job)
    context.console.show(show_tree(job, related.objects, context.console.ink, context.now()))
    for text in related.missing:
        context.console.remark(f"not shown: {text}")
    return EXIT_SUCCEEDED
