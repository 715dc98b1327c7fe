"""``doctor``."""

from __future__ import annotations

import argparse
import json

from bert_operator.doctor import command
from bert_operator.doctor.kubectl_reader import KubectlReader
from bert_operator.doctor.reading import Refused
from bert_operator.plugin.context import Context
from bert_operator.plugin.errors import ApiRefused


def add_doctor_options(parser: argparse.ArgumentParser) -> None:
    """Options of ``doctor``."""
    command.add_options(parser)
    parser.add_argument("-o", "--output", choices=("json",), help="the findings for programs")


def run_doctor(arguments: argparse.Namespace, context: Context) -> int:
    """Look for what is wrong with a cluster, before a job finds out.

    The operator, its settings and rights, mpi-operator, Kueue, namespaces, volumes, images, nodes and names are looked
    at. Every finding says why it matters and what to do. Nothing is changed.

    With --namespace only the jobs, claims and quotas of that one are looked at, else those of all. A check that may not
    look says which right it needs, and counts as a failure: the exit code is 0 where nothing worse than a warning was
    found, and 1 where an error was found or a check could not look.
    """
    try:
        report = command.run(arguments, KubectlReader([context.kubectl.program, *context.kubectl.options]))
    except Refused as refusal:
        raise ApiRefused(
            f"the API server gave no answer: {refusal.message}",
            status=refusal.status,
            hint="kubectl version must show a server: check kubeconfig and context",
        ) from refusal
    if arguments.output == "json":
        context.console.show(json.dumps(report.document(), indent=2))
    else:
        context.console.show(report.lines(colour=context.console.ink.colours))
    return report.exit_code
