"""``tokenizer.json``, the whole tokenizer in one file, as ``tokenizers`` and transformers write it.

Every part that decides which tokens a text becomes is carried out here or refused by name. Truncation and padding are
not heeded: the length of rows is the job's, and nothing is padded.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from bert_trainer.config.json_files import read_json_file
from bert_trainer.dataset.tokens.wordpiece_settings import (
    CONTINUES,
    MAX_WORD_CHARACTERS,
    SPECIAL_TOKENS,
    WordPieceSettings,
    refusal,
)

TOKENIZER_FILE = "tokenizer.json"
_MAX_BYTES = 16 << 20
"""Of a file; that of 120,000 entries has 3 MB."""
_MAX_WORD_LIMIT = 10_000
_NO_SUCH = object()
_PARTS = (
    *("version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer", "model", "post_processor"),
    "decoder",
)
_WORD_PIECE = {"type", "unk_token", "continuing_subword_prefix", "max_input_chars_per_word", "vocab"}
_BERT_NORMALIZER = {"clean_text", "handle_chinese_chars", "strip_accents", "lowercase"}
_A_SEP = ({"SpecialToken": {"id": "[CLS]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}})
_SINGLE = [*_A_SEP, {"SpecialToken": {"id": "[SEP]", "type_id": 0}}]
_PAIR = [*_SINGLE, {"Sequence": {"id": "B", "type_id": 1}}, {"SpecialToken": {"id": "[SEP]", "type_id": 1}}]


@dataclass(frozen=True, slots=True)
class TokenizerFile:
    """What such a file holds."""

    tokens: tuple[str, ...]
    """In the order of their ids."""
    settings: WordPieceSettings


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
    check_added(path, "added_tokens", _added(path, document.get("added_tokens")), ids)
    _check_post_processor(path, document.get("post_processor"), ids)
    truncation = document.get("truncation")
    if isinstance(truncation, Mapping) and truncation.get("direction", "Right") != "Right":
        raise refusal(path, "truncation.direction", truncation["direction"], "'Right'")
    return file


def check_added(path: Path, key: str, added: Mapping[str, int | None], ids: Mapping[str, int] | None) -> None:
    """Refuse tokens that are looked for in text before it is split; BERT's five special ones are meant by their ids.

    Args:
        path: Of the file.
        key: Where they stand in it.
        added: Ids by token; None where the file says none.
        ids: Of the vocabulary's entries; None where it is not at hand.

    Raises:
        InputError: there are any.
    """
    others = [token for token in added if token not in SPECIAL_TOKENS]
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


_MODELS: Mapping[str, Callable[[Path, Mapping[str, Any], Mapping[str, Any]], TokenizerFile]] = MappingProxyType(
    {"WordPiece": _read_word_piece}
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


def _check_post_processor(path: Path, node: Any, ids: Mapping[str, int]) -> None:
    """Refuse rows of another form than [CLS] A [SEP] or [CLS] A [SEP] B [SEP]."""
    node = _only(node, "processors")
    allowed = "[CLS] A [SEP] and [CLS] A [SEP] B [SEP], with segments 0 and 1"
    kind = node.get("type") if isinstance(node, Mapping) else None
    if kind == "BertProcessing":
        got = dict(part for key in ("cls", "sep") if _is_token_and_id(part := node.get(key)))
    elif kind == "TemplateProcessing" and node.get("single") == _SINGLE and node.get("pair") == _PAIR:
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


def _added(path: Path, entries: Any) -> dict[str, int | None]:
    if entries is None:
        return {}
    if not isinstance(entries, list) or not all(isinstance(it, Mapping) for it in entries):
        raise refusal(path, "added_tokens", entries, "a list of objects")
    return {str(it.get("content")): it.get("id") for it in entries}


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
