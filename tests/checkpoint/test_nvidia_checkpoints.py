"""NVIDIA's ``ckpt_*.pt`` files give weights, and moments where these can be told apart.

Inputs: files of ``torch.save`` with the entries that DeepLearningExamples' and MLPerf's trainers write. Observed: the
loaded parameters and moments, bit by bit; the sentence for the log; the refusals.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import BertConfig, BertForPreTraining

from bert_trainer.checkpoints.huggingface_export import huggingface_name
from bert_trainer.dataset.tokens.wordpiece import Vocabulary
from bert_trainer.errors import InputError
from bert_trainer.model.bert import Bert
from weight_sources import SIZES, load, nvidia_tensors, small_model, write_vocabulary

Content = dict[str, Any]
ONE = torch.tensor([1])


@pytest.fixture
def vocabulary(tmp_path: Path) -> Vocabulary:
    (tmp_path / "run").mkdir()
    return write_vocabulary(tmp_path / "run")


def optimizer_order(tensors: dict[str, Tensor]) -> tuple[list[str], list[str]]:
    """Return the names with and without weight decay, as NVIDIA's trainer groups parameters."""
    names = [name for name in tensors if name != "cls.predictions.decoder.weight"]
    plain = [name for name in names if any(word in name for word in ("bias", "gamma", "beta", "LayerNorm"))]
    return [name for name in names if name not in plain], plain


def optimizer_state(tensors: dict[str, Tensor], *, step: object = 7) -> Content:
    """Return FusedLAMB's state: the moments of a parameter are its values times 2, and their sizes times 3."""
    groups = optimizer_order(tensors)
    order = [*groups[0], *groups[1]]
    state = {
        key: {"exp_avg": 2 * tensors[name], "exp_avg_sq": 3 * tensors[name].abs()} for key, name in enumerate(order)
    }
    decayed = len(groups[0])
    numbers = [list(range(decayed)), list(range(decayed, len(order)))]
    return {"state": state, "param_groups": [{"params": keys, "lr": 1e-3, "step": step} for keys in numbers]}


def write(path: Path, **content: object) -> Path:
    path.parent.mkdir(exist_ok=True)
    torch.save(content, path)
    return path


def assert_loaded(found: Any, wanted: Bert, factor: float = 1.0, *, squared: bool = False) -> None:
    for name, tensor in wanted.named_parameters():
        assert torch.equal(found[name], factor * (tensor.abs() if squared else tensor)), name


def fused_attention(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Rename as MLPerf's fused attention does."""
    renamed = {}
    for name, tensor in tensors.items():
        if "attention" in name:
            name = re.sub(r"self\.(query|key|value)\.", lambda m: f"multi_head_attention.{m[1][0]}_", name)
            name = name.replace("output.dense.", "multi_head_attention.out_proj_")
            name = name.replace("output.LayerNorm", "layer_norm")
        renamed[name] = tensor
    return renamed


def wrapped(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {f"module.module.{name}": tensor for name, tensor in tensors.items()}


@pytest.mark.parametrize("rename", [dict, wrapped, fused_attention], ids=["plain", "DistributedDataParallel", "MLPerf"])
def test_every_weight_arrives_under_its_own_name(
    tmp_path: Path, vocabulary: Vocabulary, rename: Callable[[dict[str, Tensor]], dict[str, Tensor]]
) -> None:
    theirs = small_model(seed=1)
    path = write(tmp_path / "ckpt_8601.pt", model=rename(nvidia_tensors(theirs)), epoch=3, grad_scaler={"scale": 2.0})
    message, steps, found, moments = load(path, "nvidia", small_model(), vocabulary)
    assert_loaded(found, theirs)
    assert (message, steps) == (f"Started from the weights of {path}", 0)
    assert not any(tensor.any() for named in moments.values() for tensor in named.values())


@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "before PyTorch 1.6"])
def test_a_file_with_nothing_but_weights_is_taken(tmp_path: Path, vocabulary: Vocabulary, legacy: bool) -> None:
    theirs, path = small_model(seed=1), tmp_path / "model.ckpt-28252.pt"
    torch.save(nvidia_tensors(theirs), path, _use_new_zipfile_serialization=not legacy)
    assert_loaded(load(path, "nvidia", small_model(), vocabulary)[2], theirs)


def test_rows_of_padding_count_even_where_they_were_trained(tmp_path: Path, vocabulary: Vocabulary) -> None:
    theirs = small_model(seed=1)
    tensors = nvidia_tensors(theirs)
    tensors["bert.embeddings.word_embeddings.weight"][13:] = 5.0
    path = write(tmp_path / "ckpt_1.pt", model=tensors)
    assert_loaded(load(path, "nvidia", small_model(), vocabulary)[2], theirs)
    tensors["bert.embeddings.word_embeddings.weight"] = torch.ones(24, 8)
    tensors["cls.predictions.decoder.weight"] = torch.ones(24, 8)
    with pytest.raises(InputError, match="got 24 vocabulary entries in 24 rows; allowed: 13"):
        load(write(tmp_path / "ckpt_2.pt", model=tensors), "nvidia", small_model(), vocabulary)


@pytest.mark.parametrize("step", [7, torch.tensor(7, dtype=torch.int32)], ids=["2020", "2022"])
def test_moments_follow_the_order_of_the_optimizer(tmp_path: Path, vocabulary: Vocabulary, step: object) -> None:
    theirs = small_model(seed=1)
    tensors = nvidia_tensors(theirs)
    path = write(tmp_path / "ckpt_7.pt", model=tensors, optimizer=optimizer_state(tensors, step=step))
    message, steps, found, moments = load(path, "nvidia", small_model(), vocabulary, what="weightsAndOptimizer")
    assert_loaded(found, theirs)
    assert_loaded(moments["first_moment"], theirs, factor=2)
    assert_loaded(moments["second_moment"], theirs, factor=3, squared=True)
    assert (message, steps) == (f"Started from the weights and moments of {path}", 7)


def test_moments_of_a_real_optimizer_over_another_program_s_model_find_their_names(
    tmp_path: Path, vocabulary: Vocabulary
) -> None:
    sizes = {**SIZES, "vocab_size": 16, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    theirs = BertForPreTraining(BertConfig(**sizes))
    decayed = [p for n, p in theirs.named_parameters() if "bias" not in n and "LayerNorm" not in n]
    plain = [p for n, p in theirs.named_parameters() if "bias" in n or "LayerNorm" in n]
    optimizer = torch.optim.AdamW([{"params": decayed, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}])
    output = theirs(torch.tensor([[2, 5, 4, 3]]), labels=torch.tensor([[-100, 5, 6, -100]]), next_sentence_label=ONE)
    output.loss.backward()
    optimizer.step()
    path = write(tmp_path / "ckpt_1.pt", model=theirs.state_dict(), optimizer=optimizer.state_dict())
    model = small_model()
    _, steps, found, moments = load(path, "nvidia", model, vocabulary, what="weightsAndOptimizer")
    assert steps == 1
    wanted = {name: optimizer.state[parameter] for name, parameter in theirs.named_parameters()}
    values = dict(theirs.named_parameters())
    for name in found:
        their_name, rows = (
            huggingface_name(name, "bert"),
            13 if name in ("embeddings.tokens.weight", "mlm_bias") else None,
        )
        assert torch.equal(found[name][:rows], values[their_name][:rows]), name
        assert torch.equal(moments["first_moment"][name][:rows], wanted[their_name]["exp_avg"][:rows]), name
        assert torch.equal(moments["second_moment"][name][:rows], wanted[their_name]["exp_avg_sq"][:rows]), name


@pytest.mark.parametrize("rename", [wrapped, fused_attention], ids=["DistributedDataParallel", "MLPerf"])
def test_parameters_are_grouped_by_the_names_that_their_trainer_gives_them(
    tmp_path: Path, vocabulary: Vocabulary, rename: Callable[[dict[str, Tensor]], dict[str, Tensor]]
) -> None:
    """Fused attention's ``layer_norm.weight`` is none of what its trainer leaves without decay."""
    theirs = small_model(seed=1)
    tensors = rename(nvidia_tensors(theirs))
    tied = next(name for name in tensors if name.endswith("cls.predictions.decoder.weight"))
    own = {name: tensor for name, tensor in tensors.items() if name != tied}
    masters = [own[name] for group in optimizer_order(own) for name in group]
    half = {name: tensor.half() for name, tensor in tensors.items()}
    path = write(tmp_path / "ckpt_7.pt", **{"model": half, "optimizer": optimizer_state(own), "master params": masters})
    _, steps, found, moments = load(path, "nvidia", small_model(), vocabulary, what="weightsAndOptimizer")
    assert steps == 7
    assert_loaded(found, theirs)
    assert_loaded(moments["first_moment"], theirs, 2.0)
    load(path, "nvidia", small_model(), vocabulary)


@pytest.mark.parametrize("rounded", [torch.float16, torch.bfloat16])
def test_master_weights_are_taken_where_rounded_ones_are_stored_in_single_precision(
    tmp_path: Path, vocabulary: Vocabulary, rounded: torch.dtype
) -> None:
    """As apex stores them at its level O2, whose state dictionaries are float32."""
    theirs = small_model(seed=1)
    tensors = nvidia_tensors(theirs)
    masters = [tensors[name] for group in optimizer_order(tensors) for name in group]
    content: Content = {"model": {name: tensor.to(rounded).float() for name, tensor in tensors.items()}}
    path = write(tmp_path / "ckpt_7.pt", **content, **{"master params": masters})
    message, _, found, _ = load(path, "nvidia", small_model(), vocabulary)
    assert_loaded(found, theirs)
    assert message.endswith("ckpt_7.pt; with the fp32 master weights")
    masters[3] = masters[3] * 1.5
    with pytest.raises(InputError, match="master params: got 46 tensors that are not the fp32 copies of its 46"):
        load(
            write(tmp_path / "ckpt_8.pt", **content, **{"master params": masters}), "nvidia", small_model(), vocabulary
        )


def test_master_weights_that_are_the_weights_change_nothing(tmp_path: Path, vocabulary: Vocabulary) -> None:
    theirs = small_model(seed=1)
    tensors = nvidia_tensors(theirs)
    masters = [tensors[name] for group in optimizer_order(tensors) for name in group]
    path = write(tmp_path / "ckpt_7.pt", **{"model": tensors, "master params": masters})
    message, _, found, _ = load(path, "nvidia", small_model(), vocabulary)
    assert_loaded(found, theirs)
    assert message == f"Started from the weights of {path}"


def test_master_weights_are_taken_in_place_of_rounded_ones(tmp_path: Path, vocabulary: Vocabulary) -> None:
    theirs = small_model(seed=1)
    tensors = nvidia_tensors(theirs)
    names = [name for group in optimizer_order(tensors) for name in group]
    half = {name: tensor.half() for name, tensor in tensors.items()}
    content = {"model": half, "optimizer": optimizer_state(tensors), "master params": [tensors[name] for name in names]}
    path = write(tmp_path / "ckpt_7.pt", **content)
    message, _, found, _ = load(path, "nvidia", small_model(), vocabulary)
    assert_loaded(found, theirs)
    assert message.endswith("ckpt_7.pt; with the fp32 master weights")
    without = write(tmp_path / "ckpt_8.pt", model=half)
    rounded = load(without, "nvidia", small_model(), vocabulary)[2]
    assert torch.equal(rounded["nsp.weight"], theirs.nsp.weight.half().float())  # type: ignore[union-attr]
    content["master params"][0] = content["master params"][0] + 1
    with pytest.raises(InputError, match="master params: got 46 tensors that are not the fp32 copies of its 46"):
        load(write(tmp_path / "ckpt_9.pt", **content), "nvidia", small_model(), vocabulary)


def regrouped(state: Content) -> None:
    state["param_groups"][0]["params"] += state["param_groups"][1]["params"][:1]
    del state["param_groups"][1]["params"][0]


def swapped(state: Content) -> None:
    state["state"][0], state["state"][1] = state["state"][1], state["state"][0]


def below_zero(state: Content) -> None:
    state["state"][3]["exp_avg_sq"][0] = -1e-8


UNSOUND: dict[str, tuple[Callable[[Content], object], str]] = {
    "other groups": (regrouped, r"parameter groups of \[19, 27\]; allowed: \[18, 28\]"),
    "another order": (
        swapped,
        r"exp_avg of bert.embeddings.word_embeddings.weight: got \[10, 8\]; allowed: \[16, 8\], the weight's shape",
    ),
    "no moments yet": (lambda state: state["state"].clear(), "got no entry for some of its 46 parameters"),
    "moments of another optimizer": (lambda state: state["state"][3].pop("exp_avg_sq"), "exp_avg_sq of .*NoneType"),
    "groups of no numbers": (
        lambda state: state["param_groups"][0].update(params=[[1]] * 18),
        r"parameter groups of \[\]",
    ),
    "no groups": (lambda state: state.pop("param_groups"), r"parameter groups of \[\]"),
    "squares below zero": (below_zero, r"exp_avg_sq of bert.encoder.*: got -1e-08; allowed: 0 or more"),
    "other steps": (
        lambda state: state["param_groups"][1].update(step=9),
        r"step: got 7 and 9; allowed: the same for all of its parameters",
    ),
    "other steps by parameter": (
        lambda state: [
            *(group.pop("step") for group in state["param_groups"]),
            *(entry.update(step=torch.tensor(float(7 + (key == 9)))) for key, entry in state["state"].items()),
        ],
        r"step: got 7 and 8; allowed: the same for all of its parameters",
    ),
    "half a step": (lambda state: state["param_groups"][0].update(step=1.5), "step: got 1.5; allowed: a whole number"),
}


@pytest.mark.parametrize("damage", UNSOUND)
def test_moments_that_cannot_be_told_apart_are_refused_with_the_reason(
    tmp_path: Path, vocabulary: Vocabulary, damage: str
) -> None:
    change, words = UNSOUND[damage]
    tensors = nvidia_tensors(small_model(seed=1))
    state = optimizer_state(tensors)
    change(state)
    path = write(tmp_path / "ckpt_7.pt", model=tensors, optimizer=state)
    with pytest.raises(InputError, match=words):
        load(path, "nvidia", small_model(), vocabulary, what="weightsAndOptimizer")
    load(path, "nvidia", small_model(), vocabulary)


@pytest.mark.parametrize(
    ("names", "newest"),
    [
        (["ckpt_999.pt", "ckpt_1000.pt"], "ckpt_1000.pt"),
        (["phase1_ckpt_9000.pt", "phase2_ckpt_300.pt"], "phase2_ckpt_300.pt"),
    ],
)
def test_of_a_folder_the_newest_file_is_taken_and_named(
    tmp_path: Path, vocabulary: Vocabulary, names: Sequence[str], newest: str
) -> None:
    theirs = small_model(seed=1)
    for name in names:
        model = theirs if name == newest else small_model(seed=2)
        write(tmp_path / "runs" / name, model=nvidia_tensors(model))
    message, _, found, _ = load(tmp_path / "runs", "nvidia", small_model(), vocabulary)
    assert_loaded(found, theirs)
    assert message == f"Started from the weights of {tmp_path}/runs/{newest}; the newest of 2 in its folder"


def test_what_is_missing_left_over_or_of_another_shape_is_listed_at_once(
    tmp_path: Path, vocabulary: Vocabulary
) -> None:
    tensors = nvidia_tensors(small_model(seed=1))
    del tensors["bert.encoder.layer.0.output.dense.bias"]
    tensors["bert.encoder.layer.1.intermediate.dense_act.bias"] = torch.zeros(3)
    tensors["qa_outputs.weight"] = torch.zeros(2, 8)
    path = write(tmp_path / "ckpt_7.pt", model=tensors)
    with pytest.raises(InputError) as error:
        load(path, "nvidia", small_model(), vocabulary)
    assert str(error.value).splitlines() == [
        f"initial_checkpoint.path: {path}: its tensors are not this model's: 1 missing, 1 of another shape, "
        "1 left over",
        "  missing: bert.encoder.layer.0.output.dense.bias [8]",
        "  of another shape: bert.encoder.layer.1.intermediate.dense.bias: got [3]; allowed: [16]",
        "  left over: qa_outputs.weight",
        "hint: use the model section (sizes, architecture) and the vocabulary that it was trained with",
    ]


def test_names_in_messages_are_bounded_and_printable(tmp_path: Path, vocabulary: Vocabulary) -> None:
    strange = {f"{number}\n\x1b[31m" + "x" * 3_000: torch.zeros(1) for number in range(1000)}
    path = write(tmp_path / "ckpt_7.pt", model={**nvidia_tensors(small_model(seed=1)), **strange})
    with pytest.raises(InputError, match="1000 left over(.|\n)*and 995 more") as error:
        load(path, "nvidia", small_model(), vocabulary)
    assert len(str(error.value)) < 2000
    assert "\x1b" not in str(error.value)


def test_a_pickled_data_loader_is_named_together_with_the_way_out(tmp_path: Path, vocabulary: Vocabulary) -> None:
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.zeros(3)))
    path = write(tmp_path / "ckpt_7.pt", model=nvidia_tensors(small_model()), data_loader=loader)
    with pytest.raises(InputError, match=r"pickled torch.utils.data.dataloader.DataLoader(.|\n)*save it anew") as error:
        load(path, "nvidia", small_model(), vocabulary)
    assert "c = torch.load('ckpt_7.pt'" in str(error.value)
