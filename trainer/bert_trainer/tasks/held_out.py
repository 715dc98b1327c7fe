"""Rows to evaluate on where there is one table alone."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Sequence
from pathlib import Path

from bert_job.foreign_text import printable
from bert_trainer.errors import InputError
from bert_trainer.tasks.examples import Example, SpanExample, Split

ONE_OF = 10
"""Of so many texts of every class one is held out; of a class with fewer, from MIN_TEXTS on, one."""
MIN_TEXTS = 5


def hold_out(examples: Sequence[Example], path: Path) -> tuple[Split, Split]:
    """Return the rows to train on and those to evaluate on, each in the file's order.

    Rows of equal texts, and questions about one context, stay together: what is on one side is not on the other. Which
    texts are held out follows from the texts alone, whatever their order, by SHA-256.

    Args:
        examples: All rows.
        path: Their file, for the message.

    Raises:
        InputError: they have fewer than two different texts.
    """
    classes: dict[Hashable, dict[str, list[int]]] = {}
    for number, example in enumerate(examples):
        # Numbers to predict are no classes, and neither are answers.
        of_class = None if isinstance(example, SpanExample) or isinstance(example.label, float) else example.label
        text = example.context if isinstance(example, SpanExample) else f"{example.first}\0{example.second or ''}"
        digest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
        classes.setdefault(of_class, {}).setdefault(digest, []).append(number)
    texts = {digest for found in classes.values() for digest in found}
    if len(texts) < 2:
        raise InputError(
            f"{printable(path)}: got one text; allowed: two or more where no validation file is named",
            hint="name another file to evaluate on",
        )
    held = {
        digest
        for found in classes.values()
        for digest in sorted(found)[: max(len(found) // ONE_OF, len(found) >= MIN_TEXTS)]
    }
    # What is the only text of a class is learnt from.
    held -= {digest for found in classes.values() if len(found) == 1 for digest in found}
    if not held:
        largest = max(classes.values(), key=len)
        held = {min(largest)}
    numbers = {number for found in classes.values() for digest in found.keys() & held for number in found[digest]}
    return (
        Split("train", tuple(example for number, example in enumerate(examples) if number not in numbers)),
        Split("validation", tuple(example for number, example in enumerate(examples) if number in numbers)),
    )
