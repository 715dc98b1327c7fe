"""Signs that are not drawn: which of Unicode's they are, and what is left alone."""

from __future__ import annotations

import sys
import unicodedata

from bert_job.foreign_text import visible

MARKS_AROUND_NUMBERS = {*range(0x600, 0x606), 0x6DD, 0x70F, 0x890, 0x891, 0x8E2, 0x110BD, 0x110CD}
"""Formats by their category, and drawn nevertheless (Unicode: Prepended_Concatenation_Mark)."""
FILLERS = {0x115F, 0x1160, 0x3164, 0xFFA0}


def test_all_of_unicode_s_controls_and_formats_are_seen_and_nothing_else() -> None:
    hidden = {number for number in range(sys.maxunicode + 1) if visible(chr(number)) != chr(number)}
    categories = {"Cc", "Cf", "Cs", "Zl", "Zp"}
    expected = {number for number in range(sys.maxunicode + 1) if unicodedata.category(chr(number)) in categories}
    expected = expected - MARKS_AROUND_NUMBERS - {ord("\t"), ord("\n")} | FILLERS
    assert expected <= hidden
    # Not assigned yet, in blocks of such signs.
    assert {chr(number) for number in hidden - expected if unicodedata.category(chr(number)) != "Cn"} == set()


def test_each_such_sign_is_one_sign_that_is_drawn() -> None:
    assert visible("a\u202eb\r\n\tc\u00a0d") == "a\ufffdb\ufffd\n\tc\u00a0d"
