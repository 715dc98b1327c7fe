"""The encoder with the head of a fine-tuning task, on real tokens only.

Heads are those of transformers' ``BertForSequenceClassification``, ``DistilBertForSequenceClassification``,
``ModernBertForSequenceClassification`` and ``...ForQuestionAnswering`` (Devlin et al. 2019, section 4), whose names
exported models carry.

Letters: N real tokens of a micro-batch, B rows, D hidden size, L logits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F  # noqa: N812 - the name everybody knows it by
from torch import Tensor, nn

from bert_job.run_config import ModelConfig
from bert_job.tasks import Kind
from bert_trainer.model.batch import IGNORED_LABEL, Batch
from bert_trainer.model.dropout import DropoutKeys
from bert_trainer.model.encoder import Encoder
from bert_trainer.model.layers import gelu_approximation, masked_lm_transform
from bert_trainer.model.operations import linear_of, norm_of, transform_masked
from bert_trainer.model.precision import at_least_fp32

Pooling = Literal["cls", "mean"]
HEAD_PREFIX = "head."
"""How the names of a head's parameters begin."""
# Of DistilBERT's heads: ``seq_classif_dropout`` and ``qa_dropout``, as its authors set them (Sanh et al. 2019).
_DISTILBERT_DROPOUT: dict[Kind, float] = {"classification": 0.2, "regression": 0.2, "spans": 0.1}


@dataclass(frozen=True, slots=True)
class Head:
    """Configuration of a task head."""

    kind: Kind
    num_outputs: int
    """Of a row: classes, 1 for a regression; of every token of spans: 2, the answer's first and last token."""
    dropout: float
    """Before the last layer."""
    pooling: Pooling = "cls"
    """What stands for a row: its first token, or the mean of all of them, which modernbert alone knows."""

    @classmethod
    def of(
        cls,
        kind: Kind,
        num_outputs: int,
        config: ModelConfig,
        dropout: float | None = None,
        pooling: Pooling = "cls",
    ) -> Head:
        """Return the head of a task. dropout: None for what the authors of the architecture have at that place."""
        if dropout is None:
            # Google's code drops the pooled first token, and nothing before the scores of an answer's bounds.
            bert = 0.0 if kind == "spans" else config.hidden_dropout
            dropout = _DISTILBERT_DROPOUT[kind] if config.architecture == "distilbert" else bert
        return cls(kind, num_outputs, dropout, pooling)


class TaskModel(Encoder):
    """The encoder and one head; ``forward`` returns a sum of losses, never a mean."""

    def __init__(self, config: ModelConfig, vocabulary_size: int, head: Head) -> None:
        """vocabulary_size: real entries; the token table is padded to ``config.vocabulary_pad_multiple``."""
        super().__init__(config, vocabulary_size)
        self.head_config = head
        size = config.hidden_size
        self.pooler = self.mlm_transform = self.mlm_norm = None
        if config.architecture == "modernbert":
            # Every head begins with what masked LM has pretrained.
            self.mlm_transform, self.mlm_norm = masked_lm_transform(config)
        elif head.kind != "spans":
            # Of rows alone: BERT's pooler, which next-sentence prediction has pretrained, or DistilBERT's layer in its
            # place. Spans are read off the encoder's output.
            self.pooler = nn.Linear(size, size)
        self.head = nn.Linear(size, head.num_outputs)

    @torch.no_grad()
    def load_encoder(self, weights: Mapping[str, Tensor]) -> None:
        """Copy the encoder's weights from a pretrained model; the head keeps its initialization.

        weights: by name, with the vocabulary's rows of padding; a pooler may be missing.
        """
        for name, parameter in self.named_parameters():
            if name.startswith(HEAD_PREFIX) or (name.startswith("pooler.") and name not in weights):
                continue
            source = weights[name]
            assert source.shape == parameter.shape, f"{name}: {tuple(source.shape)}, here {tuple(parameter.shape)}"
            parameter.copy_(source)

    def logits(self, batch: Batch, dropout: DropoutKeys | None = None) -> Tensor:
        """Return the head's numbers in fp32 or wider: (B, L), or (N, 2) of spans."""
        places = batch.row_starts_B if self.scores_rows else None
        is_mean = self.scores_rows and self.head_config.pooling == "mean"
        x = at_least_fp32(self.encode(batch, dropout, None if is_mean else places))
        # In fp32 in any case: a row's numbers cost nothing beside its tokens, and rounded to bf16 two ratings that
        # differ by less than 1 part in 256 would be the same, as would the scores of two answers.
        with torch.autocast(x.device.type, enabled=False):
            x = self.pool(_row_means(x, batch) if is_mean else x)
            if dropout is not None and self.head_config.dropout > 0:
                keys = dropout if places is None else dropout.of_tokens(places)
                x = keys.hidden(x, self.head_config.dropout, self.head_dropout_site)
            return self.head(x)  # type: ignore[no-any-return]

    @property
    def scores_rows(self) -> bool:
        """Whether the head scores rows by their first token, not each token."""
        return self.head_config.kind != "spans"

    def pool(self, x: Tensor) -> Tensor:
        """Return what the head multiplies, of rows' first tokens or means (B, D), or of spans of all tokens (N, D)."""
        if self.mlm_transform is not None and self.mlm_norm is not None:
            transform, norm = linear_of(self.mlm_transform), norm_of(self.mlm_norm)
            return transform_masked(x, transform, norm, gelu_approximation(self.config), self.mlm_norm.eps)
        if self.pooler is None:
            return x
        return torch.tanh(self.pooler(x)) if self.config.architecture == "bert" else F.relu(self.pooler(x))

    def forward(self, batch: Batch, targets: Tensor, dropout: DropoutKeys | None = None) -> Tensor:
        """Return the loss summed over rows, scalar.

        targets: classes, int64 (B,): cross-entropy in nats; ratings, floating point (B,): squared error; first and last
            token of the answer as positions in the row, int64 (B, 2): the mean of both cross-entropies over the row's
            tokens. Rows of padding have -100, and NaN for a rating. (transformers' softmax of spans runs over padding
            as well: there the loss of a row depends on the rows beside it.)
        """
        return task_loss(self.head_config.kind, self.logits(batch, dropout), batch, targets)


def _row_means(x_ND: Tensor, batch: Batch) -> Tensor:
    """Return the mean of each row's tokens, (B, D)."""
    lengths_B = batch.row_bounds.diff()
    sums_BD = x_ND.new_zeros(len(lengths_B), x_ND.shape[-1]).index_add(0, batch.token_row_N, x_ND)
    return sums_BD / lengths_B[:, None]


def task_loss(kind: Kind, logits: Tensor, batch: Batch, targets: Tensor) -> Tensor:
    """Return the loss of a head's numbers, summed over rows, scalar."""
    if kind == "classification":
        return F.cross_entropy(logits, targets, reduction="sum", ignore_index=IGNORED_LABEL)
    if kind == "regression":
        errors_B = logits[:, 0] - targets.nan_to_num().to(logits.dtype)
        return (errors_B.square() * ~targets.isnan()).sum()
    rows, length = batch.row_mask_BT.shape
    # Padded to the longest row with -inf, which a softmax gives no share: only these two columns are.
    padded = logits.new_full((rows * length, 2), -torch.inf).index_copy(0, batch.padded_index_N, logits)
    scores_B2T = padded.view(rows, length, 2).transpose(1, 2)
    return F.cross_entropy(scores_B2T.flatten(0, 1), targets.flatten(), reduction="sum", ignore_index=IGNORED_LABEL) / 2
