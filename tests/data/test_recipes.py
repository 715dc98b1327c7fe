"""Published builds by name: their settings, and the names that their loaders look for."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import h5py
import pytest

from bert_job.run_config import DatasetConfig
from bert_job.run_stages import PrepareStage
from bert_trainer.dataset.__main__ import main
from bert_trainer.dataset.build.pipeline import build_dataset
from bert_trainer.dataset.build.recipes import corpus_name
from bert_trainer.dataset.shards import ShardFolder, find_shard_folder, read_header, read_shard
from bert_trainer.dataset.tokens.wordpiece import read_vocabulary
from bert_trainer.errors import InputError
from silent import Silent


def build(text: Path, root: Path, *options: str) -> dict[str, object]:
    base = ["build", "--text", str(text), "--output", str(root), "--vocabulary-size", "120", "--processes", "1"]
    assert main([*base, *options]) == 0
    record: dict[str, object] = json.loads((root / "dataset.json").read_text())
    return record


def settings_of(record: dict[str, object]) -> dict[str, object]:
    settings = record["settings"]
    assert isinstance(settings, dict)
    return settings


def test_nvidia_s_recipe_has_its_settings_and_its_loader_s_names(
    tmp_path: Path, write_corpus: Callable[..., Path]
) -> None:
    root = tmp_path / "data"
    settings = settings_of(build(write_corpus(), root, "--recipe", "nvidia"))
    assert (settings["dupe_factor"], settings["seed"], settings["masked_lm_probability"]) == (5, 12345, 0.15)
    for tokens, predictions in ((128, 20), (512, 80)):
        folder = root / (
            f"hdf5_lower_case_1_seq_len_{tokens}_max_pred_{predictions}"
            "_masked_lm_prob_0.15_random_seed_12345_dupe_factor_5/text"
        )
        assert find_shard_folder(root, tokens, predictions) == folder
        # NVIDIA's loader takes every file with "training" in its name.
        files = sorted(path.name for path in folder.iterdir() if "training" in path.name)
        # As many of the recipe's 256 as 35 documents fill.
        assert files == sorted(f"text_training_{number}.hdf5" for number in range(17))
        assert {read_header(folder / name).layout for name in files} == {"nvidia"}
        assert (folder / "text_test_0.hdf5").is_file()
        vocabulary = read_vocabulary(root / "vocab.txt")
        opened = ShardFolder.open(
            folder, split="held_out", sequence_length=tokens, max_predictions=predictions, vocabulary=vocabulary
        )
        assert opened.num_samples > 0
    assert main(["verify", str(root)]) == 0


def test_a_corpus_may_be_renamed_while_its_shards_are_made(tmp_path: Path, write_corpus: Callable[..., Path]) -> None:
    text, root = write_corpus(), tmp_path / "data"
    options = ("--recipe", "nvidia", "--length", "64:10")
    build(text, root, *options)
    folder = find_shard_folder(root, 64, 10)
    (folder / "text_training_3.hdf5").unlink()
    build(text.rename(tmp_path / "other"), root, *options)
    assert find_shard_folder(root, 64, 10) == folder
    assert (folder / "text_training_3.hdf5").is_file()


@pytest.mark.parametrize(
    ("paths", "name"),
    [
        (["/data/enwiki-20200101.xml.bz2"], "enwiki_20200101"),
        (["builtin:python-docs"], "python_docs"),
        (["books", "wiki.txt"], "books_wiki"),
        (["my_training/Test"], "corpus"),
        (["pretraining_test.txt"], "pretext"),
        (["/данные"], "corpus"),
    ],
)
def test_no_name_of_a_corpus_names_a_split(paths: list[str], name: str) -> None:
    assert corpus_name(paths) == name


def test_mlperf_s_recipe_has_76_predictions_and_numbered_parts(
    tmp_path: Path, write_corpus: Callable[..., Path]
) -> None:
    root = tmp_path / "data"
    # Forty documents cannot fill 500 parts.
    options = ("--recipe", "mlperf", "--shards", "3", "--length", "128:76", "--balanced-shards", "7")
    settings = settings_of(build(write_corpus(), root, *options))
    assert (settings["dupe_factor"], settings["num_shards"], settings["recipe"]) == (10, 3, "mlperf")
    parts = sorted(path.name for path in (root / "hdf5_seq_128").glob("part*"))
    assert parts == [f"part-{number:05d}-of-00003.hdf5" for number in range(3)]
    assert read_shard(root / "hdf5_seq_128" / parts[0]).masked_lm_positions.shape[1] == 76
    cut = root / "2048_shards_uncompressed_128"
    assert find_shard_folder(root, 128, 76) == cut
    assert sorted(path.name for path in cut.iterdir()) == [f"part_{number}_of_7.hdf5" for number in range(7)]
    assert main(["verify", str(root)]) == 0


def rows_of(path: Path) -> list[bytes]:
    samples = read_shard(path)
    return [samples.input_ids[row].tobytes() + samples.masked_lm_ids[row].tobytes() for row in range(len(samples))]


def test_balanced_shards_hold_every_sample_once_in_uncompressed_files_of_equal_size(
    tmp_path: Path, write_corpus: Callable[..., Path]
) -> None:
    root = tmp_path / "data"
    options = ("--recipe", "mlperf", "--shards", "3", "--length", "64:12", "--balanced-shards", "7")
    record = build(write_corpus(), root, *options)
    parts = sorted((root / "hdf5_seq_64").glob("part*"))
    cut = [root / "2048_shards_uncompressed_64" / f"part_{number}_of_7.hdf5" for number in range(7)]
    assert [row for path in parts for row in rows_of(path)] == [row for path in cut for row in rows_of(path)]
    headers = [read_header(path) for path in cut]
    assert {header.layout for header in headers} == {"intel"}
    sizes = [header.rows for header in headers]
    assert max(sizes) - min(sizes) <= 1
    lengths = record["lengths"]
    assert isinstance(lengths, list)
    assert lengths[0]["balanced"]["training"] == {path.name: size for path, size in zip(cut, sizes, strict=True)}
    assert lengths[0]["samples_training"] == sum(sizes)


def test_the_parts_hold_what_intel_s_chop_reads_once_they_are_converted(
    tmp_path: Path, write_corpus: Callable[..., Path]
) -> None:
    root, converted = tmp_path / "data", tmp_path / "converted"
    build(write_corpus(), root, "--recipe", "mlperf", "--shards", "1", "--length", "64:12", "--balanced-shards", "2")
    assert main(["convert", str(root / "hdf5_seq_64"), str(converted), "--layout", "nvidia"]) == 0
    read = {"input_ids", "input_mask", "segment_ids", "masked_lm_positions", "masked_lm_ids", "next_sentence_labels"}
    with h5py.File(root / "hdf5_seq_64" / "part-00000-of-00001.hdf5") as file:
        assert "input_ids" not in file
    with h5py.File(converted / "part-00000-of-00001.hdf5") as file:
        assert set(file) == read
    page = Path(__file__).parents[2] / "docs" / "concepts" / "data-build.md"
    assert "`bert-data convert` them to `--layout nvidia` first" in page.read_text()


def test_sequence_length_and_number_of_shards_may_come_from_the_environment(
    tmp_path: Path, write_corpus: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEQ_LEN", "64")
    monkeypatch.setenv("SHARD_NUM", "5")
    text = write_corpus()
    build(text, tmp_path / "mlperf", "--recipe", "mlperf", "--shards", "2")
    found = {path.relative_to(tmp_path / "mlperf").as_posix() for path in (tmp_path / "mlperf").rglob("*.hdf5")}
    assert found == {
        *(f"hdf5_seq_64/part-{number:05d}-of-00002.hdf5" for number in range(2)),
        *(f"2048_shards_uncompressed_64/part_{number}_of_5.hdf5" for number in range(5)),
        "hdf5_seq_64/held_out_0000.hdf5",
    }
    # Options win; other recipes know no such variables.
    build(
        text, tmp_path / "options", "--recipe", "mlperf", "--shards", "2", "--length", "32:8", "--balanced-shards", "3"
    )
    assert len(list((tmp_path / "options" / "2048_shards_uncompressed_32").iterdir())) == 3
    build(text, tmp_path / "ours", "--shards", "2", "--length", "32:8")
    assert not list((tmp_path / "ours").glob("2048*"))
    assert main(["chop", str(tmp_path / "ours" / "seq_len_32_max_pred_8"), str(tmp_path / "cut")]) == 0
    assert len(list((tmp_path / "cut").glob("part_*_of_5.hdf5"))) == 5


@pytest.mark.parametrize("value", ["many", "0", "-1", "2.5"])
def test_a_variable_that_is_no_number_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], value: str
) -> None:
    monkeypatch.setenv("SHARD_NUM", value)
    assert main(["build", "--text", "x", "--output", str(tmp_path), "--recipe", "mlperf"]) == 2
    assert f"SHARD_NUM: got '{value}' in the environment; allowed: a whole number" in capsys.readouterr().err


def test_fewer_samples_than_shards_are_refused_with_the_number_that_would_do(
    tmp_path: Path, write_corpus: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "data"
    base = ["build", "--text", str(write_corpus()), "--output", str(root), "--vocabulary-size", "120"]
    base += ["--processes", "1", "--recipe", "mlperf", "--shards", "2", "--length", "512:76"]
    assert main([*base, "--balanced-shards", "100000"]) == 2
    message = capsys.readouterr().err
    assert "training samples for 100000 shards; allowed: at least one" in message
    assert "SHARD_NUM" in message
    assert json.loads((root / "dataset.json").read_text())["complete"] is False


def test_interrupted_or_damaged_resharding_resumes_to_the_same_bytes(
    tmp_path: Path, write_corpus: Callable[..., Path]
) -> None:
    text, root = write_corpus(), tmp_path / "data"
    options = ("--recipe", "mlperf", "--shards", "2", "--length", "64:12", "--balanced-shards", "4")
    build(text, root, *options)
    cut = root / "2048_shards_uncompressed_64"
    wanted = {path.name: path.read_bytes() for path in cut.iterdir()}
    kept = (cut / "part_0_of_4.hdf5").stat().st_ino
    (cut / "part_1_of_4.hdf5").unlink()
    (cut / "part_2_of_4.hdf5").write_bytes(b"damaged")
    with pytest.raises(InputError, match=r"2048_shards_uncompressed_64: 1 of 4 shards are missing, first part_1_of_4"):
        ShardFolder.open(cut, split="training", sequence_length=64, max_predictions=12, vocabulary=None)
    build(text, root, *options)
    assert {path.name: path.read_bytes() for path in cut.iterdir()} == wanted
    assert (cut / "part_0_of_4.hdf5").stat().st_ino == kept


def test_the_layout_of_a_recipe_may_be_another(tmp_path: Path, write_corpus: Callable[..., Path]) -> None:
    root = tmp_path / "data"
    build(write_corpus(), root, "--recipe", "nvidia", "--length", "64:10", "--layout", "mlperf")
    assert {read_header(path).layout for path in root.rglob("*.hdf5")} == {"mlperf"}


def test_a_build_says_what_is_its_recipe_s(
    tmp_path: Path, write_corpus: Callable[..., Path], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    root = tmp_path / "data"
    build(
        write_corpus(), root, "--recipe", "mlperf", "--length", "64:12", "--dupe-factor", "5", "--balanced-shards", "4"
    )
    (line,) = (record.message for record in caplog.records if record.message.startswith("recipe "))
    assert line == (
        "recipe mlperf: masked_lm_probability 0.15, short_sequence_probability 0.1, seed 12345, num_shards 500, "
        "layout intel; not the recipe's: dupe_factor 5 (recipe: 10), num_balanced_shards 4 (recipe: 2048)"
    )


def files_of(root: Path) -> dict[Path, tuple[bytes, int]]:
    return {path: (path.read_bytes(), path.stat().st_ino) for path in root.rglob("*") if path.is_file()}


def test_a_dataset_of_the_release_before_is_neither_built_again_nor_refused_without_a_way_on(
    tmp_path: Path, write_corpus: Callable[..., Path]
) -> None:
    text, root = write_corpus(), tmp_path / "data"
    config = DatasetConfig(folder=str(root))
    begun = PrepareStage(
        text=str(text), vocabulary_size=120, num_processes=1, recipe="mlperf", num_balanced_shards=4, num_shards=8
    )
    # That release let the text decide on the number of parts.
    info = build_dataset(begun, config, [(64, 12)], Silent())
    info.model_copy(update={"settings": info.settings.model_copy(update={"num_shards": None})}).write(root)
    before = files_of(root)
    now = begun.model_copy(update={"num_shards": None, "dupe_factor": 10})
    with pytest.raises(InputError) as refused:
        build_dataset(now, config, [(64, 61)], Silent())
    assert str(refused.value).splitlines()[1:3] == [
        "  dupe_factor: was 5, is 10",
        "  predictions per sequence at 64 tokens: was 12, is 61",
    ]
    assert "to keep this dataset write dupeFactor: 5, maxPredictionsPerSequence: 12 wherever 64 tokens are read" in str(
        refused.value
    )
    # As the message says.
    build_dataset(now.model_copy(update={"dupe_factor": 5}), config, [(64, 12)], Silent())
    assert files_of(root) == before
    # Another text is another dataset, whatever the rest.
    with pytest.raises(InputError) as other:
        build_dataset(now.model_copy(update={"text": str(write_corpus(30, "other"))}), config, [(64, 12)], Silent())
    assert "to keep this dataset" not in str(other.value)
    assert files_of(root) == before


def test_one_folder_does_not_take_shards_of_two_numbers_of_predictions(
    tmp_path: Path, write_corpus: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "data"
    base = ["build", "--text", str(write_corpus()), "--output", str(root), "--vocabulary-size", "120"]
    base += ["--processes", "1", "--recipe", "mlperf", "--shards", "2", "--balanced-shards", "4"]
    assert main([*base, "--length", "64:12", "--length", "64:20"]) == 2
    assert "got 12 and 20 predictions per sequence at 64 tokens" in capsys.readouterr().err
    assert not root.exists()


def test_conflicting_options_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = ["build", "--text", "x", "--output", str(tmp_path), "--length", "64:10"]
    assert main([*base, "--balanced-shards", "3"]) == 2
    assert main([*base, "--masking", "dynamic", "--layout", "intel"]) == 2
    message = capsys.readouterr().err
    assert "--balanced-shards: got 3 with recipe null; allowed: only with recipe: mlperf" in message
    assert "--layout: got intel with masking dynamic; allowed: compact with masking: dynamic" in message


def test_a_dataset_of_one_recipe_is_not_mixed_with_another(
    tmp_path: Path, write_corpus: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    text, root = write_corpus(), tmp_path / "data"
    build(text, root, "--recipe", "nvidia", "--length", "128:20")
    base = ["build", "--text", str(text), "--output", str(root), "--vocabulary-size", "120", "--length", "128:20"]
    assert main(base) == 2
    assert "recipe: was nvidia, is None" in capsys.readouterr().err


def test_whole_word_masking_masks_the_pieces_of_a_word_together(
    tmp_path: Path, write_corpus: Callable[..., Path]
) -> None:
    root = tmp_path / "data"
    settings = settings_of(build(write_corpus(), root, "--length", "64:10", "--whole-word-masking"))
    assert settings["whole_word_masking"] is True
    continuations = read_vocabulary(root / "vocab.txt").continuations
    broken = words = 0
    for path in sorted((root / "seq_len_64_max_pred_10").glob("training*")):
        samples = read_shard(path)
        for row in range(len(samples)):
            chosen = {int(position) for position in samples.masked_lm_positions[row] if position}
            tokens = samples.input_ids[row].copy()
            for position, label in zip(samples.masked_lm_positions[row], samples.masked_lm_ids[row], strict=True):
                if position:
                    tokens[position] = label
            for position in range(1, 64):
                if continuations[tokens[position]] and tokens[position - 1] not in (2, 3):
                    words += 1
                    broken += (position in chosen) != (position - 1 in chosen)
    assert words > 1000
    assert broken == 0
