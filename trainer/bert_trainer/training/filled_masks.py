"""Sentences of the text that a run is measured on, with one word hidden, and what the model puts there.

For people: an accuracy is a number, three sentences show what it is worth. Which sentences and words is decided by the
seed alone, before the model is asked, so nothing is picked for its answer. Nothing here is collective.

Letters: S sentences (and masks, one in each), D hidden size, V entries of the padded vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from bert_trainer.dataset.shards.ragged import RaggedSamples, smallest_ids
from bert_trainer.dataset.tokens import byte_bpe
from bert_trainer.dataset.tokens.wordpiece import Vocabulary
from bert_trainer.model.backends.eager import EagerBackend
from bert_trainer.model.batch import make_batch
from bert_trainer.model.bert import Bert
from bert_trainer.output.filled_masks import FilledMask
from bert_trainer.training.device import Compute
from bert_trainer.training.evaluation import EvaluationSet

NUM_SENTENCES = 3
NUM_GUESSES = 3
_ROWS_TO_LOOK_AT = 64
_MIN_TOKENS, _MAX_TOKENS = 8, 32
"""Tokens of a sentence: enough to tell a word by, few enough to read."""
_ENDS = frozenset(".!?。！？।")
_CLOSING = frozenset(".,;:!?)]}%'’”。，！？")
_OPENING = frozenset("([{'’“")


def fill_masks(
    model: Bert, data: EvaluationSet, vocabulary: Vocabulary, compute: Compute, *, seed: int
) -> tuple[FilledMask, ...]:
    """Hide a word in each of a few sentences and return what the model takes it for; fewer where there are fewer.

    Args:
        model: Asked without dropout.
        data: Where the sentences come from, at equal steps.
        vocabulary: Of the model.
        compute: Where and how precisely.
        seed: Decides which word of a sentence is hidden.
    """
    rng = np.random.default_rng(seed)
    found: list[tuple[NDArray[np.int64], int]] = []
    for sentence in _sentences(data, vocabulary):
        words = _whole_words(sentence, vocabulary)
        if words:
            found.append((sentence, int(rng.choice(words))))
        if len(found) == NUM_SENTENCES:
            break
    if not found:
        return ()
    guesses = _guess(model, found, vocabulary, compute)
    return tuple(
        FilledMask(
            before=_render(sentence[:place], vocabulary),
            after=_render(sentence[place + 1 :], vocabulary),
            truth=_show(sentence[place], vocabulary),
            guesses=tuple((_show(number, vocabulary), share) for number, share in of_one),
        )
        for (sentence, place), of_one in zip(found, guesses, strict=True)
    )


def _sentences(data: EvaluationSet, vocabulary: Vocabulary) -> Iterator[NDArray[np.int64]]:
    """Yield the ids of a sentence from each of some rows, at equal steps over the samples; none with [UNK]."""
    count = min(_ROWS_TO_LOOK_AT, data.last - data.first)
    for number in range(count):
        row = data.first + number * (data.last - data.first) // count
        samples = data.read_row(row).unmasked()
        special = np.sort(samples.special_places(documents=data.folder.documents))
        for part in np.split(samples.tokens.astype(np.int64), special):
            sentence = _find_sentence(part[1:], vocabulary)
            if sentence is not None:
                yield sentence
                break


def _find_sentence(part: NDArray[np.int64], vocabulary: Vocabulary) -> NDArray[np.int64] | None:
    """Return the first whole sentence of a segment: the segment's own ends may be in the middle of one."""
    ends = [place for place, number in enumerate(part) if vocabulary.tokens[number] in _ENDS]
    for before, end in zip(ends, ends[1:], strict=False):
        sentence = part[before + 1 : end + 1]
        if _MIN_TOKENS <= len(sentence) <= _MAX_TOKENS and vocabulary.unk_id not in sentence:
            return sentence
    return None


def _whole_words(sentence: NDArray[np.int64], vocabulary: Vocabulary) -> list[int]:
    """Return the places of words of one piece, letters only: a hidden piece of a word is a riddle of its own."""
    goes_on = np.append(vocabulary.continuations[sentence], False)
    texts = [_show(number, vocabulary) for number in sentence]
    return [place for place, text in enumerate(texts) if text.isalpha() and not goes_on[place : place + 2].any()]


def _render(ids: Iterable[int], vocabulary: Vocabulary) -> str:
    tokens = [vocabulary.tokens[number] for number in ids]
    return byte_bpe.render_tokens(tokens).strip() if vocabulary.is_byte_level else render_tokens(tokens)


def _show(number: int, vocabulary: Vocabulary) -> str:
    return _render([number], vocabulary) if vocabulary.is_byte_level else vocabulary.tokens[number]


@torch.no_grad()
def _guess(
    model: Bert,
    found: Sequence[tuple[NDArray[np.int64], int]],
    vocabulary: Vocabulary,
    compute: Compute,
) -> list[list[tuple[int, float]]]:
    """Return of every mask the likeliest tokens with their probability, the likeliest first."""
    rows = [np.array([vocabulary.cls_id, *sentence, vocabulary.sep_id]) for sentence, _ in found]
    places = np.array([place + 1 for _, place in found])
    labels = np.array([sentence[place] for sentence, place in found])
    for row, place in zip(rows, places, strict=True):
        row[place] = vocabulary.mask_id
    counts, ones = np.array([len(row) for row in rows], np.int64), np.ones(len(rows), np.int64)
    samples = RaggedSamples(
        tokens=smallest_ids(np.concatenate(rows)),
        token_counts=counts,
        first_segment_counts=counts,
        next_sentence_labels=np.zeros(len(rows), np.int8),
        prediction_counts=ones,
        masked_lm_positions=places.astype(np.uint16),
        masked_lm_ids=smallest_ids(labels),
    )
    batch = make_batch(samples, np.arange(len(rows))).to(compute.device)
    with compute.autocast():
        # Plain operations: three rows are not worth what a GPU's functions take to be compiled for their shape.
        hidden_SD = EagerBackend().encode(model, batch, None, batch.masked_index_M)
        shares_SV = model.masked_lm_logits(hidden_SD).double().softmax(-1)
    likeliest = shares_SV.topk(NUM_GUESSES)
    return [
        [(int(number), float(share)) for number, share in zip(numbers, shares, strict=True)]
        for numbers, shares in zip(likeliest.indices.tolist(), likeliest.values.tolist(), strict=True)
    ]


def render_tokens(tokens: Sequence[str]) -> str:
    """Return text as people write it: pieces joined, no space before a full stop or inside brackets."""
    text, open_before = "", True
    for token in tokens:
        joins = token.startswith("##") or open_before or token in _CLOSING
        text += ("" if joins else " ") + token.removeprefix("##")
        open_before = token in _OPENING
    return text
