"""The peers of ``gpu.py``: BERT on padded rows, by Hugging Face or written out plainly.

Letters: B rows, T padded length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - the name everybody knows it by
from gpu_step import DROPOUT, IGNORED, Preset, Row, list_parameters
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Padded:
    """Rows padded to the phase's length, as Hugging Face takes them: int64 (B, T), next_sentence (B,)."""

    tokens: Tensor
    mask: Tensor
    segments: Tensor
    labels: Tensor
    next_sentence: Tensor

    def to(self, device: torch.device) -> Padded:
        """Copy to a device without waiting for it."""
        return Padded(*(getattr(self, name).to(device, non_blocking=True) for name in self.__slots__))


def pad_rows(rows: Sequence[Row], longest: int) -> Padded:
    """Lay rows one below the other."""
    tokens, mask, segments = (torch.zeros(len(rows), longest, dtype=torch.int64) for _ in range(3))
    labels = torch.full((len(rows), longest), IGNORED)
    for index, row in enumerate(rows):
        tokens[index, : len(row.tokens)] = row.tokens
        mask[index, : len(row.tokens)] = 1
        segments[index, row.first_segment : len(row.tokens)] = 1
        labels[index, row.masked_places] = row.labels
    return Padded(tokens, mask, segments, labels, torch.tensor([row.next_sentence for row in rows]))


def sum_padded_losses(w: dict[str, Tensor], preset: Preset, batch: Padded, dropout: float) -> Tensor:
    """The same model with the same parameters on padded rows, in plain operators, head on all positions: (2,)."""
    rows, longest = batch.tokens.shape

    def norm(x: Tensor, name: str) -> Tensor:
        return F.layer_norm(x, (preset.hidden,), w[f"{name}.g"], w[f"{name}.b"], 1e-12)

    def product(x: Tensor, name: str) -> Tensor:
        return F.linear(x, w[f"{name}.w"], w[f"{name}.b"])

    places = torch.arange(longest, device=batch.tokens.device)
    x = F.embedding(batch.tokens, w["tokens"]) + w["positions"][places] + F.embedding(batch.segments, w["segments"])
    x = F.dropout(norm(x, "norm"), dropout)
    seen = batch.mask[:, None, None, :].bool()
    for layer in range(preset.layers):
        q, k, v = product(x, f"{layer}.qkv").view(rows, longest, 3, preset.heads, -1).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, attn_mask=seen, dropout_p=dropout)
        attended = product(attended.transpose(1, 2).flatten(2), f"{layer}.out")
        x = norm(x + F.dropout(attended, dropout), f"{layer}.norm1")
        fed = product(F.gelu(product(x, f"{layer}.in")), f"{layer}.fed")
        x = norm(x + F.dropout(fed, dropout), f"{layer}.norm2")
    hidden = norm(F.gelu(product(x, "transform")), "transform_norm")
    logits = F.linear(hidden, w["tokens"], w["mlm.b"])[..., : preset.vocabulary].flatten(0, 1).float()
    masked_lm = F.cross_entropy(logits, batch.labels.flatten(), ignore_index=IGNORED, reduction="sum")
    pairs = F.linear(torch.tanh(product(x[:, 0], "pooler")), w["nsp.w"], w["nsp.b"]).float()
    return torch.stack([masked_lm, F.cross_entropy(pairs, batch.next_sentence, reduction="sum")])


class PlainPadded(torch.nn.Module):
    """The peer where there is no ``transformers``."""

    def __init__(self, preset: Preset) -> None:
        """Draw weights from N(0, 0.02)."""
        super().__init__()
        self.preset = preset
        self.names = list(list_parameters(preset))
        drawn = [
            torch.randn(shape) * 0.02 if len(shape) == 2 else torch.full(shape, float(name.endswith(".g")))
            for name, shape in list_parameters(preset).items()
        ]
        self.weights = torch.nn.ParameterList(drawn)

    def forward(self, batch: Padded) -> Tensor:
        """Return the sum of both mean losses."""
        sums = sum_padded_losses(dict(zip(self.names, self.weights, strict=True)), self.preset, batch, DROPOUT)
        return sums[0] / (batch.labels != IGNORED).sum() + sums[1] / len(batch.next_sentence)


class HuggingFace(torch.nn.Module):
    """``BertForPreTraining`` with SDPA."""

    def __init__(self, preset: Preset) -> None:
        """Random weights; nothing is downloaded."""
        super().__init__()
        import transformers

        config = transformers.BertConfig(
            vocab_size=preset.vocabulary,
            hidden_size=preset.hidden,
            num_hidden_layers=preset.layers,
            num_attention_heads=preset.heads,
            intermediate_size=4 * preset.hidden,
            max_position_embeddings=preset.positions,
            attn_implementation="sdpa",  # type: ignore[call-arg]
        )
        self.bert = transformers.BertForPreTraining(config).train()

    def forward(self, batch: Padded) -> Tensor:
        """Return the sum of both mean losses."""
        loss: Tensor = self.bert(
            input_ids=batch.tokens,
            attention_mask=batch.mask,
            token_type_ids=batch.segments,
            labels=batch.labels,
            next_sentence_label=batch.next_sentence,
        ).loss
        return loss


def _has_transformers() -> bool:
    """Return whether it can be imported; a broken installation of it is no reason to measure nothing."""
    try:
        import transformers  # noqa: F401 - whether it is there, and works
    except ImportError as error:
        print(f"  no transformers: {error}", flush=True)
        return False
    return True


class PaddedRows:
    """A peer: padded micro-batches under autocast, fused AdamW."""

    def __init__(
        self,
        preset: Preset,
        steps: list[list[Row]],
        longest: int,
        micro_rows: int,
        device: torch.device,
        compiled: bool,
    ) -> None:
        """micro_rows: rows of a micro-batch."""
        self.device = device
        kind: type[Any] = HuggingFace if _has_transformers() else PlainPadded
        self.name = "Hugging Face" if kind is HuggingFace else "plain padded BERT (no transformers here)"
        self.name += ", SDPA" + (", torch.compile" if compiled else ", eager")
        model = kind(preset).to(device)
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01, fused=True)
        self.model = torch.compile(model, dynamic=False) if compiled else model
        self.steps = []
        for rows in steps:
            micros = [pad_rows(rows[at : at + micro_rows], longest) for at in range(0, len(rows), micro_rows)]
            if device.type == "cuda":
                micros = [Padded(*(getattr(m, name).pin_memory() for name in m.__slots__)) for m in micros]
            self.steps.append(micros)

    def step(self, number: int) -> Tensor:
        """Train on one step's micro-batches."""
        total = torch.zeros((), device=self.device)
        for micro in self.steps[number]:
            with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.device.type == "cuda"):
                loss = self.model(micro.to(self.device)) / len(self.steps[number])
            loss.backward()
            total += loss.detach()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return total
