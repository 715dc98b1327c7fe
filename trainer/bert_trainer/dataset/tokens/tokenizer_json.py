"""``tokenizer.json``, the whole tokenizer in one file, as ``tokenizers`` and transformers write it.

Every part that decides which tokens a text becomes is carried out here or refused by name. Truncation and padding are
not heeded: the length of rows is the job's, and nothing is padded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tokenizers import Tokenizer

from bert_trainer.config.json_files import read_json_file
from bert_trainer.dataset.tokens.byte_bpe import ByteBpe
from bert_trainer.dataset.tokens.wordpiece_settings import (
    CONTINUES,
    MAX_WORD_CHARACTERS,
    SPECIAL_TOKENS,
    WordPieceSettings,
    refusal,
)

TOKENIZER_FILE = "tokenizer.json"
_MAX_BYTES = 64 << 20
"""Of a file; that of 120,000 entries of WordPiece has 3 MB, with the merges of 256,000 of BPE it has 35."""
_MAX_ENTRIES = 1 << 20
_MAX_WORD_LIMIT = 10_000
_NO_SUCH = object()
_PARTS = (
    *("version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer", "model", "post_processor"),
    "decoder",
)
_WORD_PIECE = {"type", "unk_token", "continuing_subword_prefix", "max_input_chars_per_word", "vocab"}
_BPE = {"type", "unk_token", "fuse_unk", "ignore_merges", "vocab", "merges"}
_NORMALIZERS = ("NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents")
_WITHIN_SPACES = ("NFC", "NFD", "Lowercase")
"""Normalizers that make no space and take none away."""
_SPLITTERS = ("ByteLevel", "Digits", "Split")
_CUT_INSIDE = re.compile(r"\S (\S|$)")
_BERT_NORMALIZER = {"clean_text", "handle_chinese_chars", "strip_accents", "lowercase"}
_A_SEP = ({"SpecialToken": {"id": "[CLS]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}})
_SINGLE = [*_A_SEP, {"SpecialToken": {"id": "[SEP]", "type_id": 0}}]
_PAIR = [*_SINGLE, {"Sequence": {"id": "B", "type_id": 1}}, {"SpecialToken": {"id": "[SEP]", "type_id": 1}}]
_ONE_SEGMENT = [*_SINGLE, {"Sequence": {"id": "B", "type_id": 0}}, {"SpecialToken": {"id": "[SEP]", "type_id": 0}}]
"""As models without segments may have it."""


@dataclass(frozen=True, slots=True)
class TokenizerFile:
    """What such a file holds."""

    tokens: tuple[str, ...]
    """In the order of their ids; a number that no entry has is an empty one."""
    settings: WordPieceSettings | ByteBpe


def read_tokenizer_json(path: Path) -> TokenizerFile:
    """Read a tokenizer.

    Raises:
        InputError: it cannot be read, or turns text into tokens in a way that is not carried out here; names what.
    """
    document = read_json_file(path, max_bytes=_MAX_BYTES)
    for key in document.keys() - set(_PARTS):
        if document[key]:
            raise refusal(path, key, document[key], f"{', '.join(_PARTS)}")
    model = _object(path, "model", document.get("model"))
    kind = model.get("type", "WordPiece" if "continuing_subword_prefix" in model else None)
    if not isinstance(kind, str) or kind not in _MODELS:
        raise refusal(path, "model.type", kind, " or ".join(map(repr, _MODELS)), "take the weights of a BERT")
    file = _MODELS[kind](path, document, model)
    ids = {token: number for number, token in enumerate(file.tokens)}
    added = {str(it.get("content")): it.get("id") for it in _added(path, document)}
    is_byte_level = isinstance(file.settings, ByteBpe)
    check_added(path, "added_tokens", added, ids, known=ids if is_byte_level else SPECIAL_TOKENS)
    pairs = [_PAIR, _ONE_SEGMENT] if is_byte_level else [_PAIR]
    _check_post_processor(path, document.get("post_processor"), ids, pairs)
    truncation = document.get("truncation")
    if isinstance(truncation, Mapping) and truncation.get("direction", "Right") != "Right":
        raise refusal(path, "truncation.direction", truncation["direction"], "'Right'")
    return file


def check_added(
    path: Path,
    key: str,
    added: Mapping[str, int | None],
    ids: Mapping[str, int] | None,
    *,
    known: Collection[str] = SPECIAL_TOKENS,
) -> None:
    """Refuse tokens that are looked for in text before it is split; BERT's five special ones are meant by their ids.

    Args:
        path: Of the file.
        key: Where they stand in it.
        added: Ids by token; None where the file says none.
        ids: Of the vocabulary's entries; None where it is not at hand.
        known: Tokens that may stand there; byte-level BPE carries out any that its file has.

    Raises:
        InputError: there are any.
    """
    others = [token for token in added if token not in known]
    if others:
        got = ", ".join(map(repr, others[:5])) + (f" and {len(others) - 5} more" if len(others) > 5 else "")
        raise refusal(
            path,
            key,
            f"the tokens {got}",
            f"{', '.join(SPECIAL_TOKENS)} alone, since text is not searched for others before it is split",
            "save the tokenizer without them; where they are words, give them entries of the vocabulary, and train on",
        )
    for token, number in added.items():
        if ids is not None and number is not None and ids.get(token) != number:
            raise refusal(path, f"{key}: the id of {token}", number, f"{ids.get(token)}, its place in the vocabulary")


def _read_word_piece(path: Path, document: Mapping[str, Any], model: Mapping[str, Any]) -> TokenizerFile:
    for key, allowed in (("unk_token", "[UNK]"), ("continuing_subword_prefix", CONTINUES)):
        if model.get(key, allowed) != allowed:
            raise refusal(path, f"model.{key}", model[key], repr(allowed))
    longest = model.get("max_input_chars_per_word", MAX_WORD_CHARACTERS)
    if type(longest) is not int or not 1 <= longest <= _MAX_WORD_LIMIT:
        raise refusal(path, "model.max_input_chars_per_word", longest, f"1 to {_MAX_WORD_LIMIT}")
    _refuse_others(path, "model", model, _WORD_PIECE)
    pre_tokenizer = _only(document.get("pre_tokenizer"), "pretokenizers")
    if not isinstance(pre_tokenizer, Mapping) or pre_tokenizer.get("type") != "BertPreTokenizer":
        raise refusal(path, "pre_tokenizer", _kind(pre_tokenizer), "'BertPreTokenizer'")
    tokens = _tokens_in_order(path, model.get("vocab"))
    return TokenizerFile(tokens, _read_normalizer(path, document.get("normalizer"), longest))


def _read_byte_bpe(path: Path, document: Mapping[str, Any], model: Mapping[str, Any]) -> TokenizerFile:
    _refuse_others(path, "model", model, _BPE)
    if model.get("unk_token") not in (None, "[UNK]"):
        raise refusal(path, "model.unk_token", model["unk_token"], "null or '[UNK]'")
    normalizers = [str(it.get("type")) for it in _parts(path, "normalizer", document, "normalizers")]
    if other := [it for it in normalizers if it not in _NORMALIZERS]:
        raise refusal(path, "normalizer", other[0], f"{', '.join(_NORMALIZERS)}, or none")
    splitters = _parts(path, "pre_tokenizer", document, "pretokenizers")
    kinds = [str(it.get("type")) for it in splitters]
    if kinds.count("ByteLevel") != 1 or kinds[-1] != "ByteLevel" or set(kinds) - set(_SPLITTERS):
        got = f"the parts {', '.join(kinds[:5])}" if kinds else "the value nothing"
        raise refusal(path, "pre_tokenizer", got, "'ByteLevel', also behind 'Split' and 'Digits'")
    added = _added(path, document)
    for token in added:
        if token.get("content") in SPECIAL_TOKENS and token.get("special") is not True:
            # As text it would become the token itself.
            key = f"added_tokens: special of {token['content']}"
            raise refusal(path, key, token.get("special"), "true: it means nothing inside text")
    matched = [it for it in added if it.get("special") is not True]
    settings = ByteBpe(
        content=path.read_bytes(),
        prefix_space=splitters[-1].get("add_prefix_space") is not False,
        has_pieces=kinds == ["ByteLevel"]
        and splitters[-1].get("use_regex") is not False
        and set(normalizers) <= set(_WITHIN_SPACES)
        and not any(map(_may_be_cut, matched)),
        matched=frozenset(str(it.get("content")) for it in matched),
    )
    try:
        tokenizer = settings.make_tokenizer()
    except Exception as error:  # the library has no narrower one for what is wrong with a file
        raise refusal(path, "model", f"the problem {error}", "what the library tokenizers reads") from error
    _check_special(path, model, tokenizer)
    return TokenizerFile(_tokens_of(path, tokenizer, added), settings)


def _may_be_cut(token: Mapping[str, Any]) -> bool:
    """Return whether a token that text is searched for looks beyond where text is cut into pieces."""
    content = str(token.get("content"))
    before = token.get("single_word") and content.startswith(" ")
    return bool(token.get("rstrip") or before or _CUT_INSIDE.search(content))


def _check_special(path: Path, model: Mapping[str, Any], tokenizer: Tokenizer) -> None:
    """Refuse a model that makes special tokens of text."""
    merges = [it.split(" ") if isinstance(it, str) else it for it in model.get("merges", [])]
    made = {"".join(pair) for pair in merges} & set(SPECIAL_TOKENS)
    made |= {it for it in SPECIAL_TOKENS if it in tokenizer.encode(it, add_special_tokens=False).tokens}
    made -= {"[UNK]"}
    if made:
        raise refusal(path, "model", f"the token {min(made)}, made of text", "special tokens that no text gives")


def _tokens_of(path: Path, tokenizer: Tokenizer, added: list[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return the entries and the added tokens in the order of their ids."""
    for token in added:
        number = tokenizer.token_to_id(str(token.get("content")))
        if number != token.get("id"):
            raise refusal(path, f"added_tokens: the id of {token.get('content')}"[:120], token.get("id"), str(number))
    entries = tokenizer.get_vocab(with_added_tokens=True)
    highest = max(entries.values(), default=0)
    if highest >= _MAX_ENTRIES or len(set(entries.values())) < len(entries):
        got = "two entries with one id" if highest < _MAX_ENTRIES else highest
        raise refusal(path, "model.vocab: an id", got, f"0 to {_MAX_ENTRIES - 1}, each of them once")
    by_id = {number: token for token, number in entries.items()}
    return tuple(by_id.get(number, "") for number in range(highest + 1))


def _parts(path: Path, key: str, document: Mapping[str, Any], parts: str) -> list[Mapping[str, Any]]:
    """Return the parts of a sequence, also of one within another, or what stands in its place; [] for none."""
    found: list[Mapping[str, Any]] = []
    left = [document.get(key)]
    while left:
        node = left.pop(0)
        if not isinstance(node, Mapping):
            if node is None:
                continue
            raise refusal(path, key, node, "an object")
        if node.get("type") != "Sequence":
            found.append(node)
        elif isinstance(held := node.get(parts), list):
            left[:0] = held
        else:
            raise refusal(path, f"{key}.{parts}", held, "a list")
    return found


_MODELS: Mapping[str, Callable[[Path, Mapping[str, Any], Mapping[str, Any]], TokenizerFile]] = MappingProxyType(
    {"WordPiece": _read_word_piece, "BPE": _read_byte_bpe}
)
"""By ``model.type``: readers of what such a model, its normalizer and its splitting into words say."""


def _refuse_others(path: Path, part: str, node: Mapping[str, Any], known: Collection[str]) -> None:
    for key, value in node.items():
        if key not in known and value:
            raise refusal(path, f"{part}.{key}", value, f"{', '.join(sorted(known))}")


def _read_normalizer(path: Path, node: Any, longest: int) -> WordPieceSettings:
    node = _only(node, "normalizers")
    if node is None:
        return WordPieceSettings(
            lower_case=False, strip_accents=False, split_chinese=False, clean_text=False, max_word_characters=longest
        )
    if not isinstance(node, Mapping) or node.get("type") != "BertNormalizer":
        raise refusal(path, "normalizer", _kind(node), "'BertNormalizer', alone, or none")
    _refuse_others(path, "normalizer", node, {"type", *_BERT_NORMALIZER})
    for key in sorted(_BERT_NORMALIZER):
        value = node.get(key, _NO_SUCH)
        if not isinstance(value, bool) and not (key == "strip_accents" and value in (None, _NO_SUCH)):
            raise refusal(path, f"normalizer.{key}", "the value nothing" if value is _NO_SUCH else value, "true, false")
    return WordPieceSettings(
        lower_case=node["lowercase"],
        strip_accents=node.get("strip_accents"),
        split_chinese=node["handle_chinese_chars"],
        clean_text=node["clean_text"],
        max_word_characters=longest,
    )


def _check_post_processor(path: Path, node: Any, ids: Mapping[str, int], pairs: list[list[Any]]) -> None:
    """Refuse rows of another form than [CLS] A [SEP] or [CLS] A [SEP] B [SEP]."""
    if isinstance(node, Mapping) and isinstance(node.get("processors"), list):
        # This one changes the places of tokens in a text, and no token.
        kept = [it for it in node["processors"] if not (isinstance(it, Mapping) and it.get("type") == "ByteLevel")]
        node = {**node, "processors": kept}
    node = _only(node, "processors")
    allowed = "[CLS] A [SEP] and [CLS] A [SEP] B [SEP], with segments 0 and 1"
    kind = node.get("type") if isinstance(node, Mapping) else None
    if kind == "BertProcessing":
        got = dict(part for key in ("cls", "sep") if _is_token_and_id(part := node.get(key)))
    elif kind == "TemplateProcessing" and node.get("single") == _SINGLE and node.get("pair") in pairs:
        held = _object(path, "post_processor.special_tokens", node.get("special_tokens"))
        got = {token: it["ids"][0] for token, it in held.items() if _has_one_id(it)}
    else:
        raise refusal(path, "post_processor", _kind(node), allowed)
    for token in ("[CLS]", "[SEP]"):
        if got.get(token) != ids.get(token):
            where = f"post_processor: the id of {token}"
            raise refusal(path, where, got.get(token), f"{ids.get(token)}, its place in the vocabulary")


def _is_token_and_id(part: Any) -> bool:
    return isinstance(part, list) and len(part) == 2 and isinstance(part[0], str)


def _has_one_id(entry: Any) -> bool:
    return isinstance(entry, Mapping) and isinstance(entry.get("ids"), list) and len(entry["ids"]) == 1


def _tokens_in_order(path: Path, vocab: Any) -> tuple[str, ...]:
    entries = _object(path, "model.vocab", vocab)
    tokens: list[str | None] = [None] * len(entries)
    for token, number in entries.items():
        if type(number) is not int or not 0 <= number < len(tokens) or tokens[number] is not None:
            raise refusal(
                path, f"model.vocab: the id of {token!r}"[:120], number, f"0 to {len(tokens) - 1}, each of them once"
            )
        tokens[number] = token
    return tuple(token for token in tokens if token is not None)


def _added(path: Path, document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    entries = document.get("added_tokens") or []
    if not isinstance(entries, list) or not all(isinstance(it, Mapping) for it in entries):
        raise refusal(path, "added_tokens", entries, "a list of objects")
    return entries


def _only(node: Any, parts: str) -> Any:
    """Return the one part of a sequence of one, or what is none."""
    while isinstance(node, Mapping) and node.get("type") == "Sequence":
        held = node.get(parts)
        if not isinstance(held, list) or len(held) != 1:
            return node
        node = held[0]
    return node


def _kind(node: Any) -> object:
    """Return what a message calls a part: its type, and of a sequence those of its parts."""
    if not isinstance(node, Mapping):
        return node
    parts = next((value for value in node.values() if isinstance(value, list)), [])
    kinds = [str(part.get("type")) for part in parts if isinstance(part, Mapping)]
    kind = str(node.get("type"))
    return f"{kind} of {', '.join(kinds[:5])}" if kind == "Sequence" else kind


def _object(path: Path, key: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise refusal(path, key, value, "an object")
    return value
