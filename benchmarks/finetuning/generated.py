"""Data sets that are made up: a planted rule, contexts with questions, and rows of given lengths.

The same seed gives the same files. Texts of the first two consist of words that the demo's vocabulary has whole.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

MRPC_LENGTHS = {
    20: 2, 24: 5, 28: 12, 32: 25, 36: 46, 40: 76, 44: 108, 48: 135, 52: 144, 56: 139, 60: 116, 64: 84, 68: 53,
    72: 29, 76: 14, 80: 6, 84: 2, 88: 1, 92: 1, 96: 1, 100: 1,
}  # fmt: skip
"""Word pieces of a pair, [CLS] and both [SEP] included, and rows per thousand with so many or up to three more.

Fitted to what is published of MRPC under BERT's uncased vocabulary: a median of 54 for its training and validation
rows (github.com/WoosukKwon/retraining-free-pruning, issue 2), and 50, 59, 47, 67, 59, 50, 62, 32 for its first eight
(Hugging Face's course, chapter 3: mean 53, standard deviation 10); rows of 20 to 103. MRPC itself is not needed."""

COLA_ROWS, COLA_HELD_OUT_ROWS = 8_551, 1_043
"""Of the Corpus of Linguistic Acceptability, whose test set is not public."""
COLA_LENGTHS = {5: 53, 6: 82, 7: 105, 8: 115, 9: 115, 10: 105, 11: 90, 12: 75, 13: 60, 14: 48, 15: 38, 16: 29, 17: 22,
                18: 16, 19: 12, 20: 9, 22: 11, 25: 7, 29: 5, 35: 2, 42: 1}  # fmt: skip
"""Word pieces of a row, [CLS] and [SEP] included, and rows per thousand: a mean of 11, sentences of eight words with
their full stop. The shape is assumed; CoLA itself is not needed."""

_FILLERS = tuple(
    word
    for line in (
        "a all also and any are be but can each even for from has if in into is it its many may more most must new no",
        "not of on one only or other out over same should so some such than that the their then there these this time",
        "to two use was what when where which will with would",
    )
    for word in line.split()
)
_FIRST, _SECOND = "file", "string"

_OBJECTS = (
    "class",
    "file",
    "function",
    "list",
    "method",
    "module",
    "name",
    "number",
    "object",
    "string",
    "type",
    "value",
)
_ATTRIBUTES = {
    "order": ("first", "last", "next", "second", "third"),
    "size": ("1", "10", "2", "3", "4", "5", "8", "one", "three", "two"),
    "source": ("library", "network", "process", "program", "server", "system", "thread", "user"),
    "state": ("closed", "empty", "invalid", "new", "old", "open", "valid"),
}


def write_planted_rule(folder: Path, training_rows: int, held_out_rows: int, seed: int = 1) -> None:
    """Write two tables of texts whose class says which of two words comes first; both are in every text, once."""
    folder.mkdir(parents=True, exist_ok=True)
    draw = random.Random(seed)
    seen: set[str] = set()
    for name, rows in (("train", training_rows), ("validation", held_out_rows)):
        with (folder / f"{name}.tsv").open("w") as file:
            file.write("text\tlabel\n")
            for number in range(rows):
                text, label = _planted_text(draw, number % 2 == 0)
                while text in seen:
                    text, label = _planted_text(draw, number % 2 == 0)
                seen.add(text)
                file.write(f"{text}\t{label}\n")


def _planted_text(draw: random.Random, is_first: bool) -> tuple[str, str]:
    words = draw.choices(_FILLERS, k=draw.randint(6, 14))
    places = sorted(draw.sample(range(len(words) + 2), 2))
    for place, word in zip(places, (_FIRST, _SECOND) if is_first else (_SECOND, _FIRST), strict=True):
        words.insert(place, word)
    return " ".join(words), "before" if is_first else "after"


def write_questions(folder: Path, training_contexts: int, held_out_contexts: int, seed: int = 2) -> None:
    """Write SQuAD's two files: contexts of four facts and two questions each, none of them on both sides."""
    folder.mkdir(parents=True, exist_ok=True)
    draw = random.Random(seed)
    seen: set[str] = set()
    for name, count in (("train", training_contexts), ("dev", held_out_contexts)):
        paragraphs = []
        while len(paragraphs) < count:
            context, facts = _context(draw)
            if context not in seen:
                seen.add(context)
                asked = draw.sample(facts, 2)
                paragraphs.append(
                    {"context": context, "qas": [_question(name, len(paragraphs), *fact) for fact in asked]}
                )
        document = {"version": "1.1", "data": [{"title": "Facts", "paragraphs": paragraphs}]}
        (folder / f"{name}-v1.1.json").write_text(json.dumps(document))


def _context(draw: random.Random) -> tuple[str, list[tuple[str, str, str, int]]]:
    """Return a text, and of each of its facts attribute, object, value and the offset of the value."""
    text = ""
    facts = []
    for attribute, thing in zip(draw.sample(list(_ATTRIBUTES), 4), draw.sample(_OBJECTS, 4), strict=True):
        values = _ATTRIBUTES[attribute]
        # Of one word or of two: the end has to be found as well.
        value = " ".join(draw.sample(values, draw.randint(1, 2)))
        text += f"the {attribute} of the {thing} is "
        facts.append((attribute, thing, value, len(text)))
        text += f"{value} . "
    return text.strip(), facts


def _question(split: str, number: int, attribute: str, thing: str, value: str, at: int) -> dict[str, object]:
    answers = [{"text": value, "answer_start": at}]
    return {
        "id": f"{split}-{number}-{attribute}",
        "question": f"what is the {attribute} of the {thing} ?",
        "answers": answers if split == "train" else 3 * answers,
    }


def write_word_vocabulary(path: Path, entries: int) -> None:
    """Write a vocabulary whose words are one piece each: what is written with it has as many pieces as words."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    path.write_text("\n".join([*special, *(f"w{number}" for number in range(entries - len(special)))]) + "\n")


def draw_lengths(histogram: dict[int, int], rows: int, seed: int) -> list[int]:
    """Return word pieces of rows: each bin's share of them as exactly as it goes, in random order."""
    starts = sorted(histogram)
    # The last bin is as wide as the one before it.
    ends = [*starts[1:], 2 * starts[-1] - starts[-2]]
    total = sum(histogram.values())
    draw = random.Random(seed)
    lengths: list[int] = []
    below = 0
    for start, end in zip(starts, ends, strict=True):
        below += histogram[start]
        count = round(rows * below / total) - len(lengths)
        lengths += [start + place % (end - start) for place in range(count)]
    draw.shuffle(lengths)
    return lengths


def write_rows(path: Path, lengths: Sequence[int], *, pairs: bool, vocabulary_size: int, seed: int) -> None:
    """Write a table of random words of a word vocabulary with one of two classes. lengths: word pieces of each row."""
    draw = random.Random(seed)
    with path.open("w") as file:
        file.write("text\tpair\tlabel\n" if pairs else "text\tlabel\n")
        for length in lengths:
            words = length - (3 if pairs else 2)
            texts = [words // 2, words - words // 2] if pairs else [words]
            columns = [" ".join(_random_words(draw, count, vocabulary_size)) for count in texts]
            file.write("\t".join([*columns, str(draw.randint(0, 1))]) + "\n")


def _random_words(draw: random.Random, count: int, vocabulary_size: int) -> Iterator[str]:
    # Real words follow Zipf's law; how often an embedding's row is read makes little difference to the speed.
    return (f"w{int((vocabulary_size - 5) ** draw.random()) - 1}" for _ in range(count))
