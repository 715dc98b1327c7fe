"""``doctor`` and ``version``."""

from __future__ import annotations

import argparse
import json
from typing import Any

from bert_job.foreign_text import one_line
from bert_operator import __version__
from bert_operator.doctor import command
from bert_operator.doctor.reading import Refused
from bert_operator.errors import EXIT_SUCCEEDED
from bert_operator.plugin.context import Context
from bert_operator.plugin.errors import ApiRefused
from bert_operator.plugin.kubectl import Kubectl
from bert_operator.plugin.kubectl_reader import KubectlReader
from bert_operator.plugin.reading import first_line

_OPERATORS = "app.kubernetes.io/name=bert-operator"
"""The label that the Deployment of an operator has, from the chart as well as from deploy/."""


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
        report = command.run(arguments, KubectlReader(context.kubectl))
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


def add_version_options(parser: argparse.ArgumentParser) -> None:
    """Options of ``version``."""
    parser.add_argument("-o", "--output", choices=("json",), help="for programs")


def run_version(arguments: argparse.Namespace, context: Context) -> int:
    """Show the versions of the plugin, of the operators in the cluster and of the cluster itself.

    With --namespace, operators are looked for in that one alone. What may not be read is named; whether versions fit
    each other is looked at by ``doctor``.
    """
    missing: list[str] = []
    operators = _operators(context.kubectl, missing)
    cluster = _cluster_version(context.kubectl, missing)
    if arguments.output == "json":
        document = {"plugin": __version__, "operators": operators, "kubernetes": cluster}
        context.console.show(json.dumps(document, indent=2, ensure_ascii=False))
    else:
        context.console.show(f"kubectl bert   {__version__}")
        for operator in operators or ():
            name, image, ready = (one_line(operator[key]) for key in ("name", "image", "ready"))
            context.console.show(f"operator       {name}: {image}, {ready} ready")
        if operators == []:
            context.console.show(f"operator       none found; kubectl bert doctor{context.where} says what is there")
        if cluster is not None:
            context.console.show(f"Kubernetes     {one_line(cluster)}")
    for text in missing:
        context.console.remark(f"not known: {text}")
    return EXIT_SUCCEEDED


def _operators(kubectl: Kubectl, missing: list[str]) -> list[dict[str, str]] | None:
    """Return the operators' Deployments; None where they may not be read, which is added to ``missing``."""
    words = ("get", "deployments.apps", "--selector", _OPERATORS)
    try:
        found = kubectl.read(*words, *(() if kubectl.namespace else ("--all-namespaces",))).get("items") or ()
    except ApiRefused as error:
        missing.append(f"operator: {first_line(error)}")
        return None
    return [_operator(deployment) for deployment in found]


def _operator(deployment: dict[str, dict[str, Any]]) -> dict[str, str]:
    metadata, spec, status = (deployment.get(part) or {} for part in ("metadata", "spec", "status"))
    containers = ((spec.get("template") or {}).get("spec") or {}).get("containers") or ()
    return {
        "name": f"{metadata.get('namespace')}/{metadata.get('name')}",
        "image": ", ".join(str(container.get("image")) for container in containers),
        "ready": f"{status.get('readyReplicas', 0)} of {spec.get('replicas', 1)}",
    }


def _cluster_version(kubectl: Kubectl, missing: list[str]) -> str | None:
    try:
        return str(kubectl.get_raw("/version").get("gitVersion"))
    except ApiRefused as error:
        missing.append(f"Kubernetes: {first_line(error)}")
        return None
