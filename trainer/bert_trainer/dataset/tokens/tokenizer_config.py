"""What the files of a tokenizer beside a vocabulary say of how text becomes tokens.

``tokenizer_config.json``, ``special_tokens_map.json`` and ``added_tokens.json`` of transformers, sentence-transformers'
``sentence_bert_config.json``, and ``tokenizer.json``. Each setting is carried out, refused by name, or known to change
no token. Where two files say something else, ``tokenizer_config.json`` counts, as with transformers' classes for BERT;
its class that takes ``tokenizer.json`` as it is leaves it no such word, and a contradiction is refused.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from bert_trainer.config.json_files import read_json_file
from bert_trainer.dataset.tokens.byte_bpe import ByteBpe
from bert_trainer.dataset.tokens.tokenizer_json import TOKENIZER_FILE, TokenizerFile, check_added, read_tokenizer_json
from bert_trainer.dataset.tokens.wordpiece_settings import CONTINUES, SPECIAL_TOKENS, WordPieceSettings, refusal

logger = logging.getLogger(__name__)

CONFIG_FILE = "tokenizer_config.json"
_MAP_FILE, _ADDED_FILE, _SENTENCES_FILE = "special_tokens_map.json", "added_tokens.json", "sentence_bert_config.json"
ROLES: Mapping[str, str] = MappingProxyType(
    dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), SPECIAL_TOKENS, strict=True))
)
"""What transformers calls the special tokens."""
# A key, our field, and whether nothing may be said.
_HEEDED: Mapping[str, tuple[str, bool]] = MappingProxyType(
    {
        "do_lower_case": ("lower_case", True),
        "lowercase": ("lower_case", True),
        "strip_accents": ("strip_accents", True),
        "tokenize_chinese_chars": ("split_chinese", False),
        "handle_chinese_chars": ("split_chinese", False),
        "clean_text": ("clean_text", False),
    }
)
_MAX_WORD_KEY = "max_input_chars_per_word"
_FIXED: Mapping[str, object] = MappingProxyType(
    {
        "do_basic_tokenize": True,
        "truncation_side": "right",
        "wordpieces_prefix": CONTINUES,
        "continuing_subword_prefix": CONTINUES,
    }
)
_AS_FILE_SAYS = ("PreTrainedTokenizerFast", "TokenizersBackend")
_CLASSES = (
    *("BertTokenizer", "BertTokenizerFast", "DistilBertTokenizer", "DistilBertTokenizerFast"),
    *("ElectraTokenizer", "ElectraTokenizerFast", "PreTrainedTokenizer", *_AS_FILE_SAYS),
)
# Lists or maps of tokens that text is searched for.
_TOKENS = ("additional_special_tokens", "extra_special_tokens", "never_split", "added_tokens_decoder")
_OTHER_ROLES = ("bos_token", "eos_token")
# What changes no token of a text: names and paths, lengths (rows have the job's), padding, and how tokens are printed.
_OF_NO_ACCOUNT = frozenset(
    {
        *("name_or_path", "_name_or_path", "special_tokens_map_file", "tokenizer_file", "vocab_file", "cache_dir"),
        *("model_max_length", "max_len", "max_length", "max_seq_length", "max_model_input_sizes"),
        *("max_len_single_sentence", "max_len_sentences_pair", "stride", "truncation", "truncation_strategy"),
        *("padding", "padding_side", "pad_to_multiple_of", "pad_token_type_id", "model_input_names"),
        *("return_token_type_ids", "return_attention_mask", "return_tensors", "add_special_tokens"),
        *("clean_up_tokenization_spaces", "chat_template", "processor_class", "backend", "is_local", "from_slow"),
        *("local_files_only", "use_fast", "use_auth_token", "token", "trust_remote_code", "revision", "_commit_hash"),
        *(
            "transformers_version",
            "_from_auto",
            "model_type",
            "vocab_size",
            "legacy",
            "verbose",
            "device",
            "dtype",
            "torch_dtype",
            "full_tokenizer_file",
        ),
    }
)


def read_tokenizer(folder: Path, tokens: tuple[str, ...] | None = None) -> TokenizerFile | None:
    """Read the tokenizer's files of a folder; None where there are none of them.

    Args:
        folder: Where a vocabulary or weights lie.
        tokens: Of the ``vocab.txt`` there; None: those of ``tokenizer.json``, or none at all.

    Raises:
        InputError: a file cannot be read, or says what is not carried out here; names the file and the setting.
    """
    file = read_tokenizer_json(folder / TOKENIZER_FILE) if (folder / TOKENIZER_FILE).exists() else None
    if file is not None and tokens is not None:
        _check_same_tokens(folder, tokens, file.tokens)
    if file is not None and isinstance(file.settings, ByteBpe):
        _check_beside(folder, file, file.settings)
        return file
    tokens = file.tokens if file is not None and tokens is None else tokens
    ids = None if tokens is None else {token: number for number, token in enumerate(tokens)}
    settings = None if file is None or isinstance(file.settings, ByteBpe) else file.settings
    if (folder / CONFIG_FILE).exists():
        settings = _read_config(folder / CONFIG_FILE, settings, ids)
    if (folder / _MAP_FILE).exists():
        path = folder / _MAP_FILE
        for key, value in read_json_file(path).items():
            _check_other(path, key, value, ids)
    if (folder / _ADDED_FILE).exists():
        check_added(folder / _ADDED_FILE, "tokens", read_json_file(folder / _ADDED_FILE), ids)
    if (folder / _SENTENCES_FILE).exists():
        settings = _with_sentences(folder / _SENTENCES_FILE, settings)
    return None if settings is None else TokenizerFile(tokens or (), settings)


def _check_beside(folder: Path, file: TokenizerFile, settings: ByteBpe) -> None:
    """Refuse what the files beside a ``tokenizer.json`` that says everything say otherwise."""
    ids = {token: number for number, token in enumerate(file.tokens)}
    path = folder / CONFIG_FILE
    content = read_json_file(path) if path.exists() else {}
    if (kind := content.pop("tokenizer_class", None)) not in (None, *_AS_FILE_SAYS):
        raise refusal(path, "tokenizer_class", kind, ", ".join(_AS_FILE_SAYS))
    if content.pop("add_prefix_space", None) not in (None, settings.prefix_space):
        raise refusal(path, "add_prefix_space", not settings.prefix_space, f"as in the {TOKENIZER_FILE} beside it")
    for key, value in content.items():
        _check_other(path, key, value, ids, known=ids)
    path = folder / _MAP_FILE
    for key, value in (read_json_file(path) if path.exists() else {}).items():
        _check_other(path, key, value, ids, known=ids)
    if (folder / _ADDED_FILE).exists():
        check_added(folder / _ADDED_FILE, "tokens", read_json_file(folder / _ADDED_FILE), ids, known=ids)
    if (folder / _SENTENCES_FILE).exists():
        _with_sentences(folder / _SENTENCES_FILE, WordPieceSettings(lower_case=False))


def _check_same_tokens(folder: Path, ours: tuple[str, ...], theirs: tuple[str, ...]) -> None:
    """Refuse two vocabularies beside each other that are not the same."""
    if ours == theirs:
        return
    path, allowed = folder / TOKENIZER_FILE, "the entries of the vocab.txt beside it"
    hint = "keep the one that the weights were trained with, and take the other away"
    if len(ours) != len(theirs):
        raise refusal(path, "model.vocab", f"the number of entries {len(theirs)}", f"{len(ours)}, {allowed}", hint)
    number = next(n for n, (one, other) in enumerate(zip(ours, theirs, strict=True)) if one != other)
    raise refusal(path, f"model.vocab: entry {number}", theirs[number], f"{ours[number]!r}, {allowed}", hint)


def _read_config(path: Path, of_file: WordPieceSettings | None, ids: Mapping[str, int] | None) -> WordPieceSettings:
    content = read_json_file(path)
    kind = content.get("tokenizer_class")
    if kind is not None and kind not in _CLASSES:
        raise refusal(path, "tokenizer_class", kind, ", ".join(_CLASSES))
    said: dict[str, Any] = {}
    for key, value in content.items():
        if key in _HEEDED or key == _MAX_WORD_KEY:
            # Transformers' class for BERT takes an accent's null as well: it goes with the case.
            if _is_said(path, key, value) or (key == "strip_accents" and kind not in _AS_FILE_SAYS):
                said[_HEEDED.get(key, ("max_word_characters", False))[0]] = value
        elif key != "tokenizer_class":
            _check_other(path, key, value, ids)
    settings = replace(of_file or WordPieceSettings(), **said)
    if of_file is not None:
        _compare(path, kind, of_file, settings, said)
    return settings


def _compare(
    path: Path, kind: object, of_file: WordPieceSettings, settings: WordPieceSettings, said: Iterable[str]
) -> None:
    """Say which of two files counts that contradict each other; raises InputError where neither does."""
    for name in said:
        theirs, ours = _effect(of_file, name), _effect(settings, name)
        if theirs == ours:
            continue
        if kind in _AS_FILE_SAYS:
            raise refusal(path, _key(name), ours, f"{theirs!r}, as {TOKENIZER_FILE} says, all that a {kind} heeds")
        logger.warning("%s: %s: %r counts; %s beside it says %r", path, _key(name), ours, TOKENIZER_FILE, theirs)


def _is_said(path: Path, key: str, value: Any) -> bool:
    """Return whether a setting that is heeded says anything; raises InputError where it is none."""
    if key == _MAX_WORD_KEY:
        if type(value) is not int or value < 1:
            raise refusal(path, key, value, "a whole number from 1")
        return True
    if not isinstance(value, bool) and not (value is None and _HEEDED[key][1]):
        raise refusal(path, key, value, "true or false")
    return value is not None


def _key(field: str) -> str:
    return next((key for key, (name, _) in _HEEDED.items() if name == field), _MAX_WORD_KEY)


def _effect(settings: WordPieceSettings, name: str) -> object:
    if name == "strip_accents" and settings.strip_accents is None:
        return settings.lower_case
    return getattr(settings, name)


def _check_other(
    path: Path, key: str, value: Any, ids: Mapping[str, int] | None, *, known: Collection[str] = SPECIAL_TOKENS
) -> None:
    """Refuse a special token under another name than BERT's, tokens besides those, and what is not known here."""
    if key in _FIXED:
        if value not in (None, _FIXED[key]):
            raise refusal(path, key, value, repr(_FIXED[key]))
    elif key in ROLES:
        if value is not None and _content(value) != ROLES[key]:
            raise refusal(path, key, _content(value), repr(ROLES[key]))
    elif key in _TOKENS or key in _OTHER_ROLES:
        check_added(path, key, dict(_tokens_of(value)), ids, known=known)
    elif key not in _OF_NO_ACCOUNT and value not in (None, False, "", [], {}):
        raise refusal(path, key, value, "settings that are known here, and this is none", _UNKNOWN_HINT)


_UNKNOWN_HINT = (
    "if it changes how text is split, take other weights: it is not carried out here; if it does not, take it out of "
    "the file"
)


def _tokens_of(value: Any) -> Iterator[tuple[str, int | None]]:
    """Yield the tokens that a list or a map holds, and their ids where it says them."""
    if isinstance(value, Mapping):
        for key, entry in value.items():
            yield _content(entry), int(key) if str(key).isdecimal() and len(str(key)) < 10 else None
    elif isinstance(value, list):
        for entry in value:
            yield _content(entry), None
    elif value is not None:
        yield _content(value), None


def _content(value: Any) -> str:
    """Return a token that is written as a text or as an object of transformers' class AddedToken."""
    return str(value.get("content")) if isinstance(value, Mapping) else str(value)


def _with_sentences(path: Path, settings: WordPieceSettings | None) -> WordPieceSettings | None:
    """Return settings with what a sentence encoder does to text before its tokenizer: it may drop the capitals."""
    if not read_json_file(path).get("do_lower_case"):
        return settings
    if settings is not None and settings.lower_case is False:
        raise refusal(path, "do_lower_case", True, "false, as the tokenizer beside it says")
    return replace(settings or WordPieceSettings(), lower_case=True)
