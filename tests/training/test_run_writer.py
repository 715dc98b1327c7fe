"""What a run writes comes from rank 0: the writer of the others has the same methods, and none of them does anything.

Inputs: a claimed folder and two threads as ranks. Only the folder is looked at.
"""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from bert_trainer.checkpoints.checkpoint import Position
from bert_trainer.errors import TrainerError
from bert_trainer.output.metrics import read_metrics
from bert_trainer.parallel.world import PeerFailed
from bert_trainer.training.learner import LearnerState
from bert_trainer.training.run_writer import LEDGER_FILE, RunWriter
from bert_trainer.training.session import Session
from threaded_world import ThreadedWorld, run_threads
from tiny_run import run_config, write_dataset

HERE = Position(
    stage_index=0, stage="phase1", step=1, total_steps=6, num_applied=1, samples_seen=16, sample_hash="",
    loss_scale=1.0, finite_steps=1,
)  # fmt: skip


@pytest.fixture
def writers(tmp_path: Path) -> list[RunWriter]:
    """Return those of two ranks, the second one's first use after everything of the first is closed."""
    logging = {"every_steps": 1, "tensorboard": False, "sample_ledger": True}
    world = {"ranks": 2, "hosts": 1}
    config = run_config(tmp_path / "out", write_dataset(tmp_path / "data"), world=world, logging=logging)

    def open_and_close(world: ThreadedWorld) -> RunWriter:
        session = Session.open(config, world, attempt=1)
        session.close()
        return session.writer

    return run_threads(2, open_and_close)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_no_method_forgets_that_rank_0_alone_writes() -> None:
    methods = {name: it for name, it in vars(RunWriter).items() if inspect.isfunction(it) and not name.startswith("_")}
    # Collective; for on_rank_0; returns what it was given.
    everywhere = {"on_rank_0", "leave", "chain_samples"}
    assert {name for name, it in methods.items() if not hasattr(it, "__wrapped__")} == everywhere


def test_the_other_ranks_write_nothing(writers: list[RunWriter]) -> None:
    second = writers[1]
    before = contents(second.folder.path)

    def fail() -> None:
        raise AssertionError("ran on rank 1")

    second.write(fail)
    second.event("said", message="nobody hears it")
    second.progress({"stage": "phase1", "step": 1, "steps": 6})
    second.evaluated(stage="phase1", when="after")
    second.save(HERE, LearnerState({}))
    second.fail(TrainerError("nobody learns of it"))
    second.finish()
    second.wait()
    second.raise_if_failed()
    second.close()
    assert second.latest_checkpoint() is None
    assert second.chain_samples("phase1", 0, "00", fail) == "00"  # type: ignore[arg-type]
    assert contents(second.folder.path) == before
    assert LEDGER_FILE not in before


def test_a_failure_on_rank_0_ends_every_rank(tmp_path: Path) -> None:
    config = run_config(tmp_path / "out", write_dataset(tmp_path / "data"), world={"ranks": 2, "hosts": 1})

    def refuse() -> None:
        raise TrainerError("refused on rank 0")

    def act(world: ThreadedWorld) -> str:
        session = Session.open(config, world, attempt=1)
        session.close()
        with pytest.raises(TrainerError) as raised:
            session.writer.on_rank_0(refuse)
        return type(raised.value).__name__

    assert run_threads(2, act) == [TrainerError.__name__, PeerFailed.__name__]


def test_a_checkpoint_tells_once_more_from_where_its_attempt_goes_on(writers: list[RunWriter]) -> None:
    writer = writers[0]
    folder = writer.folder.path / "saved"
    folder.mkdir()
    writer._announce(HERE, folder, 5.0)
    writer.event("resumed", stage="phase1", step=7)
    writer._announce(HERE, folder, 5.0)
    told = [it.get("resumed_step") for it in read_metrics(writer.folder.path) if it["event"] == "checkpoint"]
    assert told == [None, 7]


def test_a_stop_needs_a_step_and_the_longest_of_the_last_five_checkpoints(writers: list[RunWriter]) -> None:
    writer = writers[0]
    folder = writer.folder.path / "saved"
    folder.mkdir()
    writer.progress({"stage": "phase1", "step": 1, "steps": 6, "step_s": 3.0})
    for seconds in (50.0, 1.0, 2.0, 3.0, 4.0, 5.0):
        writer._announce(HERE, folder, seconds)
    found = [(it["seconds"], it["stop_s"]) for it in read_metrics(writer.folder.path) if it["event"] == "checkpoint"]
    assert found == [(50.0, 53.0), (1.0, 53.0), (2.0, 53.0), (3.0, 53.0), (4.0, 53.0), (5.0, 8.0)]
