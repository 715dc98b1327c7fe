"""What the fine-tuning benchmark makes up, and what it takes out of installed packages."""

from __future__ import annotations

import csv
import json
import statistics
import sys
from pathlib import Path

import pytest

from bert_trainer.config.checks import parse_run_config

sys.path.append(str(Path(__file__).parents[2] / "benchmarks/finetuning"))

import docstrings
import generated
import trainer_runs

PACKAGES = {"good-fonts": "fonts", "graphs": "graphs"}


def write_package(root: Path, name: str, modules: dict[str, list[str]]) -> None:
    (root / name).mkdir(parents=True)
    for module, texts in modules.items():
        functions = [f'def f{number}():\n    """{text}"""\n' for number, text in enumerate(texts)]
        (root / name / f"{module}.py").write_text("\n".join(functions))


def number_words(first: int, count: int) -> list[str]:
    tens = ("ten", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
    return [
        f"Return {tens[i // 9 % 9]} and {tens[i % 9]} of everything that is there." for i in range(first, first + count)
    ]


def test_no_module_is_on_both_sides_and_no_text_is_there_twice(tmp_path: Path) -> None:
    write_package(tmp_path, "fonts", {f"m{n}": [*number_words(4 * n, 4), *number_words(0, 1)] for n in range(10)})
    write_package(tmp_path, "graphs", {f"n{n}": number_words(40 + 4 * n, 4) for n in range(10)})
    table = docstrings.read_table(PACKAGES, tmp_path, held_out_rows=6, training_rows=20)
    assert [sum(row.package == name for row in table.training) for name in PACKAGES] == [20, 20]
    assert [sum(row.package == name for row in table.held_out) for name in PACKAGES] == [6, 6]
    assert not {row.module for row in table.training} & {row.module for row in table.held_out}
    texts = [row.text for row in (*table.training, *table.held_out)]
    assert len(set(texts)) == 52
    assert table == docstrings.read_table(PACKAGES, tmp_path, held_out_rows=6, training_rows=20)
    other = docstrings.read_table(PACKAGES, tmp_path, held_out_rows=6, training_rows=20, split=1)
    assert other != table, "another split holds other modules out"


def test_a_package_with_too_few_docstrings_is_named(tmp_path: Path) -> None:
    write_package(tmp_path, "fonts", {f"m{n}": number_words(4 * n, 4) for n in range(10)})
    write_package(tmp_path, "graphs", {"n": number_words(40, 4)})
    with pytest.raises(SystemExit, match="graphs has 4 rows, 30 are needed"):
        docstrings.read_table(PACKAGES, tmp_path, held_out_rows=10, training_rows=20)


def test_names_of_packages_and_modules_are_removed_but_not_words_that_half_of_the_packages_use() -> None:
    packages = {"good-fonts": "fonts", "graphs": "graphs", "a": "a", "b": "b"}
    texts = {
        "good-fonts": {"fonts.glyph_tables": ["an array of glyph tables"]},
        "graphs": {"graphs.array": ["an array of edges"]},
        "a": {"a.m": ["nothing here"]},
        "b": {"b.m": ["nothing here"]},
    }
    names = docstrings.removed_names(packages, ["fonts.glyph_tables", "graphs.array"], texts)
    assert {"good_fonts", "good", "fonts", "graphs", "glyph_tables", "glyph", "tables"} <= names
    assert "array" not in names
    text = "Fonts: an array of Glyph TABLES, see graphs.array.of_edges and _glyph_tables."
    assert docstrings.remove_names(text, names) == ": an array of , see and ."


def test_the_planted_rule_is_in_the_order_of_two_words_alone(tmp_path: Path) -> None:
    generated.write_planted_rule(tmp_path, 200, 100)
    sides = []
    for name in ("train", "validation"):
        with (tmp_path / f"{name}.tsv").open() as file:
            rows = list(csv.DictReader(file, delimiter="\t"))
        for row in rows:
            words = row["text"].split()
            assert words.count("file") == words.count("string") == 1
            assert row["label"] == ("before" if words.index("file") < words.index("string") else "after")
        assert [row["label"] for row in rows].count("before") == len(rows) // 2
        sides.append({row["text"] for row in rows})
    assert [len(side) for side in sides] == [200, 100]
    assert not sides[0] & sides[1]


def test_answers_stand_where_the_file_says_and_contexts_are_on_one_side(tmp_path: Path) -> None:
    generated.write_questions(tmp_path, 50, 20)
    sides = []
    for name, count in (("train", 50), ("dev", 20)):
        paragraphs = json.loads((tmp_path / f"{name}-v1.1.json").read_text())["data"][0]["paragraphs"]
        assert len(paragraphs) == count
        ids = [question["id"] for paragraph in paragraphs for question in paragraph["qas"]]
        assert len(set(ids)) == len(ids) == 2 * count
        for paragraph in paragraphs:
            for question in paragraph["qas"]:
                thing = question["question"].removeprefix("what is ").removesuffix(" ?")
                for answer in question["answers"]:
                    start, text = answer["answer_start"], answer["text"]
                    assert paragraph["context"].startswith(f"{thing} is {text} .", start - len(f"{thing} is "))
        sides.append({paragraph["context"] for paragraph in paragraphs})
    assert not sides[0] & sides[1]


def test_lengths_have_the_published_median_and_rows_have_the_drawn_lengths(tmp_path: Path) -> None:
    lengths = generated.draw_lengths(generated.MRPC_LENGTHS, 3668, seed=1)
    assert len(lengths) == 3668
    assert statistics.median(lengths) == 54
    assert statistics.mean(lengths) == pytest.approx(54, abs=0.5)
    assert statistics.stdev(lengths) == pytest.approx(11, abs=0.5)
    assert (min(lengths), max(lengths)) == (20, 103)
    assert statistics.mean(generated.draw_lengths(generated.COLA_LENGTHS, 8551, seed=1)) == pytest.approx(11, abs=0.5)

    generated.write_word_vocabulary(tmp_path / "vocab.txt", 100)
    entries = (tmp_path / "vocab.txt").read_text().split()
    assert len(entries) == 100
    generated.write_rows(tmp_path / "rows.tsv", lengths[:50], pairs=True, vocabulary_size=100, seed=3)
    with (tmp_path / "rows.tsv").open() as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    assert [len(row["text"].split()) + len(row["pair"].split()) + 3 for row in rows] == lengths[:50]
    assert {word for row in rows for word in (row["text"] + " " + row["pair"]).split()} <= set(entries)


def test_a_document_of_the_benchmark_is_a_run_configuration(tmp_path: Path) -> None:
    stage = trainer_runs.finetune_stage(
        "rule", trainer_runs.table(tmp_path), sequence_length=32, global_batch_size=8, learning_rate=1e-3, epochs=2
    )
    model = trainer_runs.DISTIL
    document = trainer_runs.run_document(
        tmp_path / "run", tmp_path / "vocab.txt", [{**stage, "start_from": "random"}], model=model
    )
    config = parse_run_config(document)
    assert config.stages[0].micro_batch_size == 8
    assert config.sizes.num_hidden_layers == 6


def test_the_first_step_is_left_out_of_a_rate() -> None:
    rates = [{"event": "progress", "stage": "s", "sequences_per_s": rate} for rate in (1.0, 4.0, 12.0)]
    assert trainer_runs.training_rate(rates, "s") == pytest.approx(6.0)
    assert trainer_runs.training_rate(rates[:1], "s") == 1.0
