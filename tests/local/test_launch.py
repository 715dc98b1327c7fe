"""Command lines and environments of children, as values; nothing is started."""

from __future__ import annotations

import dataclasses

import pytest

from bert_operator.errors import LaunchError
from bert_operator.local import launch
from bert_operator.local.command import fit_preparation_to_machines
from bert_operator.local.hosts import parse_hostfile, render_hostfile
from bert_operator.local.launch import Placement
from bert_operator.local.programs import Programs
from bert_operator.names import PREPARE_RUN
from bert_operator.state.runs import RunPlacement, run_placement
from job_changes import both, put
from sample_job import PREPARE, sample_job

PROGRAMS = Programs(
    prepare=("python", "-m", "data", "build"),
    train=("python", "-m", "train"),
    mpirun="/opt/bin/mpirun",
    horovodrun="/opt/bin/horovodrun",
    torchrun=("python", "-m", "ranks"),
    cores=8,
)
ONE = Placement(ranks=1, ranks_per_node=1)
TWO = Placement(ranks=2, ranks_per_node=2)
SPREAD = Placement(ranks=4, ranks_per_node=2, hosts=("node1", "node2"), hostfile="/tmp/hosts")
TRAIN = ("python", "-m", "train", "--config", "c.json")


def without(*names: str) -> Programs:
    return Programs(prepare=PROGRAMS.prepare, train=PROGRAMS.train, **dict.fromkeys(names))  # type: ignore[arg-type]


def test_a_single_rank_needs_no_launcher() -> None:
    assert launch.choose_launcher("auto", ONE, without("mpirun", "horovodrun")) == "alone"
    assert launch.launch_training(PROGRAMS, "alone", ONE, "c.json", {}).command == TRAIN


def test_a_program_of_ones_own_gets_what_a_pod_would_give_it() -> None:
    own = ("python", "train.py", "$(BERT_RUN_CONFIG)", "--price=$5", "$$(HOME)", "$(OTHER)", "$$$$")
    programs = dataclasses.replace(PROGRAMS, folder="/opt/bin")
    child = launch.launch_training(programs, "open-mpi", TWO, "c.json", {"PATH": "/bin", "HOME": "/root"}, own=own)
    assert child.program == own, "as in pods, where no word is expanded"
    assert child.command[-len(own) :] == child.program
    assert child.environment["PATH"] == "/opt/bin:/bin"
    assert "-x BERT_RUN_CONFIG" in " ".join(child.command)
    # The trainer's own environment stays as it is.
    assert launch.launch_training(programs, "alone", ONE, "c.json", {"PATH": "/bin"}).environment == {"PATH": "/bin"}


def test_a_single_rank_on_another_machine_does() -> None:
    placement = Placement(ranks=1, ranks_per_node=1, hosts=("node1",), hostfile="h")
    assert launch.choose_launcher("auto", placement, PROGRAMS) == "open-mpi"


def test_open_mpi_is_preferred_and_gloo_is_the_way_out() -> None:
    assert launch.choose_launcher("auto", TWO, PROGRAMS) == "open-mpi"
    assert launch.choose_launcher("gloo", TWO, PROGRAMS) == "gloo"
    only_gloo = Programs(prepare=(), train=(), horovodrun="horovodrun")
    assert launch.choose_launcher("auto", TWO, only_gloo) == "gloo"


@pytest.mark.parametrize("choice", ["auto", "open-mpi", "gloo"])
def test_a_missing_launcher_is_named(choice: launch.MpiChoice) -> None:
    with pytest.raises(LaunchError, match=r"2 rank\(s\) need a launcher, and .* is installed\nhint: install"):
        launch.choose_launcher(choice, TWO, without("mpirun", "horovodrun"))


def test_torch_ranks_of_one_machine_need_no_mpi() -> None:
    assert launch.choose_launcher("auto", TWO, PROGRAMS, "torch") == "open-mpi"
    assert launch.choose_launcher("gloo", TWO, PROGRAMS, "torch") == "torchrun"
    nothing_else = Programs(prepare=(), train=(), has_horovod=False, torchrun=("torchrun",))
    assert launch.choose_launcher("auto", TWO, nothing_else, "torch") == "torchrun"
    child = launch.launch_training(PROGRAMS, "torchrun", TWO, "c.json", {}, through=("bind", "--"))
    assert child.command == ("python", "-m", "ranks", "2", "bind", "--", *TRAIN)
    assert child.program == TRAIN


@pytest.mark.parametrize(
    ("choice", "placement", "programs", "message"),
    [
        ("open-mpi", TWO, without("mpirun"), "2 .* need a launcher, and no Open MPI is installed"),
        ("auto", TWO, without("mpirun"), "2 .* need a launcher, and neither Open MPI nor PyTorch is installed"),
        ("auto", SPREAD, without("mpirun"), "4 .* of a host file need Open MPI, which is not installed"),
        ("gloo", SPREAD, PROGRAMS, "4 .* need --mpi open-mpi"),
    ],
)
def test_a_launcher_that_torch_ranks_lack_is_named(
    choice: launch.MpiChoice, placement: Placement, programs: Programs, message: str
) -> None:
    with pytest.raises(LaunchError, match=f"{message}\nhint: install the mpi extra"):
        launch.choose_launcher(choice, placement, programs, "torch")


def test_a_job_of_several_ranks_without_horovod_names_both_ways_out() -> None:
    lacking = Programs(prepare=(), train=(), mpirun="mpirun", has_horovod=False, torchrun=("torchrun",))
    with pytest.raises(LaunchError, match="2 ranks sum gradients through Horovod, which is not installed") as caught:
        launch.choose_launcher("auto", TWO, lacking)
    assert "--collectives torch" in str(caught.value)
    assert "BERT_COLLECTIVES=horovod make setup" in str(caught.value)
    # One rank has nobody to share gradients with.
    assert launch.choose_launcher("auto", ONE, lacking) == "alone"


@pytest.mark.parametrize(
    ("option", "asked", "ranks", "chosen"),
    [
        (None, None, 2, "torch"),
        (None, None, 1, None),
        (None, "horovod", 2, "horovod"),
        ("horovod", None, 2, "horovod"),
        ("torch", "horovod", 1, "torch"),
    ],
)
def test_who_asks_for_nothing_gets_torch_where_horovod_is_not_installed(
    option: launch.Collectives | None, asked: launch.Collectives | None, ranks: int, chosen: str | None
) -> None:
    lacking = Programs(prepare=(), train=(), has_horovod=False, torchrun=("torchrun",))
    assert launch.choose_collectives(option, asked, ranks, lacking) == chosen
    assert launch.choose_collectives(None, asked, ranks, PROGRAMS) == asked
    # Without PyTorch the message about Horovod names both.
    assert launch.choose_collectives(None, None, 2, Programs(prepare=(), train=(), has_horovod=False)) is None


def test_ranks_of_one_machine_run_under_mpirun_unbound() -> None:
    child = launch.launch_training(PROGRAMS, "open-mpi", TWO, "c.json", {"BERT_ATTEMPT": "1", "SECRET": "x"})
    assert child.command == (
        *("/opt/bin/mpirun", "-np", "2", "--bind-to", "none", "--map-by", ":OVERSUBSCRIBE"),
        *("-x", "BERT_ATTEMPT"),
        *TRAIN,
    )


def test_root_is_allowed_only_where_it_is_root() -> None:
    root = Programs(prepare=(), train=("t",), mpirun="mpirun", is_root=True)
    assert "--allow-run-as-root" in launch.launch_training(root, "open-mpi", TWO, "c", {}).command
    assert "--allow-run-as-root" not in launch.launch_training(PROGRAMS, "open-mpi", TWO, "c", {}).command


def test_ranks_on_other_machines_are_reached_without_questions() -> None:
    child = launch.launch_training(PROGRAMS, "open-mpi", SPREAD, "c.json", {})
    words = " ".join(child.command)
    assert "-np 4 --hostfile /tmp/hosts --bind-to none --map-by slot" in words
    assert "OVERSUBSCRIBE" not in words
    # Open MPI 4 and 5 read different variables.
    for name in ("OMPI_MCA_plm_rsh_args", "PRTE_MCA_plm_ssh_args"):
        assert "BatchMode=yes" in child.environment[name]
    own = launch.launch_training(PROGRAMS, "open-mpi", SPREAD, "c", {"OMPI_MCA_plm_rsh_args": "-p 2222"})
    assert own.environment["OMPI_MCA_plm_rsh_args"] == "-p 2222"


def test_horovodrun_gets_hosts_and_slots() -> None:
    child = launch.launch_training(PROGRAMS, "gloo", SPREAD, "c.json", {})
    places = ("-H", "node1:2,node2:2")
    assert child.command == ("/opt/bin/horovodrun", "--gloo", "-np", "4", *places, *TRAIN)
    assert child.program == TRAIN
    assert "localhost:2" in launch.launch_training(PROGRAMS, "gloo", TWO, "c", {}).command


def test_preparation_is_one_process() -> None:
    child = launch.launch_prepare(PROGRAMS, "c.json", {})
    assert (child.command, child.launcher) == (
        ("python", "-m", "data", "build", "--config", "c.json"),
        "alone",
    )


def test_preparation_on_several_machines_is_ranks_of_open_mpi() -> None:
    placement = Placement(ranks=6, ranks_per_node=3, hosts=("node1", "node2"), hostfile="/tmp/hosts")
    child = launch.launch_prepare(PROGRAMS, "c.json", {"BERT_ATTEMPT": "1"}, placement)
    program = ("python", "-m", "data", "build", "--config", "c.json")
    assert (child.launcher, child.program) == ("open-mpi", program)
    assert child.command[-len(program) :] == program
    assert "-np 6 --hostfile /tmp/hosts" in " ".join(child.command)
    assert "BatchMode=yes" in child.environment["PRTE_MCA_plm_ssh_args"]


HOSTS = ("node1", "node2", "node3")


@pytest.mark.parametrize(
    ("hosts", "launcher", "wanted"),
    [
        ((), "open-mpi", RunPlacement(workers=1, slots=1)),
        (HOSTS[:1], "open-mpi", RunPlacement(workers=1, slots=1)),
        (HOSTS, "gloo", RunPlacement(workers=1, slots=1)),
        (HOSTS[:2], "open-mpi", RunPlacement(workers=2, slots=8)),
        (HOSTS, "open-mpi", RunPlacement(workers=3, slots=8)),
    ],
)
def test_as_many_hosts_prepare_as_there_are_and_are_asked_for(
    hosts: tuple[str, ...], launcher: launch.LauncherName, wanted: RunPlacement
) -> None:
    job = sample_job(put("stages", PREPARE, "prepare", "workers", value=3))
    here = fit_preparation_to_machines(job, hosts, launcher, PROGRAMS)
    assert run_placement(here.spec, PREPARE_RUN) == wanted
    assert here.spec.stages[1:] == job.spec.stages[1:]


def test_the_job_s_own_number_of_processes_is_kept() -> None:
    job = sample_job(
        both(
            put("stages", PREPARE, "prepare", "workers", value=2),
            put("stages", PREPARE, "prepare", "numProcesses", value=5),
        )
    )
    for hosts, slots in ((HOSTS, 5), ((), 1)):
        here = fit_preparation_to_machines(job, hosts, "open-mpi", PROGRAMS)
        assert run_placement(here.spec, PREPARE_RUN).slots == slots
        assert here.spec.stages[PREPARE].prepare is not None
        assert here.spec.stages[PREPARE].prepare.num_processes == 5


def test_one_worker_is_left_alone() -> None:
    job = sample_job()
    assert fit_preparation_to_machines(job, HOSTS, "open-mpi", PROGRAMS) == job


def test_variables_that_ranks_need_are_exported_and_others_are_not() -> None:
    environment = dict.fromkeys(
        ["PATH", "HOME", "PYTHONPATH", "OMP_NUM_THREADS", "NCCL_DEBUG", "HOROVOD_TIMELINE", "BERT_ATTEMPT"],
        "1",
    )
    assert set(launch.exported_names({**environment, "AWS_SECRET": "x", "SHELL": "y"})) == set(environment)


def test_the_environment_numbers_the_attempt_and_limits_threads() -> None:
    environment = launch.build_environment({"A": "b"}, attempt=3, termination_log="/t/3.json", threads=4)
    assert environment == {
        "A": "b",
        "BERT_ATTEMPT": "3",
        "BERT_TERMINATION_LOG": "/t/3.json",
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": "4",
        "MKL_NUM_THREADS": "4",
    }


def test_a_user_s_own_number_of_threads_is_kept() -> None:
    environment = launch.build_environment({"OMP_NUM_THREADS": "9"}, attempt=1, termination_log="t", threads=4)
    assert (environment["OMP_NUM_THREADS"], environment["MKL_NUM_THREADS"]) == ("9", "4")
    assert "OMP_NUM_THREADS" not in launch.build_environment({}, attempt=1, termination_log="t", threads=None)


@pytest.mark.parametrize(("cores", "ranks", "threads"), [(8, 2, 4), (2, 2, 1), (2, 8, 1), (7, 2, 3)])
def test_cores_are_shared_out(cores: int, ranks: int, threads: int) -> None:
    assert launch.threads_per_rank(cores, ranks) == threads


@pytest.mark.parametrize(
    ("line", "launcher", "expected"),
    [
        ("[0]<stdout>:bert-trainer/1 event=x", "gloo", ("bert-trainer/1 event=x", True)),
        ("[12]<stderr>: Traceback", "gloo", ("Traceback", True)),
        ("[0]<stderr>:Killed", "gloo", ("Killed", False)),
        ("Process 1 exit with status code 137.", "gloo", ("Process 1 exit with status code 137.", False)),
        ("[0]<stdout>:kept", "open-mpi", ("[0]<stdout>:kept", True)),
        ("Traceback", "torchrun", ("Traceback", True)),
        ("torchrun: rank 1 ended with signal 9", "torchrun", ("torchrun: rank 1 ended with signal 9", False)),
    ],
)
def test_lines_of_ranks_are_distinguished_from_their_launcher_s(
    line: str, launcher: launch.LauncherName, expected: tuple[str, bool]
) -> None:
    assert launch.split_prefix(line, launcher) == expected


def test_the_first_exit_code_is_read_from_horovodrun_s_output() -> None:
    lines = ["Process 1 exit with status code 137.", "Terminating", "Process 0 exit with status code 143."]
    assert launch.read_gloo_exit(lines) == 137
    assert launch.read_gloo_exit(["RuntimeError: Horovod", "Process name: 0", "Exit code: 2"]) == 2
    assert launch.read_gloo_exit(["Process 0 exit with status code 0."]) is None
    assert launch.read_gloo_exit([f"Exit code: {'9' * 5000}"]) is None


def test_a_host_file_holds_names_and_addresses() -> None:
    text = "# rack 1\nnode1 slots=4\n\n10.0.0.2   # the new one\nfe80::1\nnode1\nnode-3.cluster.local\n"
    hosts = parse_hostfile(text, source="hosts")
    assert hosts == ("node1", "10.0.0.2", "fe80::1", "node-3.cluster.local")
    assert render_hostfile(("a", "b"), slots=2) == "a slots=2\nb slots=2\n"


@pytest.mark.parametrize("line", ["node1 node2", "node1:4", "-x", "user@node", "node;rm"])
def test_a_line_that_is_no_host_is_named(line: str) -> None:
    with pytest.raises(LaunchError, match=r"hosts:2: .* is not a host\nhint: write one host name"):
        parse_hostfile(f"node0\n{line}\n", source="hosts")


def test_a_host_file_without_hosts_is_refused() -> None:
    with pytest.raises(LaunchError, match="holds no host"):
        parse_hostfile("# nothing\n", source="hosts")
