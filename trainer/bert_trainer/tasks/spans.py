"""Extracting answers: contexts to windows of tokens, and logits back to characters of the context.

Windows are those of Google's ``run_squad.py`` (Devlin et al. 2019): [CLS] question [SEP] part of the context [SEP],
where ``doc_stride`` counts from the start of one window to the start of the next. The ``stride`` of transformers'
tokenizers is what two windows share instead.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bert_job.run_stages import FinetuneStage
from bert_trainer.dataset.shards.ragged import RaggedSamples
from bert_trainer.dataset.tokens.word_cache import ragged_indexes
from bert_trainer.dataset.tokens.wordpiece import Vocabulary
from bert_trainer.errors import InputError
from bert_trainer.tasks.examples import SpanExample
from bert_trainer.tasks.token_rows import LocatedTokens, Pieces, join_rows, locate_tokens, tokenize_texts

_MAX_ROWS = 5_000_000
_MAX_TOKENS = 1 << 28
"""Of a split's windows, which are all in memory: eight times what SQuAD's 88,000 of 384 tokens have."""
_NOWHERE = (0, -1)
"""First and last token of an answer that has none."""


@dataclass(frozen=True)
class ContextTokens:
    """Where in its context each token of a window stands."""

    character_bounds: NDArray[np.int32]
    """(C, 2): of the tokens of all contexts, each context once: the first character, and the one behind."""
    first_of_row: NDArray[np.int64]
    """(R,): which of them is the first of each row's window."""


@dataclass(frozen=True)
class Windows:
    """R rows of the contexts; see ``rows.TaskRows``."""

    samples: RaggedSamples
    targets: NDArray[np.int64]
    example_of_row: NDArray[np.int64]
    contexts: ContextTokens


def make_windows(
    examples: Sequence[SpanExample], stage: FinetuneStage, vocabulary: Vocabulary, *, lower_case: bool
) -> Windows:
    """Return the windows of every example's context, at least one each, side by side in the examples' order.

    The first of an example's answers is its target.

    Raises:
        InputError: the longest question would leave no room for a context.
    """
    questions, _ = tokenize_texts(
        [example.question for example in examples],
        vocabulary,
        lower_case=lower_case,
        most_tokens=stage.max_query_length,
    )
    # A context has several questions, often side by side in the file.
    texts = {example.context: None for example in examples}
    numbers = {text: number for number, text in enumerate(texts)}
    context_of_example = np.array([numbers[example.context] for example in examples], dtype=np.int64)
    contexts = locate_tokens(list(texts), vocabulary, lower_case=lower_case)
    context_counts = contexts.counts[context_of_example]
    rooms = stage.sequence_length - 3 - questions.counts
    _check_rooms(rooms, stage)

    # Never further than a window reaches: no token is left out.
    strides = np.minimum(stage.doc_stride, rooms)
    num_windows = 1 + -(-np.maximum(0, context_counts - rooms) // strides)
    _check_windows(num_windows, 3 + questions.counts + np.minimum(rooms, context_counts), examples, stage)
    example_of_row = np.repeat(np.arange(len(examples)), num_windows)
    window = ragged_indexes(np.zeros_like(num_windows), num_windows)
    starts = window * strides[example_of_row]
    counts = np.minimum(rooms[example_of_row], context_counts[example_of_row] - starts)
    first_of_row = contexts.starts[context_of_example][example_of_row] + starts
    samples = join_rows(
        questions.take(example_of_row),
        Pieces(contexts.ids, first_of_row, counts),
        np.ones(len(starts), dtype=np.bool_),
        vocabulary,
    )
    targets = np.zeros((0, 2), dtype=np.int64)
    if examples and examples[0].answers:
        answers = _answer_tokens(examples, contexts, context_of_example)[example_of_row]
        is_inside = (answers[:, 0] <= answers[:, 1]) & (answers[:, 0] >= starts) & (answers[:, 1] < starts + counts)
        positions = answers + (samples.first_segment_counts - starts)[:, None]
        targets = np.where(is_inside[:, None], positions, 0)
    return Windows(samples, targets, example_of_row, ContextTokens(contexts.bounds, first_of_row))


def _check_rooms(rooms: NDArray[np.int64], stage: FinetuneStage) -> None:
    if len(rooms) and rooms.min() < 1:
        longest = stage.sequence_length - 3 - int(rooms.min())
        raise InputError(
            f"stages {stage.name}: a question of {longest} tokens leaves a context no room in {stage.sequence_length} "
            f"tokens (sequence_length); allowed: questions of at most {max(1, stage.sequence_length - 4)} tokens",
            hint="raise the sequence length, or lower max_query_length, which is what questions are cut to",
        )


def _check_windows(
    num_windows: NDArray[np.int64], row_tokens: NDArray[np.int64], examples: Sequence[SpanExample], stage: FinetuneStage
) -> None:
    """Refuse more rows than memory holds, before there are any: a file of a megabyte may ask for millions."""
    num_rows = int(num_windows.sum())
    if num_rows <= _MAX_ROWS and int((num_windows * row_tokens).sum()) <= _MAX_TOKENS:
        return
    most = int(num_windows.argmax())
    raise InputError(
        f"stages {stage.name}: the example {examples[most].id[:60]!r} alone gives {int(num_windows[most]):,} windows "
        f"of {num_rows:,}; allowed: {_MAX_ROWS:,} rows of {_MAX_TOKENS:,} tokens together",
        hint=f"raise doc_stride, which is {stage.doc_stride}, or split the longest contexts",
    )


def _answer_tokens(
    examples: Sequence[SpanExample], contexts: LocatedTokens, context_of_example: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the first and last token of each example's first answer, counted in its context, (E, 2)."""
    assert all(example.answers for example in examples), "some examples have answers and some have none"
    tokens = np.empty((len(examples), 2), dtype=np.int64)
    for number, (example, context) in enumerate(zip(examples, context_of_example.tolist(), strict=True)):
        text, first = example.answers[0]
        start, count = int(contexts.starts[context]), int(contexts.counts[context])
        bounds = contexts.bounds[start : start + count]
        # Every token with a character of the answer. An answer of white space alone has none.
        first_token = int(np.searchsorted(bounds[:, 1], first, side="right"))
        last_token = int(np.searchsorted(bounds[:, 0], first + len(text), side="left")) - 1
        tokens[number] = (first_token, last_token) if first_token <= last_token else _NOWHERE
    return tokens


def decode_spans(
    outputs: NDArray[np.float32],
    samples: RaggedSamples,
    contexts: ContextTokens,
    example_of_row: NDArray[np.int64],
    max_answer_length: int,
) -> NDArray[np.int64]:
    """Return the best answer of each of E examples: its first character, and the one behind it, (E, 2).

    outputs: (N, 2), scores of first and last token, rows end to end. The best is the highest sum of both over all
    windows of the example, where the last token is not before the first and the answer has at most
    ``max_answer_length`` tokens of the context; the earliest and shortest of equals. All pairs are looked at, not those
    of some best starts and ends. Without any (no token, no number): (0, 0).
    """
    # Letters: M context tokens of all windows, end to end; G the same with gaps between the windows.
    counts = samples.token_counts - samples.first_segment_counts - 1
    places_M = ragged_indexes(samples.token_starts + samples.first_segment_counts, counts)
    scores_M2 = np.nan_to_num(outputs[places_M], nan=-np.inf, posinf=np.inf, neginf=-np.inf)
    longest = min(max_answer_length, int(counts.max(initial=1)))
    gap_places_M = np.arange(len(places_M)) + np.repeat(np.arange(len(counts)), counts) * (longest - 1)
    ends_G = np.full(len(places_M) + len(counts) * (longest - 1), -np.inf, dtype=scores_M2.dtype)
    ends_G[gap_places_M] = scores_M2[:, 1]
    # The best last token for every first one: a running maximum, whose reach doubles with every pass.
    best_ends_G = ends_G.copy()
    reach = 1
    while reach < longest:
        more = min(reach, longest - reach)
        np.maximum(best_ends_G[:-more], best_ends_G[more:], out=best_ends_G[:-more])
        reach += more
    with np.errstate(invalid="ignore"):  # of infinities
        best_M = np.nan_to_num(scores_M2[:, 0] + best_ends_G[gap_places_M], nan=-np.inf, posinf=np.inf, neginf=-np.inf)
    # Where each token lies among the C of the contexts.
    context_places_M = ragged_indexes(contexts.first_of_row, counts)
    num_examples = int(example_of_row[-1]) + 1 if len(example_of_row) else 0
    tokens_of_example = np.bincount(example_of_row, weights=counts, minlength=num_examples).astype(np.int64)
    found = np.zeros((num_examples, 2), dtype=np.int64)
    stop = 0
    for example, tokens in enumerate(tokens_of_example.tolist()):
        start, stop = stop, stop + tokens
        if tokens:
            first = start + int(best_M[start:stop].argmax())
            if best_M[first] > -np.inf:
                place = int(gap_places_M[first])
                last = first + int(ends_G[place : place + longest].argmax())
                first_bounds, last_bounds = contexts.character_bounds[context_places_M[[first, last]]]
                found[example] = first_bounds[0], last_bounds[1]
    return found


def text_of_span(context: str, start: int, end: int) -> str:
    """Return a part of a context, with the accents of its last letter.

    A letter and the accent that stands behind it as a character of its own are one token, which ends with the letter.
    """
    while 0 < end < len(context) and unicodedata.category(context[end]) == "Mn":
        end += 1
    return context[start:end]
