"""Export of the trained model as an ONNX file: the padded plain form that runtimes without PyTorch execute.

The graph is written down operator by operator (https://onnx.ai/onnx/operators/), without tracing: batch size and
sequence length stay free, and padding is masked. Weights are fp32 and the vocabulary's padding rows are cut off.
Nothing is quantised or fused here; runtimes do that for the machine that they are on.

Letters: B rows, T tokens of a row with padding, D hidden size, H heads, E = D / H, V entries of the vocabulary, L
numbers that a task's head gives.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

from bert_trainer.checkpoints.protobuf_wire import write_varint
from bert_trainer.model.bert import Bert
from bert_trainer.model.layers import EncoderParameters, Layer, gelu_approximation
from bert_trainer.model.task_model import TaskModel

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto

ONNX_FILE = "model.onnx"
WEIGHTS_FILE = "model.onnx.data"
"""Holds the weights where one file would be too large for protobuf."""

# Versions that ONNX Runtime has read since 1.12 (2022), TensorRT since 8.6: nothing here needs newer operators.
_OPSET, _IR_VERSION = 17, 8
# Protobuf's messages end at 2 GiB; the graph itself takes less than the rest.
_MAX_FILE_BYTES = 2**31 - 2**24
# Weights of their own file begin at multiples of this, so that runtimes can map them.
_ALIGNMENT = 4096
# Shapes and other constants stay in the graph, where tools that check shapes can read them.
_MIN_OUTSIDE = 64
# Added to the scores of padding. Not -inf: a row of nothing but padding would become NaN.
_MASKED = float(np.finfo(np.float32).min)


def write_onnx_model(model: Bert | TaskModel, folder: Path, *, largest_file: int = _MAX_FILE_BYTES) -> None:
    """Write ``model.onnx``, and ``model.onnx.data`` where one file does not hold the weights.

    Inputs: ``input_ids``, ``attention_mask`` (0: padding) and, of BERT, ``token_type_ids``, int64 (B, T). Outputs,
    float32, of a pretrained model: ``prediction_logits`` (B, T, V), with a next-sentence head
    ``seq_relationship_logits`` (B, 2; label 1: a random next sentence), and ``last_hidden_state`` (B, T, D); of a
    fine-tuned one: ``logits`` (B, L), or of spans ``start_logits`` and ``end_logits`` (B, T), those of padding too.

    Args:
        model: The trained model.
        folder: Where the files go.
        largest_file: Bytes of weights above which they get a file of their own.
    """
    graph = _Graph()
    x_BTD = _add_encoder(graph, model)
    if isinstance(model, TaskModel):
        outputs = _add_task_head(graph, model, x_BTD)
    else:
        outputs = _add_pretraining_heads(graph, model, x_BTD)
    is_large = sum(constant.num_bytes for constant in graph.constants.values()) > largest_file
    constants = _store_outside(graph.constants, folder / WEIGHTS_FILE) if is_large else _store_inside(graph.constants)
    with (folder / ONNX_FILE).open("wb") as file:
        _write_document(file, _document(graph, model, outputs), constants)


@dataclass(frozen=True, slots=True)
class _Constant:
    """A parameter or a number of the graph. Its bytes are made when they are written, one constant at a time."""

    values: Tensor
    transposed: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(reversed(self.values.shape)) if self.transposed else tuple(self.values.shape)

    @property
    def type(self) -> np.dtype[Any]:
        return np.dtype(np.float32 if self.values.is_floating_point() else np.int64)

    @property
    def num_bytes(self) -> int:
        return self.values.numel() * self.type.itemsize

    def to_bytes(self) -> bytes:
        """Return the elements in order, little-endian as ONNX has them."""
        values = self.values.detach().cpu()
        array = (values.t() if self.transposed else values).numpy()
        return np.ascontiguousarray(array, dtype=self.type.newbyteorder("<")).tobytes()


class _Graph:
    """Operators in the order in which they run, and constants by name."""

    def __init__(self) -> None:
        self.nodes: list[NodeProto] = []
        self.constants: dict[str, _Constant] = {}

    def add(self, operator: str, *inputs: str, name: str, **attributes: Any) -> str:
        """Append an operator with one output, which is called ``name``; return that."""
        # Here, not above: every rank of every run would load it, which takes 0.6 s.
        from onnx import helper

        self.nodes.append(helper.make_node(operator, list(inputs), [name], name=name, **attributes))
        return name

    def number(self, name: str, value: float) -> str:
        """Return the name of a scalar, float32."""
        return self.weight(name, torch.tensor(value))

    def numbers(self, name: str, *values: int) -> str:
        """Return the name of a list of whole numbers, int64 (n,)."""
        return self.weight(name, torch.tensor(values))

    def weight(self, name: str, values: Tensor, *, transposed: bool = False) -> str:
        """Return the name of a parameter, float32 whatever the model's type."""
        self.constants[name] = _Constant(values, transposed)
        return name

    def linear(self, x: str, layer: Any, name: str) -> str:
        """Multiply by a layer's weight, which ONNX wants as (in, out), and add its bias."""
        product = self.add(
            "MatMul", x, self.weight(f"{name}.weight", layer.weight, transposed=True), name=f"{name}/product"
        )
        return self.add("Add", product, self.weight(f"{name}.bias", layer.bias), name=f"{name}/sum")

    def norm(self, x: str, norm: Any, name: str) -> str:
        """Normalise over the last dimension."""
        weight, bias = self.weight(f"{name}.weight", norm.weight), self.weight(f"{name}.bias", norm.bias)
        return self.add("LayerNormalization", x, weight, bias, name=name, axis=-1, epsilon=norm.eps)

    def gelu(self, x: str, approximate: str, name: str) -> str:
        """Apply GELU; ``approximate`` as in ``torch.nn.functional.gelu``."""
        # Written out: the operator came with version 20, and runtimes recognise this form.
        one, half = self.number("one", 1.0), self.number("half", 0.5)
        if approximate == "tanh":
            cube = self.add("Pow", x, self.number("three", 3.0), name=f"{name}/cube")
            bent = self.add("Mul", cube, self.number("gelu_cubic", 0.044715), name=f"{name}/cubic")
            inner = self.add("Add", x, bent, name=f"{name}/inner")
            scaled = self.add("Mul", inner, self.number("gelu_scale", math.sqrt(2 / math.pi)), name=f"{name}/scaled")
            curve = self.add("Tanh", scaled, name=f"{name}/curve")
        else:
            scaled = self.add("Div", x, self.number("root_of_two", math.sqrt(2)), name=f"{name}/scaled")
            curve = self.add("Erf", scaled, name=f"{name}/curve")
        share = self.add("Add", curve, one, name=f"{name}/share")
        doubled = self.add("Mul", x, share, name=f"{name}/doubled")
        return self.add("Mul", doubled, half, name=name)


def _add_encoder(graph: _Graph, model: EncoderParameters) -> str:
    x_BTD = _add_embeddings(graph, model)
    real = graph.add("Equal", "attention_mask", graph.numbers("padding", 0), name="is_padding")
    penalty = graph.add(
        "Where", real, graph.number("masked_score", _MASKED), graph.number("zero", 0.0), name="score_penalty"
    )
    penalty_B11T = graph.add("Unsqueeze", penalty, graph.numbers("heads_and_queries", 1, 2), name="mask")
    last = len(model.layers) - 1
    for number, layer in enumerate(model.layers):
        assert isinstance(layer, Layer), "the encoder is made of layers"
        output = "last_hidden_state" if number == last else f"layers.{number}"
        x_BTD = _add_layer(graph, layer, x_BTD, penalty_B11T, f"layers.{number}", output)
    return x_BTD


def _add_embeddings(graph: _Graph, model: EncoderParameters) -> str:
    embeddings, size = model.embeddings, model.vocabulary_size
    table = graph.weight("embeddings.tokens.weight", embeddings.tokens.weight[:size])
    x = graph.add("Gather", table, "input_ids", name="embeddings/tokens")
    length = graph.add("Shape", "input_ids", name="sequence_length", start=1, end=2)
    positions = graph.add(
        "Slice",
        graph.weight("embeddings.positions.weight", embeddings.positions.weight),
        graph.numbers("first_position", 0),
        length,
        name="embeddings/positions",
    )
    x = graph.add("Add", x, positions, name="embeddings/with_positions")
    if embeddings.segments is not None:
        segments = graph.weight("embeddings.segments.weight", embeddings.segments.weight)
        chosen = graph.add("Gather", segments, "token_type_ids", name="embeddings/segments")
        x = graph.add("Add", x, chosen, name="embeddings/with_segments")
    return graph.norm(x, embeddings.norm, "embeddings.norm")


def _add_layer(graph: _Graph, layer: Layer, x_BTD: str, penalty_B11T: str, name: str, output: str) -> str:
    y_BTD = _add_attention(graph, layer, x_BTD, penalty_B11T, f"{name}.attention")
    attended = graph.linear(y_BTD, layer.attention_output, f"{name}.attention_output")
    x_BTD = graph.norm(
        graph.add("Add", x_BTD, attended, name=f"{name}.attended"), layer.attention_norm, f"{name}.attention_norm"
    )
    inner = graph.gelu(graph.linear(x_BTD, layer.ffn_in, f"{name}.ffn_in"), layer.approximate, f"{name}.gelu")
    fed = graph.add("Add", x_BTD, graph.linear(inner, layer.ffn_out, f"{name}.ffn_out"), name=f"{name}.fed")
    x_BTD = graph.norm(fed, layer.ffn_norm, f"{name}.ffn_norm")
    return graph.add("Identity", x_BTD, name=output)


def _add_attention(graph: _Graph, layer: Layer, x_BTD: str, penalty_B11T: str, name: str) -> str:
    """Softmax attention; keys of padding are left out."""
    size = layer.query.in_features
    split = graph.numbers("split_heads", 0, 0, layer.num_heads, size // layer.num_heads)  # 0: as the input has it
    heads = {}
    # Keys are needed as (B, H, E, T), the others as (B, H, T, E).
    for part, order in (("query", (0, 2, 1, 3)), ("key", (0, 2, 3, 1)), ("value", (0, 2, 1, 3))):
        projected = graph.linear(x_BTD, getattr(layer, part), f"{name}/{part}")
        parted = graph.add("Reshape", projected, split, name=f"{name}/{part}_heads")
        heads[part] = graph.add("Transpose", parted, name=f"{name}/{part}_BH", perm=order)
    scores = graph.add("MatMul", heads["query"], heads["key"], name=f"{name}/products")
    root = graph.number("root_of_head_size", math.sqrt(size // layer.num_heads))
    scores = graph.add("Div", scores, root, name=f"{name}/scores")
    masked = graph.add("Add", scores, penalty_B11T, name=f"{name}/masked_scores")
    weights = graph.add("Softmax", masked, name=f"{name}/weights", axis=-1)
    mixed = graph.add("MatMul", weights, heads["value"], name=f"{name}/mixed")
    mixed = graph.add("Transpose", mixed, name=f"{name}/mixed_BT", perm=(0, 2, 1, 3))
    return graph.add("Reshape", mixed, graph.numbers("join_heads", 0, 0, size), name=name)


_Output = tuple[str, tuple[int | str, ...]]
"""Name and shape; names for dimensions that are free."""
_ROWS = ("batch", "sequence")


def _add_pretraining_heads(graph: _Graph, model: Bert, x_BTD: str) -> list[_Output]:
    x = graph.gelu(
        graph.linear(x_BTD, model.mlm_transform, "mlm_transform"), gelu_approximation(model.config), "mlm_gelu"
    )
    x = graph.norm(x, model.mlm_norm, "mlm_norm")
    # The table of the embeddings once more: the file holds it once.
    decoder = graph.add("Transpose", "embeddings.tokens.weight", name="decoder", perm=(1, 0))
    scores = graph.add("MatMul", x, decoder, name="vocabulary_scores")
    bias = graph.weight("mlm_bias", model.mlm_bias[: model.vocabulary_size])
    graph.add("Add", scores, bias, name="prediction_logits")
    outputs: list[_Output] = [("prediction_logits", (*_ROWS, model.vocabulary_size))]
    if model.pooler is not None and model.nsp is not None:
        pooled = graph.add("Tanh", graph.linear(_add_first_token(graph, x_BTD), model.pooler, "pooler"), name="pooled")
        graph.add("Identity", graph.linear(pooled, model.nsp, "nsp"), name="seq_relationship_logits")
        outputs.append(("seq_relationship_logits", ("batch", 2)))
    return [*outputs, ("last_hidden_state", (*_ROWS, model.config.hidden_size))]


def _add_task_head(graph: _Graph, model: TaskModel, x_BTD: str) -> list[_Output]:
    if model.pooler is not None:
        pooled = graph.linear(_add_first_token(graph, x_BTD), model.pooler, "pooler")
        pooled = graph.add("Tanh" if model.config.architecture == "bert" else "Relu", pooled, name="pooled")
        graph.add("Identity", graph.linear(pooled, model.head, "head"), name="logits")
        return [("logits", ("batch", model.head_config.num_outputs))]
    scores_BT2 = graph.linear(x_BTD, model.head, "head")
    names = ("start_logits", "end_logits")
    for number, name in enumerate(names):
        graph.add("Gather", scores_BT2, graph.weight(f"column_{number}", torch.tensor(number)), name=name, axis=2)
    return [(name, _ROWS) for name in names]


def _add_first_token(graph: _Graph, x_BTD: str) -> str:
    return graph.add("Gather", x_BTD, graph.weight("first", torch.tensor(0)), name="first_token", axis=1)


def _document(graph: _Graph, model: EncoderParameters, outputs: Sequence[_Output]) -> ModelProto:
    """Return everything but the constants."""
    from onnx import TensorProto, helper

    def describe(name: str, kind: int, *shape: int | str) -> ValueInfoProto:
        return helper.make_tensor_value_info(name, kind, shape)

    inputs = ["input_ids", "attention_mask", *([] if model.embeddings.segments is None else ["token_type_ids"])]
    return helper.make_model(
        helper.make_graph(
            graph.nodes,
            model.config.architecture,
            [describe(name, TensorProto.INT64, *_ROWS) for name in inputs],
            [describe(name, TensorProto.FLOAT, *shape) for name, shape in outputs],
        ),
        producer_name="bert-pretrain-operator",
        opset_imports=[helper.make_opsetid("", _OPSET)],
        ir_version=_IR_VERSION,
    )


_Stored = tuple["TensorProto", _Constant | None]
"""A constant as the graph has it, and what has to be written behind it there."""


def _store_inside(constants: Mapping[str, _Constant]) -> list[_Stored]:
    return [(_describe(name, constant), constant) for name, constant in constants.items()]


def _store_outside(constants: Mapping[str, _Constant], path: Path) -> list[_Stored]:
    """Write the weights to a file of their own (ONNX: external data)."""
    from onnx import StringStringEntryProto, TensorProto

    stored: list[_Stored] = []
    with path.open("wb") as file:
        for name, constant in constants.items():
            tensor = _describe(name, constant)
            if constant.num_bytes < _MIN_OUTSIDE:
                stored.append((tensor, constant))
                continue
            file.write(b"\0" * (-file.tell() % _ALIGNMENT))
            place = {"location": path.name, "offset": file.tell(), "length": constant.num_bytes}
            file.write(constant.to_bytes())
            tensor.data_location = TensorProto.EXTERNAL
            tensor.external_data.extend(StringStringEntryProto(key=key, value=str(at)) for key, at in place.items())
            stored.append((tensor, None))
    return stored


def _describe(name: str, constant: _Constant) -> TensorProto:
    from onnx import TensorProto, helper

    return TensorProto(name=name, dims=constant.shape, data_type=helper.np_dtype_to_tensor_dtype(constant.type))


def _write_document(file: BinaryIO, document: ModelProto, constants: Sequence[_Stored]) -> None:
    """Write the document with the constants in its graph.

    Protobuf's own writer would hold the weights four times over: what ``onnx.helper`` puts together it copies. Fields
    of a message may stand in any order, and a message within another is its length and its bytes
    (https://protobuf.dev/programming-guides/encoding/), so the graph is written field by field.
    """
    from onnx import GraphProto, ModelProto, TensorProto

    graph = document.graph.SerializeToString(deterministic=True)
    document.ClearField("graph")
    ends = [b"" if it is None else _field(TensorProto, "raw_data", it.num_bytes) for _, it in constants]
    heads = [
        tensor.SerializeToString(deterministic=True) + end for (tensor, _), end in zip(constants, ends, strict=True)
    ]
    sizes = [len(head) + (0 if it is None else it.num_bytes) for head, (_, it) in zip(heads, constants, strict=True)]
    starts = [_field(GraphProto, "initializer", size) for size in sizes]
    file.write(document.SerializeToString(deterministic=True))
    file.write(_field(ModelProto, "graph", len(graph) + sum(map(len, starts)) + sum(sizes)))
    file.write(graph)
    for start, head, (_, constant) in zip(starts, heads, constants, strict=True):
        file.write(start + head)
        if constant is not None:
            file.write(constant.to_bytes())


def _field(message: Any, name: str, size: int) -> bytes:
    """Return what precedes a field of so many bytes: its number and kind, and its length."""
    length_delimited = 2
    return write_varint(message.DESCRIPTOR.fields_by_name[name].number << 3 | length_delimited) + write_varint(size)
