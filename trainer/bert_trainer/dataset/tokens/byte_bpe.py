"""Byte-level BPE, as of GPT-2 and ModernBERT: how such a tokenizer splits text, and how one is learnt from text.

A character is one to four bytes, and every byte has an entry: no text gives [UNK]. Hugging Face ``tokenizers`` carries
the whole ``tokenizer.json`` out, but for one thing: a token that the file calls special means nothing inside text.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from bert_trainer.dataset.tokens.wordpiece_settings import MAX_WORD_CHARACTERS, SPECIAL_TOKENS

MIN_ENTRIES = len(SPECIAL_TOKENS) + 256
"""Of a vocabulary that is learnt: the special tokens and every byte."""
CUT = re.compile(r"(?<=\S)(?= \S)")
"""Where text falls into pieces that are tokenized alone: before a space between two characters that are none.

GPT-2's pattern ends a word there, whatever stands around; of longer runs of white space the last character alone goes
to the word behind it. No normal form but a compatible one (NFKC, NFKD) joins a space to its neighbours or makes one.
"""
_MIN_FREQUENCY = 2


@dataclass(frozen=True, slots=True)
class ByteBpe:
    """A tokenizer of this kind; stands where ``WordPieceSettings`` does."""

    content: bytes = field(repr=False)
    """Of its ``tokenizer.json``, which says everything."""
    prefix_space: bool
    """Whether the first word of a text gets a space like the others."""
    has_pieces: bool
    """Whether what ``CUT`` makes of a text has the text's tokens together."""
    matched: frozenset[str] = field(repr=False)
    """Tokens that text is searched for before it is split."""
    lower_case: ClassVar[None] = None
    """What normalizes text is in the file."""
    strip_accents: ClassVar[bool] = False

    def agrees_with(self, other: object) -> bool:
        """Return whether both tokenize alike, however their files are written."""
        if not isinstance(other, ByteBpe):
            return False
        return self.content == other.content or self.make_tokenizer().to_str() == other.make_tokenizer().to_str()

    def splits_like(self, other: object) -> bool:
        """Return as ``agrees_with``: there is no case to leave open."""
        return self.agrees_with(other)

    def describe(self, lower_case: bool) -> str:
        """Describe it for people."""
        return "byte-level BPE" + (", the first word with a space" if self.prefix_space else "")

    def as_tokenizer_config(self, lower_case: bool | None) -> dict[str, Any]:
        """Return what ``tokenizer_config.json`` has to say for transformers to take the file as it is."""
        return {"tokenizer_class": "PreTrainedTokenizerFast", "add_prefix_space": self.prefix_space}

    def make_tokenizer(self) -> Tokenizer:
        """Return the tokenizer, without [CLS] and [SEP]."""
        tokenizer = Tokenizer.from_str(self.content.decode())
        tokenizer.no_truncation()
        tokenizer.no_padding()
        tokenizer.encode_special_tokens = True  # means: as text
        return tokenizer


@cache
def _bytes_of_characters() -> dict[str, int]:
    """Return the byte that each character of a token stands for, as GPT-2's code pairs them."""
    shown = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in shown]
    return {**{chr(byte): byte for byte in shown}, **{chr(256 + place): byte for place, byte in enumerate(others)}}


def bytes_of(token: str) -> bytes:
    """Return what a token stands for in text; a character that stands for no byte, as a space, is itself."""
    known = _bytes_of_characters()
    return b"".join(bytes([known[it]]) if it in known else it.encode() for it in token)


def render_tokens(tokens: Iterable[str]) -> str:
    """Return the text of tokens, with a mark for half of a character."""
    return bytes_of("".join(tokens)).decode(errors="replace")


def find_continuations(tokens: Iterable[str], added: frozenset[str]) -> NDArray[np.bool_]:
    """Return for each token whether it continues a word, bool (entries,).

    A word begins with white space, with a punctuation mark or symbol, or with an added token, and at the beginning of a
    text. What else stands behind a token continues its word: letters, digits, and half of a character. added: tokens
    that text is searched for.
    """
    return np.array([token not in added and _continues(bytes_of(token)) for token in tokens], dtype=np.bool_)


def _continues(content: bytes) -> bool:
    text = content.decode(errors="ignore")
    if not text or not content.startswith(text[0].encode()):
        return bool(content)  # half of a character
    return not text[0].isspace() and unicodedata.category(text[0])[0] in "LNM"


def train_byte_bpe(sentences: Iterable[str], *, size: int) -> bytes:
    """Train a vocabulary on text in its normal form C and return the content of ``tokenizer.json``.

    The same text gives the same bytes. size: entries at most, ``MIN_ENTRIES`` or more.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = splitter = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        min_frequency=_MIN_FREQUENCY,
        show_progress=False,
        special_tokens=[_special(token) for token in SPECIAL_TOKENS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(_without_long_words(sentences, splitter), trainer)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[(token, SPECIAL_TOKENS.index(token)) for token in ("[CLS]", "[SEP]")],
    )
    return f"{tokenizer.to_str(pretty=True)}\n".encode()


def _special(token: str) -> AddedToken:
    # As ModernBERT's: where people write [MASK] behind a space, it stands for the word with its space.
    return AddedToken(token, special=True, normalized=False, lstrip=token == "[MASK]")


def _without_long_words(sentences: Iterable[str], splitter: pre_tokenizers.PreTokenizer) -> Iterator[str]:
    """Yield the sentences, with a space for each word of more than ``MAX_WORD_CHARACTERS``."""
    # The trainer's time grows with the square of a word's length, and base64 is one word.
    for sentence in sentences:
        if max(map(len, sentence.split()), default=0) <= MAX_WORD_CHARACTERS:
            yield sentence
        else:
            words = (sentence[start:end] for _, (start, end) in splitter.pre_tokenize_str(sentence))
            yield "".join(word if len(word) <= MAX_WORD_CHARACTERS else " " for word in words)
