"""ORTModule around a model: forward and backward pass as one graph that ONNX Runtime executes.

What this module sets differs from ORTModule's defaults where they would change a run in silence: no fallback to
PyTorch, no TF32 unless asked for, and as many threads as PyTorch has. On a GPU ORTModule allocates with PyTorch's
allocator (``use_external_gpu_allocator``, its default), so that the limit of ``gpu_memory_limit_gib`` holds for both.

Source: onnxruntime-training 1.19.2, ``onnxruntime/training/ortmodule``.
"""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from bert_trainer.model.backends.backend import Backend
from bert_trainer.model.backends.ort.capability import describe_engine, import_ortmodule
from bert_trainer.model.backends.ort.keep_masks import keep_masks
from bert_trainer.model.batch import Batch
from bert_trainer.model.dropout import DropoutKeys
from bert_trainer.model.layers import BertParameters, EncoderParameters
from bert_trainer.model.losses import LossSums
from bert_trainer.model.padded import PaddedEncoder, PaddedPretraining, PaddedRows


@dataclass(slots=True)
class OrtBackend(Backend):
    """The backend of one model's passes with gradients; the others, and what goes around passes, are another one's.

    Graphs are made in the first pass, which takes seconds, one for each use.
    """

    model: EncoderParameters
    below: Backend
    """The fastest one for passes without gradients."""
    precision: str
    _graphs: dict[type[PaddedEncoder], nn.Module] = field(default_factory=dict)

    def describe(self, rank: int, precision: str) -> str:
        """Return what a rank computes with, in one line, the engine last."""
        return f"{self.below.describe(rank, precision)}, {describe_engine()}"

    def stage_batch(self, batch: Batch, *, sequence_length: int, micro_batch_size: int) -> Batch:
        """Return a micro-batch as the other backend wants it: padded rows are made of either form."""
        return self.below.stage_batch(batch, sequence_length=sequence_length, micro_batch_size=micro_batch_size)

    def step_context(self) -> AbstractContextManager[object]:
        """Return the other backend's context."""
        return self.below.step_context()

    def encode(
        self, model: EncoderParameters, batch: Batch, dropout: DropoutKeys | None, output_index_K: Tensor | None
    ) -> Tensor:
        """Return the last hidden states, (N, D), or (K, D) of the tokens asked for."""
        if not torch.is_grad_enabled():
            return self.below.encode(model, batch, dropout, output_index_K)
        assert model is self.model, "graphs hold the parameters of one model"
        if output_index_K is None:
            output_index_K = torch.arange(len(batch.tokens_N), device=batch.tokens_N.device)
        rows = PaddedRows.of(batch, output_index_K)
        keeps = keep_masks(model, dropout, batch.row_mask_BT.shape[1], output_index_K)
        graph = self._graphs.get(PaddedEncoder) or self._wrap(PaddedEncoder(model))
        return graph(*rows.tensors, *keeps)  # type: ignore[no-any-return]

    def pretraining_losses(self, model: BertParameters, batch: Batch, dropout: DropoutKeys | None) -> LossSums:
        """Return the sums of both heads' losses, which the graph computes as well."""
        if not torch.is_grad_enabled():
            return self.below.pretraining_losses(model, batch, dropout)
        assert model is self.model, "graphs hold the parameters of one model"
        wanted = [batch.masked_index_M, *([] if model.nsp is None else [batch.row_starts_B])]
        index_K = torch.cat(wanted)
        rows = PaddedRows.of(batch, index_K)
        keeps = keep_masks(model, dropout, batch.row_mask_BT.shape[1], index_K)
        graph = self._graphs.get(PaddedPretraining) or self._wrap(PaddedPretraining(model))
        masked_lm, correct, *pairs = graph(*rows.tensors, batch.masked_labels_M, batch.next_sentence_B, *keeps)
        next_sentence, pairs_correct = pairs or (masked_lm.new_zeros(()), correct.new_zeros(()))
        return LossSums(masked_lm, next_sentence, correct, pairs_correct)

    def _wrap(self, module: PaddedEncoder) -> nn.Module:
        graph = make_graph(module, self.precision)
        self._graphs[type(module)] = graph
        return graph


def make_graph(module: nn.Module, precision: str) -> nn.Module:
    """Return a module whose passes ONNX Runtime executes; the graph itself is made in the first pass."""
    # Of all its settings ORTModule reads this one from the environment alone. Its default is to run PyTorch in place of
    # the graph after almost any error, with one line in the log.
    os.environ["ORTMODULE_FALLBACK_POLICY"] = "FALLBACK_DISABLE"
    library: Any = import_ortmodule()
    graph: Any = library.ORTModule(module, library.DebugOptions(log_level=library.LogLevel.ERROR))
    manager = graph._torch_module._execution_manager(True)
    configure = manager._get_session_config

    def configure_as_run() -> tuple[Any, list[str], list[dict[str, str]]]:
        options, providers, provider_options = configure()
        # By default as many as the machine has cores, each bound to one, whatever cores this rank is bound to.
        options.intra_op_num_threads = torch.get_num_threads()
        for name, of_provider in zip(providers, provider_options, strict=True):
            if name == "CUDAExecutionProvider":
                of_provider["use_tf32"] = str(int(precision == "tf32"))  # its default is 1
        return options, providers, provider_options

    manager._get_session_config = configure_as_run
    return graph  # type: ignore[no-any-return]
