"""Whether a dataset is of use: a vocabulary that knows its text, sentence pairs that have something to teach."""

from __future__ import annotations

import logging
import unicodedata
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path

from bert_job.run_stages import PrepareStage
from bert_trainer.dataset.shards import read_blocks
from bert_trainer.dataset.shards.checks import describe_pairs
from bert_trainer.dataset.tokens.wordpiece import MAX_UNKNOWN, check_unknown, describe_unknown

logger = logging.getLogger(__name__)

_COUNTED_WORDS = 1 << 15
"""Some 200 KB of text: a tenth of a second."""
_MANY_ACCENTS = 0.01
"""English has fewer, of names and loanwords; German has a tenth, French a fifth of its words."""
_SHOWN_CHARACTERS = 40


def check_vocabulary(stage: PrepareStage, num_tokens: int, unknown_share: float, vocabulary: Path) -> None:
    """Warn about, or refuse, a vocabulary that fits the text badly. The text stays encoded.

    num_tokens: of the text. unknown_share: of these, in [0, 1].

    Raises:
        InputError: the vocabulary does not know the text.
    """
    check_unknown(
        f"{stage.source}, with the vocabulary {vocabulary}",
        num_tokens,
        unknown_share,
        stage.max_unknown_share,
        "set maxUnknownShare: 1 in the prepare stage, or --max-unknown-share 1 by hand",
    )
    if unknown_share > MAX_UNKNOWN:
        logger.warning("%s: %s", stage.source, describe_unknown(unknown_share))


def warn_about_accents(source: str, sentences: Iterable[str]) -> None:
    """Log the share of the first words that lose accents in lower case; warn if it is large.

    Vowel signs of Arabic, Hindi or Thai are accents as well: to Unicode all are nonspacing marks, which BERT strips.
    """
    words = list(islice((word for sentence in sentences for word in sentence.split(" ")), _COUNTED_WORDS))
    # ASCII has none, and isascii looks at no character.
    changed = [(word, bare) for word in words if not word.isascii() and (bare := without_accents(word)) != word]
    if not changed:
        return
    word, bare = max(changed, key=lambda pair: len(pair[0]) - len(pair[1]))
    share = len(changed) / len(words)
    logger.log(
        logging.WARNING if share >= _MANY_ACCENTS else logging.INFO,
        "%s: lower case strips accents, as in BERT's uncased models: %.1f%% of the first %s words lose some, "
        "as %s -> %s; keep them, and capitals, with lowerCase: false (--cased)",
        source,
        100 * share,
        f"{len(words):,}",
        word[:_SHOWN_CHARACTERS],
        bare[:_SHOWN_CHARACTERS],
    )


def without_accents(word: str) -> str:
    """Strip a word's accents as BERT does; its case stays."""
    decomposed = unicodedata.normalize("NFD", word)
    kept = "".join(character for character in decomposed if unicodedata.category(character) != "Mn")
    return word if kept == decomposed else kept


def warn_about_pairs(shards: Sequence[Path]) -> None:
    """Warn if nearly all sentence pairs have the same label. shards: one for each length."""
    for shard in shards:
        # Samples of a shard are shuffled, and the first rows of it are as good as all.
        block = next(iter(read_blocks(shard, None)), None)
        told = None if block is None else describe_pairs(int(block.next_sentence_labels.sum()), len(block))
        if told:
            logger.warning("%s: %s", shard.parent, told)
