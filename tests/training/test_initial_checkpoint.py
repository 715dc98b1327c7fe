"""A run can start from another run's weights, or from a Hugging Face model.

Inputs: the toy data set, runs of a few steps, models that transformers has saved. Observed: the loss of the same
rows without dropout, before and after; the tensors; the line that says what was loaded; the refusals.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - the name everybody knows it by
from safetensors.torch import load_file, save_file
from transformers import BertConfig, BertForMaskedLM, BertForPreTraining, BertModel, DistilBertConfig
from transformers import DistilBertForMaskedLM as DistilBert

from bert_trainer.__main__ import main
from bert_trainer.dataset.tokens.wordpiece import SPECIAL_TOKENS
from bert_trainer.errors import InputError
from bert_trainer.model.batch import make_batch
from bert_trainer.model.bert import Bert
from bert_trainer.output.metrics import read_metrics
from bert_trainer.parallel.world import Alone
from bert_trainer.training.session import Session
from in_process import train
from random_rows import random_samples
from threaded_world import ThreadedWorld, run_threads
from tiny_run import VOCABULARY_SIZE, pretrain_stage, run_config, run_document, run_trainer, write_dataset

SAMPLES = random_samples([24, 5, 17], sequence_length=24, predictions=4, vocabulary_size=VOCABULARY_SIZE, seed=1)
MODEL = run_document(Path("unused"), Path("unused"))["model"]
MASKED_WORDS = {**MODEL, "objective": "mlm"}
BERT_SIZES = (
    "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "max_position_embeddings"
)  # fmt: skip
DISTILBERT = {**MASKED_WORDS, "architecture": "distilbert"}
PHASE1, PHASE2 = pretrain_stage(), pretrain_stage("phase2", length={"steps": 4})


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_dataset(tmp_path_factory.mktemp("dataset"))


@pytest.fixture(scope="module")
def first_run(tmp_path_factory: pytest.TempPathFactory, dataset: Path) -> Session:
    """Two phases of 6 and 4 steps, and an export."""
    return train(run_config(tmp_path_factory.mktemp("first"), dataset, stages=[PHASE1, PHASE2, {"kind": "export"}]))


@pytest.fixture
def written(first_run: Session, tmp_path: Path) -> Path:
    """What that run has written, for this test to damage."""
    return shutil.copytree(first_run.config.output_folder, tmp_path / "written")


def start_from(path: Path, **rest: object) -> dict[str, Any]:
    return {"initial_checkpoint": {"path": str(path), **rest}}


def open_session(folder: Path, dataset: Path, options: dict[str, Any]) -> Session:
    """Set a run up without training it."""
    session = Session.open(run_config(folder, dataset, **options), Alone(), attempt=1)
    session.close()
    return session


def loss(model: Bert) -> torch.Tensor:
    """Return the means of both losses over the same rows, added up, without dropout; scalar, in nats."""
    batch = make_batch(SAMPLES, np.arange(len(SAMPLES.input_ids)))
    with torch.no_grad():
        sums = model(batch)
    return sums.masked_lm / batch.num_masked + sums.next_sentence / batch.num_rows  # type: ignore[no-any-return]


def told(folder: Path) -> str:
    """Return the sentence that a run has started with."""
    (message,) = [record["message"] for record in read_metrics(folder) if record["event"] == "initialized"]
    assert isinstance(message, str)
    return message


def test_the_first_loss_is_bit_by_bit_that_of_the_run_that_wrote_the_checkpoint(
    tmp_path: Path, dataset: Path, first_run: Session, written: Path
) -> None:
    fresh = open_session(tmp_path / "fresh", dataset, {})
    second = open_session(tmp_path / "second", dataset, start_from(written))
    assert torch.equal(loss(second.model), loss(first_run.model))
    assert not torch.equal(loss(second.model), loss(fresh.model))
    assert torch.equal(second.parameters.values, first_run.parameters.values)
    assert not second.optimizer.first_moment.any()
    assert not second.optimizer.second_moment.any()
    assert told(tmp_path / "second") == f"Started from the weights of {written}/checkpoints/phase2-00000004"


def test_with_the_moments_it_goes_on_as_the_next_stage_would_have(
    tmp_path: Path, dataset: Path, first_run: Session, written: Path
) -> None:
    # The export stands where phase 1 stood: order and dropout depend on a stage's number.
    stages = [{"kind": "export"}, PHASE2]
    source = written / "checkpoints" / "phase1-00000006"
    warm = train(
        run_config(tmp_path / "warm", dataset, stages=stages, **start_from(source, load="weights_and_optimizer"))
    )
    cold = train(run_config(tmp_path / "cold", dataset, stages=stages, **start_from(source)))
    assert torch.equal(warm.parameters.values, first_run.parameters.values)
    assert torch.equal(warm.optimizer.first_moment, first_run.optimizer.first_moment)
    assert torch.equal(warm.optimizer.second_moment, first_run.optimizer.second_moment)
    assert not torch.equal(cold.parameters.values, first_run.parameters.values)
    assert told(tmp_path / "warm") == f"Started from the weights and moments of {source}"


def test_moments_bring_their_step_count_where_the_first_stage_goes_on_with_it(
    tmp_path: Path, dataset: Path, written: Path
) -> None:
    for state, held in (("keep", 2), ("keepWithStepCount", 4 + 2)):
        stage = pretrain_stage(length={"steps": 2}, optimizer_state=state, schedule={"learning_rate": 1e-3})
        start = start_from(written, load="weights_and_optimizer")
        session = train(run_config(tmp_path / state, dataset, stages=[stage], **start))
        assert (session.optimizer.num_applied, session.optimizer.moment_steps) == (2, held)


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
        assert torch.equal(second.parameters.values, fresh.parameters.values)
        assert told(tmp_path / kind).endswith("nothing was loaded from it")
    for model in written.glob("**/model.safetensors"):
        model.write_bytes(b"damaged")
    for kind, path in (("bert-trainer", written), ("huggingface", written / "export" / "huggingface")):
        with pytest.raises(InputError, match="no valid checkpoint|cannot be read"):
            open_session(tmp_path / f"{kind}-damaged", dataset, start_from(path, format=kind, load="none"))


def test_a_run_that_goes_on_does_not_look_at_it(tmp_path: Path, dataset: Path, written: Path) -> None:
    options = start_from(written)
    second = train(run_config(tmp_path / "second", dataset, **options))
    shutil.rmtree(written)
    again = open_session(tmp_path / "second", dataset, options)
    assert torch.equal(again.parameters.values, second.parameters.values)
    assert again.resumed_at is not None
    assert again.resumed_at.step == 6


@pytest.mark.parametrize("kind", ["bert-trainer", "huggingface"])
def test_every_rank_starts_with_the_same_weights(
    tmp_path: Path, dataset: Path, first_run: Session, written: Path, kind: str
) -> None:
    path = written if kind == "bert-trainer" else written / "export" / "huggingface"
    load = "weights_and_optimizer" if kind == "bert-trainer" else "weights"
    config = run_config(tmp_path / "two", dataset, world={"ranks": 2}, **start_from(path, format=kind, load=load))

    def rank(world: ThreadedWorld) -> tuple[torch.Tensor, torch.Tensor]:
        session = Session.open(config, world, attempt=1)
        session.close()
        return session.parameters.values.clone(), session.optimizer.second_moment.clone()

    (values, moments), (other_values, other_moments) = run_threads(2, rank)
    assert torch.equal(values, first_run.parameters.values)
    assert torch.equal(values, other_values)
    assert torch.equal(moments, other_moments)
    assert bool(moments.any()) == (kind == "bert-trainer")


@pytest.mark.parametrize("multiple", [1, 64])
def test_padding_rows_may_be_more_or_fewer(
    tmp_path: Path, dataset: Path, first_run: Session, written: Path, multiple: int
) -> None:
    model = {**MODEL, "vocab_pad_multiple": multiple}
    start = start_from(written, load="weights_and_optimizer")
    second = open_session(tmp_path / "second", dataset, {"model": model, **start})
    assert second.model.mlm_bias.numel() == VOCABULARY_SIZE if multiple == 1 else 64
    torch.testing.assert_close(loss(second.model), loss(first_run.model), rtol=1e-6, atol=0)


def test_heads_that_the_source_lacks_stay_as_drawn_and_are_named(tmp_path: Path, dataset: Path) -> None:
    first = train(run_config(tmp_path / "first", dataset, model=MASKED_WORDS))
    fresh = open_session(tmp_path / "fresh", dataset, {})
    start = start_from(tmp_path / "first", load="weights_and_optimizer")
    second = open_session(tmp_path / "second", dataset, start)
    named, wanted = (session.parameters.named(session.parameters.values) for session in (second, first))
    drawn = fresh.parameters.named(fresh.parameters.values)
    for name, tensor in named.items():
        assert torch.equal(tensor, wanted[name] if name in wanted else drawn[name]), name
    assert told(tmp_path / "second").endswith("; left as drawn: pooler.weight, pooler.bias, nsp.weight, nsp.bias")
    assert not second.parameters.named(second.optimizer.first_moment)["nsp.weight"].any()


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
    assert torch.equal(loss(second.model), loss(first_run.model))


def save_huggingface(folder: Path, kind: Any, *, safe: bool = True, **changes: Any) -> Any:
    """Save a model of the tiny run's sizes as transformers does; no parameter is at its start value."""
    if kind is DistilBert:
        config = DistilBertConfig(
            vocab_size=VOCABULARY_SIZE, dim=32, n_layers=2, n_heads=2, hidden_dim=64, max_position_embeddings=64
        )
    else:
        same = {key: MODEL[key] for key in BERT_SIZES}
        config = BertConfig(**{"vocab_size": VOCABULARY_SIZE, **same, **changes})
    torch.manual_seed(3)
    model = kind(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape))
    model.save_pretrained(folder)
    if not safe:
        (folder / "model.safetensors").unlink()
        torch.save(model.state_dict(), folder / "pytorch_model.bin")
    return model


def huggingface_loss(model: Any) -> torch.Tensor:
    """Return what ``loss`` does, as transformers computes it."""
    inputs = {
        "input_ids": torch.from_numpy(SAMPLES.input_ids).long(),
        "attention_mask": torch.from_numpy(SAMPLES.input_mask).long(),
    }
    if not isinstance(model, DistilBert):
        inputs["token_type_ids"] = torch.from_numpy(SAMPLES.segment_ids).long()
    labels_BT = torch.full(inputs["input_ids"].shape, -100)
    rows, columns = np.nonzero(SAMPLES.masked_lm_positions)
    labels_BT[rows, SAMPLES.masked_lm_positions[rows, columns]] = torch.from_numpy(
        SAMPLES.masked_lm_ids[rows, columns]
    ).long()
    with torch.no_grad():
        result = model(**inputs)
    both = isinstance(model, BertForPreTraining)
    logits_BTV = result.prediction_logits if both else result.logits
    total = F.cross_entropy(logits_BTV.flatten(0, 1), labels_BT.flatten())
    if both:
        pairs_B = torch.from_numpy(SAMPLES.next_sentence_labels).long()
        total = total + F.cross_entropy(result.seq_relationship_logits, pairs_B)
    return total


@pytest.mark.parametrize("safe", [True, False], ids=["safetensors", "bin"])
@pytest.mark.parametrize(
    ("kind", "model"), [(BertForPreTraining, MODEL), (BertForMaskedLM, MASKED_WORDS), (DistilBert, DISTILBERT)]
)
def test_the_first_loss_is_what_transformers_computes(
    tmp_path: Path, dataset: Path, kind: Any, model: dict[str, Any], safe: bool
) -> None:
    theirs = save_huggingface(tmp_path / "model", kind, safe=safe)
    start = start_from(tmp_path / "model", format="huggingface")
    session = open_session(tmp_path / "run", dataset, {"model": model, **start})
    torch.testing.assert_close(loss(session.model), huggingface_loss(theirs), rtol=1e-6, atol=1e-6)
    assert told(tmp_path / "run") == f"Started from the weights of {tmp_path / 'model'}"


def test_a_bare_encoder_is_taken_and_the_heads_stay_as_drawn(tmp_path: Path, dataset: Path) -> None:
    theirs = save_huggingface(tmp_path / "model", BertModel)
    fresh = open_session(tmp_path / "fresh", dataset, {})
    session = open_session(tmp_path / "run", dataset, start_from(tmp_path / "model", format="huggingface"))
    ours = dict(session.model.named_parameters())
    assert torch.equal(ours["layers.1.ffn_in.weight"], theirs.encoder.layer[1].intermediate.dense.weight)
    assert torch.equal(ours["pooler.weight"], theirs.pooler.dense.weight)
    assert torch.equal(ours["mlm_transform.weight"], fresh.model.mlm_transform.weight)
    assert told(tmp_path / "run").endswith(
        "; left as drawn: mlm_bias, mlm_transform.weight, mlm_transform.bias, mlm_norm.weight, mlm_norm.bias, "
        "nsp.weight, nsp.bias"
    )


def test_names_of_old_conversions_are_understood(tmp_path: Path, dataset: Path) -> None:
    theirs = save_huggingface(tmp_path / "model", BertForPreTraining)
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor
        for name, tensor in load_file(tmp_path / "model" / "model.safetensors").items()
    }
    old["cls.predictions.decoder.bias"] = old.pop("cls.predictions.bias")
    old["cls.predictions.decoder.weight"] = old["bert.embeddings.word_embeddings.weight"].clone()
    old["bert.embeddings.position_ids"] = torch.arange(64)[None]
    save_file(old, tmp_path / "model" / "model.safetensors")
    session = open_session(tmp_path / "run", dataset, start_from(tmp_path / "model", format="huggingface"))
    torch.testing.assert_close(loss(session.model), huggingface_loss(theirs), rtol=1e-6, atol=1e-6)


def test_a_padded_table_is_taken_where_the_folder_s_vocabulary_says_which_rows_count(
    tmp_path: Path, dataset: Path
) -> None:
    save_huggingface(tmp_path / "model", BertForPreTraining, vocab_size=64)
    options = start_from(tmp_path / "model", format="huggingface")
    with pytest.raises(InputError, match="got 64 vocabulary entries in 64 rows; allowed: 61"):
        open_session(tmp_path / "refused", dataset, options)
    shutil.copy(dataset / "vocab.txt", tmp_path / "model")
    session = open_session(tmp_path / "run", dataset, options)
    table = load_file(tmp_path / "model" / "model.safetensors")["bert.embeddings.word_embeddings.weight"]
    assert torch.equal(session.model.embeddings.tokens.weight[:VOCABULARY_SIZE], table[:VOCABULARY_SIZE])
    assert not session.model.embeddings.tokens.weight[VOCABULARY_SIZE:].any()


def change_tensors(change: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        change(tensors)
        save_file(tensors, folder / "model.safetensors")

    return apply


def replace_text(name: str, old: str, new: str) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        text = (folder / name).read_text()
        assert old in text
        (folder / name).write_text(text.replace(old, new))

    return apply


def set_key(key: str, value: object) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))

    return apply


TABLE, FFN = "bert.embeddings.word_embeddings.weight", "bert.encoder.layer.1.intermediate.dense.weight"
DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "a size": (
        change_tensors(lambda t: t.update({FFN: t[FFN][:48].clone()})),
        r"1 of another shape\n.*layer.1.intermediate.dense.weight: got \[48, 32\]; allowed: \[64, 32\]",
    ),
    "a missing tensor of the encoder": (
        change_tensors(lambda t: t.pop(FFN)),
        r"1 missing\n.*missing: bert.encoder.layer.1.intermediate.dense.weight \[64, 32\]",
    ),
    "a layer too many": (
        change_tensors(lambda t: t.update({FFN.replace("1", "2"): t[FFN].clone()})),
        r"1 left over\n.*left over: bert.encoder.layer.2.intermediate.dense.weight",
    ),
    "another task's head": (
        change_tensors(lambda t: t.update({"classifier.weight": torch.zeros(3, 32)})),
        "left over: classifier.weight(.|\n)*take heads of other tasks off",
    ),
    "fewer words": (
        change_tensors(lambda t: t.update({TABLE: t[TABLE][:60].clone()})),
        "word_embeddings.weight: got 60 vocabulary entries in 60 rows; allowed: 61",
    ),
    "a bias too short": (
        change_tensors(lambda t: t.update({"cls.predictions.bias": torch.zeros(60)})),
        r"cls.predictions.bias: got \[60\]; allowed: \[61\]",
    ),
    "numbers that are none": (
        change_tensors(lambda t: t[FFN].fill_(float("nan"))),
        "not finite numbers: bert.encoder.layer.1.intermediate.dense.weight(.|\n)*has diverged",
    ),
    "an output layer of its own": (
        change_tensors(lambda t: t.update({"cls.predictions.decoder.weight": t[TABLE] + 1})),
        "decoder.weight: got other values than bert.embeddings.word_embeddings.weight",
    ),
    "other heads": (
        replace_text("config.json", '"num_attention_heads": 2', '"num_attention_heads": 4'),
        "num_attention_heads: got 4; allowed: 2(.|\n)*set model.num_attention_heads",
    ),
    "another activation": (
        replace_text("config.json", '"hidden_act": "gelu"', '"hidden_act": "relu"'),
        "hidden_act: got 'relu'; allowed: 'gelu'",
    ),
    "another epsilon": (
        set_key("layer_norm_eps", 1e-3),
        "layer_norm_eps: got 0.001; allowed: 1e-12(.|\n)*set model.layer_norm_eps",
    ),
    "a decoder": (set_key("is_decoder", True), "is_decoder: got True; allowed: False"),
    "attention to another text": (
        set_key("add_cross_attention", True),
        "add_cross_attention: got True; allowed: False",
    ),
    "relative positions": (
        set_key("position_embedding_type", "relative_key"),
        "position_embedding_type: got 'relative_key'; allowed: 'absolute'",
    ),
    "another kind of model": (
        replace_text("config.json", '"model_type": "bert"', '"model_type": "gpt2"'),
        "model_type: got 'gpt2'; allowed: 'bert'",
    ),
    "other words": (
        lambda folder: (folder / "vocab.txt").write_text("\n".join([*SPECIAL_TOKENS, *"abcdefgh"])),
        "vocab.txt: got 13 entries for embeddings.tokens.weight; allowed: 61",
    ),
    "as many, but other words": (
        lambda folder: (folder / "vocab.txt").write_text(
            "\n".join([*SPECIAL_TOKENS, "w0", *(f"v{number}" for number in range(VOCABULARY_SIZE - 6))])
        ),
        "vocab.txt: entry 6: got 'v0'; allowed: 'w1', as in this run's vocabulary",
    ),
    "no settings": (lambda folder: (folder / "config.json").unlink(), "config.json: cannot be read"),
    "settings cut": (replace_text("config.json", "}", ""), "config.json: not a JSON document"),
    "no weights": (
        lambda folder: (folder / "model.safetensors").unlink(),
        "got none of model.safetensors, pytorch_model.bin",
    ),
    "weights cut": (
        lambda folder: (folder / "model.safetensors").write_bytes(b"cut"),
        "model.safetensors: cannot be read",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_model_folder_that_does_not_fit_is_refused_by_name(tmp_path: Path, dataset: Path, damage: str) -> None:
    apply, words = DAMAGES[damage]
    save_huggingface(tmp_path / "model", BertForPreTraining)
    apply(tmp_path / "model")
    with pytest.raises(InputError, match=words) as error:
        open_session(tmp_path / "run", dataset, start_from(tmp_path / "model", format="huggingface"))
    assert error.value.exit_code == 2
    assert str(tmp_path / "model") in str(error.value)


class Planted:
    """What runs code when it is unpickled."""

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return (exec, ("raise SystemExit('this code has run')",))


@pytest.mark.parametrize("content", [{"x": Planted()}, {"x": "text"}, [torch.zeros(1)]], ids=["code", "text", "list"])
def test_a_bin_file_holds_tensors_and_nothing_else(tmp_path: Path, dataset: Path, content: object) -> None:
    save_huggingface(tmp_path / "model", BertForPreTraining, safe=False)
    torch.save(content, tmp_path / "model" / "pytorch_model.bin")
    with pytest.raises(InputError, match=r"pytorch_model.bin: (cannot be read|(x: )?got something other)"):
        open_session(tmp_path / "run", dataset, start_from(tmp_path / "model", format="huggingface"))


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
        ({**MODEL, "hidden_act": "gelu_new"}, "its run has model.hidden_act 'gelu'; allowed: 'gelu_new'"),
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
    config = run_config(tmp_path / "run", other, stages=[{"kind": "export"}], **start_from(written))
    with pytest.raises(InputError, match=f"got 61 vocabulary entries in 64 rows; allowed: {words}"):
        Session.open(config, Alone(), attempt=1)


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
    start = start_from(tmp_path, format="huggingface", load="weights_and_optimizer")
    with pytest.raises(InputError, match=r"initial_checkpoint.load: got 'weights_and_optimizer' from huggingface"):
        run_config(tmp_path / "run", dataset, **start)


def test_the_command_ends_with_2_where_the_source_is_missing(tmp_path: Path, dataset: Path) -> None:
    document = run_document(tmp_path / "run", dataset, **start_from(tmp_path / "nowhere"))
    ended = run_trainer(document, tmp_path / "run.json")
    assert ended.returncode == 2
    assert "initial_checkpoint.path" in ended.stderr
