"""Documents packed into rows: nothing is lost or doubled, rows are full, and any build makes the same files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bert_job.run_config import DatasetConfig
from bert_trainer.dataset.__main__ import main
from bert_trainer.dataset.build.conversion import convert
from bert_trainer.dataset.build.evaluation_set import pick_evaluation_set
from bert_trainer.dataset.build.pipeline import build_dataset
from bert_trainer.dataset.sampling import shard_samples
from bert_trainer.dataset.sampling.masking import MaskingRule
from bert_trainer.dataset.sampling.packed_documents import pack_documents
from bert_trainer.dataset.sampling.shard_samples import ShardTask, build_shard, draw_shard
from bert_trainer.dataset.shards import ShardFolder, read_header, read_ragged
from bert_trainer.dataset.shards.checks import Origin, SpecialIds, broken_rules
from bert_trainer.dataset.shards.dataset_info import read_dataset_info
from bert_trainer.dataset.shards.ragged import RaggedSamples
from bert_trainer.dataset.tokens.wordpiece import read_vocabulary
from bert_trainer.dataset.workers.pool import WorkerPool
from bert_trainer.errors import InputError
from silent import Silent
from small_build import LENGTHS, build, contents, stage_of
from walks import bits_of, flat, unmasked_rows

ROW = 20


def documents(lengths: list[int]) -> list[list[list[int]]]:
    """Documents of two sentences (or of one token), whose tokens are all different."""
    found, number = [], 1000
    for length in lengths:
        tokens = list(range(number, number + length))
        found.append([part for part in (tokens[: length // 2], tokens[length // 2 :]) if part])
        number += length
    return found


def pack(lengths: list[int], times: list[int] | None = None) -> list[list[list[int]]]:
    """Return the pieces of each row."""
    tokens = flat(documents(lengths))
    asked = np.array(times or [1] * len(lengths), np.int64)
    rows = pack_documents(tokens.bounds, asked, bits_of(1), row_tokens=ROW)
    pieces = [tokens.ids[first : first + n].tolist() for first, n in zip(rows.first, rows.tokens, strict=True)]
    ends = np.cumsum(rows.pieces)
    return [pieces[end - n : end] for end, n in zip(ends.tolist(), rows.pieces.tolist(), strict=True)]


def test_every_token_of_every_document_is_in_exactly_one_row() -> None:
    lengths = np.random.default_rng(5).integers(1, 90, 300).tolist()
    rows = pack(lengths)
    found = sorted(token for row in rows for piece in row for token in piece)
    assert found == list(range(1000, 1000 + sum(lengths)))
    assert max(sum(len(piece) + 2 for piece in row) for row in rows) <= ROW


def test_a_document_is_cut_into_full_pieces_and_a_rest() -> None:
    assert sorted(pack([41])) == [[list(range(1000, 1018))], [list(range(1018, 1036))], [list(range(1036, 1041))]]


def test_a_row_takes_the_longest_piece_that_fits() -> None:
    # 12 + 8 and 10 + 10 tokens with [CLS] and [SEP]; 5 is left over, though it would have fitted behind each 10.
    rows = pack([8, 10, 3, 8, 6])
    assert [[len(piece) for piece in row] for row in rows] == [[10, 6], [8, 8], [3]]


def test_a_document_is_packed_as_often_as_it_is_drawn() -> None:
    rows = pack([4, 5], [3, 0])
    assert sorted(token for row in rows for piece in row for token in piece) == sorted([1000, 1001, 1002, 1003] * 3)


def test_no_documents_make_no_rows() -> None:
    assert pack([]) == []


def test_rows_of_short_and_long_documents_are_nearly_full() -> None:
    lengths = np.random.default_rng(7).geometric(0.02, 4000)
    tokens = flat(documents(lengths.tolist()))
    rows = pack_documents(tokens.bounds, np.ones(4000, np.int64), bits_of(2), row_tokens=128)
    assert (rows.tokens.sum() + 2 * len(rows.tokens)) / (128 * len(rows)) > 0.999


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sixty documents of some to some hundred words."""
    rng = np.random.default_rng(3)
    words = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "[CLS]", "[SEP]"]
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(
        "\n\n".join(
            "\n".join(
                " ".join(rng.choice(words, rng.integers(3, 12)).tolist()) + f" {number} ."
                for _ in range(rng.integers(1, 20))
            )
            for number in range(60)
        )
    )
    return path


@pytest.fixture(scope="module")
def built(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("built")
    build(text, root, samples="documents", dupe_factor=1)
    return root


def rows_of(root: Path, tokens: int = 32) -> RaggedSamples:
    """All rows of a length, with their original tokens."""
    files = sorted((root / f"seq_len_{tokens}_max_pred_{ {32: 5, 64: 10}[tokens] }").glob("*.hdf5"))
    return RaggedSamples.concatenate([read_ragged(file).unmasked() for file in files])


def test_a_build_keeps_every_token(built: Path, text: Path) -> None:
    vocabulary = read_vocabulary(built / "vocab.txt")
    special = (vocabulary.cls_id, vocabulary.sep_id)
    of_length = [rows_of(built, tokens) for tokens in (32, 64)]
    counted = [np.bincount(rows.tokens[~np.isin(rows.tokens, special)]) for rows in of_length]
    np.testing.assert_array_equal(*counted)
    # Every document ends in its number and a full stop, as often as it has sentences.
    sentences = text.read_text().replace("\n\n", "\n").count("\n") + 1
    assert counted[0][vocabulary.tokens.index(".")] == sentences


def test_rows_are_pieces_between_special_tokens(built: Path) -> None:
    vocabulary, rows = read_vocabulary(built / "vocab.txt"), rows_of(built)
    starts = rows.piece_starts()
    assert set(rows.token_starts.tolist()) <= set(starts.tolist())
    assert (rows.tokens[starts] == vocabulary.cls_id).all()
    np.testing.assert_array_equal(np.flatnonzero(rows.tokens == vocabulary.sep_id) + 1, [*starts[1:], len(rows.tokens)])
    np.testing.assert_array_equal(rows.first_segment_counts, rows.token_counts)
    assert not rows.next_sentence_labels.any()
    assert rows.token_counts.sum() / (32 * len(rows)) > 0.9


def test_masks_hide_no_special_token_and_leave_the_pieces(built: Path) -> None:
    vocabulary = read_vocabulary(built / "vocab.txt")
    (file, *_) = sorted((built / "seq_len_64_max_pred_10").glob("training*"))
    rows = read_ragged(file)
    assert rows.prediction_counts.max() == 10
    assert not np.isin(rows.masked_lm_ids, (vocabulary.cls_id, vocabulary.sep_id)).any()
    np.testing.assert_array_equal(rows.piece_starts(), rows.unmasked().piece_starts())


def test_any_number_of_processes_makes_the_same_files(built: Path, text: Path, tmp_path: Path) -> None:
    build(text, tmp_path, samples="documents", dupe_factor=1, num_processes=2)
    assert contents(tmp_path) == contents(built)


def test_a_build_that_was_stopped_goes_on_to_the_same_files(built: Path, text: Path, tmp_path: Path) -> None:
    class Stopping(WorkerPool):
        """Stops after two shards."""

        def run(self, task, tasks):  # type: ignore[no-untyped-def]
            for number, found in enumerate(super().run(task, tasks)):
                if task is build_shard and number == 2:
                    raise KeyboardInterrupt
                yield found

    dataset = DatasetConfig(folder=str(tmp_path), vocabulary_file=None)
    stage = stage_of(text, samples="documents", dupe_factor=1)
    with pytest.raises(KeyboardInterrupt):
        build_dataset(stage, dataset, LENGTHS, Silent(), open_pool=lambda check: Stopping(1, check))
    assert list(tmp_path.rglob("training_*.hdf5"))
    build(text, tmp_path, samples="documents", dupe_factor=1)
    assert contents(tmp_path) == contents(built)


def test_a_shard_that_is_written_in_blocks_has_the_same_bytes(
    built: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_samples, "IN_MEMORY_TOKENS", 0)
    build(text, tmp_path, samples="documents", dupe_factor=1)
    assert contents(tmp_path) == contents(built)


def test_a_build_by_hand_packs_once_and_says_how_full_rows_are(
    text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--samples", "documents", "--length", "32:5", "--vocabulary-size", "120", "--processes", "1"]
    assert main(["build", "--text", str(text), "--output", str(tmp_path), *options]) == 0
    info = read_dataset_info(tmp_path)
    assert info is not None
    assert info.settings.dupe_factor == 1
    (length,) = info.lengths
    assert length.row_tokens_training is not None
    full = length.row_tokens_training / (32 * length.samples_training)
    assert f"; rows are {full:.1%} full\n" in capsys.readouterr().out
    assert full > 0.9


def test_documents_are_verified_and_inspected(built: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(built)]) == 0
    assert "nothing bad" in capsys.readouterr().out
    folder = built / "seq_len_64_max_pred_10"
    assert main(["inspect", str(folder), "--samples", "1", "--processes", "1"]) == 0
    shown = capsys.readouterr().out
    assert "pieces per sample" in shown
    assert "sample 0, documents:" in shown
    assert "random next" not in shown


@pytest.mark.parametrize(
    ("place", "token", "rule"),
    [
        ("first_sep", "word", "has a [CLS] that follows no [SEP], or a [SEP] that no [CLS] follows"),
        ("second_cls", "word", "has a [CLS] that follows no [SEP], or a [SEP] that no [CLS] follows"),
        ("second_word", "sep", "has a [CLS] that follows no [SEP], or a [SEP] that no [CLS] follows"),
    ],
)
def test_a_row_that_is_no_series_of_pieces_is_found(place: str, token: str, rule: str) -> None:
    ids = SpecialIds(cls_id=2, sep_id=3)
    rows = unmasked_rows([[2, 10, 11, 3, 2, 12, 3]])
    origin = Origin(masked=False, own_generator=True, documents=True)

    def broken(rows: RaggedSamples) -> list[str]:
        padded = rows.to_padded(8, 1)
        return list(broken_rules(padded, padded.input_ids, np.zeros(1, np.int64), ids, origin))

    assert broken(rows) == []
    rows.tokens[{"first_sep": 3, "second_cls": 4, "second_word": 2}[place]] = {"word": 13, "sep": 3}[token]
    assert broken(rows) == [rule]


def test_an_empty_piece_and_a_second_segment_are_found() -> None:
    origin = Origin(masked=False, documents=True)
    for row, first, rule in (
        ([2, 3, 2, 12, 3], 5, "has an empty piece"),
        ([2, 11, 3, 2, 12, 3], 3, "has a second segment or a next sentence"),
    ):
        rows = replace(unmasked_rows([row]), first_segment_counts=np.array([first])).to_padded(8, 1)
        found = broken_rules(rows, rows.input_ids, np.zeros(1, np.int64), SpecialIds(2, 3), origin)
        assert list(found) == [rule]


def test_an_evaluation_set_of_documents_is_one_of_documents(built: Path, tmp_path: Path) -> None:
    (source,) = (built / "seq_len_32_max_pred_5").glob("held_out_0000*")
    pick_evaluation_set(source, tmp_path, count=3)
    (picked,) = tmp_path.glob("*.hdf5")
    assert read_header(picked).documents
    assert read_header(picked).rows == 3


def test_a_text_that_holds_special_tokens_is_refused() -> None:
    rule = MaskingRule(probability=0.15, max_predictions=2, vocabulary_size=50, cls_id=2, sep_id=3, mask_id=4)
    task = ShardTask(
        target=Path("training_0000.hdf5"),
        token_paths=(),
        num_groups=1,
        groups=(0,),
        split="training",
        shard=0,
        sequence_length=ROW,
        short_sequence_probability=0.1,
        seed=1,
        masking=rule,
        vocabulary_sha256="0",
        samples="documents",
    )
    with pytest.raises(InputError, match=r"the text holds the token 2, which is the vocabulary's \[CLS\]"):
        draw_shard([[flat([[[10, 11, 2]]])]], task, bits_of(1))


def test_a_dataset_of_pairs_is_not_continued_with_documents(text: Path, tmp_path: Path) -> None:
    build(text, tmp_path)
    with pytest.raises(InputError, match="samples: was pairs, is documents"):
        build(text, tmp_path, samples="documents")


def test_converted_documents_are_documents_and_no_other_layout_takes_them(built: Path, tmp_path: Path) -> None:
    folder = built / "seq_len_32_max_pred_5"
    convert(folder, tmp_path / "copy", "compact")
    assert all(read_header(file).documents for file in (tmp_path / "copy").glob("*.hdf5"))
    with pytest.raises(InputError, match="layout intel cannot hold documents; allowed: compact"):
        convert(folder, tmp_path / "intel", "intel")


def test_a_folder_holds_one_kind_of_rows(built: Path, text: Path, tmp_path: Path) -> None:
    pairs, folder = tmp_path / "pairs", tmp_path / "mixed"
    build(text, pairs, vocabulary_file=str(built / "vocab.txt"))
    folder.mkdir()
    for number, root in enumerate((built, pairs)):
        source = root / "seq_len_32_max_pred_5" / "training_0000.hdf5"
        (folder / f"training_{number:04d}.hdf5").write_bytes(source.read_bytes())
    with pytest.raises(InputError, match="holds pairs, training_0000.hdf5 beside it documents"):
        ShardFolder.open(folder, split="training", sequence_length=32, max_predictions=5, vocabulary=None)
