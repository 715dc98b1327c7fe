"""Vocabularies cover the characters of a text, what they lack is counted, and [UNK] is never predicted."""

from __future__ import annotations

import argparse
import json
import logging
import random
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from bert_job.run_config import DatasetConfig
from bert_job.run_stages import PrepareStage
from bert_trainer.dataset.__main__ import main
from bert_trainer.dataset.build.pipeline import build_dataset
from bert_trainer.dataset.commands.arguments import parse_share
from bert_trainer.dataset.sampling.dynamic_masking import DynamicMasking
from bert_trainer.dataset.sampling.masking import MaskingRule
from bert_trainer.dataset.sampling.shard_samples import GENERATOR_VERSION
from bert_trainer.dataset.shards import read_ragged, read_shard
from bert_trainer.dataset.shards.dataset_info import DatasetInfo, read_dataset_info
from bert_trainer.dataset.tokens.wordpiece import Encoder, read_vocabulary, train_vocabulary
from bert_trainer.errors import InputError
from bert_trainer.system.random_bits import RandomBits
from scripts_of_the_world import arabic, chinese, japanese, korean, mixed
from silent import Silent
from walks import mask_many

MOST = 0.005
FEW = {"vocabulary_size": 705, "max_unknown_share": 1}
"""Too few entries for Chinese: a sixth of the tokens are [UNK]."""
UNK = 1


def write(documents: list[list[str]], path: Path) -> Path:
    path.write_text("\n\n".join("\n".join(document) for document in documents) + "\n")
    return path


def build(text: Path, root: Path, *lengths: tuple[int, int], **settings: object) -> DatasetInfo:
    chosen = {"text": str(text), "num_shards": 2, "num_processes": 1, **settings}
    stage = PrepareStage.model_validate(chosen)
    return build_dataset(stage, DatasetConfig(folder=str(root)), list(lengths or [(64, 10)]), Silent())


@pytest.mark.parametrize(
    ("script", "lower_case"),
    # Lower case takes syllables of Korean apart, so that they are few characters.
    [(chinese, True), (japanese, True), (korean, True), (korean, False), (arabic, True), (mixed, False)],
    ids=["Chinese", "Japanese", "Korean", "cased Korean", "Arabic", "cased mixture"],
)
def test_a_vocabulary_covers_the_characters_of_every_script(
    tmp_path: Path, script: Callable[..., list[list[str]]], lower_case: bool
) -> None:
    sentences = [sentence for document in script(40_000) for sentence in document]
    path = tmp_path / "vocab.txt"
    path.write_bytes(train_vocabulary(sentences, size=30522, lower_case=lower_case))
    vocabulary = read_vocabulary(path)
    ids = [token for found in Encoder(vocabulary, lower_case=lower_case).encode(sentences) for token in found]
    assert ids.count(vocabulary.unk_id) < MOST * len(ids)
    # Another text of the same kind; this one is too small to hold all of its characters.
    others = [sentence for document in script(40_000, seed=9) for sentence in document]
    ids = [token for found in Encoder(vocabulary, lower_case=lower_case).encode(others) for token in found]
    assert ids.count(vocabulary.unk_id) < 0.05 * len(ids)


def test_a_small_vocabulary_takes_the_commonest_characters(tmp_path: Path) -> None:
    sentences = ["\u4e00" * 3 + "\u4e8c" * 2 + "\u4e09 a b"] * 2
    tokens = train_vocabulary(sentences, size=9, lower_case=True).decode().split()
    # A letter takes two entries, since it also stands inside words.
    assert tokens[5:] == ["a", "\u4e00", "\u4e8c", "##a"]


def test_the_share_is_recorded_shown_and_warned_about(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    text = write(chinese(30_000), tmp_path / "text.txt")
    root = tmp_path / "data"
    with caplog.at_level(logging.WARNING):
        info = build(text, root, vocabulary_size=1005)
    share = info.unknown_share
    assert share is not None
    assert 0.05 < share < 0.2
    assert f"{share:.2%} of the tokens are [UNK], usual is less than 0.5%" in caplog.text
    assert main(["inspect", str(root)]) == 0
    assert f"{share:.3%} of the text's tokens are [UNK]" in capsys.readouterr().out
    assert main(["inspect", str(root), "--json"]) == 0
    for group in json.loads(capsys.readouterr().out)["groups"]:
        assert group["unknown_share"] == pytest.approx(share, rel=0.5)
    assert main(["verify", str(root)]) == 0
    told = capsys.readouterr().out
    assert "WARNING" in told
    assert "of the tokens are [UNK]" in told
    assert "nothing bad, 1 with a warning" in told


def test_a_text_that_is_covered_is_not_warned_about(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    text = write(chinese(30_000), tmp_path / "text.txt")
    with caplog.at_level(logging.WARNING):
        info = build(text, tmp_path / "data", vocabulary_size=30522)
    assert info.unknown_share is not None
    assert info.unknown_share < MOST
    assert info.vocabulary_entries is not None
    assert info.vocabulary_entries > 2000
    assert "[UNK]" not in caplog.text
    assert main(["verify", str(tmp_path / "data")]) == 0
    assert "WARNING" not in capsys.readouterr().out


@pytest.mark.parametrize("whole_words", [False, True])
def test_no_shard_predicts_an_unknown_word(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], whole_words: bool
) -> None:
    documents = chinese(20_000)
    # A document of nothing but words that are too long.
    documents.append(["x" * 101] * 30)
    root = tmp_path / "data"
    build(write(documents, tmp_path / "text.txt"), root, **FEW, whole_word_masking=whole_words)
    found = [read_shard(path) for path in sorted(root.rglob("*.hdf5"))]
    assert sum(int((samples.input_ids == UNK).sum()) for samples in found) > 100
    for samples in found:
        assert not ((samples.masked_lm_ids == UNK) & (samples.masked_lm_positions > 0)).any()
    assert main(["verify", str(root), "--max-unknown-share", "1"]) == 0
    assert "nothing bad" in capsys.readouterr().out


def test_the_original_tokens_decide_and_rows_of_nothing_else_have_no_prediction() -> None:
    rows = [[2, *[7] * 4, 3, *[7] * 5, 3], [2, *[UNK] * 4, 3, *[7] * 5, 3], [2, *[UNK] * 4, 3, *[UNK] * 5, 3]]
    for continuations in (None, np.zeros(20, dtype=np.bool_)):
        rule = MaskingRule(
            probability=0.9,
            max_predictions=9,
            vocabulary_size=20,
            cls_id=2,
            sep_id=3,
            mask_id=4,
            unk_id=UNK,
            continuations=continuations,
        )
        masked = mask_many(rows, rule, RandomBits("x"))
        assert [len(row.positions) for row in masked] == [9, 5, 0]
        assert not any(UNK in row.labels for row in masked)
        assert masked[2].tokens == rows[2]


def test_masks_drawn_while_reading_leave_unknown_words_alone(tmp_path: Path) -> None:
    root = tmp_path / "data"
    build(write(chinese(20_000), tmp_path / "text.txt"), root, **FEW, masking="dynamic")
    path = next(iter(sorted(root.rglob("training_*.hdf5"))))
    bare = read_ragged(path, None).unmasked()
    assert (bare.tokens == UNK).any()
    for whole_words in (False, True):
        rule = DynamicMasking.of(
            read_vocabulary(root / "vocab.txt"),
            seed=1,
            probability=0.15,
            max_predictions=10,
            whole_words=whole_words,
        )
        masked = rule.mask(bare, 0, np.arange(len(bare)))
        assert len(masked.masked_lm_ids) > 100
        assert not (masked.masked_lm_ids == UNK).any()


def test_a_vocabulary_of_another_language_is_named(tmp_path: Path) -> None:
    vocabulary = tmp_path / "english.txt"
    vocabulary.write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n##a\n")
    text = write(chinese(2_000), tmp_path / "text.txt")
    stage = PrepareStage(text=str(text), num_processes=1)
    dataset = DatasetConfig(folder=str(tmp_path / "data"), vocabulary_file=str(vocabulary))
    with pytest.raises(InputError, match="0 documents have a token of the vocabulary"):
        build_dataset(stage, dataset, [(64, 10)], Silent())


GERMAN = [
    "\u00fcber",
    "Fl\u00fcsse",
    "f\u00fchren",
    "Br\u00fccken",
    "der",
    "Weg",
    "durch",
    "die",
    "Stadt",
    "und",
    "Felder",
]


def german_with_another_vocabulary(tmp_path: Path) -> tuple[Path, Path]:
    """Return a text and a vocabulary that has no more of it than the punctuation and some short words."""
    vocabulary = tmp_path / "chinese.txt"
    vocabulary.write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n.\nder\n\u4e00\n\u4e8c\n")
    text = tmp_path / "german.txt"
    rng = random.Random(4)
    text.write_text("\n\n".join("\n".join(" ".join(rng.sample(GERMAN, 8)) + "." for _ in range(9)) for _ in range(60)))
    return text, vocabulary


def test_a_text_that_its_vocabulary_does_not_know_is_refused_and_built_only_if_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    text, vocabulary = german_with_another_vocabulary(tmp_path)
    root = tmp_path / "data"
    command = ["build", "--text", str(text), "--vocabulary", str(vocabulary), "--output", str(root)]
    command += ["--length", "64:10", "--processes", "1"]
    assert main(command) == 2
    told = capsys.readouterr().err
    refused = re.search(r"(.*): (.*)% of the tokens are \[UNK\]; allowed: at most 0\.1\n", told)
    assert refused, told
    assert refused[1].endswith(f"{text}, with the vocabulary {vocabulary}")
    share = refused[2]
    assert 75 < float(share) < 90
    assert "--max-unknown-share 1" in told
    assert not list(root.rglob("*.hdf5"))
    # The text stays encoded for a build that goes on all the same.
    assert (root / ".work" / "prepared.json").exists()
    assert main([*command, "--max-unknown-share", "1"]) == 0
    assert f"{share}% of the tokens are [UNK]" in caplog.text
    capsys.readouterr()
    assert main(["verify", str(root)]) == 1
    told = capsys.readouterr().out
    assert f"BAD {root / 'seq_len_64_max_pred_10'}" in told
    assert "of the tokens are [UNK]" in told
    assert main(["verify", str(root), "--max-unknown-share", "1"]) == 0
    assert "WARNING" in capsys.readouterr().out


def test_a_whole_dataset_of_the_release_before_stays_as_it_is(tmp_path: Path) -> None:
    text = write(arabic(3_000), tmp_path / "text.txt")
    root = tmp_path / "data"
    build(text, root, vocabulary_size=200)
    path = root / "dataset.json"
    document = json.loads(path.read_text())
    document["settings"]["generator_version"] = GENERATOR_VERSION - 1
    del document["unknown_share"]
    path.write_text(json.dumps(document))
    before = {file: file.stat().st_mtime_ns for file in root.rglob("*.hdf5")}
    assert build(text, root, vocabulary_size=200).complete
    assert {file: file.stat().st_mtime_ns for file in root.rglob("*.hdf5")} == before
    with pytest.raises(InputError, match=r"generator_version: was \d, is \d"):
        build(text, root, (64, 10), (32, 5), vocabulary_size=200)
    next(iter(before)).unlink()
    with pytest.raises(InputError, match=r"generator_version: was \d, is \d"):
        build(text, root, vocabulary_size=200)


def test_what_a_newer_release_tells_of_a_dataset_is_no_error_but_its_settings_are(tmp_path: Path) -> None:
    root = tmp_path / "data"
    info = build(write(arabic(3_000), tmp_path / "text.txt"), root, vocabulary_size=200)
    path = root / "dataset.json"
    document = json.loads(path.read_text())
    document["counts"]["sentences"] = document["languages"] = 7
    path.write_text(json.dumps(document))
    assert read_dataset_info(root) == info
    document["settings"]["dialect"] = "x"
    path.write_text(json.dumps(document))
    with pytest.raises(InputError, match=r"not readable by this version[\s\S]*hint: if a newer release wrote it"):
        read_dataset_info(root)


@pytest.mark.parametrize("text", ["0", "-0.1", "1.01", "nan", "inf", "a tenth"])
def test_a_share_is_above_0_and_at_most_1(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="allowed: a share above 0, at most 1"):
        parse_share(text)
    assert [parse_share(good) for good in ("1e-9", "1")] == [1e-9, 1.0]
