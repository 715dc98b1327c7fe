"""``bert-pod single``: the only pod of a job, with one rank and no MPI, or with all ranks under mpirun."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path

from bert_job.progress import ATTEMPT_VARIABLE
from bert_trainer.errors import Stopped
from bert_trainer.pod.binding import Binding
from bert_trainer.pod.exit_codes import (
    Evidence,
    build_record,
    decide_exit_code,
    read_rank_record,
    shell_exit_code,
    write_record,
)
from bert_trainer.pod.keepalives import keepalives
from bert_trainer.pod.launcher_log import FirstFailure, LauncherLog, find_first_failure, read_record_source
from bert_trainer.pod.mpi import Launcher, Mpi, find_launcher, render_local_command
from bert_trainer.pod.processes import StopForwarder, run_child, temporary_folder
from bert_trainer.pod.rank import DeclaredTopology, rank_command
from bert_trainer.pod.rank_logs import RankLogFiles
from bert_trainer.pod.rank_output import OutputForwarder
from bert_trainer.pod.rendezvous import LaunchMonitor


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Options of ``bert-pod single``."""

    mpi: Mpi
    ranks: int
    binding: Binding | None
    declared: DeclaredTopology
    program: tuple[str, ...]
    termination_log: Path


def run_single(job: Job) -> int:
    """Run the job and return the container's exit code.

    Raises:
        InputError: mpirun cannot be started, or started other ranks than it was asked for.
        Stopped: On request, before anything was started.
    """
    with StopForwarder() as stop, temporary_folder() as folder:
        launcher = find_launcher(job.mpi) if job.ranks > 1 else None
        command = rank_command(job.program, job.declared, job.binding)
        if launcher is not None:
            command = render_local_command(
                launcher,
                ranks=job.ranks,
                is_root=os.geteuid() == 0,
                program=command,
            )
        return _run(job, launcher, command, folder, stop)


def _run(job: Job, launcher: Launcher | None, command: tuple[str, ...], folder: Path, stop: StopForwarder) -> int:
    if stop.count:
        raise Stopped("stopped on request before the program was started")
    log = LauncherLog(read_record_source(job.program, os.environ))
    monitor = LaunchMonitor.of(log, stop, os.environ, ranks=job.ranks, hosts=1)
    forwarder = OutputForwarder(
        launcher.tag if launcher else None, RankLogFiles(os.environ, ranks=job.ranks), monitor.take
    )
    rank_record = folder / "termination.json"
    # Ranks write their record here, not to the pod's termination log: that is written once, with the final exit code.
    environment = {ATTEMPT_VARIABLE: "1", **os.environ, "BERT_TERMINATION_LOG": str(rank_record)}
    environment["TMPDIR"] = str(folder / "tmp")
    with keepalives(log.source, os.environ), monitor.watching(forwarder.is_stuck):
        code = shell_exit_code(run_child(command, environment, stop, forwarder.take))
    forwarder.finish()
    monitor.check()
    host = socket.gethostname()
    reported = monitor.rendezvous.failures
    failure = (
        find_first_failure(
            reported, log, hosts=(host,), slots=job.ranks, banner_names_killed=launcher.banner_names_killed
        )
        if launcher
        else _only_failure(code, host)
    )
    if (no_progress := monitor.no_progress) is not None:
        failure = no_progress.failure
    # All ranks share this pod, so there is no worker to lose.
    evidence = Evidence(
        combines_codes=launcher is not None and launcher.combines_codes,
        failed_by_signal=failure.signal if failure else None,
        rank_exit_code=failure.exit_code if failure in reported else None,
        made_no_progress=no_progress is not None,
        lost_peer=launcher is not None and log.has_lost_peer,
        reported_stop=log.has_stopped(code, stop_requested=stop.count > 0),
        rank_0_exit_code=log.rank_0_exit_code,
        stop_requested=stop.count > 0,
        never_started=stop.ended_before_start or not monitor.has_started,
    )
    code = decide_exit_code(code, evidence)
    write_record(
        job.termination_log, build_record(code, log, failure, read_rank_record(rank_record), no_progress=no_progress)
    )
    return code


def _only_failure(code: int, host: str) -> FirstFailure:
    if code > 128:
        return FirstFailure(rank=0, host=host, signal=code - 128)
    return FirstFailure(rank=0, host=host, exit_code=code)
