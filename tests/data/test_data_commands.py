"""``bert-data`` does by hand and as a job's child what it says, with exit codes that mean something."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest

from bert_job.run_config import RunConfig
from bert_job.run_stages import FinetuneStage
from bert_trainer.dataset.__main__ import main
from bert_trainer.dataset.commands.build import wanted_lengths
from relayout import relayout
from small_dumps import multistream, page
from tiny_finetune import finetune_stage
from whole_configs import whole_document

SMALL = ["--vocabulary-size", "120", "--shards", "2", "--processes", "1"]


def build(text: Path, root: Path, *options: str) -> int:
    return main(["build", "--text", str(text), "--output", str(root), *SMALL, *options])


def run_config(text: Path, folder: Path, **changes: object) -> RunConfig:
    document = {
        "job": {"name": "tiny", "uid": "uid-1"},
        "output_folder": str(folder),
        "model": {
            "hidden_size": 8,
            "num_hidden_layers": 1,
            "num_attention_heads": 1,
            "intermediate_size": 8,
        },
        "dataset": {"folder": str(folder / "data")},
        "stages": [
            {
                "kind": "prepare",
                "name": "prepare",
                "text": str(text),
                "vocabulary_size": 120,
                "num_shards": 2,
                "num_processes": 1,
            },
            {
                "kind": "pretrain",
                "name": "phase1",
                "sequence_length": 32,
                "max_predictions_per_sequence": 5,
                "global_batch_size": 4,
                "micro_batch_size": 4,
                "length": {"steps": 2},
                "learning_rate": 0.001,
            },
            {"kind": "evaluate", "sequence_length": 32, "max_predictions_per_sequence": 5},
        ],
        **changes,
    }
    return RunConfig.model_validate_json(json.dumps(whole_document(document)))


def write_config(path: Path, config: RunConfig) -> Path:
    path.write_text(config.model_dump_json())
    return path


def test_lengths_are_given_in_two_ways(
    tmp_path: Path, write_corpus: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    text = write_corpus()
    assert build(text, tmp_path / "one", "--length", "32:5", "--length", "64:10") == 0
    pairs = ["--sequence-length", "32", "--max-predictions", "5", "--sequence-length", "64"]
    assert build(text, tmp_path / "two", *pairs, "--max-predictions", "10") == 0
    names = [sorted(path.name for path in (tmp_path / root).glob("seq_len*")) for root in ("one", "two")]
    assert names == [["seq_len_32_max_pred_5", "seq_len_64_max_pred_10"]] * 2
    assert "seq_len_64_max_pred_10: " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--length", "32:5", "--dupe-factor", "0"], "--dupe-factor: got 0; Input should be greater than"),
        ([], "build: needs a"),
        (["--sequence-length", "32"], "got 1 --sequence-length and 0 --max-predictions"),
        (["--length", "32:40"], "length 32:40: allowed are 8 to 32768 tokens and 1 to 29 predictions"),
        (["--length", "40000:20"], "length 40000:20: allowed are 8 to 32768 tokens and 1 to 39997 predictions"),
        (["--length", "32:5", "--vocabulary", "none.txt"], "none.txt: cannot read the vocabulary"),
    ],
    ids=["range", "no length", "half a pair", "too many predictions", "too many tokens", "no vocabulary"],
)
def test_wrong_options_end_with_exit_code_2_and_name_themselves(
    tmp_path: Path,
    write_corpus: Callable[..., Path],
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    message: str,
) -> None:
    assert build(write_corpus(), tmp_path / "data", *options) == 2
    assert message in capsys.readouterr().err


def test_inspect_shows_samples_with_their_masks(
    tmp_path: Path, write_corpus: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    build(write_corpus(), tmp_path / "data", "--length", "32:5")
    capsys.readouterr()
    assert main(["inspect", str(tmp_path / "data" / "seq_len_32_max_pred_5"), "--samples", "3"]) == 0
    shown = capsys.readouterr().out
    assert shown.count("samples of 32 tokens, 5 predictions at most") == 2
    assert "(training): " in shown
    assert shown.count("[CLS]") >= 6
    assert "-> [MASK]}" in shown
    assert "padding " in shown
    assert "29 to   32" in shown


def test_verify_passes_what_build_made(
    tmp_path: Path, write_corpus: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    build(write_corpus(), tmp_path / "data", "--length", "32:5", "--length", "64:10")
    capsys.readouterr()
    assert main(["verify", str(tmp_path / "data")]) == 0
    assert capsys.readouterr().out == "6 shard(s) checked, nothing bad\n"


@pytest.mark.parametrize(
    ("dataset", "index", "value", "message"),
    [
        ("input_ids", (3, 0), 7, "1 row(s), the first is 3: does not begin with [CLS]"),
        ("input_mask", (3, 0), 0, "row 3 has padding before a token"),
        ("segment_ids", (3, 0), 1, "has segments other than 0 ... 0 1 ... 1"),
        ("masked_lm_positions", (3, 0), 0, "has predictions out of order or after a gap"),
        ("masked_lm_ids", (3, 0), 2, "predicts a special token"),
        ("input_ids", (3, 1), 500, "does not fit"),
        ("next_sentence_labels", 3, 2, "'next_sentence_labels' holds 0 to 2, allowed 0 to 1"),
    ],
)
def test_verify_finds_every_kind_of_bad_row(
    tmp_path: Path,
    write_corpus: Callable[..., Path],
    capsys: pytest.CaptureFixture[str],
    dataset: str,
    index: int | tuple[int, int],
    value: int,
    message: str,
) -> None:
    build(write_corpus(), tmp_path / "data", "--length", "32:5")
    with h5py.File(relayout(tmp_path / "data" / "seq_len_32_max_pred_5" / "training_0001.hdf5"), "a") as file:
        file[dataset][index] = value
    assert main(["verify", str(tmp_path / "data")]) == 1
    shown = capsys.readouterr().out
    assert f"BAD {tmp_path / 'data' / 'seq_len_32_max_pred_5' / 'training_0001.hdf5'}" in shown
    assert message in shown
    assert shown.endswith("3 shard(s) checked, 1 bad\n")


def test_verify_finds_a_missing_separator_and_dirty_padding(
    tmp_path: Path, write_corpus: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    build(write_corpus(), tmp_path / "data", "--length", "32:5")
    path = tmp_path / "data" / "seq_len_32_max_pred_5" / "training_0000.hdf5"
    with h5py.File(relayout(path), "a") as file:
        ids, mask = file["input_ids"][...], file["input_mask"][...]
        shortest = int(mask.sum(axis=1).argmin())
        length = int(mask[shortest].sum())
        assert length < 32
        ids[shortest, length] = 9
        other = (shortest + 1) % len(ids)
        ids[other, int(mask[other].sum()) - 1] = 9
        file["input_ids"][...] = ids
    assert main(["verify", str(path)]) == 1
    shown = capsys.readouterr().out
    assert f"1 row(s), the first is {shortest}: has ids in its padding" in shown
    assert f"1 row(s), the first is {other}: does not end with [SEP]" in shown
    assert f"1 row(s), the first is {other}: has not two [SEP]" in shown


def test_verify_lists_damaged_and_missing_files(
    tmp_path: Path, write_corpus: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    build(write_corpus(), tmp_path / "data", "--length", "32:5")
    folder = tmp_path / "data" / "seq_len_32_max_pred_5"
    (folder / "training_0000.hdf5").write_bytes((folder / "training_0000.hdf5").read_bytes()[:3000])
    (folder / "training_0001.hdf5").unlink()
    assert main(["verify", str(folder)]) == 1
    shown = capsys.readouterr().out
    assert "damaged or not an HDF5 file" in shown
    assert "1 of 3 shards are missing, first training_0001.hdf5" in shown


def test_shards_of_others_are_verified_without_a_vocabulary(tmp_path: Path, write_corpus: Callable[..., Path]) -> None:
    build(write_corpus(), tmp_path / "data", "--length", "32:5")
    with (
        h5py.File(relayout(tmp_path / "data" / "seq_len_32_max_pred_5" / "training_0000.hdf5")) as ours,
        h5py.File(tmp_path / "part_0.hdf5", "w") as theirs,
    ):
        for name, values in ours.items():
            theirs[name] = values[...].astype(np.int16)
    assert main(["verify", str(tmp_path / "part_0.hdf5")]) == 0


@pytest.mark.parametrize("command", ["inspect", "verify"])
def test_a_missing_path_ends_with_exit_code_2(tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str) -> None:
    assert main([command, str(tmp_path / "none")]) == 2
    assert "none: no such file or folder" in capsys.readouterr().err
    assert main([command, str(tmp_path)]) == 2
    assert "no .hdf5 or .tfrecord file here" in capsys.readouterr().err


def test_a_length_without_predictions_is_refused_with_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["build", "--length", "128"])
    assert ended.value.code == 2
    assert "got '128'; allowed: tokens and predictions, as 128:20" in capsys.readouterr().err


def test_a_reader_that_goes_away_ends_a_command_without_a_traceback(
    tmp_path: Path, write_corpus: Callable[..., Path]
) -> None:
    assert build(write_corpus(), tmp_path / "data", "--length", "32:5") == 0
    read, write = os.pipe()
    os.close(read)
    with open(write, "wb") as pipe:
        command = [sys.executable, "-m", "bert_trainer.dataset.__main__", "inspect", str(tmp_path / "data")]
        ended = subprocess.run(command, stdout=pipe, stderr=subprocess.PIPE, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (1, "")


def test_unknown_arguments_end_with_exit_code_2() -> None:
    with pytest.raises(SystemExit) as caught:
        main(["build", "--colour", "red"])
    assert caught.value.code == 2


def test_lengths_come_from_the_stages_that_read_the_dataset(tmp_path: Path) -> None:
    config = run_config(tmp_path, tmp_path)
    assert wanted_lengths(config) == [(32, 5)]
    ready = config.stages[1].model_copy(update={"shards": "elsewhere", "sequence_length": 64})
    assert wanted_lengths(config.model_copy(update={"stages": (*config.stages, ready)})) == [(32, 5)]
    assert wanted_lengths(config.model_copy(update={"stages": config.stages[:1]})) == [(128, 20), (512, 80)]
    task = FinetuneStage.model_validate_json(json.dumps(finetune_stage(tmp_path)))
    assert wanted_lengths(config.model_copy(update={"stages": (*config.stages, task)})) == [(32, 5)]
    assert wanted_lengths(config.model_copy(update={"stages": (config.stages[0], task)})) == []


def test_a_job_s_child_reports_and_leaves_a_last_word(tmp_path: Path, write_corpus: Callable[..., Path]) -> None:
    path = write_config(tmp_path / "config.json", run_config(write_corpus(), tmp_path / "out"))
    run = subprocess.run(
        [sys.executable, "-m", "bert_trainer.dataset.__main__", "build", "--config", str(path)],
        capture_output=True,
        text=True,
        env={
            **os.environ,
            "PYTHONPATH": ":".join(sys.path),
            "BERT_TERMINATION_LOG": str(tmp_path / "last-word"),
            "BERT_ATTEMPT": "3",
        },
    )
    assert run.returncode == 0, run.stderr
    lines = run.stdout.splitlines()
    assert all(line.startswith("bert-trainer/1 event=") for line in lines)
    assert all(line.endswith("job=uid-1 attempt=3") for line in lines)
    assert "event=stage_started stage=prepare kind=prepare steps=7" in lines[0]
    assert "event=progress stage=prepare step=7 steps=7 elapsed_s=" in lines[-2]
    assert "event=stage_finished stage=prepare seconds=" in lines[-1]
    last_word = json.loads((tmp_path / "last-word").read_text())
    assert (last_word["reason"], last_word["exitCode"], last_word["stage"]) == ("Succeeded", 0, "prepare")
    assert json.loads((tmp_path / "out" / "data" / "dataset.json").read_text())["complete"]


def test_wrong_input_of_a_job_is_reported_and_ends_with_exit_code_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BERT_TERMINATION_LOG", str(tmp_path / "last-word"))
    path = write_config(tmp_path / "config.json", run_config(tmp_path / "no-text", tmp_path / "out"))
    assert main(["build", "--config", str(path)]) == 2
    assert "no-text: no such folder or file" in capsys.readouterr().err
    last_word = json.loads((tmp_path / "last-word").read_text())
    assert (last_word["reason"], last_word["exitCode"]) == ("InputError", 2)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_a_signal_stops_the_build_between_shards_and_it_can_go_on(
    tmp_path: Path, write_corpus: Callable[..., Path], number: signal.Signals
) -> None:
    config = run_config(write_corpus(60), tmp_path / "out")
    prepare = config.stages[0].model_copy(update={"num_shards": 20, "dupe_factor": 60, "num_processes": 2})
    config = config.model_copy(update={"stages": (prepare, *config.stages[1:])})
    path = write_config(tmp_path / "config.json", config)
    child = subprocess.Popen(
        [sys.executable, "-m", "bert_trainer.dataset.__main__", "build", "--config", str(path)],
        stdout=subprocess.PIPE,
        text=True,
        env={
            **os.environ,
            "PYTHONPATH": ":".join(sys.path),
            "BERT_TERMINATION_LOG": str(tmp_path / "last-word"),
        },
        start_new_session=True,
    )
    assert child.stdout is not None
    with child, child.stdout as lines:
        # The sixth unit of work is a shard; the whole group is told, as a terminal does.
        next(line for line in lines if "step=6 " in line)
        os.killpg(child.pid, number)
        rest = lines.read()
        assert child.wait() == 3
    assert "event=stopped stage=prepare message=" in rest
    last_word = json.loads((tmp_path / "last-word").read_text())
    assert (last_word["reason"], last_word["exitCode"]) == ("Stopped", 3)
    made = list((tmp_path / "out" / "data").rglob("*.hdf5"))
    assert 1 <= len(made) < 21
    assert not list((tmp_path / "out" / "data").rglob("*.partial"))


def test_several_corpora_are_named_on_the_command_line(tmp_path: Path, write_corpus: Callable[..., Path]) -> None:
    first, second = write_corpus(), write_corpus(documents=20, name="more,text")
    corpora = ["--corpus", f"{first},weight=2", "--corpus", f"{second},lines=sentences,language=de"]
    arguments = ["build", "--output", str(tmp_path / "data"), "--length", "32:5", *SMALL]
    assert main([*arguments, *corpora]) == 0
    record = json.loads((tmp_path / "data" / "dataset.json").read_text())
    assert record["settings"]["weights"] == [2.0, 1.0]
    assert record["source"] == f"{first}, {second}"
    assert main(arguments) == 2
    assert main([*arguments, *corpora, "--text", str(first)]) == 2


@pytest.mark.parametrize(
    ("corpus", "said"),
    [("a,heaviness=2", "got the field 'heaviness'; allowed: format, weight"), ("a,weight=0", "weight: got '0'")],
)
def test_a_wrong_corpus_option_is_explained(corpus: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["build", "--corpus", corpus])
    assert said in " ".join(capsys.readouterr().err.split())


@pytest.mark.slow
def test_a_dump_and_json_lines_make_the_same_dataset_with_any_number_of_processes(
    tmp_path: Path, make_document: Callable[..., list[str]]
) -> None:
    pages = [page(str(number), " ".join(make_document(number))) for number in range(30)]
    (tmp_path / "wiki.xml.bz2").write_bytes(multistream(pages[:10], pages[10:20], pages[20:]))
    entries = ({"body": " ".join(make_document(100 + number))} for number in range(20))
    (tmp_path / "web.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    for processes in ("1", "3"):
        corpora = [str(tmp_path / "wiki.xml.bz2"), f"{tmp_path / 'web.jsonl'},text_field=body,weight=3"]
        options = ["--output", str(tmp_path / processes), "--length", "32:5", *SMALL, "--processes", processes]
        assert main(["build", *options, *(part for corpus in corpora for part in ("--corpus", corpus))]) == 0
    one, three = (sorted((tmp_path / name).rglob("*.hdf5")) for name in ("1", "3"))
    assert [path.read_bytes() for path in one] == [path.read_bytes() for path in three] != []
    record = json.loads((tmp_path / "1" / "dataset.json").read_text())
    assert record["counts"]["documents_read"] == 50
