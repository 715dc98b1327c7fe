"""A dataset is the same bytes however it was made, and is never mixed with another one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from bert_job.run_config import DatasetConfig
from bert_trainer.dataset.build.passes import CorpusPasses
from bert_trainer.dataset.build.pipeline import build_dataset
from bert_trainer.dataset.quality.verification import VerifyTask, verify_shard
from bert_trainer.dataset.shards import ShardFolder
from bert_trainer.dataset.tokens.wordpiece import read_vocabulary
from bert_trainer.errors import InputError, TrainerError
from silent import Silent
from small_build import LENGTHS, build, contents, stage_of

NAMES = ["held_out_0000.hdf5", "training_0000.hdf5", "training_0001.hdf5", "training_0002.hdf5"]


class Halted(TrainerError):
    """A stop between two shards."""


def stop_after(num_checks: int) -> Callable[[], None]:
    left = [num_checks]

    def check() -> None:
        left[0] -= 1
        if left[0] < 0:
            raise Halted("stopped here")

    return check


def test_a_build_writes_vocabulary_shards_and_dataset_json(tmp_path: Path, write_corpus: Callable[..., Path]) -> None:
    info = build(write_corpus(), tmp_path / "data")
    files = contents(tmp_path / "data")
    assert sorted(files) == [
        *(f"seq_len_32_max_pred_5/{name}" for name in NAMES),
        *(f"seq_len_64_max_pred_10/{name}" for name in NAMES),
        "vocab.txt",
    ]
    written = json.loads((tmp_path / "data" / "dataset.json").read_text())
    assert written == info.model_dump(mode="json")
    assert written["complete"] is True
    counts = written["counts"]
    assert counts["documents_read"] == 40
    assert counts["documents_training"] + counts["documents_held_out"] == 40
    assert counts["duplicates_dropped"] == 0
    vocabulary = read_vocabulary(tmp_path / "data" / "vocab.txt")
    assert written["vocabulary_sha256"] == vocabulary.sha256
    for length in written["lengths"]:
        folder = ShardFolder.open(
            tmp_path / "data" / length["folder"],
            split="training",
            sequence_length=length["sequence_length"],
            max_predictions=length["max_predictions"],
            vocabulary=vocabulary,
        )
        assert dict(zip([path.name for path in folder.paths], folder.rows, strict=True)) == length["training"]
        assert folder.num_samples == length["samples_training"]
        for path, rows in zip(folder.paths, folder.rows, strict=True):
            assert verify_shard(VerifyTask(path, tmp_path / "data" / "vocab.txt", rows, 0.15)).problems == ()


def test_any_number_of_processes_writes_the_same_bytes(tmp_path: Path, write_corpus: Callable[..., Path]) -> None:
    text = write_corpus()
    build(text, tmp_path / "one", num_processes=1)
    build(text, tmp_path / "two", num_processes=2)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


@pytest.mark.parametrize("num_checks", [0, 1, 3, 5, 8])
def test_an_interrupted_build_resumes_to_the_same_bytes(
    tmp_path: Path, write_corpus: Callable[..., Path], num_checks: int
) -> None:
    text, root, dataset = write_corpus(), tmp_path / "data", DatasetConfig(folder=str(tmp_path / "data"))
    build(text, tmp_path / "whole")
    with pytest.raises(Halted):
        build_dataset(stage_of(text), dataset, LENGTHS, Silent(), check=stop_after(num_checks))
    assert json.loads((root / "dataset.json").read_text())["complete"] is False
    kept = {path: path.stat().st_mtime_ns for path in root.rglob("*.hdf5")}
    build(text, root)
    assert contents(root) == contents(tmp_path / "whole")
    assert {path: path.stat().st_mtime_ns for path in kept} == kept


def interrupt_at_the_first_shard(text: Path, root: Path) -> None:
    def stop() -> None:
        if list(root.rglob("*.hdf5")):
            raise Halted("stop")

    with pytest.raises(Halted):
        build_dataset(stage_of(text), DatasetConfig(folder=str(root)), LENGTHS, Silent(), check=stop)


def test_a_build_interrupted_among_its_shards_does_not_encode_the_text_again(
    tmp_path: Path, write_corpus: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    text, root = write_corpus(), tmp_path / "data"
    build(text, tmp_path / "whole")

    def encode_again(self: CorpusPasses) -> None:
        pytest.fail("the text was read again")

    interrupt_at_the_first_shard(text, root)
    monkeypatch.setattr(CorpusPasses, "_read_texts", encode_again)
    build(text, root)
    assert contents(root) == contents(tmp_path / "whole")


def test_a_build_encodes_the_text_again_where_its_vocabulary_has_changed(
    tmp_path: Path, write_corpus: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    text, root = write_corpus(), tmp_path / "data"

    def encode_again(self: CorpusPasses) -> None:
        raise Halted("the text is read again")

    interrupt_at_the_first_shard(text, root)
    tokens = (root / "vocab.txt").read_text().split()
    (root / "vocab.txt").write_text("\n".join([*tokens[:5], *reversed(tokens[5:])]))
    monkeypatch.setattr(CorpusPasses, "_read_texts", encode_again)
    with pytest.raises(Halted, match="read again"):
        build(text, root)


def parts_of(told: Silent) -> list[tuple[object, object]]:
    return [(it["kept"], it["saved"]) for it in told.records if it["event"] == "progress"]


def test_a_build_tells_which_parts_it_has_found_and_which_are_finished(
    tmp_path: Path, write_corpus: Callable[..., Path]
) -> None:
    text, dataset = write_corpus(), DatasetConfig(folder=str(tmp_path / "data"))
    num_shards, first, second = len(NAMES) * len(LENGTHS), Silent(), Silent()

    def stop() -> None:
        if parts_of(first)[-1:] == [(None, 3)]:
            raise Halted("stop")

    with pytest.raises(Halted):
        build_dataset(stage_of(text), dataset, LENGTHS, first, check=stop)
    assert parts_of(first)[0] == (None, None), "nothing is kept before the whole text is encoded"
    assert parts_of(first)[-1] == (None, 3), "the encoded text, and two shards"
    found = 1 + len(list((tmp_path / "data").rglob("*.hdf5")))
    build_dataset(stage_of(text), dataset, LENGTHS, second, check=lambda: None)
    assert found >= 3
    assert parts_of(second)[0] == (found, found)
    assert parts_of(second)[-1] == (found, 1 + num_shards)


def test_token_files_that_are_gone_are_written_again(tmp_path: Path, write_corpus: Callable[..., Path]) -> None:
    """As a finished build leaves them that was killed while it deleted its scratch files."""
    text, root = write_corpus(), tmp_path / "data"
    build(text, tmp_path / "whole")
    interrupt_at_the_first_shard(text, root)
    (saved,) = root.rglob("prepared.json")
    for tokens in saved.parent.glob("tokens_*"):
        tokens.unlink()
    build(text, root)
    assert contents(root) == contents(tmp_path / "whole")


def test_an_incomplete_dataset_is_not_trained_on(tmp_path: Path, write_corpus: Callable[..., Path]) -> None:
    dataset = DatasetConfig(folder=str(tmp_path / "data"))
    with pytest.raises(Halted):
        build_dataset(stage_of(write_corpus()), dataset, LENGTHS, Silent(), check=stop_after(8))
    with pytest.raises(InputError, match="the dataset is not complete"):
        ShardFolder.open(
            tmp_path / "data" / "seq_len_32_max_pred_5",
            split="training",
            sequence_length=32,
            max_predictions=5,
            vocabulary=None,
        )


def test_a_complete_dataset_is_left_alone(tmp_path: Path, write_corpus: Callable[..., Path]) -> None:
    text, reports = write_corpus(), Silent()
    first = build(text, tmp_path / "data")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "data").rglob("*")}
    again = build_dataset(
        stage_of(text), DatasetConfig(folder=str(tmp_path / "data")), LENGTHS, reports, check=stop_after(0)
    )
    assert again == first
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "data").rglob("*")} == before
    assert [record["event"] for record in reports.records] == ["stage_started", "progress", "stage_finished"]
    assert reports.records[1]["step"] == reports.records[1]["steps"]


def test_moved_text_with_the_same_content_is_the_same_text(tmp_path: Path, write_corpus: Callable[..., Path]) -> None:
    build(write_corpus(), tmp_path / "data")
    build(write_corpus(name="elsewhere"), tmp_path / "data")
    with pytest.raises(InputError, match=r"(?s)other settings.*text: was .*, is .*more with other content"):
        build(write_corpus(41, name="more"), tmp_path / "data")


def test_missing_and_damaged_shards_are_rebuilt(tmp_path: Path, write_corpus: Callable[..., Path]) -> None:
    text, root = write_corpus(), tmp_path / "data"
    build(text, root)
    before = contents(root)
    (root / "seq_len_32_max_pred_5" / NAMES[1]).unlink()
    (root / "seq_len_32_max_pred_5" / NAMES[2]).write_bytes(b"damaged")
    with pytest.raises(InputError, match=r"1 of 3 shards are missing, first training_0000\.hdf5"):
        ShardFolder.open(
            root / "seq_len_32_max_pred_5",
            split="training",
            sequence_length=32,
            max_predictions=5,
            vocabulary=None,
        )
    build(text, root)
    assert contents(root) == before


def test_another_length_is_added_to_a_dataset(tmp_path: Path, write_corpus: Callable[..., Path]) -> None:
    text, dataset = write_corpus(), DatasetConfig(folder=str(tmp_path / "data"))
    build_dataset(stage_of(text), dataset, [(32, 5)], Silent())
    info = build_dataset(stage_of(text), dataset, [(64, 10)], Silent())
    assert [length.folder for length in info.lengths] == ["seq_len_32_max_pred_5", "seq_len_64_max_pred_10"]
    build(text, tmp_path / "both")
    assert contents(tmp_path / "data") == contents(tmp_path / "both")


def test_other_settings_are_refused_and_listed(tmp_path: Path, write_corpus: Callable[..., Path]) -> None:
    text = write_corpus()
    build(text, tmp_path / "data")
    with pytest.raises(InputError, match=r"(?s)other settings\n  dupe_factor: was 5, is 6\n  seed: was 12345, is 7\n"):
        build(text, tmp_path / "data", dupe_factor=6, seed=7)


def test_shards_of_unknown_origin_are_not_built_over(tmp_path: Path, write_corpus: Callable[..., Path]) -> None:
    text, root = write_corpus(), tmp_path / "data"
    build(text, root)
    (root / "dataset.json").unlink()
    with pytest.raises(InputError, match=r"holds shards, but .* has no dataset\.json"):
        build(text, root)


def test_a_given_vocabulary_is_used_and_kept_beside_the_shards(
    tmp_path: Path, write_corpus: Callable[..., Path]
) -> None:
    text = write_corpus()
    build(text, tmp_path / "first", vocabulary_size=100)
    vocabulary = tmp_path / "first" / "vocab.txt"
    info = build(text, tmp_path / "second", vocabulary_file=str(vocabulary))
    assert info.settings.vocabulary == info.vocabulary_sha256 == read_vocabulary(vocabulary).sha256
    assert contents(tmp_path / "second") == contents(tmp_path / "first")
    build(text, tmp_path / "second")
    build(text, tmp_path / "first", vocabulary_file=str(vocabulary))
    with pytest.raises(InputError, match="cannot read the vocabulary"):
        build(text, tmp_path / "third", vocabulary_file=str(tmp_path / "none.txt"))


def test_a_vocabulary_in_the_dataset_s_folder_is_not_replaced(
    tmp_path: Path, write_corpus: Callable[..., Path]
) -> None:
    text = write_corpus()
    build(text, tmp_path / "first", vocabulary_size=100)
    (tmp_path / "data").mkdir()
    content = (tmp_path / "first" / "vocab.txt").read_bytes()
    (tmp_path / "data" / "vocab.txt").write_bytes(content)
    build(text, tmp_path / "data", vocabulary_size=500)
    assert (tmp_path / "data" / "vocab.txt").read_bytes() == content


def test_a_vocabulary_changed_after_the_build_is_noticed(tmp_path: Path, write_corpus: Callable[..., Path]) -> None:
    text = write_corpus()
    build(text, tmp_path / "data")
    with (tmp_path / "data" / "vocab.txt").open("a") as file:
        file.write("another\n")
    with pytest.raises(InputError, match=r"vocab\.txt: not the vocabulary that .* was built with"):
        build(text, tmp_path / "data")


def test_held_out_documents_are_those_of_the_text_and_not_of_its_order(
    tmp_path: Path, make_document: Callable[..., list[str]]
) -> None:
    texts = ["\n".join(make_document(number)) for number in range(60)]
    vocabularies = []
    for name, ordered in (("forward", texts), ("backward", texts[::-1])):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.txt").write_text("\n\n".join(ordered))
        info = build(tmp_path / name, tmp_path / f"{name}-data")
        assert info.counts is not None
        assert 1 <= info.counts.documents_held_out <= 15
        vocabularies.append(info.vocabulary_sha256)
    # The vocabulary is learnt from the training documents: the same ones in both.
    assert vocabularies[0] == vocabularies[1]


def test_near_duplicates_of_held_out_documents_are_not_trained_on(
    tmp_path: Path, make_document: Callable[..., list[str]]
) -> None:
    (tmp_path / "text").mkdir()
    documents = [make_document(number) for number in range(30)]
    copies = [[f"copy {number % 3} of", *document[1:]] for document in documents for number in range(2)]
    lines = ["\n".join(document) for document in [*documents, *copies]]
    (tmp_path / "text" / "a.txt").write_text("\n\n".join(lines))
    info = build(tmp_path / "text", tmp_path / "data", near_duplicate_similarity=0.6)
    assert info.counts is not None
    assert info.counts.documents_read == 90
    assert info.counts.duplicates_dropped == 60
    assert info.counts.documents_training + info.counts.documents_held_out == 30


def test_tiny_texts_are_split_into_both_sides_or_refused(tmp_path: Path) -> None:
    (tmp_path / "two.txt").write_text("a b c d.\n\ne f g h.\n")
    counts = build(tmp_path / "two.txt", tmp_path / "data").counts
    assert counts is not None
    assert (counts.documents_training, counts.documents_held_out) == (1, 1)
    (tmp_path / "one.txt").write_text("a b c d.\n\na b c d.\n")
    with pytest.raises(InputError, match=r"one\.txt: 1 of 2 documents are left .*at least 2 are needed"):
        build(tmp_path / "one.txt", tmp_path / "other")


def test_few_documents_give_few_shards(
    tmp_path: Path, write_corpus: Callable[..., Path], caplog: pytest.LogCaptureFixture
) -> None:
    info = build(write_corpus(6), tmp_path / "data", num_shards=8)
    assert list(info.lengths[0].training) == ["training_0000.hdf5", "training_0001.hdf5"]
    assert "5 training documents are too few for 8 shards; making 2" in caplog.text


def test_shards_hold_about_equal_numbers_of_samples(tmp_path: Path, write_corpus: Callable[..., Path]) -> None:
    rows = list(build(write_corpus(80), tmp_path / "data").lengths[0].training.values())
    assert max(rows) < 1.2 * min(rows)


def test_no_two_shards_and_lengths_share_their_random_numbers(tmp_path: Path) -> None:
    (tmp_path / "text").mkdir()
    rng = np.random.default_rng(0)
    texts = ["\n".join(" ".join(rng.choice(list("abcdefgh"), 9)) for _ in range(20)) for _ in range(40)]
    (tmp_path / "text" / "a.txt").write_text("\n\n".join(texts))
    build(tmp_path / "text", tmp_path / "data", num_shards=2)
    folder = ShardFolder.open(
        tmp_path / "data" / "seq_len_32_max_pred_5",
        split="training",
        sequence_length=32,
        max_predictions=5,
        vocabulary=None,
    )
    first, second = (folder.read_ragged(number).to_padded(32, 5) for number in range(2))
    rows = min(len(first), len(second))
    agree = (first.masked_lm_positions[:rows] == second.masked_lm_positions[:rows]).all(axis=1)
    assert agree.mean() < 0.1


def test_a_second_builder_is_refused(tmp_path: Path, write_corpus: Callable[..., Path]) -> None:
    text, root = write_corpus(), tmp_path / "data"
    met: list[TrainerError] = []

    def build_inside() -> None:
        if not met:
            with pytest.raises(TrainerError, match="another process is building here") as caught:
                build(text, root)
            met.append(caught.value)

    build_dataset(stage_of(text), DatasetConfig(folder=str(root)), LENGTHS, Silent(), check=build_inside)
    assert met


def test_lengths_must_be_possible(tmp_path: Path, write_corpus: Callable[..., Path]) -> None:
    dataset = DatasetConfig(folder=str(tmp_path / "data"))
    with pytest.raises(InputError, match="length 32:30: allowed are 8 to 32768 tokens and 1 to 29 predictions"):
        build_dataset(stage_of(write_corpus()), dataset, [(32, 30)], Silent())
    assert not (tmp_path / "data").exists()


def test_without_lengths_the_vocabulary_alone_is_built_and_shards_may_follow(
    tmp_path: Path, write_corpus: Callable[..., Path]
) -> None:
    text, root = write_corpus(), tmp_path / "data"
    dataset = DatasetConfig(folder=str(root))
    info = build_dataset(stage_of(text), dataset, [], Silent())
    assert (info.complete, info.lengths) == (True, ())
    assert sorted(contents(root)) == ["vocab.txt"]
    built_at = (root / "dataset.json").stat().st_mtime_ns
    assert build_dataset(stage_of(text), dataset, [], Silent()) == info
    assert (root / "dataset.json").stat().st_mtime_ns == built_at
    build(text, tmp_path / "at once")
    build(text, root)
    assert contents(root) == contents(tmp_path / "at once")
