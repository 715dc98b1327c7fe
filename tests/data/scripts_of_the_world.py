"""Text in scripts with thousands of characters, as often each as in real text; made here, from a seed.

Characters are those of national standards, which Python's codecs hold. How often each comes follows counts of modern
text: of Chinese, the 100 commonest characters are 42 % of it, the 1,000 commonest 89 %, the 3,000 commonest 99.2 % (Da,
"Modern Chinese Character Frequency List", 2004).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

_RANKS = (0, 100, 500, 1000, 1500, 2000, 3000, 4000, 6000, 12000)
_SHARES = (0.0, 0.42, 0.758, 0.891, 0.946, 0.971, 0.992, 0.9975, 0.9995, 1.0)
_KANA = [chr(code) for code in range(0x3041, 0x3094)]
_ARABIC = "\u0627\u0644\u064a\u0645\u0648\u0646\u0631\u062a\u0628\u0629\u0639\u062f\u0633\u0641\u0647\u0643\u0642"
_ARABIC += (
    "\u0623\u062d\u062c\u0634\u0635\u0649\u062e\u0625\u0637\u0632\u0636\u0630\u062b\u0621\u063a\u0626\u0638\u0624\u0622"
)


def characters(codec: str, first_row: int, last_row: int) -> list[str]:
    """Return the characters of some rows of a 94 x 94 table, in the table's order."""
    found = []
    for row in range(first_row, last_row + 1):
        for cell in range(1, 95):
            try:
                found.append(bytes([0xA0 + row, 0xA0 + cell]).decode(codec))
            except UnicodeDecodeError:
                continue
    return found


def chinese(num_characters: int, seed: int = 0) -> list[list[str]]:
    """Return documents of 20 sentences in 3,755 characters and more: both levels of GB 2312."""
    rng = np.random.default_rng(seed)
    return _documents(_joined(_draw(_HAN, num_characters, rng), rng, (12, 48)), "\u3002")


def japanese(num_characters: int, seed: int = 0) -> list[list[str]]:
    """Return the same of kanji (JIS X 0208) between runs of kana."""
    rng = np.random.default_rng(seed)
    kanji = _draw(characters("euc_jp", 16, 84), num_characters // 2, rng)
    kana = rng.choice(_KANA, num_characters)
    pieces, used = [], 0
    for start in range(0, len(kanji), 2):
        length = int(rng.integers(1, 5))
        pieces.append("".join(kanji[start : start + 2]) + "".join(kana[used : used + length]))
        used += length
    return _documents(_joined(pieces, rng, (4, 16)), "\u3002")


def korean(num_characters: int, seed: int = 0) -> list[list[str]]:
    """Return the same of words of two to four of 2,350 syllables (KS X 1001)."""
    rng = np.random.default_rng(seed)
    words = _joined(_draw(characters("euc_kr", 16, 40), num_characters, rng), rng, (2, 5))
    return _documents(_joined(words, rng, (5, 20), " "), ".")


def arabic(num_characters: int, seed: int = 0) -> list[list[str]]:
    """Return the same of words of two to eight letters."""
    rng = np.random.default_rng(seed)
    weights = 1 / np.arange(1, len(_ARABIC) + 1)
    words = _joined(rng.choice(list(_ARABIC), num_characters, p=weights / weights.sum()), rng, (2, 9))
    return _documents(_joined(words, rng, (5, 20), " "), ".")


def mixed(num_characters: int, seed: int = 0) -> list[list[str]]:
    """Return documents of all four."""
    share = num_characters // 4
    several = [make(share, seed + number) for number, make in enumerate((chinese, japanese, korean, arabic))]
    return [document for documents in several for document in documents]


def _draw(alphabet: list[str], count: int, rng: np.random.Generator) -> np.ndarray:
    covered = np.interp(np.arange(len(alphabet) + 1), _RANKS, _SHARES)
    weights = np.diff(covered)
    # Standards order their characters by sound or shape: which ones are common is drawn, once for all texts.
    shuffled = np.random.default_rng(1).permutation(alphabet)
    return rng.choice(shuffled, count, p=weights / weights.sum())


def _joined(pieces: Sequence[str], rng: np.random.Generator, counts: tuple[int, int], between: str = "") -> list[str]:
    """Join pieces, by random counts from the first to below the second."""
    found, start = [], 0
    while start < len(pieces):
        end = start + int(rng.integers(*counts))
        found.append(between.join(pieces[start:end]))
        start = end
    return found


def _documents(sentences: list[str], end: str) -> list[list[str]]:
    return [[f"{it}{end}" for it in sentences[start : start + 20]] for start in range(0, len(sentences), 20)]


_HAN = characters("gb2312", 16, 87)
