"""A run can start from another run's weights, or from its export.

Inputs: the toy data set, runs of a few steps and what they have written. Observed: the loss of the same rows without
dropout, before and after; the tensors; the line that says what was loaded; the refusals.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from bert_trainer.__main__ import main
from bert_trainer.errors import InputError
from bert_trainer.parallel.world import SingleRank
from bert_trainer.training.session import Session
from in_process import train
from initial_weights import DISTILBERT, MASKED_WORDS, MODEL, loss, open_session, start_from, told, two_layer_config
from threaded_world import ThreadedWorld, run_threads
from tiny_run import VOCABULARY_SIZE, pretrain_stage, run_document, run_trainer, write_dataset

PHASE1, PHASE2 = pretrain_stage(), pretrain_stage("phase2", length={"steps": 4})


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_dataset(tmp_path_factory.mktemp("dataset"))


@pytest.fixture(scope="module")
def first_run(tmp_path_factory: pytest.TempPathFactory, dataset: Path) -> Session:
    """Two phases of 6 and 4 steps, and an export."""
    return train(
        two_layer_config(tmp_path_factory.mktemp("first"), dataset, stages=[PHASE1, PHASE2, {"kind": "export"}])
    )


@pytest.fixture
def written(first_run: Session, tmp_path: Path) -> Path:
    """What that run has written, for this test to damage."""
    return shutil.copytree(first_run.config.output_folder, tmp_path / "written")


def test_the_first_loss_is_bit_by_bit_that_of_the_run_that_wrote_the_checkpoint(
    tmp_path: Path, dataset: Path, first_run: Session, written: Path
) -> None:
    fresh = open_session(tmp_path / "fresh", dataset, {})
    second = open_session(tmp_path / "second", dataset, start_from(written))
    assert torch.equal(loss(second.learner.model), loss(first_run.learner.model))
    assert not torch.equal(loss(second.learner.model), loss(fresh.learner.model))
    assert torch.equal(second.learner.parameters.values, first_run.learner.parameters.values)
    assert not second.learner.optimizer.first_moment.any()
    assert not second.learner.optimizer.second_moment.any()
    assert told(tmp_path / "second") == f"Started from the weights of {written}/checkpoints/phase2-00000004"


def test_with_the_moments_it_goes_on_as_the_next_stage_would_have(
    tmp_path: Path, dataset: Path, first_run: Session, written: Path
) -> None:
    # Something stands where phase 1 stood: order and dropout depend on a stage's number.
    stages = [{"kind": "prepare", "text": "unread"}, PHASE2]
    source = written / "checkpoints" / "phase1-00000006"
    warm = train(
        two_layer_config(tmp_path / "warm", dataset, stages=stages, **start_from(source, load="weightsAndOptimizer"))
    )
    cold = train(two_layer_config(tmp_path / "cold", dataset, stages=stages, **start_from(source)))
    assert torch.equal(warm.learner.parameters.values, first_run.learner.parameters.values)
    assert torch.equal(warm.learner.optimizer.first_moment, first_run.learner.optimizer.first_moment)
    assert torch.equal(warm.learner.optimizer.second_moment, first_run.learner.optimizer.second_moment)
    assert not torch.equal(cold.learner.parameters.values, first_run.learner.parameters.values)
    assert told(tmp_path / "warm") == f"Started from the weights and moments of {source}"


def test_moments_bring_their_step_count_where_the_first_stage_goes_on_with_it(
    tmp_path: Path, dataset: Path, written: Path
) -> None:
    for state, held in (("keep", 2), ("keepWithStepCount", 4 + 2)):
        stage = pretrain_stage(length={"steps": 2}, warmup={"steps": 1}, optimizer_state=state, learning_rate=1e-3)
        start = start_from(written, load="weightsAndOptimizer")
        session = train(two_layer_config(tmp_path / state, dataset, stages=[stage], **start))
        assert (session.learner.optimizer.num_applied, session.learner.optimizer.moment_steps) == (2, held)


@pytest.mark.parametrize("place", ["", "checkpoints", "checkpoints/phase2-00000002"])
def test_a_run_its_checkpoints_or_one_of_them_can_be_named(
    tmp_path: Path, dataset: Path, written: Path, place: str
) -> None:
    newest = written / "checkpoints" / "phase2-00000004" / "model.safetensors"
    newest.write_bytes(newest.read_bytes()[:-1] + b"!")
    open_session(tmp_path / "second", dataset, start_from(written / place))
    assert told(tmp_path / "second").endswith("/phase2-00000002"), "the newest one is damaged"


def test_none_verifies_and_loads_nothing(tmp_path: Path, dataset: Path, written: Path) -> None:
    fresh = open_session(tmp_path / "fresh", dataset, {})
    for kind, path in (("bert-trainer", written), ("huggingface", written / "export" / "huggingface")):
        second = open_session(tmp_path / kind, dataset, start_from(path, format=kind, load="none"))
        assert torch.equal(second.learner.parameters.values, fresh.learner.parameters.values)
        assert told(tmp_path / kind).endswith("nothing was loaded from it")
    for model in written.glob("**/model.safetensors"):
        model.write_bytes(b"damaged")
    for kind, path in (("bert-trainer", written), ("huggingface", written / "export" / "huggingface")):
        with pytest.raises(InputError, match="no valid checkpoint|cannot be read"):
            open_session(tmp_path / f"{kind}-damaged", dataset, start_from(path, format=kind, load="none"))


def test_a_run_that_goes_on_does_not_look_at_it(tmp_path: Path, dataset: Path, written: Path) -> None:
    options = start_from(written)
    second = train(two_layer_config(tmp_path / "second", dataset, **options))
    shutil.rmtree(written)
    again = open_session(tmp_path / "second", dataset, options)
    assert torch.equal(again.learner.parameters.values, second.learner.parameters.values)
    assert again.resumed_from is not None
    assert again.resumed_from.position.step == 6


@pytest.mark.parametrize("kind", ["bert-trainer", "huggingface"])
def test_every_rank_starts_with_the_same_weights(
    tmp_path: Path, dataset: Path, first_run: Session, written: Path, kind: str
) -> None:
    path = written if kind == "bert-trainer" else written / "export" / "huggingface"
    load = "weightsAndOptimizer" if kind == "bert-trainer" else "weights"
    config = two_layer_config(tmp_path / "two", dataset, world={"ranks": 2}, **start_from(path, format=kind, load=load))

    def rank(world: ThreadedWorld) -> tuple[torch.Tensor, torch.Tensor]:
        session = Session.open(config, world, attempt=1)
        session.close()
        return session.learner.parameters.values.clone(), session.learner.optimizer.second_moment.clone()

    (values, moments), (other_values, other_moments) = run_threads(2, rank)
    assert torch.equal(values, first_run.learner.parameters.values)
    assert torch.equal(values, other_values)
    assert torch.equal(moments, other_moments)
    assert bool(moments.any()) == (kind == "bert-trainer")


@pytest.mark.parametrize("multiple", [1, 64])
def test_padding_rows_may_be_more_or_fewer(
    tmp_path: Path, dataset: Path, first_run: Session, written: Path, multiple: int
) -> None:
    model = {**MODEL, "vocabulary_pad_multiple": multiple}
    start = start_from(written, load="weightsAndOptimizer")
    second = open_session(tmp_path / "second", dataset, {"model": model, **start})
    assert second.learner.model.mlm_bias.numel() == VOCABULARY_SIZE if multiple == 1 else 64
    torch.testing.assert_close(loss(second.learner.model), loss(first_run.learner.model), rtol=1e-6, atol=0)


def test_heads_that_the_source_lacks_stay_as_drawn_and_are_named(tmp_path: Path, dataset: Path) -> None:
    first = train(two_layer_config(tmp_path / "first", dataset, model=MASKED_WORDS))
    fresh = open_session(tmp_path / "fresh", dataset, {})
    start = start_from(tmp_path / "first", load="weightsAndOptimizer")
    second = open_session(tmp_path / "second", dataset, start)
    named, wanted = (session.learner.parameters.named(session.learner.parameters.values) for session in (second, first))
    drawn = fresh.learner.parameters.named(fresh.learner.parameters.values)
    for name, tensor in named.items():
        assert torch.equal(tensor, wanted[name] if name in wanted else drawn[name]), name
    assert told(tmp_path / "second").endswith("; left as drawn: pooler.weight, pooler.bias, nsp.weight, nsp.bias")
    assert not second.learner.parameters.named(second.learner.optimizer.first_moment)["nsp.weight"].any()


def test_heads_that_the_run_lacks_are_named(tmp_path: Path, dataset: Path, written: Path) -> None:
    for kind, path in (("bert-trainer", written), ("huggingface", written / "export" / "huggingface")):
        open_session(tmp_path / kind, dataset, {"model": MASKED_WORDS, **start_from(path, format=kind)})
        assert told(tmp_path / kind).endswith("; not used: nsp.bias, nsp.weight, pooler.bias, pooler.weight")


@pytest.mark.parametrize("place", ["", "checkpoints", "checkpoints/phase2-00000004"])
def test_a_run_s_checkpoint_is_imported_as_its_export(
    tmp_path: Path, written: Path, capsys: pytest.CaptureFixture[str], place: str
) -> None:
    source = str(written / place)
    assert main(["import", source, "--format", "bert-trainer", "--output", str(tmp_path / "out")]) == 0
    assert f"Read {written}/checkpoints/phase2-00000004 as bert-trainer" in capsys.readouterr().out
    exported = load_file(written / "export" / "huggingface" / "model.safetensors")
    imported = load_file(tmp_path / "out" / "model.safetensors")
    assert exported.keys() == imported.keys()
    assert all(torch.equal(exported[name], imported[name]) for name in exported)


def test_our_own_export_gives_the_same_loss(tmp_path: Path, dataset: Path, first_run: Session, written: Path) -> None:
    start = start_from(written / "export" / "huggingface", format="huggingface")
    second = open_session(tmp_path / "second", dataset, start)
    assert torch.equal(loss(second.learner.model), loss(first_run.learner.model))


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (
            {**MODEL, "intermediate_size": 48},
            r"6 of another shape\n.*ffn_in.weight: got \[64, 32\]; allowed: \[48, 32\]",
        ),
        ({**MODEL, "num_hidden_layers": 1}, r"16 left over\n.*layers.1.*and 11 more"),
        ({**MODEL, "num_hidden_layers": 3}, r"16 missing\n.*layers.2.query.weight \[32, 32\].*and 11 more"),
        ({**MODEL, "num_attention_heads": 4}, "its run has model.num_attention_heads 2; allowed: 4"),
        ({**MODEL, "hidden_activation": "gelu_new"}, "its run has model.hidden_activation 'gelu'; allowed: 'gelu_new'"),
        (DISTILBERT, "its run has model.architecture 'bert'"),
    ],
)
def test_another_model_s_checkpoint_is_refused(
    tmp_path: Path, dataset: Path, written: Path, model: dict[str, Any], words: str
) -> None:
    with pytest.raises(InputError, match=words):
        open_session(tmp_path / "run", dataset, {"model": model, **start_from(written)})


@pytest.mark.parametrize("words", [60, 62])
def test_a_checkpoint_of_another_vocabulary_is_refused_although_its_padded_table_is_as_long(
    tmp_path: Path, dataset: Path, written: Path, words: int
) -> None:
    tokens = (dataset / "vocab.txt").read_text().split()
    other = shutil.copytree(dataset, tmp_path / "other")
    (other / "vocab.txt").write_text("\n".join([*tokens, "more"][:words]))
    config = two_layer_config(
        tmp_path / "run", other, stages=[{"kind": "prepare", "text": "unread"}], **start_from(written)
    )
    with pytest.raises(InputError, match=f"got 61 vocabulary entries in 64 rows; allowed: {words}"):
        Session.open(config, SingleRank(), attempt=1)


def test_where_nothing_is_the_error_says_what_may_be_there(tmp_path: Path, dataset: Path, written: Path) -> None:
    with pytest.raises(InputError, match=r"nowhere: got no valid checkpoint there; allowed: a folder that holds"):
        open_session(tmp_path / "run-1", dataset, start_from(tmp_path / "nowhere"))
    with pytest.raises(InputError, match=r"nowhere/config.json: cannot be read(.|\n)*nothing is downloaded"):
        open_session(tmp_path / "run-2", dataset, start_from(tmp_path / "nowhere", format="huggingface"))
    damaged = written / "checkpoints" / "phase2-00000004"
    (damaged / "optimizer.safetensors").unlink()
    with pytest.raises(InputError, match=r"phase2-00000004: cannot be read(.|\n)*hint: name another checkpoint"):
        open_session(tmp_path / "run-3", dataset, start_from(damaged))


def test_moments_of_another_trainer_cannot_be_asked_for(tmp_path: Path, dataset: Path) -> None:
    start = start_from(tmp_path, format="huggingface", load="weightsAndOptimizer")
    with pytest.raises(InputError, match=r"initial_checkpoint.load: got weightsAndOptimizer from huggingface"):
        two_layer_config(tmp_path / "run", dataset, **start)


def test_the_command_ends_with_2_where_the_source_is_missing(tmp_path: Path, dataset: Path) -> None:
    document = run_document(tmp_path / "run", dataset, **start_from(tmp_path / "nowhere"))
    ended = run_trainer(document, tmp_path / "run.json")
    assert ended.returncode == 2
    assert "initial_checkpoint.path" in ended.stderr
