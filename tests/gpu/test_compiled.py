"""Compiled functions give what the plain ones give, once for all token counts; without a compiler the plain ones run.

Inductor makes C++ of them here, Triton's language on a GPU; what is traced, differentiated and fused is the same.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import counters

from bert_trainer.model.backends.gpu import compilation, functions
from bert_trainer.model.backends.gpu.attention import WAYS, Attention, Rows
from bert_trainer.model.backends.gpu.bucket_padding import MicroBatchShape, pad_to_bucket
from bert_trainer.model.backends.gpu.compilation import mark_dynamic, why_not_compiled
from bert_trainer.model.backends.gpu.encoder import Functions, GpuBackend, _keys_at, _weights_of
from bert_trainer.model.backends.gpu.functions import LayerSettings
from gpu_models import SHAPE, largest_difference, make_batch, make_model, run
from random_rows import MODERN

# Dynamo itself looks at the gradient of a layer's input; a run leaves that out of its log.
pytestmark = [
    pytest.mark.usefixtures("compiled_anew"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning"),
]

CPU = torch.device("cpu")
META = torch.device("meta")


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("changes", "graphs"),
    [
        pytest.param({}, ["embeddings", "a layer", "the last layer", "the head"], id="bert"),
        # The first layer has no LayerNorm of its own; the last one has no window.
        pytest.param(
            MODERN,
            ["embeddings", "the first layer", "a layer with a window", "the last layer", "the head"],
            id="modernbert",
        ),
    ],
)
def test_inductor_gives_the_plain_losses_and_gradients_and_drops_the_same_features(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, changes: dict[str, object], graphs: list[str]
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    reason = why_not_compiled(CPU)
    if reason is not None:
        pytest.skip(f"nothing can be compiled here: {reason}")
    model = make_model(torch.float32, hidden_dropout=0.1, **changes)
    counters.clear()
    compiled = GpuBackend("padded", torch.float32, Functions.compiled(), not_compiled=None)
    for recompute in (False, True):
        model.activation_checkpointing = recompute
        for seed, lengths in enumerate([(30, 7, 19), (40,) * 12, (2, 3)]):
            batch = pad_to_bucket(make_batch(lengths, seed), SHAPE)
            plain = run(model, batch, GpuBackend("padded", torch.float32), step=seed)
            found = run(model, batch, compiled, step=seed)
            assert found.losses == pytest.approx(plain.losses, rel=1e-5)
            assert found.correct == plain.correct
            assert largest_difference(found, plain) < 1e-5
    assert counters["stats"]["unique_graphs"] == len(graphs)
    assert not counters["graph_break"]


@pytest.mark.parametrize(
    ("attention", "dtype"),
    [("flash", torch.bfloat16), ("efficient", torch.float16), ("efficient", torch.float32), ("padded", torch.float64)],
)
def test_a_layer_is_one_graph_for_all_layers_and_token_counts(attention: Attention, dtype: torch.dtype) -> None:
    """On the meta device, with the operators that a GPU runs."""
    graphs = []

    def count(graph: torch.fx.GraphModule, _: object) -> object:
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(functions.encode_layer, backend=count, fullgraph=True)
    master = torch.float64 if dtype == torch.float64 else torch.float32
    drops = {"hidden_dropout": 0.1, "attention_dropout": 0.1}
    model = make_model(master, num_hidden_layers=3, **drops).to(META)
    settings = LayerSettings(WAYS[attention], 2, SHAPE.sequence_length, 0.1, 0.1, True, "none", 1e-12)
    token_counts, last = set(), model.layers[-1]
    for lengths in ((30, 7, 19), (40,) * 12, (2, 3)):
        batch = pad_to_bucket(make_batch(lengths), SHAPE).to(META)
        token_counts.add(len(batch.tokens_N))
        x_ND: Tensor = torch.empty(len(batch.tokens_N), 64, dtype=dtype, device=META, requires_grad=True)
        y_ND = x_ND
        for layer in model.layers:
            rows = Rows(
                mark_dynamic(batch.row_bounds), mark_dynamic(batch.padded_index_N), mark_dynamic(batch.row_mask_BT)
            )
            keys = _keys_at(batch.dropout_keys(1, 2), layer.first_site, 64)
            output_index_K = (
                mark_dynamic(torch.cat([batch.masked_index_M, batch.row_starts_B])) if layer is last else None
            )
            y_ND = compiled(mark_dynamic(y_ND), rows, _weights_of(layer), keys, output_index_K, settings)
        assert (y_ND.shape, y_ND.dtype) == ((len(output_index_K), 64), dtype)
        parameters = list(model.layers.parameters())
        gradients = torch.autograd.grad(y_ND.float().sum(), [x_ND, *parameters])
        assert [(one.shape, one.dtype) for one in gradients] == [(of.shape, of.dtype) for of in [x_ND, *parameters]]
    assert len(token_counts) == 3
    assert len(graphs) == 2, "one for the last layer, which computes what the losses need"


def test_a_variable_turns_it_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(compilation.SWITCH, "off")
    assert why_not_compiled(CPU) == "BERT_TRAINER_COMPILE=off"


def test_cards_that_triton_does_not_know_run_the_plain_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (6, 1))
    assert why_not_compiled(torch.device("cuda", 0)) == "Triton needs sm_70 or newer"


def test_a_machine_without_a_compiler_runs_the_plain_functions_and_says_why(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def no_compiler(*_: object, **__: object) -> None:
        raise RuntimeError("Failed to find C compiler. Please specify via CC environment variable\nand more")

    monkeypatch.setattr(torch, "compile", no_compiler)
    expected = "RuntimeError: Failed to find C compiler. Please specify via CC environment variable"
    assert why_not_compiled(CPU) == expected


def test_a_compiler_that_gives_other_values_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(function: object, **_: object) -> object:
        return lambda x: function(x) * 1.01  # type: ignore[operator]

    monkeypatch.setattr(torch, "compile", wrong)
    assert why_not_compiled(CPU) == "a compiled function gave other values than the plain one"


def test_a_second_sequence_length_is_compiled_once_more_and_a_third_is_not() -> None:
    graphs = []

    def count(graph: torch.fx.GraphModule, _: object) -> object:
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(functions.encode_layer, backend=count, fullgraph=True)
    model = make_model(torch.float32).to(META)
    for longest in (40, 64, 128, 512):
        batch = pad_to_bucket(make_batch(), MicroBatchShape(longest, rows=12)).to(META)
        x_ND = torch.empty(len(batch.tokens_N), 64, dtype=torch.bfloat16, device=META)
        rows = Rows(mark_dynamic(batch.row_bounds), mark_dynamic(batch.padded_index_N), mark_dynamic(batch.row_mask_BT))
        settings = LayerSettings(WAYS["flash"], 2, longest, 0.1, 0.1, True, "none", 1e-12)
        compiled(mark_dynamic(x_ND), rows, _weights_of(model.layers[0]), None, None, settings)
    assert len(graphs) == 2
