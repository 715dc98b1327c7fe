"""Whether a dataset is of use: a vocabulary that knows its text, sentence pairs that have something to teach."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from bert_trainer.config.stages import PrepareStage
from bert_trainer.dataset.shards import read_blocks
from bert_trainer.dataset.shards.checks import describe_pairs
from bert_trainer.dataset.tokens.wordpiece import MOST_UNKNOWN, check_unknown, describe_unknown

logger = logging.getLogger(__name__)


def check_vocabulary(stage: PrepareStage, unknown_share: float, vocabulary: Path) -> None:
    """Warn of a vocabulary that fits the text badly, or refuse it. The text stays encoded.

    unknown_share: of the text's tokens, in [0, 1].

    Raises:
        InputError: the vocabulary does not know the text.
    """
    check_unknown(
        f"{stage.source}, with the vocabulary {vocabulary}",
        unknown_share,
        stage.max_unknown_share,
        "set maxUnknownShare: 1 in the prepare stage, or --max-unknown-share 1 by hand",
    )
    if unknown_share > MOST_UNKNOWN:
        logger.warning("%s: %s", stage.source, describe_unknown(unknown_share))


def warn_of_pairs(shards: Sequence[Path]) -> None:
    """Warn of sentence pairs with one answer. shards: one of each length, which stands for the others."""
    for shard in shards:
        # Samples of a shard are shuffled, and the first rows of it are as good as all.
        block = next(iter(read_blocks(shard, None)), None)
        told = None if block is None else describe_pairs(int(block.next_sentence_labels.sum()), len(block))
        if told:
            logger.warning("%s: %s", shard.parent, told)
