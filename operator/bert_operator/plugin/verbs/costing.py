"""``cost``."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from bert_operator.errors import EXIT_SUCCEEDED, InputError
from bert_operator.plugin.context import Context
from bert_operator.plugin.prices import parse_prices
from bert_operator.plugin.reading import read_frozen_spec, read_job
from bert_operator.plugin.views.cost_view import document_of, find_cost, show_cost


def add_cost_options(parser: argparse.ArgumentParser) -> None:
    """Options of ``cost``."""
    parser.add_argument("name", metavar="NAME", help="of the job")
    parser.add_argument(
        "--price",
        action="append",
        default=[],
        metavar="RESOURCE=PRICE",
        help="of one hour: node=3.06, or what is in it: cpu=0.04, memory=0.005 (a GiB), nvidia.com/gpu=2.5; repeatable",
    )
    parser.add_argument(
        "--prices",
        type=Path,
        metavar="FILE",
        help="the same as lines 'resource: price' or as JSON, perhaps with a line 'currency: EUR'",
    )
    parser.add_argument("-o", "--output", choices=("json",), help="for programs")


def run_cost(arguments: argparse.Namespace, context: Context) -> int:
    """Show the node-hours, core-hours and GPU-hours of a job over all its attempts, so far and at the end.

    Prices are yours, none is built in. What the figures leave out stands below them.
    """
    table = None
    if arguments.prices is not None:
        try:
            table = arguments.prices.read_text()
        except (OSError, ValueError) as error:
            raise InputError(
                f"--prices {arguments.prices}: cannot be read ({error})", hint="check the path and the file's rights"
            ) from error
    # Before the cluster is asked: a price that is none says so at once.
    prices = parse_prices(arguments.price, table, source=str(arguments.prices))
    job = read_job(context.kubectl, arguments.name)
    frozen = read_frozen_spec(context.kubectl, job)
    cost = find_cost(job, job.spec if frozen is None else frozen, context.now(), is_frozen=frozen is not None)
    if arguments.output == "json":
        context.console.show(json.dumps(document_of(job, cost, prices), indent=2))
    else:
        context.console.show(show_cost(job, cost, prices, context.console.ink, context.console.width))
    return EXIT_SUCCEEDED
