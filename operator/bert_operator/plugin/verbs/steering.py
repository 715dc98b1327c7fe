"""``suspend``, ``resume``, ``retry``, ``wait`` and ``delete``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

from bert_operator.errors import EXIT_SUCCEEDED, InputError, OperatorError
from bert_operator.plugin.changing import delete, retry, set_suspend
from bert_operator.plugin.context import Context
from bert_operator.plugin.errors import NoSuchObject
from bert_operator.plugin.job import Job
from bert_operator.plugin.reading import read_job, read_jobs
from bert_operator.plugin.views.next_step import from_checkpoint
from bert_operator.plugin.views.progress_line import progress_line, state_line
from bert_operator.plugin.views.status_view import output_of
from bert_operator.plugin.waiting import AWAITED_FORMS, parse_awaited, parse_duration, wait_for


def add_suspend_options(parser: argparse.ArgumentParser) -> None:
    """Options of ``suspend``."""
    _add_choice(parser)
    _add_dry_run(parser)
    parser.add_argument("--wait", action="store_true", help="until the checkpoint is saved and the pods are gone")
    _add_timeout(parser)


def run_suspend(arguments: argparse.Namespace, context: Context) -> int:
    """Stop jobs with a checkpoint: their pods save one, leave and free their nodes. ``resume`` continues them."""

    def suspend(name: str) -> None:
        job, changed = set_suspend(context.kubectl, name, suspend=True, dry_run=arguments.dry_run)
        context.console.show(
            f"{_path(job)}: suspended; its pods save a checkpoint and leave{_tried(arguments)}"
            if changed
            else f"{_path(job)}: is suspended already ({job.phase})"
        )

    return _each(arguments, context, suspend, with_ended=False, awaited="stopped")


def add_resume_options(parser: argparse.ArgumentParser) -> None:
    """Options of ``resume``."""
    _add_choice(parser)
    _add_dry_run(parser)
    parser.add_argument("--wait", action="store_true", help="until it is running")
    _add_timeout(parser)


def run_resume(arguments: argparse.Namespace, context: Context) -> int:
    """Let suspended jobs go on, each from its newest checkpoint."""

    def resume(name: str) -> None:
        job, changed = set_suspend(context.kubectl, name, suspend=False, dry_run=arguments.dry_run)
        context.console.show(
            f"{_path(job)}: resumed {from_checkpoint(job)}{_tried(arguments)}"
            if changed
            else f"{_path(job)}: is not suspended ({job.phase})"
        )

    return _each(arguments, context, resume, with_ended=False, awaited="running")


def add_retry_options(parser: argparse.ArgumentParser) -> None:
    """Options of ``retry``."""
    parser.add_argument("name", metavar="NAME", help="of a job that has failed")
    _add_dry_run(parser)


def run_retry(arguments: argparse.Namespace, context: Context) -> int:
    """Start a failed job again from its newest checkpoint.

    A job that has ended never changes, so it is deleted and created anew with output.ifExists: Resume; checkpoints and
    results stay on the volume, its status with the failures does not. The API server judges the new job first.
    """
    job = retry(context.kubectl, arguments.name, say=context.console.remark, dry_run=arguments.dry_run)
    done = f"created again with output.ifExists: Resume, in {output_of(job)}{_tried(arguments)}"
    context.console.show(f"{_path(job)}: {done}")
    return EXIT_SUCCEEDED


def add_wait_options(parser: argparse.ArgumentParser) -> None:
    """Options of ``wait``."""
    parser.add_argument("name", metavar="NAME", help="of the job")
    parser.add_argument(
        "--for",
        dest="awaited",
        default="ended",
        metavar="WHAT",
        help=f"{', '.join(AWAITED_FORMS)}; default: ended, as Succeeded or Failed",
    )
    _add_timeout(parser)


def run_wait(arguments: argparse.Namespace, context: Context) -> int:
    """Wait for a state of a job.

    The exit code is 1 where that cannot happen any more, since the job has ended otherwise or was deleted, and 4 where
    it takes too long. With --for=ended a job that fails is waited for as well as one that succeeds.
    """
    awaited, timeout_s = parse_awaited(arguments.awaited), _timeout_s(arguments)
    job = wait_for(
        context.kubectl, arguments.name, awaited, timeout_s=timeout_s, tell=teller(context), pause=context.pause
    )
    context.console.show(f"{arguments.name}: deleted" if job is None else progress_line(job))
    return EXIT_SUCCEEDED


def add_delete_options(parser: argparse.ArgumentParser) -> None:
    """Options of ``delete``."""
    _add_choice(parser)
    _add_dry_run(parser)
    parser.add_argument("-i", "--interactive", action="store_true", help="ask before each, as kubectl delete does")
    parser.add_argument("--no-wait", action="store_true", help="do not wait until its pods are gone")


def run_delete(arguments: argparse.Namespace, context: Context) -> int:
    """Delete jobs with their pods. What they have written stays on their volumes."""

    def remove(name: str) -> None:
        if arguments.interactive and not arguments.dry_run and not _agreed(context, name):
            return
        job = delete(context.kubectl, name, wait=not arguments.no_wait, dry_run=arguments.dry_run)
        context.console.show(f"{_path(job)}: deleted; its files stay in {output_of(job)}{_tried(arguments)}")

    return _each(arguments, context, remove, with_ended=True, may_be_gone=True)


def _agreed(context: Context, name: str) -> bool:
    job = read_job(context.kubectl, name)
    context.console.remark(f"Delete {_path(job)}, which is {job.phase}? Its files stay in {output_of(job)}. [y/N]")
    if sys.stdin.readline().strip().lower() in ("y", "yes"):
        return True
    context.console.show(f"{_path(job)}: not deleted")
    return False


def teller(context: Context) -> _Teller:
    """Return a callback that reports the state of a job while waiting for it."""
    return _Teller(context)


class _Teller:
    """Tells of each change in one line that changes; where there is no terminal, only of changes that matter."""

    def __init__(self, context: Context) -> None:
        self._console = context.console

    def __call__(self, job: Job) -> None:
        self._console.wait(progress_line(job), state_line(job))


def _add_choice(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", metavar="NAME", nargs="*", help="of a job")
    parser.add_argument("--all", action="store_true", help="all jobs of the namespace that this can be done with")
    parser.add_argument("-l", "--selector", metavar="LABELS", help="those with these labels, as in kubectl get")


def _add_dry_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--dry-run",
        choices=("client", "server"),
        help="change nothing. client: say what would be done; server: have the API server judge it, with its admission",
    )


def _chosen(arguments: argparse.Namespace, context: Context, *, with_ended: bool) -> list[str]:
    """Return the names of the jobs that a verb is for. Raises InputError unless they are chosen in one way."""
    names: list[str] = arguments.names
    ways = {"names": bool(names), "--all": arguments.all, "--selector": arguments.selector is not None}
    given = [way for way, is_given in ways.items() if is_given]
    if len(given) != 1:
        raise InputError(
            f"got {' and '.join(given) or 'no job'}; allowed: names, --all or --selector",
            hint=f"kubectl bert list{context.where} shows the jobs",
        )
    if names:
        return names
    if arguments.selector is not None and not arguments.selector.strip():
        # kubectl takes it for all jobs, and it is what a shell makes of a variable that is not set.
        raise InputError(
            "--selector: got an empty one; allowed: labels such as team=a",
            hint="--all means all jobs of the namespace",
        )
    jobs = read_jobs(context.kubectl, selector=arguments.selector)
    # By name, an ended job is an error; among many it is one that nothing is left to be done with.
    found = [job.name for job in jobs if with_ended or not job.has_ended]
    if not found:
        context.console.remark("No BertPretrainJob is among them.")
    return found


def _each(
    arguments: argparse.Namespace,
    context: Context,
    act: Callable[[str], None],
    *,
    with_ended: bool,
    may_be_gone: bool = False,
    awaited: str | None = None,
) -> int:
    """Do something with each job that is chosen, then wait for it, if that was asked for; return the exit code.

    Of jobs that were named, the first that it cannot be done with ends it. Those out of a list may have ended or gone
    since it was read: that is said, the others are gone on with, and the exit code tells of the first. may_be_gone: one
    that has gone is what was wanted.
    """
    code = EXIT_SUCCEEDED

    def done_with(names: Sequence[str], act: Callable[[str], None]) -> list[str]:
        nonlocal code
        done = []
        for name in names:
            try:
                act(name)
            except OperatorError as error:
                if arguments.names:
                    raise
                context.console.remark(str(error))
                if not (may_be_gone and isinstance(error, NoSuchObject)):
                    code = code or error.exit_code
            else:
                done.append(name)
        return done

    done = done_with(_chosen(arguments, context, with_ended=with_ended), act)
    # After a dry run it would wait for what nobody has asked for.
    if awaited is not None and arguments.wait and not arguments.dry_run:
        timeout_s = _timeout_s(arguments)
        done_with(done, lambda name: _wait(context, name, awaited, timeout_s))
    return code


def _tried(arguments: argparse.Namespace) -> str:
    """Return what kubectl writes behind a line that only says what would be."""
    return {None: "", "client": " (dry run)", "server": " (server dry run)"}[arguments.dry_run]


def _add_timeout(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--timeout", metavar="TIME", help="longest wait, such as 90s, 15m or 2h; default: none")


def _timeout_s(arguments: argparse.Namespace) -> float | None:
    return None if arguments.timeout is None else parse_duration(arguments.timeout)


def _wait(context: Context, name: str, what: str, timeout_s: float | None) -> None:
    wait_for(context.kubectl, name, parse_awaited(what), timeout_s=timeout_s, tell=teller(context), pause=context.pause)


def _path(job: Job) -> str:
    return f"{job.namespace}/{job.name}"
