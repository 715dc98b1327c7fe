"""``collect``."""

from __future__ import annotations

import argparse
import io
import json
import os
import platform
import tarfile
from collections.abc import Iterator
from pathlib import Path

from bert_operator import __version__
from bert_operator.errors import EXIT_SUCCEEDED, OperatorError
from bert_operator.plugin.context import Context
from bert_operator.plugin.errors import ApiRefused
from bert_operator.plugin.job import Job
from bert_operator.plugin.reading import first_line, read_job, read_log, read_pods_of, see
from bert_operator.plugin.redaction import redact, redact_text
from bert_operator.plugin.surroundings import read_events, read_family
from bert_operator.plugin.terminal import PLAIN
from bert_operator.plugin.views.status_view import show_status

_LINES = 10_000
"""Of each log: its end."""

File = tuple[str, str]
"""Name and content."""


def add_collect_options(parser: argparse.ArgumentParser) -> None:
    """Options of ``collect``."""
    parser.add_argument("name", metavar="NAME", help="of the job")
    parser.add_argument("--file", type=Path, metavar="FILE", help="what is written; default: NAME-support.tar.gz")


def run_collect(arguments: argparse.Namespace, context: Context) -> int:
    """Write what others need to help with a job into one archive: objects, Events, logs, versions; without secrets.

    Secrets are not read. Variables that are called like one (TOKEN, PASSWORD, KEY ...), credentials in URLs, bearer
    tokens and private keys are replaced. Look at the files before you hand them on: a secret under a harmless name, and
    what ranks print of your text, cannot be told from other words.
    """
    path = arguments.file or Path(f"{arguments.name}-support.tar.gz")
    job = read_job(context.kubectl, arguments.name)
    folder = f"{job.namespace}-{job.name}"
    try:
        # Made anew, and for its owner alone.
        file = os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")
        with file, tarfile.open(fileobj=file, mode="w:gz") as archive:
            for name, text in _files(job, context):
                content = text.encode(errors="replace")
                entry = tarfile.TarInfo(f"{folder}/{name}")
                entry.size, entry.mode, entry.mtime = len(content), 0o600, int(context.now())
                archive.addfile(entry, io.BytesIO(content))
    except OSError as error:
        message = f"{path}: cannot be written ({error.strerror or error})"
        raise OperatorError(message, hint="--file names another one") from error
    context.console.show(str(path))
    context.console.remark("Look through it before you hand it on: secrets are found by name and form alone.")
    return EXIT_SUCCEEDED


def _files(job: Job, context: Context) -> Iterator[File]:
    """Yield what is collected; what cannot be read is named in the last file."""
    kubectl = context.kubectl
    missing: list[str] = []
    yield "job.json", _json(job.document)
    seen = see(kubectl, job.name, context.now())
    yield "status.txt", redact_text("\n".join(show_status(seen, PLAIN, verbose=True))) + "\n"
    family = read_family(kubectl, job)
    missing += family.missing
    for item in family.objects:
        yield f"{str(item.get('kind')).lower()}-{item['metadata']['name']}.json", _json(item)
    try:
        yield "events.json", _json(read_events(kubectl, job))
    except ApiRefused as error:
        missing.append(f"events: {first_line(error)}")
    for pod in read_pods_of(kubectl, job) if not any(text.startswith("pods") for text in missing) else ():
        if not pod.has_started:
            continue
        try:
            yield f"{pod.name}.log", redact_text("\n".join(read_log(kubectl, job, pod, tail=_LINES)))
        except ApiRefused as error:
            missing.append(f"log of {pod.name}: {first_line(error)}")
    versions = kubectl.run("version", "-o", "json")
    about = {"plugin": __version__, "python": platform.python_version(), "kubectl": versions.output or versions.errors}
    yield "versions.json", _json(about)
    yield "missing.txt", redact_text("\n".join(missing)) + "\n"


def _json(document: object) -> str:
    return json.dumps(redact(document), indent=2, ensure_ascii=False) + "\n"
