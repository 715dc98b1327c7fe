"""Export of the trained model as an ONNX file: the padded form (``model.padded``), as PyTorch's exporter writes it.

Batch size and sequence length stay free, and padding is masked. Weights are fp32 and the vocabulary's padding rows are
cut off. Nothing is quantised or fused here; runtimes do that for the machine that they are on.

Letters: B rows, T tokens of a row with padding, D hidden size, V entries of the vocabulary, L numbers that a task's
head gives.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from bert_trainer.model.backends.backend import classify_pairs
from bert_trainer.model.bert import Bert
from bert_trainer.model.padded import PaddedEncoder
from bert_trainer.model.task_model import TaskModel
from bert_trainer.model.torch_releases import write_onnx_graph

ONNX_FILE = "model.onnx"
WEIGHTS_FILE = "model.onnx.data"

_ROWS = ("batch", "sequence")


def write_onnx_model(model: Bert | TaskModel, folder: Path) -> None:
    """Write ``model.onnx`` and the weights, ``model.onnx.data``.

    Inputs: ``input_ids``, ``attention_mask`` (0: padding) and, of BERT, ``token_type_ids``, int64 (B, T). Outputs,
    float32, of a pretrained model: ``prediction_logits`` (B, T, V), with a next-sentence head
    ``seq_relationship_logits`` (B, 2; label 1: a random next sentence), and ``last_hidden_state`` (B, T, D); of a
    fine-tuned one: ``logits`` (B, L), or of spans ``start_logits`` and ``end_logits`` (B, T), those of padding too.

    Args:
        model: The trained model.
        folder: Where the files go.
    """
    inputs = ["input_ids", "attention_mask", *([] if model.embeddings.segments is None else ["token_type_ids"])]
    # The exporter takes a dimension of 1 for one that is always 1.
    rows = tuple(torch.ones(2, 3, dtype=torch.int64) for _ in inputs)
    write_onnx_graph(_Graph(model), rows, folder / ONNX_FILE, inputs, _outputs_of(model), _ROWS)


def _outputs_of(model: Bert | TaskModel) -> Sequence[str]:
    if isinstance(model, TaskModel):
        return ["logits"] if model.scores_rows else ["start_logits", "end_logits"]
    pairs = [] if model.nsp is None else ["seq_relationship_logits"]
    return ["prediction_logits", *pairs, "last_hidden_state"]


class _Graph(nn.Module):
    """The model as runtimes call it."""

    def __init__(self, model: Bert | TaskModel) -> None:
        super().__init__()
        self.model = _without_padding_entries(model)
        self.encoder = PaddedEncoder(self.model)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        lowest = torch.finfo(torch.float32).min  # not -inf: a row of nothing but padding would become NaN
        bias_BT = torch.zeros_like(attention_mask, dtype=torch.float32).masked_fill(attention_mask == 0, lowest)
        positions_T = torch.arange(input_ids.shape[1], device=input_ids.device)
        segments_BT = input_ids if token_type_ids is None else token_type_ids
        x_BTD = self.encoder(input_ids, segments_BT, positions_T, bias_BT[:, None, None, :], None)
        if isinstance(self.model, TaskModel):
            if not self.model.scores_rows:
                return self.model.head(self.model.pool(x_BTD)).unbind(-1)  # type: ignore[no-any-return]
            if self.model.head_config.pooling == "mean":
                mask_BT1 = attention_mask[:, :, None].to(x_BTD.dtype)
                x_BD = (x_BTD * mask_BT1).sum(1) / mask_BT1.sum(1)
            else:
                x_BD = x_BTD[:, 0]
            return (self.model.head(self.model.pool(x_BD)),)
        pairs = () if self.model.nsp is None else (classify_pairs(self.model, x_BTD[:, 0]),)
        return self.model.masked_lm_logits(x_BTD), *pairs, x_BTD


def _without_padding_entries(model: Bert | TaskModel) -> Bert | TaskModel:
    """Return the model in fp32 with the real entries of the vocabulary alone; shares memory where it can."""
    config = model.config.model_copy(update={"vocabulary_pad_multiple": 1})
    with torch.device("meta"):
        size = model.vocabulary_size
        copy = TaskModel(config, size, model.head_config) if isinstance(model, TaskModel) else Bert(config, size)
    weights = {name: values.float().cpu() for name, values in model.unpadded_weights().items()}
    copy.load_state_dict(weights, assign=True)
    return copy
