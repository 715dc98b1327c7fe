"""The tokenizer's settings beside weights split text wherever it is split: import, fine-tuning, its export, a build.

Inputs: weights whose tokenizer keeps accents, and a task of two classes that differ by one. Observed: what was learnt,
the tokenizers that are written, and that a run which resumes keeps its own.
"""

from __future__ import annotations

import json
from itertools import islice, permutations
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from bert_trainer.__main__ import main, parse_arguments
from bert_trainer.checkpoints.model_export import export_model
from bert_trainer.dataset.__main__ import main as data_main
from bert_trainer.dataset.tokens.wordpiece import SPECIAL_TOKENS, read_vocabulary
from bert_trainer.dataset.tokens.wordpiece_settings import WordPieceSettings
from bert_trainer.finetune_command import make_run_config
from bert_trainer.parallel.world import SingleRank
from bert_trainer.training.session import Session
from weight_sources import small_model

WORDS = (*SPECIAL_TOKENS, "b\u00e4r", "bar", "ein", "das", "da", "so", "und", "wo")
TEXT = "Ein B\u00e4r und das"
TOKENS = ["ein", "b\u00e4r", "und", "das"]


def write_weights(folder: Path, *, by: str) -> Path:
    """Write weights whose tokenizer drops capitals and keeps accents, by ``vocab.txt`` or by ``tokenizer.json``."""
    folder.mkdir()
    (folder / "words").mkdir()
    (folder / "words" / "vocab.txt").write_text("".join(f"{word}\n" for word in WORDS))
    settings = {"do_lower_case": True, "strip_accents": False}
    (folder / "words" / "tokenizer_config.json").write_text(json.dumps(settings))
    vocabulary = read_vocabulary(folder / "words" / "vocab.txt")
    model = small_model()
    model.initialize(1)
    export_model("huggingface", model, vocabulary, folder / "model", lower_case=True)
    left_out = {"vocab.txt": ("tokenizer.json",), "tokenizer.json": ("vocab.txt", "special_tokens_map.json")}[by]
    for name in left_out:
        (folder / "model" / name).unlink()
    return folder / "model"


def write_tables(folder: Path) -> list[str]:
    for name, rows in (("train", 48), ("validation", 16)):
        lines = [("ein bar,no", "ein b\u00e4r,yes")[row % 2] for row in range(rows)]
        (folder / f"{name}.csv").write_text("\n".join(["body,label", *lines]) + "\n")
    files = [f"--train={folder}/train.csv", f"--validation={folder}/validation.csv"]
    return ["--task=classification", *files, "--text=body", "--label=label"]


def results(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "finetune/classification/best/result.json").read_text())
    return found


@pytest.mark.parametrize("by", ["vocab.txt", "tokenizer.json"])
def test_a_task_whose_classes_differ_by_an_accent_is_learnt(tmp_path: Path, by: str) -> None:
    weights, output = write_weights(tmp_path / "weights", by=by), tmp_path / "out"
    options = ["--epochs=6", "--learning-rate=0.03", "--batch-size=16", "--sequence-length=8", "--export=huggingface"]
    assert main(
        ["finetune", *write_tables(tmp_path), f"--model={weights}", f"--output={output}", *options]
    ) == 0  # fmt: skip
    assert results(output)["metrics"]["accuracy"] == 1.0
    exported = output / "export" / "huggingface"
    assert AutoTokenizer.from_pretrained(exported).tokenize(TEXT) == TOKENS
    assert read_vocabulary(exported / "vocab.txt").said == WordPieceSettings(lower_case=True, strip_accents=False)
    assert "Text is lower-cased, with its accents." in (exported / "README.md").read_text()
    # Attempts that resume read it there.
    assert read_vocabulary(exported / "vocab.txt").said == read_settings_of(output)


def test_a_run_that_resumes_splits_text_as_it_began(tmp_path: Path) -> None:
    weights, output = write_weights(tmp_path / "weights", by="vocab.txt"), tmp_path / "out"
    words = ["finetune", *write_tables(tmp_path), f"--model={weights}", f"--output={output}", "--sequence-length=8"]
    config = make_run_config(parse_arguments([*words, "--if-exists=Resume"]), {})
    vocabulary = Session.open(config, SingleRank(), attempt=1).data.vocabulary
    assert vocabulary.said == WordPieceSettings(lower_case=True, strip_accents=False)
    (weights / "tokenizer_config.json").unlink()
    assert Session.open(config, SingleRank(), attempt=2).data.vocabulary == vocabulary


def read_settings_of(run: Path) -> WordPieceSettings:
    said = json.loads((run / "tokenizer_config.json").read_text())
    return WordPieceSettings(lower_case=said["do_lower_case"], strip_accents=said["strip_accents"])


@pytest.mark.parametrize("by", ["vocab.txt", "tokenizer.json"])
def test_an_import_writes_the_same_tokenizer(tmp_path: Path, by: str, capsys: pytest.CaptureFixture[str]) -> None:
    weights, output = write_weights(tmp_path / "weights", by=by), tmp_path / "out"
    assert main(["import", str(weights), "--format=huggingface", f"--output={output}"]) == 0
    assert "  text: lower-cased, with its accents, as the tokenizer's files say" in capsys.readouterr().out
    assert AutoTokenizer.from_pretrained(output).tokenize(TEXT) == TOKENS
    assert (output / "vocab.txt").read_text().split("\n") == [*WORDS, ""]


def test_what_only_tokenizer_json_can_say_is_exported_in_it(tmp_path: Path) -> None:
    weights = write_weights(tmp_path / "weights", by="tokenizer.json")
    file = weights / "tokenizer_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "max_input_chars_per_word": 3}))
    assert main(["import", str(weights), "--format=huggingface", f"--output={tmp_path}/out"]) == 0
    assert AutoTokenizer.from_pretrained(tmp_path / "out").tokenize("Ein Wort") == ["ein", "[UNK]"]
    assert read_vocabulary(tmp_path / "out" / "vocab.txt").settings.max_word_characters == 3


@pytest.mark.parametrize("command", ["import", "finetune"])
def test_what_is_not_carried_out_is_refused_before_anything_is_written(
    tmp_path: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    weights, output = write_weights(tmp_path / "weights", by="vocab.txt"), tmp_path / "out"
    (weights / "added_tokens.json").write_text('{"covid": 13}')
    words = {
        "import": ["import", str(weights), "--format=huggingface"],
        "finetune": ["finetune", *write_tables(tmp_path), f"--model={weights}"],
    }
    assert main([*words[command], f"--output={output}"]) == 2
    assert f"{weights}/added_tokens.json: tokens: got the tokens 'covid'; allowed: [PAD]" in capsys.readouterr().err
    assert not output.exists()


def test_a_build_splits_text_as_the_files_beside_its_vocabulary_say(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    vocabulary = write_weights(tmp_path / "weights", by="tokenizer.json") / "tokenizer.json"
    words = ("Ein", "das", "da", "so", "und", "wo", "Bar")
    texts = [f"B\u00e4r {' '.join(order)}. Und da B\u00e4r.\n\n" for order in islice(permutations(words), 0, None, 50)]
    (tmp_path / "text.txt").write_text("".join(texts))
    fixed = ["build", f"--text={tmp_path}/text.txt", f"--output={tmp_path}/data", "--length=16:2", "--processes=1"]
    fixed += [f"--vocabulary={vocabulary}", "--held-out-fraction=0", "--max-unknown-share=1"]
    assert data_main([*fixed, "--cased"]) == 2
    assert "lowerCase: got false; allowed: true, as the tokenizer's files beside the vocabulary say" in (
        capsys.readouterr().err
    )
    assert data_main(fixed) == 0
    document = json.loads((tmp_path / "data" / "dataset.json").read_text())
    assert document["settings"]["tokenizer"] == "strip_accents False"
    said = WordPieceSettings(lower_case=True, strip_accents=False)
    assert read_vocabulary(tmp_path / "data" / "vocab.txt").said == said
    assert data_main(["inspect", f"{tmp_path}/data"]) == 0
    assert "b\u00e4r" in capsys.readouterr().out
