"""The tokenizer of an exported model, in the files that Hugging Face's libraries look for.

``vocab.txt`` and ``tokenizer_config.json`` for ``transformers``; ``tokenizer.json`` for what reads nothing else
(``tokenizers``, transformers.js, inference servers) and ``special_tokens_map.json`` for ``transformers`` before 5. All
of them split text as the trained model saw it, and none names a file or a model anywhere else. Byte-level BPE has no
``vocab.txt``, and its ``tokenizer.json`` is the run's own, unchanged.
"""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import decoders, processors

from bert_job.run_config import ModelConfig
from bert_trainer.dataset.tokens.tokenizer_config import CONFIG_FILE, ROLES
from bert_trainer.dataset.tokens.tokenizer_json import TOKENIZER_FILE
from bert_trainer.dataset.tokens.wordpiece import SPECIAL_TOKENS, Vocabulary, make_tokenizer

_OF_BERTS_CLASS = {"do_lower_case", "strip_accents", "tokenize_chinese_chars"}


def write_tokenizer(config: ModelConfig, vocabulary: Vocabulary, folder: Path, *, lower_case: bool) -> None:
    """Write the files, with the vocabulary's settings. lower_case: whether text loses its capitals."""
    # DistilBERT has no segments, and its graph takes none.
    inputs = ["input_ids", *(["token_type_ids"] if config.architecture == "bert" else []), "attention_mask"]
    said = vocabulary.settings.as_tokenizer_config(lower_case)
    settings = {
        # What the class for BERT does not know, the other one takes from tokenizer.json.
        "tokenizer_class": "BertTokenizer" if said.keys() <= _OF_BERTS_CLASS else "PreTrainedTokenizerFast",
        **said,
        "model_max_length": config.max_position_embeddings,
        "model_input_names": inputs,
        **ROLES,
    }
    for name, document in ((CONFIG_FILE, settings), ("special_tokens_map.json", dict(ROLES))):
        (folder / name).write_text(json.dumps(document, indent=2) + "\n")
    write_vocabulary(vocabulary, folder)
    if vocabulary.is_byte_level:
        return
    tokenizer = make_tokenizer(vocabulary, lower_case=lower_case)
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[("[CLS]", vocabulary.cls_id), ("[SEP]", vocabulary.sep_id)],
    )
    (folder / TOKENIZER_FILE).write_text(tokenizer.to_str(pretty=True) + "\n")


def write_vocabulary(vocabulary: Vocabulary, folder: Path) -> None:
    """Write ``vocab.txt``, or the ``tokenizer.json`` of byte-level BPE."""
    name, content = vocabulary.file
    (folder / name).write_bytes(content)


def is_lower_case(vocabulary: Vocabulary) -> bool:
    """Return whether text loses its capitals before it is looked up in a vocabulary.

    As the tokenizer's files beside it say; without a word of theirs if no entry has a capital letter, names in brackets
    aside.
    """
    said = vocabulary.settings.lower_case
    if said is not None:
        return said
    return all(token == token.lower() for token in vocabulary.tokens if not token.startswith("["))
