"""Vocabularies are learnt the same every time, read strictly, and cut text as BERT does."""

from __future__ import annotations

import base64
import hashlib
import os
import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from bert_trainer.dataset.tokens.word_cache import WordCache
from bert_trainer.dataset.tokens.wordpiece import Encoder, Vocabulary, read_vocabulary, train_vocabulary
from bert_trainer.errors import InputError

SENTENCES = [
    "Unhappy people unfold paper folders.",
    "Happy folding, happy papers!",
    "A zebra (b) folds; q, x.",
] * 3
SPECIAL = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n"


def test_the_same_text_gives_the_same_bytes_in_every_process(tmp_path: Path) -> None:
    program = (
        "import hashlib\nfrom bert_trainer.dataset.tokens.wordpiece import train_vocabulary\n"
        f"content = train_vocabulary({SENTENCES!r}, size=90, lower_case=True)\n"
        "print(hashlib.sha256(content).hexdigest())"
    )
    here = hashlib.sha256(train_vocabulary(SENTENCES, size=90, lower_case=True)).hexdigest()
    environment = {"PYTHONPATH": ":".join(sys.path)}
    for _ in range(2):
        run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment)
        assert run.stdout.strip() == here, run.stderr


@pytest.mark.parametrize("size", [20, 64, 1000])
def test_the_size_is_a_limit_and_special_tokens_come_first(tmp_path: Path, size: int) -> None:
    path = tmp_path / "vocab.txt"
    path.write_bytes(train_vocabulary(SENTENCES, size=size, lower_case=True))
    vocabulary = read_vocabulary(path)
    assert vocabulary.size <= size
    assert vocabulary.tokens[:5] == ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    assert (vocabulary.pad_id, vocabulary.unk_id, vocabulary.cls_id) == (0, 1, 2)
    assert (vocabulary.sep_id, vocabulary.mask_id) == (3, 4)
    assert vocabulary.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("lower_case", [True, False])
def test_a_vocabulary_learns_nothing_from_words_that_become_unknown_anyway(lower_case: bool) -> None:
    long = ["x" * 101, "a" * 40 + "-" + "y" * 101 + "-" + "b" * 40, "\u0439" * 102]
    sentences = [*SENTENCES, *(f"Happy {word} papers" for word in long * 2)]
    without = [*SENTENCES, *("Happy papers", f"Happy {'a' * 40} - - {'b' * 40} papers", "Happy papers") * 2]
    learnt = train_vocabulary(sentences, size=400, lower_case=lower_case)
    assert learnt == train_vocabulary(without, size=400, lower_case=lower_case)
    # As long as a word may be, it counts.
    assert b"\nz" in train_vocabulary(["z" * 100] * 2, size=400, lower_case=lower_case)


def test_a_vocabulary_is_learnt_from_half_a_megabyte_without_a_space(tmp_path: Path) -> None:
    texts = ["a" * (1 << 19), "ACGT" * (1 << 17), base64.b64encode(random.Random(1).randbytes(3 << 17)).decode()]
    path = tmp_path / "text.txt"
    path.write_text("\n".join([*texts, "a word"]))
    # In a process of its own: the trainer is compiled and hears no signal. Quadratic, it took 5 s for 65,536 letters,
    # which makes five minutes for each of these; the deadline is for machines that are busy.
    program = (
        "import sys\nfrom bert_trainer.dataset.tokens.wordpiece import train_vocabulary\n"
        "print(len(train_vocabulary(open(sys.argv[1]).read().split('\\n'), size=300, lower_case=True)))"
    )
    environment = {"PYTHONPATH": ":".join(sys.path)}
    command = [sys.executable, "-c", program, str(path)]
    run = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
    assert run.returncode == 0, run.stderr


def test_text_is_cut_into_the_longest_known_pieces(tmp_path: Path) -> None:
    path = tmp_path / "vocab.txt"
    path.write_text(SPECIAL + "un\n##happy\nhappy\n##h\n,\ncafe\n[\n]\nsep\n")
    vocabulary = read_vocabulary(path)
    encoded = Encoder(vocabulary, lower_case=True).encode(
        ["Unhappy, caf\u00e9 UNKNOWN", "a literal [SEP]", "\u4e2d\u6587", "happy" * 21, "\u0000"]
    )
    tokens = [[vocabulary.tokens[token] for token in sentence] for sentence in encoded]
    assert tokens == [
        ["un", "##happy", ",", "cafe", "[UNK]"],
        ["[UNK]", "[UNK]", "[", "sep", "]"],
        ["[UNK]", "[UNK]"],
        ["[UNK]"],
        [],
    ]


def test_a_word_of_a_hundred_characters_is_cut_and_a_longer_one_is_unknown(tmp_path: Path) -> None:
    path = tmp_path / "vocab.txt"
    path.write_text(SPECIAL + "a\n##a\n")
    encoder = Encoder(read_vocabulary(path), lower_case=True)
    assert encoder.encode(["a" * 100, "a" * 101]) == [[5] + [6] * 99, [1]]


def test_cased_vocabularies_keep_case_and_accents(tmp_path: Path) -> None:
    path = tmp_path / "vocab.txt"
    path.write_text(SPECIAL + "Caf\u00e9\ncafe\n")
    vocabulary = read_vocabulary(path)
    assert Encoder(vocabulary, lower_case=False).encode(["Caf\u00e9"]) == [[5]]
    assert Encoder(vocabulary, lower_case=True).encode(["Caf\u00e9"]) == [[6]]


def test_encoding_agrees_with_an_independent_implementation(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers.models.bert.tokenization_bert_legacy")
    path = tmp_path / "vocab.txt"
    path.write_bytes(train_vocabulary(SENTENCES, size=60, lower_case=True))
    theirs = transformers.BertTokenizerLegacy(str(path))
    expected = [theirs.convert_tokens_to_ids(theirs.tokenize(sentence)) for sentence in SENTENCES]
    assert Encoder(read_vocabulary(path), lower_case=True).encode(SENTENCES) == expected


ANYTHING = st.text(
    st.one_of(
        st.sampled_from("aB\u00e9\u0301\u4e2d\u3042 \t\r\u00a0\u2003\u200b\x1c\x00\ufffd#[]\u03a3.,-'\U0001f600"),
        st.characters(exclude_categories=("Cs",)),
    ),
    max_size=60,
)


@settings(max_examples=300)
@given(sentences=st.lists(ANYTHING, max_size=8), lower_case=st.booleans())
def test_words_looked_up_are_what_the_tokenizer_makes_of_the_sentence(sentences: list[str], lower_case: bool) -> None:
    # Wrong encodings, controls, marks without a letter, scripts without spaces: only a space is a cut.
    ids = {token: number for number, token in enumerate([*SPECIAL.split(), *"abcdefg\u00e9\u4e2d#[].,", "##a", "##b"])}
    vocabulary = Vocabulary(tuple(ids), "0" * 64, 0, 1, 2, 3, 4)
    encoder = Encoder(vocabulary, lower_case=lower_case)
    cache = WordCache(encoder.encode_words, max_words=5)
    expected = encoder.encode(sentences)
    for _ in range(2):
        for sentence, tokens in zip(sentences, expected, strict=True):
            found, counts = cache.look_up(sentence.split(" "))
            assert found.tolist() == tokens
            assert counts.sum() == len(tokens)


def test_a_cache_forgets_and_counts_what_it_has_not_seen() -> None:
    computed: list[list[str]] = []

    def lengths(words: Sequence[str]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        computed.append(list(words))
        return np.array([len(word) for word in words], dtype=np.int64), np.ones(len(words), dtype=np.int64)

    cache = WordCache(lengths, max_words=3)
    assert cache.look_up(["a", "bb", "a"])[0].tolist() == [1, 2, 1]
    assert cache.look_up(["bb", "ccc", "dddd"])[0].tolist() == [2, 3, 4]
    assert cache.look_up(["a"])[0].tolist() == [1]
    assert [words for words in computed if words] == [["a", "bb"], ["ccc", "dddd"], ["a"]]
    assert (cache.hit_rate.words, cache.hit_rate.unseen) == (7, 5)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "the vocabulary is empty"),
        ("[PAD]\n[UNK]\n[CLS]\na\n", r"the vocabulary lacks \[SEP\], \[MASK\]"),
        (SPECIAL + "a\nb\na\n", "the vocabulary has the token 'a' on lines 6, 8"),
        (SPECIAL + "\na\n", "line 6 of the vocabulary is empty"),
    ],
    ids=["empty", "no special tokens", "twice", "empty line"],
)
def test_a_wrong_vocabulary_says_what_is_missing(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "vocab.txt"
    path.write_text(content)
    with pytest.raises(InputError, match=rf"vocab\.txt: {message}"):
        read_vocabulary(path)


def test_a_vocabulary_that_is_missing_or_not_text_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"none\.txt: cannot read the vocabulary [\s\S]*hint: a run that prepares data"
    ):
        read_vocabulary(tmp_path / "none.txt")
    (tmp_path / "bytes.txt").write_bytes(b"[PAD]\n\xff\xfe\n")
    with pytest.raises(InputError, match=r"bytes\.txt: the vocabulary is not UTF-8 at byte offset 6"):
        read_vocabulary(tmp_path / "bytes.txt")


@pytest.mark.parametrize(
    ("content", "got"),
    [(b"x" * (16 << 20) + b"\n", "more than 16777216 bytes"), (b"x\n" * 1_100_000, "1100000 lines")],
    ids=["bytes", "lines"],
)
def test_a_file_larger_than_any_vocabulary_is_refused(tmp_path: Path, content: bytes, got: str) -> None:
    path = tmp_path / "vocab.txt"
    path.write_bytes(content)
    with pytest.raises(InputError) as error:
        read_vocabulary(path)
    assert str(error.value).startswith(f"{path}: got {got}; allowed: a vocabulary, of at most 1048576 entries\n")


def test_windows_line_ends_are_no_part_of_tokens(tmp_path: Path) -> None:
    path = tmp_path / "vocab.txt"
    path.write_bytes((SPECIAL + "a\n").replace("\n", "\r\n").encode())
    assert read_vocabulary(path).tokens[-1] == "a"


def test_empty_lines_at_the_end_are_no_tokens(tmp_path: Path) -> None:
    path = tmp_path / "vocab.txt"
    path.write_text(SPECIAL + "a\n\n\n")
    assert read_vocabulary(path).tokens[-1] == "a"


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "vocab.txt")
    with pytest.raises(InputError, match=r"vocab.txt: cannot read the vocabulary \(a pipe\); allowed: a file"):
        read_vocabulary(tmp_path / "vocab.txt")
