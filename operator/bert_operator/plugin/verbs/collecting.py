"""``collect``."""

from __future__ import annotations

import argparse
import gzip
import io
import os
import tarfile
from collections.abc import Mapping
from pathlib import Path

from bert_job.foreign_text import one_line
from bert_operator.errors import EXIT_SUCCEEDED, InputError, OperatorError
from bert_operator.plugin.bundle import Gathered, make_files, names_in
from bert_operator.plugin.context import Context
from bert_operator.plugin.errors import ApiRefused
from bert_operator.plugin.job import Json, read_pods
from bert_operator.plugin.kubectl import Kubectl
from bert_operator.plugin.reading import read_job, read_log
from bert_operator.plugin.related_objects import KINDS, read_events, read_related_objects
from bert_operator.plugin.sharing import Numbers, load_shareable

_TAIL = 10_000
"""Lines of each log, from its end."""


def add_collect_options(parser: argparse.ArgumentParser) -> None:
    """Options of ``collect``."""
    parser.add_argument("name", metavar="NAME", help="of the job")
    parser.add_argument("--output", type=Path, metavar="FILE", help="default: NAME-support.tar.gz; must not exist yet")


def run_collect(arguments: argparse.Namespace, context: Context) -> int:
    """Write what others need to help with a job into one archive, without any text that somebody has chosen.

    It holds numbers, times and words of closed lists from the job, its children, pods, Events and the trainer's own log
    records. Names are numbered; of all else type and length are left. No environment, annotations, command lines,
    Secrets or ConfigMaps. Look at the files before you hand them on.
    """
    gathered = _gather(context.kubectl, arguments.name)
    numbers = Numbers()
    files = make_files(gathered, load_shareable(), numbers)
    path = arguments.output or Path(f"{gathered.job.name}-support.tar.gz")
    _write(path, files)
    context.console.show([f"{len(content.encode()):>9}  support/{name}" for name, content in files.items()])
    for line in names_in(numbers):
        context.console.remark(one_line(line))
    context.console.remark(f"written to {path}; names stand on this screen alone")
    context.console.remark(f"look at the files before you send them: tar -xzf {path}")
    return EXIT_SUCCEEDED


def _gather(kubectl: Kubectl, name: str) -> Gathered:
    job = read_job(kubectl, name)
    missing: list[str] = []
    events: list[Json] = []
    versions: Json = {}
    logs: dict[str, list[str]] = {}
    related = read_related_objects(kubectl, job)
    # What the API server says may quote anything: the kind alone is told.
    missing += [kind for kind in KINDS if any(line.startswith(kind.partition(".")[0]) for line in related.missing)]
    try:
        events = read_events(kubectl, job)
    except ApiRefused:
        missing.append("events")
    try:
        versions = kubectl.read("version")
    except OperatorError:
        missing.append("versions")
    for pod in read_pods(related.objects):
        if pod.has_log and pod.has_started and pod.created_s >= job.created_s:
            try:
                logs[pod.name] = read_log(kubectl, job, pod, tail=_TAIL, timestamps=True)
            except ApiRefused:
                missing.append("a log")
    # Those of the frozen configuration hold the job as text.
    objects = [item for item in related.objects if item.get("kind") != "ConfigMap"]
    return Gathered(job=job, objects=objects, events=events, logs=logs, versions=versions, missing=missing)


def _write(path: Path, files: Mapping[str, str]) -> None:
    archive = io.BytesIO()
    # Neither the file's name nor the user's stands in it.
    with (
        gzip.GzipFile(filename="", fileobj=archive, mode="wb", mtime=0) as zipped,
        tarfile.open(fileobj=zipped, mode="w", format=tarfile.USTAR_FORMAT) as target,
    ):
        for name, content in files.items():
            entry = tarfile.TarInfo(f"support/{name}")
            entry.size, entry.mode = len(content.encode()), 0o600
            target.addfile(entry, io.BytesIO(content.encode()))
    try:
        # Made anew, and for its owner alone.
        file = os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")
        try:
            with file:
                file.write(archive.getvalue())
        except BaseException:
            path.unlink()  # half of it would be in the way of the next one
            raise
    except OSError as error:
        raise InputError(
            f"--output: got {path}, which cannot be written ({error.strerror})", hint="name a file that is not there"
        ) from error
