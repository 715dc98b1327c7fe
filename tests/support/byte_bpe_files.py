"""Files of byte-level BPE: learnt from a page of text, and with what ModernBERT's has besides."""

from __future__ import annotations

import json
import random
from functools import cache
from pathlib import Path
from typing import Any

from bert_trainer.dataset.tokens.byte_bpe import train_byte_bpe

_PAGE = Path(__file__).parents[2] / "docs/concepts/data-build.md"
SAMPLES = (
    "Ein Bär läßt grüßen, isn't it? It's 1234 o'clock; they'll've gone.",
    "日本語の文章です。中文也在這裡。한국어 문장.",
    "שלום עולם \u202eabc\u202c مرحبا بالعالم",
    "नमस्ते दुनिया ไทยแลนด์ 👩\u200d👩\u200d👧\u200d👦 🏳️\u200d🌈 é e\u0301 ﬁ Å Å",
)
_ENDS = ("[SEP]", "[CLS]", "[MASK]", "[PAD]", "[UNK]", "<|endoftext|>", "|||IP_ADDRESS|||", "[unused0]", "x  y", "<x>")
_SPACES = (" ", "  ", "   ", "\n", "\n\n", "\t", "\r\n", "\x0b", "\x1c", "\x85", "\u00a0", "\u180e", "\u200b", "\u2028")
_MARKS = (
    "\u0301",
    "\u0308",
    "\u0345",
    "\u05b0",
    "\u093f",
    "\u200d",
    "\ufe0f",
    "\u202e",
    "\x00",
    "\x00\x00",
    "'s",
    "'t",
)


@cache
def learnt(size: int = 900) -> bytes:
    """Return the content of a vocabulary's file."""
    return train_byte_bpe([*_PAGE.read_text().split("\n"), *SAMPLES * 3], size=size)


def like_modernbert(added: tuple[dict[str, Any], ...] = (), **parts: Any) -> dict[str, Any]:
    """Return a file with special tokens that no row has, runs of spaces, and a token for addresses.

    added: further added tokens. parts: what replaces parts of it.
    """
    document: dict[str, Any] = json.loads(learnt())
    wanted = [{"content": " " * width, "normalized": True} for width in (24, 8, 4, 3, 2)]
    wanted += [{"content": "|||IP_ADDRESS|||"}, {"content": "<|endoftext|>", "special": True}]
    wanted += [{"content": f"[unused{number}]"} for number in range(3)]
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False}
    first = len(document["model"]["vocab"])
    document["added_tokens"] += [
        {"id": first + number, **plain, **token} for number, token in enumerate([*wanted, *added])
    ]
    return {**document, **parts}


def hostile_texts(count: int, seed: int) -> list[str]:
    """Return texts of all planes of Unicode, lone marks, white space of all kinds and special tokens as text."""
    rng = random.Random(seed)
    words = [word for text in SAMPLES for word in text.split(" ")] + _PAGE.read_text().split()[:400]

    def part() -> str:
        draw = rng.random()
        if draw < 0.35:
            return " " + rng.choice(words)
        if draw < 0.5:
            return rng.choice(_SPACES) * rng.choice((1, 1, 1, 2, 3, 7, 30))
        if draw < 0.65:
            return rng.choice(_MARKS)
        if draw < 0.75:
            return rng.choice(("", " ", "\t")) + rng.choice(_ENDS)
        if draw < 0.8:
            return str(rng.randrange(10 ** rng.randrange(1, 12)))
        if draw < 0.81:
            return rng.choice("ab\u4e2d.\u00e9") * rng.randrange(200, 2000)
        highest = rng.choice((0x80, 0x800, 0x3100, 0x10000, 0x110000))
        numbers = (rng.randrange(highest) for _ in range(rng.randrange(1, 4)))
        return "".join(chr(it) for it in numbers if not 0xD800 <= it < 0xE000)

    return ["".join(part() for _ in range(rng.randrange(0, 12))) for _ in range(count)]
