"""Whatever a text file holds, a build makes right shards of it or says what is wrong with it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from bert_job.run_config import DatasetConfig
from bert_job.run_stages import PrepareStage
from bert_trainer.dataset.build.pipeline import build_dataset
from bert_trainer.dataset.quality.verification import VerifyTask, verify_shard
from bert_trainer.dataset.shards import read_shard
from bert_trainer.dataset.shards.dataset_info import DatasetInfo
from bert_trainer.errors import InputError
from silent import Silent

VOCABULARY = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nword\n##s\n.\n中\nб\n##в\n"
PLAIN = b"words word.\nword.\n\nword words words.\n\n"

line = st.one_of(
    st.sampled_from(
        [
            "",
            " ",
            "word",
            "word " * 10_000,
            "words" * 3000,
            "\u0001\u0002 \u007f",
            "\u200b",
            "\u4e2d\u6587" * 40,
            "\u0431\u0432",
            "\u0301\u0301",
            "\u2028word\u2029word\x85word",
            "\ufeffword",
        ]
    ),
    st.text(max_size=40),
)
texts = st.lists(line, max_size=12).map("\n".join)
encodings = st.sampled_from(["utf-8", "utf-8-sig", "latin-1", "utf-16", "cp1252"])


def build(content: bytes, folder: Path, *, whole_words: bool = False) -> DatasetInfo:
    (folder / "text.txt").write_bytes(content)
    (folder / "vocab.txt").write_text(VOCABULARY)
    text = str(folder / "text.txt")
    stage = PrepareStage(text=text, num_processes=1, dupe_factor=2, whole_word_masking=whole_words, max_unknown_share=1)
    dataset = DatasetConfig(folder=str(folder / "data"), vocabulary_file=str(folder / "vocab.txt"))
    return build_dataset(stage, dataset, [(16, 3)], Silent())


def check_dataset(folder: Path, info: DatasetInfo) -> int:
    """Return the samples of all shards, each of which is right."""
    (length,) = info.lengths
    probability = None if info.settings.whole_word_masking else info.settings.masked_lm_probability
    counts = {**length.training, **length.held_out}
    for name, rows in counts.items():
        path = folder / "data" / length.folder / name
        verdict = verify_shard(VerifyTask(path, folder / "vocab.txt", rows, probability))
        # So little text may leave a file without a row.
        assert verdict.problems == (() if rows else ("holds no samples",))
    return sum(counts.values())


@contextmanager
def suppress_named(path: Path) -> Iterator[None]:
    """Let an error of ours pass where it names the file."""
    try:
        yield
    except InputError as error:
        if str(path) not in str(error):
            raise


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(text=texts, encoding=encodings, whole_words=st.booleans())
@example(text="", encoding="utf-8", whole_words=False)
@example(text="\u0001\n\nword\n\n\u200b", encoding="utf-8", whole_words=False)
@example(text="w\u00f6rd", encoding="latin-1", whole_words=False)
@example(text="word words.\nword.", encoding="utf-16", whole_words=False)
@example(text="word words word.", encoding="utf-8", whole_words=False)  # a document of one sentence
@example(text="word\n\nword", encoding="utf-8", whole_words=False)  # sentences and documents of one token
@example(text="\n\n \n\nword.\n\n\n\nwords.\n \n", encoding="utf-8", whole_words=False)
@example(text="word " * 10_000 + "\nword.", encoding="utf-8", whole_words=True)
@example(text="\u4e2d\u6587\u3002\n\u0431\u0432\n\u0301\u0301", encoding="utf-8", whole_words=True)
def test_any_text_makes_right_shards_or_a_named_error(text: str, encoding: str, whole_words: bool) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        content = PLAIN + text.encode(encoding, errors="replace")
        with suppress_named(folder / "text.txt"):
            assert check_dataset(folder, build(content, folder, whole_words=whole_words)) > 0


def test_a_sentence_of_ten_thousand_tokens_is_cut_to_rows(tmp_path: Path) -> None:
    info = build(PLAIN + b"word " * 10_000 + b"\nwords.\n\nword words.\n", tmp_path)
    assert check_dataset(tmp_path, info) > 0
    counts = info.counts
    assert counts is not None
    assert counts.tokens_training + counts.tokens_held_out > 10_000


def test_documents_without_a_token_count_for_nothing(tmp_path: Path) -> None:
    empty = "\n\n".join("\u200b" * number for number in range(1, 9)).encode()
    counts = build(PLAIN + empty + b"\n\nwords words.\n\nword word word.\n", tmp_path).counts
    assert counts is not None
    assert counts.documents_read == 12
    assert counts.documents_training + counts.documents_held_out + counts.duplicates_dropped <= 12
    assert counts.documents_training + counts.documents_held_out == 4


def test_lengths_and_rates_of_many_rows_are_the_published_ones(tmp_path: Path) -> None:
    # benchmarks/data/sample_statistics.py prints the same for a million samples of English.
    rng = np.random.default_rng(1)
    documents = [
        "\n".join("word " * int(n) + f"{d}" for n in rng.integers(1, 6, rng.integers(10, 60))) for d in range(300)
    ]
    info = build("\n\n".join(documents).encode(), tmp_path)
    (length,) = info.lengths
    masks = kept = predictions = rows = random_next = 0
    for name in length.training:
        samples = read_shard(tmp_path / "data" / length.folder / name)
        places = samples.masked_lm_positions > 0
        shown = np.take_along_axis(samples.input_ids, samples.masked_lm_positions, axis=1)[places]
        masks += int((shown == 4).sum())
        kept += int((shown == samples.masked_lm_ids[places]).sum())
        predictions += int(places.sum())
        rows += len(samples)
        random_next += int(samples.next_sentence_labels.sum())
        lengths = samples.input_mask.sum(axis=1)
        assert ((samples.masked_lm_positions > 0).sum(axis=1) == np.clip(np.round(lengths * 0.15), 1, 3)).all()
    assert rows > 5000
    # 0.8 and 0.1, and the tenth that is replaced by any of eleven entries, [MASK] and the same one among them.
    assert abs(masks / predictions - (0.8 + 0.1 / 11)) < 5 * (0.16 / predictions) ** 0.5
    assert abs(kept / predictions - (0.1 + 0.1 / 11)) < 5 * (0.1 / predictions) ** 0.5
    assert 0.5 < random_next / rows < 0.7
