"""Byte-level BPE: what its file says is carried out, ids are those of ``tokenizers``, and one is learnt from text.

Observed: ids beside those of the library for the same file, places of tokens, files, messages.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer
from tokenizers.normalizers import NFC

from bert_trainer.dataset.tokens.byte_bpe import find_continuations, train_byte_bpe
from bert_trainer.dataset.tokens.word_cache import WordCache
from bert_trainer.dataset.tokens.wordpiece import Encoder, Vocabulary, read_vocabulary
from bert_trainer.errors import InputError
from bert_trainer.tasks.token_rows import locate_tokens, tokenize_texts
from byte_bpe_files import SAMPLES, hostile_texts, learnt, like_modernbert

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
KINDS: dict[str, dict[str, Any]] = {
    "as ModernBERT": {},
    "prefix space": {"pre_tokenizer": {**BYTE_LEVEL, "add_prefix_space": True}},
    "no normalizer": {"normalizer": None},
    "lower case": {"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Lowercase"}]}},
    "NFKC": {"normalizer": {"type": "NFKC"}},
    "no pattern": {"pre_tokenizer": {**BYTE_LEVEL, "use_regex": False}},
    "digits": {
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [{"type": "Digits", "individual_digits": True}, {**BYTE_LEVEL, "add_prefix_space": True}],
        }
    },
    "own pattern": {
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {
                    "type": "Split",
                    "pattern": {"Regex": r"\p{N}{1,3}|\s*[\r\n]+|\s+(?!\S)|\s+|[^\s\p{N}]+"},
                    "behavior": "Isolated",
                    "invert": False,
                },
                {**BYTE_LEVEL, "use_regex": False},
            ],
        }
    },
    "token with a space": {"added": ({"content": "o c"},)},
    "token that swallows": {"added": ({"content": "<x>", "rstrip": True, "lstrip": True},)},
    "word with a space": {"added": ({"content": " it", "single_word": True},)},
}


def write(folder: Path, document: object) -> Path:
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(document))
    return path


def ids_of_library(path: Path, texts: list[str]) -> list[list[int]]:
    """Return what the library makes of texts whose special tokens are text, each text at once."""
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.encode_special_tokens = True
    return [it.ids for it in tokenizer.encode_batch(texts, add_special_tokens=False)]


def ids_by_words(vocabulary: Vocabulary, texts: list[str]) -> list[list[int]]:
    """Return the ids as a build finds them: by words, of which most were seen before."""
    encoder = Encoder(vocabulary, lower_case=True)
    ids, counts = WordCache(encoder.encode_words, encoder.split, max_words=1000).look_up_texts(texts)
    return [part.tolist() for part in np.split(ids, np.cumsum(counts)[:-1])]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [1000, pytest.param(100_000, marks=pytest.mark.long)])
def test_ids_by_words_are_those_of_tokenizers(tmp_path: Path, kind: str, count: int) -> None:
    path = write(tmp_path, like_modernbert(**KINDS[kind]))
    texts = hostile_texts(count, seed=len(kind))
    expected = ids_of_library(path, texts)
    vocabulary = read_vocabulary(path)
    found = ids_by_words(vocabulary, texts)
    wrong = [(text, ours, theirs) for text, ours, theirs in zip(texts, found, expected, strict=True) if ours != theirs]
    assert not wrong[:1]
    assert Encoder(vocabulary, lower_case=True).encode(texts[:100]) == expected[:100]
    pieces, counts = tokenize_texts(texts[:100], vocabulary, lower_case=True, most_tokens=1 << 20)
    assert np.split(pieces.ids, np.cumsum(counts)[:-1])[50].tolist() == expected[50]


def test_no_text_gives_a_special_token(tmp_path: Path) -> None:
    vocabulary = read_vocabulary(write(tmp_path, like_modernbert()))
    special = {*range(5), vocabulary.tokens.index("<|endoftext|>")}
    for ids in ids_by_words(vocabulary, [*SPECIAL, "a [SEP] b<|endoftext|>", *hostile_texts(500, seed=3)]):
        assert not special & set(ids)


def test_added_tokens_are_found_in_text_as_the_file_says(tmp_path: Path) -> None:
    vocabulary = read_vocabulary(write(tmp_path, like_modernbert()))
    (ids,) = ids_by_words(vocabulary, ["from |||IP_ADDRESS|||    [unused1]"])
    assert [vocabulary.tokens[it] for it in ids][-3:] == ["|||IP_ADDRESS|||", "    ", "[unused1]"]


def test_the_vocabulary_has_every_id_up_to_the_largest(tmp_path: Path) -> None:
    document = like_modernbert()
    entries = document["model"]["vocab"]
    entries |= {it["content"]: it["id"] for it in document["added_tokens"]}
    size = len(entries)
    entries["behind a hole"] = size + 3
    vocabulary = read_vocabulary(write(tmp_path, document))
    assert vocabulary.tokens[size - 1 :] == ("[unused2]", "", "", "", "behind a hole")
    ids = (vocabulary.pad_id, vocabulary.unk_id, vocabulary.cls_id, vocabulary.sep_id, vocabulary.mask_id)
    assert [vocabulary.tokens[it] for it in ids] == list(SPECIAL)


def test_old_merges_are_pairs(tmp_path: Path) -> None:
    document = like_modernbert()
    path = write(tmp_path, document)
    pairs = read_vocabulary(path)
    document["model"]["merges"] = [" ".join(pair) for pair in document["model"]["merges"]]
    texts = hostile_texts(50, seed=1)
    old = read_vocabulary(write(tmp_path, document))
    assert ids_by_words(old, texts) == ids_by_words(pairs, texts)
    assert pairs.settings.agrees_with(old.settings)
    assert old.sha256 != pairs.sha256


@pytest.mark.parametrize("kind", ["as ModernBERT", "prefix space", "digits", "lower case"])
def test_every_token_is_found_where_it_stands(tmp_path: Path, kind: str) -> None:
    path = write(tmp_path, like_modernbert(**KINDS[kind]))
    texts = [*SAMPLES, "e\u0301a  \u00e9\tb", " a", "a ", "", "\u65e5\u672c \u8a9e"]
    found = locate_tokens(texts, read_vocabulary(path), lower_case=True)
    tokenizer = Tokenizer.from_file(str(path))
    for text, start, count in zip(texts, found.starts.tolist(), found.counts.tolist(), strict=True):
        encoding = tokenizer.encode(text, add_special_tokens=False)
        assert found.ids[start : start + count].tolist() == encoding.ids
        bounds = found.bounds[start : start + count].tolist()
        for (first, end), (theirs, their_end) in zip(bounds, encoding.offsets, strict=True):
            part = text[theirs:their_end]
            # Theirs hold the space before a word; ours are the word alone, or nothing of white space.
            assert text[first:end] == part.strip()
            assert first == end or (theirs <= first and end <= their_end)


@pytest.mark.parametrize(
    ("token", "continues"),
    [("the", True), ("\u0120the", False), ("1", True), (".", False), ("'s", False), ("\u010a", False), ("[CLS]", False)]
    # The last byte of a character; a letter of two bytes; half of a quotation mark; a whole one.
    + [("\u0142", True), ("\u00c3\u00a9", True), ("\u00e2\u0122", True), ("\u00e2\u0122\u013e", False)],
)
def test_words_begin_with_spaces_and_punctuation(token: str, continues: bool) -> None:
    assert find_continuations([token, "x"], frozenset("x")).tolist() == [continues, False]


def test_a_learnt_vocabulary_is_the_same_whatever_threads_there_are() -> None:
    code = "import sys; from byte_bpe_files import learnt; sys.stdout.buffer.write(learnt())"  # a new hash seed each
    path = [str(Path(__file__).parents[1] / "support"), *sys.path]
    found = [
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONPATH": ":".join(path), "RAYON_NUM_THREADS": threads, "TOKENIZERS_PARALLELISM": parallel},
            capture_output=True,
            check=True,
        ).stdout
        for threads, parallel in (("1", "false"), ("3", "true"))
    ]
    assert found == [learnt(), learnt()]


def test_a_learnt_vocabulary_knows_every_text(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_bytes(learnt())
    vocabulary = read_vocabulary(path)
    assert vocabulary.tokens[:5] == SPECIAL
    assert vocabulary.size == 900
    texts = hostile_texts(300, seed=9)
    tokenizer = Tokenizer.from_file(str(path))
    for text, ids in zip(texts, ids_by_words(vocabulary, texts), strict=True):
        assert tokenizer.decode(ids) == NFC().normalize_str(text)


def test_words_too_long_to_learn_from_are_left_out_alone() -> None:
    sentences = ["a tale of a tail, tall tales"] * 5
    blob = "xyzw" * 500
    assert train_byte_bpe([f"{it} {blob}" for it in sentences], size=300) == train_byte_bpe(
        [f"{it} " for it in sentences], size=300
    )
    assert b"xyzw" not in train_byte_bpe([f"({blob})"] * 5, size=300)


def _in_model(key: str, value: object) -> Callable[[dict[str, Any]], None]:
    return lambda document: document["model"].__setitem__(key, value)


def _without_mask(document: dict[str, Any]) -> None:
    document["added_tokens"][4]["content"] = "[M]"
    document["model"]["vocab"]["[M]"] = document["model"]["vocab"].pop("[MASK]")


def _far(document: dict[str, Any]) -> None:
    document["model"]["vocab"] |= {it["content"]: it["id"] for it in document["added_tokens"]}
    document["model"]["vocab"]["far"] = 1 << 30


def _merged(document: dict[str, Any]) -> None:
    document["model"]["vocab"] |= {"[S": 2001, "EP": 2002, "EP]": 2003}
    document["model"]["merges"] += [["[", "S"], ["E", "P"], ["EP", "]"], ["[S", "EP]"]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_in_model("byte_fallback", True), "model.byte_fallback: got True; allowed: "),
        (_in_model("dropout", 0.1), "model.dropout: got 0.1; allowed: "),
        (_in_model("continuing_subword_prefix", "##"), "model.continuing_subword_prefix: got '##'"),
        (_in_model("end_of_word_suffix", "</w>"), "model.end_of_word_suffix: got '</w>'"),
        (_in_model("unk_token", "<unk>"), r"model.unk_token: got '<unk>'; allowed: null or '\[UNK\]'"),
        (_in_model("merges", [["no", "such"]]), "model: got the problem Token `.*` out of vocabulary"),
        (_in_model("merges", 3), "model: got the problem data did not match"),
        (_in_model("vocab", {"a": 0, "b": 0}), "added_tokens: the id of|two entries with one id|problem"),
        (_merged, r"model: got the token \[SEP\], made of text; allowed: special tokens that no text gives"),
        (_without_mask, r"tokenizer.json: the vocabulary lacks \[MASK\]\n.*by these names"),
        (lambda it: it.update(normalizer={"type": "Precompiled"}), "normalizer: got 'Precompiled'; allowed: NFC, "),
        (lambda it: it.update(normalizer=["NFC"]), r"normalizer: got \['NFC'\]; allowed: an object"),
        (lambda it: it.update(pre_tokenizer=None), "pre_tokenizer: got the value nothing; allowed: 'ByteLevel'"),
        (lambda it: it.update(pre_tokenizer={"type": "Metaspace"}), "pre_tokenizer: got the parts Metaspace"),
        (lambda it: it.update(post_processor=None), "post_processor: got None; allowed: "),
        (lambda it: it["added_tokens"][3].update(special=False), r"added_tokens: special of \[SEP\]: got False"),
        (lambda it: it["added_tokens"][-1].update(id=7), r"added_tokens: the id of \[unused2\]: got 7; allowed: "),
        (_far, "model.vocab: an id: got 1073741824; allowed: 0 to"),
        (lambda it: it.update(added_tokens=[3]), r"added_tokens: got \[3\]; allowed: a list of objects"),
    ],
)
def test_what_is_not_carried_out_is_named(
    tmp_path: Path, change: Callable[[dict[str, Any]], None], message: str
) -> None:
    document = like_modernbert()
    change(document)
    with pytest.raises(InputError, match=message):
        read_vocabulary(write(tmp_path, document))


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("tokenizer_config.json", {"tokenizer_class": "GPT2Tokenizer"}, "tokenizer_class: got 'GPT2Tokenizer'"),
        ("tokenizer_config.json", {"add_prefix_space": True}, "add_prefix_space: got True; allowed: as in the"),
        ("tokenizer_config.json", {"cls_token": "<s>"}, r"cls_token: got '<s>'; allowed: '\[CLS\]'"),
        ("tokenizer_config.json", {"extra_special_tokens": ["<x>"]}, "extra_special_tokens: got the tokens '<x>'"),
        ("special_tokens_map.json", {"sep_token": "</s>"}, r"sep_token: got '</s>'; allowed: '\[SEP\]'"),
        ("added_tokens.json", {"<x>": 3}, "tokens: got the tokens '<x>'"),
        ("sentence_bert_config.json", {"do_lower_case": True}, "do_lower_case: got True"),
    ],
)
def test_files_beside_it_that_say_otherwise_are_named(
    tmp_path: Path, file: str, content: dict[str, Any], message: str
) -> None:
    path = write(tmp_path, like_modernbert())
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<|endoftext|>", "cls_token": "[CLS]"})
    )
    assert read_vocabulary(path).is_byte_level
    (tmp_path / file).write_text(json.dumps(content))
    with pytest.raises(InputError, match=message):
        read_vocabulary(path)


def test_a_vocab_txt_beside_it_is_another_vocabulary(tmp_path: Path) -> None:
    write(tmp_path, like_modernbert())
    (tmp_path / "vocab.txt").write_text("".join(f"{token}\n" for token in SPECIAL))
    with pytest.raises(InputError, match="the number of entries"):
        read_vocabulary(tmp_path / "vocab.txt")
