"""A dataset of byte-level BPE: learnt or given, the same bytes however it is made, and read by what reads datasets.

Inputs: texts of a few documents. Observed: files of the dataset, its rows, messages.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from bert_trainer.dataset.__main__ import main
from bert_trainer.dataset.shards import read_ragged
from bert_trainer.dataset.tokens.wordpiece import read_vocabulary
from bert_trainer.errors import InputError
from byte_bpe_files import learnt, like_modernbert
from small_build import build, contents

SHARDS = "seq_len_32_max_pred_5"
NAMES = {"tokenizer.json", "tokenizer_config.json"}


def test_a_build_learns_the_same_for_any_number_of_processes(tmp_path: Path, write_corpus: Callable[..., Path]) -> None:
    text = write_corpus()
    info = build(text, tmp_path / "one", tokenizer="byte-bpe", vocabulary_size=400)
    build(text, tmp_path / "two", tokenizer="byte-bpe", vocabulary_size=400, num_processes=2)
    files = contents(tmp_path / "one")
    assert {name for name in files if "/" not in name} == NAMES
    assert files == contents(tmp_path / "two")
    vocabulary = read_vocabulary(tmp_path / "one" / "tokenizer.json")
    assert info.vocabulary_sha256 == vocabulary.sha256
    assert info.vocabulary_entries == vocabulary.size <= 400
    assert (info.settings.lower_case, info.settings.tokenizer) == (False, "byte-level BPE")
    assert info.unknown_share == 0
    # The second build finds everything, also where it is asked by another name of the same vocabulary.
    for given in (None, str(tmp_path / "one" / "tokenizer.json"), str(tmp_path / "one")):
        again = build(text, tmp_path / "one", tokenizer="byte-bpe", vocabulary_size=400, vocabulary_file=given)
        assert again == info


def test_the_rows_of_a_document_are_what_tokenizers_makes_of_its_sentences(tmp_path: Path) -> None:
    sentences = ["Caf\u00e9 [SEP] isn't far.", "The end \U0001f469", "x"]
    (tmp_path / "a.txt").write_text("\n".join(sentences) + "\n")
    (tmp_path / "words").mkdir()
    path = tmp_path / "words" / "tokenizer.json"
    path.write_bytes(learnt())
    given = {"held_out_fraction": 0, "masking": "dynamic", "num_shards": 1, "dupe_factor": 1}
    build(tmp_path / "a.txt", tmp_path / "data", vocabulary_file=str(tmp_path / "words"), **given)
    assert (tmp_path / "data" / "tokenizer.json").read_bytes() == path.read_bytes()
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.encode_special_tokens = True
    expected = tokenizer.encode(" ".join(sentences), add_special_tokens=False).ids
    (shard,) = (tmp_path / "data" / "seq_len_64_max_pred_10").glob("training*")
    rows = read_ragged(shard, None, slice(0, None))
    vocabulary = read_vocabulary(path)
    first = int(rows.token_counts.argmax())  # of the actual pair; a random one is shorter
    row = rows.tokens[rows.token_starts[first] :][: rows.token_counts[first]]
    assert row[~np.isin(row, [vocabulary.cls_id, vocabulary.sep_id])].tolist() == expected


def test_inspect_and_verify_read_it(
    tmp_path: Path, write_corpus: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    build(write_corpus(), tmp_path / "data", tokenizer="byte-bpe", vocabulary_size=400, whole_word_masking=True)
    assert main(["verify", str(tmp_path / "data")]) == 0
    capsys.readouterr()
    assert main(["inspect", str(tmp_path / "data" / SHARDS), "--samples", "1"]) == 0
    shown = capsys.readouterr().out
    assert "[CLS]" in shown
    assert "\u0120" not in shown
    assert main(["convert", str(tmp_path / "data"), str(tmp_path / "copy"), "--layout", "nvidia"]) == 0
    assert {path.name for path in (tmp_path / "copy").iterdir()} >= NAMES
    (tmp_path / "data" / "tokenizer.json").write_text(json.dumps(like_modernbert()))
    assert main(["verify", str(tmp_path / "data")]) == 1
    assert "tokenizer.json is not the vocabulary that dataset.json names" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("given", "settings", "message"),
    [
        (None, {"vocabulary_size": 200}, "vocabularySize: got 200; allowed with tokenizer byte-bpe: at least 261"),
        (
            "vocab.txt",
            {},
            "tokenizer: got byte-bpe, and the vocabulary .*vocab.txt of WordPiece; allowed: a",
        ),
    ],
)
def test_what_cannot_be_learnt_is_named(
    tmp_path: Path,
    write_corpus: Callable[..., Path],
    given: str | None,
    settings: dict[str, int],
    message: str,
) -> None:
    (tmp_path / "vocab.txt").write_text("".join(f"{it}\n" for it in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")))
    file = None if given is None else str(tmp_path / given)
    with pytest.raises(InputError, match=message):
        build(write_corpus(), tmp_path / "data", tokenizer="byte-bpe", vocabulary_file=file, **settings)


def test_another_kind_is_another_dataset(tmp_path: Path, write_corpus: Callable[..., Path]) -> None:
    text = write_corpus()
    build(text, tmp_path / "data", lower_case=False)
    with pytest.raises(InputError, match="tokenizer: was None, is byte-level BPE"):
        build(text, tmp_path / "data", lower_case=False, tokenizer="byte-bpe", vocabulary_size=400)
