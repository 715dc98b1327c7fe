"""What files beside a vocabulary say of how text is split is carried out, or refused by the name of the setting.

Inputs: ``vocab.txt``, ``tokenizer_config.json``, ``tokenizer.json`` and their kin. Observed: tokens, ids, messages.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import BertTokenizer, PreTrainedTokenizerFast

from bert_job.run_config import DatasetConfig
from bert_job.run_stages import PrepareStage
from bert_trainer.dataset.build.pipeline import build_dataset
from bert_trainer.dataset.tokens.wordpiece import Encoder, read_vocabulary
from bert_trainer.dataset.tokens.wordpiece_settings import WordPieceSettings
from bert_trainer.errors import InputError
from silent import Silent

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
WORDS = (*SPECIAL, "bar", "b\u00e4r", "Bar", "B\u00e4r", "\u4e2d", "##\u6587", "\u6587", "##bar", "a", "##a")
TEXT = "B\u00e4r B\u00e4rbar \u4e2d\u6587 a\u0007bar aaaa"


def write_words(folder: Path, words: tuple[str, ...] = WORDS) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / "vocab.txt"
    path.write_text("".join(f"{word}\n" for word in words))
    return path


def write_json(path: Path, document: object) -> None:
    path.write_text(json.dumps(document))


def tokens_of(path: Path, text: str = TEXT) -> list[str]:
    vocabulary = read_vocabulary(path)
    (ids,) = Encoder(vocabulary, lower_case=bool(vocabulary.settings.lower_case)).encode([text])
    return [vocabulary.tokens[number] for number in ids]


def tokenizer_file(**normalizer: Any) -> dict[str, Any]:
    """Return a ``tokenizer.json`` of the words, as transformers writes it for a BERT."""
    ids = {word: number for number, word in enumerate(WORDS)}
    tokenizer = Tokenizer(models.WordPiece(ids, unk_token="[UNK]"))
    known = {"clean_text": True, "handle_chinese_chars": True, "strip_accents": None, "lowercase": True}
    tokenizer.normalizer = normalizers.BertNormalizer(**{**known, **normalizer})
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    tokenizer.add_special_tokens(list(SPECIAL))
    found: dict[str, Any] = json.loads(tokenizer.to_str())
    return found


@pytest.mark.parametrize("lower_case", [True, False])
@pytest.mark.parametrize("strip_accents", [True, False, None])
@pytest.mark.parametrize("chinese", [True, False])
def test_tokens_are_those_of_transformers(
    tmp_path: Path, lower_case: bool, strip_accents: bool | None, chinese: bool
) -> None:
    path = write_words(tmp_path)
    said = {"do_lower_case": lower_case, "strip_accents": strip_accents, "tokenize_chinese_chars": chinese}
    write_json(tmp_path / "tokenizer_config.json", {"tokenizer_class": "BertTokenizer", **said})
    assert tokens_of(path) == BertTokenizer(vocab=str(path), **said).tokenize(TEXT)


@pytest.mark.parametrize(
    "settings",
    [{}, {"lowercase": False}, {"strip_accents": False}, {"handle_chinese_chars": False}, {"clean_text": False}],
    ids=str,
)
def test_a_tokenizer_json_alone_is_vocabulary_and_settings(tmp_path: Path, settings: dict[str, bool]) -> None:
    path = tmp_path / "tokenizer.json"
    write_json(path, tokenizer_file(**settings))
    assert read_vocabulary(path).tokens == WORDS
    assert tokens_of(path) == Tokenizer.from_file(str(path)).encode(TEXT, add_special_tokens=False).tokens
    assert read_vocabulary(path).sha256 == read_vocabulary(write_words(tmp_path / "lines")).sha256


def test_what_transformers_saves_is_read(tmp_path: Path) -> None:
    theirs = BertTokenizer(vocab=str(write_words(tmp_path)), do_lower_case=False, strip_accents=True)
    theirs.save_pretrained(tmp_path / "saved")
    assert not (tmp_path / "saved" / "vocab.txt").exists()
    assert tokens_of(tmp_path / "saved" / "tokenizer.json") == theirs.tokenize(TEXT)
    raw = PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(json.dumps(tokenizer_file(lowercase=False))))
    raw.save_pretrained(tmp_path / "raw")
    assert tokens_of(tmp_path / "raw" / "tokenizer.json") == raw.tokenize(TEXT)


def test_a_word_s_length_and_no_normalizer_are_heeded(tmp_path: Path) -> None:
    document = tokenizer_file()
    document["model"]["max_input_chars_per_word"] = 3
    document["normalizer"] = None
    write_json(tmp_path / "tokenizer.json", document)
    theirs = Tokenizer.from_file(str(tmp_path / "tokenizer.json")).encode(TEXT, add_special_tokens=False)
    assert tokens_of(tmp_path / "tokenizer.json") == theirs.tokens
    assert read_vocabulary(tmp_path / "tokenizer.json").settings.max_word_characters == 3


def test_truncation_and_padding_are_not_heeded(tmp_path: Path) -> None:
    document = tokenizer_file()
    document["truncation"] = {"max_length": 2, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}
    document["padding"] = {"strategy": {"Fixed": 9}, "direction": "Right", "pad_id": 0, "pad_token": "[PAD]"}
    write_json(tmp_path / "tokenizer.json", document)
    assert tokens_of(tmp_path / "tokenizer.json", "bar bar bar") == ["bar"] * 3


@pytest.mark.parametrize(
    ("file", "document", "complaint"),
    [
        ("tokenizer_config.json", {"do_lower_case": "no"}, "do_lower_case: got 'no'; allowed: true or false"),
        ("tokenizer_config.json", {"do_basic_tokenize": False}, "do_basic_tokenize: got False; allowed: True"),
        ("tokenizer_config.json", {"unk_token": "<unk>"}, "unk_token: got '<unk>'; allowed: '[UNK]'"),
        ("tokenizer_config.json", {"never_split": ["bar"]}, "never_split: got the tokens 'bar'; allowed: [PAD]"),
        ("tokenizer_config.json", {"truncation_side": "left"}, "truncation_side: got 'left'; allowed: 'right'"),
        ("tokenizer_config.json", {"additional_special_tokens": ["<e>"]}, "got the tokens '<e>'"),
        ("tokenizer_config.json", {"extra_special_tokens": {"entity_token": "<e>"}}, "got the tokens '<e>'"),
        ("tokenizer_config.json", {"added_tokens_decoder": {"15": {"content": "covid"}}}, "got the tokens 'covid'"),
        ("tokenizer_config.json", {"added_tokens_decoder": {"0": {"content": "[CLS]"}}}, "the id of [CLS]: got 0"),
        ("tokenizer_config.json", {"tokenizer_class": "BertJapaneseTokenizer"}, "got 'BertJapaneseTokenizer'"),
        ("tokenizer_config.json", {"word_tokenizer_type": "mecab"}, "word_tokenizer_type: got 'mecab'"),
        ("tokenizer_config.json", {"auto_map": {"AutoTokenizer": ["own.Tokenizer", None]}}, "auto_map: got {"),
        ("special_tokens_map.json", {"mask_token": {"content": "<mask>"}}, "mask_token: got '<mask>'"),
        ("added_tokens.json", {"covid": 15}, "tokens: got the tokens 'covid'"),
    ],
)
def test_a_setting_that_is_not_carried_out_is_refused_by_name(
    tmp_path: Path, file: str, document: dict[str, object], complaint: str
) -> None:
    path = write_words(tmp_path)
    write_json(tmp_path / file, document)
    with pytest.raises(InputError) as error:
        read_vocabulary(path)
    assert f"{tmp_path / file}: " in str(error.value)
    assert complaint in str(error.value)
    assert "hint: " in str(error.value)


@pytest.mark.parametrize(
    ("part", "value", "complaint"),
    [
        ("model.type", "Unigram", "model.type: got 'Unigram'; allowed: 'WordPiece' or 'BPE'"),
        ("model.type", ["BPE"], "model.type: got ['BPE']; allowed: 'WordPiece'"),
        ("model.type", "Unigram", "model.type: got 'Unigram'; allowed: 'WordPiece'"),
        ("model.type", [], "model.type: got []; allowed: 'WordPiece'"),
        ("model.vocab.\ud800", 15, "model.vocab: entry 15: got '\\ud800'; allowed: what a line of vocab.txt can hold"),
        ("model.vocab. x", 15, "model.vocab: entry 15: got ' x'; allowed: what a line of vocab.txt can hold"),
        ("model.vocab", [], "model.vocab: got []; allowed: an object"),
        ("post_processor.special_tokens", 3, "post_processor.special_tokens: got 3; allowed: an object"),
        ("added_tokens", {"a": 1}, "added_tokens: got {'a': 1}; allowed: a list of objects"),
        ("model.unk_token", "<unk>", "model.unk_token: got '<unk>'"),
        ("model.continuing_subword_prefix", "@@", "model.continuing_subword_prefix: got '@@'; allowed: '##'"),
        ("model.vocab.bar", 99, "model.vocab: the id of 'bar': got 99; allowed: 0 to 14"),
        ("normalizer", {"type": "NFKC"}, "normalizer: got 'NFKC'; allowed: 'BertNormalizer'"),
        (
            "normalizer",
            {"type": "Sequence", "normalizers": [{"type": "NFD"}, {"type": "Lowercase"}]},
            "normalizer: got 'Sequence of NFD, Lowercase'",
        ),
        ("normalizer.replace", "a", "normalizer.replace: got 'a'"),
        ("pre_tokenizer", {"type": "Whitespace"}, "pre_tokenizer: got 'Whitespace'; allowed: 'BertPreTokenizer'"),
        ("post_processor", None, "post_processor: got None; allowed: [CLS] A [SEP]"),
        ("truncation", {"direction": "Left"}, "truncation.direction: got 'Left'"),
        ("added_tokens", [{"id": 15, "content": "covid"}], "added_tokens: got the tokens 'covid'"),
    ],
)
def test_a_part_of_a_tokenizer_json_that_is_not_carried_out_is_refused_by_name(
    tmp_path: Path, part: str, value: object, complaint: str
) -> None:
    document = tokenizer_file()
    *parents, last = part.split(".")
    node = document
    for parent in parents:
        node = node[parent]
    node[last] = value
    write_json(tmp_path / "tokenizer.json", document)
    with pytest.raises(InputError) as error:
        read_vocabulary(tmp_path / "tokenizer.json")
    assert f"{tmp_path / 'tokenizer.json'}: " in str(error.value)
    assert complaint in str(error.value)
    assert "hint: " in str(error.value)


def test_two_vocabularies_beside_each_other_have_to_be_one(tmp_path: Path) -> None:
    write_json(tmp_path / "tokenizer.json", tokenizer_file())
    path = write_words(tmp_path)
    assert read_vocabulary(path).tokens == WORDS
    write_words(tmp_path, (*WORDS[:5], "bahn", *WORDS[6:]))
    with pytest.raises(InputError, match=r"entry 5: got 'bar'; allowed: 'bahn', the entries of the vocab.txt"):
        read_vocabulary(path)


def test_of_two_settings_the_one_that_transformers_class_takes_counts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_json(tmp_path / "tokenizer.json", tokenizer_file())
    config, path = tmp_path / "tokenizer_config.json", write_words(tmp_path)
    write_json(config, {"tokenizer_class": "BertTokenizer", "do_lower_case": False})
    assert read_vocabulary(path).settings == WordPieceSettings(lower_case=False)
    assert f"{config}: do_lower_case: False counts; tokenizer.json beside it says True" in caplog.text
    write_json(config, {"tokenizer_class": "PreTrainedTokenizerFast", "do_lower_case": False})
    with pytest.raises(InputError, match=r"do_lower_case: got False; allowed: True, as tokenizer.json says"):
        read_vocabulary(path)


def test_a_sentence_encoder_s_own_lower_case_counts(tmp_path: Path) -> None:
    path = write_words(tmp_path)
    write_json(tmp_path / "sentence_bert_config.json", {"max_seq_length": 9, "do_lower_case": True})
    assert read_vocabulary(path).settings.lower_case is True
    write_json(tmp_path / "tokenizer_config.json", {"do_lower_case": False})
    with pytest.raises(InputError, match=r"sentence_bert_config.json: do_lower_case: got True; allowed: false"):
        read_vocabulary(path)


def test_notes_that_change_no_token_are_no_trouble(tmp_path: Path) -> None:
    path = write_words(tmp_path)
    notes = {
        "model_max_length": 512,
        "padding_side": "right",
        "name_or_path": "x",
        "never_split": None,
        "bos_token": None,
        "max_len_single_sentence": 510,
        "max_seq_length": 512,
        "model_type": "bert",
    }
    more = {"additional_special_tokens": [], "something": False, "cls_token": {"content": "[CLS]", "lstrip": False}}
    write_json(tmp_path / "tokenizer_config.json", {"do_lower_case": True, **notes, **more})
    assert read_vocabulary(path).said == WordPieceSettings(lower_case=True)


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_entries_of_white_space_and_a_byte_order_mark_leave_ids_as_they_are(
    tmp_path: Path, mark: str, end: str
) -> None:
    # As in Google's vocabulary for Chinese, whose entry 343 is U+2028.
    words = (*SPECIAL, "a", "\u2028", "\u00a0", "\u3000", "\x85", "\u2028b", "c")
    path = tmp_path / "vocab.txt"
    path.write_bytes((mark + "".join(f"{word}{end}" for word in words)).encode())
    vocabulary = read_vocabulary(path)
    assert vocabulary.tokens == words
    assert Encoder(vocabulary, lower_case=True).encode(["a c"]) == [[5, 11]]


@pytest.mark.parametrize(
    ("one", "other", "agree"),
    [
        ({"lower_case": False, "strip_accents": False}, {"lower_case": False}, True),
        ({"lower_case": True, "strip_accents": True}, {"lower_case": True}, True),
        ({"lower_case": True}, {}, True),
        ({"strip_accents": False}, {"lower_case": False}, True),
        ({"lower_case": True, "strip_accents": False}, {"lower_case": True}, False),
        ({"lower_case": True, "strip_accents": False}, {}, False),
        ({"lower_case": True}, {"lower_case": False}, False),
        ({"lower_case": True}, {"lower_case": True, "split_chinese": False}, False),
    ],
)
def test_what_goes_with_the_case_need_not_be_said(one: dict[str, bool], other: dict[str, bool], agree: bool) -> None:
    assert WordPieceSettings(**one).agrees_with(WordPieceSettings(**other)) == agree
    assert WordPieceSettings(**other).agrees_with(WordPieceSettings(**one)) == agree


def test_a_dataset_stays_what_it_is_where_its_cased_tokenizer_says_that_accents_stay(tmp_path: Path) -> None:
    # As KB-BERT's does; a release that did not read the file has built the same.
    path = write_words(tmp_path / "words")
    (tmp_path / "a.txt").write_text("a Bar.\na a Bar bar.\n\n" * 40)
    stage = PrepareStage(
        text=str(tmp_path / "a.txt"), lower_case=False, num_shards=1, held_out_fraction=0, max_unknown_share=1
    )
    dataset = DatasetConfig(folder=str(tmp_path / "data"), vocabulary_file=str(path))
    before = build_dataset(stage, dataset, [(32, 5)], Silent())
    write_json(path.parent / "tokenizer_config.json", {"do_lower_case": False, "strip_accents": False})
    assert build_dataset(stage, dataset, [(32, 5)], Silent()).settings == before.settings
    write_json(path.parent / "tokenizer_config.json", {"do_lower_case": False, "strip_accents": True})
    with pytest.raises(InputError, match="tokenizer: was None, is strip_accents True"):
        build_dataset(stage, dataset, [(32, 5)], Silent())


def test_settings_are_no_part_of_the_vocabulary_s_digest(tmp_path: Path) -> None:
    path = write_words(tmp_path)
    before = read_vocabulary(path)
    write_json(tmp_path / "tokenizer_config.json", {"strip_accents": False})
    assert replace(read_vocabulary(path), said=None) == before
