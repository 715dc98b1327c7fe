"""The command line: run a job on this machine, check or render it, or run the operator.

Results go to standard output, remarks to standard error. Exit codes: 0 succeeded, 1 failed, 2 invalid input,
130 stopped by Ctrl-C.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from bert_operator import __version__
from bert_operator.api.parsing.documents import read_job_document
from bert_operator.api.parsing.validation import advise, parse_job
from bert_operator.api.schema.bert_pretrain_job import BertPretrainJob
from bert_operator.cluster.render_command import NO_UID, SHOWN, ClusterJob, read_for_cluster
from bert_operator.errors import EXIT_SUCCEEDED, OperatorError
from bert_operator.local.command import LocalOptions, on_these_machines, run_local
from bert_operator.local.programs import find_programs
from bert_operator.render.run_config import render_run_config

_LOCAL_HELP = """\
Run a job with processes of this machine: the data preparation, then workers x slotsPerWorker training ranks.

With --hostfile ranks are spread over several machines by ssh. Then the working directory, the Python
environment and the output folder must have the same paths on all of them (a shared file system), and ssh
must work without a password.

Ctrl-C stops with a checkpoint, a second Ctrl-C at once. Exit codes: 0 succeeded, 1 failed, 2 invalid input,
130 stopped by Ctrl-C.
"""


_SETTINGS_HELP = "the operator's settings as YAML, whose profiles complete the job; default: none, as without a cluster"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. argv: without the program's name; None: that of this process."""
    arguments = _parser().parse_args(argv)
    try:
        code: int = arguments.command(arguments)
    except OperatorError as error:
        _remark(str(error))
        return error.exit_code
    except BrokenPipeError:
        sys.stdout = None  # Python would flush the rest of its buffer at exit, and fail
        return 1
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bert-operator", description="Pretrain BERT from one manifest.")
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    local = commands.add_parser(
        "local",
        help="run a job on this machine",
        description=_LOCAL_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    local.set_defaults(command=_local)
    local.add_argument("job", type=Path, metavar="JOB.yaml", help="the BertPretrainJob")
    local.add_argument("--hostfile", type=Path, metavar="FILE", help="machines to use, one name or address per line")
    local.add_argument(
        "--ranks-per-node",
        type=_count,
        metavar="N",
        help="ranks on every machine; default: spec.slotsPerWorker",
    )
    local.add_argument(
        "--mpi",
        choices=("auto", "open-mpi", "gloo"),
        default="auto",
        help="launcher of the ranks; auto: Open MPI if it is installed, else Horovod's Gloo",
    )
    local.add_argument("--output", type=Path, metavar="PATH", help="output folder instead of spec.output.path")
    local.add_argument("--plain", action="store_true", help="plain lines instead of progress bars, even in a terminal")
    check = commands.add_parser("check", help="report all problems of a job")
    check.set_defaults(command=_check)
    check.add_argument("job", type=Path, metavar="JOB.yaml")
    check.add_argument("--settings", type=Path, metavar="FILE", help=_SETTINGS_HELP)
    render = commands.add_parser("render", help="print what a job is rendered to, and create nothing")
    render.set_defaults(command=_render)
    render.add_argument("job", type=Path, metavar="JOB.yaml")
    render.add_argument(
        "--show",
        choices=SHOWN,
        default="run-config",
        help="run-config: the trainer's run configuration on this machine, as JSON (default); job: the job in a "
        "cluster, with its profile and all defaults; objects: what the operator would create for the first attempts",
    )
    render.add_argument("--settings", type=Path, metavar="FILE", help=_SETTINGS_HELP)
    run = commands.add_parser("run", help="run the operator: watch BertPretrainJobs in a cluster and reconcile them")
    run.set_defaults(command=_run)
    run.add_argument("--settings", type=Path, metavar="FILE", help="the operator's settings as YAML; default: none")
    run.add_argument(
        "--namespace",
        action="append",
        default=[],
        metavar="NAME",
        help="watch only this namespace (repeatable); default: those of the settings, else all",
    )
    run.add_argument("--http-port", type=int, metavar="PORT", help="for /metrics, /healthz and /readyz")
    return parser


def _run(arguments: argparse.Namespace) -> int:
    # kopf and the Kubernetes client are loaded by the one command that needs them.
    from bert_operator.cluster.service import run_operator
    from bert_operator.cluster.settings import load_settings

    settings = load_settings(arguments.settings)
    if arguments.namespace:
        settings = settings.model_copy(update={"namespaces": tuple(arguments.namespace)})
    if arguments.http_port is not None:
        settings = settings.model_copy(update={"http_port": arguments.http_port})
    run_operator(settings)
    return EXIT_SUCCEEDED


def _local(arguments: argparse.Namespace) -> int:
    return run_local(
        _read_job(arguments.job),
        LocalOptions(
            hostfile=arguments.hostfile,
            ranks_per_node=arguments.ranks_per_node,
            mpi=arguments.mpi,
            output=arguments.output,
            plain=arguments.plain,
        ),
    )


def _check(arguments: argparse.Namespace) -> int:
    if arguments.settings is None:
        _read_job(arguments.job)
    else:
        _read_for_cluster(arguments)
    _print("valid")
    return EXIT_SUCCEEDED


def _render(arguments: argparse.Namespace) -> int:
    if arguments.show != "run-config" or arguments.settings is not None:
        _print(_read_for_cluster(arguments).show(arguments.show))
        return EXIT_SUCCEEDED
    # ranksPerNode: auto is resolved with this machine's sockets, as in ``local``.
    job = on_these_machines(_read_job(arguments.job), (), None, find_programs())
    folder = str(Path(job.spec.output.path).expanduser().absolute())
    config = render_run_config(job, uid=NO_UID, ranks=job.spec.ranks, hosts=job.spec.workers, output_folder=folder)
    _print(json.dumps(config, indent=2))
    return EXIT_SUCCEEDED


def _read_for_cluster(arguments: argparse.Namespace) -> ClusterJob:
    found = read_for_cluster(arguments.job, arguments.settings)
    _note(found.job)
    return found


def _read_job(path: Path) -> BertPretrainJob:
    """Read a valid job and print advice about unusual values. Raises OperatorError if it is invalid."""
    job = parse_job(read_job_document(path))
    _note(job)
    return job


def _note(job: BertPretrainJob) -> None:
    for remark in advise(job):
        _remark(f"note: {remark}")


def _count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 256:
        raise argparse.ArgumentTypeError(f"got {text!r}; allowed: an integer from 1 to 256")
    return int(text)


def _print(text: str) -> None:
    print(text, flush=True)  # noqa: T201 - results go to standard output


def _remark(text: str) -> None:
    print(text, file=sys.stderr, flush=True)  # noqa: T201 - remarks go to standard error


if __name__ == "__main__":
    raise SystemExit(main())
