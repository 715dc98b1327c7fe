"""The command line: run a job on this machine, check or render it, run the operator, or look after jobs in a cluster.

Results go to standard output, remarks to standard error. Exit codes: 0 succeeded, 1 failed, 2 invalid input,
3 no such object and 4 time is up (verbs of ``kubectl bert``), 130 stopped by Ctrl-C.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bert_job.tasks import OWN_TABLES
from bert_operator import __version__
from bert_operator.api.parsing.documents import count_others, read_job_document, read_job_stream, source_of
from bert_operator.api.parsing.validation import advise, null_remarks, parse_job
from bert_operator.api.schema.bert_pretrain_job import BertPretrainJob
from bert_operator.api.small_job import SmallJobTarget, fetch_command, missing_task_files, shrink
from bert_operator.cluster.admission_policy import render_admission_policy
from bert_operator.cluster.mismatches import find_mismatches
from bert_operator.cluster.render_command import (
    NO_UID,
    SHOWN,
    ClusterJob,
    describe_settings,
    read_for_cluster,
    write_job,
)
from bert_operator.cluster.settings import Settings, load_settings
from bert_operator.errors import EXIT_BAD_INPUT, EXIT_SUCCEEDED, DocumentError, InvalidJob, OperatorError
from bert_operator.local.command import LocalOptions, fit_to_machines, run_local
from bert_operator.local.programs import find_precisions, find_programs
from bert_operator.plugin.command_line import add_verbs
from bert_operator.render.run_config import render_run_config

_LOCAL_HELP = """\
Run a job with processes of this machine: the data preparation, then workers x slotsPerWorker training ranks.

With --hostfile ranks are spread over several machines by ssh. Then the working directory, the Python
environment and the output folder must have the same paths on all of them (a shared file system), and ssh
must work without a password.

Ctrl-C stops with a checkpoint, a second Ctrl-C at once. Exit codes: 0 succeeded, 1 failed, 2 invalid input,
130 stopped by Ctrl-C.
"""


_NAMESPACE_HELP = "hold only jobs of this namespace against it (repeatable); default: those of the settings, else all"
_POLICY_HELP = """\
Print a ValidatingAdmissionPolicy, with its binding, for kubectl apply --server-side -f -: what the settings' limits and
privileges forbid a single job is then refused when it is applied. What a profile adds, and sums over a namespace,
remain the operator's. Print it again when the settings change, and after an upgrade."""
_SETTINGS_FILE_HELP = """\
the operator's settings as YAML, or the ConfigMap that holds them (kubectl -n bert-operator get configmap
bert-operator-settings -o yaml)"""
_SETTINGS_HELP = f"{_SETTINGS_FILE_HELP}, whose profiles complete the job"
_SMALL_HELP = """\
the same job at laptop size: every stage in seconds, a tiny model, two ranks at most, no devices, a name and an output
folder of its own; what is changed is printed"""
_STATUS_HELP = """\
keep the job's metadata and status up to date in this file, for programs, as kubectl get -o json prints them"""
_EOF_HELP = """\
stop with a checkpoint when standard input ends, for programs: the job goes no further than whoever has started it"""
_TEXT_HELP = "with --small: the text that comes with Python in place of the job's data, even where that is there"

_MANIFEST = "manifest"
_NOT_LOOKED_AT = "not looked at: profile, volumes and privileges of a cluster (check --cluster)"

Document = dict[str, Any]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. argv: without the program's name; None: that of this process."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    if getattr(arguments, "builtin_text", False) and not arguments.small:
        parser.error("--builtin-text: only with --small, which keeps nothing of the results")
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
        help="launcher of the ranks; gloo: without MPI, by horovodrun or torchrun; auto: Open MPI if it is installed",
    )
    local.add_argument(
        "--collectives",
        choices=("horovod", "torch"),
        help="library that sums gradients, instead of spec.collectives; torch needs no Horovod",
    )
    local.add_argument("--output", type=Path, metavar="PATH", help="output folder instead of spec.output.path")
    local.add_argument("--plain", action="store_true", help="every line of the trainer as it comes, for programs")
    local.add_argument("--status", type=Path, metavar="FILE", help=_STATUS_HELP)
    local.add_argument("--stop-at-eof", action="store_true", help=_EOF_HELP)
    _add_small(local)
    _add_check(commands)
    _add_render(commands)
    policy = commands.add_parser(
        "admission-policy",
        help="print a policy that holds jobs against the operator's settings at kubectl apply",
        description=_POLICY_HELP,
    )
    policy.set_defaults(command=_admission_policy)
    policy.add_argument("--settings", type=Path, metavar="FILE", required=True, help=_SETTINGS_FILE_HELP)
    policy.add_argument("--namespace", action="append", default=[], metavar="NAME", help=_NAMESPACE_HELP)
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
    run.add_argument(
        "--lease",
        metavar="NAME",
        help="work only while holding this Lease of the own namespace, and stand by otherwise; for several replicas",
    )
    run.add_argument("--http-port", type=int, metavar="PORT", help="for /metrics, /healthz and /readyz")
    add_verbs(commands, is_operator=True)
    return parser


def _add_check(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    check = commands.add_parser("check", help="report all problems of jobs")
    check.set_defaults(command=_check)
    help_text = "files with BertPretrainJobs, among any other objects; -: standard input"
    check.add_argument("jobs", type=Path, metavar="JOB.yaml", nargs="+", help=help_text)
    check.add_argument(
        "--cluster",
        action="store_true",
        help="judge as a cluster's operator does: profile, volumes, privileges; by its default settings, or --settings",
    )
    check.add_argument("--settings", type=Path, metavar="FILE", help=f"{_SETTINGS_HELP}; implies --cluster")
    _add_small(check)


def _add_render(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    render = commands.add_parser("render", help="print what a job is rendered to, and create nothing")
    render.set_defaults(command=_render)
    render.add_argument("job", type=Path, metavar="JOB.yaml")
    render.add_argument(
        "--show",
        choices=(*SHOWN, _MANIFEST),
        default="run-config",
        help="run-config: the trainer's run configuration on this machine, as JSON (default); job: the job in a "
        "cluster, with its profile and all defaults, or with --small and without --settings a manifest for kubectl "
        "that leaves both to the cluster; objects: what the operator would create for the first attempts, and when; "
        "manifest: a valid job as it stands in the file, as JSON, for programs",
    )
    help_text = f"{_SETTINGS_HELP}; default: none, as without a cluster"
    render.add_argument("--settings", type=Path, metavar="FILE", help=help_text)
    _add_small(render)


def _add_small(command: argparse.ArgumentParser) -> None:
    command.add_argument("--small", action="store_true", help=_SMALL_HELP)
    command.add_argument("--builtin-text", action="store_true", help=_TEXT_HELP)


def _run(arguments: argparse.Namespace) -> int:
    # What the operator holds of a cluster are trees, which reference counts free. To look through all of it for cycles
    # whenever 700 objects are new took a tenth of its time, and more with every job; few cycles are ever made.
    gc.set_threshold(50_000, 20, 50)
    # kopf and the Kubernetes client are loaded by the one command that needs them.
    from bert_operator.cluster.service import run_operator

    gc.freeze()  # what is loaded stays
    settings = _watched_settings(arguments)
    if arguments.lease is not None:
        settings = settings.model_copy(update={"lease": arguments.lease})
    if arguments.http_port is not None:
        settings = settings.model_copy(update={"http_port": arguments.http_port})
    run_operator(settings)
    return EXIT_SUCCEEDED


def _local(arguments: argparse.Namespace) -> int:
    job = _read_job(read_job_document(arguments.job), arguments)
    if arguments.small:
        for place, path, task in missing_task_files(job, _is_here):
            hint = "write the files first" if task in OWN_TABLES else f"{fetch_command(path, task)} gets them"
            raise DocumentError(f"{place}: {path} is not here, and nothing stands in for a task's files", hint=hint)
    return run_local(
        job,
        LocalOptions(
            hostfile=arguments.hostfile,
            ranks_per_node=arguments.ranks_per_node,
            mpi=arguments.mpi,
            collectives=arguments.collectives,
            output=arguments.output,
            plain=arguments.plain,
            job_file=arguments.job if not arguments.small else None,
            status_file=arguments.status,
            stop_at_eof=arguments.stop_at_eof,
        ),
    )


def _check(arguments: argparse.Namespace) -> int:
    settings = load_settings(arguments.settings) if arguments.cluster or arguments.settings else None
    code = EXIT_SUCCEEDED
    for path in arguments.jobs:
        try:
            stream = read_job_stream(path)
        except OperatorError as error:
            _remark(str(error))
            code = EXIT_BAD_INPUT
            continue
        is_one = len(arguments.jobs) == 1 and len(stream.jobs) == 1 and not stream.others
        for document in stream.jobs:
            name = _name_of(document)
            label = "" if is_one else f"{source_of(path)}: {name}: "
            try:
                _print(f"{label}valid; {_judge(document, arguments, settings)}")
            except OperatorError as error:
                _remark(f"{label}{error}")
                code = EXIT_BAD_INPUT
        if stream.others:
            _remark(f"{source_of(path)}: {count_others(stream.others)} left alone")
    return code


def _judge(document: Document, arguments: argparse.Namespace, settings: Settings | None) -> str:
    """Judge one job and return what was looked at. Raises OperatorError if it is invalid."""
    if settings is None:
        _read_job(document, arguments)
        return _NOT_LOOKED_AT
    job = _read_for_cluster(document, arguments, settings).job
    knows_cluster = arguments.settings is not None
    # At laptop size a job asks for no devices.
    asked = {**document, "spec": {}} if arguments.small else document
    if problems := list(find_mismatches(asked, job, settings, knows_cluster=knows_cluster)):
        raise InvalidJob(problems)
    return f"judged by {describe_settings(arguments.settings, job, settings)}"


def _name_of(document: Document) -> str:
    metadata = document.get("metadata")
    return str(metadata.get("name")) if isinstance(metadata, dict) else "no name"


def _render(arguments: argparse.Namespace) -> int:
    document = read_job_document(arguments.job)
    if arguments.show == _MANIFEST:
        _read_job(document, arguments)
        _print(json.dumps(document))
        return EXIT_SUCCEEDED
    if arguments.small and arguments.show == "job" and arguments.settings is None:
        # A profile may complete it, which only its cluster knows.
        _print(write_job(_shrink(document, parse_job(document), arguments, in_cluster=True)))
        return EXIT_SUCCEEDED
    if arguments.show != "run-config" or arguments.settings is not None:
        _print(_read_for_cluster(document, arguments, load_settings(arguments.settings)).show(arguments.show))
        return EXIT_SUCCEEDED
    # ranksPerNode: auto is resolved with this machine's sockets, as in ``local``.
    job = fit_to_machines(_read_job(document, arguments), (), None, find_programs())
    folder = str(Path(job.spec.output.path).expanduser().absolute())
    config = render_run_config(job, uid=NO_UID, ranks=job.spec.ranks, hosts=job.spec.workers, output_folder=folder)
    _print(json.dumps(config, indent=2))
    return EXIT_SUCCEEDED


def _admission_policy(arguments: argparse.Namespace) -> int:
    for document in render_admission_policy(_watched_settings(arguments)):
        _print(f"---\n{write_job(document)}")
    return EXIT_SUCCEEDED


def _watched_settings(arguments: argparse.Namespace) -> Settings:
    """Return the settings, with the namespaces that the command line names in place of theirs."""
    settings = load_settings(arguments.settings)
    return settings.model_copy(update={"namespaces": tuple(arguments.namespace)}) if arguments.namespace else settings


def _read_for_cluster(document: Document, arguments: argparse.Namespace, settings: Settings) -> ClusterJob:
    """Read a job as the operator with these settings does, and print advice. Raises OperatorError if it is invalid."""
    found = read_for_cluster(document, settings)
    _note([*null_remarks(document), *advise(found.job)])
    if arguments.small:
        found = read_for_cluster(_shrink(document, found.job, arguments, in_cluster=True), settings)
    return found


def _read_job(document: Document, arguments: argparse.Namespace) -> BertPretrainJob:
    """Read a valid job and print advice about unusual values. Raises OperatorError if it is invalid."""
    job = parse_job(document)
    # Before it is shrunk: batches and rates are judged as they were meant.
    _note([*null_remarks(document), *advise(job)])
    if arguments.small:
        job = parse_job(_shrink(document, job, arguments, in_cluster=False))
    return job


def _shrink(document: Document, job: BertPretrainJob, arguments: argparse.Namespace, *, in_cluster: bool) -> Document:
    """Return the job at laptop size, and print what was changed."""
    # What lies on a cluster's volumes is not seen here.
    has_path = (lambda _: False) if arguments.builtin_text else (lambda _: True) if in_cluster else _is_here
    precisions = frozenset() if in_cluster else find_precisions()
    small = shrink(document, job, SmallJobTarget(has_path=has_path, in_cluster=in_cluster, precisions=precisions))
    for change in small.changes:
        _remark(f"small: {change}")
    return small.document


def _is_here(path: str) -> bool:
    return Path(path).expanduser().exists()


def _note(remarks: list[str]) -> None:
    for remark in remarks:
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
