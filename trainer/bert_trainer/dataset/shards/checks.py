"""Whether rows of shards are what a BERT sample has to be; pure functions of arrays.

``check_range`` and ``check_padding`` run whenever a shard is read and keep a trainer from reading out of
bounds; ``broken_rules`` is the whole list, for ``bert-data verify``.
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
    """Refuse numbers that would be out of bounds, or change, in the type they are kept in."""
    if not values.size:
        return
    least, largest = int(values.min()), int(values.max())
    limit = {
        "input_ids": vocabulary_size or 2**31,
        "masked_lm_ids": vocabulary_size or 2**31,
        "masked_lm_positions": sequence_length,
    }.get(name, 2)
    if vocabulary_size and name.endswith("_ids") and name != "segment_ids" and largest >= limit:
        raise InputError(
            f"{path}: made with a vocabulary that does not fit: the largest token id in {name!r} is "
            f"{largest}, the one given has {vocabulary_size} entries",
            hint="use the vocab.txt that the shards were made with",
        )
    if least < 0 or largest >= limit:
        raise InputError(f"{path}: dataset {name!r} holds {least} to {largest}, allowed 0 to {limit - 1}")


def check_padding(path: Path, samples: Samples, first_row: int = 0) -> None:
    """Refuse rows whose real tokens do not come first or whose predictions point behind them."""
    mask = samples.input_mask
    lengths = mask.sum(axis=1, dtype=np.int64)
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
    """Refuse rows without padding that contradict themselves or would be out of bounds.

    sequence_length, max_predictions: most of one row, where it is known. first_row: its number in the file.
    """
    counts, predictions = samples.token_counts, samples.prediction_counts
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
    places = samples.masked_lm_positions.astype(np.int64)
    row_of = np.repeat(np.arange(len(samples)), predictions)
    outside = np.zeros(len(samples), np.bool_)
    outside[row_of[(places < 1) | (places >= counts[row_of])]] = True
    rules = {
        f"holds no token or more than {longest}": (counts < 1) | (counts > longest),
        "has a first segment longer than itself": samples.first_segment_counts > counts,
        f"holds more than {max_predictions} predictions": predictions > (max_predictions or 2**15),
        "has a prediction at its first token or behind its last": outside,
    }
    for rule, broken in rules.items():
        if broken.any():
            raise InputError(f"{path}: row {first_row + int(broken.argmax())} {rule}", hint=_VERIFY)


@dataclass(frozen=True, slots=True)
class SpecialIds:
    """Ids that rows are checked with."""

    cls_id: int
    sep_id: int
    pad_id: int = 0
    mask_id: int | None = None
    """Empty where the vocabulary is not known, as the next one."""
    unk_id: int | None = None

    @classmethod
    def of(cls, vocabulary: Vocabulary | None, samples: Samples) -> SpecialIds:
        """Take the ids of a vocabulary, or, where it is not known, those of [CLS] and [SEP] of the first row."""
        if vocabulary:
            return cls(vocabulary.cls_id, vocabulary.sep_id, vocabulary.pad_id, vocabulary.mask_id, vocabulary.unk_id)
        length = int(samples.input_mask[0].sum())
        return cls(int(samples.input_ids[0, 0]), int(samples.input_ids[0, length - 1]))


@dataclass(frozen=True, slots=True)
class Origin:
    """What is known of how the rows were made; each field adds checks."""

    masked: bool = True
    """Whether predictions were drawn; rows without them are left to the loader to mask."""
    ours: bool = False
    """Made by this project's generator, whose text holds no special token."""
    masked_lm_probability: float | None = None
    """Share of tokens that is predicted, where single tokens are."""
    predicts_unknown: bool = True
    """Whether [UNK] may be predicted."""


def describe_violations(broken: dict[str, tuple[int, int]]) -> list[str]:
    """Return a line for each rule. broken: how many rows break it and the first of them."""
    return [f"{count} row(s), the first is {first}: {rule}" for rule, (count, first) in broken.items() if count]


Rows = NDArray[np.bool_]
"""(N,): rows for which something is so."""


def broken_rules(
    samples: Samples, original: NDArray[np.int32], unknown: NDArray[np.int64], ids: SpecialIds, origin: Origin
) -> dict[str, Rows]:
    """Return for every rule which rows break it, (N,); rules that all rows keep are left out.

    original, unknown: as ``original_tokens`` and ``count_unknown`` return them.
    """
    lengths = samples.input_mask.sum(axis=1, dtype=np.int64)
    predicted = samples.masked_lm_positions > 0
    rules = _segment_rules(samples, original, lengths, ids)
    if origin.masked:
        # Of text that is nothing but [UNK] there may be nothing to predict.
        rules |= _prediction_rules(samples, predicted, lengths, lengths - 3 - unknown, ids, origin)
    else:
        rules["has predictions, but the file says that it has none"] = np.any(predicted, axis=1)
    if origin.ours:
        # Shown anywhere, since a replacement is one of the predictions.
        special = np.isin(original, [ids.cls_id, ids.pad_id, *([] if ids.mask_id is None else [ids.mask_id])])
        special[:, 0] = False
        rules |= {"holds [CLS], [PAD] or [MASK] inside its text": (special & (samples.input_mask == 1)).any(axis=1)}
    return {rule: rows for rule, rows in rules.items() if rows.any()}


def original_tokens(samples: Samples) -> NDArray[np.int32]:
    """Return the tokens as they were before they were masked, (N, T): a replacement may be any entry, [SEP] too."""
    original = samples.input_ids.copy()
    predicted = samples.masked_lm_positions > 0
    row_of, _ = np.nonzero(predicted)
    original[row_of, samples.masked_lm_positions[predicted]] = samples.masked_lm_ids[predicted]
    return original


def count_unknown(samples: Samples, original: NDArray[np.int32], unk_id: int | None) -> NDArray[np.int64]:
    """Return how many tokens of each row are [UNK], (N,); 0 where its id is not known.

    original: as ``original_tokens`` returns them.
    """
    if unk_id is None:
        return np.zeros(len(samples), np.int64)
    found = original == unk_id
    if unk_id == 0:  # as padding is
        found &= samples.input_mask == 1
    counts: NDArray[np.int64] = np.count_nonzero(found, axis=1).astype(np.int64)
    return counts


def _segment_rules(
    samples: Samples, original: NDArray[np.int32], lengths: NDArray[np.int64], ids: SpecialIds
) -> dict[str, Rows]:
    rows = np.arange(len(samples))
    real = samples.input_mask == 1
    num_separators = ((original == ids.sep_id) & real).sum(axis=1)
    first_b = (samples.segment_ids == 1).argmax(axis=1)
    falls = ((np.diff(samples.segment_ids, axis=1) < 0) & real[:, 1:]).any(axis=1)
    return {
        "does not begin with [CLS]": original[:, 0] != ids.cls_id,
        "does not end with [SEP]": original[rows, lengths - 1] != ids.sep_id,
        "has not two [SEP]": num_separators != 2,
        "has ids in its padding": ((samples.input_ids != 0) & ~real).any(axis=1),
        "has segments in its padding": ((samples.segment_ids != 0) & ~real).any(axis=1),
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
