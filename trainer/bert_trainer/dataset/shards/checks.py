"""Checks of samples; pure functions of arrays.

``check_range``, ``check_padding`` and ``check_ragged`` run whenever a shard is read, so that training never indexes out
of bounds; ``broken_rules`` is the complete list, for ``bert-data verify``.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bert_trainer.dataset.shards.ragged import RaggedSamples
from bert_trainer.dataset.shards.samples import Samples
from bert_trainer.dataset.tokens.wordpiece import Vocabulary
from bert_trainer.errors import InputError

_VERIFY = "list all that is wrong with 'bert-data verify FOLDER'"


def check_range(
    path: Path, name: str, values: NDArray[np.integer], sequence_length: int, vocabulary_size: int | None
) -> None:
    """Refuse numbers that would index out of bounds, or do not fit the type in memory.

    Raises:
        InputError: names the dataset and the range.
    """
    if not values.size:
        return
    least, largest = int(values.min()), int(values.max())
    limit = {
        "input_ids": vocabulary_size or 2**31,
        "masked_lm_ids": vocabulary_size or 2**31,
        "masked_lm_positions": sequence_length,
    }.get(name, 2)  # masks, segments and labels are 0 or 1
    if vocabulary_size and name.endswith("_ids") and name != "segment_ids" and largest >= limit:
        raise InputError(
            f"{path}: made with a vocabulary that does not fit: the largest token id in {name!r} is "
            f"{largest}, the one given has {vocabulary_size} entries",
            hint="use the vocab.txt that the shards were made with",
        )
    if least < 0 or largest >= limit:
        raise InputError(f"{path}: dataset {name!r} holds {least} to {largest}, allowed 0 to {limit - 1}")


def check_padding(path: Path, samples: Samples, first_row: int = 0) -> None:
    """Refuse rows in which padding precedes a token, or predictions point into the padding.

    Raises:
        InputError: names the first such row.
    """
    mask = samples.input_mask
    # Wider than the mask's int8, in which 128 tokens would overflow.
    lengths = mask.sum(axis=1, dtype=np.int64)
    # Unused predictions have position 0, which a row with a token always has.
    outside = (samples.masked_lm_positions >= np.maximum(lengths, 1)[:, None]).any(axis=1)
    bad = np.flatnonzero((lengths == 0) | (mask[:, 1:] > mask[:, :-1]).any(axis=1) | outside)
    if bad.size:
        raise InputError(
            f"{path}: row {first_row + bad[0]} has padding before a token, no token, or a prediction in its padding",
            hint=_VERIFY,
        )


def check_ragged(
    path: Path,
    samples: RaggedSamples,
    sequence_length: int | None,
    max_predictions: int | None,
    vocabulary_size: int | None,
    *,
    first_row: int = 0,
) -> None:
    """Refuse rows without padding that are inconsistent or would index out of bounds.

    Args:
        path: the file, for messages.
        samples: the rows.
        sequence_length: most tokens of a row, if known.
        max_predictions: most predictions of a row, if known.
        vocabulary_size: limit of the ids, if known.
        first_row: number of the first row in the file, for messages.

    Raises:
        InputError: names the first such row.
    """
    counts, predictions = samples.token_counts, samples.prediction_counts
    # First of all: the checks below index with these numbers.
    sums = ((counts, samples.tokens, "tokens"), (predictions, samples.masked_lm_ids, "predictions"))
    for numbers, values, what in sums:
        if int(numbers.sum()) != len(values):
            raise InputError(
                f"{path}: its rows should hold {int(numbers.sum())} {what}, it holds {len(values)}", hint=_VERIFY
            )
    longest = sequence_length or 2**15
    check_range(path, "input_ids", samples.tokens, longest, vocabulary_size)
    check_range(path, "masked_lm_ids", samples.masked_lm_ids, longest, vocabulary_size)
    check_range(path, "next_sentence_labels", samples.next_sentence_labels, longest, None)
    positions = samples.masked_lm_positions.astype(np.int64)
    row_of = np.repeat(np.arange(len(samples)), predictions)
    # Position 0 is [CLS], which is never predicted: a prediction of it marks damage or padding.
    outside = np.zeros(len(samples), np.bool_)
    outside[row_of[(positions < 1) | (positions >= counts[row_of])]] = True
    rules = {
        f"holds no token or more than {longest}": (counts < 1) | (counts > longest),
        "has a first segment longer than itself": samples.first_segment_counts > counts,
        f"holds more than {max_predictions} predictions": predictions > (max_predictions or 2**15),
        "has a prediction at its first token or behind its last": outside,
    }
    for rule, broken in rules.items():
        if broken.any():
            raise InputError(f"{path}: row {first_row + int(broken.argmax())} {rule}", hint=_VERIFY)


_ONE_SIDED_PAIRS = 0.9
"""Share of the more frequent answer from which on next-sentence prediction teaches little."""
_MIN_PAIRS = 32
"""Fewer may have such a share by chance."""


@dataclass(frozen=True, slots=True)
class SpecialIds:
    """Ids of special tokens that the checks look for."""

    cls_id: int
    sep_id: int
    pad_id: int = 0
    mask_id: int | None = None
    """None if the vocabulary is not known, like the next one."""
    unk_id: int | None = None

    @classmethod
    def of(cls, vocabulary: Vocabulary | None, samples: Samples) -> SpecialIds:
        """Take the ids of a vocabulary; without one, [CLS] and [SEP] are the first row's first and last token."""
        if vocabulary:
            return cls(vocabulary.cls_id, vocabulary.sep_id, vocabulary.pad_id, vocabulary.mask_id, vocabulary.unk_id)
        length = int(samples.input_mask[0].sum())
        return cls(int(samples.input_ids[0, 0]), int(samples.input_ids[0, length - 1]))


@dataclass(frozen=True, slots=True)
class Origin:
    """How the rows were made, as far as it is known; each field adds checks."""

    masked: bool = True
    """Whether the file holds predictions; otherwise the data loader draws them."""
    own_generator: bool = False
    """Built by this project, whose text holds no special tokens."""
    masked_lm_probability: float | None = None
    """Share of tokens that is predicted; None if whole words are masked, or nothing is known."""
    predicts_unknown: bool = True
    """Whether [UNK] may be predicted."""
    documents: bool = False
    """Rows are pieces of documents; otherwise they are pairs."""


def describe_violations(broken: dict[str, tuple[int, int]]) -> list[str]:
    """Return a line for each rule. broken: the number of rows that break it, and the first of them."""
    return [f"{count} row(s), the first is {first}: {rule}" for rule, (count, first) in broken.items() if count]


Rows = NDArray[np.bool_]
"""(N,): true for the rows that break a rule."""


def broken_rules(
    samples: Samples, original: NDArray[np.int32], unknown: NDArray[np.int64], ids: SpecialIds, origin: Origin
) -> dict[str, Rows]:
    """Return the rows that break each rule, (N,); rules that no row breaks are left out.

    original: of ``original_tokens``. unknown: of ``count_unknown``.
    """
    lengths = samples.input_mask.sum(axis=1, dtype=np.int64)
    predicted = samples.masked_lm_positions > 0
    own = _document_rules if origin.documents else _pair_rules
    rules = _row_rules(samples, original, lengths, ids) | own(samples, original, lengths, ids)
    if origin.masked:
        # A row of nothing but [UNK] may have nothing to predict.
        num_special = count_special(samples, original, ids, documents=origin.documents)
        rules |= _prediction_rules(samples, predicted, lengths, lengths - num_special - unknown, ids, origin)
    else:
        rules["has predictions, but the file says that it has none"] = np.any(predicted, axis=1)
    if origin.own_generator:
        # In the original tokens: among the shown ones a random replacement may be any entry, special tokens included.
        forbidden = [ids.pad_id, *([] if ids.mask_id is None else [ids.mask_id])]
        special = np.isin(original, forbidden if origin.documents else [ids.cls_id, *forbidden])
        special[:, 0] = False
        rules |= {"holds [CLS], [PAD] or [MASK] inside its text": (special & (samples.input_mask == 1)).any(axis=1)}
    return {rule: rows for rule, rows in rules.items() if rows.any()}


def original_tokens(samples: Samples) -> NDArray[np.int32]:
    """Return the tokens before masking, (N, T). Rules about special tokens need them: a replacement may be [SEP]."""
    original = samples.input_ids.copy()
    predicted = samples.masked_lm_positions > 0
    row_of, _ = np.nonzero(predicted)
    original[row_of, samples.masked_lm_positions[predicted]] = samples.masked_lm_ids[predicted]
    return original


def describe_pairs(num_random: int, rows: int) -> str | None:
    """Return the warning about sentence pairs whose answers are nearly all the same; None where they are not.

    num_random: of the rows, those whose second segment comes from elsewhere.
    """
    if rows < _MIN_PAIRS or max(num_random, rows - num_random) < _ONE_SIDED_PAIRS * rows:
        return None
    is_random = num_random > rows - num_random
    share, kind = max(num_random, rows - num_random) / rows, "random" if is_random else "actual"
    why = "documents of one sentence have no next one" if is_random else "one document has no other to draw from"
    return (
        f"{share:.1%} of the sentence pairs have {kind} next sentences, usual is about half ({why}): a model that "
        f"always says so has a next-sentence accuracy of {share:.1%}. Train with objective: mlm, or separate documents "
        "by empty lines"
    )


def count_unknown(samples: Samples, original: NDArray[np.int32], unk_id: int | None) -> NDArray[np.int64]:
    """Return the number of [UNK] in each row, (N,); 0 if its id is not known. original: of ``original_tokens``."""
    if unk_id is None:
        return np.zeros(len(samples), np.int64)
    found = original == unk_id
    if unk_id == 0:  # the id of padding, too
        found &= samples.input_mask == 1
    counts: NDArray[np.int64] = np.count_nonzero(found, axis=1).astype(np.int64)
    return counts


def count_special(
    samples: Samples, original: NDArray[np.int32], ids: SpecialIds, *, documents: bool
) -> NDArray[np.int64]:
    """Return the number of [CLS] and [SEP] in each row, (N,): three of a pair. original: of ``original_tokens``."""
    if not documents:
        return np.full(len(samples), 3)
    special = ((original == ids.cls_id) | (original == ids.sep_id)) & (samples.input_mask == 1)
    counts: NDArray[np.int64] = np.count_nonzero(special, axis=1).astype(np.int64)
    return counts


def _row_rules(
    samples: Samples, original: NDArray[np.int32], lengths: NDArray[np.int64], ids: SpecialIds
) -> dict[str, Rows]:
    """Return the rules for rows of any kind."""
    padding = samples.input_mask == 0
    return {
        "does not begin with [CLS]": original[:, 0] != ids.cls_id,
        "does not end with [SEP]": original[np.arange(len(samples)), lengths - 1] != ids.sep_id,
        "has ids in its padding": ((samples.input_ids != 0) & padding).any(axis=1),
        "has segments in its padding": ((samples.segment_ids != 0) & padding).any(axis=1),
    }


def _document_rules(
    samples: Samples, original: NDArray[np.int32], _lengths: NDArray[np.int64], ids: SpecialIds
) -> dict[str, Rows]:
    starts, ends = original == ids.cls_id, original == ids.sep_id
    inside = samples.input_mask[:, 1:] == 1
    return {
        "has a [CLS] that follows no [SEP], or a [SEP] that no [CLS] follows": (
            (starts[:, 1:] != ends[:, :-1]) & inside
        ).any(axis=1),
        "has an empty piece": (starts[:, :-1] & ends[:, 1:] & inside).any(axis=1),
        "has a second segment or a next sentence": (samples.segment_ids != 0).any(axis=1)
        | (samples.next_sentence_labels != 0),
    }


def _pair_rules(
    samples: Samples, original: NDArray[np.int32], lengths: NDArray[np.int64], ids: SpecialIds
) -> dict[str, Rows]:
    rows = np.arange(len(samples))
    real = samples.input_mask == 1
    num_separators = ((original == ids.sep_id) & real).sum(axis=1)
    # 0 if there is no second segment; index -1 below is then harmless, since that row breaks a rule anyway.
    first_b = (samples.segment_ids == 1).argmax(axis=1)
    falls = ((np.diff(samples.segment_ids, axis=1) < 0) & real[:, 1:]).any(axis=1)
    return {
        "has not two [SEP]": num_separators != 2,
        "has segments other than 0 ... 0 1 ... 1": falls | (first_b == 0),
        "has no [SEP] at the end of its first segment": original[rows, first_b - 1] != ids.sep_id,
        "has an empty segment": (first_b == 2) | (lengths - first_b == 1),
    }


def _prediction_rules(
    samples: Samples,
    predicted: NDArray[np.bool_],
    lengths: NDArray[np.int64],
    known: NDArray[np.int64],
    ids: SpecialIds,
    origin: Origin,
) -> dict[str, Rows]:
    """known: (N,), tokens of the text that are not [UNK]."""
    special_ids = [ids.cls_id, ids.sep_id, *(() if ids.mask_id is None else (ids.pad_id, ids.mask_id))]
    specials = np.isin(samples.masked_lm_ids, special_ids) & predicted
    unknown = np.zeros_like(predicted) if origin.predicts_unknown else (samples.masked_lm_ids == ids.unk_id) & predicted
    steps = np.diff(samples.masked_lm_positions, axis=1)
    # Unused predictions have position 0 and come last: a used one behind them is a gap.
    disordered = (((steps <= 0) | ~predicted[:, :-1]) & predicted[:, 1:]).any(axis=1)
    rules = {
        "has no prediction": ~predicted.any(axis=1) & (known > 0),
        "has predictions out of order or after a gap": disordered,
        "predicts a special token": specials.any(axis=1),
        "predicts [UNK]": unknown.any(axis=1),
        "has labels behind its predictions": ((samples.masked_lm_ids != 0) & ~predicted).any(axis=1),
    }
    share = origin.masked_lm_probability
    if share is not None:
        candidates = np.maximum(lengths - 3, 1) if origin.predicts_unknown else known
        most = np.minimum(predicted.shape[1], candidates)
        wanted = np.minimum(np.maximum(1, np.rint(lengths * share).astype(np.int64)), most)
        rules[f"has another number of predictions than {share:g} of its tokens"] = predicted.sum(axis=1) != wanted
    return rules
