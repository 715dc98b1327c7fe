"""Examples to rows of tokens and targets, for every kind of task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bert_job.run_stages import FinetuneStage
from bert_job.tasks import Kind
from bert_trainer.dataset.shards.ragged import RaggedSamples
from bert_trainer.dataset.tokens.wordpiece import Vocabulary
from bert_trainer.tasks.catalog import Task
from bert_trainer.tasks.examples import Split, TextExample, span_examples, text_examples
from bert_trainer.tasks.spans import ContextTokens, make_windows
from bert_trainer.tasks.token_rows import join_rows, tokenize_texts


@dataclass(frozen=True)
class TaskRows:
    """R rows of a split. Texts have one each, in the split's order; contexts of spans one or more, side by side."""

    samples: RaggedSamples
    """Without masks; ``next_sentence_labels`` are 0."""
    targets: NDArray[Any]
    """Classes, int64 (R,); ratings, float32 (R,); the answer's first and last token as positions in the row, int64
    (R, 2), both 0 (which is [CLS]) where the window does not hold all of it. Empty where examples have no labels."""
    example_of_row: NDArray[np.int64]
    """(R,): from 0, ascending."""
    contexts: ContextTokens | None = None
    """Of spans: where the tokens stand in the text."""

    def __len__(self) -> int:
        """Return R."""
        return len(self.samples)

    @property
    def num_lost_answers(self) -> int:
        """Examples of spans whose answer no window holds: it is longer than the windows overlap, or no token's."""
        if self.contexts is None or not len(self.targets):
            return 0
        found = np.bincount(self.example_of_row, weights=self.targets[:, 1] > 0)
        return int((found == 0).sum())


def make_rows(split: Split, task: Task, stage: FinetuneStage, vocabulary: Vocabulary, *, lower_case: bool) -> TaskRows:
    """Return a split as rows of at most ``stage.sequence_length`` tokens.

    A literal "[SEP]" in a text is split into its characters, as everywhere here; transformers takes it for the token.

    Raises:
        InputError: the sequence length leaves a context no room beside the longest question.
    """
    if task.kind == "spans":
        windows = make_windows(span_examples(split), stage, vocabulary, lower_case=lower_case)
        return TaskRows(windows.samples, windows.targets, windows.example_of_row, windows.contexts)
    texts = text_examples(split)
    samples = _text_rows(texts, stage.sequence_length, vocabulary, lower_case=lower_case)
    return TaskRows(samples, _text_targets(texts, task.kind), np.arange(len(texts)))


def _text_rows(
    examples: Sequence[TextExample], sequence_length: int, vocabulary: Vocabulary, *, lower_case: bool
) -> RaggedSamples:
    count = len(examples)
    is_pair = np.fromiter((example.second is not None for example in examples), dtype=np.bool_, count=count)
    texts = [example.first for example in examples] + [example.second or "" for example in examples]
    tokens, counts = tokenize_texts(texts, vocabulary, lower_case=lower_case, most_tokens=sequence_length)
    first, second = tokens.take(np.arange(count)), tokens.take(np.arange(count, 2 * count))
    first_counts, second_counts = cut_pairs(counts[:count], counts[count:], sequence_length - 3)
    first_counts = np.where(is_pair, first_counts, np.minimum(counts[:count], sequence_length - 2))
    return join_rows(first.cut(first_counts), second.cut(second_counts), is_pair, vocabulary)


def cut_pairs(
    first: NDArray[np.int64], second: NDArray[np.int64], room: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return how many tokens each text of a pair keeps of the room that both share. Shapes: all (R,).

    The longer loses first, then both alike; the odd one is the longer's, or the second's of two equally long. As
    ``truncation=True`` of transformers 5; Google's code, and slow tokenizers, gave it to the first of two equally long.
    """
    shorter = np.minimum(np.minimum(first, second), room // 2)
    longer = room - shorter
    is_over = first + second > room
    first_is_longer = first > second
    kept_first = np.where(is_over, np.where(first_is_longer, longer, shorter), first)
    kept_second = np.where(is_over, np.where(first_is_longer, shorter, longer), second)
    return kept_first, kept_second


def _text_targets(examples: Sequence[TextExample], kind: Kind) -> NDArray[Any]:
    dtype = np.int64 if kind == "classification" else np.float32
    labels = [example.label for example in examples if example.label is not None]
    assert len(labels) in (0, len(examples)), "some examples have labels and some have none"
    return np.array(labels, dtype=dtype)
