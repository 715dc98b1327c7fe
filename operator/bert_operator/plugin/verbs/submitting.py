"""``submit``, ``export``, ``lint`` and ``render``."""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from bert_operator.errors import EXIT_FAILED, EXIT_SUCCEEDED, DocumentError, LaunchError
from bert_operator.names import KIND
from bert_operator.plugin.changing import manifest_of
from bert_operator.plugin.context import Context
from bert_operator.plugin.job import Job
from bert_operator.plugin.kubectl import explain
from bert_operator.plugin.reading import read_job
from bert_operator.plugin.verbs.steering import teller
from bert_operator.plugin.views.progress_line import progress_line
from bert_operator.plugin.waiting import parse_awaited, wait_for
from bert_operator.yaml_text import render_yaml

_NO_DIFFERENCE, _DIFFERENT = 0, 1
"""Exit codes of ``kubectl diff``."""
_PACKAGE = "bert-pretrain-operator[operator]"


def add_submit_options(parser: argparse.ArgumentParser) -> None:
    """Options of ``submit``."""
    parser.add_argument("file", metavar="JOB.yaml", help="with one or more jobs, and other objects; -: standard input")
    how = parser.add_mutually_exclusive_group()
    how.add_argument(
        "--dry-run",
        choices=("client", "server"),
        help="client: judged by the job's rules in Python, and no cluster is asked (needs bert-operator installed); "
        "server: judged by the API server with its admission, and nothing is kept",
    )
    how.add_argument(
        "--diff", action="store_true", help="show what would change in the cluster; exit code 1 if anything would"
    )
    how.add_argument(
        "--watch", action="store_true", help="wait until the job has ended; exit code 1 if it has not succeeded"
    )


def run_submit(arguments: argparse.Namespace, context: Context) -> int:
    """Create the jobs of a manifest, or change them, as kubectl apply does."""
    given = sys.stdin.read() if arguments.file == "-" else None
    if arguments.dry_run == "client":
        return _run_operator(["check", arguments.file], "--dry-run=client", given=given)
    if arguments.diff:
        return _show_difference(arguments.file, given, context)
    dry_run = ["--dry-run=server"] if arguments.dry_run == "server" else []
    said = context.kubectl.call("apply", "-f", arguments.file, *dry_run, given=given)
    context.console.show(said.splitlines())
    if arguments.dry_run:
        return EXIT_SUCCEEDED
    jobs = _jobs_of(context.kubectl.read("get", "-f", arguments.file, given=given))
    if not jobs:
        raise DocumentError(f"{arguments.file}: holds no BertPretrainJob; what it holds is applied")
    if arguments.watch:
        return _watch(jobs, context)
    for job in jobs:
        where = context.kubectl.within(job.namespace).where
        context.console.remark(f"kubectl bert status {job.name}{where} shows what becomes of it")
    return EXIT_SUCCEEDED


def _show_difference(file: str, given: str | None, context: Context) -> int:
    words = ("diff", "-f", file)
    ended = context.kubectl.run(*words, given=given)
    if ended.code not in (_NO_DIFFERENCE, _DIFFERENT) or ended.code == _DIFFERENT and not ended.output:
        raise explain(words, ended.errors)
    context.console.show(ended.output.splitlines())
    if not ended.output:
        context.console.remark("Nothing would change.")
    return ended.code


def _watch(jobs: list[Job], context: Context) -> int:
    code = EXIT_SUCCEEDED
    for job in jobs:
        ended = wait_for(
            context.kubectl.within(job.namespace),
            job.name,
            parse_awaited("ended"),
            tell=teller(context),
            pause=context.pause,
        )
        assert ended is not None, "only a deletion is waited for without a job"
        context.console.show(progress_line(ended))
        if ended.phase != "Succeeded":
            code = EXIT_FAILED
    return code


def _jobs_of(document: dict[str, object]) -> list[Job]:
    items = document.get("items")
    found = items if isinstance(items, list) else [document]
    return [Job(item) for item in found if item.get("kind") == KIND]


def add_export_options(parser: argparse.ArgumentParser) -> None:
    """Options of ``export``."""
    parser.add_argument("name", metavar="NAME", help="of the job")
    parser.add_argument("-o", "--output", choices=("yaml", "json"), default="yaml", help="default: yaml")
    parser.add_argument("--as-name", metavar="NAME", help="another name, for a job of its own")


def run_export(arguments: argparse.Namespace, context: Context) -> int:
    """Print a job as a manifest that can be applied again: without its status and what the API server has added.

    A job under the same name meets its predecessor's output folder, where output.ifExists decides; one with --as-name
    needs an output.path of its own.
    """
    manifest = manifest_of(read_job(context.kubectl, arguments.name))
    if arguments.as_name is not None:
        manifest["metadata"]["name"] = arguments.as_name
    if arguments.output == "json":
        context.console.show(json.dumps(manifest, indent=2, ensure_ascii=False))
    else:
        context.console.show(render_yaml(manifest).rstrip("\n"))
    return EXIT_SUCCEEDED


def add_lint_options(parser: argparse.ArgumentParser) -> None:
    """Options of ``lint``."""
    parser.add_argument("files", metavar="JOB.yaml", nargs="+", help="files with jobs; -: standard input")


def run_lint(arguments: argparse.Namespace, context: Context) -> int:
    """Report all problems of job files, as bert-operator check --cluster does; no cluster is asked."""
    return _run_operator(["check", "--cluster", *arguments.files], "lint")


def add_render_options(parser: argparse.ArgumentParser) -> None:
    """Options of ``render``."""
    parser.add_argument("file", metavar="JOB.yaml", help="with one job; -: standard input")
    parser.add_argument(
        "--show",
        choices=("objects", "job"),
        default="objects",
        help="objects: what the operator would create, and when (default); job: the job with its profile and all "
        "defaults",
    )
    parser.add_argument(
        "--settings",
        type=Path,
        metavar="FILE",
        help="the operator's settings or the ConfigMap that holds them, whose profiles complete the job; default: the "
        "operator's default settings, without profiles",
    )


def run_render(arguments: argparse.Namespace, context: Context) -> int:
    """Print what the operator would make of a job. No cluster is asked, and nothing is created.

    Needs bert-operator installed. A cluster's own settings are in a ConfigMap that kubectl -n
    bert-operator get configmaps lists, if you may read it: write it to a file by -o yaml, then --settings FILE.
    """
    given = sys.stdin.read() if arguments.file == "-" else None
    settings = ["--settings", str(arguments.settings)] if arguments.settings else []
    words = ["render", arguments.file, "--show", arguments.show, *settings]
    return _run_operator(words, "render", given=given)


def _run_operator(words: Sequence[str], needed_for: str, *, given: str | None = None) -> int:
    """Run ``bert-operator`` with these words, in this terminal; return its exit code.

    What needs more than the standard library is its own, and done where it is installed.

    Args:
        words: What stands behind ``bert-operator``.
        needed_for: What cannot be done without it.
        given: Its standard input; None: this process's own.

    Raises:
        LaunchError: It is not installed.
    """
    # Beside the interpreter first: in a virtual environment that is not activated it is not in PATH.
    beside = Path(sys.executable).with_name("bert-operator")
    program = str(beside) if beside.is_file() else shutil.which("bert-operator")
    if program is None:
        raise LaunchError(
            f"{needed_for}: needs the rules of the job in Python, and bert-operator is not installed",
            hint=f"pip install '{_PACKAGE}'; submit --dry-run=server has the API server judge the manifest instead",
        )
    return subprocess.run([program, *words], input=given, text=True, check=False).returncode
