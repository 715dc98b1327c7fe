"""How a WordPiece model turns text into tokens: one form, whichever file says it.

``tokenizer_json`` and ``tokenizer_config`` read it, ``wordpiece`` carries it out. The defaults are BERT's own. What
``byte_bpe`` has in its place answers to the same names.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bert_job.foreign_text import printable
from bert_trainer.errors import InputError

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
CONTINUES = "##"
"""Begins a piece that continues a word."""
MAX_WORD_CHARACTERS = 100
"""Characters; a longer word becomes [UNK], as with NVIDIA and Hugging Face. Google's code says 200."""
_REMEDY = (
    "take weights whose tokenizer is BERT's; or, if the setting is wrong or of no account for these weights, correct "
    "the file or take it away"
)


@dataclass(frozen=True, slots=True)
class WordPieceSettings:
    """Tokenization rules that, with the vocabulary, determine the tokens of a text."""

    lower_case: bool | None = None
    """Whether text loses its capitals; None: no file says it."""
    strip_accents: bool | None = None
    """Whether text loses its accents; None: as ``lower_case``."""
    split_chinese: bool = True
    """Whether every Chinese character is a word of its own."""
    clean_text: bool = True
    """Whether control characters are dropped."""
    max_word_characters: int = MAX_WORD_CHARACTERS
    """Characters of a word, at most; a longer one is [UNK]."""

    def drops_accents(self, lower_case: bool) -> bool:
        """Return whether accents are stripped, given whether text is lower-cased."""
        return lower_case if self.strip_accents is None else self.strip_accents

    def plainly(self, lower_case: bool | None) -> WordPieceSettings:
        """Return equivalent settings with the accent rule left to the case rule if possible.

        lower_case: counts where these settings do not say it; None: nobody does.
        """
        case = lower_case if self.lower_case is None else self.lower_case
        goes_without_saying = case is not None and self.strip_accents == case
        return replace(self, lower_case=case, strip_accents=None if goes_without_saying else self.strip_accents)

    def agrees_with(self, other: object) -> bool:
        """Return whether both tokenize alike; settings without a case rule agree with either."""
        return isinstance(other, WordPieceSettings) and self.plainly(other.lower_case) == other.plainly(self.lower_case)

    def splits_like(self, other: object) -> bool:
        """Return whether both tokenize alike but for their case rules."""
        return isinstance(other, WordPieceSettings) and replace(self.plainly(None), lower_case=None) == replace(
            other.plainly(None), lower_case=None
        )

    def describe(self, lower_case: bool) -> str:
        """Describe the settings for people."""
        drops_accents = self.drops_accents(lower_case)
        case = "lower-cased" if lower_case else "cased"
        # What goes without saying is not said: cased text has its accents.
        accents = {(True, True): ", without accents", (True, False): ", with its accents"}
        said = case + accents.get((lower_case, drops_accents), ", without accents" if drops_accents else "")
        said += "" if self.split_chinese else ", Chinese characters joined to words"
        said += "" if self.clean_text else ", control characters kept"
        return said + (
            ""
            if self.max_word_characters == MAX_WORD_CHARACTERS
            else f", words of at most {self.max_word_characters} characters"
        )

    def as_tokenizer_config(self, lower_case: bool | None) -> dict[str, Any]:
        """Return the equivalent keys of ``tokenizer_config.json``."""
        said = {
            "do_lower_case": lower_case,
            "strip_accents": self.strip_accents,
            "tokenize_chinese_chars": self.split_chinese,
        }
        # Of these transformers' class for BERT knows nothing; tokenizer.json has them too.
        said |= {} if self.clean_text else {"clean_text": False}
        return said | (
            {}
            if self.max_word_characters == MAX_WORD_CHARACTERS
            else {"max_input_chars_per_word": self.max_word_characters}
        )


def refusal(path: Path, key: str, got: object, allowed: str, hint: str = _REMEDY) -> InputError:
    """Return the error for an unsupported tokenizer setting."""
    text = got if isinstance(got, str) and got.startswith("the ") else repr(got)
    return InputError(f"{path}: {printable(key)}: got {printable(str(text)[:120])}; allowed: {allowed}", hint=hint)
