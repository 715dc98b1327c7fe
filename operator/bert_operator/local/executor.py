"""The local executor: carries plans out with processes on this machine, and on others by ssh.

It decides nothing about the job: every change (a child ends, a stop is requested, time passes) leads to a new call of
``plan``. It never leaves processes behind, however it ends itself: ``guard`` covers SIGKILL.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from queue import Empty, SimpleQueue
from types import FrameType
from typing import Any

from bert_job.console.display import Display
from bert_job.console.output_once import find_last_message
from bert_job.progress import ProgressRecord, parse_progress_line
from bert_operator.api.schema.bert_pretrain_job import BertPretrainJob
from bert_operator.api.schema.status import MAX_MESSAGE, JobStatus, StageResult
from bert_operator.errors import LaunchError
from bert_operator.local.guard import guarded
from bert_operator.local.launch import Launch, read_gloo_exit
from bert_operator.local.outcomes import JobOutcome
from bert_operator.local.processes import ChildProcess, Exited, Line
from bert_operator.state.observed import Child, Observed, read_outcome, read_termination_record
from bert_operator.state.plan import Plan, plan
from bert_operator.state.results import add_results, read_result
from bert_operator.state.runs import ChildSpec

TERMINATION_GRACE_S = 5.0
"""From the second stop signal until everything is killed."""
DEADLINE_GRACE_S = 120.0
"""From the deadline until everything is killed: enough for a checkpoint of a large model."""

TELL_S = 0.5
"""At most so old is the progress that ``tell`` was given."""

_LAST_LINES = 40  # frames of mpirun's are among them
_MAX_RECORD_BYTES = 65_536
_TOLD = MAX_MESSAGE - 100
"""Characters of a reason that the status has room for, behind the names of run and attempt."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

MakeLaunch = Callable[[ChildSpec, Path], Launch]
"""Returns how to start a child, given the file for its termination record."""
Tell = Callable[[JobStatus], None]
"""Is given the job's status when it has changed."""


@dataclass(frozen=True, slots=True)
class StopSignal:
    """SIGINT (Ctrl-C), SIGTERM or SIGHUP was received."""

    signal_number: int


Event = Line | Exited | StopSignal


class LocalExecutor:
    """Runs one job, once."""

    def __init__(
        self,
        job: BertPretrainJob,
        make_launch: MakeLaunch,
        folder: Path,
        display: Display,
        *,
        uid: str,
        tell: Tell | None = None,
        stop_at_eof: int | None = None,
    ) -> None:
        """Prepare to run.

        Args:
            job: A valid job.
            make_launch: How children are started.
            folder: Exists, and takes termination records.
            display: What a person sees.
            uid: In the run configuration.
            tell: Given the status while the job runs, progress included; None: nobody.
            stop_at_eof: A descriptor at whose end the job is stopped as by SIGTERM; None: none.
        """
        self._job = job
        self._uid = uid
        self._tell = tell
        self._tell_at_s: float | None = None  # on the monotonic clock, as below
        self._stop_at_eof = stop_at_eof
        self._make_launch = make_launch
        self._folder = folder
        self._display = display
        # SimpleQueue is reentrant: the signal handler's put interrupts a get of the same thread. A Queue would deadlock
        # on its own lock.
        self._events: SimpleQueue[Event] = SimpleQueue()
        self._status = JobStatus()
        # By attempt, and never removed: without a ref they are no leftovers that plan would have deleted before a
        # retry.
        self._children: dict[int, Child] = {}
        self._process: ChildProcess | None = None
        self._progress: ProgressRecord | None = None
        self._figures: ProgressRecord | None = None
        """The newest record with progress: behind it there may be one about a checkpoint."""
        self._checkpoint: ProgressRecord | None = None
        self._resumed: ProgressRecord | None = None
        self._results: tuple[StageResult, ...] = ()
        self._last_lines: deque[str] = deque(maxlen=_LAST_LINES)
        self._launcher_lines: deque[str] = deque(maxlen=_LAST_LINES)
        self._stop_signals: list[int] = []
        self._kill_at_s: float | None = None  # on the monotonic clock

    def run(self) -> JobOutcome:
        """Run the job until it ends or is stopped.

        Raises:
            LaunchError: A child's program cannot be started.
        """
        # Handlers first and last: a Ctrl-C while the guard starts or ends is an event like any other.
        with _stop_signals_into(self._events), guarded(self._folder):
            if self._stop_at_eof is not None:
                threading.Thread(target=self._await_eof, args=(self._stop_at_eof,), daemon=True).start()
            try:
                while not self._step():
                    pass
            finally:
                if self._process is not None:
                    # Also after an exception: ranks must not outlive the command.
                    self._process.finish()
        return JobOutcome(
            status=self._status,
            checkpoint=_describe_checkpoint(self._checkpoint),
            stop_signal=self._stop_signals[0] if self._stop_signals else None,
        )

    def _step(self) -> bool:
        """Plan, carry out, wait for a change; return whether the job is over."""
        # This machine's clock is the only one here: children of a job share it.
        step = plan(self._job, self._observe(), time.time())
        self._report(step)
        # In memory alone: a local job that is run again begins with an empty status, and the output folder decides what
        # it resumes.
        self._status = step.status
        if self._tell is not None:
            self._tell(self._status)
        for child in step.stop:
            self._stop(child)
        # After a creation plan again at once: only then is it known until when to wait.
        if step.create is not None:
            self._create(step.create)
        elif self._process is None and step.status.phase in ("Succeeded", "Failed", "Stopped"):
            return True
        else:
            self._wait(step.requeue_after_s)
        return False

    def _observe(self) -> Observed:
        return Observed(
            status=self._status,
            children=tuple(self._children.values()),
            stop_requested=bool(self._stop_signals),
            progress=self._progress,
            checkpoint=self._checkpoint,
            resumed=self._resumed,
            results=self._results,
        )

    def _create(self, spec: ChildSpec) -> None:
        launch = self._make_launch(spec, self._record_path(spec.attempt))
        # The message of a failure must not quote an earlier attempt.
        self._last_lines.clear()
        self._launcher_lines.clear()
        try:
            self._process = ChildProcess(launch, self._events.put)
        except OSError as error:
            raise LaunchError(f"Cannot start {launch.command[0]} ({error.strerror})") from error
        self._children[spec.attempt] = Child(run=spec.run, attempt=spec.attempt, state="Running")

    def _stop(self, child: Child) -> None:
        if self._process is not None:
            self._process.request_stop()
        self._children[child.attempt] = replace(child, stopping=True)
        # A user who pressed Ctrl-C may press it again; at a deadline nobody is there to do so.
        if not self._stop_signals:
            self._kill_at_s = time.monotonic() + DEADLINE_GRACE_S

    def _wait(self, requeue_after_s: float | None) -> None:
        """Handle events until one of them, or time, changes what ``plan`` depends on."""
        requeue_at_s = None if requeue_after_s is None else time.monotonic() + requeue_after_s
        while True:
            self._tell_progress_if_due()
            times = [moment for moment in (requeue_at_s, self._kill_at_s, self._tell_at_s) if moment is not None]
            timeout_s = max(0.0, min(times) - time.monotonic()) if times else None
            try:
                event = self._events.get(timeout=timeout_s)
            except Empty:
                if self._tell_at_s is not None and self._tell_at_s == min(times):
                    continue
                self._kill_if_due()
                return
            match event:
                case Line():
                    self._handle_line(event)
                case Exited():
                    self._finish()
                    return
                case StopSignal():
                    self._handle_stop_signal(event.signal_number)
                    return

    def _handle_line(self, line: Line) -> None:
        record = parse_progress_line(line.text)
        if record is not None:
            if record.event != "result":  # what was reported before; the stage is another by now
                self._progress = record
            # A rank may print the log of another job.
            own = (record.job, record.attempt) == (self._uid, max(self._children, default=0))
            if own and (result := read_result(record)) is not None:
                stages = [stage.name for stage in self._job.spec.stages]
                self._results = add_results(self._results, [result], stages)
            if record.event == "resumed":
                self._resumed = record
            if record.event in ("checkpoint", "resumed"):
                self._checkpoint = record
            if record.event in ("progress", "stage_started"):
                self._figures = record
            if self._tell is not None and self._tell_at_s is None:
                self._tell_at_s = time.monotonic() + TELL_S
        elif line.from_rank:
            self._last_lines.append(line.text)
        else:
            self._launcher_lines.append(line.text)
        self._display.show(line.text, record, from_rank=line.from_rank)

    def _tell_progress_if_due(self) -> None:
        """Tell what the newest records say. Lines alone change no decision, so that nothing else is planned anew."""
        if self._tell is not None and self._tell_at_s is not None and time.monotonic() >= self._tell_at_s:
            self._tell_progress()

    def _tell_progress(self) -> None:
        assert self._tell is not None, "somebody is told"
        self._tell_at_s = None
        now = plan(self._job, replace(self._observe(), progress=self._figures), time.time()).status
        self._status = self._status.model_copy(
            update={"progress": now.progress, "stage": now.stage, "checkpoint": now.checkpoint}
        )
        self._tell(self._status)

    def _await_eof(self, descriptor: int) -> None:
        """Stop the job once nobody holds the other end, and without a checkpoint where that takes too long."""
        with contextlib.suppress(OSError):
            while os.read(descriptor, 1024):
                pass
        self._events.put(StopSignal(signal.SIGTERM))
        # Nobody is there to ask again.
        time.sleep(self._job.spec.run_policy.stop_grace_seconds)
        self._events.put(StopSignal(signal.SIGTERM))

    def _handle_stop_signal(self, number: int) -> None:
        self._stop_signals.append(number)
        # During a back-off there is no process: the next plan sees stop_requested, and ends the job as stopped.
        if self._process is None:
            return
        match len(self._stop_signals):
            case 1:
                self._display.note("Stopping: waiting for a checkpoint. Ctrl-C again stops at once without one.")
            case 2:
                self._display.note("Stopping without a checkpoint")
                self._process.terminate()
                self._kill_at_s = time.monotonic() + TERMINATION_GRACE_S
            case _:
                self._process.kill()

    def _kill_if_due(self) -> None:
        if self._kill_at_s is not None and time.monotonic() >= self._kill_at_s:
            self._kill_at_s = None
            if self._process is not None:
                self._process.kill()

    def _finish(self) -> None:
        """Collect the last lines, the exit code and the termination record of the child that has just exited."""
        assert self._process is not None, "only a started child exits"
        return_code = self._process.finish()
        self._process = self._kill_at_s = None
        # ``finish`` waits for the reader, so the last lines are in the queue now, behind the Exited that led here.
        with contextlib.suppress(Empty):
            while True:
                event = self._events.get_nowait()
                if isinstance(event, Line):
                    self._handle_line(event)
                elif isinstance(event, StopSignal):
                    self._stop_signals.append(event.signal_number)
        if self._tell_at_s is not None:
            self._tell_progress()
        attempt, child = max(self._children.items())
        record = _read_record_file(self._record_path(attempt))
        # horovodrun always exits with 1: the code of the rank that failed first is in its output.
        first_exit = read_gloo_exit(self._launcher_lines) if return_code == 1 else None
        outcome = read_outcome(first_exit or return_code, record)
        message = outcome.message or find_last_message(self._last_lines) or find_last_message(self._launcher_lines)
        self._display.end_attempt(message[:_TOLD])
        self._children[attempt] = replace(
            child,
            state=outcome.state,
            exit_code=outcome.exit_code,
            signal=outcome.signal,
            reason=outcome.reason,
            message=message,
            finished_at_s=time.time(),
        )

    def _report(self, step: Plan) -> None:
        """Report what is new, before it is carried out."""
        known = {failure.attempt for failure in self._status.failures}
        new_failures = [failure for failure in step.status.failures if failure.attempt not in known]
        # Of the last one the closing remarks tell.
        for failure in new_failures if step.status.phase not in ("Failed", "Stopped") else ():
            end = f"signal {failure.signal}" if failure.signal is not None else f"exit code {failure.exit_code}"
            told = f": {failure.message}" if failure.message else ""
            if failure.message and failure.message in [each.message for each in self._status.failures[-1:]]:
                told = ", as the one before"
            self._display.note(f"Attempt {failure.attempt} ({failure.run}) failed with {end}{told}")
        if step.create is not None:
            ranks = f"{step.create.ranks} ranks" if step.create.ranks > 1 else "one process"
            stages = ", ".join(step.create.stages)
            self._display.note(f"Started attempt {step.create.attempt}: {stages} in {ranks}")
        elif new_failures and step.requeue_after_s is not None and step.status.phase == "Pending":
            self._display.note(f"The next attempt starts in {step.requeue_after_s:.0f} s")

    def _record_path(self, attempt: int) -> Path:
        return self._folder / f"attempt-{attempt}.json"


def _describe_checkpoint(checkpoint: ProgressRecord | None) -> str | None:
    return None if checkpoint is None else f"{checkpoint.stage}, step {checkpoint.text('step')}"


def _read_record_file(path: Path) -> Mapping[str, Any] | None:
    """Return a child's termination record, None if there is none that can be read."""
    try:
        with path.open("rb") as file:
            return read_termination_record(file.read(_MAX_RECORD_BYTES))
    except OSError:
        return None


@contextlib.contextmanager
def _stop_signals_into(events: SimpleQueue[Event]) -> Iterator[None]:
    """Turn stop signals into events while the block runs."""

    def on_signal(number: int, frame: FrameType | None) -> None:
        del frame
        events.put(StopSignal(number))

    before = {number: signal.signal(number, on_signal) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
