"""Blocks of text give back what was written, document by document, and the digests of that."""

from __future__ import annotations

from pathlib import Path

import pytest

from bert_trainer.dataset.corpus.document import Document, digest_sentences, digest_text
from bert_trainer.dataset.tokens import block_files
from bert_trainer.dataset.tokens.block_files import split_text, write_text_blocks
from bert_trainer.errors import StorageFailed

TEXTS = [("One.", "Two words."), ("äöü ß 漢字 🙂.",), tuple(f"Sentence {number}." for number in range(300)), ("x",)]


def test_documents_come_back_with_their_digests(tmp_path: Path, monkeypatch) -> None:
    # Blocks of every size: one document, several, and the rest.
    monkeypatch.setattr(block_files, "_FIRST_BLOCK_BYTES", 24)
    blocks = list(write_text_blocks([Document(str(number), text) for number, text in enumerate(TEXTS)], tmp_path))
    assert [block.first_document for block in blocks] == [0, 2, 3]
    found = [text for block in blocks for text in block.texts()]
    assert [tuple(split_text(text)) for text in found] == TEXTS
    assert [digest_text(text) for text in found] == [digest_sentences(sentences) for sentences in TEXTS]
    alone = [block.read_document(number) for block in blocks for number in range(block.num_documents)]
    assert [tuple(sentences) for sentences in alone] == TEXTS


@pytest.mark.parametrize("found", [b"", b"One.\nTwo wor", b"One.\nTwo words.\n\nAnd more.\n\n"])
def test_a_block_of_another_size_than_was_written_is_refused(found: bytes, tmp_path: Path) -> None:
    (block,) = write_text_blocks([Document("one", TEXTS[0])], tmp_path)
    block.path.write_bytes(found)
    with pytest.raises(StorageFailed, match=rf"got {len(found)} bytes; allowed: 17, as were written"):
        list(block.texts())
