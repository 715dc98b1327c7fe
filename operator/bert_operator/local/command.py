"""``bert-operator local``: runs a job with the options of the command line and returns an exit code.

It wires the parts together: hosts, launcher, run configuration, executor, closing remarks.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

from bert_job.console.display import choose_display, open_console
from bert_job.console.summary import print_summary, read_report
from bert_job.optimization import OptimizerName
from bert_job.optimizers import with_optimizer
from bert_operator.api.parsing.validation import check_rules
from bert_operator.api.schema.bert_pretrain_job import BertPretrainJob, JobSpec
from bert_operator.errors import LaunchError
from bert_operator.local import launch, outcomes
from bert_operator.local.executor import LocalExecutor
from bert_operator.local.hosts import parse_hostfile, render_hostfile
from bert_operator.local.launch import Binding, Collectives, Launch, LauncherName, MpiChoice, Placement
from bert_operator.local.next_steps import render_next_steps
from bert_operator.local.programs import Programs, find_programs
from bert_operator.local.status_file import StatusFile
from bert_operator.names import PREPARE_RUN
from bert_operator.render.processors import processor_environment
from bert_operator.render.run_config import render_run_config
from bert_operator.state.runs import ChildSpec, run_placement

_RUNS = "runs"
_LIST_TIMEOUT_S = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalOptions:
    """Command-line options that are not part of the job."""

    hostfile: Path | None = None
    ranks_per_node: int | None = None
    """None: as in the job."""
    mpi: MpiChoice = "auto"
    collectives: Collectives | None = None
    """None: as in the job."""
    output: Path | None = None
    """None: as in the job."""
    plain: bool = False
    job_file: Path | None = None
    """Where the job comes from, for the closing remarks."""
    status_file: Path | None = None
    """Kept up to date for programs (``status_file``); None: none."""
    stop_at_eof: bool = False
    """Whether the end of standard input stops the job."""


def run_local(job: BertPretrainJob, options: LocalOptions, programs: Programs | None = None) -> int:
    """Run a job until it ends and return the exit code.

    Args:
        job: A valid job.
        options: Of the command line.
        programs: What to start children with; None: what is found on this machine.

    Raises:
        OperatorError: The job cannot run with these options, or nothing can be started here.
    """
    programs = programs or find_programs()
    hosts = _read_hosts(options.hostfile)
    job = fit_to_machines(job, hosts, options.ranks_per_node, programs)
    collectives = launch.choose_collectives(options.collectives, job.spec.collectives, job.spec.ranks, programs)
    if options.collectives is None and collectives != job.spec.collectives:
        print(f"Horovod is not installed: {job.spec.ranks} ranks take collectives: torch", file=sys.stderr)  # noqa: T201
    job = job.model_copy(update={"spec": job.spec.model_copy(update={"collectives": collectives})})
    output = (options.output or Path(job.spec.output.path)).expanduser().absolute()
    job = keep_started_optimizer(job, output)
    placement = Placement(
        ranks=job.spec.ranks,
        ranks_per_node=job.spec.slots_per_worker if hosts else job.spec.ranks,
        hosts=hosts,
    )
    launcher = launch.choose_launcher(options.mpi, placement, programs, job.spec.collectives or "horovod")
    job = fit_preparation_to_machines(job, hosts, launcher, programs)
    with _working_folder(beside=output if len(hosts) > 1 else None) as folder:
        starter = _Starter(job, programs, launcher, placement, folder, output)
        path = options.status_file
        tell = None if path is None else StatusFile(path, job, starter.uid, output).write
        display = choose_display(plain=options.plain)
        try:
            executor = LocalExecutor(
                job,
                starter.make_launch,
                folder,
                display,
                uid=starter.uid,
                tell=tell,
                stop_at_eof=sys.stdin.fileno() if options.stop_at_eof else None,
            )
            outcome = executor.run()
        finally:
            display.close()
    if outcome.status.phase == "Succeeded":
        next_steps = [] if options.job_file is None else render_next_steps(job, options.job_file, output)
        print_summary(open_console(), read_report(output), output, next_steps)
    _list_runs(programs, output.parent)
    with contextlib.suppress(OSError):  # the terminal may be closed
        command, job_file = _command_line(), options.job_file
        for sentence in outcomes.describe_outcome(job, outcome, command, str(job_file) if job_file else None):
            print(sentence, file=sys.stderr, flush=True)  # noqa: T201 - closing remarks
    return outcomes.exit_code(outcome)


def _command_line() -> str:
    """Return the command that runs now, as somebody in the current folder would type it."""
    program, *words = sys.argv
    if Path(program).name == "__main__.py":
        return shlex.join([sys.executable, "-m", "bert_operator", *words])
    if shutil.which(Path(program).name) == program:
        program = Path(program).name
    elif Path(program).is_relative_to(Path.cwd()):
        program = os.path.relpath(program)
    return shlex.join([program, *words])


def keep_started_optimizer(job: BertPretrainJob, output: Path) -> BertPretrainJob:
    """Return a job without an optimizer name with that of the run it resumes, which another release may have chosen.

    Args:
        job: A valid job.
        output: Its output folder, which may hold a run or not exist.
    """
    if job.spec.optimizer.name is not None or job.spec.output.if_exists != "Resume":
        return job
    try:
        # The trainer says what is wrong with a file that cannot be read.
        begun = json.loads((output / "run-config.json").read_text(encoding="utf-8"))["optimizer"]["name"]
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return job
    known = begun in get_args(OptimizerName)
    return job.model_copy(update={"spec": with_optimizer(job.spec, begun)}) if known else job


def _list_runs(programs: Programs, folder: Path) -> None:
    """Have the trainer write ``runs/index.html``, where runs are kept as the examples keep them; nothing elsewhere."""
    if folder.name == _RUNS:
        nowhere = subprocess.DEVNULL
        # A page of somebody else stays, and a list that cannot be written is no reason to fail.
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            command = [*programs.train, "report", str(folder)]
            subprocess.run(command, stdin=nowhere, stdout=nowhere, stderr=nowhere, timeout=_LIST_TIMEOUT_S, check=False)


class _Starter:
    """Builds the launches of one invocation: all attempts share a uid and a run configuration."""

    def __init__(
        self,
        job: BertPretrainJob,
        programs: Programs,
        launcher: LauncherName,
        placement: Placement,
        folder: Path,
        output: Path,
    ) -> None:
        self._programs, self._launcher = programs, launcher
        # One uid for all attempts of this invocation: in the output folder the same uid resumes, another one follows
        # output.ifExists (docs/adr/0005).
        self.uid = str(uuid.uuid4())
        self._config = folder / "run-config.json"
        config = render_run_config(
            job,
            uid=self.uid,
            ranks=placement.ranks,
            hosts=max(1, len(placement.hosts)),
            output_folder=str(output),
        )
        self._config.write_text(json.dumps(config, indent=2), encoding="utf-8")
        hostfile = None
        if placement.hosts:
            hostfile = folder / "hostfile"
            hostfile.write_text(render_hostfile(placement.hosts, slots=placement.ranks_per_node), encoding="utf-8")
        binding = None
        # Ranks find their place on the machine by Open MPI's variables.
        if launcher == "open-mpi":
            binding = launch.choose_binding(job.spec.cpu, placement, programs.physical_cores)
        self._processors = launch.fit_environment(
            processor_environment(job.spec),
            binding,
            threads=launch.threads_per_rank(programs.cores, placement.ranks_per_node),
        )
        self._preparing = _prepare_placement(job, placement.hosts, folder)
        self._through = rank_command_prefix(job, programs, binding)
        own = job.spec.workspace
        self._own = () if own is None else (*own.command, *own.args)
        self._placement = replace(placement, hostfile=str(hostfile) if hostfile else None)

    def make_launch(self, child: ChildSpec, record: Path) -> Launch:
        """Return how to start a child that writes its termination record to ``record``."""
        is_prepare = child.run == PREPARE_RUN
        # Data preparation divides the cores among its own processes: limits per rank would leave most of them idle.
        threads = launch.threads_per_rank(self._programs.cores, self._placement.ranks_per_node)
        environment = launch.build_environment(
            os.environ,
            attempt=child.attempt,
            termination_log=str(record),
            threads=None if is_prepare else threads,
            processors=None if is_prepare else self._processors,
        )
        config = str(self._config)
        if is_prepare:
            return launch.launch_prepare(self._programs, config, environment, self._preparing)
        return launch.launch_training(
            self._programs,
            self._launcher,
            self._placement,
            config,
            environment,
            through=self._through,
            own=self._own,
        )


def rank_command_prefix(job: BertPretrainJob, programs: Programs, binding: Binding | None) -> tuple[str, ...]:
    """Return the wrapper program that ranks are started through, with its options; empty if none is needed."""
    cpu, options = job.spec.cpu, tuple[str, ...]()
    if binding is not None:
        options = ("--sockets", str(cpu.sockets), "--numa-nodes", str(cpu.numa_nodes))
        if cpu.threads_per_core is not None:
            options += ("--threads-per-core", str(cpu.threads_per_core))
        options += binding.options()
    # One more start of Python per rank, which a plain job need not wait for.
    is_plain = (cpu.allocator, cpu.openmp) == ("system", "gnu")
    return () if is_plain and not options else (*programs.rank, *options, "--")


def _read_hosts(hostfile: Path | None) -> tuple[str, ...]:
    if hostfile is None:
        return ()
    try:
        text = hostfile.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise LaunchError(f"{hostfile}: cannot read the host file ({error})") from error
    return parse_hostfile(text, source=str(hostfile))


def fit_to_machines(
    job: BertPretrainJob, hosts: tuple[str, ...], ranks_per_node: int | None, programs: Programs
) -> BertPretrainJob:
    """Return the job with the hosts and ranks of the command line, and this machine's sockets and threads.

    The job's sockets, NUMA nodes, threads and CPUs describe the nodes of its cluster. Other hosts are assumed to be
    like this machine; every rank checks that.

    Raises:
        InvalidJob: The job cannot run with this number of ranks.
    """
    here = {
        "sockets": programs.sockets,
        "numa_nodes": programs.numa_nodes,
        "threads_per_core": programs.threads_per_core,
    }
    spec = job.spec.model_copy(update={"cpu": job.spec.cpu.model_copy(update=here), **_without_cpus(job.spec)})
    changed = job.model_copy(update={"spec": spec}).with_world(
        workers=len(hosts) or (1 if ranks_per_node else spec.workers),
        slots_per_worker=ranks_per_node or spec.ranks_per_worker,
    )
    # The rules held for the job's own ranks and sockets, not for those of this machine.
    if changed.spec.ranks != job.spec.ranks or spec.cpu.pinning != "none":
        check_rules(changed)
    return changed


def _without_cpus(spec: JobSpec) -> dict[str, Any]:
    """Return the sections with what pods ask for, which nobody is asked for here, without CPUs."""
    resources, worker = spec.resources.model_copy(update={"cpu": None}), spec.worker
    if worker.resources is not None:
        worker = worker.model_copy(update={"resources": worker.resources.model_copy(update={"cpu": None})})
    return {"resources": resources, "worker": worker}


def fit_preparation_to_machines(
    job: BertPretrainJob, hosts: tuple[str, ...], launcher: LauncherName, programs: Programs
) -> BertPretrainJob:
    """Return the job with data prepared by one process here, or on the hosts of a host file with Open MPI.

    One process uses all cores of a machine, and its shards are byte for byte those of any number of workers.
    """
    # Its ranks talk MPI: under horovodrun and torchrun there is none.
    by_hosts = launcher == "open-mpi" and len(hosts) > 1
    stages = []
    for stage in job.spec.stages:
        if stage.prepare is not None and stage.prepare.workers > 1:
            workers = min(stage.prepare.workers, len(hosts)) if by_hosts else 1
            processes = stage.prepare.num_processes or (programs.cores if by_hosts else None)
            changes = {"workers": workers, "num_processes": processes}
            stages.append(stage.model_copy(update={"prepare": stage.prepare.model_copy(update=changes)}))
        else:
            stages.append(stage)
    return job.model_copy(update={"spec": job.spec.model_copy(update={"stages": tuple(stages)})})


def _prepare_placement(job: BertPretrainJob, hosts: tuple[str, ...], folder: Path) -> Placement | None:
    """Write the host file of a data preparation on several hosts and return its placement; None for this machine."""
    found = run_placement(job.spec, PREPARE_RUN)
    if found.workers == 1:
        return None
    chosen = hosts[: found.workers]
    hostfile = folder / "prepare-hostfile"
    hostfile.write_text(render_hostfile(chosen, slots=found.slots), encoding="utf-8")
    return Placement(ranks=found.ranks, ranks_per_node=found.slots, hosts=chosen, hostfile=str(hostfile))


@contextmanager
def _working_folder(beside: Path | None) -> Iterator[Path]:
    """Create a folder for the run configuration and termination records, and remove it at the end.

    beside: The output folder, in whose parent every machine can read the folder; None for this machine alone.
    """
    try:
        if beside is not None:
            beside.parent.mkdir(parents=True, exist_ok=True)
        # Beside the output folder, not in it: the trainer decides whether that may exist.
        where = None if beside is None else beside.parent
        folder = Path(tempfile.mkdtemp(prefix=".bert-operator-" if where else "bert-operator-", dir=where))
    except OSError as error:
        raise LaunchError(f"Cannot create a working folder ({error})") from error
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
