"""The world is checked before the first step.

Inputs: real ranks, and variables of launchers. Observed: exit codes and messages.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import h5py
import psutil
import pytest

from bert_trainer.config.checks import parse_run_config
from bert_trainer.errors import PEER_ENDED, InputError, WrongWorld
from bert_trainer.output.run_folder import RunFolder
from bert_trainer.parallel import connection, torch_world
from bert_trainer.parallel.connection import Collectives, connect
from bert_trainer.parallel.horovod_world import prepare_environment
from bert_trainer.parallel.world import LostPeer, PeerFailed, SingleRank, lost_peer, on_rank_0
from relayout import relayout
from threaded_world import ThreadedWorld, run_threads
from tiny_run import COLLECTIVES, environment, pretrain_stage, run_document, run_trainer, trainer_command, write_dataset


@pytest.mark.horovod
def test_too_few_ranks_end_before_the_first_step(tmp_path: Path) -> None:
    document = run_document(tmp_path / "out", tmp_path / "data", world={"ranks": 3, "hosts": 1})
    command = trainer_command(document, tmp_path / "run.json")
    command[command.index("-np") + 1] = "2"
    finished = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=60, check=False)
    assert finished.returncode == 2
    assert "started 2 rank(s) on 1 host(s), the run configuration asks for 3 on 1" in finished.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.horovod
@pytest.mark.long
def test_ranks_that_should_be_on_two_hosts_end_before_the_first_step(tmp_path: Path) -> None:
    document = run_document(tmp_path / "out", tmp_path / "data", world={"ranks": 2, "hosts": 2})
    finished = run_trainer(document, tmp_path / "run.json")
    assert finished.returncode == 2
    assert "on 1 host(s), the run configuration asks for 2 on 2" in finished.stderr


@pytest.mark.horovod
def test_bad_input_found_by_rank_0_ends_all_ranks_with_its_exit_code_and_one_message(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "data")
    (dataset / "vocab.txt").unlink()
    document = run_document(tmp_path / "out", dataset, world={"ranks": 2, "hosts": 1})
    record = tmp_path / "termination.json"
    finished = run_trainer(document, tmp_path / "run.json", BERT_TERMINATION_LOG=str(record))
    assert finished.returncode == 2
    assert finished.stderr.count("vocab.txt: cannot read the vocabulary") == 1
    assert "Traceback" not in finished.stderr
    assert json.loads(record.read_text())["exitCode"] == 2


@pytest.mark.parametrize("collectives", COLLECTIVES)
def test_bad_input_found_by_another_rank_is_told_before_the_others_leave(tmp_path: Path, collectives: str) -> None:
    dataset = write_dataset(tmp_path / "data")
    held_out = next(dataset.glob("*/held_out_0000.hdf5"))
    damaged = held_out.with_name("held_out_0001.hdf5")  # rank 1's half
    shutil.copy(held_out, damaged)
    with h5py.File(relayout(damaged), "a") as file:
        file["input_ids"][0, 0] = 5000
    evaluate = {"kind": "evaluate", "sequence_length": 32, "max_predictions_per_sequence": 5}
    document = run_document(
        tmp_path / "out",
        dataset,
        world={"ranks": 2, "hosts": 1},
        stages=[pretrain_stage(), evaluate],
        collectives=collectives,
    )
    record = tmp_path / "termination.json"
    finished = run_trainer(document, tmp_path / "run.json", BERT_TERMINATION_LOG=str(record))
    assert finished.returncode in (1, 2), "of whichever rank left first; the record has the last word"
    assert "held_out_0001.hdf5: made with a vocabulary that does not fit" in finished.stderr
    assert "Traceback" not in finished.stderr
    assert json.loads(record.read_text())["exitCode"] == 2


@pytest.mark.parametrize("collectives", COLLECTIVES)
def test_a_killed_rank_leaves_the_others_without_a_reason_of_their_own(tmp_path: Path, collectives: str) -> None:
    stages = [pretrain_stage(length={"steps": 100_000})]
    dataset = write_dataset(tmp_path / "data")
    document = run_document(
        tmp_path / "out", dataset, world={"ranks": 2, "hosts": 1}, stages=stages, collectives=collectives
    )
    record = tmp_path / "termination.json"
    command = trainer_command(document, tmp_path / "run.json")
    variables = environment(BERT_TERMINATION_LOG=str(record))
    errors = tmp_path / "errors"
    with (
        errors.open("w") as file,
        subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, stderr=file, text=True) as process,
    ):
        assert process.stdout is not None
        assert any("event=checkpoint" in line for line in process.stdout)
        children = psutil.Process(process.pid).children(recursive=True)
        [child for child in children if "--config" in child.cmdline()][-1].kill()
        said, _ = process.communicate(timeout=60)
    assert process.returncode in (137, 14, 1), "of the killed rank, or of one that left before mpirun had noticed"
    assert "event=failed" not in said
    assert "Traceback" not in errors.read_text()
    assert "bert-train:" not in errors.read_text()
    assert not record.exists()


@pytest.mark.ranks
def test_ranks_without_a_launcher_tell_a_lost_peer_from_an_error_of_their_own(tmp_path: Path) -> None:
    """No mpirun ends the one that is left: what it says and its exit code are its own."""
    stages = [pretrain_stage(length={"steps": 100_000})]
    dataset = write_dataset(tmp_path / "data")
    document = run_document(
        tmp_path / "out", dataset, world={"ranks": 2, "hosts": 1}, stages=stages, collectives="torch"
    )
    (tmp_path / "run.json").write_text(json.dumps(document))
    command = [sys.executable, "-m", "bert_trainer", "--plain", "--config", str(tmp_path / "run.json")]
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = str(listener.getsockname()[1])
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2"}
    with contextlib.ExitStack() as stack:
        ranks = [
            stack.enter_context(
                subprocess.Popen(
                    command,
                    env=environment(**place, RANK=str(rank)),
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
            for rank in range(2)
        ]
        for rank in ranks:
            stack.callback(rank.kill)
        assert ranks[0].stdout is not None
        assert any("event=checkpoint" in line for line in ranks[0].stdout)
        ranks[1].kill()
        _, said = ranks[0].communicate(timeout=60)
        assert ranks[0].returncode == 1
    assert PEER_ENDED in said
    assert "Traceback" not in said
    assert "bert-train:" not in said


@pytest.mark.horovod
def test_a_run_that_another_run_has_taken_over_ends_and_is_not_tried_again(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "data")
    stages = [pretrain_stage(length={"steps": 100_000})]
    document = run_document(tmp_path / "out", dataset, world={"ranks": 2, "hosts": 1}, stages=stages)
    record = tmp_path / "termination.json"
    command = trainer_command(document, tmp_path / "run.json")
    process = subprocess.Popen(
        command, env=environment(BERT_TERMINATION_LOG=str(record)), stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None
        assert any("event=checkpoint" in line for line in process.stdout)
        RunFolder.claim(
            parse_run_config({**document, "job": {**document["job"], "uid": "uid-2"}, "if_exists": "Resume"}), attempt=1
        )
        process.communicate(timeout=60)
    assert process.returncode in (1, 2)
    told = json.loads(record.read_text())
    assert (told["reason"], told["exitCode"]) == ("TakenOverError", 2)


@pytest.mark.parametrize("collectives", ["horovod", "torch"])
def test_alone_a_run_for_several_hosts_is_refused(collectives: Collectives) -> None:
    assert isinstance(connect(1, 1, collectives), SingleRank)
    with pytest.raises(WrongWorld, match=r"started 1 rank\(s\) on 1 host\(s\).* 1 on 2"):
        connect(1, 2, collectives)


def test_without_a_launcher_torch_ranks_are_refused() -> None:
    with pytest.raises(WrongWorld, match=r"started 1 rank\(s\) on 1 host\(s\).* 2 on 1\nhint: .* torchrun "):
        connect(2, 1, "torch")


def test_horovod_under_torchrun_is_refused_by_the_name_of_what_works(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "none"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(WrongWorld, match="torchrun has started 2 ranks.*\nhint: set collectives to 'torch'"):
        connect(2, 1, "horovod")


def test_without_horovod_the_other_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection.importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(InputError, match="'horovod', which is not installed\nhint: set collectives to 'torch'"):
        connect(2, 1, "horovod")


def test_torch_ranks_that_are_not_told_where_rank_0_is_say_which_variables_tell_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(InputError, match="without MASTER_ADDR and MASTER_PORT\nhint: set MASTER_ADDR"):
        connect(2, 1, "torch")


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("MASTER_PORT", "abc", "MASTER_PORT: got 'abc'; allowed: a port number, 1 to 65535"),
        ("MASTER_PORT", "0", "MASTER_PORT: got '0'; allowed"),
        ("MASTER_PORT", "99999", "MASTER_PORT: got '99999'; allowed"),
        ("GLOO_SOCKET_IFNAME", "lo,none0", "GLOO_SOCKET_IFNAME: got none0; allowed on this machine: .*lo"),
        ("RANK", "5", r"got rank 5 of 2 rank\(s\); allowed: 0 to 1\nhint: set RANK and WORLD_SIZE"),
    ],
)
def test_variables_by_which_nobody_can_meet_are_refused_at_once(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, said: str
) -> None:
    place = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    for variable, text in {**place, name: value}.items():
        monkeypatch.setenv(variable, text)
    with pytest.raises(InputError, match=said):
        connect(2, 1, "torch")


def test_without_mpi4py_ranks_of_mpirun_are_told_what_else_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(InputError, match="mpi4py.*cannot be used.*\nhint: set MASTER_ADDR and MASTER_PORT .*torchrun"):
        connect(2, 1, "torch")


@pytest.mark.parametrize(
    ("message", "is_lost"),
    [
        ("[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:561] Connection closed by peer [10.0.0.2]:4711", True),
        ("[../third_party/gloo/gloo/transport/tcp/pair.cc:534] Read error [10.0.0.2]:4711: Connection reset", True),
        ("[c10d] ncclRemoteError: A call failed possibly due to a network error or a remote process exiting", True),
        ("[enforce fail at gloo/transport/tcp/pair.cc:446] op.preamble.length <= op.nbytes. 8 vs 4", False),
        ("ProcessGroupGloo::allgather: invalid tensor size at index 0 (expected (341, 4096), got (342, 4096))", False),
        ("CUDA out of memory. Tried to allocate 2.00 GiB", False),
    ],
)
def test_broken_connections_are_told_from_errors_of_one_s_own(message: str, is_lost: bool) -> None:
    with pytest.raises(RuntimeError if not is_lost else LostPeer) as caught, torch_world.broken_connections():
        raise RuntimeError(message)
    assert lost_peer(caught.value) == is_lost


def test_the_verdict_of_rank_0_reaches_every_rank() -> None:
    def refuse() -> None:
        raise InputError("no")

    def rank(world: ThreadedWorld) -> str:
        try:
            on_rank_0(world, refuse)
        except PeerFailed as error:
            return f"peer failed {error.exit_code}"
        except InputError as error:
            return f"refused: {error}"
        return "went on"

    assert run_threads(3, rank) == ["refused: no", "peer failed 2", "peer failed 2"]
    assert run_threads(2, lambda world: on_rank_0(world, lambda: 5)) == [5, 5]


def test_mpi_waits_without_keeping_cores_from_others_unless_told_otherwise() -> None:
    environment = {"I_MPI_THREAD_YIELD": "0", "HOROVOD_FUSION_THRESHOLD": "67108864"}
    prepare_environment(environment)
    assert environment == {
        "OMPI_MCA_mpi_yield_when_idle": "1",
        "I_MPI_THREAD_YIELD": "0",
        "HOROVOD_FUSION_THRESHOLD": "0",
        "HOROVOD_STALL_CHECK_TIME_SECONDS": "60",
    }


def test_ranks_that_reach_the_store_but_not_each_other_end_with_what_has_to_be_opened() -> None:
    # Where packets are dropped, Gloo keeps to no time limit: a process of its own, which does not end by itself.
    waits = (
        "import threading\n"
        "from bert_trainer.parallel import torch_world\n"
        "error = torch_world._cannot_connect(1, ['a', 'b', 'b'])\n"
        "with torch_world._ended_after(0.01, error):\n"
        "    threading.Event().wait(60)\n"
    )
    finished = subprocess.run(
        [sys.executable, "-c", waits], env=environment(), capture_output=True, text=True, timeout=50, check=False
    )
    assert finished.returncode == 1
    assert "rank 1 on b has met the others, but no connections to all of them" in finished.stderr
    assert "ranks are on a, b" in finished.stderr
    assert "NetworkPolicy" in finished.stderr
