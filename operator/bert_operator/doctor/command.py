"""The command line's part of the doctor: options in, a report out. What prints it belongs to the caller."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from bert_operator.doctor.catalog import CHECKS, PREFLIGHT, examine
from bert_operator.doctor.checks.before import INSTALLING
from bert_operator.doctor.gathering import THREADS, gather
from bert_operator.doctor.reading import Reader, Refused
from bert_operator.doctor.report import Report
from bert_operator.json_paths import dig

Right = tuple[str, str, str, str]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that are the doctor's own."""
    parser.add_argument(
        "--pre",
        action="store_true",
        help="before the operator is installed: whether you may install it, what stands in the way, what is missing",
    )


def run(arguments: argparse.Namespace, reader: Reader) -> Report:
    """Read the cluster and run all checks. ``namespace`` of the arguments limits what belongs to jobs.

    Raises:
        Refused: The API server does not answer, or does not know who asks.
    """
    namespace = getattr(arguments, "namespace", None) or ""
    snapshot = gather(reader, namespace=namespace, is_before=arguments.pre)
    if arguments.pre:
        snapshot = replace(snapshot, allowed=ask_rights(reader, INSTALLING))
    return Report(examine(snapshot, PREFLIGHT if arguments.pre else CHECKS))


def ask_rights(reader: Reader, rights: Iterable[Right]) -> dict[Right, bool]:
    """Return the user's permissions; those for which the API server gives no answer are left out."""
    wanted = list(rights)
    with ThreadPoolExecutor(THREADS) as pool:
        answers = pool.map(lambda right: _may(reader, right), wanted)
    return {right: answer for right, answer in zip(wanted, answers, strict=True) if answer is not None}


def _may(reader: Reader, right: Right) -> bool | None:
    verb, group, resource, namespace = right
    asked = {"verb": verb, "group": group, "resource": resource, **({"namespace": namespace} if namespace else {})}
    kind = "SelfSubjectAccessReview"
    body = {"apiVersion": "authorization.k8s.io/v1", "kind": kind, "spec": {"resourceAttributes": asked}}
    try:
        answer = reader.post("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body)
    except Refused:
        return None
    return bool(dig(answer, "status", "allowed"))
