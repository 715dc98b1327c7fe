"""The tokenizer of an exported model, in the files that Hugging Face's libraries look for.

``vocab.txt`` and ``tokenizer_config.json`` for ``transformers``; ``tokenizer.json`` for what reads nothing else
(``tokenizers``, transformers.js, inference servers) and ``special_tokens_map.json`` for ``transformers`` before 5. All
of them split text as the trained model saw it, and none names a file or a model anywhere else.
"""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import decoders, processors

from bert_trainer.config.json_files import read_json_file
from bert_trainer.config.run_config import ModelConfig
from bert_trainer.dataset.tokens.wordpiece import SPECIAL_TOKENS, Vocabulary, make_tokenizer

_SETTINGS_FILE = "tokenizer_config.json"
_ROLES = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), SPECIAL_TOKENS, strict=True))


def write_tokenizer(config: ModelConfig, vocabulary: Vocabulary, folder: Path, *, lower_case: bool) -> None:
    """Write the four files. lower_case: whether text loses capitals and accents before it is split."""
    # DistilBERT has no segments, and its graph takes none.
    inputs = ["input_ids", *(["token_type_ids"] if config.architecture == "bert" else []), "attention_mask"]
    settings = {
        "tokenizer_class": "BertTokenizer",
        "do_lower_case": lower_case,
        "strip_accents": None,
        "tokenize_chinese_chars": True,
        "model_max_length": config.max_position_embeddings,
        "model_input_names": inputs,
        **_ROLES,
    }
    tokenizer = make_tokenizer(vocabulary, lower_case=lower_case)
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[("[CLS]", vocabulary.cls_id), ("[SEP]", vocabulary.sep_id)],
    )
    for name, document in ((_SETTINGS_FILE, settings), ("special_tokens_map.json", _ROLES)):
        (folder / name).write_text(json.dumps(document, indent=2) + "\n")
    (folder / "tokenizer.json").write_text(tokenizer.to_str(pretty=True) + "\n")
    write_vocabulary(vocabulary, folder)


def write_vocabulary(vocabulary: Vocabulary, folder: Path) -> None:
    """Write ``vocab.txt``."""
    (folder / "vocab.txt").write_text("".join(f"{token}\n" for token in vocabulary.tokens))


def read_lower_case(path: Path) -> bool | None:
    """Return what the tokenizer's settings beside weights say; None where there are none, or they leave it open.

    Args:
        path: The folder of the weights, or a file or prefix of files in it.

    Raises:
        InputError: the settings cannot be read.
    """
    settings = (path if path.is_dir() else path.parent) / _SETTINGS_FILE
    said = read_json_file(settings).get("do_lower_case") if settings.exists() else None
    return said if isinstance(said, bool) else None


def is_lower_case(vocabulary: Vocabulary) -> bool:
    """Return whether no entry of a vocabulary has a capital letter, names in brackets aside."""
    return all(token == token.lower() for token in vocabulary.tokens if not token.startswith("["))
