"""A model's parameters and gradients as two flat tensors: one buffer to reduce, to clip and to update."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bert_trainer.model.backends.cpu.linear import attach_main_grad

ROW = 4096
"""Elements of one row of a flat buffer: the unit in which norms are taken and in which the buffers are split."""

_ALIGNMENT = 16  # elements: every tensor starts on a 64-byte line in fp32


@dataclass(frozen=True, slots=True)
class Span:
    """One parameter's place in the flat buffers."""

    name: str
    parameter: nn.Parameter
    place_in_model: int
    """Index in ``model.named_parameters()``."""
    start: int
    shape: torch.Size

    @property
    def stop(self) -> int:
        """One past its last element."""
        return self.start + self.shape.numel()


class FlatParameters:
    """A model's parameters and gradients as two flat tensors, the parameters being views into them.

    Decayed tensors (two or more dimensions) come first, biases and LayerNorm parameters after them. What lies between
    tensors is zero and stays so.
    """

    def __init__(self, model: nn.Module) -> None:
        """Take over the model's parameters: their storage moves into ``values``."""
        placed = enumerate(model.named_parameters())
        named = sorted(placed, key=lambda item: item[1][1].ndim < 2)
        first = named[0][1][1]
        self.spans: list[Span] = []
        end = 0
        self.num_decayed = 0
        """Elements of the buffers that belong to decayed tensors, a multiple of ``ROW``."""
        # Each group is one slice. Every decayed tensor starts at a multiple of ``ROW``, and so does the other group: a
        # row holds elements of one decayed tensor, or of none, and LAMB's norms by tensor are sums over rows.
        for place, (name, parameter) in named:
            decayed = parameter.ndim >= 2
            start = _round_up(end, ROW if decayed else _ALIGNMENT)
            self.spans.append(Span(name, parameter, place, start, parameter.shape))
            end = start + parameter.numel()
            if decayed:
                self.num_decayed = end = _round_up(end, ROW)
        self.values = torch.zeros(_round_up(end, ROW), dtype=first.dtype, device=first.device)
        self.gradients = torch.zeros_like(self.values)
        for span in self.spans:
            self.view(self.values, span).copy_(span.parameter.data)
            span.parameter.data = self.view(self.values, span)
            # Autograd accumulates into an existing gradient. It must never be set to None, as ``zero_grad`` does:
            # the next backward pass would allocate one elsewhere.
            span.parameter.grad = self.view(self.gradients, span)
            attach_main_grad(span.parameter, span.parameter.grad)

    @property
    def num_rows(self) -> int:
        """Rows of each buffer."""
        return len(self.values) // ROW

    @staticmethod
    def view(flat: Tensor, span: Span) -> Tensor:
        """Return one parameter's part of a flat buffer in its own shape."""
        return flat[span.start : span.stop].view(span.shape)

    def named(self, flat: Tensor) -> dict[str, Tensor]:
        """Return views of a flat buffer by parameter name."""
        return {span.name: self.view(flat, span) for span in self.spans}

    def decayed_tensor_of_row(self) -> Tensor:
        """Return the index of the decayed tensor that each of the decayed rows belongs to; int64."""
        decayed = [span for span in self.spans if span.stop <= self.num_decayed]
        counts = torch.tensor([-(-span.shape.numel() // ROW) for span in decayed], dtype=torch.int64)
        return torch.repeat_interleave(torch.arange(len(decayed)), counts).to(self.values.device)


def _round_up(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple
