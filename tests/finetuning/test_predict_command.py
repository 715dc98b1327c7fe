"""``bert-train predict``: what transformers says of the same rows by the same weights, a line for a line.

Models are transformers' own, saved with ``save_pretrained``, or this trainer's exports. Observed: lines of output,
exit codes, and what is left beside the output.
"""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertConfig,
    BertForSequenceClassification,
    BertTokenizer,
    DistilBertConfig,
    DistilBertForQuestionAnswering,
    DistilBertForSequenceClassification,
    ModernBertConfig,
    ModernBertForSequenceClassification,
)

from bert_trainer.__main__ import main
from bert_trainer.checkpoints.model_export import export_model
from bert_trainer.dataset.tokens.wordpiece import Vocabulary, read_vocabulary, train_vocabulary
from random_rows import model_config
from task_rows import random_task_model

WORDS = "the quick brown fox jumps over a lazy dog and sleeps on Café 東京 while it rains".split()  # noqa: SIM905
LABELS = ("entailment", "neutral", "contra diction")
POSITIONS = 48
SIZES: dict[str, Any] = {"vocab_size": 120, "max_position_embeddings": POSITIONS}
BERT = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
DISTILBERT = {"dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 64}


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Vocabulary:
    path = tmp_path_factory.mktemp("vocabulary") / "vocab.txt"
    path.write_bytes(train_vocabulary([" ".join(WORDS)] * 3, size=120, lower_case=True))
    return read_vocabulary(path)


def texts(count: int, seed: int = 0) -> list[str]:
    """Return texts of 0 to 60 words, more than a row holds."""
    draw = np.random.default_rng(seed)
    return [" ".join(draw.choice(WORDS, int(draw.integers(0, 60)))) for _ in range(count)]


def saved(folder: Path, vocabulary: Vocabulary, kind: Any, config: Any) -> Path:
    """Save transformers' model with its tokenizer, with weights large enough to tell rows apart."""
    torch.manual_seed(3)
    model = kind(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 2:
                parameter.normal_(0, 1.0 if "embeddings" in name else 0.3)
    model.save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(vocabulary.tokens) + "\n")
    BertTokenizer(str(folder / "vocab.txt"), model_max_length=POSITIONS).save_pretrained(folder)
    return folder


def bert_of(folder: Path, vocabulary: Vocabulary, **settings: Any) -> Path:
    sizes = {**SIZES, "vocab_size": vocabulary.size}
    return saved(folder, vocabulary, BertForSequenceClassification, BertConfig(**sizes, **BERT, **settings))


def classes_of(folder: Path, vocabulary: Vocabulary) -> Path:
    return bert_of(folder, vocabulary, id2label=dict(enumerate(LABELS)))


def predict(model: Path, data: Path, *options: str | Path) -> int:
    return main(["predict", "--model", str(model), "--data", str(data), *map(str, options)])


def lines_of(path: Path) -> list[str]:
    """Return the lines between line feeds: other signs that end a line on paper end none."""
    return path.read_text().split("\n")[:-1]


def their_logits(model: Path, *parts: list[str]) -> torch.Tensor:
    tokenizer, theirs = AutoTokenizer.from_pretrained(model), AutoModelForSequenceClassification.from_pretrained(model)
    rows = tokenizer(*parts, padding=True, truncation=True, max_length=POSITIONS, return_tensors="pt")
    if theirs.config.model_type != "bert":
        rows.pop("token_type_ids", None)
    with torch.no_grad():
        return theirs.eval()(**rows).logits  # type: ignore[no-any-return]


def test_classes_of_lines_are_those_of_transformers(tmp_path: Path, vocabulary: Vocabulary) -> None:
    model, given = classes_of(tmp_path / "model", vocabulary), texts(300)
    data = tmp_path / "texts.txt"
    data.write_text("".join(f"{text}\n" for text in given))
    assert predict(model, data, "--output", tmp_path / "out.txt") == 0
    assert predict(model, data, "--output", tmp_path / "out.jsonl", "--json") == 0
    expected = their_logits(model, given).softmax(1)
    assert lines_of(tmp_path / "out.txt") == [LABELS[number] for number in expected.argmax(1)]
    found = [json.loads(line) for line in lines_of(tmp_path / "out.jsonl")]
    np.testing.assert_allclose([list(one["probabilities"].values()) for one in found], expected, atol=1e-5)
    assert all(list(one["probabilities"]) == list(LABELS) for one in found)
    assert [one["label"] for one in found] == lines_of(tmp_path / "out.txt")
    assert len({one["label"] for one in found}) > 1, "or the order of lines would not show"


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_classes_of_a_modernbert_are_those_of_transformers(
    tmp_path: Path, vocabulary: Vocabulary, pooling: str
) -> None:
    special = dict.fromkeys([f"{role}_token_id" for role in ("pad", "bos", "eos", "cls", "sep")], 0)
    sizes = {**SIZES, **BERT, **special, "vocab_size": vocabulary.size, "num_hidden_layers": 4, "local_attention": 8}
    config = ModernBertConfig(**sizes, classifier_pooling=pooling, id2label=dict(enumerate(LABELS)))
    model, given = saved(tmp_path / "model", vocabulary, ModernBertForSequenceClassification, config), texts(100)
    data = tmp_path / "texts.txt"
    data.write_text("".join(f"{text}\n" for text in given))
    assert predict(model, data, "--output", tmp_path / "out.jsonl", "--json") == 0
    found = [list(json.loads(line)["probabilities"].values()) for line in lines_of(tmp_path / "out.jsonl")]
    np.testing.assert_allclose(found, their_logits(model, given).softmax(1), atol=1e-5)


def test_a_run_stands_for_its_export(
    tmp_path: Path, vocabulary: Vocabulary, capsys: pytest.CaptureFixture[str]
) -> None:
    run, data = tmp_path / "run", tmp_path / "texts.txt"
    run.mkdir()
    (run / "run-config.json").write_text("{}")
    data.write_text("the quick fox\n")
    assert predict(run, data) == 2
    assert "train it with --export huggingface" in capsys.readouterr().err
    export = run / "export" / "huggingface"
    export.mkdir(parents=True)
    for folder, told in ((run, export), (run / "export", run / "export")):
        assert predict(folder, data) == 2
        error = capsys.readouterr().err
        assert f"--model: got {told}, without config.json; allowed: a folder with" in error
        assert "--model-config" not in error, "an option of other commands"
    classes_of(export, vocabulary)
    assert predict(run, data, "--output", tmp_path / "out.txt") == 0
    assert lines_of(tmp_path / "out.txt")[0] in LABELS


def test_numbers_of_pairs_in_a_table_with_ids(tmp_path: Path, vocabulary: Vocabulary) -> None:
    config = DistilBertConfig(**{**SIZES, "vocab_size": vocabulary.size}, **DISTILBERT, num_labels=1)
    model = saved(tmp_path / "model", vocabulary, DistilBertForSequenceClassification, config)
    first, second = texts(60), texts(60, seed=1)
    data = tmp_path / "pairs.csv"
    with data.open("w", newline="") as file:
        csv.writer(file).writerows([("name", "a", "b", "more"), *zip(range(60), first, second, first, strict=True)])
    columns = ("--text", "a", "--text-pair", "b", "--id", "name")
    assert predict(model, data, "--output", tmp_path / "out", *columns) == 0
    assert predict(model, data, "--output", tmp_path / "out.jsonl", "--json", *columns) == 0
    expected = their_logits(model, first, second)[:, 0]
    np.testing.assert_allclose([float(line) for line in lines_of(tmp_path / "out")], expected, rtol=1e-5, atol=1e-5)
    found = [json.loads(line) for line in lines_of(tmp_path / "out.jsonl")]
    assert [one["id"] for one in found] == [str(number) for number in range(60)]
    np.testing.assert_allclose([one["value"] for one in found], expected, rtol=1e-5, atol=1e-5)


def test_answers_are_the_best_spans_of_transformers_scores(tmp_path: Path, vocabulary: Vocabulary) -> None:
    config = DistilBertConfig(**{**SIZES, "vocab_size": vocabulary.size}, **DISTILBERT)
    model = saved(tmp_path / "model", vocabulary, DistilBertForQuestionAnswering, config)
    rows = [{"question": "quick fox", "context": f"  {text}\u2028dog"} for text in texts(40) if len(text.split()) < 30]
    data = tmp_path / "questions.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    columns = ("--question", "question", "--context", "context", "--max-answer-length", "5")
    assert predict(model, data, "--output", tmp_path / "out.jsonl", "--json", *columns) == 0
    assert predict(model, data, "--output", tmp_path / "out.txt", *columns) == 0
    tokenizer, theirs = (
        AutoTokenizer.from_pretrained(model),
        AutoModelForQuestionAnswering.from_pretrained(model).eval(),
    )
    found = [json.loads(line) for line in lines_of(tmp_path / "out.jsonl")]
    assert len(found) == len(rows) == len(lines_of(tmp_path / "out.txt"))
    for row, one in zip(rows, found, strict=True):
        inputs = tokenizer(row["question"], row["context"], return_offsets_mapping=True, return_tensors="pt")
        offsets, segments = inputs.pop("offset_mapping")[0], inputs.pop("token_type_ids")[0]
        with torch.no_grad():
            scores = theirs(**inputs)
        inside = [place for place in range(len(segments) - 1) if segments[place]]
        pairs = [(first, last) for first in inside for last in inside if first <= last < first + 5]
        best = max(pairs, key=lambda pair: float(scores.start_logits[0, pair[0]] + scores.end_logits[0, pair[1]]))
        start, end = int(offsets[best[0]][0]), int(offsets[best[1]][1])
        assert (one["start"], one["end"], one["answer"]) == (start, end, row["context"][start:end])


@pytest.mark.parametrize("kind", ["classification", "regression", "spans"])
@pytest.mark.parametrize("architecture", ["bert", "distilbert"])
def test_an_export_is_read_and_becomes_onnx_or_the_same_folder(
    tmp_path: Path, vocabulary: Vocabulary, architecture: str, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    model = random_task_model(model_config(32, architecture=architecture, objective="mlm"), kind, vocabulary.size)
    labels = LABELS if kind == "classification" else ()
    exported = tmp_path / "exported"
    export_model("huggingface", model, vocabulary, exported, lower_case=True, labels=labels)
    arguments = ["import", str(exported), "--format", "huggingface"]
    assert main([*arguments, "--output", str(tmp_path / "huggingface")]) == 0
    assert f", {kind}{' with 3 labels' if labels else ''}; " in capsys.readouterr().out
    for name in ("model.safetensors", "config.json", "tokenizer.json", "vocab.txt"):
        assert (tmp_path / "huggingface" / name).read_bytes() == (exported / name).read_bytes(), name
    if (architecture, kind) not in (("bert", "classification"), ("distilbert", "spans")):
        return  # a graph takes ten seconds to write
    assert main([*arguments, "--to", "onnx", "--output", str(tmp_path / "onnx")]) == 0
    export_model("onnx", model, vocabulary, tmp_path / "direct", lower_case=True, labels=labels)
    for name in ("config.json", "model.onnx.data"):
        assert (tmp_path / "onnx" / name).read_bytes() == (tmp_path / "direct" / name).read_bytes(), name


def test_memory_does_not_grow_with_the_file(tmp_path: Path, vocabulary: Vocabulary) -> None:
    model = classes_of(tmp_path / "model", vocabulary)
    command = [sys.executable, "-m", "bert_trainer", "predict", "--model", str(model), "--data"]
    # 20 kB each, of which a row holds the first 48 tokens; 4 MB are in memory together.
    text, peaks = "the dog sleeps on " * 1100, []
    for count in (500, 2500):
        data = tmp_path / f"{count}.txt"
        with data.open("w") as file:
            file.writelines(f"{text}{number}\n" for number in range(count))
        with (tmp_path / f"{count}.out").open("w") as out:
            process = subprocess.Popen([*command, str(data)], stdout=out)
            _, status, used = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 0
        assert len(lines_of(tmp_path / f"{count}.out")) == count
        peaks.append(used.ru_maxrss)
    assert peaks[1] - peaks[0] < 15_000, f"{peaks} KiB; the texts alone would be 40,000"


def test_rows_before_a_wrong_one_are_kept_beside_the_output(
    tmp_path: Path, vocabulary: Vocabulary, capsys: pytest.CaptureFixture[str]
) -> None:
    model, data, output = classes_of(tmp_path / "model", vocabulary), tmp_path / "rows.jsonl", tmp_path / "out"
    data.write_text('{"text": "the dog"}\n' * 5000 + '{"other": 1}\n')
    output.write_text("of before\n")
    assert predict(model, data, "--output", output, "--text", "text") == 2
    said = capsys.readouterr().err
    assert "rows.jsonl:5001: no column 'text'; the object has 'other'" in said
    assert "bert-train: 4,096 predictions" in said
    assert f"are kept in {output}.partial" in said
    assert len(lines_of(tmp_path / "out.partial")) == 4096
    assert output.read_text() == "of before\n"


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"architectures": ["BertForMaskedLM"]}, "architectures: got ['BertForMaskedLM']; allowed: one of Bert"),
        ({"architectures": None}, "architectures: got None; allowed: one of Bert"),
        ({"problem_type": "multi_label_classification"}, "problem_type: got 'multi_label_classification'; allowed"),
        ({"problem_type": []}, "problem_type: got []; allowed: single_label_classification"),
        ({"id2label": {"0": "a\nb", "1": "a b", "2": "c"}}, "id2label: got one name for several numbers; allowed"),
        ({"problem_type": "regression"}, "id2label: got 3 entries for problem_type 'regression'; allowed: one"),
        ({"id2label": {"0": "a", "2": "b"}}, "id2label: got {'0': 'a', '2': 'b'}; allowed: a name for every number"),
        ({"id2label": {"0": "a", "1": "a", "2": "b"}}, "id2label: got one name for several numbers; allowed"),
        ({"id2label": {"0": "a", "1": "b"}}, "classifier.weight: got [3, 32]; allowed: [2, 32]"),
        ({"id2label": [1]}, "id2label: got [1]; allowed"),
        ({"classifier_dropout": 2}, "dropout before the head: got 2; allowed"),
    ],
)
def test_a_head_that_is_not_read_is_refused_by_its_setting(
    tmp_path: Path, vocabulary: Vocabulary, change: dict[str, Any], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    model, data = classes_of(tmp_path / "model", vocabulary), tmp_path / "texts.txt"
    settings = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(settings | change))
    data.write_text("a dog\n")
    assert predict(model, data) == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--data-format", "csv"], "--text: required with a table; allowed: the name of a column"),
        (["--data-format", "csv", "--text", "body"], "no column 'body'; the file has 'the dog'"),
        (["--sequence-length", "49"], "--sequence-length: got 49; allowed: 8 to 48, the model's positions"),
        (["--sequence-length", "0"], "--sequence-length: got 0; allowed: 1 to 8192"),
        (["--doc-stride", "8193"], "--doc-stride: got 8193; allowed: 1 to 8192"),
        (["--output", "texts.txt"], "--output: got texts.txt, and texts.txt is --data; allowed: another file"),
        (["--output", "model"], "--output: got model, and model is a folder, a link, a pipe or a device; allowed"),
        (["--output", "link"], "--output: got link, and link is a folder, a link, a pipe or a device; allowed"),
        (["--output", "pipe"], "--output: got pipe, and pipe is a folder, a link, a pipe or a device; allowed"),
        (["--output", "none/out"], "--output: got none/out; allowed: a file in a folder that exists"),
        (
            ["--data", "texts.partial", "--data-format", "text", "--output", "texts"],
            "--output: got texts, and texts.partial is --data; allowed: another file",
        ),
        (["--model", "texts.txt"], "--model: got texts.txt; allowed: a folder with config.json"),
        (["--model", "none"], "--model: got none; allowed: a folder with config.json"),
        (["--data", "none.txt"], "none.txt: no such file"),
        (["--precision", "tf32"], "precision: got 'tf32', which only NVIDIA GPUs have"),
    ],
)
def test_a_wrong_option_is_named_with_what_is_allowed(
    tmp_path: Path,
    vocabulary: Vocabulary,
    options: list[str],
    told: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    classes_of(tmp_path / "model", vocabulary)
    (tmp_path / "texts.txt").write_text("the dog\nsleeps\n")
    (tmp_path / "texts.partial").write_text("the dog\n")
    (tmp_path / "link").symlink_to("texts.txt")
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.chdir(tmp_path)
    assert predict(Path("model"), Path("texts.txt"), *options) == 2
    assert told in capsys.readouterr().err
    assert (tmp_path / "texts.partial").read_text() == "the dog\n"


@pytest.mark.parametrize("suffix", ["csv", "tsv"])
def test_an_empty_text_of_a_single_column_has_its_line(tmp_path: Path, vocabulary: Vocabulary, suffix: str) -> None:
    model, data = classes_of(tmp_path / "model", vocabulary), tmp_path / f"one.{suffix}"
    empty = '""' if suffix == "csv" else ""
    data.write_text(f"text\nthe dog\n{empty}\nthe fox\n\n")
    assert predict(model, data, "--text", "text", "--output", tmp_path / "out") == 0
    assert len(lines_of(tmp_path / "out")) == 4


def test_a_table_that_cannot_be_read_leaves_nothing(tmp_path: Path, vocabulary: Vocabulary) -> None:
    model, data = classes_of(tmp_path / "model", vocabulary), tmp_path / "empty.csv"
    data.write_text("")
    assert predict(model, data, "--text", "text", "--output", tmp_path / "out") == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty.csv", "model"]


def test_a_reader_that_has_enough_ends_it_quietly(tmp_path: Path, vocabulary: Vocabulary) -> None:
    model, data = classes_of(tmp_path / "model", vocabulary), tmp_path / "texts.txt"
    data.write_text("the dog sleeps on\n" * 20_000)
    command = f"{sys.executable} -m bert_trainer predict --model {model} --data {data} | head -n 1"
    done = subprocess.run(
        ["bash", "-c", f"{command}; exit ${{PIPESTATUS[0]}}"], capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() in LABELS
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, "")
