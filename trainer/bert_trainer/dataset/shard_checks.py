"""Whether rows of shards are what a BERT sample has to be; pure functions of arrays.

``check_range`` and ``check_padding`` run whenever a shard is read and keep a trainer from reading out of
bounds; ``find_violations`` is the whole list, for ``bert-data verify``.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bert_trainer.dataset.ragged import RaggedSamples
from bert_trainer.dataset.samples import Samples
from bert_trainer.dataset.wordpiece import Vocabulary
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
) -> None:
    """Refuse rows without padding that contradict themselves or would be out of bounds.

    sequence_length, max_predictions: most of one row, where it is known.
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
            raise InputError(f"{path}: row {int(broken.argmax())} {rule}", hint=_VERIFY)


def find_violations(samples: Samples, vocabulary: Vocabulary | None, *, masked: bool = True) -> list[str]:
    """Return every rule that some row breaks, each with the number of such rows and the first of them.

    samples: as ``read_shard`` returns them, so ranges and padding are right. vocabulary: where it is not
    known, the ids of [CLS] and [SEP] are taken from the first row. masked: whether the rows must hold predictions,
    or must not.
    """
    ids, lengths = samples.input_ids, samples.input_mask.sum(axis=1, dtype=np.int64)
    rows = np.arange(len(samples))
    cls_id = vocabulary.cls_id if vocabulary else int(ids[0, 0])
    sep_id = vocabulary.sep_id if vocabulary else int(ids[0, lengths[0] - 1])
    real = samples.input_mask == 1
    # A random replacement may be any entry, [SEP] too: what stood there decides.
    original = ids.copy()
    predicted = samples.masked_lm_positions > 0
    row_of, _ = np.nonzero(predicted)
    original[row_of, samples.masked_lm_positions[predicted]] = samples.masked_lm_ids[predicted]
    num_separators = ((original == sep_id) & real).sum(axis=1)
    first_b = (samples.segment_ids == 1).argmax(axis=1)
    # [UNK] may be predicted: it stands for a word.
    special_ids = [cls_id, sep_id, *((vocabulary.pad_id, vocabulary.mask_id) if vocabulary else ())]
    specials = np.isin(samples.masked_lm_ids, special_ids) & predicted
    steps = np.diff(samples.masked_lm_positions, axis=1)
    rules = {
        "does not begin with [CLS]": original[:, 0] != cls_id,
        "does not end with [SEP]": original[rows, lengths - 1] != sep_id,
        "has not two [SEP]": num_separators != 2,
        "has ids in its padding": ((ids != 0) & ~real).any(axis=1),
        "has segments in its padding": ((samples.segment_ids != 0) & ~real).any(axis=1),
        "has segments other than 0 ... 0 1 ... 1": ((np.diff(samples.segment_ids, axis=1) < 0) & real[:, 1:]).any(
            axis=1
        )
        | (first_b == 0),
        "has no [SEP] at the end of its first segment": original[rows, first_b - 1] != sep_id,
        "has no prediction" if masked else "has a prediction in a file without masks": predicted.any(axis=1) != masked,
        "has predictions out of order or after a gap": (((steps <= 0) | ~predicted[:, :-1]) & predicted[:, 1:]).any(
            axis=1
        ),
        "predicts a special token": specials.any(axis=1),
        "has labels behind its predictions": ((samples.masked_lm_ids != 0) & ~predicted).any(axis=1),
    }
    return [
        f"{int(broken.sum())} row(s), the first is {int(broken.argmax())}: {rule}"
        for rule, broken in rules.items()
        if broken.any()
    ]
