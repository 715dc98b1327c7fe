"""Documents whose tokens tell where they come from, and what it takes to make samples of them.

Every token of sentence ``s`` of document ``d`` is ``coded(d, s)``, which no special token or replacement is: what
a sample is made of can be read off it.
"""

import random
from collections.abc import Sequence
from pathlib import Path

from bert_trainer.dataset.sampling.masking import MaskingRule
from bert_trainer.dataset.sampling.shard_samples import ShardTask
from bert_trainer.dataset.shards.samples import Samples

VOCABULARY_SIZE, CLS, SEP, MASK = 1000, 2, 3, 4

Document = list[list[int]]


def coded(document: int, sentence: int) -> int:
    """Return the token of a sentence."""
    return 10_000 * (document + 1) + sentence


def place(token: int) -> tuple[int, int]:
    """Return the document and the sentence of a token."""
    return token // 10_000 - 1, token % 10_000


def coded_documents(lengths: Sequence[Sequence[int]]) -> list[Document]:
    """Return documents of the given sentence lengths, in tokens."""
    return [[[coded(d, s)] * length for s, length in enumerate(document)] for d, document in enumerate(lengths)]


def mixed_documents(seed: int, *, documents: int, max_sentences: int, max_tokens: int) -> list[Document]:
    """Return documents of random sizes: from one sentence and from one token per sentence on."""
    rng = random.Random(seed)
    return coded_documents(
        [[rng.randint(1, max_tokens) for _ in range(rng.randint(1, max_sentences))] for _ in range(documents)]
    )


def masking_rule(max_predictions: int = 20, probability: float = 0.15) -> MaskingRule:
    """Return BERT's rule with the special tokens of this module."""
    return MaskingRule(
        probability=probability,
        max_predictions=max_predictions,
        vocabulary_size=VOCABULARY_SIZE,
        cls_id=CLS,
        sep_id=SEP,
        mask_id=MASK,
    )


def shard_task(
    folder: Path = Path(),
    *,
    shard: int = 0,
    sequence_length: int = 128,
    max_predictions: int = 20,
    passes: int = 1,
    short: float = 0.1,
    seed: int = 12345,
    num_groups: int = 1,
) -> ShardTask:
    """Return the task of one training shard whose tokens lie in ``folder``, made of one group."""
    return ShardTask(
        target=folder / f"training_{shard:04d}.hdf5",
        token_paths=(folder / "tokens",),
        num_groups=num_groups,
        groups=(shard,) * passes,
        split="training",
        shard=shard,
        sequence_length=sequence_length,
        short_sequence_probability=short,
        seed=seed,
        masking=masking_rule(max_predictions),
        vocabulary_sha256="a" * 64,
    )


def original_rows(samples: Samples) -> list[list[int]]:
    """Return every row's tokens before masking, without padding."""
    rows = []
    for row in range(len(samples)):
        tokens = samples.input_ids[row, : samples.input_mask[row].sum()].tolist()
        for position, label in zip(samples.masked_lm_positions[row], samples.masked_lm_ids[row], strict=True):
            if position > 0:
                tokens[position] = int(label)
        rows.append(tokens)
    return rows
