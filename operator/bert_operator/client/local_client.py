"""``LocalClient``: jobs of this machine, each a ``bert-operator local`` in the background."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from bert_operator.client.job_folder import POLL_S, JobFolder, read_operator_manifest
from bert_operator.errors import InputError, OperatorError, render_value
from bert_operator.names import OUTPUT_ANNOTATION
from bert_operator.plugin.errors import NeverReached, NoSuchObject, TimeIsUp
from bert_operator.plugin.job import Job, metric_row, read_records
from bert_operator.plugin.waiting import parse_awaited

DEFAULT_GRACE_S = 120
"""``runPolicy.stopGraceSeconds`` of a job that names none."""
_KILL_S = 30.0
"""What is left of a job after a second SIGTERM is killed in half of it."""
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_METRICS = "metrics.jsonl"
_GONE = "bert-operator ended before the job did."
_FINAL = ("Succeeded", "Failed", "Stopped")


class LocalClient:
    """Jobs of this machine: the manifests of a cluster, and the same calls.

    A job lives no longer than the interpreter that has started it: when that ends or is killed, the job stops with a
    checkpoint, and ``resume`` goes on from there. Other interpreters may look at it and steer it meanwhile.
    """

    def __init__(self, folder: str | Path = ".bert-jobs") -> None:
        """Prepare it; nothing is created yet.

        Args:
            folder: What is kept of each job, in a folder of its name: manifest, log and status. Results go to the
                job's own ``output.path``.
        """
        self._folder = Path(folder).expanduser().absolute()

    def jobs(self) -> list[Job]:
        """Return the jobs, by name; one whose lock cannot be opened as it was last, with the reason FolderUnusable."""
        return [_list_job(found) for found in sorted(map(JobFolder, self._paths()), key=lambda it: it.path.name)]

    def get(self, name: str) -> Job:
        """Return a job as it is now: ``job.phase``, ``job.progress``, ``job.stages()``, ``job.status``.

        Raises:
            NoSuchObject: There is no such job.
        """
        return _read_job(self._find(name))

    def submit(
        self,
        manifest: str | Path | Mapping[str, Any],
        *,
        ranks_per_node: int | None = None,
        collectives: Literal["horovod", "torch"] | None = None,
        mpi: Literal["open-mpi", "gloo"] | None = None,
    ) -> Job:
        """Start a job in the background, in the current folder; return it once it is accepted.

        A job of this name that runs is left alone if it is the same, and one that does not run is replaced: what
        becomes of its results says ``output.ifExists``.

        Args:
            manifest: A file with one job, or the job as a document.
            ranks_per_node: Ranks of this machine; None: those of the job.
            collectives: In place of the job's; None: the job's.
            mpi: What starts the ranks, as ``bert-operator local --mpi`` takes it; None: what there is.

        Raises:
            InputError: It is no valid job, or another one of this name runs.
            OperatorError: It could not be started.
        """
        # What JSON makes of it is what is compared and kept.
        given = (
            json.loads(json.dumps(manifest))
            if isinstance(manifest, Mapping)
            else read_operator_manifest(Path(manifest))
        )
        name = (given.get("metadata") or {}).get("name")
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise InputError(
                f"metadata.name: got {render_value(name)}; allowed: lower-case letters, digits, and dashes between"
            )
        words = (("--ranks-per-node", ranks_per_node), ("--collectives", collectives), ("--mpi", mpi))
        options = [word for option, value in words if value is not None for word in (option, str(value))]
        found = JobFolder(self._folder / name)
        if found.is_running and found.status.get("status", {}).get("phase") not in _FINAL:
            if (found.manifest, found.run.get("options")) == (given, options):
                return _read_job(found)
            raise InputError(
                f"{name}: got another job of this name while it runs; allowed: once it has ended or is stopped",
                hint="suspend or delete it first, or choose another name",
            )
        found.start(given, cwd=str(Path.cwd()), options=options, goes_on=False)
        return _read_job(found)

    def suspend(self, name: str) -> Job:
        """Stop a job with a checkpoint; ``wait(name, "stopped")`` waits for it.

        Raises:
            InputError: It has ended.
            NoSuchObject: There is no such job.
        """
        found, job = self._find_going(name, suspend=True)
        if not job.is_suspended:
            found.mark(suspend=True)
            # A second signal would stop it without a checkpoint.
            found.ask_to_stop()
        return _read_job(found)

    def resume(self, name: str) -> Job:
        """Let a stopped job go on from its newest checkpoint, in the folder where it was submitted.

        Raises:
            InputError: It has ended, or cannot be run any more.
            NoSuchObject: There is no such job.
            OperatorError: It could not be started.
        """
        found, job = self._find_going(name, suspend=False)
        if found.is_running and job.phase not in _FINAL and not job.is_suspended:
            return job
        return self._go_on(found)

    def retry(self, name: str) -> Job:
        """Start a failed job again, from its newest checkpoint.

        Raises:
            InputError: It has not failed, or cannot be run any more.
            NoSuchObject: There is no such job.
            OperatorError: It could not be started.
        """
        found = self._find(name)
        job = _read_job(found)
        if job.phase != "Failed":
            hint = f'resume("{name}") continues it' if job.phase == "Stopped" else None
            raise InputError(f"{name} is {job.phase}; only a job that has failed is started again", hint=hint)
        return self._go_on(found)

    def delete(self, name: str) -> None:
        """Stop a job, with a checkpoint if ``stopGraceSeconds`` are enough, and forget it; its output folder stays.

        Raises:
            NoSuchObject: There is no such job.
            OperatorError: Its process does not end.
        """
        found = self._find(name)
        if not _read_job(found).is_suspended:
            found.ask_to_stop()
        self._await_stop(found)
        found.remove()

    def wait(
        self,
        name: str,
        awaited: str = "ended",
        *,
        timeout_s: float | None = None,
        tell: Callable[[Job], None] = lambda job: None,
    ) -> Job | None:
        """Return a job once something holds of it; None after ``deleted``. Ctrl-C ends the wait, not the job.

        Args:
            name: Of the job.
            awaited: As ``Client.wait`` takes it: ``ended``, ``deleted``, ``checkpoint``, ``attempt=2``, ``step=100``,
                ``stage=phase2``, or a phase as ``running`` or ``stopped``.
            timeout_s: Longest wait in seconds; None: none.
            tell: Given the job after each change.

        Raises:
            InputError: ``awaited`` is none of those.
            NeverReached: The job has ended or stopped otherwise, or was deleted.
            TimeIsUp: It took too long.
            NoSuchObject: There is no such job.
        """
        wanted = parse_awaited(awaited)
        until_s = None if timeout_s is None else time.monotonic() + timeout_s
        last: Job | None = None
        while True:
            try:
                job = self.get(name)
            except NoSuchObject:
                if wanted.is_deletion:
                    return None
                if last is None:
                    raise
                raise NeverReached(f"{name} was deleted, and {awaited} was waited for") from None
            if last is None or job.document != last.document:
                tell(job)
            last = job
            if not wanted.is_deletion:
                if wanted.holds(job):
                    return job
                if job.phase in _FINAL:
                    verb = {"Stopped": "resume", "Failed": "retry"}.get(job.phase)
                    hint = f'{verb}("{name}") lets it go on' if verb else None
                    how = f"{job.phase} ({job.reason}: {job.message})"
                    raise NeverReached(f"{name} is {how}; {awaited} was waited for", hint=hint)
            if until_s is not None and time.monotonic() >= until_s:
                raise TimeIsUp(f"{name}: not {awaited} after {timeout_s:g} s; it is {job.phase} ({job.reason})")
            time.sleep(POLL_S)

    def follow(self, name: str) -> Iterator[str]:
        """Yield the lines of a job's log, from its submission on, until it ends or stops; each once.

        Lines of ranks come as they print them; which rank has printed one, nothing says here.

        Raises:
            NoSuchObject: There is no such job.
        """
        found = self._find(name)
        return found.lines(follow=lambda: found.is_running)

    def logs(self, name: str, *, tail: int | None = None) -> list[str]:
        """Return the lines of a job's log that are there now, of all runs since it was submitted.

        Args:
            name: Of the job.
            tail: At most so many lines, the last ones; None: all.

        Raises:
            NoSuchObject: There is no such job.
        """
        lines = list(self._find(name).lines())
        return lines if tail is None else lines[max(0, len(lines) - tail) :]

    def metrics(self, name: str) -> list[dict[str, str | float]]:
        """Return the reports of a job, one row each, in their order, with the columns of ``Client.metrics``.

        They are read from ``metrics.jsonl`` in the output folder, which has those of earlier runs in this folder as
        well; of a program that writes none, from what it has reported in the log since it was started last.

        Raises:
            NoSuchObject: There is no such job.
        """
        found = self._find(name)
        job = _read_job(found)
        output = (job.metadata.get("annotations") or {}).get(OUTPUT_ANNOTATION)
        if output is not None and (rows := list(_read_metrics(Path(output) / _METRICS))):
            return rows
        return [row for record in read_records(found.lines(), job) if (row := metric_row(record)) is not None]

    def _paths(self) -> list[Path]:
        paths = list(self._folder.iterdir()) if self._folder.is_dir() else []
        return [path for path in paths if JobFolder(path).exists]

    def _find(self, name: str) -> JobFolder:
        found = JobFolder(self._folder / name)
        if not _NAME.fullmatch(name) or not found.exists:
            known = ", ".join(sorted(path.name for path in self._paths())) or "none yet"
            raise NoSuchObject(f"{self._folder}: got {name or 'nothing'} for the name of a job; there are: {known}")
        return found

    def _find_going(self, name: str, *, suspend: bool) -> tuple[JobFolder, Job]:
        """Return a job that has not ended, to suspend or to resume it."""
        found = self._find(name)
        job = _read_job(found)
        if job.has_ended:
            hint = f'retry("{name}") starts a failed job again' if job.phase == "Failed" else None
            how = "suspended" if suspend else "resumed"
            raise InputError(f"{name} has ended as {job.phase}, so it cannot be {how}", hint=hint)
        return found, job

    def _go_on(self, found: JobFolder) -> Job:
        # It may still be stopping, or in its last moments.
        self._await_stop(found)
        found.start(found.manifest, cwd=found.run["cwd"], options=found.run["options"], goes_on=True)
        return _read_job(found)

    def _await_stop(self, found: JobFolder) -> None:
        policy = (found.manifest.get("spec") or {}).get("runPolicy") or {}
        if found.await_end(float(policy.get("stopGraceSeconds") or DEFAULT_GRACE_S)):
            return
        found.ask_to_stop()
        if not found.await_end(_KILL_S):
            raise OperatorError(f"{found.path.name}: its process {found.run.get('pid')} does not end")


def _list_job(found: JobFolder) -> Job:
    try:
        return _read_job(found)
    except OperatorError as error:  # which must not hide all other jobs
        seen = found.status
        status = {"phase": "Pending", **(seen.get("status") or {}), "reason": "FolderUnusable", "message": str(error)}
        metadata = {"name": found.path.name, **(seen.get("metadata") or {})}
        return Job({**found.manifest, "metadata": metadata, "status": status})


def _read_job(found: JobFolder) -> Job:
    """Return a job in the form that a cluster has it in. Raises OperatorError."""
    # In this order: a process that ends in between has written its last status by then.
    is_running = found.is_running
    manifest, run, seen = found.manifest, found.run, found.status
    status = dict(seen.get("status") or {"phase": "Pending", "reason": "Starting", "message": "It is being started."})
    if not is_running and status.get("phase") not in _FINAL:
        last = next((line for line in reversed(list(found.lines())) if line.strip()), "")
        status |= {"phase": "Failed", "reason": "ProcessGone", "message": f"{_GONE} {last}".strip()}
    spec = dict(manifest.get("spec") or {})
    if run.get("suspend"):
        spec["runPolicy"] = {**(spec.get("runPolicy") or {}), "suspend": True}
    metadata = {**(manifest.get("metadata") or {}), **(seen.get("metadata") or {})}
    return Job({**manifest, "metadata": metadata, "spec": spec, "status": status})


def _read_metrics(path: Path) -> Iterator[dict[str, str | float]]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return
    for line in lines:
        try:
            record = json.loads(line)
        except ValueError:  # the line that is being written
            continue
        if isinstance(record, dict) and record.get("event") == "progress":
            kept = {key: record[key] for key in ("attempt", "stage") if key in record}
            figures = {key: value for key, value in record.items() if type(value) in (int, float)}
            yield kept | figures
