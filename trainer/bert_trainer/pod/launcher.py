"""The launcher's pod: wait for the workers, start mpirun, pass its output on, and say how it ended."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bert_trainer.pod.blame import find_failure
from bert_trainer.pod.child import run_child
from bert_trainer.pod.endings import Evidence, check_user, read_return_code, settle_exit_code
from bert_trainer.pod.hostfile import Host, render_hostfile
from bert_trainer.pod.lines import Forwarder, RankFiles
from bert_trainer.pod.listening import Listener
from bert_trainer.pod.mpi import (
    Launcher,
    Mpi,
    choose_exports,
    find_launcher,
    find_program,
    render_spread,
    split_options,
    spread_environment,
    ssh_options,
)
from bert_trainer.pod.muster import Muster
from bert_trainer.pod.pinning import Pinning
from bert_trainer.pod.rank import Declared, wrap
from bert_trainer.pod.scratch import fresh_folder
from bert_trainer.pod.source import read_source
from bert_trainer.pod.stopping import StopRequest
from bert_trainer.pod.story import Story, build_record
from bert_trainer.pod.termination import write_record
from bert_trainer.pod.waiting import (
    Patience,
    Probe,
    probe_name,
    probe_ssh,
    require_ssh,
    wait_for_answers,
    wait_for_hostfile,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What the launcher was asked for."""

    mpi: Mpi
    ranks: int
    workers: int
    slots: int
    """Ranks per worker."""
    hostfile: Path
    wait_s: float
    ssh_port: int | None
    """None: what ssh's own configuration says."""
    exports: tuple[str, ...]
    pinning: Pinning | None
    declared: Declared
    program: tuple[str, ...]
    termination_log: Path


def run_launcher(job: Job) -> int:
    """Return the container's exit code.

    Raises:
        InputError: a program, the user or the host file is not as it has to be, or ranks started somewhere else.
        Stopped: on request, before mpirun was started.
        WorkersUnreachable: not everybody answered in time.
    """
    with StopRequest() as stop, fresh_folder() as folder:
        check_user()
        launcher = find_launcher(job.mpi)
        options = ssh_options(job.mpi, os.environ, job.ssh_port)
        hosts = _wait_for_workers(job, stop, require_ssh(find_program("ssh")), split_options(options))
        hostfile = folder / "hostfile"
        hostfile.write_text(render_hostfile(hosts, is_open_mpi=job.mpi == "OpenMPI"))
        say(f"Starting {job.ranks} ranks with {launcher.name}")
        command = render_spread(
            launcher,
            ranks=job.ranks,
            slots=job.slots,
            hostfile=str(hostfile),
            exports=choose_exports(os.environ, job.exports),
            is_root=os.geteuid() == 0,
            program=wrap(job.program, job.declared, tells_end=True),
            pinning=job.pinning,
        )
        environment = spread_environment(job.mpi, os.environ, options) | {"TMPDIR": str(folder / "tmp")}
        return _run(job, launcher, command, environment, tuple(host.pod for host in hosts), stop)


def _wait_for_workers(job: Job, stop: StopRequest, ssh: str, options: Sequence[str]) -> tuple[Host, ...]:
    workers = "1 worker" if job.workers == 1 else f"{job.workers} workers"
    say(f"Waiting for {workers}, {job.wait_s:g} s at most")
    patience = Patience(job.wait_s, stop, say)
    hosts = wait_for_hostfile(job.hostfile, workers=job.workers, slots=job.slots, patience=patience)
    # Workers connect back to this pod, by this name with some MPIs.
    own = socket.gethostname()
    probes: dict[str, Probe] = {f"this pod's own name {own}": partial(probe_name, own)}
    probes |= {host.pod: partial(probe_ssh, ssh, options, host.name) for host in hosts}
    wait_for_answers(probes, patience)
    all_answer = "The worker answers" if job.workers == 1 else f"All {workers} answer"
    say(f"{all_answer} after {patience.waited_s:.1f} s")
    return hosts


def _run(
    job: Job,
    launcher: Launcher,
    command: Sequence[str],
    environment: Mapping[str, str],
    hosts: tuple[str, ...],
    stop: StopRequest,
) -> int:
    story = Story(read_source(job.program, os.environ))
    listener = Listener(story, Muster(job.ranks, job.workers), stop, say)
    forwarder = Forwarder(launcher.tag, RankFiles(os.environ), listener.take)
    code = read_return_code(run_child(command, environment, stop, forwarder.take))
    forwarder.finish()
    listener.check()
    told = listener.muster.failures
    failure = find_failure(told, story, hosts=hosts, slots=job.slots, names_all=launcher.names_all)
    evidence = Evidence(
        mixes_codes=launcher.mixes_codes,
        failed_by_signal=failure.signal if failure else None,
        told_code=failure.exit_code if failure in told else None,
        lost_worker=story.has_lost_worker,
        lost_peer=story.has_lost_peer,
        left_early=story.left_early,
        told_stop=story.has_stopped(code, was_asked=stop.count > 0),
        said_code=story.said_code,
        asked_to_stop=stop.count > 0,
        never_began=stop.came_early or not listener.has_begun,
    )
    code = settle_exit_code(code, evidence)
    write_record(job.termination_log, build_record(code, story, failure, None))
    return code


def say(text: str) -> None:
    """Write a line for whoever reads the pod's log."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
