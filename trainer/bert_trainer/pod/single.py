"""A job's only pod: the program itself, or all its ranks under mpirun."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path

from bert_trainer.errors import Stopped
from bert_trainer.pod.exit_codes import (
    Evidence,
    build_record,
    read_left,
    read_return_code,
    settle_exit_code,
    write_record,
)
from bert_trainer.pod.launcher_log import FirstFailure, Story, find_failure, read_source
from bert_trainer.pod.mpi import Launcher, Mpi, Pinning, find_launcher, render_local
from bert_trainer.pod.processes import StopRequest, fresh_folder, run_child
from bert_trainer.pod.rank import Declared, wrap
from bert_trainer.pod.rank_output import Forwarder, RankFiles
from bert_trainer.pod.rendezvous import Listener, Muster


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What the pod was asked for."""

    mpi: Mpi
    ranks: int
    pinning: Pinning | None
    declared: Declared
    program: tuple[str, ...]
    termination_log: Path


def run_single(job: Job) -> int:
    """Return the container's exit code.

    Raises:
        InputError: mpirun cannot be started, or started other ranks than it was asked for.
        Stopped: on request, before anything was started.
    """
    with StopRequest() as stop, fresh_folder() as folder:
        launcher = find_launcher(job.mpi) if job.ranks > 1 else None
        command = wrap(job.program, job.declared, tells_end=launcher is not None)
        if launcher is not None:
            command = render_local(
                launcher,
                ranks=job.ranks,
                is_root=os.geteuid() == 0,
                program=command,
                pinning=job.pinning,
            )
        return _run(job, launcher, command, folder, stop)


def _run(job: Job, launcher: Launcher | None, command: tuple[str, ...], folder: Path, stop: StopRequest) -> int:
    if stop.count:
        raise Stopped("stopped on request before the program was started")
    story = Story(read_source(job.program, os.environ))
    listener = Listener(story, Muster(job.ranks, hosts=1), stop)
    forwarder = Forwarder(launcher.tag if launcher else None, RankFiles(os.environ), listener.take)
    left = folder / "termination.json"
    # Whoever knows how it ended writes here; the pod's own record is written once, when the exit code is known.
    environment = {**os.environ, "BERT_TERMINATION_LOG": str(left), "TMPDIR": str(folder / "tmp")}
    code = read_return_code(run_child(command, environment, stop, forwarder.take))
    forwarder.finish()
    listener.check()
    host = socket.gethostname()
    told = listener.muster.failures
    failure = (
        find_failure(told, story, hosts=(host,), slots=job.ranks, names_all=launcher.names_all)
        if launcher
        else _only_failure(code, host)
    )
    evidence = Evidence(
        mixes_codes=launcher is not None and launcher.mixes_codes,
        failed_by_signal=failure.signal if failure else None,
        told_code=failure.exit_code if failure in told else None,
        lost_peer=launcher is not None and story.has_lost_peer,
        told_stop=story.has_stopped(code, was_asked=stop.count > 0),
        said_code=story.said_code,
        asked_to_stop=stop.count > 0,
        never_began=stop.came_early or not listener.has_begun,
    )
    code = settle_exit_code(code, evidence)
    write_record(job.termination_log, build_record(code, story, failure, read_left(left)))
    return code


def _only_failure(code: int, host: str) -> FirstFailure:
    if code > 128:
        return FirstFailure(rank=0, host=host, signal=code - 128)
    return FirstFailure(rank=0, host=host, exit_code=code)
